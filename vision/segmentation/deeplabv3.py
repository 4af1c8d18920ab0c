"""DeepLabv3: Chen et al. 2017, "Rethinking atrous convolution for semantic image segmentation"."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ...core import Tensor
from ...core import functions as F
from ...core.layers import AdaptiveAvgPool2d, Conv2d, Dropout, Module, ModuleList, ReLU, Sequential
from ..backbones.blocks import conv_norm_activation
from ..categories import Categories
from .encoder_decoder import EncoderDecoder, FCNHead, dilated_mobilenet, dilated_resnet, segmenter_info


class ImagePooling(Sequential):
    """The mean of the map through a 1x1 convolution, the same in every cell (section 3.3)."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__(AdaptiveAvgPool2d(1), *conv_norm_activation(in_channels, out_channels, 1, activation=ReLU()))

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        y = super().forward(x)
        return F.broadcast_to(y, (*y.shape[:2], *x.shape[2:]))


def atrous_convolution(in_channels: int, out_channels: int, rate: int) -> Sequential:
    """A dilated 3x3 convolution with its norm and ReLU."""
    return conv_norm_activation(in_channels, out_channels, 3, dilation=rate, activation=ReLU())


class ASPP(Module):
    """Atrous spatial pyramid pooling: convolutions of several dilations side by side (figure 5).

    ``atrous`` makes one of (in_channels, out_channels, dilation).
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        rates: Sequence[int] = (12, 24, 36),
        atrous: Callable[[int, int, int], Module] = atrous_convolution,
    ) -> None:
        branches: list[Module] = [conv_norm_activation(in_channels, out_channels, 1, activation=ReLU())]
        branches += [atrous(in_channels, out_channels, rate) for rate in rates]
        branches.append(ImagePooling(in_channels, out_channels))
        self.convs = ModuleList(branches)
        joined = conv_norm_activation(len(branches) * out_channels, out_channels, 1, activation=ReLU())
        self.project = Sequential(*joined, Dropout(0.5))

    def forward(self, x: Tensor) -> Tensor:
        return self.project(F.concatenate([branch(x) for branch in self.convs], 1))  # type: ignore[no-any-return]


class DeepLabHead(Sequential):
    """ASPP, a convolution, and logits for each cell."""

    def __init__(self, in_channels: int, classes: int) -> None:
        last = conv_norm_activation(256, 256, 3, activation=ReLU())
        super().__init__(ASPP(in_channels, 256), *last, Conv2d(256, classes, 1))


def _deeplabv3_resnet(categories: Categories, *depths: int) -> EncoderDecoder:
    outputs = categories.outputs
    return EncoderDecoder(dilated_resnet(*depths), DeepLabHead(2048, outputs), FCNHead(1024, outputs), categories)


def deeplabv3_resnet50(categories: Categories) -> EncoderDecoder:
    """DeepLabv3 on a ResNet-50 of stride 8."""
    return _deeplabv3_resnet(categories, 3, 4, 6, 3)


def deeplabv3_resnet101(categories: Categories) -> EncoderDecoder:
    """DeepLabv3 on a ResNet-101 of stride 8."""
    return _deeplabv3_resnet(categories, 3, 4, 23, 3)


def deeplabv3_mobilenet_v3_large(categories: Categories) -> EncoderDecoder:
    """DeepLabv3 on MobileNetV3-Large of stride 16."""
    outputs = categories.outputs
    return EncoderDecoder(dilated_mobilenet(), DeepLabHead(960, outputs), FCNHead(40, outputs), categories)


PAPER = "Chen et al. 2017, Rethinking atrous convolution for semantic image segmentation"
MODELS = (
    segmenter_info(deeplabv3_resnet50, "deeplabv3_resnet50_coco-cd0a2569", 42_004_074, 66.4, 92.4, 178.722, PAPER),
    segmenter_info(deeplabv3_resnet101, "deeplabv3_resnet101_coco-586e9e4e", 60_996_202, 67.4, 92.4, 258.743, PAPER),
    segmenter_info(
        deeplabv3_mobilenet_v3_large,
        "deeplabv3_mobilenet_v3_large-fc3c493d",
        11_029_328,
        60.3,
        91.2,
        10.452,
        PAPER + "; Howard et al. 2019, Searching for MobileNetV3",
    ),
)
