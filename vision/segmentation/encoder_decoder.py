"""What the fully convolutional segmenters have in common: a backbone, a head, and a second head for training."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...core import Tensor
from ...core.layers import BatchNorm2d, Conv2d, Dropout, Module, ReLU, Sequential
from ...weights.categories import VOC_20
from ...weights.torchvision import entry
from ..backbones.mobilenet_v3 import LARGE, MobileNetV3, Row
from ..backbones.resnet import Bottleneck, ResNet
from ..backbones.stages import Stages
from ..categories import Categories
from ..model import ModelInfo, Segmenter

NAMES = ("background", *VOC_20)


class EncoderDecoder(Segmenter):
    """A head on the backbone's last map; the auxiliary one, on the map before, sees only training.

    >>> from .fcn import fcn_resnet50
    >>> model = fcn_resnet50(Categories.plain(["sky", "sea"]))
    >>> model.aux_classifier[4].weight.shape
    (2, 256, 1, 1)
    """

    class_layers = ("classifier.4.", "aux_classifier.4.")

    def __init__(self, backbone: Module, classifier: Module, aux_classifier: Module, categories: Categories) -> None:
        self.backbone, self.classifier, self.aux_classifier = backbone, classifier, aux_classifier
        self.categories = categories

    def logits(self, x: Tensor) -> Tensor:
        """Logits (n, classes, h, w) at the size of the backbone's last map."""
        return self.classifier(self.backbone(x)[-1])  # type: ignore[no-any-return]

    def all_logits(self, x: Tensor) -> list[Tensor]:
        """The logits and those of the auxiliary head."""
        *_, before, last = self.backbone(x)
        return [self.classifier(last), self.aux_classifier(before)]


class FCNHead(Sequential):
    """A convolution to a quarter of the width, and logits for each cell (Long et al. 2015)."""

    def __init__(self, channels: int, classes: int) -> None:
        width = channels // 4
        convolution = Conv2d(channels, width, 3, padding=1, bias=False)
        super().__init__(convolution, BatchNorm2d(width), ReLU(), Dropout(0.1), Conv2d(width, classes, 1))


def dilated_resnet(*depths: int) -> ResNet:
    """A ResNet of stride 8: its last two stages are dilated instead of strided (Yu et al. 2017)."""
    return ResNet(Bottleneck, depths, dilations=(1, 1, 2, 4))


def dilated_mobilenet() -> Stages:
    """MobileNetV3-Large of stride 16, its last stage dilated, with the maps of stride 8 and 16."""
    last = (Row(*LARGE[12][:-1], dilation=2), *(Row(*row[:-1], dilation=2) for row in LARGE[13:]))
    body = MobileNetV3((*LARGE[:12], *last), at=(4, 16))
    return Stages(body.features, body.at, body.channels)


def segmenter_info(
    build: Callable[[Categories], Any],
    file: str,
    parameters: int,
    miou: float,
    accuracy: float,
    gflops: float,
    paper: str,
) -> ModelInfo:
    """The row of the zoo for a segmenter of torchvision, trained on the images of COCO with VOC's classes."""
    metrics = {"COCO val2017 (VOC classes)": {"mIoU": miou, "pixel accuracy": accuracy}}
    weights = entry("COCO_WITH_VOC_LABELS_V1", file, parameters, NAMES, metrics)
    return ModelInfo(build.__name__, "semantic segmentation", build, Categories.plain, (weights,), paper, gflops)
