"""Operations that move, repeat, cut and join values without changing them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from .. import kernels
from ..device import Array, get_namespace
from ..function import Function
from ..kernels.reference import sum_over
from ..tensor import Tensor, wrap

Axis = int | tuple[int, ...] | None


def axes_of(name: str, axis: Axis, ndim: int) -> tuple[int, ...]:
    """The axes as a sorted tuple of non-negative numbers. Raises ValueError for one out of range."""
    axes = tuple(range(ndim)) if axis is None else (axis,) if isinstance(axis, int) else tuple(axis)
    for a in axes:
        if not -ndim <= a < ndim:
            raise ValueError(f"{name}: axis {a} is out of range for {ndim} axes")
    return tuple(sorted({a % ndim for a in axes}))


class Reshape(Function):
    moves = True

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape

    def forward(self, x: Array) -> Array:
        self.source = x.shape
        try:
            return x.reshape(self.shape)
        except ValueError:
            raise ValueError(f"Reshape: {x.size} values of shape {x.shape} do not fill shape {self.shape}") from None

    def backward(self, gy: Tensor) -> tuple[Tensor]:
        return (reshape(gy, self.source),)


class Transpose(Function):
    moves = True

    def __init__(self, axes: tuple[int, ...]) -> None:
        self.axes = axes

    def forward(self, x: Array) -> Array:
        if sorted(a % x.ndim for a in self.axes) != list(range(x.ndim)):
            raise ValueError(f"Transpose: {self.axes} is no order of the {x.ndim} axes of shape {x.shape}")
        return x.transpose(self.axes)

    def backward(self, gy: Tensor) -> tuple[Tensor]:
        inverse = sorted(range(len(self.axes)), key=lambda i: self.axes[i] % len(self.axes))
        return (transpose(gy, tuple(inverse)),)


class BroadcastTo(Function):
    moves = True

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape

    def forward(self, x: Array) -> Array:
        self.source = x.shape
        try:
            return get_namespace(x).broadcast_to(x, self.shape)
        except ValueError:
            raise ValueError(f"BroadcastTo: shape {x.shape} does not broadcast to {self.shape}") from None

    def backward(self, gy: Tensor) -> tuple[Tensor]:
        return (sum_to(gy, self.source),)


class SumTo(Function):
    """The adjoint of broadcasting: the sum over every axis that broadcasting would stretch."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape

    def forward(self, x: Array) -> Array:
        self.source = x.shape
        lead = x.ndim - len(self.shape)
        stretched = (lead + i for i, n in enumerate(self.shape) if n == 1 and x.shape[lead + i] != 1)
        return sum_over(x, (*range(lead), *stretched)).reshape(self.shape)

    def backward(self, gy: Tensor) -> tuple[Tensor]:
        return (broadcast_to(gy, self.source),)


def _is_basic(index: Any) -> bool:
    parts = index if isinstance(index, tuple) else (index,)
    return all(p is None or p is Ellipsis or isinstance(p, (int, np.integer, slice)) for p in parts)


class GetItem(Function):
    """x[index] for a basic index (a view) or an array index (a copy)."""

    moves = True

    def __init__(self, index: Any) -> None:
        self.index = index

    def forward(self, x: Array) -> Array:
        self.shape = x.shape
        try:
            return x[self.index]
        except IndexError as error:
            raise IndexError(f"GetItem: {error} (shape {x.shape})") from None

    def backward(self, gy: Tensor) -> tuple[Tensor]:
        return (ScatterAdd(self.index, self.shape)(gy),)


class ScatterAdd(Function):
    """Zeros of ``shape`` to which the values are added at ``index``: the adjoint of getitem."""

    def __init__(self, index: Any, shape: tuple[int, ...]) -> None:
        self.index, self.shape = index, shape

    def forward(self, values: Array) -> Array:
        xp = get_namespace(values)
        out = xp.zeros(self.shape, values.dtype)
        if _is_basic(self.index):
            out[self.index] = values
        else:
            xp.add.at(out, self.index, values)
        return out

    def backward(self, gy: Tensor) -> tuple[Tensor]:
        return (getitem(gy, self.index),)


class Concatenate(Function):
    moves = True

    def __init__(self, axis: int) -> None:
        self.axis = axis

    def forward(self, *arrays: Array) -> Array:
        (axis,) = axes_of("Concatenate", self.axis, arrays[0].ndim)
        if len({a.shape[:axis] + a.shape[axis + 1 :] if a.ndim == arrays[0].ndim else a.ndim for a in arrays}) > 1:
            shapes = ", ".join(str(a.shape) for a in arrays)
            raise ValueError(f"Concatenate: shapes {shapes} differ outside of axis {self.axis}")
        if len({a.dtype for a in arrays}) > 1:
            dtypes = ", ".join(str(a.dtype) for a in arrays)
            raise TypeError(f"Concatenate: expected arrays of one dtype, got {dtypes}")
        self.sizes = [a.shape[axis] for a in arrays]
        return kernels.concatenate(arrays, axis)

    def into(self, count: int, *arrays: Array) -> None:
        np.concatenate(arrays[1:], axis=self.axis, out=arrays[0])  # copied once, not twice

    def backward(self, gy: Tensor) -> tuple[Tensor, ...]:
        return tuple(split(gy, self.sizes, self.axis))


class Split(Function):
    moves = True

    def __init__(self, sizes: Sequence[int], axis: int) -> None:
        self.sizes, self.axis = sizes, axis

    def forward(self, x: Array) -> tuple[Array, ...]:
        (axis,) = axes_of("Split", self.axis, x.ndim)
        total = x.shape[axis]
        if sum(self.sizes) != total:
            raise ValueError(f"Split: sizes {list(self.sizes)} do not add up to {total}, axis {self.axis} of {x.shape}")
        self.shape, self.dtype, self.xp = x.shape, x.dtype, get_namespace(x)
        lead = (slice(None),) * axis
        ends = [sum(self.sizes[: i + 1]) for i in range(len(self.sizes))]
        return tuple(x[(*lead, slice(end - n, end))] for n, end in zip(self.sizes, ends))

    def backward(self, *gys: Tensor | None) -> tuple[Tensor]:
        axis = self.axis % len(self.shape)
        lead, rest = self.shape[:axis], self.shape[axis + 1 :]
        parts = [
            wrap(self.xp.zeros((*lead, n, *rest), self.dtype)) if g is None else g for n, g in zip(self.sizes, gys)
        ]
        return (concatenate(parts, self.axis),)


class Pad(Function):
    def __init__(self, widths: tuple[tuple[int, int], ...], value: float) -> None:
        self.widths, self.value = widths, value

    def forward(self, x: Array) -> Array:
        if len(self.widths) != x.ndim or min((w for pair in self.widths for w in pair), default=0) < 0:
            raise ValueError(f"Pad: expected {x.ndim} pairs of widths of at least 0 for {x.shape}, got {self.widths}")
        self.source = x.shape
        return get_namespace(x).pad(x, self.widths, constant_values=self.value)

    def backward(self, gy: Tensor) -> tuple[Tensor]:
        inner = tuple(slice(before, before + n) for (before, _), n in zip(self.widths, self.source))
        return (getitem(gy, inner),)


def reshape(x: Tensor, shape: Sequence[int]) -> Tensor:
    """The same values, in row-major order, in another shape (one entry may be -1).

    >>> reshape(Tensor([1.0, 2.0, 3.0, 4.0]), (2, -1)).shape
    (2, 2)
    """
    shape = tuple(shape)
    return Reshape(shape)(x) if x.shape != shape else x


def transpose(x: Tensor, axes: Sequence[int] | None = None) -> Tensor:
    """The axes in another order, reversed if None; a view.

    >>> transpose(Tensor([[1.0, 2.0, 3.0]]), (1, 0)).shape
    (3, 1)
    """
    return Transpose(tuple(range(x.ndim))[::-1] if axes is None else tuple(axes))(x)


def squeeze(x: Tensor, axis: int) -> Tensor:
    """x without ``axis``, which must have size 1.

    >>> squeeze(Tensor([[1.0, 2.0]]), 0).shape
    (2,)
    """
    (axis,) = axes_of("squeeze", axis, x.ndim)
    if x.shape[axis] != 1:
        raise ValueError(f"squeeze: axis {axis} of shape {x.shape} has size {x.shape[axis]}, not 1")
    return reshape(x, x.shape[:axis] + x.shape[axis + 1 :])


def expand_dims(x: Tensor, axis: int) -> Tensor:
    """x with a new axis of size 1 before ``axis``.

    >>> expand_dims(Tensor([1.0, 2.0]), 0).shape
    (1, 2)
    """
    (axis,) = axes_of("expand_dims", axis, x.ndim + 1)
    return reshape(x, (*x.shape[:axis], 1, *x.shape[axis:]))


def broadcast_to(x: Tensor, shape: Sequence[int]) -> Tensor:
    """x repeated along axes of size 1 until it has ``shape``; a view.

    >>> broadcast_to(Tensor([1.0]), (2, 2)).numpy()
    array([[1., 1.],
           [1., 1.]], dtype=float32)
    """
    shape = tuple(shape)
    return BroadcastTo(shape)(x) if x.shape != shape else x


def sum_to(x: Tensor, shape: Sequence[int]) -> Tensor:
    """The sum of x over the axes along which ``shape`` would be broadcast to x's: the adjoint of broadcast_to.

    >>> sum_to(Tensor([[1.0, 2.0], [3.0, 4.0]]), (1, 2)).numpy()
    array([[4., 6.]], dtype=float32)
    """
    shape = tuple(shape)
    if any(n not in (1, m) for n, m in zip(shape[::-1], x.shape[::-1])) or len(shape) > x.ndim:
        raise ValueError(f"SumTo: shape {shape} does not broadcast to {x.shape}")
    return SumTo(shape)(x) if x.shape != shape else x


def getitem(x: Tensor, index: Any) -> Tensor:
    """x[index] for integers, slices, None, Ellipsis and integer or bool arrays.

    >>> getitem(Tensor([1.0, 2.0, 3.0]), [2, 0]).numpy()
    array([3., 1.], dtype=float32)
    """
    return GetItem(_index_on(x.xp, index))(x)


def _index_on(xp: Any, index: Any) -> Any:
    """The index with its arrays on the device of ``xp``."""
    if isinstance(index, tuple):
        return tuple(_index_on(xp, p) for p in index)
    if isinstance(index, Tensor):
        return index.data
    if isinstance(index, list) and not index:
        return xp.zeros(0, np.int64)
    return xp.asarray(index) if isinstance(index, (list, np.ndarray)) else index


def scatter_add(values: Tensor, index: Any, shape: Sequence[int]) -> Tensor:
    """Zeros of ``shape`` with ``values`` added at ``index``; values at equal places add up.

    >>> scatter_add(Tensor([1.0, 2.0, 3.0]), [0, 2, 0], (4,)).numpy()
    array([4., 0., 2., 0.], dtype=float32)
    """
    index, shape = _index_on(values.xp, index), tuple(shape)
    expected = values.xp.empty(shape, bool)[index].shape
    if values.shape != expected:
        raise ValueError(
            f"ScatterAdd: expected values of shape {expected} (shape {shape} at the index), got {values.shape}"
        )
    return ScatterAdd(index, shape)(values)


def concatenate(tensors: Sequence[Tensor], axis: int = 0) -> Tensor:
    """The tensors joined along an axis they have.

    >>> concatenate([Tensor([1.0]), Tensor([2.0])]).numpy()
    array([1., 2.], dtype=float32)
    """
    if not tensors:
        raise ValueError("concatenate: expected at least one tensor, got none")
    return Concatenate(axis)(*tensors) if len(tensors) > 1 else tensors[0]


def stack(tensors: Sequence[Tensor], axis: int = 0) -> Tensor:
    """The tensors, of one shape, joined along a new axis.

    >>> stack([Tensor([1.0, 2.0]), Tensor([3.0, 4.0])]).shape
    (2, 2)
    """
    return concatenate([expand_dims(t, axis) for t in tensors], axis)


def split(x: Tensor, sizes: Sequence[int] | int, axis: int = 0) -> tuple[Tensor, ...]:
    """x cut along ``axis`` into parts of the given sizes, or into that many equal parts.

    >>> [part.shape for part in split(Tensor([[1.0, 2.0, 3.0]]), (1, 2), axis=1)]
    [(1, 1), (1, 2)]
    """
    (axis,) = axes_of("split", axis, x.ndim)
    if isinstance(sizes, int):
        if sizes < 1 or x.shape[axis] % sizes:
            raise ValueError(f"split: axis {axis} of shape {x.shape} cannot be cut into {sizes} equal parts")
        sizes = [x.shape[axis] // sizes] * sizes
    return cast("tuple[Tensor, ...]", Split(tuple(sizes), axis)(x))


def pad(x: Tensor, widths: Sequence[tuple[int, int]], value: float = 0.0) -> Tensor:
    """x with a constant border; ``widths`` is a (before, after) pair for each axis.

    >>> pad(Tensor([1.0]), [(1, 2)]).numpy()
    array([0., 1., 0., 0.], dtype=float32)
    """
    return Pad(tuple(tuple(w) for w in widths), value)(x)  # type: ignore[misc]


def flip(x: Tensor, axis: int) -> Tensor:
    """x with the order along ``axis`` reversed; a view.

    >>> flip(Tensor([1.0, 2.0]), 0).numpy()
    array([2., 1.], dtype=float32)
    """
    lead = (slice(None),) * axes_of("flip", axis, x.ndim)[0]
    return getitem(x, (*lead, slice(None, None, -1)))


def roll(x: Tensor, shift: int, axis: int) -> Tensor:
    """x moved by ``shift`` along ``axis``; what leaves at one end enters at the other.

    >>> roll(Tensor([1.0, 2.0, 3.0]), 1, 0).numpy()
    array([3., 1., 2.], dtype=float32)
    """
    (axis,) = axes_of("roll", axis, x.ndim)
    shift %= max(x.shape[axis], 1)
    if shift == 0:
        return x
    head, tail = split(x, (x.shape[axis] - shift, shift), axis)
    return concatenate([tail, head], axis)
