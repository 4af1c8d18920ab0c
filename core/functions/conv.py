"""Convolution and its two gradients: three operations that are each other's derivatives."""

from __future__ import annotations

from .. import kernels
from ..device import Array
from ..function import Function
from ..kernels import ConvSpec
from ..tensor import Tensor, wrap
from .elementwise import operands
from .linear import matmul

Pair = int | tuple[int, int]


def pair(value: Pair) -> tuple[int, int]:
    """(vertical, horizontal) of a number for both or a pair."""
    return (value, value) if isinstance(value, int) else (value[0], value[1])


def conv_spec(stride: Pair, padding: int | tuple[int, ...], dilation: Pair, groups: int) -> ConvSpec:
    """The settings in one hashable value; padding is one number, a pair, or (top, bottom, left, right)."""
    if isinstance(padding, tuple) and len(padding) == 4:
        sides = padding
    else:
        vertical, horizontal = pair(padding)  # type: ignore[arg-type]
        sides = (vertical, vertical, horizontal, horizontal)
    spec = ConvSpec(pair(stride), sides, pair(dilation), groups)
    if min(spec.stride) < 1 or min(spec.dilation) < 1 or min(sides) < 0 or groups < 1:
        raise ValueError(f"expected stride, dilation and groups of at least 1 and padding of at least 0, got {spec}")
    return spec


class Conv2d(Function):
    def __init__(self, spec: ConvSpec) -> None:
        self.spec = spec

    def forward(self, x: Array, w: Array, *b: Array) -> Array:
        groups = self.spec.groups
        if w.ndim != 4 or w.shape[0] % groups:
            raise ValueError(f"Conv2d: expected weight (out, in / groups, kh, kw), got {w.shape} for {groups} groups")
        if x.ndim != 4 or x.shape[1] != w.shape[1] * groups:
            raise ValueError(
                f"Conv2d: expected x (n, {w.shape[1] * groups}, height, width) for weight {w.shape} "
                f"and groups {groups}, got {x.shape}"
            )
        if b and b[0].shape != w.shape[:1]:
            raise ValueError(f"Conv2d: expected a bias of shape {w.shape[:1]} for weight {w.shape}, got {b[0].shape}")
        self.x_shape, self.w_shape = x.shape, w.shape
        self.save_inputs(*(i for i in (0, 1) if self.needs_grad[1 - i]))
        return kernels.conv2d(x, w, b[0] if b else None, self.spec)

    def backward(self, gy: Tensor) -> tuple[Tensor | None, ...]:
        x, w = self.inputs[:2]
        gx = Conv2dInputGrad(self.x_shape, self.spec)(gy, w) if self.needs_grad[0] else None
        gw = Conv2dWeightGrad(self.w_shape, self.spec)(x, gy) if self.needs_grad[1] else None
        gb = _channel_sums(gy) if self.needs_grad[2:] == (True,) else None
        return (gx, gw, gb)[: len(self.needs_grad)]


def _channel_sums(x: Tensor) -> Tensor:
    """The sums over all but the channels, as the product with a row of ones."""
    rows = x.transpose(0, 2, 3, 1).reshape(-1, x.shape[1])
    ones = wrap(x.xp.ones((1, rows.shape[0]), x.dtype))
    return matmul(ones, rows).reshape(-1)


class Conv2dInputGrad(Function):
    """The gradient of conv2d with respect to its input: also the forward pass of the transposed convolution."""

    def __init__(self, x_shape: tuple[int, ...], spec: ConvSpec) -> None:
        self.x_shape, self.spec = x_shape, spec

    def forward(self, gy: Array, w: Array) -> Array:
        self.w_shape = w.shape
        self.save_inputs(*(i for i in (0, 1) if self.needs_grad[1 - i]))
        return kernels.conv2d_input_grad(gy, w, self.x_shape, self.spec)

    def backward(self, ggx: Tensor) -> tuple[Tensor | None, Tensor | None]:
        gy, w = self.inputs
        ggy = Conv2d(self.spec)(ggx, w) if self.needs_grad[0] else None
        return ggy, Conv2dWeightGrad(self.w_shape, self.spec)(ggx, gy) if self.needs_grad[1] else None


class Conv2dWeightGrad(Function):
    """The gradient of conv2d with respect to its weight."""

    def __init__(self, w_shape: tuple[int, ...], spec: ConvSpec) -> None:
        self.w_shape, self.spec = w_shape, spec

    def forward(self, x: Array, gy: Array) -> Array:
        self.x_shape = x.shape
        self.save_inputs(*(i for i in (0, 1) if self.needs_grad[1 - i]))
        return kernels.conv2d_weight_grad(x, gy, self.w_shape, self.spec)

    def backward(self, ggw: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x, gy = self.inputs
        gx = Conv2dInputGrad(self.x_shape, self.spec)(gy, ggw) if self.needs_grad[0] else None
        return gx, Conv2d(self.spec)(x, ggw) if self.needs_grad[1] else None


def conv2d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Pair = 1,
    padding: int | tuple[int, ...] = 0,
    dilation: Pair = 1,
    groups: int = 1,
) -> Tensor:
    """The 2-D convolution of x (n, in, height, width) with weight (out, in / groups, kh, kw), plus bias (out,).

    ``padding`` is one number, (vertical, horizontal) or (top, bottom, left, right). Raises ValueError for channels that
    do not match.

    >>> import numpy as np
    >>> conv2d(Tensor(np.ones((1, 1, 3, 3), np.float32)), Tensor(np.ones((1, 1, 3, 3), np.float32))).item()
    9.0
    """
    function = Conv2d(conv_spec(stride, padding, dilation, groups))
    return function(*operands("Conv2d", x, weight, *(() if bias is None else (bias,))))


def conv_transpose2d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Pair = 1,
    padding: int | tuple[int, ...] = 0,
    output_padding: Pair = 0,
    dilation: Pair = 1,
    groups: int = 1,
) -> Tensor:
    """The transposed convolution of x (n, in, height, width) with weight (in, out / groups, kh, kw), plus bias (out,).

    The output has size (size - 1) * stride - padding + dilation * (kernel - 1) + output_padding + 1. Raises ValueError
    for channels that do not match.

    >>> import numpy as np
    >>> x, w = Tensor(np.ones((1, 1, 2, 2), np.float32)), Tensor(np.ones((1, 1, 2, 2), np.float32))
    >>> conv_transpose2d(x, w, stride=2).shape
    (1, 1, 4, 4)
    """
    x, weight = operands("conv_transpose2d", x, weight)
    if x.ndim != 4 or weight.ndim != 4 or x.shape[1] != weight.shape[0] or x.shape[1] % groups:
        raise ValueError(
            "conv_transpose2d: expected x (n, in, height, width) and weight (in, out / groups, kh, kw), "
            f"got {x.shape} and {weight.shape} for {groups} groups"
        )
    spec = conv_spec(stride, padding, dilation, groups)
    sides = zip(x.shape[2:], spec.stride, weight.shape[2:], spec.dilation, pair(output_padding))
    whole = [(n - 1) * stride + dilation * (k - 1) + extra + 1 for n, stride, k, dilation, extra in sides]
    size = [n - before - after for n, before, after in zip(whole, spec.padding[::2], spec.padding[1::2])]
    if min(size) < 0:
        raise ValueError(f"conv_transpose2d: the padding leaves an output of size {size} for x {x.shape}")
    y = Conv2dInputGrad((x.shape[0], weight.shape[1] * groups, size[0], size[1]), spec)(x, weight)
    return y if bias is None else y + bias.reshape(1, -1, 1, 1)
