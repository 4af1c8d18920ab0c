"""What several backbones build on."""

from __future__ import annotations

from collections.abc import Callable

from ...core.layers import Activation, BatchNorm, BatchNorm2d, Conv2d, Module, Sequential

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


def make_divisible(channels: float, divisor: int = 8) -> int:
    """The nearest multiple of ``divisor``, not more than 10% below (MobileNetV2's rule for channel counts).

    >>> make_divisible(18), make_divisible(100.5)
    (24, 104)
    """
    rounded = max(divisor, int(channels + divisor / 2) // divisor * divisor)
    return rounded + divisor if rounded < 0.9 * channels else rounded
