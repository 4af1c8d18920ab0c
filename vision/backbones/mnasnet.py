"""MNASNet, variant B1: Tan et al. 2018, "MnasNet: platform-aware neural architecture search for mobile"."""

from __future__ import annotations

from functools import partial

from ...core import Tensor
from ...core import functions as F
from ...core.layers import BatchNorm2d, Conv2d, Dropout, Linear, Module, ReLU, Sequential, init
from ...weights.torchvision import imagenet_entry
from ..categories import Categories
from ..model import Classifier
from .blocks import classifier_info, initialise, make_divisible

ROWS = (  # figure 7: kernel, stride of the first block, expansion, channels, blocks
    (3, 2, 3, 24, 3),
    (5, 2, 3, 40, 3),
    (5, 2, 6, 80, 3),
    (3, 1, 6, 96, 2),
    (5, 2, 6, 192, 4),
    (3, 1, 6, 320, 1),
)

norm = partial(BatchNorm2d, momentum=1 - 0.9997)  # what TensorFlow calls a decay of 0.9997


class InvertedResidual(Module):
    """Expand, depthwise, project without activation (figure 7, b and c)."""

    def __init__(self, in_channels: int, channels: int, kernel: int, stride: int, expansion: int) -> None:
        inner = in_channels * expansion
        self.layers = Sequential(
            Conv2d(in_channels, inner, 1, bias=False),
            norm(inner),
            ReLU(),
            Conv2d(inner, inner, kernel, stride, kernel // 2, groups=inner, bias=False),
            norm(inner),
            ReLU(),
            Conv2d(inner, channels, 1, bias=False),
            norm(channels),
        )
        self.residual = stride == 1 and in_channels == channels

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x, x if self.residual else None)  # type: ignore[no-any-return]


class MNASNet(Module):
    """The convolutional part: x (n, 3, height, width) to the last maps of the strides 2, 4, 8, 16 and 32.

    The last map is that of the 1x1 convolution after the blocks. ``width`` multiplies the channels.

    >>> import numpy as np

    >>> [m.shape[1:] for m in MNASNet(0.5)(Tensor(np.zeros((1, 3, 64, 64), np.float32)))]
    [(8, 32, 32), (16, 16, 16), (24, 8, 8), (48, 4, 4), (1280, 2, 2)]
    """

    at = (7, 8, 9, 11, 16)
    strides = (2, 4, 8, 16, 32)

    def __init__(self, width: float) -> None:
        stem, channels = make_divisible(32 * width), make_divisible(16 * width)
        parts: list[Module] = [
            Conv2d(3, stem, 3, 2, 1, bias=False),
            norm(stem),
            ReLU(),
            Conv2d(stem, stem, 3, padding=1, groups=stem, bias=False),
            norm(stem),
            ReLU(),
            Conv2d(stem, channels, 1, bias=False),
            norm(channels),
        ]
        outs = [channels]
        for kernel, stride, expansion, out, depth in ROWS:
            blocks = []
            for i in range(depth):
                before, channels = channels, make_divisible(out * width)
                blocks.append(InvertedResidual(before, channels, kernel, stride if i == 0 else 1, expansion))
            parts.append(Sequential(*blocks))
            outs.append(channels)
        parts += [Conv2d(channels, 1280, 1, bias=False), norm(1280), ReLU()]
        self.layers = Sequential(*parts)
        self.channels = (outs[0], outs[1], outs[2], outs[4], 1280)
        initialise(self, Conv2d, init.he_normal)

    def forward(self, x: Tensor) -> list[Tensor]:
        return self.layers.outputs(x, self.at)


class MNASNetClassifier(MNASNet, Classifier):
    """MNASNet with its classifier: x (n, 3, height, width) to logits (n, classes)."""

    class_layers = ("classifier.1.",)

    def __init__(self, width: float, categories: Categories) -> None:
        super().__init__(width)
        self.categories = categories
        self.classifier = Sequential(Dropout(0.2), Linear(1280, categories.outputs))

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return self.classifier(F.mean(self.layers(x), (2, 3)))  # type: ignore[no-any-return]


def mnasnet0_5(categories: Categories) -> MNASNetClassifier:
    """MNASNet-B1 at half width."""
    return MNASNetClassifier(0.5, categories)


def mnasnet0_75(categories: Categories) -> MNASNetClassifier:
    """MNASNet-B1 at three quarters of the width."""
    return MNASNetClassifier(0.75, categories)


def mnasnet1_0(categories: Categories) -> MNASNetClassifier:
    """MNASNet-B1 (figure 7)."""
    return MNASNetClassifier(1.0, categories)


def mnasnet1_3(categories: Categories) -> MNASNetClassifier:
    """MNASNet-B1 at 1.3 times the width."""
    return MNASNetClassifier(1.3, categories)


info = partial(classifier_info, "Tan et al. 2018, MnasNet: platform-aware neural architecture search for mobile")
MODELS = (
    info(mnasnet0_5, 0.104, imagenet_entry(1, "mnasnet0.5_top1_67.823-3ffadce67e", 2_218_512, 67.734, 87.490)),
    info(mnasnet0_75, 0.215, imagenet_entry(1, "mnasnet0_75-7090bc5f", 3_170_208, 71.180, 90.496, resize=232)),
    info(mnasnet1_0, 0.314, imagenet_entry(1, "mnasnet1.0_top1_73.512-f206786ef8", 4_383_312, 73.456, 91.510)),
    info(mnasnet1_3, 0.526, imagenet_entry(1, "mnasnet1_3-a4c69d6f", 6_282_256, 76.506, 93.522, resize=232)),
)
