"""Stochastic gradient descent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..device import Array
from ..kernels.threads import blockwise
from .optimizer import Optimizer, Parameters, zeros


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
        momentum, decay, nesterov = (settings[k] for k in ("momentum", "weight_decay", "nesterov"))
        if momentum and not state:
            state["momentum"] = zeros(p)

        def work(p: Array, g: Array, *buffers: Array) -> None:
            if decay:
                g = g + p * decay
            for buffer in buffers:
                buffer *= momentum
                buffer += g
                g = g + buffer * momentum if nesterov else buffer
            p -= g * rate

        blockwise(work, p, g, *state.values())
