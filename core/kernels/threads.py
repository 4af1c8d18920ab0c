"""Work shared among Python threads; NumPy and the kernels let go of the interpreter's lock while they compute."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import TypeVar

from . import onednn

Piece = TypeVar("Piece")


@lru_cache(maxsize=1)
def _workers() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(os.cpu_count(), "chainsight")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_workers.cache_clear)  # threads do not survive a fork


def share(work: Callable[[Sequence[Piece]], None], pieces: Sequence[Piece], least: int = 1) -> None:
    """Call ``work`` on parts of ``pieces``, at least ``least`` in each, on as many threads as the kernels use."""
    count = min(onednn.get_num_threads(), len(pieces) // least) or 1
    others = [_workers().submit(work, pieces[k::count]) for k in range(1, count)]
    work(pieces[::count])
    for other in others:
        other.result()
