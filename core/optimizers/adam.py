"""Adam and AdamW."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..device import Array, get_namespace
from ..kernels.threads import blockwise
from .optimizer import Optimizer, Parameters, zeros


class AdamW(Optimizer):
    """Adam with a weight decay of its own: every step shrinks the parameter by lr * weight_decay (Loshchilov 2019).

    >>> from chainsight.core import Parameter
    >>> p = Parameter([1.0])
    >>> optimizer = AdamW([p], lr=0.1, weight_decay=0.0)
    >>> (p * p).sum().backward(); optimizer.step(); p.numpy().round(4)
    array([0.9], dtype=float32)
    """

    slots = ("mean", "square")
    decoupled = True

    def __init__(
        self,
        params: Parameters,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
    ) -> None:
        super().__init__(params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay)

    def update(self, p: Array, g: Array, state: dict[str, Array], rate: float, settings: Mapping[str, Any]) -> None:
        xp, (first, second), decay = get_namespace(p), settings["betas"], settings["weight_decay"]
        for slot in self.slots if not state else ():
            state[slot] = zeros(p)

        def work(p: Array, g: Array, mean: Array, square: Array) -> None:
            if decay and self.decoupled:
                p *= 1 - rate * decay
            elif decay:
                g = g + p * decay
            mean *= first
            mean += g * (1 - first)
            square *= second
            square += g * g * (1 - second)
            # The zeros that the averages started from are divided out (Kingma and Ba 2015, section 3).
            root = xp.sqrt(square)
            root *= 1 / (1 - second**self.steps) ** 0.5
            root += settings["eps"]
            p -= mean / root * (rate / (1 - first**self.steps))

        blockwise(work, p, g, *(state[slot] for slot in self.slots))


class Adam(AdamW):
    """Kingma and Ba 2015; ``weight_decay`` adds that share of the parameter to its gradient."""

    decoupled = False

    def __init__(
        self,
        params: Parameters,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, lr, betas, eps, weight_decay)
