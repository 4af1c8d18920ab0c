"""What optimizers share: groups of parameters with settings of their own, and a state that can be saved."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

import numpy as np

from ..device import Array, get_namespace, to_device, to_numpy
from ..tensor import Parameter

Parameters: TypeAlias = "Iterable[Parameter] | Iterable[Mapping[str, Any]]"


class Group:
    """Parameters that share ``settings``."""

    def __init__(self, params: list[Parameter], settings: dict[str, Any]) -> None:
        self.params, self.settings = params, settings


class Optimizer:
    """Changes parameters by their gradients, in place.

    ``params`` are Parameters, or mappings with "params" and settings that differ from the common ones::

        SGD([{"params": norms, "weight_decay": 0.0}, {"params": others}], lr=0.1, weight_decay=1e-4)

    A subclass computes one parameter's step in ``update``. Gradients are read and never written. Raises ValueError for
    no parameters, one that comes twice, and an unknown or negative setting.
    """

    slots: tuple[str, ...] = ()  # the names of the arrays that a parameter's state consists of

    def __init__(self, params: Parameters, **settings: Any) -> None:
        given: list[Any] = list(params)
        groups = given if given and isinstance(given[0], Mapping) else [{"params": given}]
        self.groups: list[Group] = []
        for i, group in enumerate(groups):
            own = {k: v for k, v in group.items() if k != "params"}
            unknown = sorted(own.keys() - settings.keys())
            if unknown:
                raise ValueError(f"group {i}: expected settings of {', '.join(settings)}, got {', '.join(unknown)}")
            self.groups.append(Group(list(group["params"]), settings | own))
        for group_settings in (g.settings for g in self.groups):
            for name, value in group_settings.items():
                for number in value if isinstance(value, tuple) else (value,):
                    if number < 0:
                        raise ValueError(f"{type(self).__name__}: expected {name} >= 0, got {value}")
        found = self.parameters()
        if not found:
            raise ValueError(f"{type(self).__name__}: expected at least one parameter, got none")
        if len({id(p) for p in found}) < len(found):
            raise ValueError(f"{type(self).__name__}: expected every parameter once, got one twice")
        self.state: list[dict[str, Array]] = [{} for _ in found]
        self.steps = 0

    def parameters(self) -> list[Parameter]:
        """The parameters of all groups."""
        return [p for group in self.groups for p in group.params]

    def step(self, factor: float = 1.0) -> None:
        """One step by the gradients there are, at ``factor`` times the learning rate: a schedule's value."""
        self.steps += 1
        states = iter(self.state)
        for group in self.groups:
            rate = group.settings["lr"] * factor
            for p in group.params:
                state = next(states)
                if p.grad is not None:
                    self.update(p.writable(), p.grad.data, state, rate, group.settings)

    def update(self, p: Array, g: Array, state: dict[str, Array], rate: float, settings: Mapping[str, Any]) -> None:
        raise NotImplementedError(f"{type(self).__name__} has no update")

    def zero_grad(self) -> None:
        """Forget the gradients."""
        for p in self.parameters():
            p.grad = None

    def state_dict(self) -> dict[str, np.ndarray]:
        """Everything that a resumed run needs, on the host: "steps", and "INDEX.SLOT" for each parameter's arrays."""
        arrays = {f"{i}.{k}": to_numpy(v) for i, state in enumerate(self.state) for k, v in state.items()}
        return {"steps": np.array(self.steps, np.int64), **arrays}

    def load_state_dict(self, state: Mapping[str, np.ndarray]) -> None:
        """Take what ``state_dict`` gave. Raises ValueError for arrays of other parameters, and changes nothing then."""
        params = self.parameters()
        made: list[dict[str, Array]] = [{} for _ in params]
        for key, value in state.items():
            index, _, slot = key.partition(".")
            if key == "steps":
                continue
            if slot not in self.slots or not index.isdigit() or int(index) >= len(params):
                raise ValueError(f"{type(self).__name__}: the state has an unexpected {key!r}")
            p = params[int(index)]
            if value.shape != p.shape:
                raise ValueError(f"{type(self).__name__}: {key} expected shape {p.shape}, got {value.shape}")
            made[int(index)][slot] = to_device(np.array(value, p.dtype), p.device)
        self.state, self.steps = made, int(state["steps"])


def zeros(like: Array) -> Array:
    """Zeros in the order of another array, so that operations on the two run through memory once."""
    return get_namespace(like).zeros_like(like)
