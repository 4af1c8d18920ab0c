"""Differentiable operations, and the walk that carries gradients back through the graph they leave behind.

A Function computes on arrays in ``forward`` and on Tensors in ``backward``. As ``backward`` is itself written in
differentiable operations, a gradient computed with ``create_graph=True`` can be differentiated again.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import threading
import zlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from . import kernels
from .device import Array, get_namespace, to_numpy
from .kernels.tape import tape

if TYPE_CHECKING:
    from .tensor import Tensor


class _State(threading.local):
    recording = True
    debug = False


_state = _State()


def is_recording() -> bool:
    """Whether operations of this thread leave a graph behind.

    >>> is_recording()
    True
    """
    return _state.recording


@contextlib.contextmanager
def _switch(**values: bool) -> Iterator[None]:
    before = {name: getattr(_state, name) for name in values}
    for name, value in values.items():
        setattr(_state, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(_state, name, value)


def no_grad() -> contextlib.AbstractContextManager[None]:
    """In this block (and thread) operations leave no graph, so no memory is kept for a backward pass.

    >>> with no_grad(): is_recording()
    False
    """
    return _switch(recording=False)


def debug_mode() -> contextlib.AbstractContextManager[None]:
    """In this block every array saved for backward is check-summed, so that any write to it is found.

    Without it, changes made through a Tensor (``t.data = ...``, ``t.data += ...``) are found, but not writes into the
    array itself (``t.data[0] = ...``).

    >>> from chainsight.core import Tensor
    >>> with debug_mode():
    ...     x = Tensor([1.0, 2.0], requires_grad=True)
    ...     y = x * x
    ...     x.data[0] = 5
    ...     y.backward(Tensor([1.0, 1.0]))
    Traceback (most recent call last):
    ...
    RuntimeError: Mul: input 0 of shape (2,) was changed in place after it was saved for backward
    """
    return _switch(debug=True)


_serials = itertools.count(1)


def _checksum(array: Array) -> int:
    return zlib.crc32(to_numpy(array).tobytes())


class Function:
    """One operation: ``forward`` on arrays and ``backward`` on Tensors, side by side.

    A subclass takes its settings in ``__init__`` and is called with Tensors. In ``forward`` it names with
    ``save_inputs`` and ``save_outputs`` what ``backward`` will read from ``self.inputs`` and ``self.outputs``; nothing
    else stays in memory. ``backward`` gets one gradient for each output (None where nothing depends on that output)
    and returns one for each input, None where ``self.needs_grad`` is False.

    >>> from chainsight.core import Tensor
    >>> class Cube(Function):
    ...     def forward(self, x):
    ...         self.save_inputs(0)
    ...         return x**3
    ...     def backward(self, gy):
    ...         (x,) = self.inputs
    ...         return (gy * 3 * x**2,)
    >>> x = Tensor([2.0], requires_grad=True)
    >>> Cube()(x).backward()
    >>> x.grad
    Tensor([12.], shape (1,), float32)
    """

    moves = False  # whether it takes values of any kind, bfloat16 too, for it computes nothing
    needs_grad: tuple[bool, ...] = ()
    rank = 0  # greater than that of every function upstream: the order of the walk
    serial = 0  # the order of creation: among equal ranks the walk must not depend on addresses, or sums would vary
    recording = False
    parents: tuple[Function | Tensor | None, ...] | None = ()
    _save_inputs: tuple[int, ...] = ()
    _save_outputs = False
    outputs_changed = False  # set by the Tensor whose data is replaced

    def forward(self, *arrays: Array) -> Any:
        raise NotImplementedError(f"{self.name} has no forward")

    def backward(self, *grads: Any) -> tuple[Tensor | None, ...]:
        raise NotImplementedError(f"{self.name} has no backward")

    @property
    def name(self) -> str:
        return type(self).__name__

    def save_inputs(self, *indices: int) -> None:
        """Keep these inputs for ``backward``."""
        self._save_inputs = indices

    def save_outputs(self) -> None:
        """Keep the outputs for ``backward``."""
        self._save_outputs = True

    def __call__(self, *inputs: Any) -> Tensor:
        """The output as a Tensor, or a tuple of them if ``forward`` returns a tuple."""
        if self.parents != ():
            raise RuntimeError(f"{self.name}: expected a new object for each call, got one that was called before")
        tensors = [x if isinstance(x, tensor.Tensor) else tensor.Tensor(x) for x in inputs]
        self.needs_grad = tuple(t.requires_grad for t in tensors)
        self.recording = _state.recording and True in self.needs_grad
        values = [t._data for t in tensors]
        kinds = [v.dtype.kind for v in values]
        if "V" in kinds and not (self.moves and kinds.count("V") == len(kinds)):
            values = [kernels.widen(v) for v in values]
        noted = None if tape.notes is None else len(tape.notes.steps)
        results = self.forward(*values)
        if noted is not None:
            self._note(noted, values, results if isinstance(results, tuple) else (results,))
        several = isinstance(results, tuple)
        arrays: Sequence[Array] = results if several else (results,)
        outputs = [tensor.wrap(a) for a in arrays]
        if self.recording:
            self._record(tensors, outputs)
        return cast("Tensor", tuple(outputs) if several else outputs[0])

    def into(self, count: int, *arrays: Array) -> None:
        """``forward`` of the arrays after the first ``count``, written into those."""
        results = self.forward(*arrays[count:])
        for target, result in zip(arrays, results if isinstance(results, tuple) else (results,)):
            target[...] = result

    def _note(self, before: int, values: list[Array], results: Sequence[Array]) -> None:
        """Tell a plan in the making what was done, unless kernels did so, or the results are views of the inputs."""
        views = all(any(np.may_share_memory(r, v) for v in values) for r in results)
        if tape.notes is not None and len(tape.notes.steps) == before and not views:
            tape.notes.add(partial(self.into, len(results)), *results, *values)

    def _record(self, tensors: list[Tensor], outputs: list[Tensor]) -> None:
        self.parents = tuple((t.creator or t) if t.requires_grad else None for t in tensors)
        self._parent_outputs = tuple(t.output_index for t in tensors)
        self.serial = next(_serials)
        self.rank = 1 + max(t.creator.rank if t.creator else 0 for t in tensors)
        self._saved = tuple(t if i in self._save_inputs else None for i, t in enumerate(tensors))
        self._versions = tuple(t.version for t in tensors)
        self._shapes = [(t.shape, t.dtype) for t in outputs]
        self._output_arrays = [t._data for t in outputs] if self._save_outputs else None
        for i, t in enumerate(outputs):
            if t._data.dtype.kind == "f":
                t.requires_grad, t.creator, t.output_index = True, self, i
        if _state.debug:
            self._sums = [None if t is None else _checksum(t._data) for t in self._saved]
            self._output_sums = [_checksum(a) for a in self._output_arrays or []]

    @property
    def inputs(self) -> tuple[Any, ...]:
        """The saved inputs as Tensors, None for those not saved. Raises RuntimeError if one was changed since."""
        for i, t in enumerate(self._saved):
            if t is not None and (
                t.version != self._versions[i] or (hasattr(self, "_sums") and _checksum(t._data) != self._sums[i])
            ):
                raise RuntimeError(
                    f"{self.name}: input {i} of shape {t.shape} was changed in place after it was saved for backward"
                )
        return self._saved

    @property
    def outputs(self) -> tuple[Tensor, ...]:
        """The saved outputs as Tensors that belong to the graph. Raises RuntimeError if one was changed since."""
        made = []
        for i, array in enumerate(self._output_arrays or ()):
            if self.outputs_changed or (hasattr(self, "_output_sums") and _checksum(array) != self._output_sums[i]):
                raise RuntimeError(
                    f"{self.name}: output {i} of shape {array.shape} was changed in place after it was saved "
                    "for backward"
                )
            t = tensor.wrap(array)
            t.requires_grad, t.creator, t.output_index = True, self, i
            made.append(t)
        return tuple(made)

    def _free(self) -> None:
        """Drop everything kept for backward; a second walk over this function is then an error."""
        rank, shapes = self.rank, self._shapes
        vars(self).clear()
        self.parents, self.rank, self._shapes = None, rank, shapes


class _Sum:
    """A gradient under accumulation: from the second addition on, in place in an array of its own."""

    __slots__ = ("owned", "value")

    def __init__(self, value: Tensor) -> None:
        self.value = value
        self.owned = False

    def add(self, other: Tensor) -> None:
        if self.owned and not _state.recording:
            self.value._data += other._data
        else:
            self.value = self.value + other
            self.owned = True


def _memory(array: Array) -> Any:
    """The object that owns the array's memory."""
    while getattr(array, "base", None) is not None:
        array = array.base
    return array


def _unshared(grad: Tensor, shared: set[int]) -> Tensor:
    """The gradient, copied if its memory belongs to a value in ``shared`` or if its elements overlap.

    An optimizer may then scale ``t.grad.data`` in place without touching another leaf's gradient.
    """
    memory = id(_memory(grad._data))
    if memory in shared or 0 in grad._data.strides:
        return tensor.wrap(grad._data.copy()) if grad.creator is None else grad * 1
    shared.add(memory)
    return grad


def _reaching(outputs: Sequence[Tensor], targets: set[int]) -> set[int]:
    """The ids of the functions from which a target (function or leaf, by id) can be reached.

    A freed function may have led to any target: it counts, so that the walk comes upon it and says so.
    """
    reach: set[int] = set()
    seen: set[int] = set()
    stack: list[tuple[Function, bool]] = [(t.creator, False) for t in outputs if t.creator]
    while stack:
        function, done = stack.pop()
        parents = [p for p in function.parents or () if p is not None]
        if done:
            if function.parents is None or any(id(p) in targets or id(p) in reach for p in parents):
                reach.add(id(function))
        elif id(function) not in seen:
            seen.add(id(function))
            stack.append((function, True))
            stack.extend((p, False) for p in parents if isinstance(p, Function))
    return reach


def _walk(
    outputs: Sequence[Tensor], grad_outputs: Sequence[Tensor], inputs: Sequence[Tensor] | None, retain_graph: bool
) -> dict[int, Tensor]:
    """Carry gradients from ``outputs`` to ``inputs`` (to every leaf if None); the result is keyed by the input's id."""
    pending: dict[Function, list[_Sum | None]] = {}
    leaves: dict[int, tuple[Tensor, _Sum]] = {}
    heap: list[tuple[int, int, int, Function]] = []
    results: dict[int, Tensor] = {}
    wanted: dict[Function, list[Tensor]] = {}
    reach: set[int] | None = None
    if inputs is not None:
        for t in inputs:
            if t.creator:
                wanted.setdefault(t.creator, []).append(t)
        targets = {id(t.creator or t) for t in inputs}
        reach = _reaching(outputs, targets)

    def useful(parent: Function | Tensor | None) -> bool:
        return parent is not None and (reach is None or id(parent) in reach or id(parent) in targets)

    def accumulate(target: Function | Tensor, index: int, grad: Tensor, source: str) -> None:
        shape, dtype = target._shapes[index] if isinstance(target, Function) else (target.shape, target.dtype)
        if grad.shape != shape:
            raise ValueError(f"{source}: expected a gradient of shape {shape}, the value's own, got {grad.shape}")
        if grad.dtype != dtype:
            raise TypeError(f"{source}: expected a gradient of dtype {dtype}, the value's own, got {grad.dtype}")
        if isinstance(target, Function):
            if target not in pending:
                pending[target] = [None] * len(target._shapes)
                heapq.heappush(heap, (-target.rank, -target.serial, id(target), target))
            total = pending[target][index]
            if total is None:
                pending[target][index] = _Sum(grad)
            else:
                total.add(grad)
        elif id(target) in leaves:
            leaves[id(target)][1].add(grad)
        else:
            leaves[id(target)] = (target, _Sum(grad))

    for y, gy in zip(outputs, grad_outputs, strict=True):
        if y.creator or y.requires_grad:
            accumulate(y.creator or y, y.output_index, gy, "backward")
    while heap:
        function = heapq.heappop(heap)[3]
        grads = [s.value if s else None for s in pending.pop(function)]
        for t in wanted.get(function, ()):
            found = grads[t.output_index]
            if found is not None:
                results[id(t)] = found
        if function.parents is None:
            raise RuntimeError(
                f"{function.name}: its graph was freed by an earlier backward pass; "
                "pass retain_graph=True (or create_graph=True) to the first one"
            )
        if reach is not None and id(function) not in reach:
            continue
        parents, origins, needed = function.parents, function._parent_outputs, function.needs_grad
        function.needs_grad = tuple(useful(p) for p in parents)
        try:
            upstream = function.backward(*grads)
        finally:
            function.needs_grad = needed
        if not isinstance(upstream, tuple) or len(upstream) != len(parents):
            raise TypeError(f"{function.name}: expected backward to return a tuple of {len(parents)}, one per input")
        for i, (parent, gx) in enumerate(zip(parents, upstream)):
            if gx is not None and parent is not None and useful(parent):
                accumulate(parent, origins[i], gx, function.name)
        del grads, upstream, gx
        if not retain_graph:
            function._free()
    shared = {id(_memory(t._data)) for t in grad_outputs}
    for key, (t, total) in leaves.items():
        if inputs is None:
            t.grad = _unshared(total.value, shared) if t.grad is None else t.grad + total.value
        else:
            results[key] = total.value
    return results


def _seeds(outputs: Sequence[Tensor], grad_outputs: Sequence[Tensor | None] | None) -> list[Tensor]:
    if isinstance(outputs, tensor.Tensor):
        raise TypeError("expected a list of Tensors as outputs, got one Tensor: pass [y]")
    if grad_outputs is None:
        grad_outputs = [None] * len(outputs)
    if len(grad_outputs) != len(outputs):
        raise ValueError(f"expected {len(outputs)} grad_outputs, one for each output, got {len(grad_outputs)}")
    made = []
    for y, gy in zip(outputs, grad_outputs, strict=True):
        if not y.requires_grad:
            raise ValueError(f"an output of shape {y.shape} depends on nothing that requires a gradient")
        if gy is None:
            if y.size != 1:
                raise ValueError(f"an output of shape {y.shape} is no scalar: pass the gradient to start from")
            gy = tensor.wrap(get_namespace(y.data).ones_like(y.data))
        elif gy.shape != y.shape:
            raise ValueError(f"expected a gradient of shape {y.shape}, got {gy.shape}")
        made.append(gy)
    return made


def backward(
    outputs: Sequence[Tensor],
    grad_outputs: Sequence[Tensor | None] | None = None,
    *,
    retain_graph: bool = False,
    create_graph: bool = False,
) -> None:
    """Add the gradient of the sum of ``outputs`` to ``grad`` of every leaf they depend on, and free the graph.

    Raises ValueError for an output that is not a scalar and has no entry in ``grad_outputs``, RuntimeError for a graph
    that was freed already.

    >>> from chainsight.core import Tensor
    >>> x = Tensor([3.0], requires_grad=True)
    >>> backward([x * x, 2 * x])
    >>> x.grad
    Tensor([8.], shape (1,), float32)
    """
    with _switch(recording=create_graph):
        _walk(outputs, _seeds(outputs, grad_outputs), None, retain_graph or create_graph)


def grad(
    outputs: Sequence[Tensor],
    inputs: Sequence[Tensor],
    grad_outputs: Sequence[Tensor | None] | None = None,
    *,
    retain_graph: bool | None = None,
    create_graph: bool = False,
) -> tuple[Tensor | None, ...]:
    """The gradients of the sum of ``outputs`` with respect to ``inputs`` (None where there is no dependence).

    No ``Tensor.grad`` is touched. With ``create_graph`` the gradients can be differentiated again.

    >>> from chainsight.core import Tensor
    >>> x = Tensor([2.0], requires_grad=True)
    >>> (g,) = grad([x**3], [x], create_graph=True)
    >>> grad([g], [x])
    (Tensor([12.], shape (1,), float32),)
    """
    if isinstance(inputs, tensor.Tensor):
        raise TypeError("expected a list of Tensors as inputs, got one Tensor: pass [x]")
    keep = create_graph if retain_graph is None else retain_graph
    with _switch(recording=create_graph):
        found = _walk(outputs, _seeds(outputs, grad_outputs), inputs, keep)
    return tuple(found.get(id(x)) for x in inputs)


class _Checkpoint(Function):
    """A part of a network that leaves no graph: ``backward`` runs it again to have one."""

    def __init__(self, function: Callable[..., Tensor]) -> None:
        self.function = function

    def forward(self, *arrays: Array) -> Array:
        self.save_inputs(*range(len(arrays)))
        with no_grad():
            return self.function(*map(tensor.wrap, arrays[:-1]))._data

    def backward(self, gy: Tensor) -> tuple[Tensor | None, ...]:
        if is_recording():
            raise RuntimeError("checkpoint: there are no second derivatives through it, call the function itself")
        with _switch(recording=True):
            inputs = [tensor.Tensor(t._data, requires_grad=r) for t, r in zip(self.inputs[:-1], self.needs_grad)]
            y = self.function(*inputs)
        if y.requires_grad:
            backward([y], [gy])
        return (*(t.grad for t in inputs), None)


def checkpoint(function: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
    """``function(*inputs)``, computed again in ``backward`` instead of kept until then (Chen et al. 2016).

    The function gives one Tensor and must compute the same twice: no dropout; a batch norm in training moves its stored
    statistics twice. Parameters that it uses get their gradients as ever. Second derivatives raise RuntimeError.

    >>> from chainsight.core import Tensor
    >>> x = Tensor([3.0], requires_grad=True)
    >>> checkpoint(lambda t: t * t * t, x).backward()
    >>> x.grad
    Tensor([27.], shape (1,), float32)
    """
    switch = tensor.Tensor(0.0, requires_grad=True)  # parameters may need the walk where the inputs do not
    return _Checkpoint(function)(*inputs, switch)


from . import tensor  # noqa: E402  last, as tensor.py imports this module
