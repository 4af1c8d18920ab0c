"""FCN: Long et al. 2015, "Fully convolutional networks for semantic segmentation", on a dilated ResNet."""

from __future__ import annotations

from ..categories import Categories
from .encoder_decoder import EncoderDecoder, FCNHead, dilated_resnet, segmenter_info


def _fcn(categories: Categories, *depths: int) -> EncoderDecoder:
    outputs = categories.outputs
    return EncoderDecoder(dilated_resnet(*depths), FCNHead(2048, outputs), FCNHead(1024, outputs), categories)


def fcn_resnet50(categories: Categories) -> EncoderDecoder:
    """FCN on a ResNet-50 of stride 8."""
    return _fcn(categories, 3, 4, 6, 3)


def fcn_resnet101(categories: Categories) -> EncoderDecoder:
    """FCN on a ResNet-101 of stride 8."""
    return _fcn(categories, 3, 4, 23, 3)


PAPER = "Long et al. 2015, Fully convolutional networks for semantic segmentation"
MODELS = (
    segmenter_info(fcn_resnet50, "fcn_resnet50_coco-1167a1af", 35_322_218, 60.5, 91.4, 152.717, PAPER),
    segmenter_info(fcn_resnet101, "fcn_resnet101_coco-7ecb50ca", 54_314_346, 63.7, 91.9, 232.738, PAPER),
)
