"""ConvNeXt: Liu et al. 2022, "A ConvNet for the 2020s"."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from ...core import Parameter, Tensor
from ...core import functions as F
from ...core.layers import GELU, Conv2d, Flatten, LayerNorm, Linear, Module, Permute, Sequential, StochasticDepth, init
from ...weights.torchvision import imagenet_entry
from ..categories import Categories
from ..model import Classifier
from .blocks import classifier_info, depth_ratios, initialise


class LayerNorm2d(LayerNorm):
    """Normalisation over the channels of each place of (n, channels, height, width)."""

    def forward(self, x: Tensor) -> Tensor:
        return F.transpose(super().forward(F.transpose(x, (0, 2, 3, 1))), (0, 3, 1, 2))


class Block(Module):
    """Depthwise 7x7, norm, 1x1 to four times the channels, GELU, 1x1 back, scaled (figure 4)."""

    def __init__(self, channels: int, drop: float) -> None:
        self.block = Sequential(
            Conv2d(channels, channels, 7, padding=3, groups=channels),
            Permute(0, 2, 3, 1),
            LayerNorm(channels, eps=1e-6),
            Linear(channels, 4 * channels),
            GELU(),
            Linear(4 * channels, channels),
            Permute(0, 3, 1, 2),
        )
        self.layer_scale = Parameter(init.constant((channels, 1, 1), 1e-6))
        self.stochastic_depth = StochasticDepth(drop)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.stochastic_depth(self.block(x) * self.layer_scale)  # type: ignore[no-any-return]


class ConvNeXt(Module):
    """The convolutional part: x (n, 3, height, width) to the maps of the four stages, strides 4, 8, 16 and 32.

    ``drop`` is the ratio of stochastic depth in the last block.

    >>> import numpy as np

    >>> net = ConvNeXt((1, 1, 1, 1), (8, 16, 32, 64))
    >>> [m.shape[1:] for m in net(Tensor(np.zeros((1, 3, 64, 64), np.float32)))]
    [(8, 16, 16), (16, 8, 8), (32, 4, 4), (64, 2, 2)]
    """

    at = (1, 3, 5, 7)
    strides = (4, 8, 16, 32)

    def __init__(self, depths: Sequence[int], channels: Sequence[int], drop: float = 0.0) -> None:
        parts: list[Module] = [Sequential(Conv2d(3, channels[0], 4, 4), LayerNorm2d(channels[0], eps=1e-6))]
        ratios = iter(depth_ratios(drop, sum(depths)))
        for i, (depth, width) in enumerate(zip(depths, channels)):
            if i > 0:
                before = channels[i - 1]
                parts.append(Sequential(LayerNorm2d(before, eps=1e-6), Conv2d(before, width, 2, 2)))
            parts.append(Sequential(*(Block(width, next(ratios)) for _ in range(depth))))
        self.features = Sequential(*parts)
        self.channels = tuple(channels)
        initialise(self, (Conv2d, Linear), partial(init.normal, std=0.02))

    def forward(self, x: Tensor) -> list[Tensor]:
        return self.features.outputs(x, self.at)


class ConvNeXtClassifier(ConvNeXt, Classifier):
    """ConvNeXt with its classifier: x (n, 3, height, width) to logits (n, classes)."""

    class_layers = ("classifier.2.",)

    def __init__(self, depths: Sequence[int], channels: Sequence[int], drop: float, categories: Categories) -> None:
        super().__init__(depths, channels, drop)
        self.categories = categories
        self.classifier = Sequential(
            LayerNorm2d(channels[-1], eps=1e-6), Flatten(), Linear(channels[-1], categories.outputs)
        )
        initialise(self.classifier, Linear, partial(init.normal, std=0.02))

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return self.classifier(F.mean(self.features(x), (2, 3), True))  # type: ignore[no-any-return]


def convnext_tiny(categories: Categories) -> ConvNeXtClassifier:
    """ConvNeXt-T (section 3)."""
    return ConvNeXtClassifier((3, 3, 9, 3), (96, 192, 384, 768), 0.1, categories)


def convnext_small(categories: Categories) -> ConvNeXtClassifier:
    """ConvNeXt-S."""
    return ConvNeXtClassifier((3, 3, 27, 3), (96, 192, 384, 768), 0.4, categories)


def convnext_base(categories: Categories) -> ConvNeXtClassifier:
    """ConvNeXt-B."""
    return ConvNeXtClassifier((3, 3, 27, 3), (128, 256, 512, 1024), 0.5, categories)


def convnext_large(categories: Categories) -> ConvNeXtClassifier:
    """ConvNeXt-L."""
    return ConvNeXtClassifier((3, 3, 27, 3), (192, 384, 768, 1536), 0.5, categories)


info = partial(classifier_info, "Liu et al. 2022, A ConvNet for the 2020s")
MODELS = (
    info(convnext_tiny, 4.456, imagenet_entry(1, "convnext_tiny-983f1562", 28_589_128, 82.520, 96.146, resize=236)),
    info(convnext_small, 8.684, imagenet_entry(1, "convnext_small-0c510722", 50_223_688, 83.616, 96.650, resize=230)),
    info(convnext_base, 15.355, imagenet_entry(1, "convnext_base-6075fbad", 88_591_464, 84.062, 96.870, resize=232)),
    info(convnext_large, 34.361, imagenet_entry(1, "convnext_large-ea097f82", 197_767_336, 84.414, 96.976, resize=232)),
)
