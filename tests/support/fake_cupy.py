"""A stand-in for CuPy without a GPU: NumPy inside, CuPy's strictness outside.

Arrays never turn into NumPy's on their own and never mix with them; only functions and keyword arguments that CuPy 13
and 14 have exist. ``install`` makes the core see it.
"""

import builtins
import contextlib
import operator
import types

import numpy as np
from chainsight.core import register_namespace

int8, int16, int32, int64, uint8 = np.int8, np.int16, np.int32, np.int64, np.uint8
float16, float32, float64, bool_ = np.float16, np.float32, np.float64, np.bool_
newaxis, inf, nan, pi = None, np.inf, np.nan, np.pi

SCALARS = (bool, int, float, np.generic, type(None), slice, type(Ellipsis), str, np.dtype, type)


def _host(value):
    """The NumPy value inside; anything that CuPy would not take is an error."""
    if isinstance(value, ndarray):
        return value._inner
    if isinstance(value, tuple):
        return tuple(_host(v) for v in value)
    if isinstance(value, list):
        return [_host(v) for v in value]
    if isinstance(value, SCALARS):
        return value
    raise TypeError(f"Unsupported type {type(value)}")


def _device(value):
    if isinstance(value, (np.ndarray, np.generic)):
        made = object.__new__(ndarray)
        made._inner = np.asarray(value)
        return made
    return tuple(_device(v) for v in value) if isinstance(value, (tuple, list)) else value


class ndarray:
    """An array of the pretended GPU."""

    __array_ufunc__ = None
    __array_priority__ = 10
    __hash__ = None

    def __array__(self, *args, **kwargs):
        raise TypeError("Implicit conversion to a NumPy array is not allowed. Please use `.get()` to construct one.")

    shape = property(lambda self: self._inner.shape)
    dtype = property(lambda self: self._inner.dtype)
    ndim = property(lambda self: self._inner.ndim)
    size = property(lambda self: self._inner.size)
    nbytes = property(lambda self: self._inner.nbytes)
    strides = property(lambda self: self._inner.strides)
    flags = property(lambda self: self._inner.flags)
    base = property(lambda self: self._inner.base)  # only its identity is of use
    device = types.SimpleNamespace(id=0)
    T = property(lambda self: _device(self._inner.T))

    def get(self):
        return self._inner.copy()

    def __getitem__(self, index):
        return _device(np.asarray(self._inner[_host(index)]))

    def __setitem__(self, index, value):
        self._inner[_host(index)] = _host(value)

    def __len__(self):
        return len(self._inner)

    def __bool__(self):
        return bool(self._inner)

    def __int__(self):
        return int(self._inner)

    def __float__(self):
        return float(self._inner)

    def __index__(self):
        return operator.index(self._inner)

    def __repr__(self):
        return repr(self._inner)


def _method(name, *keywords):
    def call(self, *args, **kwargs):
        if not kwargs.keys() <= set(keywords):
            raise TypeError(f"cupy.ndarray.{name} has no {set(kwargs) - set(keywords)}")
        return _device(getattr(self._inner, name)(*map(_host, args), **{k: _host(v) for k, v in kwargs.items()}))

    return call


for _name in ("sum", "mean", "max", "min", "any", "all", "prod"):
    setattr(ndarray, _name, _method(_name, "axis", "keepdims", "out"))
for _name in ("reshape", "transpose", "ravel", "copy", "fill", "squeeze", "item", "tolist", "nonzero", "tobytes"):
    setattr(ndarray, _name, _method(_name))
ndarray.item = lambda self: self._inner.item()
ndarray.astype = _method("astype", "copy", "order")
ndarray.argmax = _method("argmax", "axis")
ndarray.argsort = _method("argsort", "axis")
ndarray.take = _method("take", "axis", "out")
ndarray.clip = _method("clip")


def _deferring(operation):
    """To a right operand of higher priority, as CuPy does."""

    def call(self, other):
        if getattr(other, "__array_priority__", 0) > self.__array_priority__:
            return NotImplemented
        return operation(self, other)

    return call


def _binary(function):
    return lambda self, other: _device(np.asarray(function(self._inner, _host(other))))


def _reflected(function):
    return lambda self, other: _device(np.asarray(function(_host(other), self._inner)))


def _in_place(function):
    def call(self, other):
        self._inner = function(self._inner, _host(other))
        return self

    return call


def _unary(function):
    return lambda self: _device(np.asarray(function(self._inner)))


for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor"):
    _plain = getattr(operator, f"__{_name}__")
    setattr(ndarray, f"__{_name}__", _deferring(_binary(_plain)))
    setattr(ndarray, f"__r{_name}__", _reflected(_plain))
    setattr(ndarray, f"__i{_name}__", _in_place(getattr(operator, f"__i{_name}__")))
for _name in ("lt", "le", "gt", "ge", "eq", "ne"):
    setattr(ndarray, f"__{_name}__", _deferring(_binary(getattr(operator, _name))))
for _name in ("neg", "abs", "invert", "pos"):
    setattr(ndarray, f"__{_name}__", _unary(getattr(operator, _name)))


def _function(name, keywords="", at_most=9):
    """NumPy's function on arrays of the device, with no more positional and keyword arguments than CuPy's has."""
    inner, allowed = getattr(np, name), set(keywords.split())

    def call(*args, **kwargs):
        if not kwargs.keys() <= allowed or len(args) > at_most:
            raise TypeError(f"cupy.{name} has no {set(kwargs) - allowed}")
        if not builtins.any(isinstance(a, (ndarray, tuple, list)) for a in args):
            raise TypeError(f"cupy.{name}: no array among the arguments")
        result = inner(*map(_host, args), **{k: _host(v) for k, v in kwargs.items()})
        out = kwargs.get("out")
        return _device(np.asarray(result) if np.isscalar(result) else result) if out is None else out

    return call


UNARY = "exp log log1p log2 expm1 sqrt square tanh sin cos arctan abs absolute sign negative floor ceil rint"
BINARY = "maximum minimum add subtract multiply divide true_divide power arctan2 equal greater less"
LOGICAL = "isfinite isnan isinf logical_and logical_or logical_not"
REDUCTIONS = "sum mean amax amin max min any all prod"
for _name in f"{UNARY} {BINARY} {LOGICAL}".split():
    globals()[_name] = _function(_name, "out")
for _name in REDUCTIONS.split():
    globals()[_name] = _function(_name, "axis keepdims out")
clip = _function("clip", "out")
where = _function("where", at_most=3)
matmul = _function("matmul", "out")
take = _function("take", "axis out", at_most=3)
take_along_axis = _function("take_along_axis", "axis")
pad = _function("pad", "mode constant_values")
concatenate = _function("concatenate", "axis out")
stack = _function("stack", "axis out")
broadcast_to = _function("broadcast_to")
argsort = _function("argsort", "axis")
argmax = _function("argmax", "axis")
cumsum = _function("cumsum", "axis")
nonzero = _function("nonzero")
flatnonzero = _function("flatnonzero")
searchsorted = _function("searchsorted", "side")
bincount = _function("bincount", "weights minlength")
ascontiguousarray = _function("ascontiguousarray", "dtype")
empty_like = _function("empty_like", "dtype")
zeros_like = _function("zeros_like", "dtype")
ones_like = _function("ones_like", "dtype")
moveaxis = _function("moveaxis")
tensordot = _function("tensordot", "axes")
einsum = _function("einsum")
dot = _function("dot", "out")


def _at(array, index, values):
    if array.dtype not in (np.float16, np.float32, np.float64, np.int32, np.uint32, np.uint64):
        raise TypeError(f"cupy.add.at does not support {array.dtype}")
    np.add.at(array._inner, _host(index), _host(values))


globals()["add"].at = _at


def asarray(value, dtype=None):
    """The one door by which NumPy arrays and numbers come to the device (always a copy, as over a bus)."""
    if isinstance(value, ndarray):
        return value if dtype is None or value.dtype == dtype else value.astype(dtype)
    return _device(np.array(value, dtype))


array = asarray


def asnumpy(value):
    """The one door by which arrays leave."""
    return value._inner.copy()


def zeros(shape, dtype=float):
    return _device(np.zeros(_host(shape), dtype))


def empty(shape, dtype=float):
    return _device(np.full(_host(shape), 77, dtype))


def ones(shape, dtype=float):
    return _device(np.ones(_host(shape), dtype))


def full(shape, value, dtype=None):
    return _device(np.full(_host(shape), _host(value), dtype))


def arange(start, stop=None, step=1, dtype=None):
    return _device(np.arange(0 if stop is None else start, start if stop is None else stop, step, dtype))


cuda = types.SimpleNamespace(Device=lambda index=None: contextlib.nullcontext())


def install():
    """Make this module the namespace of its arrays."""
    import fake_cupy

    register_namespace(ndarray, fake_cupy)
