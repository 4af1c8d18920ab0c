"""SqueezeNet: Iandola et al. 2016, "SqueezeNet: AlexNet-level accuracy with 50x fewer parameters"."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from ...core import Tensor
from ...core import functions as F
from ...core.layers import AdaptiveAvgPool2d, Conv2d, Dropout, Flatten, MaxPool2d, Module, ReLU, Sequential, init
from ...weights.torchvision import imagenet_entry
from ..categories import Categories
from ..model import Classifier
from .blocks import classifier_info, initialise

Stages = Sequence[Sequence[tuple[int, int]]]  # of each Fire module: squeezed channels, channels of each expansion

V1_0: Stages = (  # table 1
    ((16, 64), (16, 64), (32, 128)),
    ((32, 128), (48, 192), (48, 192), (64, 256)),
    ((64, 256),),
)
V1_1: Stages = (((16, 64), (16, 64)), ((32, 128), (32, 128)), ((48, 192), (48, 192), (64, 256), (64, 256)))


class Fire(Module):
    """1x1 to few channels, then 1x1 and 3x3 side by side (figure 1)."""

    def __init__(self, in_channels: int, squeezed: int, expanded: int) -> None:
        self.squeeze = Conv2d(in_channels, squeezed, 1)
        self.expand1x1 = Conv2d(squeezed, expanded, 1)
        self.expand3x3 = Conv2d(squeezed, expanded, 3, padding=1)
        self.relu = ReLU()

    def forward(self, x: Tensor) -> Tensor:
        x = self.squeeze.fused(x, None, self.relu)
        return F.concatenate([conv.fused(x, None, self.relu) for conv in (self.expand1x1, self.expand3x3)], 1)


class SqueezeNet(Module):
    """The convolutional part: x (n, 3, height, width) to the last maps of the strides 2, 4, 8 and 16.

    ``stem`` is the first convolution, of stride 2; each of the ``stages`` comes after a pooling.

    >>> import numpy as np

    >>> [m.shape[1:] for m in SqueezeNet(Conv2d(3, 64, 3, 2), V1_1)(Tensor(np.zeros((1, 3, 65, 65), np.float32)))]
    [(64, 32, 32), (128, 16, 16), (256, 8, 8), (512, 4, 4)]
    """

    strides = (2, 4, 8, 16)

    def __init__(self, stem: Conv2d, stages: Stages) -> None:
        channels = stem.weight.shape[0]
        parts: list[Module] = [stem, ReLU()]
        at, outs = [1], [channels]
        for stage in stages:
            parts.append(MaxPool2d(3, stride=2, ceil_mode=True))
            for squeezed, expanded in stage:
                parts.append(Fire(channels, squeezed, expanded))
                channels = 2 * expanded
            at.append(len(parts) - 1)
            outs.append(channels)
        self.features = Sequential(*parts)
        self.at, self.channels = tuple(at), tuple(outs)
        initialise(self, Conv2d, partial(init.he_normal, fan="in"))

    def forward(self, x: Tensor) -> list[Tensor]:
        return self.features.outputs(x, self.at)


class SqueezeNetClassifier(SqueezeNet, Classifier):
    """SqueezeNet with its classifier, a convolution: x (n, 3, height, width) to logits (n, classes)."""

    class_layers = ("classifier.1.",)

    def __init__(self, stem: Conv2d, stages: Stages, categories: Categories) -> None:
        super().__init__(stem, stages)
        self.categories = categories
        self.classifier = Sequential(
            Dropout(0.5), Conv2d(512, categories.outputs, 1), ReLU(), AdaptiveAvgPool2d(1), Flatten()
        )
        initialise(self.classifier, Conv2d, partial(init.normal, std=0.01))

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return self.classifier(self.features(x))  # type: ignore[no-any-return]


def squeezenet1_0(categories: Categories) -> SqueezeNetClassifier:
    """SqueezeNet 1.0 (table 1)."""
    return SqueezeNetClassifier(Conv2d(3, 96, 7, stride=2), V1_0, categories)


def squeezenet1_1(categories: Categories) -> SqueezeNetClassifier:
    """SqueezeNet 1.1: the authors' later version, with less computation and the same accuracy."""
    return SqueezeNetClassifier(Conv2d(3, 64, 3, stride=2), V1_1, categories)


info = partial(classifier_info, "Iandola et al. 2016, SqueezeNet: AlexNet-level accuracy with 50x fewer parameters")
MODELS = (
    info(squeezenet1_0, 0.819, imagenet_entry(1, "squeezenet1_0-b66bff10", 1_248_424, 58.092, 80.420)),
    info(squeezenet1_1, 0.349, imagenet_entry(1, "squeezenet1_1-b8a52dc0", 1_235_496, 58.178, 80.624)),
)
