"""EfficientNet and EfficientNetV2: Tan and Le 2019, "EfficientNet: rethinking model scaling for convolutional neural
networks", and 2021, "EfficientNetV2: smaller models and faster training"."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from ...core import Tensor
from ...core import functions as F
from ...core.layers import BatchNorm2d, Conv2d, Dropout, Linear, Module, Sequential, SiLU, StochasticDepth, init
from ...weights.torchvision import imagenet_entry
from ..categories import Categories
from ..model import Classifier
from .blocks import Norm, SqueezeExcitation, classifier_info, conv_norm_activation, initialise, make_divisible, residual


class MBConv(Module):
    """Expand, depthwise, squeeze-and-excite, project (Tan and Le 2019, section 4)."""

    def __init__(self, in_channels: int, row: Row, stride: int, drop: float, norm: Norm) -> None:
        inner = make_divisible(in_channels * row.expansion)
        parts: list[Module] = []
        if inner != in_channels:
            parts.append(conv_norm_activation(in_channels, inner, 1, norm=norm, activation=SiLU()))
        self.block = Sequential(
            *parts,
            conv_norm_activation(inner, inner, row.kernel, stride, groups=inner, norm=norm, activation=SiLU()),
            SqueezeExcitation(inner, max(1, in_channels // 4), SiLU()),
            conv_norm_activation(inner, row.channels, 1, norm=norm),
        )
        self.residual = stride == 1 and in_channels == row.channels
        self.stochastic_depth = StochasticDepth(drop)

    def forward(self, x: Tensor) -> Tensor:
        return residual(self.block, x, self.stochastic_depth) if self.residual else self.block(x)


class FusedMBConv(Module):
    """Expand with a full convolution, project (Tan and Le 2021, figure 2)."""

    def __init__(self, in_channels: int, row: Row, stride: int, drop: float, norm: Norm) -> None:
        inner = make_divisible(in_channels * row.expansion)
        if inner == in_channels:
            parts = [conv_norm_activation(inner, row.channels, row.kernel, stride, norm=norm, activation=SiLU())]
        else:
            parts = [
                conv_norm_activation(in_channels, inner, row.kernel, stride, norm=norm, activation=SiLU()),
                conv_norm_activation(inner, row.channels, 1, norm=norm),
            ]
        self.block = Sequential(*parts)
        self.residual = stride == 1 and in_channels == row.channels
        self.stochastic_depth = StochasticDepth(drop)

    def forward(self, x: Tensor) -> Tensor:
        return residual(self.block, x, self.stochastic_depth) if self.residual else self.block(x)


class Row(NamedTuple):
    """A stage: ``depth`` blocks, the first of them with the stride."""

    block: type[MBConv] | type[FusedMBConv]
    expansion: int
    kernel: int
    stride: int
    channels: int
    depth: int


B0 = (  # Tan and Le 2019, table 1
    Row(MBConv, 1, 3, 1, 16, 1),
    Row(MBConv, 6, 3, 2, 24, 2),
    Row(MBConv, 6, 5, 2, 40, 2),
    Row(MBConv, 6, 3, 2, 80, 3),
    Row(MBConv, 6, 5, 1, 112, 3),
    Row(MBConv, 6, 5, 2, 192, 4),
    Row(MBConv, 6, 3, 1, 320, 1),
)
V2_S = (  # Tan and Le 2021, table 4
    Row(FusedMBConv, 1, 3, 1, 24, 2),
    Row(FusedMBConv, 4, 3, 2, 48, 4),
    Row(FusedMBConv, 4, 3, 2, 64, 4),
    Row(MBConv, 4, 3, 2, 128, 6),
    Row(MBConv, 6, 3, 1, 160, 9),
    Row(MBConv, 6, 3, 2, 256, 15),
)
V2_M = (
    Row(FusedMBConv, 1, 3, 1, 24, 3),
    Row(FusedMBConv, 4, 3, 2, 48, 5),
    Row(FusedMBConv, 4, 3, 2, 80, 5),
    Row(MBConv, 4, 3, 2, 160, 7),
    Row(MBConv, 6, 3, 1, 176, 14),
    Row(MBConv, 6, 3, 2, 304, 18),
    Row(MBConv, 6, 3, 1, 512, 5),
)
V2_L = (
    Row(FusedMBConv, 1, 3, 1, 32, 4),
    Row(FusedMBConv, 4, 3, 2, 64, 7),
    Row(FusedMBConv, 4, 3, 2, 96, 7),
    Row(MBConv, 4, 3, 2, 192, 10),
    Row(MBConv, 6, 3, 1, 224, 19),
    Row(MBConv, 6, 3, 2, 384, 25),
    Row(MBConv, 6, 3, 1, 640, 7),
)


def scaled(rows: Sequence[Row], width: float, depth: float) -> list[Row]:
    """The rows with more channels and more blocks (Tan and Le 2019, equation 3).

    >>> scaled(B0, 1.1, 1.2)[1].channels, scaled(B0, 1.1, 1.2)[1].depth
    (24, 3)
    """
    return [
        row._replace(channels=make_divisible(row.channels * width), depth=math.ceil(row.depth * depth)) for row in rows
    ]


class EfficientNet(Module):
    """The convolutional part: x (n, 3, height, width) to the last maps of the strides 2, 4, 8, 16 and 32.

    ``stem`` and ``last`` are the channels of the first convolution and of the last, whose map is the last one.

    >>> import numpy as np

    >>> [m.shape[1:] for m in EfficientNet(B0, 32, 1280)(Tensor(np.zeros((1, 3, 64, 64), np.float32)))]
    [(16, 32, 32), (24, 16, 16), (40, 8, 8), (112, 4, 4), (1280, 2, 2)]
    """

    def __init__(self, rows: Sequence[Row], stem: int, last: int, norm: Norm = BatchNorm2d, drop: float = 0.2) -> None:
        channels, total, done = stem, sum(row.depth for row in rows), 0
        parts: list[Module] = [conv_norm_activation(3, stem, 3, 2, norm=norm, activation=SiLU())]
        for row in rows:
            blocks = []
            for i in range(row.depth):
                blocks.append(row.block(channels, row, row.stride if i == 0 else 1, drop * done / total, norm))
                channels, done = row.channels, done + 1
            parts.append(Sequential(*blocks))
        parts.append(conv_norm_activation(channels, last, 1, norm=norm, activation=SiLU()))
        self.features = Sequential(*parts)
        self.at = (*(i for i, row in enumerate(rows) if row.stride > 1), len(rows) + 1)
        self.channels = tuple([stem, *(row.channels for row in rows), last][i] for i in self.at)
        self.strides = tuple(2 << i for i in range(len(self.at)))
        initialise(self, Conv2d, init.he_normal)

    def forward(self, x: Tensor) -> list[Tensor]:
        return self.features.outputs(x, self.at)


class EfficientNetClassifier(EfficientNet, Classifier):
    """EfficientNet with its classifier: x (n, 3, height, width) to logits (n, classes)."""

    class_layers = ("classifier.1.",)

    def __init__(
        self, rows: Sequence[Row], stem: int, last: int, norm: Norm, dropout: float, categories: Categories
    ) -> None:
        super().__init__(rows, stem, last, norm)
        self.categories = categories
        self.classifier = Sequential(Dropout(dropout), Linear(last, categories.outputs))

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return self.classifier(F.mean(self.features(x), (2, 3)))  # type: ignore[no-any-return]


def _b(
    width: float, depth: float, dropout: float, categories: Categories, norm: Norm = BatchNorm2d
) -> EfficientNetClassifier:
    rows = scaled(B0, width, depth)
    return EfficientNetClassifier(rows, make_divisible(32 * width), 4 * rows[-1].channels, norm, dropout, categories)


# of the weights that were trained with TensorFlow, and of the second version
tensorflow_norm = partial(BatchNorm2d, eps=1e-3, momentum=0.01)
v2_norm = partial(BatchNorm2d, eps=1e-3)


def efficientnet_b0(categories: Categories) -> EfficientNetClassifier:
    """EfficientNet-B0 (table 1)."""
    return _b(1.0, 1.0, 0.2, categories)


def efficientnet_b1(categories: Categories) -> EfficientNetClassifier:
    """EfficientNet-B1."""
    return _b(1.0, 1.1, 0.2, categories)


def efficientnet_b2(categories: Categories) -> EfficientNetClassifier:
    """EfficientNet-B2."""
    return _b(1.1, 1.2, 0.3, categories)


def efficientnet_b3(categories: Categories) -> EfficientNetClassifier:
    """EfficientNet-B3."""
    return _b(1.2, 1.4, 0.3, categories)


def efficientnet_b4(categories: Categories) -> EfficientNetClassifier:
    """EfficientNet-B4."""
    return _b(1.4, 1.8, 0.4, categories)


def efficientnet_b5(categories: Categories) -> EfficientNetClassifier:
    """EfficientNet-B5."""
    return _b(1.6, 2.2, 0.4, categories, tensorflow_norm)


def efficientnet_b6(categories: Categories) -> EfficientNetClassifier:
    """EfficientNet-B6."""
    return _b(1.8, 2.6, 0.5, categories, tensorflow_norm)


def efficientnet_b7(categories: Categories) -> EfficientNetClassifier:
    """EfficientNet-B7."""
    return _b(2.0, 3.1, 0.5, categories, tensorflow_norm)


def efficientnet_v2_s(categories: Categories) -> EfficientNetClassifier:
    """EfficientNetV2-S (table 4 of the second paper)."""
    return EfficientNetClassifier(V2_S, 24, 1280, v2_norm, 0.2, categories)


def efficientnet_v2_m(categories: Categories) -> EfficientNetClassifier:
    """EfficientNetV2-M."""
    return EfficientNetClassifier(V2_M, 24, 1280, v2_norm, 0.3, categories)


def efficientnet_v2_l(categories: Categories) -> EfficientNetClassifier:
    """EfficientNetV2-L."""
    return EfficientNetClassifier(V2_L, 32, 1280, v2_norm, 0.4, categories)


BICUBIC = {"interpolation": "bicubic"}
info = partial(
    classifier_info, "Tan and Le 2019, EfficientNet: rethinking model scaling for convolutional neural networks"
)
info_v2 = partial(classifier_info, "Tan and Le 2021, EfficientNetV2: smaller models and faster training")
MODELS = (
    info(
        efficientnet_b0,
        0.386,
        imagenet_entry(1, "efficientnet_b0_rwightman-7f5810bc", 5_288_548, 77.692, 93.532, **BICUBIC),
    ),
    info(
        efficientnet_b1,
        0.687,
        imagenet_entry(2, "efficientnet_b1-c27df63c", 7_794_184, 79.838, 94.934, resize=255, crop=240),
        imagenet_entry(1, "efficientnet_b1_rwightman-bac287d4", 7_794_184, 78.642, 94.186, crop=240, **BICUBIC),
    ),
    info(
        efficientnet_b2,
        1.088,
        imagenet_entry(
            1, "efficientnet_b2_rwightman-c35c1473", 9_109_994, 80.608, 95.310, resize=288, crop=288, **BICUBIC
        ),
    ),
    info(
        efficientnet_b3,
        1.827,
        imagenet_entry(
            1, "efficientnet_b3_rwightman-b3899882", 12_233_232, 82.008, 96.054, resize=320, crop=300, **BICUBIC
        ),
    ),
    info(
        efficientnet_b4,
        4.394,
        imagenet_entry(
            1, "efficientnet_b4_rwightman-23ab8bcd", 19_341_616, 83.384, 96.594, resize=384, crop=380, **BICUBIC
        ),
    ),
    info(
        efficientnet_b5,
        10.266,
        imagenet_entry(
            1, "efficientnet_b5_lukemelas-1a07897c", 30_389_784, 83.444, 96.628, resize=456, crop=456, **BICUBIC
        ),
    ),
    info(
        efficientnet_b6,
        19.068,
        imagenet_entry(
            1, "efficientnet_b6_lukemelas-24a108a5", 43_040_704, 84.008, 96.916, resize=528, crop=528, **BICUBIC
        ),
    ),
    info(
        efficientnet_b7,
        37.746,
        imagenet_entry(
            1, "efficientnet_b7_lukemelas-c5b4e57e", 66_347_960, 84.122, 96.908, resize=600, crop=600, **BICUBIC
        ),
    ),
    info_v2(
        efficientnet_v2_s,
        8.366,
        imagenet_entry(1, "efficientnet_v2_s-dd5fe13b", 21_458_488, 84.228, 96.878, resize=384, crop=384),
    ),
    info_v2(
        efficientnet_v2_m,
        24.582,
        imagenet_entry(1, "efficientnet_v2_m-dc08266a", 54_139_356, 85.112, 97.156, resize=480, crop=480),
    ),
    info_v2(
        efficientnet_v2_l,
        56.08,
        imagenet_entry(
            1,
            "efficientnet_v2_l-59c71312",
            118_515_272,
            85.808,
            97.788,
            resize=480,
            crop=480,
            **BICUBIC,
            mean=(0.5, 0.5, 0.5),
            std=(0.5, 0.5, 0.5),
        ),
    ),
)
