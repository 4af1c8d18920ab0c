"""The four movements every geometric transform is made of: flip, resize, window and warp.

Coordinates are continuous: pixel column i covers [i, i + 1), so an image of width w spans [0, w] and a flip maps x to
w - x, for boxes and keypoints alike.

**What happens to an object that is cut, shrunk or covered** (`keep_visible`, the one rule of all transforms):

- its box becomes the bounding box of what is left of its mask; without a mask it is clipped to the image;
- it is dropped when less than `MIN_VISIBLE` of its area (mask, else box) is left, or its box has a side under
  `MIN_SIDE` pixel. A tenth is what YOLOv5 and YOLOX keep after mosaic and affine;
- a keypoint outside the image gets visibility 0 and the coordinates (0, 0), as in COCO.

New pixels are ``fill`` in the image and 255 (not annotated) in the label map.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import cv2
import numpy as np

from ..sample import Sample

MIN_VISIBLE = 0.1
MIN_SIDE = 1.0
GREY = (114, 114, 114)  # the padding of YOLOX and YOLOv5, near the mean of natural images
UNANNOTATED = 255

Colour = tuple[int, int, int]


def keep_visible(sample: Sample, fraction: np.ndarray) -> Sample:
    """Drops the objects of which too little is left; ``fraction`` (n,) is the part of the area that is left."""
    if sample.boxes is None:
        return sample
    sides = sample.boxes[:, 2:] - sample.boxes[:, :2]
    keep = (fraction >= MIN_VISIBLE) & (sides >= MIN_SIDE).all(axis=1)
    return sample if keep.all() else sample.select(keep)


def mask_boxes(masks: np.ndarray) -> np.ndarray:
    """(n, 4) float32 bounding boxes of (n, height, width) masks; zeros where a mask is empty.

    >>> mask_boxes(np.eye(4, dtype=bool)[None, 1:3]).tolist()
    [[1.0, 0.0, 3.0, 2.0]]
    """
    boxes = np.zeros((len(masks), 4), np.float32)
    for box, mask in zip(boxes, masks):
        x, y, width, height = cv2.boundingRect(mask.view(np.uint8))
        box[:] = x, y, x + width, y + height
    return boxes


def mask_areas(masks: np.ndarray) -> np.ndarray:
    """(n,) float64 number of pixels of each mask."""
    return np.array([cv2.countNonZero(mask.view(np.uint8)) for mask in masks], np.float64)


def flip(sample: Sample, keypoint_pairs: tuple[tuple[int, int], ...] = ()) -> Sample:
    """Mirrors left and right; ``keypoint_pairs`` lists the keypoints that change roles (left eye, right eye)."""
    width = sample.size[1]
    fields: dict[str, Any] = {"image": np.ascontiguousarray(sample.image[:, ::-1])}
    if sample.boxes is not None:
        fields["boxes"] = np.stack(
            [width - sample.boxes[:, 2], sample.boxes[:, 1], width - sample.boxes[:, 0], sample.boxes[:, 3]], axis=1
        )
    if sample.masks is not None:
        fields["masks"] = np.ascontiguousarray(sample.masks[:, :, ::-1])
    if sample.semantic is not None:
        fields["semantic"] = np.ascontiguousarray(sample.semantic[:, ::-1])
    if sample.keypoints is not None:
        order = list(range(sample.keypoints.shape[1]))
        for left, right in keypoint_pairs:
            order[left], order[right] = right, left
        points = sample.keypoints[:, order]
        points[..., 0] = np.where(points[..., 2] > 0, width - points[..., 0], points[..., 0])
        fields["keypoints"] = points
    return replace(sample, **fields)


def resize(sample: Sample, size: tuple[int, int], antialias: bool = False) -> Sample:
    """Stretches to (height, width): bilinear, or the mean over the covered pixels where ``antialias`` and shrinking."""
    if size == sample.size:
        return sample
    shape = (size[1], size[0])
    shrinks = size[0] < sample.size[0] and size[1] < sample.size[1]
    interpolation = cv2.INTER_AREA if antialias and shrinks else cv2.INTER_LINEAR
    fields: dict[str, Any] = {"image": cv2.resize(sample.image, shape, interpolation=interpolation)}
    scale = np.array([size[1] / sample.size[1], size[0] / sample.size[0]], np.float32)
    left = np.ones(len(sample))
    if sample.boxes is not None:
        fields["boxes"] = sample.boxes * np.tile(scale, 2)
    if sample.masks is not None:
        fields["masks"] = np.zeros((len(sample), *size), bool)
        for i, mask in enumerate(sample.masks):
            fields["masks"][i] = cv2.resize(mask.view(np.uint8), shape, interpolation=cv2.INTER_NEAREST_EXACT)
        left[(mask_areas(sample.masks) > 0) & (mask_areas(fields["masks"]) == 0)] = 0
    if sample.semantic is not None:
        fields["semantic"] = cv2.resize(sample.semantic, shape, interpolation=cv2.INTER_NEAREST_EXACT)
    if sample.keypoints is not None:
        fields["keypoints"] = sample.keypoints * np.append(scale, np.float32(1))
    return keep_visible(replace(sample, **fields), left)


def window(sample: Sample, top: int, left: int, size: tuple[int, int], fill: Colour = GREY) -> Sample:
    """Crops and pads in one: the picture seen through a window of (height, width) at (top, left), inside it or not."""
    if (top, left) == (0, 0) and size == sample.size:
        return sample
    height, width = size
    target = (
        slice(max(-top, 0), max(min(sample.size[0] - top, height), 0)),
        slice(max(-left, 0), max(min(sample.size[1] - left, width), 0)),
    )
    origin = tuple(slice(t.start + at, max(t.stop, t.start) + at) for t, at in zip(target, (top, left)))

    def look(array: np.ndarray, value: object) -> np.ndarray:
        seen = np.full((height, width, *array.shape[2:]), value, array.dtype)
        part = array[origin]
        seen[target[0].start :, target[1].start :][: part.shape[0], : part.shape[1]] = part
        return seen

    fields: dict[str, Any] = {"image": look(sample.image, fill)}
    if sample.semantic is not None:
        fields["semantic"] = look(sample.semantic, UNANNOTATED)
    fraction = np.ones(len(sample))
    if sample.boxes is not None:
        moved = sample.boxes - np.array([left, top, left, top], np.float32)
        fields["boxes"], fraction = _clip(moved, size)
        if sample.masks is not None:
            fields["masks"] = (
                np.stack([look(mask, False) for mask in sample.masks])
                if len(sample)
                else (np.zeros((0, height, width), bool))
            )
            # An object that no border cuts keeps its box, which may be finer than the pixels of its mask.
            cut = (fields["boxes"] != moved).any(axis=1)
            _fit_to_masks(fields["boxes"], fraction, cut, mask_areas(sample.masks), fields["masks"])
    if sample.keypoints is not None:
        fields["keypoints"] = _hide_outside(sample.keypoints - np.array([left, top, 0], np.float32), size)
    return keep_visible(replace(sample, **fields), fraction)


def warp(sample: Sample, matrix: np.ndarray, size: tuple[int, int], fill: Colour = GREY) -> Sample:
    """Maps every point (x, y, 1) by the affine (2, 3) ``matrix`` onto a picture of (height, width)."""
    if size == sample.size and np.array_equal(matrix, np.eye(2, 3)):
        return sample
    shape = (size[1], size[0])
    matrix = np.asarray(matrix, np.float64)
    # OpenCV counts from pixel centres, half a pixel from where our coordinates start.
    pixels = matrix.copy()
    pixels[:, 2] += matrix[:, :2] @ [0.5, 0.5] - 0.5
    fields: dict[str, Any] = {
        "image": cv2.warpAffine(sample.image, pixels, shape, flags=cv2.INTER_LINEAR, borderValue=fill)
    }
    if sample.semantic is not None:
        fields["semantic"] = cv2.warpAffine(
            sample.semantic, pixels, shape, flags=cv2.INTER_NEAREST, borderValue=UNANNOTATED
        )
    fraction = np.ones(len(sample))
    if sample.boxes is not None:
        fields["boxes"], fraction = _clip(_warp_boxes(sample.boxes, matrix), size)
        if sample.masks is not None:
            fields["masks"] = np.zeros((len(sample), *size), bool)
            spans = _warp_boxes(mask_boxes(sample.masks), matrix)
            for mask, warped, span in zip(sample.masks, fields["masks"], spans):
                _warp_mask(mask, pixels, span, warped)
            before = mask_areas(sample.masks) * abs(np.linalg.det(matrix[:, :2]))
            everyone = np.ones(len(sample), bool)
            _fit_to_masks(fields["boxes"], fraction, everyone, before, fields["masks"])
    if sample.keypoints is not None:
        points = sample.keypoints.copy()
        points[..., :2] = points[..., :2] @ matrix[:, :2].T + matrix[:, 2]
        fields["keypoints"] = _hide_outside(points, size)
    return keep_visible(replace(sample, **fields), fraction)


def _clip(boxes: np.ndarray, size: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """Boxes clipped to a picture of (height, width), and the fraction of each box's area that is left."""
    limits = np.array([size[1], size[0], size[1], size[0]], np.float32)
    clipped = np.clip(boxes, 0, limits).astype(np.float32)
    before, after = ((b[:, 2] - b[:, 0]) * (b[:, 3] - b[:, 1]) for b in (boxes, clipped))
    return clipped, after / np.maximum(before, 1e-9)


def _fit_to_masks(
    boxes: np.ndarray, fraction: np.ndarray, which: np.ndarray, areas: np.ndarray, masks: np.ndarray
) -> None:
    """Replaces, in place, boxes and fractions of the objects ``which`` that had a mask of ``areas`` > 0 pixels."""
    which = which & (areas > 0)
    boxes[which] = mask_boxes(masks[which])
    fraction[which] = mask_areas(masks[which]) / areas[which]


def _hide_outside(points: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    inside = ((points[..., :2] >= 0) & (points[..., :2] <= [size[1], size[0]])).all(axis=-1)
    return np.where((inside & (points[..., 2] > 0))[..., None], points, np.float32(0))


def _warp_boxes(boxes: np.ndarray, matrix: np.ndarray) -> np.ndarray:
    corners = boxes[:, [0, 1, 2, 1, 2, 3, 0, 3]].reshape(-1, 4, 2) @ matrix[:, :2].T + matrix[:, 2]
    return np.concatenate([corners.min(axis=1), corners.max(axis=1)], axis=1)


def _warp_mask(mask: np.ndarray, pixels: np.ndarray, span: np.ndarray, out: np.ndarray) -> None:
    """Warps one mask into ``out``, computing only the pixels that ``span``, its warped bounding box, can reach."""
    height, width = out.shape
    x0, y0 = (int(np.clip(np.floor(v) - 1, 0, most)) for v, most in zip(span[:2], (width, height)))
    x1, y1 = (int(np.clip(np.ceil(v) + 1, 0, most)) for v, most in zip(span[2:], (width, height)))
    if x1 > x0 and y1 > y0:
        there = pixels - np.array([[0, 0, x0], [0, 0, y0]])
        warped = cv2.warpAffine(mask.view(np.uint8), there, (x1 - x0, y1 - y0), flags=cv2.INTER_NEAREST)
        out[y0:y1, x0:x1] = warped.astype(bool)
