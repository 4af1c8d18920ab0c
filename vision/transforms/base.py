"""What a transform is, and how transforms are composed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ..sample import Sample

Others = Callable[[], Sample]


class Transform(ABC):
    """A function from sample to sample whose every random choice comes from the generator it is given.

    ``transform(sample, rng, others)`` returns a valid sample and leaves the given one as it was (arrays that do not
    change are shared). ``others()`` draws a further sample of the data set; only `MultiSample` transforms call it. A
    plain function of these three arguments is as good a transform as any class.
    """

    @abstractmethod
    def __call__(self, sample: Sample, rng: np.random.Generator, others: Others | None = None) -> Sample: ...


class SingleSample(Transform):
    """A transform of one sample alone."""

    @abstractmethod
    def apply(self, sample: Sample, rng: np.random.Generator) -> Sample: ...

    def __call__(self, sample: Sample, rng: np.random.Generator, others: Others | None = None) -> Sample:
        return self.apply(sample, rng)


class MultiSample(Transform):
    """A transform that mixes in further samples; raises ValueError when there is no way to draw them."""

    @abstractmethod
    def mix(self, sample: Sample, rng: np.random.Generator, others: Others) -> Sample: ...

    def __call__(self, sample: Sample, rng: np.random.Generator, others: Others | None = None) -> Sample:
        if others is None:
            raise ValueError(f"{type(self).__name__} mixes samples: expected a function that draws another, got none")
        return self.mix(sample, rng, others)


class Compose(Transform):
    """Transforms one after the other.

    >>> from chainsight.vision.transforms import Compose, HorizontalFlip, Letterbox
    >>> sample = Sample(np.zeros((4, 8, 3), np.uint8), boxes=np.array([[0, 0, 2, 2]]))
    >>> Compose([HorizontalFlip(p=1), Letterbox((8, 8))])(sample, np.random.default_rng(0)).boxes.tolist()
    [[6.0, 2.0, 8.0, 4.0]]
    """

    def __init__(self, transforms: list[Transform]) -> None:
        self.transforms = list(transforms)

    def __call__(self, sample: Sample, rng: np.random.Generator, others: Others | None = None) -> Sample:
        for transform in self.transforms:
            sample = transform(sample, rng, others)
        return sample

    def __repr__(self) -> str:
        return f"Compose({self.transforms!r})"


@dataclass(frozen=True)
class RandomApply(Transform):
    """Applies a transform with probability ``p``, else returns the sample as it is."""

    transform: Transform
    p: float = 0.5

    def __post_init__(self) -> None:
        check_probability(self, self.p)

    def __call__(self, sample: Sample, rng: np.random.Generator, others: Others | None = None) -> Sample:
        return self.transform(sample, rng, others) if rng.random() < self.p else sample


def check_probability(transform: Transform, p: float) -> None:
    """Raises ValueError naming the transform unless 0 <= p <= 1."""
    if not 0 <= p <= 1:
        raise ValueError(f"{type(transform).__name__}: expected a probability p between 0 and 1, got {p}")


def check_range(transform: Transform, least: float = 0.0, **ranges: tuple[float, float]) -> None:
    """Raises ValueError naming transform and argument unless every (low, high) has least <= low <= high."""
    for name, (low, high) in ranges.items():
        if not least <= low <= high:
            raise ValueError(
                f"{type(transform).__name__}: expected {name} as (low, high) with {least} <= low <= high, "
                f"got {low, high}"
            )


def check_size(transform: Transform, size: tuple[int, int]) -> None:
    """Raises ValueError naming the transform unless the size is (height, width) of at least one pixel."""
    if len(size) != 2 or min(size) < 1:
        raise ValueError(f"{type(transform).__name__}: expected size as (height, width) >= 1, got {size}")
