"""PSPNet: Zhao et al. 2017, "Pyramid scene parsing network", as in ChainerCV."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product

import cv2
import numpy as np

from ...core import Tensor
from ...core import functions as F
from ...core.layers import Conv2d, Dropout, MaxPool2d, Module, ModuleList, ReLU, Sequential, init
from ...core.plan import planned
from ...weights import chainer
from ...weights.entry import WeightsEntry
from ..backbones.blocks import Norm, conv_norm_activation, initialise
from ..backbones.chainercv_resnet import CHAINER_NORM, DEPTHS_50, DEPTHS_101, resnet_rules
from ..backbones.resnet import Bottleneck, ResNet
from ..categories import Categories
from ..label_sets import ADE20K, CITYSCAPES
from ..model import ModelInfo
from .averaging import AveragingSegmenter

BINS = (6, 3, 2, 1)


class DeepStemResNet(ResNet):
    """A ResNet of stride 8 that begins with three 3x3 convolutions and 128 channels.

    >>> DeepStemResNet((1, 1, 1, 1))(Tensor(np.zeros((1, 3, 33, 49), np.float32)))[-1].shape
    (1, 2048, 5, 7)
    """

    stem_channels = 128

    def __init__(self, depths: Sequence[int], norm: Norm = CHAINER_NORM) -> None:
        super().__init__(Bottleneck, depths, norm, (1, 1, 2, 4))
        self.conv1, self.bn1 = Conv2d(3, 64, 3, 2, 1, bias=False), norm(64)
        self.conv2, self.bn2 = Conv2d(64, 64, 3, padding=1, bias=False), norm(64)
        self.conv3, self.bn3 = Conv2d(64, 128, 3, padding=1, bias=False), norm(128)
        self.maxpool = MaxPool2d(3, 2, 1, ceil_mode=True)
        for layer in (self.layer3, self.layer4):  # type: ignore[attr-defined]
            layer[0].conv2.spec = layer[1].conv2.spec if len(layer) > 1 else layer[0].conv2.spec
        initialise(self, Conv2d, init.he_normal)

    def stem(self, x: Tensor) -> Tensor:
        y = self.conv2.fused(super().stem(x), self.bn2, self.relu)
        return self.conv3.fused(y, self.bn3, self.relu)


class PyramidPooling(Module):
    """A map beside the means of its parts in grids of several sizes, each through a convolution (figure 3c)."""

    def __init__(self, channels: int, norm: Norm) -> None:
        width = channels // len(BINS)
        self.stages = ModuleList([conv_norm_activation(channels, width, 1, norm=norm, activation=ReLU()) for _ in BINS])

    def forward(self, x: Tensor, size: Sequence[int]) -> Tensor:
        """Of x (n, channels, h, w), made of an input of ``size`` (height, width), (n, 2 * channels, h, w)."""
        maps = [x]
        for stage, bins in zip(self.stages, BINS):
            kernel = max(1, size[0] // 8 // bins), max(1, size[1] // 8 // bins)
            pooled = stage(F.avg_pool2d(x, kernel))
            maps.append(F.resize(pooled, x.shape[2:], align_corners=True))  # type: ignore[arg-type]
        return F.concatenate(maps, 1)


@dataclass(frozen=True)
class TilePreset:
    """Preprocessing for segmentation: tiles of ``size`` (height, width) that overlap by a third, or all in one.

    Photos of which no side is longer than a tile are set into the middle of one. Each tile is seen as it is and
    mirrored, at each of ``scales``.
    """

    size: tuple[int, int] = (713, 713)
    scales: tuple[float, ...] = (1.0,)
    flip: bool = True
    mean: tuple[float, float, float] = (123.68 / 255, 116.779 / 255, 103.939 / 255)
    std: tuple[float, float, float] = (1 / 255, 1 / 255, 1 / 255)


class PSPNet(AveragingSegmenter):
    """A ResNet of stride 8, pyramid pooling and a head; ``auxiliary``, on the map before the last, sees only training.

    >>> model = PSPNet((1, 1, 1, 1), Categories.plain(["sky", "sea"])).eval()
    >>> model(Tensor(np.zeros((1, 3, 65, 65), np.float32))).shape
    (1, 2, 65, 65)
    """

    preset = TilePreset()
    class_layers = ("head.4.", "auxiliary.4.")
    training_layers = ("auxiliary.",)
    auxiliary_weight = 0.4

    def __init__(self, depths: Sequence[int], categories: Categories) -> None:
        self.backbone = DeepStemResNet(depths)
        self.pyramid = PyramidPooling(2048, CHAINER_NORM)
        first = conv_norm_activation(4096, 512, 3, norm=CHAINER_NORM, activation=ReLU())
        self.head = Sequential(*first, Dropout(0.1), Conv2d(512, categories.outputs, 1))
        self.auxiliary = self._auxiliary(categories)
        self.categories = categories

    @staticmethod
    def _auxiliary(categories: Categories) -> Sequential:
        first = conv_norm_activation(1024, 512, 3, norm=CHAINER_NORM, activation=ReLU())
        head = Sequential(*first, Dropout(0.1), Conv2d(512, categories.outputs, 3, padding=1))
        initialise(head, Conv2d, partial(init.he_normal, fan="in"))
        return head

    def take_shapes(self, state: Mapping[str, np.ndarray]) -> None:
        """Draw the auxiliary head's values where a file has none, as ChainerCV's have not."""
        if not any(name.startswith(self.training_layers) for name in state):
            self.auxiliary = self._auxiliary(self.categories)

    def logits(self, x: Tensor) -> Tensor:
        """Logits (n, classes, h, w) at an eighth of the input's size."""
        return self.head(self.pyramid(self.backbone(x)[-1], x.shape[2:]))  # type: ignore[no-any-return]

    def all_logits(self, x: Tensor) -> list[Tensor]:
        """The logits and those of the auxiliary head."""
        *_, before, last = self.backbone(x)
        return [self.head(self.pyramid(last, x.shape[2:])), self.auxiliary(before)]

    def probabilities(self, image: np.ndarray) -> np.ndarray:
        size = self.preset.size
        x = image - np.asarray(self.preset.mean, np.float32) * 255
        height, width = image.shape[:2]
        if max(height, width) <= max(size):
            return self._whole(x)
        total = np.zeros((self.categories.outputs, height, width), np.float32)
        count = np.zeros((height, width), np.float32)
        for rows, columns, inner in tiles((height, width), size):
            tile = np.zeros((*size, 3), np.float32)
            tile[inner] = x[rows, columns]
            total[:, rows, columns] += self._of_tile(tile)[(slice(None), *inner)]
            count[rows, columns] += 1
        return total / count

    def _whole(self, x: np.ndarray) -> np.ndarray:
        """Of an image that one tile holds, shrunk where one side is too long."""
        size, shape = self.preset.size, x.shape[:2]
        ratio = min(size[0] / shape[0], size[1] / shape[1], 1)
        height, width = max(1, int(shape[0] * ratio)), max(1, int(shape[1] * ratio))
        small = cv2.resize(x, (width, height)) if ratio < 1 else x
        top, left = (size[0] - height) // 2, (size[1] - width) // 2
        tile = np.zeros((*size, 3), np.float32)
        tile[top : top + height, left : left + width] = small
        return self.back_to_size(self._of_tile(tile)[:, top : top + height, left : left + width], shape)  # type: ignore[arg-type]

    def _of_tile(self, tile: np.ndarray) -> np.ndarray:
        """The mean probabilities (classes, *size) of a tile (*size, 3) and of its mirror image."""
        found = self._once(tile)
        return (found + self._once(tile[:, ::-1])[..., ::-1]) / 2 if self.preset.flip else found

    def _once(self, tile: np.ndarray) -> np.ndarray:
        x = Tensor(np.ascontiguousarray(tile[None]).transpose(0, 3, 1, 2))
        return F.softmax(self.resize_logits(planned(self, x, "logits"), self.preset.size), 1).numpy()[0]  # type: ignore[no-any-return]

    def back_to_size(self, probabilities: np.ndarray, size: tuple[int, int]) -> np.ndarray:
        return F.resize(Tensor(probabilities[None]), size, align_corners=True).numpy()[0]  # type: ignore[no-any-return]


def tiles(shape: Sequence[int], size: Sequence[int]) -> Iterator[tuple[slice, slice, tuple[slice, slice]]]:
    """Tiles of ``size`` that cover a ``shape`` evenly: their rows and columns, and where these are in the tile.

    >>> [(rows, columns) for rows, columns, _ in tiles((4, 9), (6, 6))]
    [(slice(0, 4, None), slice(0, 5, None)), (slice(0, 4, None), slice(3, 9, None))]
    """
    spans = []
    for length, side in zip(shape, size):
        stride = math.ceil(side * 2 / 3)
        count = max(math.ceil((length - side) / stride), 0) + 1  # one holds a side that is shorter than it
        first = -(side + stride * (count - 1) - length) // 2
        spans.append([(max(s, 0), min(s + side, length), s) for s in range(first, first + count * stride, stride)])
    for (top, bottom, y), (left, right, x) in product(*spans):
        yield slice(top, bottom), slice(left, right), (slice(top - y, bottom - y), slice(left - x, right - x))


def pspnet_resnet50(categories: Categories) -> PSPNet:
    """PSPNet on a ResNet-50."""
    return PSPNet(DEPTHS_50, categories)


def pspnet_resnet101(categories: Categories) -> PSPNet:
    """PSPNet on a ResNet-101."""
    return PSPNet(DEPTHS_101, categories)


RULES = [
    (r"^extractor\.conv1_(\d)\.conv\.", r"backbone.conv\1."),
    (r"^extractor\.conv1_(\d)\.bn\.", r"backbone.bn\1."),
    (r"^extractor\.", "backbone."),
    *resnet_rules(r"^backbone\."),
    (r"^ppm\.(\d)\.conv\.", r"pyramid.stages.\1.0."),
    (r"^ppm\.(\d)\.bn\.", r"pyramid.stages.\1.1."),
    (r"^head_conv1\.conv\.", "head.0."),
    (r"^head_conv1\.bn\.", "head.1."),
    (r"^head_conv2\.", "head.4."),
]


def _entries(depth: int, cityscapes: float, ade: float, parameters: Sequence[int]) -> list[WeightsEntry]:
    """The weights of Cityscapes and ADE20K: mean IoU, and numbers of parameters, the auxiliary head's included."""
    return [
        chainer.entry(
            "CITYSCAPES",
            f"pspnet_resnet{depth}_cityscapes_trained_2018_12_19",
            parameters[0],
            {"Cityscapes val": {"mIoU": cityscapes}},
            tuple(c.name for c in CITYSCAPES),
            settings={"size": (713, 713)},
        ),
        chainer.entry(
            "ADE20K",
            f"pspnet_resnet{depth}_ade20k_trained_2018_12_23",
            parameters[1],
            {"ADE20K val": {"mIoU": ade}},
            tuple(c.name for c in ADE20K),
            settings={"size": (473, 473)},
        ),
    ]


CONVERTED = chainer.entry(
    "CITYSCAPES_CONVERTED",
    "pspnet_resnet101_cityscapes_converted_2018_05_22",
    70_514_662,
    {"Cityscapes val": {"mIoU": 79.03}},
    tuple(c.name for c in CITYSCAPES),
    settings={"size": (713, 713)},
)


def _info(build: Callable[[Categories], PSPNet], gflops: float, *entries: WeightsEntry) -> ModelInfo:
    return ModelInfo(
        name=build.__name__,
        task="semantic segmentation",
        build=build,
        spread=Categories.plain,
        entries=entries,
        paper="Zhao et al. 2017, Pyramid scene parsing network",
        gflops=gflops,
        convert=chainer.converter(RULES),
    )


MODELS = (
    _info(pspnet_resnet50, 363.777, *_entries(50, 73.99, 34.97, (51_522_534, 52_193_516))),
    _info(pspnet_resnet101, 514.1, *_entries(101, 76.01, 36.55, (70_514_662, 71_185_644)), CONVERTED),
)
