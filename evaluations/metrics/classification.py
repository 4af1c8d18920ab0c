"""Top-k accuracy of image classification."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np


class TopKAccuracy:
    """How often the true class is among the k best scored, batch by batch; of equal scores the lower class goes first.

    >>> accuracy = TopKAccuracy((1, 2))
    >>> accuracy.update(scores=[[0.1, 0.7, 0.2], [0.5, 0.2, 0.3]], labels=[1, 2])
    >>> accuracy.to_dict()
    {'top1': 0.5, 'top2': 1.0}
    """

    def __init__(self, ks: Sequence[int] = (1, 5)) -> None:
        if not ks or min(ks) < 1:
            raise ValueError(f"ks: expected numbers of at least 1, got {ks}")
        self.ks = tuple(ks)
        self.right = dict.fromkeys(self.ks, 0)
        self.images = 0

    def update(self, scores: Any, labels: Any) -> None:
        """Add scores (n, K) and true classes (n,); ValueError for scores that are nan or labels outside 0..K-1."""
        scores, labels = np.asarray(scores), np.asarray(labels).reshape(-1)
        if scores.ndim != 2 or len(scores) != len(labels):
            raise ValueError(f"expected scores (n, classes) and labels (n,), got {scores.shape} and {labels.shape}")
        if np.isnan(scores).any():
            raise ValueError(f"scores: expected numbers, got nan in row {int(np.isnan(scores).any(1).argmax())}")
        if len(labels) and not (labels.min() >= 0 and labels.max() < scores.shape[1]):
            raise ValueError(f"labels: expected 0..{scores.shape[1] - 1}, got {labels.min()}..{labels.max()}")
        own = np.take_along_axis(scores, labels[:, None], axis=1)
        earlier = np.arange(scores.shape[1]) < labels[:, None]
        rank = ((scores > own) | ((scores == own) & earlier)).sum(1)
        self.add_ranks(rank)

    def add_ranks(self, ranks: Any) -> None:
        """Add images by how many classes come before the true one (n,)."""
        ranks = np.asarray(ranks, np.int64)
        for k in self.ks:
            self.right[k] += int((ranks < k).sum())
        self.images += len(ranks)

    def to_dict(self) -> dict[str, float]:
        """``{"top1": ..., "top5": ...}`` in 0..1; nan before the first image."""
        return {f"top{k}": self.right[k] / self.images if self.images else float("nan") for k in self.ks}

    def __str__(self) -> str:
        return ", ".join(f"{k} {value:.4f}" for k, value in self.to_dict().items()) + f" ({self.images} images)"
