"""Feature pyramid: Lin et al. 2017, "Feature pyramid networks for object detection"."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...core import Tensor
from ...core import functions as F
from ...core.layers import Conv2d, Module, ModuleList, Sequential, init
from ..backbones.blocks import Norm


class LastLevelMaxPool(Module):
    """One more level: every second cell of the coarsest (section 4.1)."""

    def forward(self, levels: list[Tensor], last_map: Tensor) -> list[Tensor]:
        return [*levels, F.max_pool2d(levels[-1], 1, 2)]


class LastLevelP6P7(Module):
    """Two more levels by strided convolutions (Lin et al. 2017b, "Focal loss", footnote 2).

    P6 comes from the backbone's last map where ``in_channels`` differs from ``out_channels``, else from P5.
    """

    def __init__(self, in_channels: int, out_channels: int) -> None:
        self.p6 = Conv2d(in_channels, out_channels, 3, 2, 1)
        self.p7 = Conv2d(out_channels, out_channels, 3, 2, 1)
        self.from_p5 = in_channels == out_channels
        for conv in (self.p6, self.p7):
            conv.weight.data = init.uniform(conv.weight.shape, (3 / (conv.weight.shape[1] * 9)) ** 0.5)
            conv.bias.data = init.constant(conv.bias.shape, 0)  # type: ignore[union-attr]

    def forward(self, levels: list[Tensor], last_map: Tensor) -> list[Tensor]:
        p6 = self.p6(levels[-1] if self.from_p5 else last_map)
        return [*levels, p6, self.p7(F.relu(p6))]


class FeaturePyramid(Module):
    """Maps of several strides to as many levels of equal width, each informed by the coarser ones, and a few more.

    >>> import numpy as np
    >>> fpn = FeaturePyramid((8, 16), 4, LastLevelMaxPool())
    >>> maps = [Tensor(np.zeros((1, 8, 4, 4), np.float32)), Tensor(np.zeros((1, 16, 2, 2), np.float32))]
    >>> [level.shape for level in fpn(maps)]
    [(1, 4, 4, 4), (1, 4, 2, 2), (1, 4, 1, 1)]
    """

    def __init__(self, in_channels: Sequence[int], out_channels: int, extra: Module, norm: Norm | None = None) -> None:
        self.inner_blocks = ModuleList([_block(c, out_channels, 1, norm) for c in in_channels])
        self.layer_blocks = ModuleList([_block(out_channels, out_channels, 3, norm) for _ in in_channels])
        self.extra_blocks = extra

    def forward(self, maps: Sequence[Tensor]) -> list[Tensor]:
        lateral = [block(x) for block, x in zip(self.inner_blocks, maps, strict=True)]
        merged = lateral[-1]
        levels = [self.layer_blocks[len(maps) - 1](merged)]
        for i in range(len(maps) - 2, -1, -1):
            merged = lateral[i] + F.resize(merged, lateral[i].shape[2:], "nearest")  # type: ignore[arg-type]
            levels.insert(0, self.layer_blocks[i](merged))
        return self.extra_blocks(levels, maps[-1])  # type: ignore[no-any-return]


class PyramidBackbone(Module):
    """A backbone and the pyramid on its maps ``use`` (indices into what the backbone returns)."""

    def __init__(
        self, body: Any, use: Sequence[int], out_channels: int, extra: Module, norm: Norm | None = None
    ) -> None:
        self.body = body
        self.use = tuple(use)
        self.fpn = FeaturePyramid([body.channels[i] for i in use], out_channels, extra, norm)
        self.out_channels = out_channels

    def forward(self, x: Tensor) -> list[Tensor]:
        maps = self.body(x)
        return self.fpn([maps[i] for i in self.use])  # type: ignore[no-any-return]


def _block(in_channels: int, out_channels: int, kernel: int, norm: Norm | None) -> Sequential:
    """A convolution, with a bias or followed by a norm."""
    conv = Conv2d(in_channels, out_channels, kernel, padding=kernel // 2, bias=norm is None)
    conv.weight.data = init.uniform(conv.weight.shape, (3 / (in_channels * kernel * kernel)) ** 0.5)
    if conv.bias is not None:
        conv.bias.data = init.constant(conv.bias.shape, 0)
    return Sequential(conv) if norm is None else Sequential(conv, norm(out_channels))
