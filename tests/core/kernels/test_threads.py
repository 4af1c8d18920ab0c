"""Work shared among threads."""

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
