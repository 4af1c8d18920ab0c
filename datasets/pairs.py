"""Pairs of images for metric learning, and mixed pairs for classification (mixup, Zhang et al. 2018)."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import TypeVar, overload

import numpy as np

from ..vision.sample import Sample
from .dataset import Dataset

Pair = tuple[Sample, Sample]
S = TypeVar("S", bound="Siamese")
M = TypeVar("M", bound="MixUp")


class Siamese:
    """Random pairs of samples of two data sets, drawn from a seed: item ``i`` is always the same pair.

    - ``first``, ``second``: where the two come from; None: both from ``first``.
    - ``positive``: the share (0..1) of pairs of one class; None: pairs are drawn without looking at classes.
    - ``length``: number of pairs; None: as many as ``first`` has images. ``seed``: another one gives other pairs.

    Slices are views. Raises ValueError when a data set is empty, has no class per image though ``positive`` is given,
    or cannot give the positive (negative) pairs that it asks for.

    >>> import tempfile, pathlib
    >>> from PIL import Image
    >>> from chainsight.datasets import ClassificationDataset
    >>> root = pathlib.Path(tempfile.mkdtemp())
    >>> for name in ("cat", "dog"):
    ...     (root / name).mkdir()
    ...     Image.new("RGB", (8, 8)).save(root / name / "0.png")
    >>> one, other = Siamese(ClassificationDataset(root), positive=0.0)[0]
    >>> sorted((one.label, other.label))
    [0, 1]
    """

    def __init__(
        self,
        first: Dataset,
        second: Dataset | None = None,
        *,
        positive: float | None = None,
        length: int | None = None,
        seed: int = 0,
    ) -> None:
        self.first, self.second = first, first if second is None else second
        if not len(self.first) or not len(self.second):
            raise ValueError(f"expected images in both data sets, got {len(self.first)} and {len(self.second)}")
        if positive is not None and not 0 <= positive <= 1:
            raise ValueError(f"expected a share of positive pairs from 0 to 1, got {positive}")
        self.positive, self.seed = positive, seed
        self.indices = np.arange(len(first) if length is None else length)
        if positive is not None:
            self._groups = [_groups(self.first), _groups(self.second)]
            one, other = self._groups
            self._same = [label for label in one if label in other]
            self._different = [label for label in one if set(other) - {label}]
            if positive > 0 and not self._same:
                raise ValueError(f"{self.first.name}, {self.second.name}: no class is in both, so no pair is positive")
            if positive < 1 and not self._different:
                raise ValueError(f"{self.first.name}, {self.second.name}: one class only, so no pair is negative")

    def __len__(self) -> int:
        return len(self.indices)

    @overload
    def __getitem__(self, index: int) -> Pair: ...
    @overload
    def __getitem__(self: S, index: slice) -> S: ...
    def __getitem__(self: S, index: int | slice) -> Pair | S:
        if isinstance(index, slice):
            view = copy.copy(self)
            view.indices = self.indices[index]
            return view
        one, other = self.draw(int(self.indices[index]))
        return self.first[one], self.second[other]

    def __iter__(self) -> Iterator[Pair]:
        return (self[i] for i in range(len(self)))

    def draw(self, number: int) -> tuple[int, int]:
        """The indices, in ``first`` and in ``second``, of pair ``number``."""
        rng = np.random.default_rng((self.seed, number))
        if self.positive is None:
            return int(rng.integers(len(self.first))), int(rng.integers(len(self.second)))
        one, other = self._groups
        if rng.random() < self.positive:
            label = partner = self._same[rng.integers(len(self._same))]
        else:
            label = self._different[rng.integers(len(self._different))]
            others = [k for k in other if k != label]
            partner = others[rng.integers(len(others))]
        return int(rng.choice(one[label])), int(rng.choice(other[partner]))


def _groups(dataset: Dataset) -> dict[int, np.ndarray]:
    """The images of each class."""
    labels = dataset.image_labels()
    return {int(label): np.flatnonzero(labels == label) for label in np.unique(labels)}


class MixUp:
    """Two images blended with a random weight, and the weights of their classes.

    ``pairs``: pairs of samples of one size with a ``label``; ``classes``: how many there are; ``alpha``: the weight is
    drawn from Beta(alpha, alpha). Item ``i`` is (image (height, width, 3) float32 in 0..255, weights (classes,) float32
    that sum to 1), the same whenever it is asked for; slices are views. Raises ValueError for an alpha that is not
    positive, images of two sizes, and samples without a class.
    """

    def __init__(self, pairs: Siamese, classes: int, *, alpha: float = 1.0, seed: int = 0) -> None:
        if not alpha > 0:
            raise ValueError(f"expected a positive alpha, got {alpha}")
        self.pairs, self.classes, self.alpha, self.seed = pairs, classes, alpha, seed

    def __len__(self) -> int:
        return len(self.pairs)

    @overload
    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]: ...
    @overload
    def __getitem__(self: M, index: slice) -> M: ...
    def __getitem__(self: M, index: int | slice) -> tuple[np.ndarray, np.ndarray] | M:
        if isinstance(index, slice):
            view = copy.copy(self)
            view.pairs = self.pairs[index]
            return view
        one, other = self.pairs[index]
        if one.size != other.size:
            raise ValueError(
                f"expected images of one size, got {one.source} {one.size} and {other.source} {other.size}"
            )
        if one.label is None or other.label is None:
            raise ValueError(f"expected images with a class, got {one.source} {one.label} and {other.label}")
        number = int(self.pairs.indices[index])
        weight = np.float32(np.random.default_rng((self.seed, number, 1)).beta(self.alpha, self.alpha))
        weights = np.zeros(self.classes, np.float32)
        weights[one.label] += weight
        weights[other.label] += 1 - weight
        return weight * one.image + (1 - weight) * other.image, weights

    def __iter__(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        return (self[i] for i in range(len(self)))
