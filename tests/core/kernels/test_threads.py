"""Work shared among threads."""

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
