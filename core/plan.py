"""Inference without the Python around it: the kernel calls of one run, repeated on new inputs.

When a module gets inputs of one shape twice in a row, the second run is noted: every kernel call with the addresses of
its arrays, every other operation with its output. All memory stays where it is, an array lying where an earlier one
died, so a later run copies the input in and makes the same calls again. A plan is used only after it gave, on another
input, exactly what the module gives.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from . import kernels
from .function import is_recording, no_grad
from .kernels import memory, onednn, threads
from .kernels.tape import Notes, noting
from .layers.module import Module
from .tensor import Tensor, wrap

LARGEST = 128 << 20  # bytes of memory; networks that need more do not notice the time that Python takes
SHAPES = 8  # plans of a module in a thread, of 2 * LARGEST bytes together


class Plan:
    """The steps of ``module.method`` for inputs like x; of use to the thread that made it."""

    def __init__(self, module: Module, method: str, x: Tensor) -> None:
        self.tensors = [(t, t.version) for t in module.tensors()]
        self.changes, self.generation = Module.changes, onednn.generation()
        self.input, call = x.numpy().copy(order="K"), getattr(module, method)
        other = wrap(self.input[..., ::-1] * np.float32(0.75) + np.float32(0.1))
        expected = [array.copy() for array in _flat(call(other))]
        memory.trim()  # the plan has memory of its own, and before it there is no need of both
        self.notes = Notes(LARGEST)
        with noting(self.notes):
            self.output = call(wrap(self.input))
        # Used only if it gives what the module computes, bit by bit.
        self.good = not self.notes.full and all(map(np.array_equal, _flat(self.run(other)), expected))
        if not self.good:
            self.notes, self.output = Notes(0), None
        self.nbytes = sum(self.notes.pool.usage())

    def is_current(self) -> bool:
        """Whether no module, parameter or number of threads has changed since."""
        return (
            self.changes == Module.changes
            and self.generation == onednn.generation()
            and all(t.version == version for t, version in self.tensors)
        )

    def run(self, x: Tensor) -> Any:
        """What the module gives for x, in arrays of its own."""
        np.copyto(self.input, x.numpy())
        for step in self.notes.steps:
            step()
        return _copied(self.output)


class _Plans(threading.local):
    def __init__(self) -> None:
        self.of: WeakKeyDictionary[Module, OrderedDict[Any, Plan]] = WeakKeyDictionary()
        self.last: WeakKeyDictionary[Module, dict[Any, tuple[int, ...]]] = WeakKeyDictionary()  # shapes of inputs


_plans = _Plans()


@threads.settled()
def planned(module: Module, x: Tensor, method: str = "forward") -> Any:
    """``module.method(x)`` in inference: a Tensor, or lists and tuples of them; from a plan where there is one.

    Arrays in the result may depend on the shape of x only.

    Plans are made where inputs of one shape come twice in a row, kept per thread, and made anew when a parameter, a
    module or the number of threads has changed. Making one takes as long as four runs: among photos of many sizes only
    frequent sizes are worth it.

    >>> from chainsight.core import no_grad
    >>> from chainsight.core.layers import Linear
    >>> layer, x = Linear(2, 3), Tensor([[1.0, 2.0]])
    >>> with no_grad(): [planned(layer, x).shape for _ in range(3)]
    [(1, 3), (1, 3), (1, 3)]
    """
    if is_recording() or not isinstance(x.data, np.ndarray) or kernels.backend_name() != "onednn":
        return getattr(module, method)(x)
    plans, last = _plans.of.setdefault(module, OrderedDict()), _plans.last.setdefault(module, {})
    kind = (method, x.dtype, module.training, kernels.precision())
    again, last[kind] = last.get(kind) == x.shape, x.shape
    plan = plans.get((x.shape, kind))
    if plan is None and not again:
        return getattr(module, method)(x)
    if plan is None or not plan.is_current():
        plan = plans[x.shape, kind] = Plan(module, method, x)
    plans.move_to_end((x.shape, kind))
    while len(plans) > SHAPES or sum(p.nbytes for p in plans.values()) > 2 * LARGEST:
        plans.popitem(last=False)
    return plan.run(x) if plan.good else getattr(module, method)(x)


def compile(module: Module, example: Tensor, method: str = "forward") -> Callable[[Tensor], Any]:
    """A function that gives what ``module.method`` gives, of inputs like ``example`` from a plan from the start.

    It may be called in several threads, with inputs of other shapes too, and after changes of the parameters or of the
    module: plans that these outdate are made anew. Gradients do not pass through it. See ``planned`` for what arrays in
    the result may depend on. Raises TypeError for an example that is no Tensor.

    >>> from chainsight.core.layers import Linear
    >>> layer, x = Linear(2, 3), Tensor([[1.0, 2.0]])
    >>> fast = compile(layer, x)
    >>> bool((fast(x).data == layer(x).data).all())
    True
    """
    if not isinstance(example, Tensor):
        raise TypeError(f"compile: expected a Tensor as the example, got {type(example).__name__}")

    def run(x: Tensor) -> Any:
        with no_grad():
            return planned(module, x, method)

    for _ in range(2):  # the second call makes the plan
        run(example)
    return run


def _flat(value: Any) -> Iterator[np.ndarray]:
    if isinstance(value, (Tensor, np.ndarray)):
        yield value.data if isinstance(value, Tensor) else value
    else:
        for part in value:
            yield from _flat(part)


def _copied(value: Any) -> Any:
    if isinstance(value, np.ndarray):  # depends on the input's shape alone
        return value
    if isinstance(value, Tensor):
        return wrap(value.data.copy(order="K"))
    return type(value)(_copied(part) for part in value)
