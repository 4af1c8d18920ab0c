"""What metrics on arrays take for each image, and how the images become one table."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, NamedTuple

import numpy as np

from .matching import Bools, Floats, Ints


class BoxTruth(NamedTuple):
    """The objects of an image; anything with these attributes will do, ``ignore`` and ``areas`` may be absent.

    - ``boxes``: (n, 4) xyxy in pixels; ``labels``: (n,) indices of the categories.
    - ``ignore``: (n,) bool, objects that neither count when missed nor when found (COCO's crowds, VOC's difficult).
    - ``areas``: (n,) in square pixels, for metrics by object size; by default that of the box.
    """

    boxes: Any
    labels: Any
    ignore: Any = None
    areas: Any = None


class BoxesFound(NamedTuple):
    """The detections of an image; anything with these attributes will do.

    ``boxes``: (n, 4) xyxy in pixels; ``scores``: (n,); ``labels``: (n,) indices of the categories.
    """

    boxes: Any
    scores: Any
    labels: Any


@dataclass
class TruthTable:
    """The objects of all images: ``boxes`` (n, 4) xyxy."""

    images: int
    image: Ints
    boxes: Floats
    label: Ints
    ignore: Bools
    area: Floats


@dataclass
class FoundTable:
    """The detections of all images: ``boxes`` (n, 4) xyxy."""

    image: Ints
    boxes: Floats
    label: Ints
    score: Floats


def flatten(
    truths: Iterable[BoxTruth], detections: Iterable[BoxesFound], categories: int
) -> tuple[TruthTable, FoundTable]:
    """Both as tables; ValueError naming the image when something does not fit."""
    truth_rows: list[tuple[Any, ...]] = []
    found_rows: list[tuple[Any, ...]] = []
    images = 0
    for i, (truth, found) in enumerate(zip_longest(truths, detections)):
        if truth is None or found is None:
            raise ValueError(f"expected as many images in truths as in detections, got one more {_more(truth)}")
        images += 1
        boxes, n = _boxes(truth.boxes, f"truths[{i}]")
        ignore = _column(getattr(truth, "ignore", None), n, bool, f"truths[{i}].ignore", default=False)
        area = _column(getattr(truth, "areas", None), n, float, f"truths[{i}].areas", default=np.nan)
        area = np.where(np.isnan(area), (boxes[:, 2:] - boxes[:, :2]).prod(1), area)
        truth_rows.append((np.full(n, i), boxes, _labels(truth.labels, n, categories, f"truths[{i}]"), ignore, area))
        boxes, n = _boxes(found.boxes, f"detections[{i}]")
        score = _column(found.scores, n, float, f"detections[{i}].scores")
        if not np.isfinite(score).all():
            raise ValueError(f"detections[{i}].scores: expected finite scores, got {score[~np.isfinite(score)][0]}")
        found_rows.append((np.full(n, i), boxes, _labels(found.labels, n, categories, f"detections[{i}]"), score))
    empty = np.zeros(0, np.int64), np.zeros((0, 4)), np.zeros(0, np.int64)
    truth_columns = zip(*[(*empty, np.zeros(0, bool), np.zeros(0)), *truth_rows])
    found_columns = zip(*[(*empty, np.zeros(0)), *found_rows])
    return TruthTable(images, *map(np.concatenate, truth_columns)), FoundTable(*map(np.concatenate, found_columns))


def _more(truth: Any) -> str:
    return "detection" if truth is None else "truth"


def _boxes(value: Any, name: str) -> tuple[Floats, int]:
    boxes = np.asarray(value, float)
    if boxes.size == 0:
        boxes = boxes.reshape(0, 4)
    if boxes.ndim != 2 or boxes.shape[1] != 4:
        raise ValueError(f"{name}.boxes: expected shape (n, 4), got {boxes.shape}")
    bad = ~np.isfinite(boxes).all(1) | (boxes[:, 2:] < boxes[:, :2]).any(1)
    if bad.any():
        at = int(np.argmax(bad))
        raise ValueError(
            f"{name}.boxes[{at}]: expected finite x0, y0, x1, y1 with x0 <= x1 and y0 <= y1, got {boxes[at].tolist()}"
        )
    return boxes, len(boxes)


def _column(value: Any, n: int, dtype: type, name: str, default: Any = None) -> Any:
    if value is None:
        return np.full(n, default, dtype)
    column: Any = np.asarray(value, dtype).reshape(-1)
    if len(column) != n:
        raise ValueError(f"{name}: expected {n} values, one for each box, got {len(column)}")
    return column


def _labels(value: Any, n: int, categories: int, name: str) -> Ints:
    labels: Ints = _column(value, n, np.int64, f"{name}.labels")
    if bad := [int(label) for label in labels if not 0 <= label < categories]:
        raise ValueError(f"{name}.labels: expected indices of {categories} categories, got {bad[0]}")
    return labels
