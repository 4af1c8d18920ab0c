"""Pooling layers."""

from __future__ import annotations

from .. import functions as F
from ..functions.conv import Pair
from ..tensor import Tensor
from .module import Module


class MaxPool2d(Module):
    """The greatest value of each window; see ``functions.max_pool2d``."""

    def __init__(
        self, kernel_size: Pair, stride: Pair | None = None, padding: Pair = 0, ceil_mode: bool = False
    ) -> None:
        self.kernel_size, self.stride, self.padding, self.ceil_mode = kernel_size, stride, padding, ceil_mode

    def forward(self, x: Tensor) -> Tensor:
        return F.max_pool2d(x, self.kernel_size, self.stride, self.padding, ceil_mode=self.ceil_mode)

    def describe(self) -> str:
        return f"{self.kernel_size}, stride {self.stride or self.kernel_size}"


class AvgPool2d(Module):
    """The mean of each window; see ``functions.avg_pool2d``."""

    def __init__(self, kernel_size: Pair, stride: Pair | None = None, padding: Pair = 0) -> None:
        self.kernel_size, self.stride, self.padding = kernel_size, stride, padding

    def forward(self, x: Tensor) -> Tensor:
        return F.avg_pool2d(x, self.kernel_size, self.stride, self.padding)

    def describe(self) -> str:
        return f"{self.kernel_size}, stride {self.stride or self.kernel_size}"


class AdaptiveAvgPool2d(Module):
    """The means over an even grid of cells; see ``functions.adaptive_avg_pool2d``."""

    def __init__(self, size: Pair) -> None:
        self.size = size

    def forward(self, x: Tensor) -> Tensor:
        return F.adaptive_avg_pool2d(x, self.size)

    def describe(self) -> str:
        return f"{self.size}"
