"""Convolution layers."""

from __future__ import annotations

from .. import functions as F
from .. import kernels
from ..device import Array
from ..function import is_recording
from ..functions.conv import Conv2d as Conv2dFunction
from ..functions.conv import Pair, conv_spec, pair
from ..tensor import Parameter, Tensor, wrap
from . import init
from .activation import Activation, ReLU
from .module import Module
from .norm import BatchNorm
from .packing import Packed


class Conv2d(Module):
    """A 2-D convolution of (n, in, height, width) to (n, out, height, width).

    ``padding`` is one number, (vertical, horizontal) or (top, bottom, left, right). Raises ValueError where ``groups``
    does not divide the channels.

    >>> import numpy as np
    >>> Conv2d(3, 8, 3, stride=2, padding=1)(Tensor(np.zeros((1, 3, 9, 9), np.float32))).shape
    (1, 8, 5, 5)
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Pair,
        stride: Pair = 1,
        padding: int | tuple[int, ...] = 0,
        dilation: Pair = 1,
        groups: int = 1,
        bias: bool = True,
    ) -> None:
        if in_channels % groups or out_channels % groups:
            raise ValueError(f"Conv2d: {groups} groups do not divide {in_channels} and {out_channels} channels")
        self.spec = conv_spec(stride, padding, dilation, groups)
        shape = (out_channels, in_channels // groups, *pair(kernel_size))
        fan_in = shape[1] * shape[2] * shape[3]
        self.weight = Parameter(init.he_normal(shape, "in", 1 / 3**0.5))
        self.bias = Parameter(init.lecun_uniform((out_channels,), fan_in)) if bias else None
        self.packed = Packed()

    def forward(self, x: Tensor) -> Tensor:
        return self.fused(x)

    def fused(
        self,
        x: Tensor,
        norm: BatchNorm | None = None,
        activation: Activation | None = None,
        residual: Tensor | None = None,
    ) -> Tensor:
        """activation(norm(conv(x)) + residual), each of them optional: one kernel where no graph is recorded.

        A norm with fixed statistics is folded into the weights, also while a graph is recorded.
        """
        fixed = norm is None or norm.fixed
        if fixed and not is_recording():
            return self._infer(x, norm, activation, residual)
        if norm is not None and fixed:
            scale, shift = norm.scale_shift()
            weight = self.weight * scale.reshape(-1, 1, 1, 1)
            y = Conv2dFunction(self.spec)(x, weight, shift if self.bias is None else self.bias * scale + shift)
        else:
            y = Conv2dFunction(self.spec)(x, self.weight, *([] if self.bias is None else [self.bias]))
            if norm is not None and residual is None and isinstance(activation, ReLU):
                return norm(y, relu=True)  # type: ignore[no-any-return]
            y = y if norm is None else norm(y)
        if residual is not None and isinstance(activation, ReLU):
            return F.add_relu(y, residual)
        y = y if residual is None else y + residual
        return y if activation is None else activation(y)

    def _infer(
        self, x: Tensor, norm: BatchNorm | None, activation: Activation | None, residual: Tensor | None
    ) -> Tensor:
        shape, channels = self.weight.shape, self.weight.shape[1] * self.spec.groups
        if x.ndim != 4 or x.shape[1] != channels:
            raise ValueError(f"Conv2d: expected x (n, {channels}, height, width) for weight {shape}, got {x.shape}")
        absorbed = None if activation is None else activation.kernel
        tensors: list[Tensor] = [self.weight] if self.bias is None else [self.weight, self.bias]
        if norm is not None:
            tensors += norm.sources

        def make() -> kernels.FusedConv2d:
            b = None if self.bias is None else self.bias.data
            if norm is None:
                return self.kernel(None, b, absorbed)
            scale, shift = (t.data for t in norm.scale_shift())
            return self.kernel(scale, shift if b is None else b * scale + shift, absorbed)

        kernel = self.packed.get((id(norm), absorbed, kernels.precision()), tensors, make)
        return wrap(kernel(x.data, None if residual is None else residual.data))

    def kernel(
        self, scale: Array | None, bias: Array | None, activation: kernels.Activation | None
    ) -> kernels.FusedConv2d:
        """The prepared kernel: activation(conv(x) * scale + bias)."""
        return kernels.FusedConv2d(self.weight.data, bias, self.spec, activation, scale is not None, scale=scale)

    def describe(self) -> str:
        out, _, *kernel = self.weight.shape
        spec = self.spec
        parts = [f"{self.weight.shape[1] * spec.groups} -> {out}", f"{kernel[0]}x{kernel[1]}"]
        parts += [f"stride {spec.stride[0]}"] if spec.stride != (1, 1) else []
        if any(spec.padding):
            parts += [f"padding {spec.padding[0]}" if len(set(spec.padding)) == 1 else f"padding {spec.padding}"]
        parts += [f"dilation {spec.dilation[0]}"] if spec.dilation != (1, 1) else []
        parts += [f"groups {spec.groups}"] if spec.groups > 1 else []
        return ", ".join(parts + ([] if self.bias is not None else ["no bias"]))


class ConvTranspose2d(Module):
    """A transposed 2-D convolution of (n, in, height, width) to (n, out, height, width).

    >>> import numpy as np
    >>> ConvTranspose2d(4, 2, 2, stride=2)(Tensor(np.zeros((1, 4, 5, 5), np.float32))).shape
    (1, 2, 10, 10)
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Pair,
        stride: Pair = 1,
        padding: int | tuple[int, ...] = 0,
        output_padding: Pair = 0,
        groups: int = 1,
        bias: bool = True,
    ) -> None:
        shape = (in_channels, out_channels // groups, *pair(kernel_size))
        fan_in = shape[1] * shape[2] * shape[3]
        self.stride, self.padding, self.output_padding, self.groups = stride, padding, output_padding, groups
        self.weight = Parameter(init.lecun_uniform(shape, fan_in))
        self.bias = Parameter(init.lecun_uniform((out_channels,), fan_in)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        return F.conv_transpose2d(
            x, self.weight, self.bias, self.stride, self.padding, self.output_padding, groups=self.groups
        )

    def describe(self) -> str:
        kernel = self.weight.shape[2:]
        return f"{self.weight.shape[0]} -> {self.weight.shape[1] * self.groups}, {kernel[0]}x{kernel[1]}"
