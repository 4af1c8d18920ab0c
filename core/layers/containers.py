"""Modules made of modules."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from ..tensor import Tensor
from .activation import Activation
from .conv import Conv2d
from .dropout import Dropout
from .linear import Linear
from .module import Module
from .norm import BatchNorm


class ModuleList(Module):
    """Modules in a list, named "0", "1", ...

    >>> from chainsight.core.layers import ReLU
    >>> len(ModuleList([ReLU(), ReLU()]))
    2
    """

    def __init__(self, modules: Sequence[Any]) -> None:
        for i, module in enumerate(modules):
            setattr(self, str(i), module)

    def __len__(self) -> int:
        return sum(1 for _ in self.children())

    def __iter__(self) -> Iterator[Any]:
        return (m for _, m in self.children())

    def __getitem__(self, index: int) -> Any:
        return [m for _, m in self.children()][index]


class Sequential(ModuleList):
    """Modules that run one after the other, named "0", "1", ... or by keyword.

    A convolution followed by a norm and an activation runs as one kernel where no graph is recorded.

    >>> from chainsight.core.layers import Linear, ReLU
    >>> len(Sequential(Linear(2, 3), ReLU()))
    2
    """

    def __init__(self, *modules: Module, **named: Module) -> None:
        super().__init__(modules)
        for name, module in named.items():
            setattr(self, name, module)

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """The last module's output, plus ``residual`` if there is one (in the last convolution's kernel, if it can)."""
        return _run(list(self), x, residual)

    def outputs(self, x: Tensor, at: Sequence[int]) -> list[Tensor]:
        """The outputs of the modules with the indices ``at``, which ascend; those after the last one do not run."""
        modules, found = list(self), []
        for start, stop in zip((-1, *at), at):
            x = _run(modules[start + 1 : stop + 1], x)
            found.append(x)
        return found


def _run(modules: Sequence[Module], x: Tensor, residual: Tensor | None = None) -> Tensor:
    """The modules one after the other, fused where they can be; ``residual`` is added to the result."""
    modules = [m for m in modules if m.training or not isinstance(m, Dropout)]
    i = 0
    while i < len(modules):
        module = modules[i]
        i += 1
        if isinstance(module, (Conv2d, Linear)):
            norm: BatchNorm | None = None
            activation: Activation | None = None
            if isinstance(module, Conv2d) and i < len(modules) and isinstance(following := modules[i], BatchNorm):
                norm, i = following, i + 1
            if i < len(modules) and isinstance(following := modules[i], Activation):
                activation, i = following, i + 1
            # the kernels add the residual before the activation, here it comes after
            added = residual if i == len(modules) and activation is None else None
            fused = partial(module.fused, x, norm) if isinstance(module, Conv2d) else partial(module.fused, x)
            x = fused(activation, added)
        elif isinstance(module, Sequential) and i == len(modules):
            added, x = residual, module(x, residual)
        else:
            added, x = None, module(x)
        if added is not None:
            return x
    return x if residual is None else x + residual
