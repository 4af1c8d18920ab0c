"""The training loop: small enough to be written by hand, exact enough to be resumed."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..device import seed as seed_generator
from ..layers import Module
from ..optimizers import Optimizer, Schedule, WeightAverage, clip_gradients
from ..tensor import Tensor
from .loader import Loader

Losses = Callable[[Any, np.random.Generator], Mapping[str, Tensor]]


class NotFiniteError(RuntimeError):
    """A loss became infinite or not a number; ``batch`` is what it was computed on, at ``epoch`` and ``index``."""

    def __init__(self, losses: Mapping[str, float], epoch: int, index: int, batch: Any) -> None:
        values = ", ".join(f"{name} {value:g}" for name, value in losses.items())
        super().__init__(f"epoch {epoch}, batch {index}: the loss is not finite ({values})")
        self.losses, self.epoch, self.index, self.batch = dict(losses), epoch, index, batch


@dataclass(frozen=True)
class Step:
    """One update of the weights: its number from 1, its epoch and last batch from 0, the losses, the norm of the
    gradient before clipping (nan without clipping), the learning rate of the first group, and the last batch."""

    number: int
    epoch: int
    batch: int
    losses: dict[str, float]
    gradient_norm: float
    rate: float
    items: Any

    @property
    def loss(self) -> float:
        return sum(self.losses.values())


@dataclass
class Training:
    """Everything that a run changes, and the two settings of its loop; see `train`.

    ``losses(batch, rng)`` gives Tensors by name whose sum is minimised; ``rng`` and the generator of ``dropout`` are
    seeded by (seed, epoch, batch), so a resumed run draws what an uninterrupted one would. ``clip`` is the largest norm
    of the gradient, ``accumulate`` the number of batches for one update. ``epoch`` and ``batch`` say what comes next.
    """

    model: Module
    losses: Losses
    optimizer: Optimizer
    schedule: Schedule = lambda step: 1.0
    average: WeightAverage[Any] | None = None
    clip: float | None = None
    accumulate: int = 1
    seed: int = 0
    epoch: int = 0
    batch: int = 0

    def state_dict(self) -> dict[str, np.ndarray]:
        """The state between two updates as arrays by name: a run that loads it goes on bit-equal."""
        parts: dict[str, Mapping[str, np.ndarray]] = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "position": {"epoch": np.array(self.epoch, np.int64), "batch": np.array(self.batch, np.int64)},
        }
        if self.average is not None:
            parts["average"] = self.average.state_dict()
        return {f"{part}.{name}": array for part, arrays in parts.items() for name, array in arrays.items()}

    def load_state_dict(self, state: Mapping[str, np.ndarray]) -> None:
        """Take what ``state_dict`` gave. Raises ValueError for the state of another run."""
        parts: dict[str, dict[str, np.ndarray]] = {"model": {}, "optimizer": {}, "average": {}, "position": {}}
        for name, array in state.items():
            part, _, rest = name.partition(".")
            if part not in parts:
                raise ValueError(f"expected the state of a training, got the array {name!r}")
            parts[part][rest] = array
        if bool(parts["average"]) != (self.average is not None):
            raise ValueError("expected a state with averaged weights where the run has them, and without where not")
        self.model.load_state_dict(parts["model"])
        self.optimizer.load_state_dict(parts["optimizer"])
        if self.average is not None:
            self.average.load_state_dict(parts["average"])
        self.epoch, self.batch = int(parts["position"]["epoch"]), int(parts["position"]["batch"])


def train(training: Training, loader: Loader, epochs: int) -> Iterator[Step]:
    """Train up to epoch number ``epochs``, from where ``training`` stands; yields after every update.

    Between two updates everything may be looked at, saved or changed. Raises NotFiniteError before such a loss
    reaches the weights, ValueError for a loader without batches. Written by hand, with none of the bookkeeping, the
    loop is:

    >>> from chainsight.core import Tensor, functions as F
    >>> from chainsight.core.layers import Linear
    >>> from chainsight.core.optimizers import SGD, Cosine, clip_gradients
    >>> from chainsight.core.training import Loader
    >>> points = [(np.array([x], np.float32), np.array([2 * x], np.float32)) for x in range(4)]
    >>> model, loader = Linear(1, 1), Loader(points, 2, shuffle=True)
    >>> optimizer, schedule = SGD(model.parameters(), lr=0.1, momentum=0.5), Cosine(80)
    >>> for epoch in range(40):
    ...     for batch in loader.epoch(epoch):
    ...         x, y = (Tensor(np.stack(arrays)) for arrays in zip(*batch))
    ...         loss = F.smooth_l1_loss(model(x), y)
    ...         model.zero_grad()
    ...         loss.backward()
    ...         norm = clip_gradients(model.parameters(), 10.0)
    ...         optimizer.step(schedule(optimizer.steps))
    >>> loss.item() < 0.01
    True
    """
    t = training
    if not len(loader):
        raise ValueError("expected at least one batch to train on, got none")
    while t.epoch < epochs:
        t.model.train()
        total: dict[str, float] = {}
        pending, last = 0, len(loader) - 1
        for index, items in enumerate(loader.epoch(t.epoch, t.batch), t.batch):
            keys = np.random.SeedSequence(t.seed, spawn_key=(t.epoch, index)).generate_state(2)
            seed_generator(int(keys[0]))
            with np.errstate(over="ignore", invalid="ignore"):  # what is not finite is found right below
                losses = t.losses(items, np.random.default_rng(keys[1]))
            values = {name: loss.item() for name, loss in losses.items()}
            if not all(map(math.isfinite, values.values())):
                raise NotFiniteError(values, t.epoch, index, items)
            if not pending:
                t.optimizer.zero_grad()
                total = dict.fromkeys(values, 0.0)
                group = min(t.accumulate, last - index + 1)
            (functools.reduce(operator.add, losses.values()) * (1 / group)).backward()
            total = {name: total[name] + value / group for name, value in values.items()}
            pending += 1
            if pending < group:
                continue
            norm = math.nan
            if t.clip is not None:
                norm = clip_gradients(t.optimizer.parameters(), t.clip)
                if not math.isfinite(norm):
                    raise NotFiniteError({**total, "gradient": norm}, t.epoch, index, items)
            factor = t.schedule(t.optimizer.steps)
            t.optimizer.step(factor)
            if t.average is not None:
                t.average.update()
            pending, t.batch = 0, index + 1
            epoch = t.epoch
            if index == last:
                t.epoch, t.batch = t.epoch + 1, 0
            rate = t.optimizer.groups[0].settings["lr"] * factor
            yield Step(t.optimizer.steps, epoch, index, total, norm, rate, items)
