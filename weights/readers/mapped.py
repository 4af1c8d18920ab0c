"""A file as one memory map, from which arrays are cut without copying."""

from __future__ import annotations

import mmap
import os
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import WeightsError


class MappedFile:
    """The bytes of a file, mapped copy-on-write: nothing is read before it is used, and writing to an array that
    was cut from it changes neither the file nor what others see.

    A context manager: leaving it closes the file but not the map, which lives as long as any array cut from it.
    Raises OSError when the file cannot be opened and WeightsError when it is empty.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.file = open(path, "rb")  # noqa: SIM115  # closed by __exit__
        try:
            self.size = os.fstat(self.file.fileno()).st_size
            if self.size == 0:
                raise WeightsError("the file is empty")
            self._map = mmap.mmap(self.file.fileno(), 0, access=mmap.ACCESS_COPY)
        except BaseException:
            self.file.close()
            raise
        self.data = memoryview(self._map)

    def __enter__(self) -> MappedFile:
        return self

    def __exit__(self, *exc: object) -> None:
        self.file.close()

    def bytes(self, offset: int, size: int) -> bytes:
        """A copy of ``size`` bytes from ``offset``; WeightsError when the file ends before."""
        self._check(offset, size)
        return self._map[offset : offset + size]

    def array(self, dtype: np.dtype[Any], count: int, offset: int) -> NDArray[Any]:
        """``count`` elements from ``offset`` as a 1-d array: a view of the map where the offset is a multiple of the
        element's size, otherwise a copy (kernels want aligned memory), which is read past the map so that the pages
        of the file do not count twice."""
        self._check(offset, count * dtype.itemsize)
        if offset % dtype.itemsize == 0:
            return np.frombuffer(self._map, dtype, count, offset) if count else np.empty(0, dtype)
        self.file.seek(offset)
        return np.fromfile(self.file, dtype, count)

    def _check(self, offset: int, size: int) -> None:
        if offset < 0 or size < 0 or offset + size > self.size:
            raise WeightsError(
                f"expected {size} bytes at offset {offset}, but the file has {self.size} bytes: truncated?"
            )
