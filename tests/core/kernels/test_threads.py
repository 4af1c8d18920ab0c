"""Work shared among threads."""

import os
import subprocess
import sys

import numpy as np
import pytest
from chainsight.core.kernels import onednn, threads


def test_every_piece_is_done_once(monkeypatch):
    monkeypatch.setattr(onednn, "get_num_threads", lambda: 3)
    done = []
    threads.share(done.extend, list(range(20)), least=2)
    assert sorted(done) == list(range(20))


def test_few_pieces_stay_in_this_thread(monkeypatch):
    monkeypatch.setattr(onednn, "get_num_threads", lambda: 8)
    parts = []
    threads.share(parts.append, [1, 2, 3], least=2)
    assert parts == [[1, 2, 3]]


def test_an_error_in_a_thread_is_raised(monkeypatch):
    monkeypatch.setattr(onednn, "get_num_threads", lambda: 2)

    def work(pieces):
        if 31 in pieces:
            raise MemoryError("no memory")

    with pytest.raises(MemoryError, match="no memory"):
        threads.share(work, list(range(32)))


@pytest.mark.parametrize("orders", ["CC", "FF", "CF"])
def test_blocks_cover_arrays_in_place(orders, monkeypatch):
    monkeypatch.setattr(onednn, "get_num_threads", lambda: 2)
    shape = (3, 40, 50, 60)
    sizes = []

    def work(x, y):
        sizes.append(x.size)
        y += 2 * x

    x, y = (np.random.default_rng(0).random((shape[0], *shape[2:], shape[1])) for _ in range(2))
    x, y = (a.transpose(0, 3, 1, 2) if order == "F" else a.reshape(shape) for a, order in zip((x, y), orders))
    expected = y + 2 * x
    threads.blockwise(work, x, y)
    assert np.array_equal(y, expected)
    assert sum(sizes) == x.size
    assert len(sizes) == (1 if orders == "CF" else 11)


SETTLED = """
import os, sys, threading, time
import numpy as np
from chainsight.core import kernels
from chainsight.core.kernels import onednn, threads

def places():  # of all threads of this process by native id
    return {int(t): os.sched_getaffinity(int(t)) for t in os.listdir("/proc/self/task")}

def pool():
    found = []
    threads.share(lambda part: found.append((threading.get_native_id(), os.sched_getaffinity(0))), [0, 1])
    time.sleep(0.05)
    return {t: p for t, p in found if t != me}

me, everywhere = threading.get_native_id(), os.sched_getaffinity(0)
x, w = np.ones((1, 64, 40, 40), np.float32), np.ones((64, 64, 3, 3), np.float32)
kernels.conv2d(x, w, None, kernels.ConvSpec())
before = set(places())
"""
WITHIN = """
if sys.argv[1] == "pool first":
    pool()
try:
    with threads.settled():
        (home,) = os.sched_getaffinity(0)
        kernels.conv2d(x, w, None, kernels.ConvSpec())
        (started,) = pool().values()
        raise KeyError
except KeyError:
    pass
assert os.sched_getaffinity(0) == everywhere, "not restored"
assert started == everywhere if sys.argv[1] == "pool later" else len(started) == 1, started
assert all(p == everywhere for p in places().values()), "workers stay where they were kept"
with threads.settled():
    (home,) = os.sched_getaffinity(0)
    others = [p for t, p in places().items() if t != me and len(p) == 1]
    ((_, helper),) = pool().items()
    with threads.settled():
        assert os.sched_getaffinity(0) == {home}
assert len(others) >= 2 * (len(everywhere) - 1) or len(everywhere) > 2, others
assert all(p != {home} for p in others), (home, others)
assert len(helper) == 1 and helper != {home}, helper
assert all(p == everywhere for p in places().values())
kernels.set_num_threads(1)
kernels.set_num_threads(len(everywhere))  # other teams of OpenMP
for _ in range(3):
    with threads.settled():
        kernels.conv2d(x, w, None, kernels.ConvSpec())
        assert len(os.sched_getaffinity(0)) == 1
assert all(p == everywhere for p in places().values())
"""
UNTOUCHED = """
if sys.argv[1] == "fewer":
    kernels.set_num_threads(1)
with threads.settled():
    assert os.sched_getaffinity(0) == everywhere
assert all(p == everywhere for p in places().values())
"""
several = pytest.mark.skipif(
    not hasattr(os, "sched_getaffinity") or len(os.sched_getaffinity(0)) < 2 or onednn.load() is None,
    reason="needs several processors, Linux and oneDNN",
)


def settle(code, argument, **variables):
    env = {k: v for k, v in os.environ.items() if not k.startswith(("OMP_", "GOMP_"))} | variables
    done = subprocess.run([sys.executable, "-c", SETTLED + code, argument], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@several
@pytest.mark.parametrize("pool", ["pool first", "pool later"])
def test_settled_threads_have_a_processor_each(pool):
    settle(WITHIN, pool)


@several
@pytest.mark.parametrize("why", ["fewer", "bound"])
def test_threads_are_left_alone_where_they_are_fewer_or_bound_by_the_user(why):
    settle(UNTOUCHED, why, **({"OMP_PLACES": "threads", "OMP_PROC_BIND": "false"} if why == "bound" else {}))
