"""Element types of files, and bfloat16, which NumPy lacks."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

BFLOAT16 = "bfloat16"
"""The element type of bfloat16 data; every other type goes by its NumPy dtype."""

ElementType = np.dtype[Any] | str


def storage_dtype(element: ElementType, big_endian: bool = False) -> np.dtype[Any]:
    """The NumPy dtype that holds the file's bytes of an element: uint16 for bfloat16."""
    dtype = np.dtype(np.uint16) if isinstance(element, str) else element
    ordered: np.dtype[Any] = dtype.newbyteorder(">" if big_endian else "<")
    return ordered


def decode(raw: NDArray[Any], element: ElementType) -> NDArray[Any]:
    """The values of 1-d ``raw``, as `storage_dtype` holds them, in native byte order.

    bfloat16 becomes float32, a non-zero byte of a bool is true, everything else stays as it is and is not copied.

    >>> decode(np.array([0x3F80, 0xC000], np.uint16), BFLOAT16)
    array([ 1., -2.], dtype=float32)
    """
    raw = raw if raw.dtype.isnative else raw.astype(raw.dtype.newbyteorder("="))
    if isinstance(element, str):
        # bfloat16 is the upper half of a float32: fill that half in place, without a wider temporary.
        out = np.zeros(raw.size, np.float32)
        out.view(np.uint16)[1 if sys.byteorder == "little" else 0 :: 2] = raw
        return out
    return raw.view(np.uint8) != 0 if raw.dtype == np.bool_ else raw
