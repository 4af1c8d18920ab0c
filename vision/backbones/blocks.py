"""What several backbones build on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...core import Tensor
from ...core import functions as F
from ...core.functions.conv import Pair
from ...core.layers import (
    Activation,
    BatchNorm,
    BatchNorm2d,
    Conv2d,
    Linear,
    Module,
    ReLU,
    Sequential,
    Sigmoid,
    StochasticDepth,
    init,
)
from ...weights.entry import WeightsEntry
from ..categories import Categories
from ..model import IMAGENET_MEAN, IMAGENET_STD, ModelInfo

Norm = Callable[[int], BatchNorm]


def conv_norm_activation(
    in_channels: int,
    out_channels: int,
    kernel: int,
    stride: int = 1,
    dilation: int = 1,
    groups: int = 1,
    norm: Norm = BatchNorm2d,
    activation: Activation | None = None,
) -> Sequential:
    """A convolution that keeps the size (up to its stride), a batch norm, and an activation if there is one.

    >>> len(conv_norm_activation(3, 8, 3))
    2
    """
    padding = (kernel - 1) // 2 * dilation
    conv = Conv2d(in_channels, out_channels, kernel, stride, padding, dilation, groups, bias=False)
    parts: list[Module] = [conv, norm(out_channels)]
    return Sequential(*parts, *([activation] if activation is not None else []))


class SqueezeExcitation(Module):
    """Channels scaled by a gate computed from their means (Hu et al. 2018).

    >>> SqueezeExcitation(8, 2)(Tensor(np.zeros((1, 8, 4, 4), np.float32))).shape
    (1, 8, 4, 4)
    """

    def __init__(
        self, channels: int, squeezed: int, activation: Activation | None = None, gate: Activation | None = None
    ) -> None:
        self.fc1 = Conv2d(channels, squeezed, 1)
        self.fc2 = Conv2d(squeezed, channels, 1)
        self.activation, self.gate = activation or ReLU(), gate or Sigmoid()

    def forward(self, x: Tensor) -> Tensor:
        y = self.fc1.fused(F.mean(x, (2, 3), True), None, self.activation)
        return x * self.fc2.fused(y, None, self.gate)


def residual(block: Sequential, x: Tensor, drop: StochasticDepth) -> Tensor:
    """x + drop(block(x)), the sum in the block's last kernel where nothing is dropped."""
    return x + drop(block(x)) if drop.active else block(x, x)  # type: ignore[no-any-return]


def initialise(
    module: Module, kinds: type[Module] | tuple[type[Module], ...], weight: Callable[[tuple[int, ...]], np.ndarray]
) -> None:
    """Draw the weights of all convolutions or linear layers in a module, by their shape, and zero their biases."""
    for _, part in module.named_modules():
        if isinstance(part, kinds) and isinstance(part, (Conv2d, Linear)):
            part.weight.data = weight(part.weight.shape)
            if part.bias is not None:
                part.bias.data = init.constant(part.bias.shape, 0)


def classifier_info(
    paper: str, build: Callable[[Categories], Any], gflops: float, *entries: WeightsEntry, **more: Any
) -> ModelInfo:
    """The row of the zoo for a classifier whose builder bears its name; ``more`` are further fields of ModelInfo."""
    return ModelInfo(build.__name__, "classification", build, Categories.plain, entries, paper, gflops, **more)


def depth_ratios(most: float, blocks: int) -> Sequence[float]:
    """Ratios of stochastic depth from 0 in the first block to ``most`` in the last (Huang et al. 2016, equation 4).

    >>> depth_ratios(0.2, 3)
    [0.0, 0.1, 0.2]
    """
    return [most * i / max(blocks - 1, 1) for i in range(blocks)]


def inception_conv(
    in_channels: int, out_channels: int, kernel: Pair, stride: int = 1, padding: int | tuple[int, int] = 0
) -> Sequential:
    """Convolution, batch norm and ReLU as the Inception networks have them.

    >>> len(inception_conv(3, 8, 3))
    3
    """
    conv = Conv2d(in_channels, out_channels, kernel, stride, padding, bias=False)
    return Sequential(conv=conv, bn=BatchNorm2d(out_channels, eps=1e-3), relu=ReLU())


def symmetric_input(x: Tensor) -> Tensor:
    """Images (n, 3, height, width) normalised by ImageNet's mean and deviation, brought to -1 to 1."""
    mean, std = (np.array(v).reshape(1, 3, 1, 1) for v in (IMAGENET_MEAN, IMAGENET_STD))
    scale, shift = (Tensor(x.xp.asarray(a.astype(x.dtype))) for a in (std / 0.5, (mean - 0.5) / 0.5))
    return x * scale + shift


def relative_positions(window: int) -> np.ndarray:
    """For each pair of places in a square window (places, places) the number of their offset, int64.

    >>> relative_positions(2)[0].tolist()
    [4, 3, 1, 0]
    """
    y, x = (a.reshape(-1) for a in np.mgrid[:window, :window])
    return np.asarray((y[:, None] - y + window - 1) * (2 * window - 1) + x[:, None] - x + window - 1)


def split_windows(x: Tensor, rows: int, columns: int) -> Tensor:
    """Windows of rows x columns places, (n, windows, places, features), of x (n, height, width, features).

    Raises ValueError where they do not fill x.

    >>> split_windows(Tensor(np.zeros((1, 4, 6, 8), np.float32)), 2, 3).shape
    (1, 4, 6, 8)
    """
    n, h, w, c = x.shape
    if h % rows or w % columns:
        raise ValueError(f"split_windows: windows of {rows}x{columns} do not fill {h}x{w}")
    y = F.transpose(F.reshape(x, (n, h // rows, rows, w // columns, columns, c)), (0, 1, 3, 2, 4, 5))
    return F.reshape(y, (n, -1, rows * columns, c))


def join_windows(x: Tensor, height: int, width: int, rows: int, columns: int) -> Tensor:
    """What ``split_windows`` made windows of: (n, height, width, features).

    >>> join_windows(Tensor(np.zeros((1, 4, 6, 8), np.float32)), 4, 6, 2, 3).shape
    (1, 4, 6, 8)
    """
    n, _, _, c = x.shape
    y = F.reshape(x, (n, height // rows, width // columns, rows, columns, c))
    return F.reshape(F.transpose(y, (0, 1, 3, 2, 4, 5)), (n, height, width, c))


def make_divisible(channels: float, divisor: int = 8) -> int:
    """The nearest multiple of ``divisor``, not more than 10% below (MobileNetV2's rule for channel counts).

    >>> make_divisible(18), make_divisible(100.5)
    (24, 104)
    """
    rounded = max(divisor, int(channels + divisor / 2) // divisor * divisor)
    return rounded + divisor if rounded < 0.9 * channels else rounded
