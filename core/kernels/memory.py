"""Channels-last arrays whose large blocks are reused: fresh memory page-faults on every call, reused memory does not.

A block goes back to the pool when the last array that looks into it dies. All blocks together stay within a quarter
more than the largest amount ever needed at one time (plus 64 MiB); what exceeds that returns to the system.
"""

from __future__ import annotations

import mmap
import os
import threading
from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from typing import Any

import numpy as np

SMALL = 64 * 1024  # below this malloc is as quick
_PAGE = mmap.PAGESIZE
_HUGE = 2 * 1024 * 1024
_SLACK = 64 * 1024 * 1024
_BYTE = np.dtype(np.uint8)
# A mapping is shared with forked children by default: two of them would compute in the same memory.
_PRIVATE = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}


class _Block:
    """One anonymous mapping; ``serial`` tells which idle block was used longest ago."""

    __slots__ = ("memory", "nbytes", "serial")

    def __init__(self, nbytes: int) -> None:
        self.memory = mmap.mmap(-1, nbytes, **_PRIVATE)
        self.nbytes = nbytes
        self.serial = 0
        if nbytes >= _HUGE and hasattr(mmap, "MADV_HUGEPAGE"):
            self.memory.madvise(mmap.MADV_HUGEPAGE)

    def __lt__(self, other: _Block) -> bool:
        return self.nbytes < other.nbytes


class _Lease(np.ndarray[Any, np.dtype[Any]]):
    """The hidden base of every array of one block: its end is the end of the last view."""

    block: _Block
    returned: deque[_Block]  # the pool's

    def __del__(self) -> None:
        # Only an atomic append: this may run inside the garbage collector, while this thread holds the pool's lock.
        self.returned.append(self.block)


class Pool:
    """A thread-safe best-fit cache of memory blocks; with ``lasting`` all of them stay until the pool itself dies.

    >>> pool = Pool()
    >>> a = pool.empty((1, 64, 56, 56), np.dtype(np.float32)); address = a.ctypes.data
    >>> del a
    >>> pool.empty((1, 64, 56, 56), np.dtype(np.float32)).ctypes.data == address
    True
    """

    def __init__(self, lasting: bool = False) -> None:
        self.lasting = lasting
        self.returned: deque[_Block] = deque()
        self._idle: list[_Block] = []
        self._idle_bytes = self._live_bytes = self._peak_bytes = self._serial = 0
        self._lock = threading.Lock()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._unlock)

    def _unlock(self) -> None:
        self._lock = threading.Lock()  # another thread of the parent may have held it

    def empty(self, shape: tuple[int, ...], dtype: Any = np.float32) -> np.ndarray[Any, Any]:
        """An uninitialised array: rank 4 (batch, channels, height, width) lies channels-last, others in C order."""
        kind = np.dtype(dtype)
        order = (shape[0], *shape[2:], shape[1]) if len(shape) == 4 else shape
        nbytes = kind.itemsize * prod(shape)
        if nbytes < SMALL:
            array = np.empty(order, kind)
        else:
            block = self._take(nbytes)
            lease = _Lease((nbytes,), _BYTE, block.memory)
            lease.block, lease.returned = block, self.returned
            array = np.ndarray(order, kind, lease)
        return array.transpose(0, 3, 1, 2) if len(shape) == 4 else array

    def _take(self, nbytes: int) -> _Block:
        with self._lock:
            self._collect()
            place = bisect_left(self._idle, nbytes, key=lambda block: block.nbytes)
            # A block of up to twice the size is taken: its pages are in memory already, fresh ones are not.
            if place < len(self._idle) and self._idle[place].nbytes <= 2 * nbytes + _PAGE:
                # Of blocks of one size the last one used, which may lie in a cache.
                place = bisect_right(self._idle, self._idle[place].nbytes, key=lambda block: block.nbytes)
                block = self._idle.pop(place - 1)
                self._idle_bytes -= block.nbytes
            else:
                block = self._allocate(-(-nbytes // _PAGE) * _PAGE)
                self._shrink(max(self._peak_bytes, self._live_bytes + block.nbytes) * 5 // 4 + _SLACK - block.nbytes)
            self._live_bytes += block.nbytes
            self._peak_bytes = max(self._peak_bytes, self._live_bytes)
        return block

    def _allocate(self, nbytes: int) -> _Block:
        try:
            return _Block(nbytes)
        except OSError:
            self._shrink(0)
        try:
            return _Block(nbytes)
        except OSError as error:
            raise MemoryError(f"could not get {nbytes} bytes from the system: {error}") from error

    def _collect(self) -> None:
        while self.returned:
            block = self.returned.popleft()
            self._serial += 1
            block.serial = self._serial
            self._live_bytes -= block.nbytes
            self._idle_bytes += block.nbytes
            insort(self._idle, block)

    def _shrink(self, allowed: int) -> None:
        """Give the longest unused blocks back until live and idle blocks together fit ``allowed`` bytes."""
        while not self.lasting and self._idle and self._live_bytes + self._idle_bytes > allowed:
            oldest = min(range(len(self._idle)), key=lambda i: self._idle[i].serial)
            self._idle_bytes -= self._idle.pop(oldest).nbytes

    def trim(self) -> None:
        """Give all idle blocks back to the system and forget the largest need so far."""
        with self._lock:
            self._collect()
            self._idle.clear()
            self._idle_bytes = 0
            self._peak_bytes = self._live_bytes

    def usage(self) -> tuple[int, int]:
        """Bytes in use by arrays and bytes kept for reuse."""
        with self._lock:
            self._collect()
            return self._live_bytes, self._idle_bytes

    def alias(self, array: Any) -> Any:
        """The same memory without the claim to it, if it is this pool's: another array may get it once all are dead."""
        lease = array
        while isinstance(lease, np.ndarray) and not isinstance(lease, _Lease):
            lease = lease.base
        if not isinstance(lease, _Lease) or lease.returned is not self.returned:
            return array
        offset = array.ctypes.data - lease.ctypes.data
        return np.ndarray(array.shape, array.dtype, lease.block.memory, offset, array.strides)


COMMON = Pool()  # of all threads that were given none of their own
trim = COMMON.trim
usage = COMMON.usage


class _Current(threading.local):
    pool = COMMON


_current = _Current()


def empty(shape: tuple[int, ...], dtype: Any = np.float32) -> np.ndarray[Any, Any]:
    """An uninitialised array from this thread's pool; see ``Pool.empty``."""
    return _current.pool.empty(shape, dtype)


@contextmanager
def using(pool: Pool) -> Iterator[None]:
    """Take the memory of this thread from a pool of its own here."""
    before, _current.pool = _current.pool, pool
    try:
        yield
    finally:
        _current.pool = before
