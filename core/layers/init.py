"""Initial values of parameters, drawn from the generator that ``seed`` sets."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator

import numpy as np

from ..device import generator

_filled = True


@contextlib.contextmanager
def skip_init() -> Iterator[None]:
    """In this block initialisers leave memory as it is: for models whose weights are loaded at once.

    >>> with skip_init(): normal((2, 3)).shape
    (2, 3)
    """
    global _filled
    before, _filled = _filled, False
    try:
        yield
    finally:
        _filled = before


def constant(shape: tuple[int, ...], value: float) -> np.ndarray:
    """An array of one value, float32."""
    return np.full(shape, value, np.float32)


def normal(shape: tuple[int, ...], std: float = 1.0) -> np.ndarray:
    """Normally distributed around 0, float32.

    >>> normal((2, 3), 0.01).dtype
    dtype('float32')
    """
    if not _filled:
        return np.empty(shape, np.float32)
    return generator().standard_normal(shape, np.float32) * np.float32(std)


def uniform(shape: tuple[int, ...], limit: float) -> np.ndarray:
    """Uniform in [-limit, limit], float32."""
    if not _filled:
        return np.empty(shape, np.float32)
    return (generator().random(shape, np.float32) * np.float32(2) - np.float32(1)) * np.float32(limit)


def he_normal(shape: tuple[int, ...], fan: str = "out", gain: float = math.sqrt(2)) -> np.ndarray:
    """For convolution weights (out, in, kh, kw) before a ReLU (He et al. 2015, equation 14 for "out", 10 for "in")."""
    area = math.prod(shape[2:])
    return normal(shape, gain / math.sqrt(max(1, (shape[0] if fan == "out" else shape[1]) * area)))


def lecun_uniform(shape: tuple[int, ...], fan_in: int) -> np.ndarray:
    """Uniform within 1 / sqrt(fan_in): the layers' default, as torch has it."""
    return uniform(shape, 1 / math.sqrt(max(1, fan_in)))


def xavier_uniform(shape: tuple[int, ...]) -> np.ndarray:
    """For weights (out, in, ...) of linear layers and before no or a symmetric activation (Glorot and Bengio 2010)."""
    area = math.prod(shape[2:])
    return uniform(shape, math.sqrt(6 / max(1, (shape[0] + shape[1]) * area)))
