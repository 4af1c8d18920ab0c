"""Schedules: the factor of the learning rate at each step, counted from 0."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

Schedule: TypeAlias = Callable[[int], float]


@dataclass(frozen=True)
class StepDecay:
    """Times ``gamma`` at each milestone.

    >>> decay = StepDecay((2, 4), gamma=0.1)
    >>> [round(decay(i), 3) for i in range(5)]
    [1.0, 1.0, 0.1, 0.1, 0.01]
    """

    milestones: tuple[int, ...]
    gamma: float = 0.1

    def __call__(self, step: int) -> float:
        return float(self.gamma ** sum(step >= m for m in self.milestones))


@dataclass(frozen=True)
class Cosine:
    """Half a cosine from 1 to ``end`` in ``steps`` (Loshchilov and Hutter 2017), ``end`` from then on.

    >>> Cosine(10)(5)
    0.5
    """

    steps: int
    end: float = 0.0

    def __call__(self, step: int) -> float:
        part = min(step / max(self.steps, 1), 1.0)
        return self.end + (1 - self.end) * (1 + math.cos(math.pi * part)) / 2


@dataclass(frozen=True)
class Polynomial:
    """(1 - step / steps) ** power, 0 from then on: the schedule of semantic segmentation (Chen et al. 2017).

    >>> Polynomial(10, power=1)(5)
    0.5
    """

    steps: int
    power: float = 0.9

    def __call__(self, step: int) -> float:
        return float(max(1 - step / max(self.steps, 1), 0.0) ** self.power)


@dataclass(frozen=True)
class Warmup:
    """From ``start`` to 1 in a straight line over ``steps``, then the schedule ``then`` from its beginning.

    >>> warm = Warmup(Cosine(10), 4, start=0.0)
    >>> [warm(i) for i in (0, 2, 4, 9)]
    [0.0, 0.5, 1.0, 0.5]
    """

    then: Schedule
    steps: int
    start: float = 0.001

    def __call__(self, step: int) -> float:
        if step < self.steps:
            return self.start + (1 - self.start) * step / self.steps
        return self.then(step - self.steps)
