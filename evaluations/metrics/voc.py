"""Pascal VOC's average precision for boxes and instance masks (Everingham et al. 2010, section 4.2).

A detection belongs to the object of its class that it overlaps most. It is right if that overlap reaches the threshold
and no detection with a higher score has the object; if the object is ``ignore`` (VOC's "difficult"), it does not count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, Literal, NamedTuple

import numpy as np

from .inputs import BoxesFound, BoxTruth, flatten
from .matching import Bools, Floats, Ints
from .overlaps import box_overlap

Method = Literal["area", "11 points"]


class MaskTruth(NamedTuple):
    """The objects of an image: ``masks`` (n, height, width) bool, ``labels`` (n,), ``ignore`` (n,) bool or absent."""

    masks: Any
    labels: Any
    ignore: Any = None


class MasksFound(NamedTuple):
    """The detections of an image: ``masks`` (n, height, width) bool, ``scores`` (n,), ``labels`` (n,)."""

    masks: Any
    scores: Any
    labels: Any


@dataclass(frozen=True)
class VocMetrics:
    """Average precision of each category, in 0..1; nan for a category without objects that count.

    ``precision[k]`` and ``recall[k]`` after each detection of category k, by falling score.
    """

    categories: tuple[str, ...]
    average_precision: Floats
    precision: tuple[Floats, ...]
    recall: tuple[Floats, ...]
    iou_threshold: float
    method: Method

    @property
    def mAP(self) -> float:
        """Mean over the categories that have objects; nan if none has."""
        defined = self.average_precision[~np.isnan(self.average_precision)]
        return float(defined.mean()) if defined.size else float("nan")

    @property
    def per_category(self) -> dict[str, float]:
        """Average precision by name."""
        return dict(zip(self.categories, self.average_precision.tolist()))

    def to_dict(self) -> dict[str, float]:
        """The figure of the data set under its usual name, ``mAP``."""
        return {"mAP": self.mAP}

    def __str__(self) -> str:
        rows = [f"  {name}  {value:.4f}" for name, value in self.per_category.items()]
        return "\n".join([f"VOC mAP {self.mAP:.4f} (IoU {self.iou_threshold:g}, {self.method})", *rows])


def voc_detection(
    truths: Iterable[BoxTruth],
    detections: Iterable[BoxesFound],
    categories: Sequence[str],
    *,
    iou_threshold: float = 0.5,
    method: Method = "area",
    offset: float = 0.0,
) -> VocMetrics:
    """VOC's box metric of arrays, image by image; `BoxTruth` and `BoxesFound` say what an image gives.

    - ``method``: "area" under the precision envelope (VOC 2010 and later) or the mean at "11 points" (VOC 2007).
    - ``offset``: 0 for continuous coordinates, 1 for whole pixels of which the last is inside (VOC's own files).

    Raises ValueError naming the image for shapes and labels that do not fit.

    >>> truth = [BoxTruth(boxes=[[0, 0, 10, 10], [20, 0, 30, 10]], labels=[0, 0])]
    >>> found = [BoxesFound(boxes=[[0, 0, 10, 9], [50, 0, 60, 10]], scores=[0.9, 0.8], labels=[0, 0])]
    >>> voc_detection(truth, found, ["boat"]).mAP
    0.5
    """
    truth, found = flatten(truths, detections, len(categories))
    boxes = [np.concatenate([t[:, :2], t[:, 2:] - t[:, :2]], axis=1) for t in (found.boxes, truth.boxes)]
    overlap = box_overlap(boxes[0], boxes[1], np.zeros(len(truth.label), bool), offset)
    best, iou = np.full(len(found.label), -1), np.zeros(len(found.label))
    truth_group = truth.image * len(categories) + truth.label
    order = np.argsort(truth_group, kind="stable")
    group = found.image * len(categories) + found.label
    start = np.searchsorted(truth_group[order], group)
    count = np.searchsorted(truth_group[order], group, side="right") - start
    # The j-th object of every detection's image and class at once.
    for j in range(count.max(initial=0)):
        some = np.flatnonzero(count > j)
        objects = order[start[some] + j]
        value = overlap(some, objects)
        better = value > iou[some]
        best[some[better]], iou[some[better]] = objects[better], value[better]
    best[iou < iou_threshold] = -1
    return _score(truth.label, truth.ignore, found.label, found.score, best, categories, iou_threshold, method)


def voc_instance(
    truths: Iterable[MaskTruth],
    detections: Iterable[MasksFound],
    categories: Sequence[str],
    *,
    iou_threshold: float = 0.5,
    method: Method = "area",
) -> VocMetrics:
    """VOC's metric with the overlap of masks (Hariharan et al. 2014), image by image, without keeping the masks.

    Raises ValueError naming the image when masks, scores and labels differ in number or masks in size.

    >>> mask = np.zeros((1, 8, 8), bool)
    >>> mask[0, 2:6, 2:6] = True
    >>> voc_instance([MaskTruth(mask, [0])], [MasksFound(mask, [0.9], [0])], ["boat"], iou_threshold=0.7).mAP
    1.0
    """
    truth_parts: list[tuple[Ints, Bools]] = [(np.zeros(0, np.int64), np.zeros(0, bool))]
    found_parts: list[tuple[Ints, Floats, Ints]] = [(np.zeros(0, np.int64), np.zeros(0), np.zeros(0, np.int64))]
    objects = 0
    for i, (truth, found) in enumerate(zip_longest(truths, detections)):
        if truth is None or found is None:
            raise ValueError("expected as many images in truths as in detections")
        labels, ignore = _columns(i, "truths", truth.masks, labels=truth.labels, ignore=getattr(truth, "ignore", None))
        found_labels, scores = _columns(i, "detections", found.masks, labels=found.labels, scores=found.scores)
        iou = mask_iou(np.asarray(found.masks), np.asarray(truth.masks), where=f"image {i}: ")
        iou = np.where(found_labels[:, None] == labels, iou, 0)
        best = np.where(iou.max(1, initial=0) >= iou_threshold, _argmax(iou) + objects, -1)
        truth_parts.append((labels.astype(np.int64), ignore.astype(bool)))
        found_parts.append((found_labels.astype(np.int64), scores.astype(float), best))
        objects += len(labels)
    label, ignored = (np.concatenate(column) for column in zip(*truth_parts))
    found_label, score, match = (np.concatenate(column) for column in zip(*found_parts))
    return _score(label, ignored, found_label, score, match, categories, iou_threshold, method)


def mask_iou(a: Bools, b: Bools, where: str = "") -> Floats:
    """Intersection over union (n, m) of masks (n, height, width) and (m, height, width); 0 for two empty masks."""
    if len(a) == 0 or len(b) == 0:
        return np.zeros((len(a), len(b)))
    if a.shape[1:] != b.shape[1:]:
        raise ValueError(f"{where}expected masks of one size, got {a.shape[1:]} and {b.shape[1:]}")
    # Sums of ones are exact in float32 below 2**24 pixels, and it is twice as fast.
    dtype = np.float32 if a[0].size < 1 << 24 else np.float64
    a, b = a.reshape(len(a), -1), b.reshape(len(b), -1)
    inter = (a.astype(dtype) @ b.astype(dtype).T).astype(float)
    union = np.count_nonzero(a, axis=1)[:, None] + np.count_nonzero(b, axis=1) - inter
    iou: Floats = np.divide(inter, union, out=np.zeros_like(inter), where=union > 0)
    return iou


def _argmax(iou: Floats) -> Ints:
    return iou.argmax(1) if iou.shape[1] else np.zeros(len(iou), np.int64)


def _columns(i: int, side: str, masks: Any, **columns: Any) -> list[np.ndarray]:
    n = len(masks)
    arrays = []
    for name, value in columns.items():
        array = np.zeros(n, bool) if value is None and name == "ignore" else np.asarray(value).reshape(-1)
        if len(array) != n:
            raise ValueError(f"{side}[{i}].{name}: expected {n} values, one for each mask, got {len(array)}")
        arrays.append(array)
    return arrays


def _score(
    truth_label: Ints,
    ignore: Bools,
    found_label: Ints,
    score: Floats,
    best: Ints,
    categories: Sequence[str],
    iou_threshold: float,
    method: Method,
) -> VocMetrics:
    """The metrics, given the object each detection belongs to (-1: none)."""
    order = np.lexsort((-score, found_label))
    best = best[order]
    hit = best >= 0
    ignored = hit.copy()
    ignored[hit] = ignore[best[hit]]
    # np.unique finds the first, best scored, detection of every object.
    first = np.zeros(len(best), bool)
    first[np.unique(best, return_index=True)[1]] = True
    true, false = hit & first & ~ignored, ~ignored & ~(hit & first)
    bounds = np.searchsorted(found_label[order], np.arange(len(categories) + 1))
    positives = np.bincount(truth_label[~ignore], minlength=len(categories))
    precisions, recalls, values = [], [], []
    for k in range(len(categories)):
        part = slice(bounds[k], bounds[k + 1])
        tp, fp = np.cumsum(true[part]), np.cumsum(false[part])
        precision = np.divide(tp, tp + fp, out=np.zeros(len(tp)), where=tp + fp > 0)
        recall = tp / positives[k] if positives[k] else np.full(len(tp), np.nan)
        precisions.append(precision)
        recalls.append(recall)
        values.append(_RULES[method](precision, recall) if positives[k] else np.nan)
    return VocMetrics(tuple(categories), np.array(values), tuple(precisions), tuple(recalls), iou_threshold, method)


def _eleven_points(precision: Floats, recall: Floats) -> float:
    """Mean over recalls 0, 0.1, ... 1 of the best precision at that recall or more (VOC 2007)."""
    return float(np.mean([precision[recall >= r].max(initial=0) for r in np.arange(0.0, 1.1, 0.1)]))


def _area(precision: Floats, recall: Floats) -> float:
    """Area under the precision made monotone (VOC 2010 and later)."""
    envelope = np.maximum.accumulate(precision[::-1])[::-1]
    return float(np.sum(np.diff(recall, prepend=0) * envelope))


_RULES: dict[Method, Callable[[Floats, Floats], float]] = {"area": _area, "11 points": _eleven_points}
