"""Metrics of semantic segmentation, summed up image by image in one confusion matrix."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .matching import Floats, Ints


class SemanticMetrics:
    """Counts pixels by true and predicted class, and gives mean IoU and accuracies of all images so far.

    ``categories``: the names of the classes, any number; labels index them. Pixels whose true label is ``ignore_index``
    do not count. ``confusion`` is (K, K): pixels of true class (row) predicted as (column).

    >>> metrics = SemanticMetrics(["sky", "ground"])
    >>> metrics.update(predicted=np.array([[0, 0], [0, 1]]), truth=np.array([[0, 0], [1, 255]]))
    >>> metrics.confusion.tolist(), round(metrics.mean_iou, 3), round(metrics.pixel_accuracy, 3)
    ([[2, 0], [1, 0]], 0.333, 0.667)
    """

    def __init__(self, categories: Sequence[str], ignore_index: int | None = 255) -> None:
        self.categories = tuple(categories)
        self.ignore_index = ignore_index
        self.confusion: Ints = np.zeros((len(self.categories), len(self.categories)), np.int64)
        self.images = 0

    def update(self, predicted: Any, truth: Any, where: str = "") -> None:
        """Add a label map or a batch, integer arrays of one shape; ValueError (with ``where``) for unknown labels."""
        predicted, truth = np.asarray(predicted), np.asarray(truth)
        place = f"{where}: " if where else ""
        for name, labels in (("predicted", predicted), ("truth", truth)):
            if labels.dtype.kind not in "iu":
                raise ValueError(f"{place}{name}: expected integer labels, got {labels.dtype}")
        if predicted.shape != truth.shape:
            raise ValueError(f"{place}expected label maps of one shape, got {predicted.shape} and {truth.shape}")
        counted = np.ones(truth.shape, bool) if self.ignore_index is None else truth != self.ignore_index
        n = len(self.categories)
        rows, columns = truth[counted].astype(np.int64), predicted[counted].astype(np.int64)
        for name, labels in (("predicted", columns), ("truth", rows)):
            if labels.size and not (labels.min() >= 0 and labels.max() < n):
                wrong = np.unique(labels[(labels < 0) | (labels >= n)]).tolist()
                raise ValueError(
                    f"{place}{name}: expected labels 0..{n - 1} or ignore_index={self.ignore_index}, got {wrong[:5]}"
                )
        self.confusion += np.bincount(rows * n + columns, minlength=n * n).reshape(n, n)
        self.images += 1 if truth.ndim < 3 else len(truth)

    def add_counts(self, counts: Sequence[Sequence[int]]) -> None:
        """Add an image whose pixels have been counted: true class, predicted class, pixels."""
        for row, column, count in counts:
            self.confusion[row, column] += count
        self.images += 1

    @property
    def iou(self) -> Floats:
        """(K,) intersection over union of each class; nan for a class neither annotated nor predicted."""
        right = np.diagonal(self.confusion)
        return _ratio(right, self.confusion.sum(0) + self.confusion.sum(1) - right)

    @property
    def class_accuracies(self) -> Floats:
        """(K,) share of each class's pixels that are right; nan for a class that is not annotated."""
        return _ratio(np.diagonal(self.confusion), self.confusion.sum(1))

    @property
    def mean_iou(self) -> float:
        """Mean of `iou` over the classes for which it is defined."""
        return _mean(self.iou)

    @property
    def class_accuracy(self) -> float:
        """Mean of `class_accuracies` over the classes for which it is defined."""
        return _mean(self.class_accuracies)

    @property
    def pixel_accuracy(self) -> float:
        """Share of all counted pixels that are right."""
        total = int(self.confusion.sum())
        return float(np.trace(self.confusion) / total) if total else float("nan")

    @property
    def per_category(self) -> dict[str, float]:
        """IoU by name."""
        return dict(zip(self.categories, self.iou.tolist()))

    def to_dict(self) -> dict[str, float]:
        """``mIoU``, ``pixel_accuracy`` and ``class_accuracy``."""
        return {
            "mIoU": self.mean_iou,
            "pixel_accuracy": self.pixel_accuracy,
            "class_accuracy": self.class_accuracy,
        }

    def __str__(self) -> str:
        rows = [f"  {name}  {value:.4f}" for name, value in self.per_category.items()]
        figures = ", ".join(f"{name} {value:.4f}" for name, value in self.to_dict().items())
        return "\n".join([f"{figures} ({self.images} images)", *rows])


def _ratio(part: Ints, whole: Ints) -> Floats:
    ratio: Floats = np.divide(part, whole, out=np.full(len(whole), np.nan), where=whole > 0)
    return ratio


def _mean(values: Floats) -> float:
    defined = values[~np.isnan(values)]
    return float(defined.mean()) if defined.size else float("nan")
