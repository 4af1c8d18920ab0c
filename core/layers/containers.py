"""Modules made of modules."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..tensor import Tensor
from .activation import Activation
from .conv import Conv2d
from .linear import Linear
from .module import Module
from .norm import BatchNorm


class Sequential(Module):
    """Modules that run one after the other, named "0", "1", ... or by keyword.

    A convolution followed by a norm and an activation runs as one kernel where no graph is recorded.

    >>> from chainsight.core.layers import Linear, ReLU
    >>> len(Sequential(Linear(2, 3), ReLU()))
    2
    """

    def __init__(self, *modules: Module, **named: Module) -> None:
        for i, module in enumerate(modules):
            setattr(self, str(i), module)
        for name, module in named.items():
            setattr(self, name, module)

    def forward(self, x: Tensor) -> Tensor:
        modules = [m for _, m in self.children()]
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
                x = module.fused(x, norm, activation) if isinstance(module, Conv2d) else module.fused(x, activation)
            else:
                x = module(x)
        return x

    def __len__(self) -> int:
        return sum(1 for _ in self.children())

    def __iter__(self) -> Iterator[Module]:
        return (m for _, m in self.children())

    def __getitem__(self, index: int) -> Module:
        return [m for _, m in self.children()][index]


class ModuleList(Module):
    """Modules in a list, named "0", "1", ...

    >>> from chainsight.core.layers import ReLU
    >>> len(ModuleList([ReLU(), ReLU()]))
    2
    """

    def __init__(self, modules: list[Any]) -> None:
        for i, module in enumerate(modules):
            setattr(self, str(i), module)

    def __len__(self) -> int:
        return sum(1 for _ in self.children())

    def __iter__(self) -> Iterator[Any]:
        return (m for _, m in self.children())

    def __getitem__(self, index: int) -> Any:
        return [m for _, m in self.children()][index]
