"""Stochastic gradient descent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..device import Array, get_namespace
from .optimizer import Optimizer, Parameters, scratch


class SGD(Optimizer):
    """Gradient descent with momentum (Sutskever et al. 2013), the learning rate outside of the momentum, as in torch.

    ``weight_decay`` adds that share of the parameter to its gradient. ``nesterov`` looks one step ahead and needs a
    momentum.

    >>> from chainsight.core import Parameter
    >>> p = Parameter([1.0])
    >>> optimizer = SGD([p], lr=0.5)
    >>> (p * p).sum().backward(); optimizer.step(); p.numpy()
    array([0.], dtype=float32)
    """

    slots = ("momentum",)

    def __init__(
        self, params: Parameters, lr: float, momentum: float = 0.0, weight_decay: float = 0.0, nesterov: bool = False
    ) -> None:
        super().__init__(params, lr=lr, momentum=momentum, weight_decay=weight_decay, nesterov=nesterov)
        if any(g.settings["nesterov"] and not g.settings["momentum"] for g in self.groups):
            raise ValueError("SGD: nesterov needs a momentum above 0")

    def update(self, p: Array, g: Array, state: dict[str, Array], rate: float, settings: Mapping[str, Any]) -> None:
        xp, momentum, decay = get_namespace(p), settings["momentum"], settings["weight_decay"]
        work = scratch(p)
        if decay:
            xp.multiply(p, decay, out=work)
            work += g
            g = work
        if momentum:
            buffer = state.get("momentum")
            if buffer is None:
                buffer = state["momentum"] = scratch(p)
                buffer[...] = g
            else:
                buffer *= momentum
                buffer += g
            if settings["nesterov"]:
                look = buffer * momentum
                look += g
                g = look
            else:
                g = buffer
        xp.multiply(g, rate, out=work)
        p -= work
