"""Averaged weights."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Generic, TypeVar

import numpy as np

from ..device import Array
from ..kernels.threads import blockwise
from ..layers import Module
from ..tensor import Buffer, Parameter, Tensor

M = TypeVar("M", bound=Module)


class WeightAverage(Generic[M]):
    """The exponential moving average of a module's parameters and buffers, as a second ``module``.

    Each ``update`` moves the average towards the weights by ``1 - decay``; the first ones by more, so that the average
    soon forgets where it started: after n updates the decay is at most (1 + n) / (10 + n).

    >>> from chainsight.core.layers import Linear
    >>> layer = Linear(2, 2)
    >>> average = WeightAverage(layer, decay=0.99)
    >>> layer.weight.data = layer.weight.data + 1
    >>> average.update()
    >>> bool((average.module.weight.data < layer.weight.data).all())
    True
    """

    def __init__(self, module: M, decay: float = 0.999) -> None:
        if not 0 <= decay < 1:
            raise ValueError(f"WeightAverage: expected a decay from 0 to below 1, got {decay}")
        self.decay, self.updates = decay, 0
        self.module: M = copy.deepcopy(module).eval()
        for p in self.module.parameters():
            p.grad = None
        own, other = (dict(m._named_tensors((Parameter, Buffer))) for m in (self.module, module))
        self._pairs: list[tuple[Tensor, Tensor]] = [(own[name], other[name]) for name in own]

    def update(self) -> None:
        """Move the average towards the weights as they are now."""
        self.updates += 1
        share = 1 - min(self.decay, (1 + self.updates) / (10 + self.updates))

        def work(average: Array, current: Array) -> None:
            average += (current - average) * share

        for average, current in self._pairs:
            if average.dtype.kind == "f":
                blockwise(work, average.writable(), current.data)
            else:
                average.data = current.data.copy()

    def state_dict(self) -> dict[str, np.ndarray]:
        """The averaged weights by name, and the number of "updates"."""
        return {**self.module.state_dict(), "updates": np.array(self.updates, np.int64)}

    def load_state_dict(self, state: Mapping[str, np.ndarray]) -> None:
        """Take what ``state_dict`` gave; raises ValueError for a state of another module."""
        self.module.load_state_dict({k: v for k, v in state.items() if k != "updates"})
        self.updates = int(state["updates"])
