"""Transforms that move pixels: flip, resizes, crops, paddings, affine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..sample import Sample
from .base import SingleSample, check_probability, check_range, check_size
from .geometry import GREY, Colour, flip, resize, warp, window

COCO_KEYPOINT_PAIRS = ((1, 2), (3, 4), (5, 6), (7, 8), (9, 10), (11, 12), (13, 14), (15, 16))
"""The left and right keypoints of COCO's 17, which a flip exchanges."""


@dataclass(frozen=True)
class HorizontalFlip(SingleSample):
    """Mirrors left and right with probability ``p``; ``keypoint_pairs`` are the keypoints that change roles.

    >>> sample = Sample(np.zeros((4, 8, 3), np.uint8), boxes=np.array([[0, 0, 2, 2]]))
    >>> HorizontalFlip(p=1)(sample, np.random.default_rng(0)).boxes.tolist()
    [[6.0, 0.0, 8.0, 2.0]]
    """

    p: float = 0.5
    keypoint_pairs: tuple[tuple[int, int], ...] = ()

    def __post_init__(self) -> None:
        check_probability(self, self.p)

    def apply(self, sample: Sample, rng: np.random.Generator) -> Sample:
        return flip(sample, self.keypoint_pairs) if rng.random() < self.p else sample


@dataclass(frozen=True)
class Resize(SingleSample):
    """Stretches to ``size`` (height, width), as SSD does.

    Bilinear without smoothing, the resize of the detectors at inference; ``antialias`` averages when shrinking.
    """

    size: tuple[int, int]
    antialias: bool = False

    def __post_init__(self) -> None:
        check_size(self, self.size)

    def apply(self, sample: Sample, rng: np.random.Generator) -> Sample:
        return resize(sample, self.size, self.antialias)


@dataclass(frozen=True)
class ResizeShortSide(SingleSample):
    """Scales so that the short side is ``short`` pixels, or less where the long side would pass ``longest``.

    One of several ``short`` is drawn for each sample: multi-scale training as in Faster R-CNN (Ren et al. 2015) and
    its descendants. Sides are rounded down.

    >>> sample = Sample(np.zeros((480, 640, 3), np.uint8))
    >>> ResizeShortSide((800,), longest=1333)(sample, np.random.default_rng(0)).size
    (800, 1066)
    """

    short: Sequence[int] = (640, 672, 704, 736, 768, 800)
    longest: int = 1333
    antialias: bool = False

    def __post_init__(self) -> None:
        if not self.short or not 1 <= min(self.short) <= max(self.short) <= self.longest:
            raise ValueError(f"ResizeShortSide: expected 1 <= short <= {self.longest} (longest), got {self.short}")

    def apply(self, sample: Sample, rng: np.random.Generator) -> Sample:
        short = int(rng.choice(np.asarray(self.short)))
        scale = min(short / min(sample.size), self.longest / max(sample.size))
        return resize(sample, _scaled(sample.size, scale), self.antialias)


@dataclass(frozen=True)
class ResizeLongSide(SingleSample):
    """Scales so that the long side is ``longest`` pixels, keeping the aspect ratio."""

    longest: int
    antialias: bool = False

    def __post_init__(self) -> None:
        check_size(self, (self.longest, self.longest))

    def apply(self, sample: Sample, rng: np.random.Generator) -> Sample:
        return resize(sample, _scaled(sample.size, self.longest / max(sample.size)), self.antialias)


@dataclass(frozen=True)
class Letterbox(SingleSample):
    """Fits the whole picture into ``size`` (height, width) keeping its aspect ratio, and pads the rest with ``fill``.

    ``centre`` puts the picture in the middle (YOLOv5), else at the top left (YOLOX).
    """

    size: tuple[int, int]
    fill: Colour = GREY
    centre: bool = True

    def __post_init__(self) -> None:
        check_size(self, self.size)

    def apply(self, sample: Sample, rng: np.random.Generator) -> Sample:
        sample = fit(sample, self.size)
        free = (self.size[0] - sample.size[0], self.size[1] - sample.size[1])
        top, left = (free[0] // 2, free[1] // 2) if self.centre else (0, 0)
        return window(sample, -top, -left, self.size, self.fill)


@dataclass(frozen=True)
class Pad(SingleSample):
    """Pads at the bottom and right up to ``size`` (height, width) and then to a multiple of ``divisor``."""

    size: tuple[int, int] = (1, 1)
    divisor: int = 1
    fill: Colour = GREY

    def __post_init__(self) -> None:
        check_size(self, self.size)
        if self.divisor < 1:
            raise ValueError(f"Pad: expected divisor >= 1, got {self.divisor}")

    def apply(self, sample: Sample, rng: np.random.Generator) -> Sample:
        height, width = (-(-max(a, b) // self.divisor) * self.divisor for a, b in zip(sample.size, self.size))
        return window(sample, 0, 0, (height, width), self.fill)


@dataclass(frozen=True)
class Crop(SingleSample):
    """A random crop of ``size`` (height, width); a side that is already smaller stays as it is (see `Pad`)."""

    size: tuple[int, int]

    def __post_init__(self) -> None:
        check_size(self, self.size)

    def apply(self, sample: Sample, rng: np.random.Generator) -> Sample:
        size = (min(self.size[0], sample.size[0]), min(self.size[1], sample.size[1]))
        return window(sample, *_random_corner(sample.size, size, rng), size)


@dataclass(frozen=True)
class AreaCrop(SingleSample):
    """Inception's crop for classification: a part of the picture, its share of the area and its shape drawn.

    Szegedy et al., "Going Deeper with Convolutions" (CVPR 2015), section 6: 8% to 100% of the area, width by height 3/4
    to 4/3. When ten of them do not fit into the picture it stays whole.
    """

    area: tuple[float, float] = (0.08, 1.0)
    aspect: tuple[float, float] = (3 / 4, 4 / 3)

    def __post_init__(self) -> None:
        check_range(self, 1e-3, area=self.area, aspect=self.aspect)
        if self.area[1] > 1:
            raise ValueError(f"AreaCrop: expected an area of at most 1, got {self.area}")

    def apply(self, sample: Sample, rng: np.random.Generator) -> Sample:
        for _ in range(10):
            area, aspect = rng.uniform(*self.area) * np.prod(sample.size), np.exp(rng.uniform(*np.log(self.aspect)))
            size = round(float(np.sqrt(area / aspect))), round(float(np.sqrt(area * aspect)))
            if all(1 <= side <= whole for side, whole in zip(size, sample.size)):
                return window(sample, *_random_corner(sample.size, size, rng), size)
        return sample


@dataclass(frozen=True)
class ScaleJitter(SingleSample):
    """Large-scale jitter: scales the fitted picture by a random factor, then crops or pads it to ``size``.

    Ghiasi et al., "Simple Copy-Paste is a Strong Data Augmentation Method for Instance Segmentation" (CVPR 2021), 3.1:
    factors 0.1 to 2 are its large jitter, 0.8 to 1.25 the standard one. The crop lies at random, the padding at the
    bottom and right.
    """

    size: tuple[int, int]
    scale: tuple[float, float] = (0.1, 2.0)
    fill: Colour = GREY

    def __post_init__(self) -> None:
        check_size(self, self.size)
        check_range(self, 1e-3, scale=self.scale)

    def apply(self, sample: Sample, rng: np.random.Generator) -> Sample:
        scaled = fit(sample, self.size, rng.uniform(*self.scale))
        top, left = _random_corner(scaled.size, self.size, rng)
        return window(scaled, top, left, self.size, self.fill)


@dataclass(frozen=True)
class IoUCrop(SingleSample):
    """SSD's crop: random patches until one overlaps an object by the IoU drawn; the aspect ratio is free.

    Liu et al., "SSD: Single Shot MultiBox Detector" (ECCV 2016), 2.2: with equal chance the whole picture, or a patch
    of 0.3 to 1 of each side and aspect ratio 0.5 to 2 whose IoU with some object is at least one of ``min_ious`` (0:
    any patch that holds an object's centre). Only objects whose centre lies in the patch stay. When ``trials`` patches
    fail, the next option is tried. Pictures without objects stay whole; ignored objects (crowds) do not count.
    """

    min_ious: tuple[float, ...] = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9)
    scale: tuple[float, float] = (0.3, 1.0)
    aspect: tuple[float, float] = (0.5, 2.0)
    trials: int = 40

    def __post_init__(self) -> None:
        check_range(self, 1e-3, scale=self.scale, aspect=self.aspect)
        if self.scale[1] > 1:
            raise ValueError(f"IoUCrop: expected scale of at most 1, got {self.scale}")

    def apply(self, sample: Sample, rng: np.random.Generator) -> Sample:
        if not len(sample):
            return sample
        for option in rng.permutation(len(self.min_ious) + 1):
            if option == len(self.min_ious):
                return sample
            for _ in range(self.trials):
                cropped = self._attempt(sample, self.min_ious[option], rng)
                if cropped is not None:
                    return cropped
        return sample

    def _attempt(self, sample: Sample, min_iou: float, rng: np.random.Generator) -> Sample | None:
        boxes = sample.boxes
        height, width = (max(1, int(side * rng.uniform(*self.scale))) for side in sample.size)
        top, left = _random_corner(sample.size, (height, width), rng)
        if boxes is None or not self.aspect[0] <= width / height <= self.aspect[1]:
            return None
        patch = np.array([left, top, left + width, top + height], np.float32)
        centres = (boxes[:, :2] + boxes[:, 2:]) / 2
        inside = ((centres > patch[:2]) & (centres < patch[2:])).all(axis=1)
        overlap = np.clip(np.minimum(boxes[:, 2:], patch[2:]) - np.maximum(boxes[:, :2], patch[:2]), 0, None).prod(1)
        ious = overlap / (np.prod(boxes[:, 2:] - boxes[:, :2], axis=1) + width * height - overlap)
        wanted = inside & ~sample.ignore if sample.ignore is not None else inside
        if not wanted.any() or ious[wanted].max() < min_iou:
            return None
        return window(sample.select(inside), top, left, (height, width))


@dataclass(frozen=True)
class ZoomOut(SingleSample):
    """Puts the picture at random on a canvas ``side`` times as high and wide: SSD's expansion, for small objects.

    Liu et al. (ECCV 2016), 3.6: up to 16 times the area, filled with the mean colour, for half of the pictures (use
    `RandomApply`).
    """

    side: tuple[float, float] = (1.0, 4.0)
    fill: Colour = (123, 117, 104)

    def __post_init__(self) -> None:
        check_range(self, 1.0, side=self.side)

    def apply(self, sample: Sample, rng: np.random.Generator) -> Sample:
        factor = rng.uniform(*self.side)
        size = (int(sample.size[0] * factor), int(sample.size[1] * factor))
        top, left = _random_corner(size, sample.size, rng)
        return window(sample, -top, -left, size, self.fill)


@dataclass(frozen=True)
class RandomAffine(SingleSample):
    """Rotates, scales, shears and shifts around the centre, onto a picture of ``size`` (default: as before).

    ``degrees`` and ``shear`` are the largest angles in degrees, ``translate`` the largest shift in parts of the side.
    The defaults are YOLOX's (Ge et al. 2021), which applies it to a `Mosaic` of twice the size. Boxes are those of the
    turned masks where there are masks, else of the box's four turned corners, which are wider than the object.
    """

    degrees: float = 10.0
    translate: float = 0.1
    scale: tuple[float, float] = (0.1, 2.0)
    shear: float = 2.0
    size: tuple[int, int] | None = None
    fill: Colour = GREY

    def __post_init__(self) -> None:
        check_range(self, 1e-3, scale=self.scale)
        if min(self.degrees, self.translate, self.shear) < 0 or self.shear >= 90:
            raise ValueError(f"RandomAffine: expected degrees, translate >= 0 and shear in [0, 90), got {self}")

    def apply(self, sample: Sample, rng: np.random.Generator) -> Sample:
        size = self.size or sample.size
        angle = np.deg2rad(rng.uniform(-self.degrees, self.degrees))
        scale = rng.uniform(*self.scale)
        shear_x, shear_y = np.tan(np.deg2rad(rng.uniform(-self.shear, self.shear, 2)))
        shift = rng.uniform(-self.translate, self.translate, 2) * [size[1], size[0]]
        turn = scale * np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
        linear = np.array([[1, shear_x], [shear_y, 1]]) @ turn
        old, new = (np.array([w / 2, h / 2]) for h, w in (sample.size, size))
        return warp(sample, np.column_stack([linear, new + shift - linear @ old]), size, self.fill)


def fit(sample: Sample, size: tuple[int, int], scale: float = 1.0) -> Sample:
    """Scales a sample, aspect ratio kept, to ``scale`` times the largest size that fits into (height, width)."""
    return resize(sample, _scaled(sample.size, scale * min(size[0] / sample.size[0], size[1] / sample.size[1])))


def _scaled(size: tuple[int, int], scale: float) -> tuple[int, int]:
    # The hair's breadth keeps an exact ratio (640 * (320 / 640)) from being rounded down to 319.
    return max(1, int(size[0] * scale + 1e-6)), max(1, int(size[1] * scale + 1e-6))


def _random_corner(outer: tuple[int, int], inner: tuple[int, int], rng: np.random.Generator) -> tuple[int, int]:
    """(top, left) of an inner picture at random in an outer one; 0 along a side on which it does not fit."""
    top, left = (int(rng.integers(max(o - i, 0) + 1)) for o, i in zip(outer, inner))
    return top, left
