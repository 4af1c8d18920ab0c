"""VGG: Simonyan and Zisserman 2014, "Very deep convolutional networks for large-scale image recognition"."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from ...core import Tensor
from ...core import functions as F
from ...core.layers import BatchNorm2d, Conv2d, Dropout, Linear, MaxPool2d, Module, ReLU, Sequential, init
from ...weights import chainer
from ...weights.categories import IMAGENET_1000
from ...weights.torchvision import entry, imagenet_entry
from ..categories import Categories
from ..model import Classifier
from .blocks import Norm, classifier_info, initialise

A, B, D, E = (1, 1, 2, 2, 2), (2, 2, 2, 2, 2), (2, 2, 3, 3, 3), (2, 2, 4, 4, 4)  # table 1: convolutions per stage


class VGG(Module):
    """The convolutional part: x (n, 3, height, width) to the last maps of the five stages, before they are pooled.

    ``depths`` counts the convolutions of each stage; ``norm`` makes the norm after each of them, if there is one.

    >>> import numpy as np

    >>> [m.shape[1:] for m in VGG(A)(Tensor(np.zeros((1, 3, 32, 32), np.float32)))]
    [(64, 32, 32), (128, 16, 16), (256, 8, 8), (512, 4, 4), (512, 2, 2)]
    """

    channels = (64, 128, 256, 512, 512)
    strides = (1, 2, 4, 8, 16)

    def __init__(self, depths: Sequence[int], norm: Norm | None = None) -> None:
        parts: list[Module] = []
        at, channels = [], 3
        for width, depth in zip(self.channels, depths):
            for _ in range(depth):
                parts += [Conv2d(channels, width, 3, padding=1), *([norm(width)] if norm else []), ReLU()]
                channels = width
            at.append(len(parts) - 1)
            parts.append(MaxPool2d(2))
        self.features = Sequential(*parts)
        self.at = tuple(at)
        initialise(self, Conv2d, init.he_normal)

    def forward(self, x: Tensor) -> list[Tensor]:
        return self.features.outputs(x, self.at)


class VGGClassifier(VGG, Classifier):
    """VGG with its classifier: x (n, 3, height, width) to logits (n, classes)."""

    class_layers = ("classifier.6.",)

    def __init__(self, depths: Sequence[int], categories: Categories, norm: Norm | None = None) -> None:
        super().__init__(depths, norm)
        self.categories = categories
        self.classifier = Sequential(
            Linear(512 * 7 * 7, 4096),
            ReLU(),
            Dropout(0.5),
            Linear(4096, 4096),
            ReLU(),
            Dropout(0.5),
            Linear(4096, categories.outputs),
        )
        initialise(self.classifier, Linear, partial(init.normal, std=0.01))

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        y = F.adaptive_avg_pool2d(self.features(x), 7)
        return self.classifier(F.reshape(y, (y.shape[0], -1)))  # type: ignore[no-any-return]


def vgg11(categories: Categories) -> VGGClassifier:
    """VGG-11 (table 1, A)."""
    return VGGClassifier(A, categories)


def vgg11_bn(categories: Categories) -> VGGClassifier:
    """VGG-11 with batch norms."""
    return VGGClassifier(A, categories, BatchNorm2d)


def vgg13(categories: Categories) -> VGGClassifier:
    """VGG-13 (table 1, B)."""
    return VGGClassifier(B, categories)


def vgg13_bn(categories: Categories) -> VGGClassifier:
    """VGG-13 with batch norms."""
    return VGGClassifier(B, categories, BatchNorm2d)


def vgg16(categories: Categories) -> VGGClassifier:
    """VGG-16 (table 1, D)."""
    return VGGClassifier(D, categories)


def vgg16_bn(categories: Categories) -> VGGClassifier:
    """VGG-16 with batch norms."""
    return VGGClassifier(D, categories, BatchNorm2d)


def vgg19(categories: Categories) -> VGGClassifier:
    """VGG-19 (table 1, E)."""
    return VGGClassifier(E, categories)


def vgg19_bn(categories: Categories) -> VGGClassifier:
    """VGG-19 with batch norms."""
    return VGGClassifier(E, categories, BatchNorm2d)


VGG16_FEATURES = replace(
    entry(
        "IMAGENET1K_FEATURES",
        "vgg16_features-amdegroot-88682ab5",
        138_357_544,
        IMAGENET_1000,
        {},
        settings={"mean": (0.48235, 0.45882, 0.40784), "std": (1 / 255,) * 3},
    ),
    notes="the original Caffe weights, with which SSD300 was trained: only the convolutions are of use, the classifier "
    "holds no trained values",
)

CHAINERCV = chainer.imagenet_entry(
    "vgg16_imagenet_converted_2017_07_18",
    138_357_544,
    29.0,
    (123.68, 116.779, 103.939),
    27.1,
    "IMAGENET1K_CHAINERCV",
)


def _chainercv_rules() -> list[tuple[str, str]]:
    """The layers' names in ChainerCV's file and here."""
    convs = [(s, i, 2 * (sum(D[:s]) + i) + s) for s, depth in enumerate(D) for i in range(depth)]
    rules = [(rf"^conv{s + 1}_{i + 1}\.conv\.", f"features.{at}.") for s, i, at in convs]
    return [*rules, *((rf"^fc{k}\.", f"classifier.{3 * k - 18}.") for k in (6, 7, 8))]


info = partial(
    classifier_info, "Simonyan and Zisserman 2014, Very deep convolutional networks for large-scale image recognition"
)
MODELS = (
    info(vgg11, 7.609, imagenet_entry(1, "vgg11-8a719046", 132_863_336, 69.020, 88.628)),
    info(vgg11_bn, 7.609, imagenet_entry(1, "vgg11_bn-6002323d", 132_868_840, 70.370, 89.810)),
    info(vgg13, 11.308, imagenet_entry(1, "vgg13-19584684", 133_047_848, 69.928, 89.246)),
    info(vgg13_bn, 11.308, imagenet_entry(1, "vgg13_bn-abd245e5", 133_053_736, 71.586, 90.374)),
    info(
        vgg16,
        15.47,
        imagenet_entry(1, "vgg16-397923af", 138_357_544, 71.592, 90.382),
        VGG16_FEATURES,
        CHAINERCV,
        convert=chainer.converter(_chainercv_rules()),
    ),
    info(vgg16_bn, 15.47, imagenet_entry(1, "vgg16_bn-6c64b313", 138_365_992, 73.360, 91.516)),
    info(vgg19, 19.632, imagenet_entry(1, "vgg19-dcbb9e9d", 143_667_240, 72.376, 90.876)),
    info(vgg19_bn, 19.632, imagenet_entry(1, "vgg19_bn-c79401a0", 143_678_248, 74.218, 91.842)),
)
