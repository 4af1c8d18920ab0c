"""`Dataset`: what every adapter is; subsets and concatenation without copying; `Annotations` without pixels."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import overload

import numpy as np

from ..vision.sample import Sample
from .cleaning import Problem

DETECTION = "detection"
INSTANCE = "instance"
KEYPOINTS = "keypoints"
SEMANTIC = "semantic"
CLASSIFICATION = "classification"


@dataclass(frozen=True)
class Annotations:
    """What is known about one image without decoding it: for statistics, matching and evaluation.

    - ``boxes``: (n, 4) float32 xyxy in pixels; ``labels``: (n,) int64; ``ignore``: (n,) bool.
    - ``size``: (height, width) in pixels as annotated, or as the image file's header says.
    - ``ids``: (n,) int64, the data set's own object ids, or None; ``areas``: (n,) float32 in pixels, or None.
    - ``numbers``: (n,) int64, each object's index in its annotation file counted from 0, or None.
    - ``keypoints``: (n, k, 3) float32 (x, y, visibility), or None.
    - ``label``: class of the whole image (classification), or None.
    - ``image_id``, ``path`` (image file), ``source`` (annotation file): where it came from.
    """

    boxes: np.ndarray
    labels: np.ndarray
    ignore: np.ndarray
    size: tuple[int, int] | None
    image_id: int | str
    path: str
    source: str
    ids: np.ndarray | None = None
    areas: np.ndarray | None = None
    numbers: np.ndarray | None = None
    keypoints: np.ndarray | None = None
    label: int | None = None

    def __len__(self) -> int:
        return len(self.boxes)


class Dataset(ABC):
    """A sequence of `Sample`: indexing reads one image, slicing and ``+`` make views that read nothing.

    - ``name``, ``source`` (file or folder), ``format``; ``tasks``: what is annotated.
    - ``categories``: class names, label ``i`` means ``categories[i]``.
    - ``category_ids``: the data set's own id of each category in that order, or None when the format has none.
    - ``problems``: what was found wrong and what was done about it (see `chainsight.datasets.cleaning`).
    """

    name: str
    format: str
    source: str
    tasks: tuple[str, ...]
    categories: tuple[str, ...]
    category_ids: tuple[int, ...] | None = None
    keypoint_names: tuple[str, ...] | None = None
    problems: Sequence[Problem] = ()

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def load(self, index: int) -> Sample:
        """Sample ``index`` (0 <= index < len) with its image decoded."""

    @abstractmethod
    def annotations(self, index: int) -> Annotations:
        """What is known about image ``index`` (0 <= index < len) without decoding it."""

    @overload
    def __getitem__(self, index: int) -> Sample: ...
    @overload
    def __getitem__(self, index: slice) -> Dataset: ...
    def __getitem__(self, index: int | slice) -> Sample | Dataset:
        if isinstance(index, slice):
            return self.subset(range(len(self))[index])
        i = int(index)
        if not -len(self) <= i < len(self):
            raise IndexError(f"{self.name}: image {i} of {len(self)}")
        return self.load(i % len(self))

    def __iter__(self) -> Iterator[Sample]:
        return (self.load(i) for i in range(len(self)))

    def subset(self, indices: Sequence[int] | np.ndarray) -> Dataset:
        """The images that ``indices`` (or a bool mask of the data set's length) names, in that order; a view."""
        return Subset(self, indices)

    def __add__(self, other: Dataset) -> Dataset:
        return Concatenation([self, other])

    def __repr__(self) -> str:
        counts = [f"{len(self)} images"]
        if DETECTION in self.tasks:
            counts.append(f"{self.object_count()} objects")
        counts.append(f"{len(self.categories)} classes")
        if self.problems:
            counts.append(f"{len(self.problems)} problems")
        shown = ", ".join(self.categories[:5]) + (", ..." if len(self.categories) > 5 else "")
        return f"{self.name} ({self.format}; {', '.join(self.tasks)}): {', '.join(counts)} [{shown}]"

    def image_labels(self) -> np.ndarray:
        """(len,) int64, the class of each image; ValueError when an image has none."""
        labels = [self.annotations(i).label for i in range(len(self))]
        if None in labels:
            raise ValueError(f"{self.name}: image {labels.index(None)} has no class of its own")
        return np.array(labels, np.int64)

    def object_count(self) -> int:
        """Number of annotated objects in all images, ignored ones included."""
        return sum(len(self.annotations(i)) for i in range(len(self)))

    def histogram(self) -> np.ndarray:
        """(classes,) int64: how many objects (or images, for classification) each class has, ignored ones left out.

        >>> Concatenation([]).histogram().tolist()
        []
        """
        counts = np.zeros(len(self.categories), np.int64)
        for i in range(len(self)):
            found = self.annotations(i)
            labels = found.labels[~found.ignore] if found.label is None else np.array([found.label])
            counts += np.bincount(labels, minlength=len(counts))
        return counts


class Subset(Dataset):
    """A view on some images of another data set; see `Dataset.subset`."""

    def __init__(self, base: Dataset, indices: Sequence[int] | np.ndarray) -> None:
        wanted = np.asarray(indices)
        if wanted.dtype == bool:
            if len(wanted) != len(base):
                raise ValueError(f"{base.name}: a mask needs {len(base)} entries, got {len(wanted)}")
            wanted = np.flatnonzero(wanted)
        wanted = wanted.astype(np.int64).reshape(-1)
        if len(wanted) and not (-len(base) <= wanted.min() and wanted.max() < len(base)):
            raise IndexError(f"{base.name}: indices {wanted.min()}..{wanted.max()} of {len(base)} images")
        self.base: Dataset = base
        self.indices: np.ndarray = wanted % max(len(base), 1)
        self.name, self.format, self.source, self.tasks = base.name, base.format, base.source, base.tasks
        self.categories, self.category_ids = base.categories, base.category_ids
        self.keypoint_names, self.problems = base.keypoint_names, base.problems

    def __len__(self) -> int:
        return len(self.indices)

    def load(self, index: int) -> Sample:
        return self.base.load(int(self.indices[index]))

    def annotations(self, index: int) -> Annotations:
        return self.base.annotations(int(self.indices[index]))


class Concatenation(Dataset):
    """Data sets one after the other; classes are united by name, in order of first appearance.

    The data sets' own category ids are kept when they do not contradict each other, else ``category_ids`` is None.
    """

    def __init__(self, parts: Sequence[Dataset]) -> None:
        self.parts: list[Dataset] = []
        for part in parts:
            self.parts += part.parts if isinstance(part, Concatenation) else [part]
        self.name = " + ".join(dict.fromkeys(p.name for p in self.parts))
        self.format = " + ".join(dict.fromkeys(p.format for p in self.parts))
        self.source = ", ".join(dict.fromkeys(p.source for p in self.parts))
        self.tasks = (
            tuple(t for t in self.parts[0].tasks if all(t in p.tasks for p in self.parts)) if self.parts else ()
        )
        first = self.parts[0].categories if self.parts else ()
        if all(p.categories == first for p in self.parts):
            self.categories = first
            self._maps: list[np.ndarray | None] = [None] * len(self.parts)
        else:
            self.categories = tuple(dict.fromkeys(c for p in self.parts for c in p.categories))
            self._maps = [np.array([self.categories.index(c) for c in p.categories], np.int64) for p in self.parts]
        self.category_ids = self._united_ids()
        names = {p.keypoint_names for p in self.parts}
        self.keypoint_names = names.pop() if len(names) == 1 else None
        self.problems = [problem for p in self.parts for problem in p.problems]
        self._ends = np.cumsum([len(p) for p in self.parts], dtype=np.int64)

    def _united_ids(self) -> tuple[int, ...] | None:
        ids: dict[str, int] = {}
        for part in self.parts:
            if part.category_ids is None:
                return None
            for name, number in zip(part.categories, part.category_ids):
                if ids.setdefault(name, number) != number:
                    return None
        values = tuple(ids[c] for c in self.categories if c in ids)
        return values if len(set(values)) == len(self.categories) else None

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def locate(self, index: int) -> tuple[int, int]:
        """(which part, index in it) of image ``index``."""
        part = int(np.searchsorted(self._ends, index, side="right"))
        return part, index - (int(self._ends[part - 1]) if part else 0)

    def load(self, index: int) -> Sample:
        part, i = self.locate(index)
        sample, mapping = self.parts[part].load(i), self._maps[part]
        if mapping is None:
            return sample
        semantic = sample.semantic
        if semantic is not None:
            table = np.full(max(256, len(mapping) + 1), 255, semantic.dtype)
            table[: len(mapping)] = mapping
            semantic = table[semantic]
        return replace(
            sample,
            labels=None if sample.labels is None else mapping[sample.labels],
            label=None if sample.label is None else int(mapping[sample.label]),
            semantic=semantic,
        )

    def annotations(self, index: int) -> Annotations:
        part, i = self.locate(index)
        found, mapping = self.parts[part].annotations(i), self._maps[part]
        if mapping is None:
            return found
        label = None if found.label is None else int(mapping[found.label])
        return replace(found, labels=mapping[found.labels], label=label)
