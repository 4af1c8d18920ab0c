"""Transforms that make one sample of several: mosaic, mixup, copy-paste.

An annotation (masks, keypoints, label map) survives mixing only when every sample that has objects, or for label maps
every sample, carries it. The class of the whole image has no meaning any more and becomes None; id, source and
``extra`` are those of the first sample.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import cv2
import numpy as np

from ..sample import Sample
from .base import MultiSample, Others, check_range, check_size
from .geometric import ScaleJitter, fit
from .geometry import GREY, UNANNOTATED, Colour, flip, keep_visible, mask_areas, mask_boxes, window
from .photometric import hide_keypoints


@dataclass(frozen=True)
class Mosaic(MultiSample):
    """Four pictures around a random centre on a canvas of ``size`` (height, width), each fitted into half of it.

    Bochkovskiy et al., "YOLOv4" (2020), 3.3. The centre lies between a quarter and three quarters of each side; what
    leaves the canvas is cut. As in YOLOX, ``Mosaic((2 * s, 2 * s))`` followed by ``RandomAffine(size=(s, s))``.
    """

    size: tuple[int, int]
    fill: Colour = GREY

    def __post_init__(self) -> None:
        check_size(self, self.size)

    def mix(self, sample: Sample, rng: np.random.Generator, others: Others) -> Sample:
        height, width = self.size
        y, x = (int(rng.uniform(side / 4, 3 * side / 4)) for side in self.size)
        half = (max(1, height // 2), max(1, width // 2))
        pieces = [fit(each, half) for each in (sample, others(), others(), others())]
        rows, columns = (slice(0, y), slice(y, height)), (slice(0, x), slice(x, width))
        image = np.empty((height, width, 3), np.uint8)
        placed = []
        for i, piece in enumerate(pieces):
            # Each picture touches the centre with the corner that faces it.
            top = piece.size[0] - y if i < 2 else -y
            left = piece.size[1] - x if i % 2 == 0 else -x
            placed.append(window(piece, top, left, self.size, self.fill))
            image[rows[i // 2], columns[i % 2]] = placed[-1].image[rows[i // 2], columns[i % 2]]
        semantics = [p.semantic for p in placed if p.semantic is not None]
        semantic = None
        if len(semantics) == len(placed):
            semantic = semantics[0].copy()
            for i, each in enumerate(semantics):
                semantic[rows[i // 2], columns[i % 2]] = each[rows[i // 2], columns[i % 2]]
        return _join(placed, image, semantic)


@dataclass(frozen=True)
class MixUp(MultiSample):
    """Blends in another picture, its size jittered by ``scale`` and mirrored half of the time; all objects count.

    Zhang et al., "Bag of Freebies for Training Object Detection Neural Networks" (2019), 3.1, with YOLOX's constant
    ``weight`` (the part of the first picture). The label map is 255 where the two lie over each other.
    """

    scale: tuple[float, float] = (0.5, 1.5)
    weight: float = 0.5
    fill: Colour = GREY

    def __post_init__(self) -> None:
        check_range(self, 1e-3, scale=self.scale)
        check_range(self, weight=(self.weight, 1.0))

    def mix(self, sample: Sample, rng: np.random.Generator, others: Others) -> Sample:
        if self.weight == 1:
            return sample
        other = ScaleJitter(sample.size, self.scale, self.fill)(others(), rng)
        if rng.random() < 0.5:
            other = flip(other)
        image = cv2.addWeighted(sample.image, self.weight, other.image, 1 - self.weight, 0)
        semantic = None if sample.semantic is None else np.full_like(sample.semantic, UNANNOTATED)
        return _join([sample, other], image, semantic)


@dataclass(frozen=True)
class CopyPaste(MultiSample):
    """Pastes a random part of another picture's objects onto this one, by their masks.

    Ghiasi et al., "Simple Copy-Paste is a Strong Data Augmentation Method for Instance Segmentation" (CVPR 2021), with
    its standard scale jitter of the other picture and without blending, which it found no better. Objects underneath
    lose the covered pixels of their masks and keep the box of the rest; crowds are not pasted. Raises ValueError,
    naming the sample, where objects have no masks.
    """

    scale: tuple[float, float] = (0.8, 1.25)

    def __post_init__(self) -> None:
        check_range(self, 1e-3, scale=self.scale)

    def mix(self, sample: Sample, rng: np.random.Generator, others: Others) -> Sample:
        other = ScaleJitter(sample.size, self.scale)(others(), rng)
        if rng.random() < 0.5:
            other = flip(other)
        for each in (sample, other):
            if len(each) and each.masks is None:
                raise ValueError(f"CopyPaste: expected objects with masks, got none in {each.source or each.image_id}")
        if other.masks is None or other.ignore is None or not len(other):
            return sample
        chosen = (rng.random(len(other)) < 0.5) & ~other.ignore & (mask_areas(other.masks) > 0)
        pasted = other.select(chosen)
        if pasted.masks is None or not len(pasted):
            return sample
        covered = np.logical_or.reduce(pasted.masks, axis=0)
        image = np.where(covered[..., None], other.image, sample.image)
        semantic = None
        if sample.semantic is not None and other.semantic is not None:
            semantic = np.where(covered, other.semantic, sample.semantic)
        return _join([_cover(sample, covered), pasted], image, semantic)


def _cover(sample: Sample, covered: np.ndarray) -> Sample:
    """The sample after something was laid over its pixels ``covered``."""
    if sample.masks is None or sample.boxes is None:
        return sample
    before, masks = mask_areas(sample.masks), sample.masks & ~covered
    after = mask_areas(masks)
    touched = after < before
    boxes = sample.boxes.copy()
    boxes[touched] = mask_boxes(masks[touched])
    under = replace(sample, boxes=boxes, masks=masks, keypoints=hide_keypoints(sample.keypoints, covered))
    return keep_visible(under, np.where(before > 0, after / np.maximum(before, 1), 1))


def _join(parts: Sequence[Sample], image: np.ndarray, semantic: np.ndarray | None) -> Sample:
    """The objects of samples of one size on the picture made of them."""
    fields: dict[str, Any] = {}
    populated = [part for part in parts if len(part)] or [parts[0]]
    for name in ("boxes", "labels", "ignore", "masks", "keypoints"):
        values = [getattr(part, name) for part in populated]
        fields[name] = None if any(value is None for value in values) else np.concatenate(values)
    return replace(parts[0], image=image, semantic=semantic, label=None, **fields)
