"""The rows of 3x3 convolutions that detectors' heads begin with."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ...core.layers import Conv2d, Module, ReLU, Sequential, init

Initialiser = Callable[[tuple[int, ...]], np.ndarray]


def normal_001(shape: tuple[int, ...]) -> np.ndarray:
    """Normally distributed with a deviation of 0.01, as in the last layers of detectors since Fast R-CNN.

    >>> normal_001((2, 3)).shape
    (2, 3)
    """
    return init.normal(shape, 0.01)


def conv3x3(in_channels: int, out_channels: int, weight: Initialiser, bias: float | None = 0.0) -> Conv2d:
    """A 3x3 convolution that keeps the size; ``bias`` is its initial value, None for a layer without.

    >>> conv3x3(4, 8, init.he_normal).weight.shape
    (8, 4, 3, 3)
    """
    conv = Conv2d(in_channels, out_channels, 3, padding=1, bias=bias is not None)
    conv.weight.data = weight(conv.weight.shape)
    if conv.bias is not None and bias is not None:
        conv.bias.data = init.constant(conv.bias.shape, bias)
    return conv


def tower(
    channels: int, depth: int, norm: Callable[[int], Module] | None = None, weight: Initialiser = init.he_normal
) -> Sequential:
    """``depth`` times a 3x3 convolution, a norm if there is one (the convolution then has no bias), and ReLU.

    >>> len(tower(8, 4)), len(tower(8, 4)[0])
    (4, 2)
    """
    blocks = []
    for _ in range(depth):
        conv = conv3x3(channels, channels, weight, None if norm else 0.0)
        blocks.append(Sequential(conv, *([norm(channels)] if norm else []), ReLU()))
    return Sequential(*blocks)
