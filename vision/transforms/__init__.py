"""Augmentation: transforms of a sample's image, boxes, masks, keypoints and label map together."""

from .base import Compose, MultiSample, Others, RandomApply, SingleSample, Transform
from .contact_sheet import contact_sheet
from .geometric import (
    COCO_KEYPOINT_PAIRS,
    AreaCrop,
    Crop,
    HorizontalFlip,
    IoUCrop,
    Letterbox,
    Pad,
    RandomAffine,
    Resize,
    ResizeLongSide,
    ResizeShortSide,
    ScaleJitter,
    ZoomOut,
)
from .mixing import CopyPaste, MixUp, Mosaic
from .photometric import Blur, Cutout, HSVJitter, JPEGNoise, PhotometricDistort

__all__ = [
    "COCO_KEYPOINT_PAIRS",
    "AreaCrop",
    "Blur",
    "Compose",
    "CopyPaste",
    "Crop",
    "Cutout",
    "HSVJitter",
    "HorizontalFlip",
    "IoUCrop",
    "JPEGNoise",
    "Letterbox",
    "MixUp",
    "Mosaic",
    "MultiSample",
    "Others",
    "Pad",
    "PhotometricDistort",
    "RandomAffine",
    "RandomApply",
    "Resize",
    "ResizeLongSide",
    "ResizeShortSide",
    "ScaleJitter",
    "SingleSample",
    "Transform",
    "ZoomOut",
    "contact_sheet",
]
