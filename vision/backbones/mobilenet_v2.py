"""MobileNetV2: Sandler et al. 2018, "MobileNetV2: inverted residuals and linear bottlenecks"."""

from __future__ import annotations

from functools import partial

from ...core import Tensor
from ...core import functions as F
from ...core.layers import BatchNorm2d, Conv2d, Dropout, Linear, Module, ReLU6, Sequential, init
from ...weights.torchvision import imagenet_entry
from ..categories import Categories
from ..model import Classifier
from .blocks import Norm, classifier_info, conv_norm_activation, initialise, make_divisible

ROWS = (  # table 2: expansion, channels, blocks, stride of the first block
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


class InvertedResidual(Module):
    """Expand, depthwise, project without activation (table 1)."""

    def __init__(self, in_channels: int, channels: int, stride: int, expansion: int, norm: Norm) -> None:
        inner = in_channels * expansion
        parts: list[Module] = []
        if expansion != 1:
            parts.append(conv_norm_activation(in_channels, inner, 1, norm=norm, activation=ReLU6()))
        parts.append(conv_norm_activation(inner, inner, 3, stride, groups=inner, norm=norm, activation=ReLU6()))
        self.conv = Sequential(*parts, Conv2d(inner, channels, 1, bias=False), norm(channels))
        self.residual = stride == 1 and in_channels == channels

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x, x if self.residual else None)  # type: ignore[no-any-return]


class MobileNetV2(Module):
    """The convolutional part: x (n, 3, height, width) to the last maps of the strides 2, 4, 8, 16 and 32.

    The last map is that of the 1x1 convolution after the bottlenecks. ``width`` multiplies the channels.

    >>> import numpy as np

    >>> [m.shape[1:] for m in MobileNetV2()(Tensor(np.zeros((1, 3, 64, 64), np.float32)))]
    [(16, 32, 32), (24, 16, 16), (32, 8, 8), (96, 4, 4), (1280, 2, 2)]
    """

    at = (1, 3, 6, 13, 18)
    strides = (2, 4, 8, 16, 32)

    def __init__(self, width: float = 1.0, norm: Norm = BatchNorm2d) -> None:
        channels = make_divisible(32 * width)
        parts: list[Module] = [conv_norm_activation(3, channels, 3, 2, norm=norm, activation=ReLU6())]
        outs = [channels]
        for expansion, out, depth, stride in ROWS:
            for i in range(depth):
                before, channels = channels, make_divisible(out * width)
                parts.append(InvertedResidual(before, channels, stride if i == 0 else 1, expansion, norm))
                outs.append(channels)
        last = make_divisible(1280 * max(1.0, width))
        parts.append(conv_norm_activation(channels, last, 1, norm=norm, activation=ReLU6()))
        self.features = Sequential(*parts)
        self.channels = tuple([*outs, last][i] for i in self.at)
        initialise(self, Conv2d, init.he_normal)

    def forward(self, x: Tensor) -> list[Tensor]:
        return self.features.outputs(x, self.at)


class MobileNetV2Classifier(MobileNetV2, Classifier):
    """MobileNetV2 with its classifier: x (n, 3, height, width) to logits (n, classes)."""

    class_layers = ("classifier.1.",)

    def __init__(self, categories: Categories) -> None:
        super().__init__()
        self.categories = categories
        self.classifier = Sequential(Dropout(0.2), Linear(self.channels[-1], categories.outputs))
        initialise(self.classifier, Linear, partial(init.normal, std=0.01))

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return self.classifier(F.mean(self.features(x), (2, 3)))  # type: ignore[no-any-return]


def mobilenet_v2(categories: Categories) -> MobileNetV2Classifier:
    """MobileNetV2 at full width (table 2)."""
    return MobileNetV2Classifier(categories)


info = partial(classifier_info, "Sandler et al. 2018, MobileNetV2: inverted residuals and linear bottlenecks")
MODELS = (
    info(
        mobilenet_v2,
        0.301,
        imagenet_entry(2, "mobilenet_v2-7ebf99e0", 3_504_872, 72.154, 90.822, resize=232),
        imagenet_entry(1, "mobilenet_v2-b0353104", 3_504_872, 71.878, 90.286),
    ),
)
