"""The linear layer, and layers that only change a shape."""

from __future__ import annotations

from .. import functions as F
from .. import kernels
from ..function import is_recording
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
            (absorbed, kernels.precision()), tensors, lambda: kernels.FusedLinear(self.weight.data, bias, absorbed)
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
