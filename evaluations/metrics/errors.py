"""Where a detector errs: confusion matrix, curves over the score, and the errors of each image.

Overlap is that of the boxes, unless ``overlap`` says otherwise: ``overlap(found, truth)`` gives it for pairs of indices
of detections and objects, counted through all images (see `overlaps`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from .inputs import BoxesFound, BoxTruth, FoundTable, TruthTable, flatten
from .matching import Floats, Found, Ints, Matches, Overlap, Truth, match
from .overlaps import box_overlap

EVERY_AREA = np.array([[0.0, np.inf]])


@dataclass(frozen=True)
class ScoreCurves:
    """``precision``, ``recall`` and ``f1`` (K, S) when only detections of at least ``scores`` (S,) are kept.

    Precision is 1 where nothing is left; all are nan for a category without objects.
    """

    categories: tuple[str, ...]
    scores: Floats
    precision: Floats
    recall: Floats
    f1: Floats

    @property
    def best_score(self) -> float:
        """The score threshold with the highest F1 on average over the categories; of several the highest."""
        defined = self.f1[~np.isnan(self.f1).any(1)]
        return float(self.scores[::-1][defined.mean(0)[::-1].argmax()]) if len(defined) else float("nan")


def score_curves(
    truths: Iterable[BoxTruth],
    detections: Iterable[BoxesFound],
    categories: Sequence[str],
    *,
    iou_threshold: float = 0.5,
    steps: int = 101,
    overlap: Overlap | None = None,
) -> ScoreCurves:
    """Precision, recall and F1 over score thresholds 0..1, detections matched as COCO does at one IoU.

    >>> truth = [BoxTruth([[0, 0, 9, 9], [20, 0, 29, 9]], [0, 0])]
    >>> found = [BoxesFound([[0, 0, 9, 9], [50, 0, 60, 9]], [0.9, 0.4], [0, 0])]
    >>> curves = score_curves(truth, found, ["boat"], steps=3)
    >>> curves.precision.tolist(), curves.recall.tolist(), curves.best_score
    ([[0.5, 1.0, 1.0]], [[0.5, 0.5, 0.0]], 0.5)
    """
    truth, found = flatten(truths, detections, len(categories))
    matches = _match(truth, found, len(categories), iou_threshold, overlap or _of_boxes(truth, found))
    scores = np.linspace(0, 1, steps)
    precision, recall = np.full((len(categories), steps), np.nan), np.full((len(categories), steps), np.nan)
    true = matches.hit[:, 0, 0] & ~matches.ignored[:, 0, 0]
    false = ~matches.hit[:, 0, 0] & ~matches.ignored[:, 0, 0]
    bounds = np.searchsorted(matches.category, np.arange(len(categories) + 1))
    for k in np.flatnonzero(matches.positives[:, 0]):
        part = slice(bounds[k], bounds[k + 1])
        left = np.searchsorted(-matches.score[part], -scores, side="right")
        tp = np.concatenate([[0], np.cumsum(true[part])])[left]
        fp = np.concatenate([[0], np.cumsum(false[part])])[left]
        precision[k] = np.divide(tp, tp + fp, out=np.ones(steps), where=tp + fp > 0)
        recall[k] = tp / matches.positives[k, 0]
    f1 = np.divide(2 * precision * recall, precision + recall, out=np.zeros_like(recall), where=precision + recall != 0)
    return ScoreCurves(tuple(categories), scores, precision, recall, f1)


def confusion_matrix(
    truths: Iterable[BoxTruth],
    detections: Iterable[BoxesFound],
    categories: int,
    *,
    score_threshold: float = 0.25,
    iou_threshold: float = 0.5,
    overlap: Overlap | None = None,
) -> Ints:
    """Objects and detections by class: (K + 1, K + 1) counts, rows the true class, columns the predicted one.

    Pairs of any classes form by falling overlap, one to one. The last column holds missed objects, the last row
    detections of nothing; those that only overlap an ignored object are left out.

    >>> truth = [BoxTruth([[0, 0, 9, 9]], [0])]
    >>> found = [BoxesFound([[0, 0, 9, 8], [50, 0, 60, 9]], [0.9, 0.8], [1, 1])]
    >>> confusion_matrix(truth, found, 2).tolist()
    [[0, 1, 0], [0, 0, 0], [0, 1, 0]]
    """
    truth, found = flatten(truths, detections, categories)
    counts = np.zeros((categories + 1, categories + 1), np.int64)
    overlap = overlap or _of_boxes(truth, found)
    kept = np.flatnonzero(found.score >= score_threshold)
    for i in range(truth.images):
        objects = _of_image(truth.image, i)
        boxes = kept[_of_image(found.image[kept], i)]
        f, t = np.repeat(boxes, len(objects)), np.tile(objects, len(boxes))
        iou = overlap(f, t)
        near = iou >= iou_threshold
        free_found, free_truth = set(boxes.tolist()), set(objects[~truth.ignore[objects]].tolist())
        for pair in np.lexsort((t, f, -iou)):
            one, other = int(f[pair]), int(t[pair])
            if near[pair] and one in free_found and other in free_truth:
                counts[truth.label[other], found.label[one]] += 1
                free_found.remove(one)
                free_truth.remove(other)
        on_ignored = set(f[near & truth.ignore[t]].tolist())
        for one in free_found - on_ignored:
            counts[categories, found.label[one]] += 1
        for other in free_truth:
            counts[truth.label[other], categories] += 1
    return counts


def image_errors(
    truths: Iterable[BoxTruth],
    detections: Iterable[BoxesFound],
    categories: int,
    *,
    score_threshold: float = 0.25,
    iou_threshold: float = 0.5,
    overlap: Overlap | None = None,
) -> Ints:
    """(images, 3): found objects, false detections and missed objects of each image.

    >>> truth = [BoxTruth([[0, 0, 9, 9]], [0]), BoxTruth([], [])]
    >>> found = [BoxesFound([], [], []), BoxesFound([[50, 0, 60, 9]], [0.9], [0])]
    >>> image_errors(truth, found, 1).tolist()
    [[0, 0, 1], [0, 1, 0]]
    """
    truth, found = flatten(truths, detections, categories)
    overlap = overlap or _of_boxes(truth, found)
    keep = np.flatnonzero(found.score >= score_threshold)
    found = FoundTable(found.image[keep], found.boxes[keep], found.label[keep], found.score[keep])
    matches = _match(truth, found, categories, iou_threshold, lambda f, t: overlap(keep[f], t))
    hit, ignored = matches.hit[:, 0, 0], matches.ignored[:, 0, 0]
    image = found.image[matches.index]
    right = np.bincount(image[hit & ~ignored], minlength=truth.images)
    wrong = np.bincount(image[~hit & ~ignored], minlength=truth.images)
    objects = np.bincount(truth.image[~truth.ignore], minlength=truth.images)
    return np.stack([right, wrong, objects - right], axis=1)


def _match(truth: TruthTable, found: FoundTable, categories: int, iou_threshold: float, overlap: Overlap) -> Matches:
    return match(
        Truth(truth.image, truth.label, truth.area, truth.ignore, crowd=truth.ignore),
        Found(found.image, found.label, _xywh(found.boxes)[:, 2:].prod(1), found.score),
        overlap,
        categories=categories,
        thresholds=np.array([iou_threshold]),
        areas=EVERY_AREA,
        limit=max(len(found.score), 1),
    )


def _of_boxes(truth: TruthTable, found: FoundTable) -> Overlap:
    return box_overlap(_xywh(found.boxes), _xywh(truth.boxes), truth.ignore)


def _of_image(images: Ints, i: int) -> Ints:
    """Positions of image i in ``images``, which rise."""
    return np.arange(np.searchsorted(images, i), np.searchsorted(images, i, side="right"))


def _xywh(boxes: Floats) -> Floats:
    return np.concatenate([boxes[:, :2], boxes[:, 2:] - boxes[:, :2]], axis=1)
