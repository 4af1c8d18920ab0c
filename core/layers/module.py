"""Module: a tree of parameters, found by attribute."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import Any, TypeVar

import numpy as np

from ..device import to_device, to_numpy
from ..tensor import Buffer, Parameter, Tensor

M = TypeVar("M", bound="Module")


class Module:
    """A part of a network: its attributes that are Parameters, Buffers and Modules form a tree with dotted names.

    A subclass builds its parts in ``__init__`` and computes in ``forward``; calling the module calls ``forward``.

    >>> from chainsight.core.layers import Linear
    >>> class Twice(Module):
    ...     def __init__(self):
    ...         self.fc = Linear(2, 2)
    ...     def forward(self, x):
    ...         return self.fc(self.fc(x))
    >>> sorted(Twice().state_dict())
    ['fc.bias', 'fc.weight']
    """

    training = True
    changes = 0  # of any attribute of any module: what a plan was made from
    ignored_keys: tuple[str, ...] = ()  # keys that torch's state of this layer has and ours has no use for

    def __setattr__(self, name: str, value: Any) -> None:
        Module.changes += 1
        object.__setattr__(self, name, value)

    def tensors(self) -> list[Tensor]:
        """The Parameters and Buffers."""
        return [t for _, t in self._named_tensors((Parameter, Buffer))]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.forward(*args, **kwargs)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(f"{type(self).__name__} has no forward")

    def children(self) -> Iterator[tuple[str, Module]]:
        """The modules that are attributes of this one, with their names."""
        return ((name, value) for name, value in vars(self).items() if isinstance(value, Module))

    def named_modules(self, prefix: str = "") -> Iterator[tuple[str, Module]]:
        """This module (named "") and all below it, with dotted names."""
        yield prefix, self
        for name, child in self.children():
            yield from child.named_modules(f"{prefix}.{name}" if prefix else name)

    def _named_tensors(self, kind: type[Tensor] | tuple[type[Tensor], ...]) -> Iterator[tuple[str, Any]]:
        for prefix, module in self.named_modules():
            for name, value in vars(module).items():
                if isinstance(value, kind):
                    yield f"{prefix}.{name}" if prefix else name, value

    def named_parameters(self) -> Iterator[tuple[str, Parameter]]:
        """The Parameters with their dotted names."""
        return self._named_tensors(Parameter)

    def parameters(self) -> list[Parameter]:
        """The Parameters."""
        return [p for _, p in self.named_parameters()]

    def named_buffers(self) -> Iterator[tuple[str, Buffer]]:
        """The Buffers with their dotted names."""
        return self._named_tensors(Buffer)

    def parameter_count(self) -> int:
        """The number of values in all Parameters."""
        return sum(p.size for p in self.parameters())

    def state_dict(self) -> dict[str, np.ndarray]:
        """Every Parameter and Buffer as an array on the host, by dotted name, as torch names them."""
        return {name: to_numpy(t.data) for name, t in self._named_tensors((Parameter, Buffer))}

    def load_state_dict(self, state: Mapping[str, np.ndarray], strict: bool = True) -> None:
        """Take the values of every Parameter and Buffer from ``state``, in the dtypes they have now.

        Raises ValueError that lists every missing, unexpected and mis-shaped key, and changes nothing then. With
        ``strict=False`` missing and unexpected keys are allowed, wrong shapes are not.
        """
        own = dict(self._named_tensors((Parameter, Buffer)))
        ignored = {f"{p}.{key}" if p else key for p, m in self.named_modules() for key in m.ignored_keys}
        missing = [name for name in own if name not in state] if strict else []
        unexpected = [name for name in state if name not in own and name not in ignored] if strict else []
        shaped = [
            f"{name} (expected {own[name].shape}, got {tuple(state[name].shape)})"
            for name in own
            if name in state and own[name].shape != tuple(state[name].shape)
        ]
        problems = [
            f"{len(names)} {what}: {', '.join(names)}"
            for what, names in (("missing", missing), ("unexpected", unexpected), ("mis-shaped", shaped))
            if names
        ]
        if problems:
            raise ValueError(f"the state does not fit {type(self).__name__}; " + "; ".join(problems))
        for name, tensor in own.items():
            if name in state:
                tensor.data = to_device(np.asarray(state[name]).astype(tensor.dtype, copy=False), tensor.device)

    def train(self: M, mode: bool = True) -> M:
        """Switch this module and all below it to training (or evaluation) behaviour."""
        for _, module in self.named_modules():
            module.training = mode
        return self

    def eval(self: M) -> M:
        """Switch to evaluation behaviour: fixed batch statistics, no dropout."""
        return self.train(False)

    def to(self: M, device: str) -> M:
        """Move every Parameter and Buffer to ``device`` ("cpu", "cuda", "cuda:N")."""
        for _, tensor in self._named_tensors((Parameter, Buffer)):
            tensor.data = to_device(tensor.data, device)
        return self

    def freeze(self: M, frozen: bool = True) -> M:
        """Exclude every Parameter from training (or include it again)."""
        for p in self.parameters():
            p.requires_grad = not frozen
        return self

    def zero_grad(self) -> None:
        """Forget the gradients of all Parameters."""
        for p in self.parameters():
            p.grad = None

    def describe(self) -> str:
        """The settings that ``print`` shows in parentheses."""
        return ""

    def __repr__(self) -> str:
        return "\n".join(self._lines(""))

    def _lines(self, name: str) -> list[str]:
        count = self.parameter_count()
        title = f"{name}{': ' if name else ''}{type(self).__name__}({self.describe()})"
        lines = [f"{title}  {count:,} parameters" if count else title]
        for body, equal in groupby(self.children(), lambda child: child[1]._lines("")):
            first, *_, last = [name for name, _ in equal] * 2  # equal siblings share one entry
            label = first if first == last else f"{first} .. {last}"
            lines.append(f"  {label}: {body[0]}{' each' if first != last and 'parameters' in body[0] else ''}")
            lines.extend("  " + line for line in body[1:])
        return lines
