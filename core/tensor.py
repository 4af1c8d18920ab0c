"""The Tensor: an array, and the function that made it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from . import kernels
from .device import Array, device_of, get_namespace, to_numpy
from .function import Function, backward


class Tensor:
    """An array of any device that remembers how it was computed.

    ``data`` is a NumPy or CuPy array, or anything NumPy turns into one; Python floats become float32, arrays keep
    their dtype. Images are (batch, channels, height, width). After ``backward`` a leaf with ``requires_grad`` holds
    its gradient in ``grad``. Raises TypeError for data that is no array of numbers or for ``requires_grad`` on
    integers.

    >>> x = Tensor([1.0, 2.0], requires_grad=True)
    >>> y = (x * x).sum()
    >>> y.backward()
    >>> x.grad
    Tensor([2., 4.], shape (2,), float32)
    """

    __slots__ = ("__weakref__", "_data", "creator", "grad", "output_index", "requires_grad", "version")
    __array_ufunc__ = None  # ndarray <op> Tensor defers to the Tensor
    __array_priority__ = 100  # CuPy's way of saying the same

    _data: Array
    creator: Function | None
    grad: Tensor | None
    requires_grad: bool
    version: int

    def __init__(self, data: Any, requires_grad: bool = False) -> None:
        if isinstance(data, Tensor):
            data = data._data
        if isinstance(data, (bool, int, float, list, tuple, np.generic)):
            generic = isinstance(data, np.generic)
            data = np.asarray(data)
            if data.dtype == np.float64 and not generic:
                data = data.astype(np.float32)
        get_namespace(data)
        if data.dtype.kind not in "fiub":
            raise TypeError(f"expected numbers, got an array of dtype {data.dtype}")
        if requires_grad and data.dtype.kind != "f":
            raise TypeError(f"only floating-point tensors have gradients, got {data.dtype}")
        self._data = data
        self.requires_grad = requires_grad
        self.creator = self.grad = None
        self.output_index = self.version = 0

    @property
    def data(self) -> Array:
        """The array. To assign it (also ``t.data += 1``) is a change: graphs that saved it can no longer be walked."""
        return self._data

    @data.setter
    def data(self, value: Array) -> None:
        get_namespace(value)
        self._data = value
        self.version += 1
        if self.creator is not None:
            self.creator.outputs_changed = True

    @property
    def shape(self) -> tuple[int, ...]:
        return self._data.shape  # type: ignore[no-any-return]

    @property
    def dtype(self) -> np.dtype[Any]:
        return self._data.dtype  # type: ignore[no-any-return]

    @property
    def ndim(self) -> int:
        return self._data.ndim  # type: ignore[no-any-return]

    @property
    def size(self) -> int:
        return int(self._data.size)

    @property
    def device(self) -> str:
        """ "cpu" or "cuda:N"."""
        return device_of(self._data)

    @property
    def xp(self) -> Any:
        """The module (numpy or cupy) that works on the array."""
        return get_namespace(self._data)

    def numpy(self) -> np.ndarray:
        """The values on the host, shared with the tensor if it lives there (and is no bfloat16, of inference)."""
        return to_numpy(kernels.widen(self._data))

    def item(self) -> float:
        """The value of a tensor of one element as a Python number."""
        return self._data.item()  # type: ignore[no-any-return]

    def writable(self) -> Array:
        """The array, to be written in place: counts as a change, and copies an array that is read-only first."""
        if not getattr(self._data.flags, "writeable", True):  # a kernel was packed from it, or it maps a file
            self._data = self._data.copy()
        self.version += 1
        return self._data

    def detach(self) -> Tensor:
        """The same array outside of any graph."""
        return wrap(self._data)

    def backward(
        self, gradient: Tensor | None = None, *, retain_graph: bool = False, create_graph: bool = False
    ) -> None:
        """Add this tensor's gradient to ``grad`` of every leaf it depends on; see ``chainsight.core.backward``."""
        backward([self], [gradient], retain_graph=retain_graph, create_graph=create_graph)

    def to(self, device: str) -> Tensor:
        """The tensor on ``device`` ("cpu", "cuda", "cuda:N"); itself if it is there. Differentiable."""
        return F.to(self, device) if device != self.device else self

    def astype(self, dtype: Any) -> Tensor:
        """The tensor in another dtype; itself if it has it. Differentiable between floating-point types."""
        return F.astype(self, dtype) if self.dtype != dtype else self

    def __array__(self, *args: Any, **kwargs: Any) -> np.ndarray:
        # Without this NumPy would take a Tensor for a sequence, and build an array of objects element by element.
        raise TypeError("a Tensor is converted to an array only when told to: pass tensor.numpy()")

    def __len__(self) -> int:
        if not self.ndim:
            raise TypeError("a tensor without axes has no length")
        return self.shape[0]

    def __iter__(self) -> Iterator[Tensor]:
        return (self[i] for i in range(len(self)))

    def __bool__(self) -> bool:
        if self.size != 1:
            raise ValueError(f"a tensor of shape {self.shape} has no single truth value")
        return bool(self._data.item())

    def __float__(self) -> float:
        return float(self._data.item())

    def __int__(self) -> int:
        return int(self._data.item())

    def __repr__(self) -> str:
        facts = [f"shape {self.shape}", str(self.dtype)]
        if self.device != "cpu":
            facts.append(self.device)
        if self.creator is not None:
            facts.append(f"by {self.creator.name}")
        elif self.requires_grad:
            facts.append("requires_grad")
        values = self.numpy()
        if self.size <= 20:
            text = np.array2string(values, separator=", ", precision=6).replace("\n", "\n       ")
        elif values.dtype.kind == "f":
            finite = values[np.isfinite(values)].astype(np.float64)
            text = f"mean {finite.mean():.4g}, std {finite.std():.4g}, " if finite.size else ""
            text += f"{finite.min():.4g} .. {finite.max():.4g}" if finite.size else ""
            if finite.size < values.size:
                text += f"{', ' if text else ''}{values.size - finite.size} not finite"
        else:
            text = f"{values.min()} .. {values.max()}"
        return f"Tensor({text}, {', '.join(facts)})"

    __hash__ = object.__hash__

    def __neg__(self) -> Tensor:
        return F.neg(self)

    def __abs__(self) -> Tensor:
        return F.abs(self)

    def __add__(self, other: Any) -> Tensor:
        return F.add(self, other)

    __radd__ = __add__

    def __sub__(self, other: Any) -> Tensor:
        return F.sub(self, other)

    def __rsub__(self, other: Any) -> Tensor:
        return F.sub(other, self)

    def __mul__(self, other: Any) -> Tensor:
        return F.mul(self, other)

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> Tensor:
        return F.div(self, other)

    def __rtruediv__(self, other: Any) -> Tensor:
        return F.div(other, self)

    def __pow__(self, exponent: Any) -> Tensor:
        return F.pow(self, exponent)

    def __rpow__(self, base: Any) -> Tensor:
        return F.pow(base, self)

    def __matmul__(self, other: Any) -> Tensor:
        return F.matmul(self, other)

    def __rmatmul__(self, other: Any) -> Tensor:
        return F.matmul(other, self)

    def __getitem__(self, index: Any) -> Tensor:
        return F.getitem(self, index)

    def __lt__(self, other: Any) -> Tensor:
        return wrap(self._data < _array(other))

    def __le__(self, other: Any) -> Tensor:
        return wrap(self._data <= _array(other))

    def __gt__(self, other: Any) -> Tensor:
        return wrap(self._data > _array(other))

    def __ge__(self, other: Any) -> Tensor:
        return wrap(self._data >= _array(other))

    def __eq__(self, other: object) -> Any:
        return wrap(self._data == _array(other))

    def __ne__(self, other: object) -> Any:
        return wrap(self._data != _array(other))

    def sum(self, axis: Any = None, keepdims: bool = False) -> Tensor:
        return F.sum(self, axis, keepdims)

    def mean(self, axis: Any = None, keepdims: bool = False) -> Tensor:
        return F.mean(self, axis, keepdims)

    def max(self, axis: Any = None, keepdims: bool = False) -> Tensor:
        return F.max(self, axis, keepdims)

    def min(self, axis: Any = None, keepdims: bool = False) -> Tensor:
        return F.min(self, axis, keepdims)

    def reshape(self, *shape: Any) -> Tensor:
        return F.reshape(self, shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape)

    def transpose(self, *axes: int) -> Tensor:
        return F.transpose(self, axes or None)

    @property
    def T(self) -> Tensor:
        return F.transpose(self)


class Parameter(Tensor):
    """A leaf that training changes: what a Module lists as its parameters.

    >>> Parameter(np.zeros(3, np.float32))
    Tensor([0., 0., 0.], shape (3,), float32, requires_grad)
    """

    __slots__ = ()

    def __init__(self, data: Any, requires_grad: bool = True) -> None:
        super().__init__(data, requires_grad)


class Buffer(Tensor):
    """State that is saved with a Module but not trained, like a running mean.

    >>> Buffer(np.zeros(3, np.float32)).requires_grad
    False
    """

    __slots__ = ()


def wrap(array: Array) -> Tensor:
    """A Tensor around an array that needs no checks (the quick way, for results of our own operations)."""
    t = object.__new__(Tensor)
    t._data = np.asarray(array) if isinstance(array, np.generic) else array
    t.requires_grad = False
    t.creator = t.grad = None
    t.output_index = t.version = 0
    return t


def _array(value: Any) -> Any:
    return value._data if isinstance(value, Tensor) else value


from . import functions as F  # noqa: E402  last, as the functions import this module
