"""The few heavy operations as a table: each picks the fast kernels or the reference by the type of its arrays.

Arrays are logically (batch, channels, height, width) with any strides; results are physically channels-last.
float32 NumPy arrays go to oneDNN where it is found, everything else (float64, CuPy) to the reference. The environment
variable ``CHAINSIGHT_ONEDNN=0`` selects the reference always.
"""

from __future__ import annotations

from typing import NamedTuple

from ..device import Array
from . import reference
from .reference import Activation, erf, max_pool2d_indices, sigmoid
from .specs import ConvSpec, PoolSpec

__all__ = [
    "Activation",
    "ConvSpec",
    "FusedConv2d",
    "FusedLinear",
    "PoolSpec",
    "PoolState",
    "avg_pool2d",
    "avg_pool2d_grad",
    "batch_norm",
    "batch_norm_grad",
    "conv2d",
    "conv2d_input_grad",
    "conv2d_weight_grad",
    "erf",
    "linear",
    "matmul",
    "max_pool2d",
    "max_pool2d_grad",
    "max_pool2d_indices",
    "sigmoid",
]


class PoolState(NamedTuple):
    """What ``max_pool2d_grad`` needs of the forward pass."""

    spec: PoolSpec
    taps: Array


def conv2d(x: Array, w: Array, b: Array | None, spec: ConvSpec) -> Array:
    """Cross-correlation of x (batch, in, height, width) with w (out, in / groups, height, width), plus b (out,)."""
    return reference.conv2d(x, w, b, spec)


def conv2d_input_grad(gy: Array, w: Array, x_shape: tuple[int, ...], spec: ConvSpec) -> Array:
    """The gradient of ``conv2d`` by x, of shape ``x_shape``; also the forward pass of a transposed convolution."""
    return reference.conv2d_input_grad(gy, w, x_shape, spec)


def conv2d_weight_grad(x: Array, gy: Array, w_shape: tuple[int, ...], spec: ConvSpec) -> Array:
    """The gradient of ``conv2d`` by w, of shape ``w_shape``."""
    return reference.conv2d_weight_grad(x, gy, w_shape, spec)


def max_pool2d(x: Array, spec: PoolSpec) -> tuple[Array, PoolState]:
    """The largest value of each window, and what ``max_pool2d_grad`` needs."""
    y, taps = reference.max_pool2d(x, spec)
    return y, PoolState(spec, taps)


def max_pool2d_grad(gy: Array, x_shape: tuple[int, ...], state: PoolState) -> Array:
    """The gradient of ``max_pool2d``."""
    return reference.max_pool2d_grad(gy, x_shape, state.taps, state.spec)


def avg_pool2d(x: Array, spec: PoolSpec, count_include_pad: bool) -> Array:
    """The mean of each window; zeros of the padding count as elements if ``count_include_pad``."""
    return reference.avg_pool2d(x, spec, count_include_pad)


def avg_pool2d_grad(gy: Array, x_shape: tuple[int, ...], spec: PoolSpec, count_include_pad: bool) -> Array:
    """The gradient of ``avg_pool2d``."""
    return reference.avg_pool2d_grad(gy, x_shape, spec, count_include_pad)


def batch_norm(x: Array, gamma: Array, beta: Array, eps: float) -> tuple[Array, Array, Array]:
    """x normalised over batch, height and width, times gamma plus beta; then the mean and the biased variance."""
    return reference.batch_norm(x, gamma, beta, eps)


def batch_norm_grad(
    x: Array, gy: Array, gamma: Array, mean: Array, var: Array, eps: float
) -> tuple[Array, Array, Array]:
    """The gradients of ``batch_norm`` by x, gamma and beta, from the statistics it returned."""
    return reference.batch_norm_grad(x, gy, gamma, mean, var, eps)


def matmul(a: Array, b: Array) -> Array:
    """The matrix product of the last two axes, the axes before them broadcast."""
    return reference.matmul(a, b)


def linear(x: Array, w: Array, b: Array | None) -> Array:
    """x (..., in) times the transpose of w (out, in), plus b (out,)."""
    return reference.linear(x, w, b)


class FusedConv2d:
    """A convolution prepared for inference: activation(conv(x) + b + residual) in one pass over the output."""

    def __init__(self, w: Array, b: Array | None, spec: ConvSpec, activation: Activation | None = None) -> None:
        self.w, self.b, self.spec, self.activation = w, b, spec, activation

    def __call__(self, x: Array, residual: Array | None = None) -> Array:
        y = reference.conv2d(x, self.w, self.b, self.spec)
        if residual is not None:
            y += residual
        return y if self.activation is None else reference.activate(y, self.activation)


class FusedLinear:
    """A linear layer prepared for inference: activation(x @ w.T + b + residual)."""

    def __init__(self, w: Array, b: Array | None, activation: Activation | None = None) -> None:
        self.w, self.b, self.activation = w, b, activation

    def __call__(self, x: Array, residual: Array | None = None) -> Array:
        y = reference.linear(x, self.w, self.b)
        if residual is not None:
            y = y + residual
        return y if self.activation is None else reference.activate(y, self.activation)
