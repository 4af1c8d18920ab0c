"""ShuffleNetV2: Ma et al. 2018, "ShuffleNet V2: practical guidelines for efficient CNN architecture design"."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from ...core import Tensor
from ...core import functions as F
from ...core.layers import BatchNorm2d, Conv2d, Linear, Module, ReLU, Sequential
from ...weights.torchvision import imagenet_entry
from ..categories import Categories
from ..model import Classifier
from .blocks import classifier_info


def interleave(a: Tensor, b: Tensor) -> Tensor:
    """The channels a0, b0, a1, b1, ...: two halves joined and shuffled (section 3.2).

    >>> import numpy as np

    >>> interleave(Tensor(np.zeros((1, 2, 1, 1))), Tensor(np.ones((1, 2, 1, 1)))).numpy().ravel()
    array([0., 1., 0., 1.])
    """
    n, c, h, w = a.shape
    last = [F.reshape(F.transpose(x, (0, 2, 3, 1)), (n, h, w, c, 1)) for x in (a, b)]  # as it lies in memory
    return F.transpose(F.reshape(F.concatenate(last, 4), (n, h, w, 2 * c)), (0, 3, 1, 2))


class ShuffleUnit(Module):
    """Half of the channels pass, half are computed; with a stride both branches see all (figure 3, c and d)."""

    def __init__(self, in_channels: int, channels: int, stride: int) -> None:
        half = channels // 2
        if stride > 1:
            self.branch1 = Sequential(
                Conv2d(in_channels, in_channels, 3, stride, 1, groups=in_channels, bias=False),
                BatchNorm2d(in_channels),
                Conv2d(in_channels, half, 1, bias=False),
                BatchNorm2d(half),
                ReLU(),
            )
        self.branch2 = Sequential(
            Conv2d(in_channels if stride > 1 else half, half, 1, bias=False),
            BatchNorm2d(half),
            ReLU(),
            Conv2d(half, half, 3, stride, 1, groups=half, bias=False),
            BatchNorm2d(half),
            Conv2d(half, half, 1, bias=False),
            BatchNorm2d(half),
            ReLU(),
        )

    def forward(self, x: Tensor) -> Tensor:
        if hasattr(self, "branch1"):
            return interleave(self.branch1(x), self.branch2(x))
        passed, computed = F.split(x, 2, 1)
        return interleave(passed, self.branch2(computed))


class ShuffleNetV2(Module):
    """The convolutional part: x (n, 3, height, width) to the last maps of the strides 4, 8, 16 and 32.

    ``widths`` are the channels of the stem, the three stages and the last 1x1 convolution, whose map is the last.

    >>> import numpy as np

    >>> [m.shape[1:] for m in ShuffleNetV2((24, 48, 96, 192, 1024))(Tensor(np.zeros((1, 3, 64, 64), np.float32)))]
    [(24, 16, 16), (48, 8, 8), (96, 4, 4), (1024, 2, 2)]
    """

    strides = (4, 8, 16, 32)

    def __init__(self, widths: Sequence[int], depths: Sequence[int] = (4, 8, 4)) -> None:
        stem, *stages, last = widths
        self.conv1 = Sequential(Conv2d(3, stem, 3, 2, 1, bias=False), BatchNorm2d(stem), ReLU())
        channels = stem
        for i, (width, depth) in enumerate(zip(stages, depths)):
            units = [ShuffleUnit(channels, width, 2), *(ShuffleUnit(width, width, 1) for _ in range(depth - 1))]
            setattr(self, f"stage{i + 2}", Sequential(*units))
            channels = width
        self.conv5 = Sequential(Conv2d(channels, last, 1, bias=False), BatchNorm2d(last), ReLU())
        self.channels = (stem, stages[0], stages[1], last)

    def maps(self, x: Tensor) -> list[Tensor]:
        """The last maps of the strides 4, 8, 16 and 32."""
        maps = [F.max_pool2d(self.conv1(x), 3, 2, 1)]
        for stage in (self.stage2, self.stage3, self.stage4):  # type: ignore[attr-defined]
            maps.append(stage(maps[-1]))
        return [*maps[:-1], self.conv5(maps[-1])]

    def forward(self, x: Tensor) -> list[Tensor]:
        return self.maps(x)


class ShuffleNetV2Classifier(ShuffleNetV2, Classifier):
    """ShuffleNetV2 with its classifier: x (n, 3, height, width) to logits (n, classes)."""

    class_layers = ("fc.",)

    def __init__(self, widths: Sequence[int], categories: Categories) -> None:
        super().__init__(widths)
        self.categories = categories
        self.fc = Linear(widths[-1], categories.outputs)

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return self.fc(F.mean(self.maps(x)[-1], (2, 3)))  # type: ignore[no-any-return]


def shufflenet_v2_x0_5(categories: Categories) -> ShuffleNetV2Classifier:
    """ShuffleNetV2 at half width (table 5)."""
    return ShuffleNetV2Classifier((24, 48, 96, 192, 1024), categories)


def shufflenet_v2_x1_0(categories: Categories) -> ShuffleNetV2Classifier:
    """ShuffleNetV2 (table 5)."""
    return ShuffleNetV2Classifier((24, 116, 232, 464, 1024), categories)


def shufflenet_v2_x1_5(categories: Categories) -> ShuffleNetV2Classifier:
    """ShuffleNetV2 at 1.5 times the width (table 5)."""
    return ShuffleNetV2Classifier((24, 176, 352, 704, 1024), categories)


def shufflenet_v2_x2_0(categories: Categories) -> ShuffleNetV2Classifier:
    """ShuffleNetV2 at twice the width (table 5)."""
    return ShuffleNetV2Classifier((24, 244, 488, 976, 2048), categories)


info = partial(
    classifier_info, "Ma et al. 2018, ShuffleNet V2: practical guidelines for efficient CNN architecture design"
)
MODELS = (
    info(shufflenet_v2_x0_5, 0.04, imagenet_entry(1, "shufflenetv2_x0.5-f707e7126e", 1_366_792, 60.552, 81.746)),
    info(shufflenet_v2_x1_0, 0.145, imagenet_entry(1, "shufflenetv2_x1-5666bf0f80", 2_278_604, 69.362, 88.316)),
    info(
        shufflenet_v2_x1_5,
        0.296,
        imagenet_entry(1, "shufflenetv2_x1_5-3c479a10", 3_503_624, 72.996, 91.086, resize=232),
    ),
    info(
        shufflenet_v2_x2_0,
        0.583,
        imagenet_entry(1, "shufflenetv2_x2_0-8be3c8ee", 7_393_996, 76.230, 93.006, resize=232),
    ),
)
