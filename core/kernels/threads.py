"""Work shared among Python threads; NumPy and the kernels let go of the interpreter's lock while they compute."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache, partial
from typing import Any, TypeVar

import numpy as np

from . import onednn
from .tape import tape

Piece = TypeVar("Piece")
_BLOCK = 1 << 15  # elements: a few blocks of them fit into a core's second-level cache
_BLOCKS_PER_THREAD = 4  # fewer are done before a second thread has started


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


def blockwise(work: Callable[..., None], *arrays: Any) -> None:
    """Call ``work`` on blocks of arrays of one shape, flat, for operations element by element with results in place.

    A block stays in a core's cache while several operations pass over it. Arrays of the GPU, and such that lie in
    memory in different orders, are passed as they are.

    >>> x = np.zeros((300, 300))
    >>> blockwise(lambda block: block.__iadd__(1), x)
    >>> bool((x == 1).all())
    True
    """
    if tape.notes is not None:
        tape.notes.add(partial(blockwise, work), *arrays)
    flat = [a.reshape(-1) for a in arrays if isinstance(a, np.ndarray) and a.flags.c_contiguous]
    if len(flat) < len(arrays):
        turned = [a.transpose(0, 2, 3, 1) for a in arrays if isinstance(a, np.ndarray) and a.ndim == 4]
        flat = [a.reshape(-1) for a in turned if a.flags.c_contiguous]
    if len(flat) < len(arrays):
        work(*arrays)
        return

    def run(starts: Sequence[int]) -> None:
        for start in starts:
            work(*(a[start : start + _BLOCK] for a in flat))

    share(run, range(0, flat[0].size, _BLOCK), _BLOCKS_PER_THREAD)
