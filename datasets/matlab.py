"""MATLAB's level 5 MAT-files: the numeric arrays and structures that data sets such as SBD store in them.

Format: MathWorks, "MAT-File Format", chapter 1 (level 5). Cell arrays, sparse and complex arrays, characters, objects
and the HDF5-based version 7.3 are not read.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np

_TYPES = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}
_CLASSES = {6: "f8", 7: "f4", 8: "i1", 9: "u1", 10: "i2", 11: "u2", 12: "i4", 13: "u4", 14: "i8", 15: "u8"}
_MATRIX, _COMPRESSED, _STRUCTURE = 14, 15, 2
_LIMIT = 1 << 30  # bytes that one variable may unpack to

Value = np.ndarray | list[dict[str, "Value"]] | None
"""An array; the elements of a structure array, field by field; None for what is not read."""


def read_mat(path: str | os.PathLike[str]) -> dict[str, Value]:
    """The variables of a MAT-file by name; a structure array is a list of dictionaries.

    Raises ValueError naming the file when it is not a MAT-file of level 5, or damaged.
    """
    content = Path(path).read_bytes()
    if len(content) < 128 or content[126:128] not in (b"IM", b"MI"):
        raise ValueError(f"{path}: expected a MAT-file of level 5 (MATLAB 5 to 7)")
    order = "<" if content[126:128] == b"IM" else ">"
    variables: dict[str, Value] = {}
    try:
        for kind, data in _elements(content[128:], order):
            if kind == _COMPRESSED:
                unpacker = zlib.decompressobj()
                whole = unpacker.decompress(data, _LIMIT)
                if unpacker.unconsumed_tail:
                    raise ValueError(f"a variable of more than {_LIMIT} bytes")
                kind, data = next(_elements(whole, order))
            if kind == _MATRIX:
                name, value = _matrix(data, order)
                variables[name] = value
    except (ValueError, IndexError, KeyError, StopIteration, struct.error, zlib.error) as error:
        raise ValueError(f"{path}: damaged MAT-file: {error!r}") from error
    return variables


def _elements(data: bytes, order: str) -> Iterator[tuple[int, bytes]]:
    """(type, content) of the data elements that lie one after the other in ``data``."""
    at = 0
    while at + 8 <= len(data):
        kind, size = struct.unpack_from(f"{order}II", data, at)
        if kind >> 16:  # small element: size and type in four bytes, the content in the other four
            kind, size, start, step = kind & 0xFFFF, kind >> 16, at + 4, 8
        else:
            start, step = at + 8, 8 + size + (0 if kind == _COMPRESSED else -size % 8)
        if start + size > len(data):
            raise ValueError(f"an element of {size} bytes where {len(data) - start} are left")
        yield kind, data[start : start + size]
        at += step


def _matrix(data: bytes, order: str) -> tuple[str, Value]:
    """(name, value) of an array element: flags, dimensions, name, then what its class needs."""
    if not data:
        return "", np.zeros((0, 0))
    parts = list(_elements(data, order))
    flags = int(_numbers(parts[0], order)[0])
    shape = tuple(int(n) for n in _numbers(parts[1], order))
    name, kind = parts[2][1].decode("ascii"), flags & 0xFF
    if kind == _STRUCTURE:
        width = int(_numbers(parts[3], order)[0])
        text = parts[4][1]
        fields = [text[i : i + width].split(b"\0")[0].decode("ascii") for i in range(0, len(text), width)]
        values = [_matrix(content, order)[1] for _, content in parts[5:]]
        count = int(np.prod(shape))
        if len(values) != count * len(fields):
            raise ValueError(f"{name}: {len(values)} values for {count} elements of {len(fields)} fields")
        return name, [dict(zip(fields, values[i * len(fields) :])) for i in range(count)]
    if kind not in _CLASSES or flags & 0x800:
        return name, None
    stored = _numbers(parts[3], order).astype(_CLASSES[kind])
    return name, stored.reshape(shape, order="F")


def _numbers(part: tuple[int, bytes], order: str) -> np.ndarray:
    kind, content = part
    return np.frombuffer(content, np.dtype(order + _TYPES[kind]))
