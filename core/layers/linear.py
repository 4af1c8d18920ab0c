"""Linear layers and the small parts around them."""

from __future__ import annotations

from .. import functions as F
from .. import kernels
from ..function import is_recording
from ..functions.conv import Pair
from ..tensor import Parameter, Tensor, wrap
from . import init
from .activation import Activation
from .module import Module
from .packing import Packed


class Linear(Module):
    """x (..., in) to (..., out) by a matrix and a bias.

    >>> Linear(3, 2)(Tensor([[1.0, 2.0, 3.0]])).shape
    (1, 2)
    """

    def __init__(self, in_features: int, out_features: int, bias: bool = True) -> None:
        self.weight = Parameter(init.lecun_uniform((out_features, in_features), in_features))
        self.bias = Parameter(init.lecun_uniform((out_features,), in_features)) if bias else None
        self.packed = Packed()

    def forward(self, x: Tensor) -> Tensor:
        return self.fused(x)

    def fused(self, x: Tensor, activation: Activation | None = None, residual: Tensor | None = None) -> Tensor:
        """activation(linear(x) + residual), both optional: one kernel where no graph is recorded."""
        if is_recording() or x.shape[-1] != self.weight.shape[1]:
            y = F.linear(x, self.weight, self.bias)
            if residual is not None:
                y = y + residual
            return y if activation is None else activation(y)
        absorbed = None if activation is None else activation.kernel
        tensors: list[Tensor] = [self.weight] if self.bias is None else [self.weight, self.bias]
        bias = None if self.bias is None else self.bias.data
        kernel = self.packed.get(
            (absorbed, kernels.precision()),
            tensors,
            lambda: kernels.FusedLinear(self.weight.data, bias, absorbed),
        )
        return wrap(kernel(x.data, None if residual is None else residual.data))

    def describe(self) -> str:
        return f"{self.weight.shape[1]} -> {self.weight.shape[0]}" + ("" if self.bias is not None else ", no bias")


class Flatten(Module):
    """(n, ...) to (n, all the rest), in row-major order.

    >>> import numpy as np
    >>> Flatten()(Tensor(np.zeros((2, 3, 4), np.float32))).shape
    (2, 12)
    """

    def forward(self, x: Tensor) -> Tensor:
        return F.reshape(x, (x.shape[0], -1))


class Permute(Module):
    """The axes in another order; see ``functions.transpose``.

    >>> import numpy as np
    >>> Permute(0, 2, 3, 1)(Tensor(np.zeros((1, 2, 3, 4), np.float32))).shape
    (1, 3, 4, 2)
    """

    def __init__(self, *axes: int) -> None:
        self.axes = axes

    def forward(self, x: Tensor) -> Tensor:
        return F.transpose(x, self.axes)

    def describe(self) -> str:
        return f"{self.axes}"


class Identity(Module):
    """x."""

    def forward(self, x: Tensor) -> Tensor:
        return x


class Dropout(Module):
    """In training, zeros with probability ``ratio`` and the rest scaled up.

    >>> Dropout(0.5).eval()(Tensor([1.0])).item()
    1.0
    """

    def __init__(self, ratio: float = 0.5) -> None:
        self.ratio = ratio

    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.ratio) if self.training else x

    def describe(self) -> str:
        return f"{self.ratio}"


class StochasticDepth(Module):
    """In training, whole samples of x (n, ...) zeroed with probability ``ratio`` and the rest scaled up.

    It goes on the branch of a residual block, which is skipped so for some samples (Huang et al. 2016).

    >>> StochasticDepth(0.5).eval()(Tensor([1.0])).item()
    1.0
    """

    def __init__(self, ratio: float) -> None:
        self.ratio = ratio

    @property
    def active(self) -> bool:
        """Whether anything can be dropped now."""
        return self.training and self.ratio > 0

    def forward(self, x: Tensor) -> Tensor:
        if not self.active:
            return x
        return x * F.dropout(wrap(x.xp.ones((x.shape[0],) + (1,) * (x.ndim - 1), x.dtype)), self.ratio)

    def describe(self) -> str:
        return f"{self.ratio:g}"


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
