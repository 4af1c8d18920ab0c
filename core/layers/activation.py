"""Activations as modules; ``kernel`` names the fused kernel's version of each."""

from __future__ import annotations

from .. import functions as F
from ..kernels import Activation as Kernel
from ..tensor import Tensor
from .module import Module


class Activation(Module):
    """A function of each value, which a convolution or linear layer before it can absorb in inference."""

    kernel: Kernel


class ReLU(Activation):
    """max(x, 0).

    >>> ReLU()(Tensor([-1.0, 1.0])).numpy()
    array([0., 1.], dtype=float32)
    """

    kernel = ("relu", 0.0, 0.0)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x)


class ReLU6(Activation):
    """x limited to [0, 6]."""

    kernel = ("relu6", 0.0, 6.0)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu6(x)


class LeakyReLU(Activation):
    """x, or slope * x where x is negative."""

    def __init__(self, slope: float = 0.01) -> None:
        self.slope = slope
        self.kernel = ("leaky_relu", slope, 0.0)

    def forward(self, x: Tensor) -> Tensor:
        return F.leaky_relu(x, self.slope)

    def describe(self) -> str:
        return f"{self.slope}"


class SiLU(Activation):
    """x * sigmoid(x)."""

    kernel = ("silu", 0.0, 0.0)

    def forward(self, x: Tensor) -> Tensor:
        return F.silu(x)


class HardSwish(Activation):
    """x * clip(x / 6 + 1 / 2, 0, 1)."""

    kernel = ("hard_swish", 0.0, 0.0)

    def forward(self, x: Tensor) -> Tensor:
        return F.hard_swish(x)


class HardSigmoid(Activation):
    """clip(x / 6 + 1 / 2, 0, 1)."""

    kernel = ("hard_sigmoid", 0.0, 0.0)

    def forward(self, x: Tensor) -> Tensor:
        return F.hard_sigmoid(x)


class Sigmoid(Activation):
    """1 / (1 + exp(-x))."""

    kernel = ("sigmoid", 0.0, 0.0)

    def forward(self, x: Tensor) -> Tensor:
        return F.sigmoid(x)


class Tanh(Activation):
    """The hyperbolic tangent."""

    kernel = ("tanh", 0.0, 0.0)

    def forward(self, x: Tensor) -> Tensor:
        return F.tanh(x)


class GELU(Activation):
    """x times the normal distribution function of x."""

    kernel = ("gelu", 0.0, 0.0)

    def forward(self, x: Tensor) -> Tensor:
        return F.gelu(x)


class Mish(Activation):
    """x * tanh(softplus(x))."""

    kernel = ("mish", 0.0, 0.0)

    def forward(self, x: Tensor) -> Tensor:
        return F.mish(x)
