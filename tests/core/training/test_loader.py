"""The loader: order, reproducibility, bounded prefetch, errors, early ends and Ctrl-C."""

import gc
import signal
import subprocess
import sys
import threading
import time
from itertools import chain, islice

import numpy as np
import pytest
from chainsight.core.training.loader import ItemError, Loader


class Counting:
    """Items are their own index; remembers which were read."""

    def __init__(self, n, seconds=0.0):
        self.n, self.seconds, self.read = n, seconds, []

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        self.read.append(index)
        if self.seconds:
            time.sleep(self.seconds)
        return index


class Named(int):
    @property
    def source(self):
        return f"photo{int(self)}.jpg"


def noisy(item, rng, others):
    return item, int(rng.integers(1 << 30)), others(), others()


def loader_threads():
    return [t for t in threading.enumerate() if t.name.startswith("loader-")]


@pytest.fixture(autouse=True)
def _no_thread_stays():
    yield
    gc.collect()
    deadline = time.monotonic() + 2
    while loader_threads() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert loader_threads() == []


@pytest.mark.parametrize("workers", [0, 1, 2, 7])
def test_order_and_content_do_not_depend_on_workers(workers):
    def run(workers, seed=3, batch_size=4, epoch=2):
        # Items of very different duration, so that a wrong order would show.
        class Uneven(Counting):
            def __getitem__(self, index):
                time.sleep(0.002 * (index % 3))
                return index

        return list(
            Loader(Uneven(22), batch_size, shuffle=True, seed=seed, workers=workers, transform=noisy).epoch(epoch)
        )

    batches = run(workers)
    assert batches == run(3)
    assert [len(b) for b in batches] == [4, 4, 4, 4, 4, 2]
    assert sorted(item for batch in batches for item, *_ in batch) == list(range(22))
    # The content of an item does not depend on the batch size, but on the epoch and the seed.
    assert list(chain(*run(workers, batch_size=5))) == list(chain(*batches))
    contents = {tuple(sorted(chain(*b))) for b in (batches, run(workers, epoch=1), run(workers, seed=4))}
    assert len(contents) == 3


def test_length_drop_last_and_no_shuffle():
    assert list(Loader(range(5), 2, workers=1).epoch(0)) == [[0, 1], [2, 3], [4]]
    assert len(Loader(range(5), 2)) == 3
    dropping = Loader(range(5), 2, drop_last=True)
    assert len(dropping) == 2
    assert list(dropping.epoch(0)) == [[0, 1], [2, 3]]
    assert list(Loader([], 2).epoch(0)) == []
    assert list(Loader(range(4), 2, workers=3, collate=np.array).epoch(0))[1].tolist() == [2, 3]


def test_shuffles_differ_between_epochs_and_are_not_an_items_own_randomness():
    loader = Loader(range(50), 5, shuffle=True, seed=1)
    assert sorted(loader.order(0)) == list(range(50))
    assert loader.order(0) == loader.order(0) != loader.order(1)
    first = Loader(range(50), 5, transform=lambda item, rng, others: list(rng.permutation(50)))
    assert next(iter(first.epoch(0)))[0] != loader.order(0)


@pytest.mark.parametrize("workers", [0, 3])
def test_resuming_gives_the_same_batches_and_reads_nothing_before(workers):
    def make():
        data = Counting(40)
        return data, Loader(data, 4, shuffle=True, seed=5, workers=workers, transform=lambda i, r, o: (i, r.random()))

    whole = list(make()[1].epoch(1))
    data, loader = make()
    assert list(loader.epoch(1, start=6)) == whole[6:]
    assert sorted(data.read) == sorted(loader.order(1)[24:])
    assert list(loader.epoch(1, start=10)) == []


@pytest.mark.parametrize("workers", [1, 4])
def test_prefetch_is_bounded_and_lazy(workers):
    data = Counting(1000)
    loader = Loader(data, 4, workers=workers)
    batches = loader.epoch(0)
    time.sleep(0.05)
    assert data.read == []
    for taken in (1, 2, 3):
        next(batches)
        time.sleep(0.05)
        assert len(data.read) == 4 * (taken + loader.prefetch)
    batches.close()
    assert loader_threads() == []


def test_memory_holds_no_more_batches_than_promised():
    class Item:
        living = 0

        def __init__(self):
            Item.living += 1

        def __del__(self):
            Item.living -= 1

    loader = Loader(range(200), 4, workers=6, transform=lambda *_: Item())
    most = 0
    for batch in loader.epoch(0):
        assert len(batch) == 4
        time.sleep(0.002)
        most = max(most, Item.living)
    assert 4 * loader.prefetch <= most <= 4 * (loader.prefetch + 1)
    del batch
    gc.collect()
    assert Item.living == 0


def test_the_consumer_does_not_wait_when_reading_keeps_up():
    """4 threads at 4 ms an item give a batch of 8 every 8 ms; a step takes 12 ms."""
    loader = Loader(Counting(240, seconds=0.004), 8, workers=4)
    batches = loader.epoch(0)
    next(batches)
    waits = []
    while True:
        time.sleep(0.012)
        start = time.perf_counter()
        if next(batches, None) is None:
            break
        waits.append(time.perf_counter() - start)
    assert len(waits) == 29
    assert np.median(waits) < 0.001


def test_slow_reading_uses_every_worker():
    for batch_size in (1, 8):
        start = time.perf_counter()
        assert len(list(Loader(Counting(64, seconds=0.01), batch_size, workers=8).epoch(0))) == 64 // batch_size
        assert time.perf_counter() - start < 0.32  # one thread takes 0.64 s


@pytest.mark.parametrize("workers", [0, 1, 4])
def test_an_error_names_the_item_and_comes_in_order(workers):
    def broken(item, rng, others):
        if item >= 9:
            raise OSError("truncated file")
        return int(item)

    loader = Loader([Named(i) for i in range(40)], 4, workers=workers, transform=broken)
    batches = loader.epoch(0)
    assert next(batches) == [0, 1, 2, 3]
    time.sleep(0.05)
    assert next(batches) == [4, 5, 6, 7]
    with pytest.raises(ItemError, match=r"item 9 \(photo9\.jpg\).*OSError: truncated file") as caught:
        next(batches)
    assert caught.value.index == 9
    assert caught.value.source == "photo9.jpg"
    assert isinstance(caught.value.__cause__, OSError)
    assert next(batches, "over") == "over"


@pytest.mark.parametrize("workers", [0, 2])
def test_an_error_of_the_data_set_or_of_collate_arrives(workers):
    with pytest.raises(ItemError, match="item 0 could not be loaded: ZeroDivisionError"):
        list(Loader([0] * 3, 2, workers=workers, transform=lambda i, r, o: 1 / i).epoch(0))
    with pytest.raises(ValueError, match="inhomogeneous"):
        list(Loader([[1], [1, 2]], 2, workers=workers, collate=np.array).epoch(0))


def test_an_exit_request_inside_a_worker_does_not_hang_the_consumer():
    def leave(item, rng, others):
        raise SystemExit("stop")

    with pytest.raises(SystemExit):
        list(Loader(range(8), 2, workers=2, transform=leave).epoch(0))


def test_breaking_off_stops_the_threads():
    data = Counting(10_000, seconds=0.001)
    for batch in Loader(data, 4, workers=4).epoch(0):
        assert batch == [0, 1, 2, 3]
        break
    gc.collect()
    assert loader_threads() == []
    assert len(data.read) < 30


def test_two_epochs_at_once_do_not_disturb_each_other():
    loader = Loader(range(20), 3, shuffle=True, workers=2)
    assert list(zip(loader.epoch(0), loader.epoch(0))) == [(b, b) for b in loader.epoch(0)]


@pytest.mark.parametrize(("kwargs", "named"), [({"batch_size": 0}, "batch_size"), ({"seed": -1}, "seed")])
def test_bad_arguments(kwargs, named):
    with pytest.raises(ValueError, match=named):
        Loader(range(3), **{"batch_size": 2, **kwargs})
    with pytest.raises(ValueError, match="start <= 2, got 0 and 3"):
        Loader(range(3), 2).epoch(0, start=3)


PROGRAM = """
import sys, time
from chainsight.core.training.loader import Loader

def slow(item, rng, others):
    time.sleep({item})
    return item

batches = Loader(range(10_000), 4, workers=4, transform=slow).epoch(0)
print("started", flush=True)
{body}
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows cannot send Ctrl-C to one process")
@pytest.mark.parametrize(
    ("item", "body"),
    [
        (0.01, "for batch in batches: pass"),  # in the loader or between, whichever
        (30, "next(batches)"),  # waiting for a stuck item
        (0.01, "next(batches); time.sleep(60)"),  # in the consumer's own work
    ],
)
def test_ctrl_c_ends_the_program(item, body):
    program = PROGRAM.format(item=item, body=body)
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # a test run in the background ignores the signal, and its children would inherit that
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    try:
        assert process.stdout.readline() == "started\n"
        time.sleep(0.3)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=10)
    finally:
        process.kill()
        process.wait()
    assert process.returncode in (-signal.SIGINT, 130)
    assert errors.rstrip().endswith("KeyboardInterrupt")
    assert "Fatal" not in errors
    assert errors.count("Traceback") == 1


def test_the_program_ends_by_itself_with_a_loop_left_open():
    program = PROGRAM.format(item=0.01, body="next(batches)")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=10)
    assert (done.returncode, done.stdout, done.stderr) == (0, "started\n", "")


def test_islice_of_an_epoch_can_be_resumed():
    loader = Loader(range(30), 4, shuffle=True, seed=9)
    assert list(islice(loader.epoch(0), 3)) + list(loader.epoch(0, start=3)) == list(loader.epoch(0))
