"""NumPy's .npz archives, without pickles. Format: numpy/lib/format.py."""

from __future__ import annotations

import io
import math
import struct
import tokenize
import warnings
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from ..errors import WeightsError
from .archive import Archive
from .mapped import MappedFile
from .unpickle import check_sizes

_MAX_HEADER = 1 << 16


def read_npz(file: MappedFile, archive: Archive) -> dict[str, NDArray[Any]]:
    """The arrays by name: views of the file where they lie uncompressed and aligned, otherwise copies.

    Raises WeightsError for arrays of objects (they would need a pickle), headers that do not fit their data, and
    archives that would unpack to more than 256 MB plus 20 times their size (trained weights shrink by 10% or so).
    """
    total = sum(info.file_size for info in archive.members.values())
    if total > (1 << 28) + 20 * file.size:
        raise WeightsError(f"the archive of {file.size} bytes would unpack to {total}: no weights compress that well")
    if any(name.startswith("updater/model:main/") for name in archive.members):
        raise WeightsError(
            "a snapshot of a whole training by Chainer, not weights: read it there with load_npz(file, model, "
            "path='updater/model:main/') and write the model alone with save_npz"
        )
    arrays: dict[str, NDArray[Any]] = {}
    for name in archive.members:
        key = name.removesuffix(".npy")
        try:
            arrays[key] = _read_member(file, archive, name)
        except WeightsError as error:
            error.key = key
            raise
    return arrays


def _read_member(file: MappedFile, archive: Archive, name: str) -> NDArray[Any]:
    size = archive.members[name].file_size
    stored = archive.is_stored(name)
    start = archive.span(name)[0] if stored else 0
    head = np.empty(min(size, _MAX_HEADER), np.uint8)
    if stored:
        head[:] = np.frombuffer(file.bytes(start, head.size), np.uint8)
    else:
        archive.inflate(name, 0, head)
    shape, fortran, dtype, header = _parse_header(head.tobytes())
    count = math.prod(shape)
    if header + count * dtype.itemsize != size:
        raise WeightsError(f"{dtype} of shape {shape} takes {count * dtype.itemsize} bytes, got {size - header}")
    if stored:
        values = file.array(dtype, count, start + header)
    else:
        values = np.empty(count, dtype)
        archive.inflate(name, header, values.view(np.uint8))
    if not dtype.isnative:
        values = values.astype(dtype.newbyteorder("="))
    return values.reshape(shape, order="F" if fortran else "C")


def _parse_header(head: bytes) -> tuple[tuple[int, ...], bool, np.dtype[Any], int]:
    """(shape, Fortran order, dtype, size of the header in bytes) of an .npy file that begins with ``head``."""
    stream = io.BytesIO(head)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about headers of Python 2, which are fine
            read = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}[npy.read_magic(stream)]
            shape, fortran, dtype = read(stream)
    except (ValueError, KeyError, TypeError, SyntaxError, RecursionError, MemoryError) as error:
        raise WeightsError(f"malformed .npy header: {error}") from None
    except (struct.error, tokenize.TokenError, EOFError, IndexError, OverflowError) as error:
        raise WeightsError(f"malformed .npy header: {error}") from None
    if dtype.hasobject:
        raise WeightsError(
            "holds Python objects, which only a pickle could restore: save numbers instead. Chainer writes so a "
            "parameter that had no shape yet: run the model once before saving it"
        )
    if dtype.kind not in "biuf" or dtype.itemsize > 8:
        raise WeightsError(f"expected an array of numbers, got dtype {dtype}")
    return check_sizes(shape), fortran, dtype, stream.tell()
