"""Writing weights as safetensors, and replacing files atomically."""

from __future__ import annotations

import contextlib
import json
import os
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from .errors import WeightsError
from .readers.mapped import MappedFile
from .readers.safetensors import ELEMENTS, read_header

_CODES = {dtype: code for code, dtype in ELEMENTS.items() if isinstance(dtype, np.dtype)}


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """A binary file that takes the place of ``path`` when the block ends without an error, and never in part.

    The bytes go to a temporary file beside it, reach the disk, and are renamed. On any error (a full disk, an
    interruption) the temporary file is removed and what stood at ``path`` before stays as it was; an OSError of the
    system names ``path``.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "note.txt"
    >>> with replacing(path) as file:
    ...     _ = file.write(b"whole")
    >>> path.read_bytes()
    b'whole'
    """
    path = Path(path)
    if path.is_dir():
        raise IsADirectoryError(f"{path}: expected the name of a file, got a folder")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"{path}: the folder {path.parent} does not exist")
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:12]}.tmp")
    try:
        with open(temporary, "xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        if error.errno is None:
            raise
        raise OSError(error.errno, error.strerror, os.fspath(path)) from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()


def save_safetensors(
    path: str | os.PathLike[str], arrays: Mapping[str, NDArray[Any]], metadata: Mapping[str, str] | None = None
) -> None:
    """Write NumPy arrays of numbers or bools by name, and ``metadata``, texts by name, as a safetensors file.

    Equal arrays and metadata give equal bytes. The file appears whole or not at all, see `replacing`. Raises TypeError
    for values that are not NumPy arrays or metadata that is not text, WeightsError for a dtype that safetensors lacks
    or the reserved name ``__metadata__``, OSError when the disk refuses.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "model.safetensors"
    >>> save_safetensors(path, {"bias": np.zeros(3, np.float32)}, {"model": "ssd"})
    >>> read_metadata(path)
    {'model': 'ssd'}
    """
    header: dict[str, Any] = {}
    if metadata:
        for name, text in metadata.items():
            if not isinstance(name, str) or not isinstance(text, str):
                raise TypeError(f"expected text as metadata, got {name!r}: {type(text).__name__}")
        header["__metadata__"] = dict(sorted(metadata.items()))
    for name, array in arrays.items():
        if not isinstance(name, str) or not isinstance(array, np.ndarray):
            raise TypeError(f"expected NumPy arrays by name, got {name!r}: {type(array).__name__}")
        if name == "__metadata__" or array.dtype.newbyteorder("=") not in _CODES:
            raise WeightsError(f"cannot be stored as {array.dtype} in a safetensors file", path=path, key=name)
    # Widest elements first keeps every array aligned, since the header is padded to 8 bytes.
    order = sorted(arrays, key=lambda name: (-arrays[name].dtype.itemsize, name))
    offset = 0
    for name in order:
        array = arrays[name]
        header[name] = {
            "dtype": _CODES[array.dtype.newbyteorder("=")],
            "shape": list(array.shape),
            "data_offsets": [offset, offset + array.nbytes],
        }
        offset += array.nbytes
    encoded = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode("utf-8")
    encoded += b" " * (-len(encoded) % 8)
    with replacing(path) as file:
        file.write(len(encoded).to_bytes(8, "little") + encoded)
        for name in order:
            # One array at a time: saving takes the memory of the largest non-contiguous array, not of the model.
            values = np.ascontiguousarray(arrays[name], arrays[name].dtype.newbyteorder("<"))
            values.tofile(file)


def read_metadata(path: str | os.PathLike[str]) -> dict[str, str]:
    """The texts that `save_safetensors` stored beside the arrays; WeightsError when the header is malformed."""
    try:
        with MappedFile(path) as file:
            header, _ = read_header(file)
    except WeightsError as error:
        error.path = path
        raise
    return dict(header.get("__metadata__", {}))
