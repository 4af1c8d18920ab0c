"""DenseNet-BC: Huang et al. 2016, "Densely connected convolutional networks"."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from ...core import Tensor
from ...core import functions as F
from ...core.layers import AvgPool2d, BatchNorm2d, Conv2d, Linear, MaxPool2d, Module, ReLU, Sequential, init
from ...weights.torchvision import imagenet_entry
from ..categories import Categories
from ..model import Classifier
from .blocks import classifier_info, initialise


class DenseLayer(Module):
    """Norm, ReLU, 1x1 to four times the growth, norm, ReLU, 3x3 (section 3, "bottleneck layers")."""

    def __init__(self, in_channels: int, growth: int) -> None:
        self.norm1 = BatchNorm2d(in_channels)
        self.conv1 = Conv2d(in_channels, 4 * growth, 1, bias=False)
        self.norm2 = BatchNorm2d(4 * growth)
        self.conv2 = Conv2d(4 * growth, growth, 3, padding=1, bias=False)
        self.relu = ReLU()

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv1.fused(self.relu(self.norm1(x)), self.norm2, self.relu)
        return self.conv2.fused(y)


class DenseBlock(Module):
    """Layers of which each sees the maps of all before it (equation 2)."""

    def __init__(self, in_channels: int, growth: int, depth: int) -> None:
        for i in range(depth):
            setattr(self, f"denselayer{i + 1}", DenseLayer(in_channels + i * growth, growth))

    def forward(self, x: Tensor) -> Tensor:
        for _, layer in self.children():
            x = F.concatenate([x, layer(x)], 1)
        return x


class DenseNet(Module):
    """The convolutional part: x (n, 3, height, width) to the maps of the four blocks, strides 4, 8, 16 and 32.

    Each layer adds ``growth`` channels; ``depths`` counts the layers of each block, ``stem`` the first channels.

    >>> import numpy as np

    >>> [m.shape[1:] for m in DenseNet(32, (2, 2, 2, 2), 64)(Tensor(np.zeros((1, 3, 64, 64), np.float32)))]
    [(128, 16, 16), (128, 8, 8), (128, 4, 4), (128, 2, 2)]
    """

    strides = (4, 8, 16, 32)

    def __init__(self, growth: int, depths: Sequence[int], stem: int) -> None:
        parts: dict[str, Module] = {
            "conv0": Conv2d(3, stem, 7, 2, 3, bias=False),
            "norm0": BatchNorm2d(stem),
            "relu0": ReLU(),
            "pool0": MaxPool2d(3, 2, 1),
        }
        channels, at, outs = stem, [], []
        for i, depth in enumerate(depths):
            if i > 0:  # section 3, "compression"
                parts[f"transition{i}"] = Sequential(
                    norm=BatchNorm2d(channels),
                    relu=ReLU(),
                    conv=Conv2d(channels, channels // 2, 1, bias=False),
                    pool=AvgPool2d(2),
                )
                channels //= 2
            at.append(len(parts))
            parts[f"denseblock{i + 1}"] = DenseBlock(channels, growth, depth)
            channels += depth * growth
            outs.append(channels)
        at[-1] = len(parts) + 1
        self.features = Sequential(**parts, norm5=BatchNorm2d(channels), relu5=ReLU())
        self.at, self.channels = tuple(at), tuple(outs)
        initialise(self, Conv2d, partial(init.he_normal, fan="in"))

    def forward(self, x: Tensor) -> list[Tensor]:
        return self.features.outputs(x, self.at)


class DenseNetClassifier(DenseNet, Classifier):
    """DenseNet with its classifier: x (n, 3, height, width) to logits (n, classes)."""

    class_layers = ("classifier.",)

    def __init__(self, growth: int, depths: Sequence[int], stem: int, categories: Categories) -> None:
        super().__init__(growth, depths, stem)
        self.categories = categories
        self.classifier = Linear(self.channels[-1], categories.outputs)

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return self.classifier(F.mean(self.features(x), (2, 3)))  # type: ignore[no-any-return]


def densenet121(categories: Categories) -> DenseNetClassifier:
    """DenseNet-121 (table 1)."""
    return DenseNetClassifier(32, (6, 12, 24, 16), 64, categories)


def densenet161(categories: Categories) -> DenseNetClassifier:
    """DenseNet-161, with a growth of 48."""
    return DenseNetClassifier(48, (6, 12, 36, 24), 96, categories)


def densenet169(categories: Categories) -> DenseNetClassifier:
    """DenseNet-169 (table 1)."""
    return DenseNetClassifier(32, (6, 12, 32, 32), 64, categories)


def densenet201(categories: Categories) -> DenseNetClassifier:
    """DenseNet-201 (table 1)."""
    return DenseNetClassifier(32, (6, 12, 48, 32), 64, categories)


info = partial(
    classifier_info,
    "Huang et al. 2016, Densely connected convolutional networks",
    renames=((r"(.*denselayer\d+\.(?:norm|conv))\.([12]\..*)", r"\1\2"),),  # the published files' older names
)
MODELS = (
    info(densenet121, 2.834, imagenet_entry(1, "densenet121-a639ec97", 7_978_856, 74.434, 91.972)),
    info(densenet161, 7.728, imagenet_entry(1, "densenet161-8d451a50", 28_681_000, 77.138, 93.560)),
    info(densenet169, 3.36, imagenet_entry(1, "densenet169-b2777c0a", 14_149_480, 75.600, 92.806)),
    info(densenet201, 4.291, imagenet_entry(1, "densenet201-c1103571", 20_013_928, 76.896, 93.370)),
)
