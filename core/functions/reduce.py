"""Sums and extremes over axes, and the softmax family."""

from __future__ import annotations

from math import prod

from .. import kernels
from ..device import Array, get_namespace
from ..function import Function, is_recording
from ..kernels.reference import sum_over
from ..tensor import Tensor, wrap
from .elementwise import exp, log
from .shape import Axis, axes_of, broadcast_to, reshape


def kept_shape(shape: tuple[int, ...], axes: tuple[int, ...]) -> tuple[int, ...]:
    """The shape with the reduced axes kept as 1."""
    return tuple(1 if i in axes else n for i, n in enumerate(shape))


class Sum(Function):
    def __init__(self, axis: Axis, keepdims: bool) -> None:
        self.axis, self.keepdims = axis, keepdims

    def forward(self, x: Array) -> Array:
        self.shape, self.axes = x.shape, axes_of("Sum", self.axis, x.ndim)
        y = sum_over(x, self.axes)
        return y if self.keepdims else y.squeeze(self.axes)

    def backward(self, gy: Tensor) -> tuple[Tensor]:
        return (broadcast_to(reshape(gy, kept_shape(self.shape, self.axes)), self.shape),)


class Max(Function):
    """The greatest value over axes; equal ones share the gradient."""

    def __init__(self, axis: Axis, keepdims: bool) -> None:
        self.axis, self.keepdims = axis, keepdims

    def forward(self, x: Array) -> Array:
        axes = self.axes = axes_of("Max", self.axis, x.ndim)
        if any(x.shape[a] == 0 for a in axes):
            raise ValueError(f"Max: no values along axis {self.axis} of shape {x.shape}")
        y = x.max(axis=axes, keepdims=True)
        if self.recording:
            greatest = (x == y).astype(x.dtype)
            self.share = greatest / greatest.sum(axis=axes, keepdims=True)
        return y if self.keepdims else y.squeeze(axes)

    def backward(self, gy: Tensor) -> tuple[Tensor]:
        return (reshape(gy, kept_shape(self.share.shape, self.axes)) * wrap(self.share),)


class LogSoftmax(Function):
    def __init__(self, axis: int) -> None:
        self.axis = axis

    def forward(self, x: Array) -> Array:
        self.save_outputs()
        xp = get_namespace(x)
        y = x - x.max(axis=self.axis, keepdims=True)
        y -= xp.log(xp.exp(y).sum(axis=self.axis, keepdims=True))
        return y

    def backward(self, gy: Tensor) -> tuple[Tensor]:
        (y,) = self.outputs
        return (gy - exp(y) * sum(gy, self.axis, True),)


class Softmax(Function):
    def __init__(self, axis: int) -> None:
        self.axis = axis

    def forward(self, x: Array) -> Array:
        self.save_outputs()
        return softmax_array(x, self.axis)

    def backward(self, gy: Tensor) -> tuple[Tensor]:
        (y,) = self.outputs
        g = gy * y
        return (g - y * sum(g, self.axis, True),)


def softmax_array(x: Array, axis: int) -> Array:
    """exp(x) divided by its sum over ``axis``, of an array."""
    y = x - x.max(axis=axis, keepdims=True)
    xp = get_namespace(x)
    xp.exp(y, out=y)
    y /= y.sum(axis=axis, keepdims=True)
    return y


def sum(x: Tensor, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """The sum over ``axis`` (an axis, several, or None for all).

    >>> sum(Tensor([[1.0, 2.0], [3.0, 4.0]]), axis=0).numpy()
    array([4., 6.], dtype=float32)
    """
    return Sum(axis, keepdims)(x)


def mean(x: Tensor, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """The mean over ``axis``.

    >>> mean(Tensor([1.0, 3.0])).item()
    2.0
    """
    axes = axes_of("Mean", axis, x.ndim)
    if x.ndim == 4 and axes == (2, 3) and not is_recording() and (y := kernels.mean_of_maps(x.data)) is not None:
        return wrap(y if keepdims else y.reshape(x.shape[:2]))
    count = prod(x.shape[a] for a in axes)
    return sum(x, axis, keepdims) * (1 / count if count else float("nan"))


def max(x: Tensor, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """The greatest value over ``axis``.

    >>> max(Tensor([1.0, 3.0])).item()
    3.0
    """
    return Max(axis, keepdims)(x)


def min(x: Tensor, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """The smallest value over ``axis``.

    >>> min(Tensor([1.0, 3.0])).item()
    1.0
    """
    return -max(-x, axis, keepdims)


def logsumexp(x: Tensor, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """log(sum(exp(x))) over ``axis``, without overflow.

    >>> round(logsumexp(Tensor([1000.0, 1000.0])).item(), 3)
    1000.693
    """
    axes = axes_of("logsumexp", axis, x.ndim)
    top = wrap(x.data.max(axis=axes, keepdims=True))
    y = log(sum(exp(x - top), axes, True)) + top
    return y if keepdims else reshape(y, tuple(n for i, n in enumerate(x.shape) if i not in axes))


def softmax(x: Tensor, axis: int = -1) -> Tensor:
    """exp(x) / sum(exp(x)) over ``axis``, without overflow.

    >>> softmax(Tensor([0.0, 0.0])).numpy()
    array([0.5, 0.5], dtype=float32)
    """
    return Softmax(*axes_of("softmax", axis, x.ndim))(x)


def log_softmax(x: Tensor, axis: int = -1) -> Tensor:
    """log(softmax(x)), without overflow.

    >>> log_softmax(Tensor([0.0, 0.0])).numpy()
    array([-0.6931472, -0.6931472], dtype=float32)
    """
    return LogSoftmax(*axes_of("log_softmax", axis, x.ndim))(x)
