"""MobileNetV3: Howard et al. 2019, "Searching for MobileNetV3"."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from ...core import Tensor
from ...core import functions as F
from ...core.layers import (
    Activation,
    BatchNorm2d,
    Dropout,
    HardSigmoid,
    HardSwish,
    Linear,
    Module,
    ReLU,
    Sequential,
)
from ...weights.torchvision import imagenet_entry
from ..categories import Categories
from ..model import Classifier, ModelInfo
from .blocks import Norm, SqueezeExcitation, conv_norm_activation, make_divisible

default_norm = partial(BatchNorm2d, eps=1e-3, momentum=0.01)


class Row(NamedTuple):
    """A row of tables 1 and 2: one bottleneck."""

    kernel: int
    expanded: int
    out: int
    squeeze: bool
    activation: type[Activation]
    stride: int
    dilation: int = 1


RE, HS = ReLU, HardSwish

LARGE = (  # table 1
    Row(3, 16, 16, False, RE, 1),
    Row(3, 64, 24, False, RE, 2),
    Row(3, 72, 24, False, RE, 1),
    Row(5, 72, 40, True, RE, 2),
    Row(5, 120, 40, True, RE, 1),
    Row(5, 120, 40, True, RE, 1),
    Row(3, 240, 80, False, HS, 2),
    Row(3, 200, 80, False, HS, 1),
    Row(3, 184, 80, False, HS, 1),
    Row(3, 184, 80, False, HS, 1),
    Row(3, 480, 112, True, HS, 1),
    Row(3, 672, 112, True, HS, 1),
    Row(5, 672, 160, True, HS, 2),
    Row(5, 960, 160, True, HS, 1),
    Row(5, 960, 160, True, HS, 1),
)
LARGE_REDUCED_TAIL = (  # section 6.3: the last stage at half the width, for detection
    *LARGE[:12],
    Row(5, 672, 80, True, HS, 2),
    Row(5, 480, 80, True, HS, 1),
    Row(5, 480, 80, True, HS, 1),
)
SMALL = (  # table 2
    Row(3, 16, 16, True, RE, 2),
    Row(3, 72, 24, False, RE, 2),
    Row(3, 88, 24, False, RE, 1),
    Row(5, 96, 40, True, HS, 2),
    Row(5, 240, 40, True, HS, 1),
    Row(5, 240, 40, True, HS, 1),
    Row(5, 120, 48, True, HS, 1),
    Row(5, 144, 48, True, HS, 1),
    Row(5, 288, 96, True, HS, 2),
    Row(5, 576, 96, True, HS, 1),
    Row(5, 576, 96, True, HS, 1),
)


class InvertedResidual(Module):
    """Expand, depthwise, squeeze-and-excite, project (figure 4)."""

    def __init__(self, in_channels: int, row: Row, norm: Norm) -> None:
        inner, act = row.expanded, row.activation
        parts: list[Module] = []
        if inner != in_channels:
            parts.append(conv_norm_activation(in_channels, inner, 1, norm=norm, activation=act()))
        stride = 1 if row.dilation > 1 else row.stride
        parts.append(
            conv_norm_activation(inner, inner, row.kernel, stride, row.dilation, inner, norm=norm, activation=act())
        )
        if row.squeeze:
            parts.append(SqueezeExcitation(inner, make_divisible(inner // 4), gate=HardSigmoid()))
        parts.append(conv_norm_activation(inner, row.out, 1, norm=norm))
        self.block = Sequential(*parts)
        self.residual = row.stride == 1 and in_channels == row.out

    def forward(self, x: Tensor) -> Tensor:
        return self.block(x, x if self.residual else None)  # type: ignore[no-any-return]


class MobileNetV3(Module):
    """The convolutional part: x (n, 3, height, width) to the outputs of the parts at the indices ``at``.

    Part 0 is the first convolution, part i the bottleneck of row i - 1, the last part a 1x1 convolution. By default
    ``at`` names the last part of each stride: 2, 4, 8, 16 and 32.

    >>> import numpy as np
    >>> [m.shape[1:] for m in MobileNetV3(SMALL)(Tensor(np.zeros((1, 3, 64, 64), np.float32)))]
    [(16, 32, 32), (16, 16, 16), (24, 8, 8), (48, 4, 4), (576, 2, 2)]
    """

    def __init__(self, rows: Sequence[Row], norm: Norm = default_norm, at: Sequence[int] | None = None) -> None:
        channels = 16
        parts: list[Module] = [conv_norm_activation(3, channels, 3, 2, norm=norm, activation=HardSwish())]
        for row in rows:
            parts.append(InvertedResidual(channels, row, norm))
            channels = row.out
        parts.append(conv_norm_activation(channels, 6 * channels, 1, norm=norm, activation=HardSwish()))
        self.features = Sequential(*parts)
        if at is None:
            at = [i for i, row in enumerate(rows) if row.stride > 1] + [len(rows) + 1]
        outs = [16, *(row.out for row in rows), 6 * channels]
        strides = [2]
        for row in rows:
            strides.append(strides[-1] * (row.stride if row.dilation == 1 else 1))
        self.at = tuple(at)
        self.channels = tuple(outs[i] for i in self.at)
        self.strides = tuple([*strides, strides[-1]][i] for i in self.at)

    def forward(self, x: Tensor) -> list[Tensor]:
        maps = []
        for i, part in enumerate(self.features):
            x = part(x)
            if i in self.at:
                maps.append(x)
        return maps


class MobileNetV3Classifier(MobileNetV3, Classifier):
    """MobileNetV3 with its classifier: x (n, 3, height, width) to logits (n, classes)."""

    class_layers = ("classifier.3.",)

    def __init__(self, rows: Sequence[Row], width: int, categories: Categories) -> None:
        super().__init__(rows)
        self.categories = categories
        self.classifier = Sequential(
            Linear(self.channels[-1], width), HardSwish(), Dropout(0.2), Linear(width, categories.outputs)
        )

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return self.classifier(F.mean(self.features(x), (2, 3)))  # type: ignore[no-any-return]


def mobilenet_v3_large(categories: Categories) -> MobileNetV3Classifier:
    """MobileNetV3-Large (table 1)."""
    return MobileNetV3Classifier(LARGE, 1280, categories)


def mobilenet_v3_small(categories: Categories) -> MobileNetV3Classifier:
    """MobileNetV3-Small (table 2)."""
    return MobileNetV3Classifier(SMALL, 1024, categories)


PAPER = "Howard et al. 2019, Searching for MobileNetV3"
MODELS = (
    ModelInfo(
        name="mobilenet_v3_large",
        task="classification",
        build=mobilenet_v3_large,
        spread=Categories.plain,
        entries=(
            imagenet_entry(2, "mobilenet_v3_large-5c1a4163", 5_483_032, 75.274, 92.566, resize=232),
            imagenet_entry(1, "mobilenet_v3_large-8738ca79", 5_483_032, 74.042, 91.340),
        ),
        paper=PAPER,
        gflops=0.217,
    ),
    ModelInfo(
        name="mobilenet_v3_small",
        task="classification",
        build=mobilenet_v3_small,
        spread=Categories.plain,
        entries=(imagenet_entry(1, "mobilenet_v3_small-047dcff4", 2_542_856, 67.668, 87.402),),
        paper=PAPER,
        gflops=0.057,
    ),
)
