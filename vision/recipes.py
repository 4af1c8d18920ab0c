"""How each family of models is fine-tuned: batch size, learning rate, augmentation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from .detection.darknet import Darknet
from .detection.nanodet import NanoDet
from .detection.ssd import SSD
from .detection.yolox import YOLOX
from .model import Classifier, Model, Segmenter
from .transforms import (
    AreaCrop,
    Compose,
    HorizontalFlip,
    HSVJitter,
    IoUCrop,
    Mosaic,
    PhotometricDistort,
    RandomAffine,
    RandomApply,
    ScaleJitter,
    Transform,
    ZoomOut,
)

Pairs = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Recipe:
    """Settings for AdamW that suit pretrained weights.

    ``lr`` belongs to ``batch_size`` and grows with the root of another one's ratio. ``augmentation`` makes the
    transform from the pairs of keypoints that a flip exchanges.
    """

    batch_size: int
    lr: float
    augmentation: Callable[[Pairs], Transform]
    weight_decay: float = 0.05
    clip: float = 10.0


def flip_and_colour(pairs: Pairs) -> Transform:
    return Compose([HorizontalFlip(0.5, pairs), RandomApply(PhotometricDistort(), 0.5)])


def shift_and_scale(pairs: Pairs) -> Transform:
    """NanoDet's (config/legacy_v0.x_configs/nanodet-g.yml), with a third of its movement and of its change of colour.

    All of it is for hundreds of epochs; in eight epochs on 205 pictures less gave the higher AP.
    """
    move = RandomAffine(degrees=0, translate=0.1, scale=(0.85, 1.2), shear=0)
    colour = PhotometricDistort(contrast=(0.8, 1.2), saturation=(0.8, 1.2))
    return Compose([move, HorizontalFlip(0.5, pairs), RandomApply(colour, 0.5)])


def mosaic_and_shift(pairs: Pairs, size: tuple[int, int]) -> Transform:
    """YOLOX's for its small models (exps/default/yolox_nano.py), but half of the pictures stay alone and unturned."""
    mosaic = Compose([Mosaic(size), RandomAffine(degrees=0, scale=(1.0, 2.0), shear=0)])
    move = RandomAffine(degrees=0, scale=(0.75, 1.3), shear=0)
    return Compose([RandomApply(mosaic, 0.5), move, HorizontalFlip(0.5, pairs), HSVJitter()])


def crop_and_zoom(pairs: Pairs) -> Transform:
    """Liu et al. 2016, "SSD", sections 2.2 and 3.6."""
    zoom = RandomApply(ZoomOut(), 0.5)
    return Compose([PhotometricDistort(), zoom, IoUCrop(), HorizontalFlip(0.5, pairs)])


def jitter_and_crop(pairs: Pairs) -> Transform:
    return Compose([ScaleJitter((480, 480), (0.5, 2.0)), HorizontalFlip(0.5, pairs), PhotometricDistort()])


def crop_and_colour(pairs: Pairs) -> Transform:
    """Szegedy et al. 2015, "Going Deeper with Convolutions", section 6, but with a quarter of the area at least."""
    return Compose([AreaCrop((0.25, 1.0)), HorizontalFlip(0.5, pairs), RandomApply(PhotometricDistort(), 0.5)])


def recipe(model: Model[Any]) -> Recipe:
    """The settings for a model's family."""
    if isinstance(model, NanoDet):
        return Recipe(4, 1e-3, shift_and_scale)
    if isinstance(model, YOLOX):
        return Recipe(8, 5e-4, partial(mosaic_and_shift, size=model.size))
    if isinstance(model, Darknet):
        return Recipe(8, 1e-3, partial(mosaic_and_shift, size=model.network.size))
    if isinstance(model, SSD):
        return Recipe(16, 1e-3, crop_and_zoom)
    if isinstance(model, Segmenter):
        return Recipe(4, 2e-4, jitter_and_crop)
    if isinstance(model, Classifier):
        return Recipe(32, 5e-4, crop_and_colour)
    return Recipe(2, 1e-4, flip_and_colour)  # R-CNNs, RetinaNet and FCOS, whose inputs are large
