"""RegNet: Radosavovic et al. 2020, "Designing network design spaces"."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ...core import Tensor
from ...core import functions as F
from ...core.layers import BatchNorm2d, Conv2d, Linear, Module, ReLU, Sequential, init
from ...weights.torchvision import imagenet_entry, swag_entry
from ..categories import Categories
from ..model import Classifier
from .blocks import Norm, SqueezeExcitation, classifier_info, conv_norm_activation, initialise, make_divisible


class Stage(NamedTuple):
    """Blocks of one width in one stage, with the channels in each group of their 3x3 convolutions."""

    depth: int
    width: int
    group: int


def quantised_stages(depth: int, start: int, slope: float, step: float, group: int) -> list[Stage]:
    """The stages whose widths follow a line, rounded to powers of ``step`` and then to eights (equations 2 to 4).

    >>> quantised_stages(16, 48, 27.89, 2.09, 8)[0]
    Stage(depth=1, width=48, group=8)
    """
    line = start + slope * np.arange(depth)
    power = np.round(np.log(line / start) / np.log(step))
    widths, depths = np.unique(np.round(start * step**power / 8) * 8, return_counts=True)
    stages = []
    for width, count in zip(widths.astype(int).tolist(), depths.tolist()):
        size = min(group, width)
        stages.append(Stage(count, make_divisible(width, size), size))
    return stages


class Block(Module):
    """1x1, grouped 3x3, perhaps squeeze-and-excitation, 1x1 around a shortcut (figure 4)."""

    def __init__(
        self, in_channels: int, width: int, stride: int, group: int, squeeze: float | None, norm: Norm
    ) -> None:
        self.activation = ReLU()
        if stride > 1 or in_channels != width:
            self.proj = conv_norm_activation(in_channels, width, 1, stride, norm=norm)
        parts: dict[str, Module] = {
            "a": conv_norm_activation(in_channels, width, 1, norm=norm, activation=ReLU()),
            "b": conv_norm_activation(width, width, 3, stride, groups=width // group, norm=norm, activation=ReLU()),
        }
        if squeeze is not None:
            parts["se"] = SqueezeExcitation(width, round(squeeze * in_channels))
        self.f = Sequential(**parts, c=conv_norm_activation(width, width, 1, norm=norm))

    def forward(self, x: Tensor) -> Tensor:
        shortcut = self.proj(x) if hasattr(self, "proj") else x
        *inner, (conv, norm) = list[Any](self.f)
        for part in inner:
            x = part(x)
        return conv.fused(x, norm, self.activation, shortcut)  # type: ignore[no-any-return]


class RegNet(Module):
    """The convolutional part: x (n, 3, height, width) to the maps of the stages, strides 4, 8, ...

    ``squeeze`` is the ratio of the squeeze-and-excitation modules (RegNetY); without, there are none (RegNetX).

    >>> stages = quantised_stages(16, 48, 27.89, 2.09, 8)
    >>> [m.shape[1:] for m in RegNet(stages, 0.25)(Tensor(np.zeros((1, 3, 64, 64), np.float32)))]
    [(48, 16, 16), (104, 8, 8), (208, 4, 4), (440, 2, 2)]
    """

    def __init__(self, stages: list[Stage], squeeze: float | None = None, norm: Norm = BatchNorm2d) -> None:
        channels = 32
        self.stem = conv_norm_activation(3, channels, 3, 2, norm=norm, activation=ReLU())
        trunk: dict[str, Module] = {}
        for i, (depth, width, group) in enumerate(stages, 1):
            blocks = {}
            for j in range(depth):
                blocks[f"block{i}-{j}"] = Block(channels, width, 2 if j == 0 else 1, group, squeeze, norm)
                channels = width
            trunk[f"block{i}"] = Sequential(**blocks)
        self.trunk_output = Sequential(**trunk)
        self.channels = tuple(stage.width for stage in stages)
        self.strides = tuple(4 << i for i in range(len(stages)))
        initialise(self, Conv2d, init.he_normal)

    def maps(self, x: Tensor) -> list[Tensor]:
        """The maps of the stages."""
        return self.trunk_output.outputs(self.stem(x), range(len(self.channels)))

    def forward(self, x: Tensor) -> list[Tensor]:
        return self.maps(x)


class RegNetClassifier(RegNet, Classifier):
    """RegNet with its classifier: x (n, 3, height, width) to logits (n, classes)."""

    class_layers = ("fc.",)

    def __init__(self, stages: list[Stage], categories: Categories, squeeze: float | None = None) -> None:
        super().__init__(stages, squeeze)
        self.categories = categories
        self.fc = Linear(self.channels[-1], categories.outputs)
        initialise(self.fc, Linear, partial(init.normal, std=0.01))

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return self.fc(F.mean(self.maps(x)[-1], (2, 3)))  # type: ignore[no-any-return]


def regnet_x_400mf(categories: Categories) -> RegNetClassifier:
    """RegNetX-400MF."""
    return RegNetClassifier(quantised_stages(22, 24, 24.48, 2.54, 16), categories)


def regnet_x_800mf(categories: Categories) -> RegNetClassifier:
    """RegNetX-800MF."""
    return RegNetClassifier(quantised_stages(16, 56, 35.73, 2.28, 16), categories)


def regnet_x_1_6gf(categories: Categories) -> RegNetClassifier:
    """RegNetX-1.6GF."""
    return RegNetClassifier(quantised_stages(18, 80, 34.01, 2.25, 24), categories)


def regnet_x_3_2gf(categories: Categories) -> RegNetClassifier:
    """RegNetX-3.2GF."""
    return RegNetClassifier(quantised_stages(25, 88, 26.31, 2.25, 48), categories)


def regnet_x_8gf(categories: Categories) -> RegNetClassifier:
    """RegNetX-8GF."""
    return RegNetClassifier(quantised_stages(23, 80, 49.56, 2.88, 120), categories)


def regnet_x_16gf(categories: Categories) -> RegNetClassifier:
    """RegNetX-16GF."""
    return RegNetClassifier(quantised_stages(22, 216, 55.59, 2.1, 128), categories)


def regnet_x_32gf(categories: Categories) -> RegNetClassifier:
    """RegNetX-32GF."""
    return RegNetClassifier(quantised_stages(23, 320, 69.86, 2.0, 168), categories)


def regnet_y_400mf(categories: Categories) -> RegNetClassifier:
    """RegNetY-400MF."""
    return RegNetClassifier(quantised_stages(16, 48, 27.89, 2.09, 8), categories, 0.25)


def regnet_y_800mf(categories: Categories) -> RegNetClassifier:
    """RegNetY-800MF."""
    return RegNetClassifier(quantised_stages(14, 56, 38.84, 2.4, 16), categories, 0.25)


def regnet_y_1_6gf(categories: Categories) -> RegNetClassifier:
    """RegNetY-1.6GF."""
    return RegNetClassifier(quantised_stages(27, 48, 20.71, 2.65, 24), categories, 0.25)


def regnet_y_3_2gf(categories: Categories) -> RegNetClassifier:
    """RegNetY-3.2GF."""
    return RegNetClassifier(quantised_stages(21, 80, 42.63, 2.66, 24), categories, 0.25)


def regnet_y_8gf(categories: Categories) -> RegNetClassifier:
    """RegNetY-8GF."""
    return RegNetClassifier(quantised_stages(17, 192, 76.82, 2.19, 56), categories, 0.25)


def regnet_y_16gf(categories: Categories) -> RegNetClassifier:
    """RegNetY-16GF."""
    return RegNetClassifier(quantised_stages(18, 200, 106.23, 2.48, 112), categories, 0.25)


def regnet_y_32gf(categories: Categories) -> RegNetClassifier:
    """RegNetY-32GF."""
    return RegNetClassifier(quantised_stages(20, 232, 115.89, 2.53, 232), categories, 0.25)


def regnet_y_128gf(categories: Categories) -> RegNetClassifier:
    """RegNetY-128GF."""
    return RegNetClassifier(quantised_stages(27, 456, 160.83, 2.52, 264), categories, 0.25)


info = partial(classifier_info, "Radosavovic et al. 2020, Designing network design spaces")
MODELS = (
    info(
        regnet_x_400mf,
        0.414,
        imagenet_entry(2, "regnet_x_400mf-62229a5f", 5_495_976, 74.864, 92.322, resize=232),
        imagenet_entry(1, "regnet_x_400mf-adf1edd5", 5_495_976, 72.834, 90.950),
    ),
    info(
        regnet_x_800mf,
        0.8,
        imagenet_entry(2, "regnet_x_800mf-94a99ebd", 7_259_656, 77.522, 93.826, resize=232),
        imagenet_entry(1, "regnet_x_800mf-ad17e45c", 7_259_656, 75.212, 92.348),
    ),
    info(
        regnet_x_1_6gf,
        1.603,
        imagenet_entry(2, "regnet_x_1_6gf-a12f2b72", 9_190_136, 79.668, 94.922, resize=232),
        imagenet_entry(1, "regnet_x_1_6gf-e3633e7f", 9_190_136, 77.040, 93.440),
    ),
    info(
        regnet_x_3_2gf,
        3.177,
        imagenet_entry(2, "regnet_x_3_2gf-7071aa85", 15_296_552, 81.196, 95.430, resize=232),
        imagenet_entry(1, "regnet_x_3_2gf-f342aeae", 15_296_552, 78.364, 93.992),
    ),
    info(
        regnet_x_8gf,
        7.995,
        imagenet_entry(2, "regnet_x_8gf-2b70d774", 39_572_648, 81.682, 95.678, resize=232),
        imagenet_entry(1, "regnet_x_8gf-03ceed89", 39_572_648, 79.344, 94.686),
    ),
    info(
        regnet_x_16gf,
        15.941,
        imagenet_entry(2, "regnet_x_16gf-ba3796d7", 54_278_536, 82.716, 96.196, resize=232),
        imagenet_entry(1, "regnet_x_16gf-2007eb11", 54_278_536, 80.058, 94.944),
    ),
    info(
        regnet_x_32gf,
        31.736,
        imagenet_entry(2, "regnet_x_32gf-6eb8fdc6", 107_811_560, 83.014, 96.288, resize=232),
        imagenet_entry(1, "regnet_x_32gf-9d47f8d0", 107_811_560, 80.622, 95.248),
    ),
    info(
        regnet_y_400mf,
        0.402,
        imagenet_entry(2, "regnet_y_400mf-e6988f5f", 4_344_144, 75.804, 92.742, resize=232),
        imagenet_entry(1, "regnet_y_400mf-c65dace8", 4_344_144, 74.046, 91.716),
    ),
    info(
        regnet_y_800mf,
        0.834,
        imagenet_entry(2, "regnet_y_800mf-58fc7688", 6_432_512, 78.828, 94.502, resize=232),
        imagenet_entry(1, "regnet_y_800mf-1b27b58c", 6_432_512, 76.420, 93.136),
    ),
    info(
        regnet_y_1_6gf,
        1.612,
        imagenet_entry(2, "regnet_y_1_6gf-0d7bc02a", 11_202_430, 80.876, 95.444, resize=232),
        imagenet_entry(1, "regnet_y_1_6gf-b11a554e", 11_202_430, 77.950, 93.966),
    ),
    info(
        regnet_y_3_2gf,
        3.176,
        imagenet_entry(2, "regnet_y_3_2gf-9180c971", 19_436_338, 81.982, 95.972, resize=232),
        imagenet_entry(1, "regnet_y_3_2gf-b5a9779c", 19_436_338, 78.948, 94.576),
    ),
    info(
        regnet_y_8gf,
        8.473,
        imagenet_entry(2, "regnet_y_8gf-dc2b1b54", 39_381_472, 82.828, 96.330, resize=232),
        imagenet_entry(1, "regnet_y_8gf-d0d0e4a8", 39_381_472, 80.032, 95.048),
    ),
    info(
        regnet_y_16gf,
        15.912,
        imagenet_entry(2, "regnet_y_16gf-3e4a00f9", 83_590_140, 82.886, 96.328, resize=232),
        imagenet_entry(1, "regnet_y_16gf-9e6ed7dd", 83_590_140, 80.424, 95.240),
        swag_entry("E2E", "regnet_y_16gf_swag-43afe44d", 83_590_140, 86.012, 98.054, resize=384, crop=384),
        swag_entry("LINEAR", "regnet_y_16gf_lc_swag-f3ec0043", 83_590_140, 83.976, 97.244, resize=224),
    ),
    info(
        regnet_y_32gf,
        32.28,
        imagenet_entry(2, "regnet_y_32gf-8db6d4b5", 145_046_770, 83.368, 96.498, resize=232),
        imagenet_entry(1, "regnet_y_32gf-4dee3f7a", 145_046_770, 80.878, 95.340),
        swag_entry("E2E", "regnet_y_32gf_swag-04fdfa75", 145_046_770, 86.838, 98.362, resize=384, crop=384),
        swag_entry("LINEAR", "regnet_y_32gf_lc_swag-e1583746", 145_046_770, 84.622, 97.480, resize=224),
    ),
    info(
        regnet_y_128gf,
        374.57,
        swag_entry("E2E", "regnet_y_128gf_swag-c8ce3e52", 644_812_894, 88.228, 98.682, resize=384, crop=384),
        swag_entry("LINEAR", "regnet_y_128gf_lc_swag-cbe8ce12", 644_812_894, 86.068, 97.844, resize=224),
    ),
)
