"""Work shared among Python threads; NumPy and the kernels let go of the interpreter's lock while they compute."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import lru_cache, partial
from typing import Any, TypeVar

import numpy as np

from . import onednn
from .tape import tape

Piece = TypeVar("Piece")
_BLOCK = 1 << 15  # elements: a few blocks of them fit into a core's second-level cache
_BLOCKS_PER_THREAD = 4  # fewer are done before a second thread has started


_Region = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_BINDINGS = {"OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY"}  # with one of them OpenMP does it its own way
_pool: list[int] = []  # the native ids of the threads of ``_workers``


_own = threading.local()  # ``team``: OpenMP's threads that work for this thread; ``everywhere``: where it may run


def _place(*processors: set[int]) -> None:
    """Let the threads that work for this one run on these processors, one set for each."""
    for workers in (_own.team[1], _pool):
        for worker, places in zip(workers, processors):
            if os.path.exists(f"/proc/self/task/{worker}"):  # else it has ended, and its number may be another's
                os.sched_setaffinity(worker, places)


@contextmanager
def settled() -> Iterator[None]:
    """Keep this thread on its processor in this block, and those that share its work on one other each.

    Only where there are as many threads as processors. Hypervisors let an idle processor look taken: Linux then wakes
    a thread where its waker runs, and both share that one for milliseconds, again and again in a network of many
    small operations.
    """
    library, everywhere = onednn.load(), os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else {0}
    busy = 1 < len(everywhere) == onednn.get_num_threads() and not _BINDINGS & set(os.environ)
    if library is None or not busy or not hasattr(library.fast, "GOMP_parallel"):
        yield
        return
    if getattr(_own, "team", (None,))[0] != onednn.generation():
        team: set[int] = set()
        library.slow.GOMP_parallel(_Region(lambda _: team.add(threading.get_native_id())), None, len(everywhere), 0)
        _own.team = onednn.generation(), team - {threading.get_native_id()}
    home, _own.everywhere = library.fast.sched_getcpu(), everywhere
    _place(*({processor} for processor in everywhere - {home}))
    os.sched_setaffinity(0, {home})
    try:
        yield
    finally:
        os.sched_setaffinity(0, everywhere)
        _place(*[everywhere] * len(everywhere))


def _start(everywhere: set[int] | None) -> None:
    if everywhere:  # a thread starts where its parent is kept
        os.sched_setaffinity(0, everywhere)
    _pool.append(threading.get_native_id())


@lru_cache(maxsize=1)
def _workers() -> ThreadPoolExecutor:
    _pool.clear()
    return ThreadPoolExecutor(os.cpu_count(), "chainsight", _start, (getattr(_own, "everywhere", None),))


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
