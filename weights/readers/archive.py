"""The directory of a zip archive, checked before anything is read from it."""

from __future__ import annotations

import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from ..errors import WeightsError
from .mapped import MappedFile

_ENCRYPTED = 0x1


@contextmanager
def zip_errors() -> Iterator[None]:
    """Turns what `zipfile` raises on malformed archives into WeightsError."""
    try:
        yield
    except WeightsError:
        raise
    except (zipfile.BadZipFile, ValueError, NotImplementedError, RuntimeError, OverflowError, OSError) as error:
        raise WeightsError(f"damaged or truncated zip archive: {error}") from None
    except (struct.error, EOFError, IndexError, KeyError, MemoryError, zlib.error) as error:
        raise WeightsError(f"damaged or truncated zip archive: {type(error).__name__} {error}") from None


class Archive:
    """The members of a zip file by name.

    Raises WeightsError for a truncated or encrypted archive, names with ``..`` or an absolute path, a name that occurs
    twice, and uncompressed members that together are larger than the file (so they overlap).
    """

    def __init__(self, file: MappedFile) -> None:
        self._file = file
        with zip_errors():
            self._zip = zipfile.ZipFile(file.file)
        self.members: dict[str, zipfile.ZipInfo] = {}
        for info in self._zip.infolist():
            name = info.filename
            if name.startswith("/") or "\\" in name or ".." in name.split("/"):
                raise WeightsError(f"zip entry {name!r:.200} points outside the archive")
            if name in self.members:
                raise WeightsError(f"zip entry {name!r:.200} occurs twice")
            if info.flag_bits & _ENCRYPTED:
                raise WeightsError(f"zip entry {name!r:.200} is encrypted")
            self.members[name] = info
        stored = sum(info.file_size for info in self.members.values() if info.compress_type == zipfile.ZIP_STORED)
        if stored > file.size:
            raise WeightsError(f"zip entries claim {stored} bytes, the file has {file.size}: truncated or overlapping")

    def is_stored(self, name: str) -> bool:
        """Whether the member lies uncompressed in the file."""
        return self.members[name].compress_type == zipfile.ZIP_STORED

    def span(self, name: str) -> tuple[int, int]:
        """(offset, size) in bytes of an uncompressed member within the file."""
        info = self.members.get(name)
        if info is None:
            raise WeightsError(f"the archive has no entry {name!r:.200}")
        if info.compress_type != zipfile.ZIP_STORED or info.compress_size != info.file_size:
            raise WeightsError(f"zip entry {name!r:.200} is compressed: torch stores its entries as they are")
        # The local header repeats the name and has padding of its own, so only it tells where the content begins.
        header = self._file.bytes(info.header_offset, 30)
        if header[:4] != b"PK\x03\x04":
            raise WeightsError(f"zip entry {name!r:.200} has no header where the directory says")
        name_size, extra_size = struct.unpack("<HH", header[26:30])
        offset = info.header_offset + 30 + name_size + extra_size
        if offset + info.file_size > self._file.size:
            raise WeightsError(f"zip entry {name!r:.200} ends past the end of the file: truncated?")
        return offset, info.file_size

    def read(self, name: str) -> bytes:
        """The content of a small uncompressed member."""
        return self._file.bytes(*self.span(name))

    def inflate(self, name: str, start: int, out: NDArray[np.uint8]) -> None:
        """Fill ``out`` with the member's content from ``start``, unpacking block by block."""
        with zip_errors(), self._zip.open(name) as stream:
            stream.read(start)
            filled = 0
            while filled < out.size:
                block = stream.read(min(out.size - filled, 1 << 20))
                if not block:
                    break
                out[filled : filled + len(block)] = np.frombuffer(block, np.uint8)
                filled += len(block)
        if filled != out.size:
            raise WeightsError(f"zip entry {name!r:.200} holds {filled + start} bytes, expected {out.size + start}")
