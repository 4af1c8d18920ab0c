"""Safetensors files, mapped. Format: https://github.com/huggingface/safetensors#format.

The `safetensors` package reads NumPy arrays as copies and has no bfloat16 for them; the format is an 8-byte length, a
JSON header and the raw values, so it is read here.
"""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import WeightsError
from .dtypes import BFLOAT16, ElementType, decode, storage_dtype
from .mapped import MappedFile
from .unpickle import check_sizes

MAX_HEADER = 100_000_000
"""The limit of the reference implementation, in bytes."""

ELEMENTS: dict[str, ElementType] = {
    "F64": np.dtype(np.float64),
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": BFLOAT16,
    "I64": np.dtype(np.int64),
    "I32": np.dtype(np.int32),
    "I16": np.dtype(np.int16),
    "I8": np.dtype(np.int8),
    "U64": np.dtype(np.uint64),
    "U32": np.dtype(np.uint32),
    "U16": np.dtype(np.uint16),
    "U8": np.dtype(np.uint8),
    "BOOL": np.dtype(np.bool_),
}


def read_header(file: MappedFile) -> tuple[dict[str, Any], int]:
    """The JSON header as a dict, and the offset of the values; WeightsError when it is malformed."""
    size = int.from_bytes(file.bytes(0, 8), "little")
    if size > min(MAX_HEADER, file.size - 8):
        raise WeightsError(f"the safetensors header claims {size} bytes, but the file has {file.size}")
    try:
        header = json.loads(file.bytes(8, size).decode("utf-8"), object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise WeightsError(f"the safetensors header is not valid JSON: {error}") from None
    if not isinstance(header, dict):
        raise WeightsError(f"expected an object as the safetensors header, got {type(header).__name__}")
    metadata = header.get("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise WeightsError("expected text values in the safetensors metadata")
    return header, 8 + size


def read_safetensors(file: MappedFile) -> dict[str, NDArray[Any]]:
    """The arrays by name, views of the file; WeightsError when ranges overlap, leave holes or pass the end."""
    header, start = read_header(file)
    header.pop("__metadata__", None)
    arrays: dict[str, NDArray[Any]] = {}
    ranges: list[tuple[int, int, str]] = []
    for key, entry in header.items():
        try:
            match entry:
                case {"dtype": str() as code, "shape": list() as sizes, "data_offsets": [int() as begin, int() as end]}:
                    pass
                case _:
                    raise WeightsError("expected dtype, shape and data_offsets in the safetensors header")
            if code not in ELEMENTS:
                raise WeightsError(f"unsupported dtype {code!r:.40}; supported are {', '.join(ELEMENTS)}")
            shape, dtype = check_sizes(sizes), storage_dtype(ELEMENTS[code])
            size = math.prod(shape) * dtype.itemsize
            if not 0 <= begin <= end <= file.size - start or end - begin != size:
                raise WeightsError(
                    f"shape {shape} of {code} takes {size} bytes, got the range {begin}:{end} of {file.size - start}"
                )
            values = decode(file.array(dtype, math.prod(shape), start + begin), ELEMENTS[code])
            arrays[key] = values.reshape(shape)
        except WeightsError as error:
            error.key = key
            raise
        ranges.append((begin, end, key))
    position = 0
    for begin, end, key in sorted(ranges):
        if begin != position:
            raise WeightsError(f"values begin at {begin}, expected {position}: ranges overlap or leave a hole", key=key)
        position = end
    if position != file.size - start:
        raise WeightsError(f"the tensors end at byte {position} of {file.size - start}: truncated, or a hidden hole")
    return arrays


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    out = dict(pairs)
    if len(out) != len(pairs):
        raise ValueError("a name occurs twice")
    return out
