"""The heavy operations through oneDNN (3.x) by ctypes, for float32 NumPy arrays; inference also in bfloat16 and bytes.

Every operation returns None when oneDNN has no good kernel for it (or nothing is to be computed): the caller then takes
the reference. Compiled primitives are cached per thread by shape, with their memory objects and argument arrays built
once: a call only sets the addresses that changed. Scratch memory is one buffer per thread, shared by its primitives.
"""

from __future__ import annotations

import ctypes
import logging
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from ctypes import byref, c_float, c_int, c_int64, c_size_t, c_void_p
from functools import partial
from math import prod
from typing import Any

import numpy as np

from . import memory
from .specs import ConvSpec, PoolSpec, Quantization
from .tape import noting, tape

Floats = np.ndarray[Any, np.dtype[np.float32]]
Activation = tuple[str, float, float]
Shape = tuple[int, ...]
Kind = np.dtype[Any]  # of an array's elements: FLOAT32 or BFLOAT16
Kinds = tuple[Kind, Kind]
logger = logging.getLogger("chainsight")

# Numbers of dnnl_types.h (oneDNN 3).
_SUCCESS, _UNIMPLEMENTED = 0, 3
_ANY, _CPU, _IN_ORDER, _USER_SCRATCHPAD = 1, 1, 1, 1
_TRAINING, _INFERENCE, _BACKWARD = 64, 96, 128
_DIRECT, _BINARY_ADD, _BINARY_MULTIPLY = 1, 0x1FFF0, 0x1FFF1
_RESAMPLINGS = {"nearest": 0x2FFF0, "bilinear": 0x2FFF1}
_POOLINGS = {"max": 0x1FF, "include": 0x2FF, "exclude": 0x3FF}
_SRC, _DST, _WEIGHTS, _BIAS, _MEAN, _VARIANCE, _SCALE, _SHIFT = 1, 17, 33, 41, 49, 50, 51, 52
_WORKSPACE, _SCRATCHPAD, _DIFF_SRC, _DIFF_DST, _DIFF_WEIGHTS, _DIFF_SCALE, _DIFF_SHIFT = 64, 80, 129, 145, 161, 255, 256
_POST_OP, _SRC_1, _MANY_SRC = 32768, 2, 1024
_USE_SCALE_AND_SHIFT, _FUSE_RELU = 6, 8
_QUERY_IMPLEMENTATION, _QUERY_ARGUMENT = 8, 255
_SEQUENTIAL_OMP_TBB = 1 | 2 | 4
# name: (algorithm, alpha, beta); None takes the caller's.
_ACTIVATIONS: dict[str, tuple[int, float | None, float | None]] = {
    "relu": (0x20, 0, 0),
    "leaky_relu": (0x20, None, 0),
    "tanh": (0x21, 0, 0),
    "hard_sigmoid": (0x28, 1 / 6, 1 / 2),
    "sigmoid": (0x29, 0, 0),
    "silu": (0x2C, 1, 0),
    "relu6": (0x2E, 0, 6),
    "clip": (0x2E, None, None),
    "gelu": (0x31, 0, 0),
    "mish": (0x33, 0, 0),
    "hard_swish": (0x34, 1 / 6, 1 / 2),
}
# Those whose gradient is computed from the output, with the algorithm that does so.
_FROM_OUTPUT = {"relu": 0x100, "tanh": 0x101, "sigmoid": 0x104, "relu6": 0x106}
_CACHED_PROGRAMS = 4096
FLOAT32 = np.dtype(np.float32)
BFLOAT16 = np.dtype("V2")  # NumPy has no such type: these arrays hold the bits, which can be moved but not added
INT8, UINT8 = np.dtype(np.int8), np.dtype(np.uint8)
_KINDS = {FLOAT32: 3, BFLOAT16: 2, INT8: 5, UINT8: 6}
_BFLOAT16_INSTRUCTIONS = 0x80  # in dnnl_cpu_isa_t


class _Version(ctypes.Structure):
    _fields_ = (
        ("major", c_int),
        ("minor", c_int),
        ("patch", c_int),
        ("hash", ctypes.c_char_p),
        ("runtime", ctypes.c_uint),
    )


class _Argument(ctypes.Structure):
    _fields_ = (("index", c_int), ("memory", c_void_p))


class _Library:
    """The loaded shared library, its version and its CPU engine."""

    def __init__(self, path: str) -> None:
        # Waiting threads of GNU OpenMP spin; with another busy process that costs thirty times the run time. The
        # library reads the variable once, when it is loaded.
        spin = "GOMP_SPINCOUNT" not in os.environ and "OMP_WAIT_POLICY" not in os.environ
        if spin:
            os.environ["GOMP_SPINCOUNT"] = "1000"
        try:
            self.slow = ctypes.CDLL(path)  # releases the interpreter lock: for running and compiling
        finally:
            if spin:
                del os.environ["GOMP_SPINCOUNT"]
        self.fast = ctypes.PyDLL(path)  # keeps it: for calls of nanoseconds
        self.fast.dnnl_version.restype = ctypes.POINTER(_Version)
        version = self.fast.dnnl_version().contents
        self.version = f"{version.major}.{version.minor}.{version.patch}"
        if version.major != 3 or not version.runtime & _SEQUENTIAL_OMP_TBB:
            raise OSError(f"expected oneDNN 3 for OpenMP, got {self.version} with CPU runtime {version.runtime}")
        self.query = self.fast.dnnl_primitive_desc_query_md
        self.query.restype, self.query.argtypes = c_void_p, (c_void_p, c_int, c_int)
        self.size = self.fast.dnnl_memory_desc_get_size
        self.size.restype, self.size.argtypes = c_size_t, (c_void_p,)
        self.set_address = self.fast.dnnl_memory_set_data_handle
        self.set_address.argtypes = (c_void_p, c_void_p)
        self.execute = self.slow.dnnl_primitive_execute
        self.execute.argtypes = (c_void_p, c_void_p, c_int, c_void_p)
        self.engine = self.create("engine", _CPU, c_size_t(0))
        self.has_bfloat16 = bool(self.slow.dnnl_get_effective_cpu_isa() & _BFLOAT16_INSTRUCTIONS)

    def create(self, kind: str, *arguments: Any) -> _Handle:
        """A new object of the library; raises _Unsupported when it has no implementation."""
        creators = {"memory_desc": "memory_desc_create_with_strides", "any_desc": "memory_desc_create_with_tag"}
        name = creators.get(kind, f"{kind}_create")
        handle = c_void_p()
        values = [a.value if isinstance(a, _Handle) else a for a in arguments]
        status = getattr(self.slow, f"dnnl_{name}")(byref(handle), *values)
        if status == _UNIMPLEMENTED:
            raise _Unsupported
        if status != _SUCCESS:
            raise RuntimeError(f"oneDNN {self.version}: {name} failed with status {status}")
        kind = "memory_desc" if kind == "any_desc" else "primitive_desc" if kind.endswith("primitive_desc") else kind
        return _Handle(handle, getattr(self.fast, f"dnnl_{kind}_destroy"))

    def call(self, name: str, *arguments: Any) -> None:
        status = getattr(self.slow, f"dnnl_{name}")(*[a.value if isinstance(a, _Handle) else a for a in arguments])
        if status != _SUCCESS:
            raise RuntimeError(f"oneDNN {self.version}: {name} failed with status {status}")


class _Handle:
    """A pointer to an object of the library, destroyed with it."""

    __slots__ = ("destroy", "value")

    def __init__(self, value: c_void_p, destroy: Callable[[c_void_p], int]) -> None:
        self.value, self.destroy = value, destroy

    def __del__(self) -> None:
        self.destroy(self.value)


class _Unsupported(Exception):
    """oneDNN has no (good) implementation of this."""


_library: _Library | None = None
_searched = False
_loading = threading.Lock()
_threads: int | None = None
_forked = False
_generation = 0  # a new one makes all threads forget their programs: they are compiled for a number of threads


def _candidates() -> list[str]:
    import importlib.metadata  # slow to import, needed once

    found = []
    try:
        files = importlib.metadata.files("onednn-cpu-gomp") or []
        found = [str(file.locate()) for file in files if file.name == "libdnnl.so.3"]
    except importlib.metadata.PackageNotFoundError:
        pass
    return [*found, "libdnnl.so.3"]


def load() -> _Library | None:
    """The library, searched for once: in the wheel onednn-cpu-gomp, then where the system keeps libraries."""
    global _library, _searched
    if _searched:
        return _library
    with _loading:
        if not _searched:
            reasons = []
            for path in _candidates():
                try:
                    _library = _Library(path)
                    break
                except (OSError, RuntimeError) as error:
                    reasons.append(str(error))
            if _library is None:
                logger.warning("oneDNN is not available, slower reference kernels run instead: %s", "; ".join(reasons))
            _searched = True
    return _library


def _after_fork() -> None:
    """A forked child has none of the parent's OpenMP threads and would wait for them for ever: it computes on one."""
    global _forked, _loading
    _forked, _loading = _library is not None, threading.Lock()
    if _forked:
        set_num_threads(1)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class _Thread(threading.local):
    """What each Python thread has of its own: programs, the stream, scratch memory."""

    def __init__(self) -> None:
        self.generation = -1
        self.single = False  # on one OpenMP thread for now, with programs compiled for it
        self.programs: OrderedDict[Any, Any] = OrderedDict()

    def reset(self, library: _Library) -> None:
        self.generation = _generation
        self.programs.clear()
        count = 1 if self.single else _threads
        if count is not None and hasattr(library.slow, "omp_set_num_threads"):
            library.slow.omp_set_num_threads(count)  # OpenMP keeps this number per thread
        self.stream = library.create("stream", library.engine, _IN_ORDER)
        self.scratch = memory.empty((0,), np.uint8)
        self.scratch_address = 0

    def reserve(self, nbytes: int) -> None:
        if nbytes > self.scratch.nbytes:
            self.scratch = memory.empty((max(nbytes, memory.SMALL),), np.uint8)
            self.scratch_address = _address(self.scratch)


_thread = _Thread()


def set_num_threads(count: int) -> None:
    """Use ``count`` OpenMP threads in every Python thread from now on (a forked child stays at one)."""
    global _threads, _generation
    _threads = 1 if _forked else count
    _generation += 1


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute on one OpenMP thread here: for work that is shared among Python threads."""
    library = load()
    if library is None or not hasattr(library.slow, "omp_set_num_threads"):
        yield
        return
    before = get_num_threads()
    _thread.single = True
    library.slow.omp_set_num_threads(1)
    try:
        yield
    finally:
        _thread.single = False
        library.slow.omp_set_num_threads(before)


def generation() -> int:
    """A number that changes with the number of threads."""
    return _generation


def get_num_threads() -> int:
    """The number of OpenMP threads of a computation."""
    library = load()
    if _threads is not None:
        return _threads
    if library is not None and hasattr(library.slow, "omp_get_max_threads"):
        return int(library.slow.omp_get_max_threads())
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


# CPython keeps the address of an array's data right behind the object's head; reading it there takes a quarter of
# the time of ``array.ctypes.data``. Where that is not so (another interpreter), the slow way is taken.
_HEAD = object.__basicsize__


def _address(array: np.ndarray[Any, Any]) -> int:
    return c_size_t.from_address(id(array) + _HEAD).value


_probe = np.zeros(1)
if _address(_probe) != _probe.ctypes.data:

    def _address(array: np.ndarray[Any, Any]) -> int:
        return int(array.ctypes.data)


class _Program:
    """A compiled primitive with its memory objects; ``run`` takes one array per argument, in order."""

    def __init__(self, library: _Library, desc: _Handle, *arguments: int) -> None:
        name = ctypes.c_char_p()
        library.call("primitive_desc_query", desc, _QUERY_IMPLEMENTATION, 0, byref(name))
        if (name.value or b"ref").startswith(b"ref"):
            raise _Unsupported
        self.desc, self.set_address, self.execute, self.thread = desc, library.set_address, library.execute, _thread
        self.scratch = library.size(library.query(desc.value, _QUERY_ARGUMENT, _SCRATCHPAD))
        order = (*arguments, _SCRATCHPAD) if self.scratch else arguments
        descs = [library.query(desc.value, _QUERY_ARGUMENT, index) for index in order]
        self.handles = [library.create("memory", c_void_p(d), library.engine, c_void_p(0)) for d in descs]
        self.memories = [handle.value.value for handle in self.handles]
        self.arguments = (_Argument * len(order))(*map(_Argument, order, self.memories))
        self.handles += [library.create("primitive", desc), _thread.stream]
        self.call = *(handle.value.value for handle in self.handles[-2:]), len(order), ctypes.addressof(self.arguments)
        self.last = [0] * len(order)
        _thread.reserve(self.scratch)

    def run(self, *arrays: np.ndarray[Any, Any] | None) -> None:
        addresses = [_address(array) for array in arrays if array is not None]
        if tape.notes is not None:
            tape.notes.add(partial(self.run_at, addresses), *arrays)
        self.run_at(addresses)

    def run_at(self, addresses: list[int], *_: Any) -> None:
        """Run on what lies at these addresses (in the arrays after them, which nobody reads here)."""
        if self.scratch:
            addresses = [*addresses, self.thread.scratch_address]
        if addresses != self.last:
            for mem, new, old in zip(self.memories, addresses, self.last):
                if new != old:
                    self.set_address(mem, new)
            self.last = addresses
        status = self.execute(*self.call)
        if status != _SUCCESS:
            raise RuntimeError(f"oneDNN: running a primitive failed with status {status}")


def _cached(key: Any, build: Callable[..., Any], *arguments: Any) -> Any:
    """What ``build`` makes for ``key`` in this thread, on first use; None where oneDNN has no implementation."""
    library = _library
    if library is None:
        return None
    if _thread.generation != _generation:
        _thread.reset(library)
    programs, key = _thread.programs, (key, _thread.single)
    try:
        program = programs[key]
        programs.move_to_end(key)
    except KeyError:
        try:
            program = build(library, *arguments)
        except _Unsupported:
            program = None
        programs[key] = program
        if len(programs) > _CACHED_PROGRAMS:
            programs.popitem(last=False)
    return program


def _made(build: Callable[..., Any], *settings: Any) -> Any:
    """What ``build`` makes for these settings, likewise."""
    return _cached((build, settings), build, *settings)


# Descriptions of memory.


def _dims(*values: int) -> Any:
    return (c_int64 * 12)(*values)


def _describe(
    library: _Library, shape: Sequence[int], strides: Sequence[int] | None = None, kind: Kind = FLOAT32
) -> _Handle:
    """Memory of this shape; strides in elements, or the library's own choice."""
    if 0 in shape:
        raise _Unsupported  # nothing to compute
    if strides is None:
        return library.create("any_desc", len(shape), _dims(*shape), _KINDS[kind], _ANY)
    return library.create("memory_desc", len(shape), _dims(*shape), _KINDS[kind], _dims(*strides))


def _dense(library: _Library, shape: Sequence[int], kind: Kind = FLOAT32) -> _Handle:
    """Memory in C order."""
    return _describe(library, shape, [prod(shape[axis + 1 :]) for axis in range(len(shape))], kind)


def _nhwc(library: _Library, shape: Shape, kind: Kind = FLOAT32) -> _Handle:
    _, c, h, w = shape
    return _describe(library, shape, (h * w * c, 1, w * c, c), kind)


def _eltwise(activation: Activation) -> tuple[int, c_float, c_float]:
    name, alpha, beta = activation
    if name not in _ACTIVATIONS:
        raise _Unsupported  # the reference says what is wrong
    algorithm, fixed_alpha, fixed_beta = _ACTIVATIONS[name]
    alpha, beta = alpha if fixed_alpha is None else fixed_alpha, beta if fixed_beta is None else fixed_beta
    return algorithm, c_float(alpha), c_float(beta)


def _attributes(
    library: _Library, activation: Activation | None = None, *binaries: tuple[int, _Handle | None]
) -> _Handle:
    """Scratch memory from outside, and what follows in place: sums and products with arrays, then an activation."""
    attributes, post_ops = library.create("primitive_attr"), library.create("post_ops")
    library.call("primitive_attr_set_scratchpad_mode", attributes, _USER_SCRATCHPAD)
    for algorithm, array in binaries:
        if array:
            library.call("post_ops_append_binary", post_ops, algorithm, array)
    if activation:
        library.call("post_ops_append_eltwise", post_ops, *_eltwise(activation))
    library.call("primitive_attr_set_post_ops", attributes, post_ops)
    return attributes


def _forward_arguments(bias: bool, *arrays: _Handle | None) -> Shape:
    operands = (_POST_OP * (i + 1) | _SRC_1 for i in range(sum(array is not None for array in arrays)))
    return (_SRC, _WEIGHTS, _DST, *((_BIAS,) if bias else ()), *operands)


def _reorder(library: _Library, source: Any, target: Any) -> _Program:
    attributes = _attributes(library)
    desc = library.create("reorder_primitive_desc", source, library.engine, target, library.engine, attributes)
    return _Program(library, desc, _SRC, _DST)


def _build_transpose(library: _Library, shape: Shape) -> _Program:
    return _reorder(library, _dense(library, shape), _nhwc(library, shape))


def _channels_last(x: Floats) -> Floats:
    """x itself where it is dense in channels-last order, a copy otherwise."""
    (_, c, h, w), s = x.shape, x.itemsize
    if x.strides == (h * w * c * s, s, w * c * s, c * s) or x.transpose(0, 2, 3, 1).flags.c_contiguous:
        return x
    y = memory.empty(x.shape, x.dtype)
    turns = x.flags.c_contiguous and x.dtype == FLOAT32
    program = _made(_build_transpose, x.shape) if turns else None
    if program is not None:
        program.run(x, y)
    else:
        if tape.notes is not None:
            tape.notes.add(np.copyto, y, x)
        y[...] = x
    return y


def _build_conversion(library: _Library, size: int, source: Kind, target: Kind) -> _Program:
    return _reorder(library, _dense(library, (size,), source), _dense(library, (size,), target))


def arrange(x: Any, kind: Kind) -> Any:
    """x of this kind, dense: channels-last if it has rank 4, else in C order."""
    x = _channels_last(x) if x.ndim == 4 else np.ascontiguousarray(x)
    if x.dtype == kind or x.size == 0:
        return x.view(kind) if x.dtype == kind else np.empty(x.shape, kind)
    y = memory.empty(x.shape, kind)
    _made(_build_conversion, x.size, x.dtype, kind).run(x, y)
    return y


class _Packing:
    """The change between an array of weights and the layout that a primitive wants for them."""

    def __init__(self, library: _Library, desc: _Handle, argument: int, shape: Shape, groups: int = 1) -> None:
        self.desc, self.shape, self.groups = desc, shape, groups
        self.chosen = c_void_p(library.query(desc.value, _QUERY_ARGUMENT, argument))  # lives as long as desc
        self.nbytes = library.size(self.chosen)

    def build(self, library: _Library, strides: Shape, back: bool) -> _Program | bool:
        """The reorder from (or back to) an array of these strides; False where both layouts are one."""
        shape, elements = self.shape, [s // 4 for s in strides]
        if self.groups > 1:
            shape = (self.groups, shape[0] // self.groups, *shape[1:])
            elements = [elements[0] * shape[1], *elements]
        plain = _describe(library, shape, elements)
        if self.same(library, plain.value):
            return False
        return _reorder(library, self.chosen, plain) if back else _reorder(library, plain, self.chosen)

    def same(self, library: _Library, desc: c_void_p) -> bool:
        return bool(library.fast.dnnl_memory_desc_equal(self.chosen, desc))

    def empty(self) -> Floats:
        return memory.empty((self.nbytes,), np.uint8)

    def pack(self, w: Floats) -> Floats:
        """The weights in the primitive's layout (w itself if that is its layout)."""
        if any(s % 4 or s <= 0 for s in w.strides):
            w = np.ascontiguousarray(w)
        program = _cached((self, w.strides), self.build, w.strides, False)
        if program is False:
            return w
        packed = self.empty()
        program.run(w, packed)
        return packed

    def unpack(self, packed: Floats) -> Floats:
        """Weights in the primitive's layout as a C-contiguous array (``packed`` itself if that is its layout)."""
        w = memory.empty((prod(self.shape),)).reshape(self.shape)
        program = _cached((self, "back"), self.build, w.strides, True)
        if program is False:
            return packed.view(np.float32).reshape(self.shape)
        program.run(packed, w)
        return w


class _Fused:
    """Weights packed in each layout some input shape has asked for so far (mostly one), with bias and activation.

    ``kinds`` are what is multiplied, and the results.
    """

    def __init__(self, w: Floats, b: Floats | None, outputs: int, activation: Activation | None, kinds: Kinds) -> None:
        self.shape, self.activation, self.kinds = w.shape, activation, kinds
        self.b = np.zeros(outputs, np.float32) if b is None else np.ascontiguousarray(b)
        self.operands: tuple[Floats, ...] = (self.b,)  # besides inputs, weights and output
        self.w: Floats | None = w  # let go when packed
        self.token = object()  # names these weights in the threads' caches without keeping them alive
        self.layouts: list[tuple[_Packing, Floats]] = []

    @noting(None)  # is no part of a run
    def packed(self, library: _Library, packing: _Packing) -> int:
        """The number in ``layouts`` of the weights as ``packing`` wants them."""
        for index, (known, _) in enumerate(self.layouts):
            if known.same(library, packing.chosen):
                return index
        w = self.w
        if w is not None:
            packed = packing.pack(w)
        else:
            packed = packing.empty()
            _reorder(library, self.layouts[0][0].chosen, packing.chosen).run(self.layouts[0][1], packed)
        self.layouts.append((packing, packed))
        self.w = w if packed is w else None
        return next(i for i, (known, _) in enumerate(self.layouts) if known is packing)

    def take(self, x: Any) -> Any:
        """x as the program wants it."""
        return arrange(x, self.kinds[0])

    def build(self, library: _Library, x_shape: Shape, residual: Kind | None) -> tuple[_Program, Shape, int]:
        """The program for inputs of this shape, the shape of the output and the number of the weights' layout."""
        raise NotImplementedError

    def __call__(self, x: Floats, residual: Floats | None) -> Floats | None:
        added = None if residual is None else residual.dtype
        found = _cached((self.token, x.shape, added), self.build, x.shape, added)
        if found is None:
            return None
        program, y_shape, layout = found
        if residual is not None:
            residual = arrange(np.broadcast_to(residual, y_shape), residual.dtype)
        y = memory.empty(y_shape, self.kinds[1])
        program.run(self.take(x), self.layouts[layout][1], y, *self.operands, residual)
        return y


# Convolution.


def _conv_parts(
    library: _Library, x_shape: Shape, w_shape: Shape, spec: ConvSpec, kinds: Kinds = (FLOAT32, FLOAT32)
) -> tuple[Shape, tuple[_Handle, _Handle, _Handle], list[Any]]:
    """Output shape; descriptions of input, weights and output; strides, dilation and padding as the library wants."""
    if x_shape[1] != w_shape[1] * spec.groups or w_shape[0] % spec.groups:
        raise _Unsupported  # the reference says what is wrong
    y_shape = (x_shape[0], w_shape[0], *spec.output_size((x_shape[2], x_shape[3]), (w_shape[2], w_shape[3])))
    grouped = (spec.groups, w_shape[0] // spec.groups, *w_shape[1:]) if spec.groups > 1 else w_shape
    top, bottom, left, right = spec.padding
    dilation = _dims(spec.dilation[0] - 1, spec.dilation[1] - 1)
    geometry = [_dims(*spec.stride), dilation, _dims(top, left), _dims(bottom, right)]
    kind, y_kind = kinds
    x, y = _nhwc(library, x_shape, kind), _nhwc(library, y_shape, y_kind)
    w = _describe(library, grouped, None, INT8 if kind == UINT8 else kind)
    return y_shape, (x, w, y), geometry


class _Conv:
    """A program of a convolution or of one of its gradients, the shape of the output and the packing of the weights."""

    def __init__(
        self, library: _Library, kind: str, x_shape: Shape, w_shape: Shape, spec: ConvSpec, bias: bool = False
    ) -> None:
        self.y_shape, (x, w, y), geometry = _conv_parts(library, x_shape, w_shape, spec)
        attributes = _attributes(library)
        b, weights, engine = _dense(library, w_shape[:1]) if bias else None, _WEIGHTS, library.engine
        end = (*geometry, attributes)
        name = "convolution_{}_primitive_desc"
        desc = library.create(name.format("forward"), engine, _TRAINING, _DIRECT, x, w, b, y, *end)
        arguments = _forward_arguments(bias)
        end = (*geometry, desc, attributes)
        if kind == "data":
            desc = library.create(name.format("backward_data"), engine, _DIRECT, x, w, y, *end)
            arguments = _DIFF_DST, _WEIGHTS, _DIFF_SRC
        elif kind == "weights":
            desc = library.create(name.format("backward_weights"), engine, _DIRECT, x, w, None, y, *end)
            arguments, weights = (_SRC, _DIFF_DST, _DIFF_WEIGHTS), _DIFF_WEIGHTS
        self.program = _Program(library, desc, *arguments)
        self.packing = _Packing(library, desc, weights, w_shape, spec.groups)


def conv2d(x: Floats, w: Floats, b: Floats | None, spec: ConvSpec) -> Floats | None:
    conv = _made(_Conv, "forward", x.shape, w.shape, spec, b is not None)
    if conv is None:
        return None
    y = memory.empty(conv.y_shape)
    conv.program.run(_channels_last(x), conv.packing.pack(w), y, None if b is None else np.ascontiguousarray(b))
    return y


def conv2d_input_grad(gy: Floats, w: Floats, x_shape: Shape, spec: ConvSpec) -> Floats | None:
    conv = _made(_Conv, "data", x_shape, w.shape, spec)
    if conv is None or conv.y_shape != gy.shape:
        return None
    gx = memory.empty(x_shape)
    conv.program.run(_channels_last(gy), conv.packing.pack(w), gx)
    return gx


def conv2d_weight_grad(x: Floats, gy: Floats, w_shape: Shape, spec: ConvSpec) -> Floats | None:
    conv = _made(_Conv, "weights", x.shape, w_shape, spec)
    if conv is None or conv.y_shape != gy.shape:
        return None
    packed = conv.packing.empty()
    conv.program.run(_channels_last(x), _channels_last(gy), packed)
    gw: Floats = conv.packing.unpack(packed)
    return gw


class FusedConv2d(_Fused):
    """A convolution with packed weights, bias, residual and activation in one pass; see ``kernels.FusedConv2d``."""

    def __init__(
        self,
        w: Floats,
        b: Floats | None,
        spec: ConvSpec,
        activation: Activation | None,
        kinds: Kinds,
        quantization: Quantization | None = None,
    ) -> None:
        super().__init__(w, b, w.shape[0], activation, kinds)
        self.spec, self.quantization = spec, quantization
        if quantization:  # whole numbers are multiplied; the sums times their steps, plus the bias
            self.kinds = UINT8 if quantization.low == 0 else INT8, FLOAT32
            self.operands = (np.asarray(quantization.steps * quantization.step, np.float32), self.b)
            self.inverse = np.full((1, 1, 1, 1), 1 / quantization.step, np.float32)

    def take(self, x: Any) -> Any:
        if not self.quantization:
            return super().take(x)
        settings = x.shape, self.inverse.shape, self.kinds[0]
        return _apply(_build_multiply, x.shape, self.kinds[0], (arrange(x, FLOAT32), self.inverse), *settings)

    def build(self, library: _Library, x_shape: Shape, residual: Kind | None) -> tuple[_Program, Shape, int]:
        y_shape, (x, w, y), geometry = _conv_parts(library, x_shape, self.shape, self.spec, self.kinds)
        added = None if residual is None else _nhwc(library, y_shape, residual)
        row = _nhwc(library, (1, self.shape[0], 1, 1)) if self.quantization else None
        b = None if row else _dense(library, self.shape[:1])
        binaries = (_BINARY_MULTIPLY, row), (_BINARY_ADD, row), (_BINARY_ADD, added)
        first = library.engine, _TRAINING, _DIRECT, x, w, b, y
        attributes = _attributes(library, self.activation, *binaries)
        desc = library.create("convolution_forward_primitive_desc", *first, *geometry, attributes)
        program = _Program(library, desc, *_forward_arguments(row is None, row, row, added))
        packing = _Packing(library, desc, _WEIGHTS, self.shape, self.spec.groups)
        return program, y_shape, self.packed(library, packing)


# Pooling. ``mode`` is "max", "include" or "exclude": whether the padding counts in a mean.


class _Pool:
    """The forward or the backward program of a pooling, the shape of its output and the size of its notes."""

    def __init__(
        self, library: _Library, x_shape: Shape, spec: PoolSpec, mode: str, direction: int, kind: Kind
    ) -> None:
        size = (x_shape[2], x_shape[3])
        self.y_shape = (*x_shape[:2], *spec.output_size(size))
        ends = list(spec.full_padding(size))
        if mode == "include" and ends != list(spec.padding):
            raise _Unsupported  # oneDNN would count what hangs over the padding
        for axis in (0, 1):
            # The padding behind must yield just this number of windows: with ceil_mode one more might fit into it.
            room = size[axis] + ends[2 * axis] + ends[2 * axis + 1] - spec.dilation[axis] * (spec.kernel[axis] - 1) - 1
            ends[2 * axis + 1] -= max(0, room - self.y_shape[2 + axis] * spec.stride[axis] + 1)
        top, bottom, left, right = ends
        dilation = _dims(spec.dilation[0] - 1, spec.dilation[1] - 1)
        geometry = _dims(*spec.stride), _dims(*spec.kernel), dilation, _dims(top, left), _dims(bottom, right)
        x, y, attributes = *(_nhwc(library, s, kind) for s in (x_shape, self.y_shape)), _attributes(library)
        name, parts = "pooling_{}_primitive_desc", (_POOLINGS[mode], x, y, *geometry)
        phase = _INFERENCE if direction == _INFERENCE else _TRAINING
        desc = library.create(name.format("forward"), library.engine, phase, *parts, attributes)
        notes = (_WORKSPACE,) if mode == "max" and direction != _INFERENCE else ()
        self.notes = library.size(library.query(desc.value, _QUERY_ARGUMENT, _WORKSPACE)) if notes else 0
        if direction == _BACKWARD:
            desc = library.create(name.format("backward"), library.engine, *parts, desc, attributes)
            self.program = _Program(library, desc, _DIFF_DST, _DIFF_SRC, *notes)
        else:
            self.program = _Program(library, desc, _SRC, _DST, *notes)


def pool2d(x: Floats, spec: PoolSpec, mode: str, need_notes: bool) -> tuple[Floats, Any] | None:
    """The pooled array and (for the maximum, if needed) the notes that the gradient takes."""
    pool = _made(_Pool, x.shape, spec, mode, _TRAINING if need_notes else _INFERENCE, x.dtype)
    if pool is None:
        return None
    y, notes = memory.empty(pool.y_shape, x.dtype), memory.empty((pool.notes,), np.uint8) if pool.notes else None
    pool.program.run(_channels_last(x), y, notes)
    return y, notes


def pool2d_grad(gy: Floats, x_shape: Shape, spec: PoolSpec, mode: str, notes: Any = None) -> Floats | None:
    pool = _made(_Pool, x_shape, spec, mode, _BACKWARD, FLOAT32)
    if pool is None or pool.y_shape != gy.shape:
        return None
    gx = memory.empty(x_shape)
    pool.program.run(_channels_last(gy), gx, notes)
    return gx


# Batch normalisation, with or without a ReLU behind it.


class _Norm:
    """The forward or the backward program, and the size of the notes about the ReLU."""

    def __init__(self, library: _Library, shape: Shape, eps: float, relu: bool, backward: bool) -> None:
        x, attributes = _nhwc(library, shape), _attributes(library)
        last = c_float(eps), _USE_SCALE_AND_SHIFT | _FUSE_RELU * relu
        name, notes = "batch_normalization_{}_primitive_desc", (_WORKSPACE,) if relu else ()
        desc = library.create(name.format("forward"), library.engine, _TRAINING, x, x, *last, attributes)
        self.notes = library.size(library.query(desc.value, _QUERY_ARGUMENT, _WORKSPACE)) if relu else 0
        arguments: Shape = (_SRC, _SCALE, _SHIFT, _DST, _MEAN, _VARIANCE)
        if backward:
            desc = library.create(name.format("backward"), library.engine, _BACKWARD, x, x, x, *last, desc, attributes)
            arguments = _SRC, _DIFF_DST, _SCALE, _MEAN, _VARIANCE, _DIFF_SRC, _DIFF_SCALE, _DIFF_SHIFT
        self.program = _Program(library, desc, *arguments, *notes)


def batch_norm(
    x: Floats, gamma: Floats, beta: Floats, eps: float, relu: bool
) -> tuple[Floats, Floats, Floats, Any] | None:
    """y, mean, variance and the notes for the gradient."""
    norm = _made(_Norm, x.shape, eps, relu, False)
    if norm is None:
        return None
    y, gamma, beta = memory.empty(x.shape), np.ascontiguousarray(gamma), np.ascontiguousarray(beta)
    mean, var = np.empty_like(gamma), np.empty_like(gamma)
    notes = memory.empty((norm.notes,), np.uint8) if relu else None
    norm.program.run(_channels_last(x), gamma, beta, y, mean, var, notes)
    if relu and not (known := np.isfinite(var * gamma + beta)).all():
        y[:, ~known] = np.nan  # the fused ReLU makes zeros of NaN: a run that diverged would look sound
    return y, mean, var, notes


def batch_norm_grad(
    x: Floats, gy: Floats, gamma: Floats, mean: Floats, var: Floats, eps: float, notes: Any
) -> tuple[Floats, Floats, Floats] | None:
    norm = _made(_Norm, x.shape, eps, notes is not None, True)
    if norm is None:
        return None
    gx, ggamma, gbeta = memory.empty(x.shape), np.empty_like(mean), np.empty_like(mean)
    rows = map(np.ascontiguousarray, (gamma, mean, var))
    norm.program.run(_channels_last(x), _channels_last(gy), *rows, gx, ggamma, gbeta, notes)
    return gx, ggamma, gbeta


# Layer normalisation, in inference.


def _build_layer_norm(library: _Library, rows: int, features: int, eps: float) -> _Program:
    x, last = _dense(library, (rows, features)), (c_float(eps), _USE_SCALE_AND_SHIFT, _attributes(library))
    desc = library.create("layer_normalization_forward_primitive_desc", library.engine, _INFERENCE, x, x, None, *last)
    return _Program(library, desc, _SRC, _SCALE, _SHIFT, _DST)


def layer_norm(x: Floats, gamma: Floats, beta: Floats, eps: float) -> Floats | None:
    """x (..., features), dense, normalised over its last axis, times gamma plus beta."""
    rows, *row = x.reshape(-1, x.shape[-1]), np.ascontiguousarray(gamma), np.ascontiguousarray(beta)
    y = _apply(_build_layer_norm, rows.shape, FLOAT32, (rows, *row), *rows.shape, eps)
    return None if y is None else y.reshape(x.shape)


# Activations.


def _build_activation(library: _Library, size: int, activation: Activation, backward: bool) -> _Program:
    row, (algorithm, alpha, beta), attributes = _dense(library, (size,)), _eltwise(activation), _attributes(library)
    source = _FROM_OUTPUT.get(activation[0]) if backward else None
    algorithm, kind = source or algorithm, _TRAINING if backward else _INFERENCE
    parts = kind, algorithm, row, row, alpha, beta, attributes
    desc = library.create("eltwise_forward_primitive_desc", library.engine, *parts)
    if not backward:
        return _Program(library, desc, _SRC, _DST)
    rest = algorithm, row, row, row, alpha, beta, desc, attributes
    desc = library.create("eltwise_backward_primitive_desc", library.engine, *rest)
    return _Program(library, desc, _DST if source else _SRC, _DIFF_DST, _DIFF_SRC)


def activate(x: Floats, activation: Activation) -> Floats | None:
    """An activation of a dense array, in C or channels-last order; None for other layouts."""
    last = x.ndim == 4 and x.transpose(0, 2, 3, 1).flags.c_contiguous
    dense = last or x.flags.c_contiguous
    program = _made(_build_activation, x.size, activation, False) if dense else None
    if program is None:
        return None
    y = memory.empty(x.shape) if last else memory.empty((x.size,)).reshape(x.shape)
    program.run(x, y)
    return y


def activate_grad(v: Floats, gy: Floats, activation: Activation) -> Floats | None:
    """The gradient of an activation by its input, from v: its output for some, its input for the others."""
    program = _made(_build_activation, v.size, activation, True)
    if program is None:
        return None
    arrange = _channels_last if v.ndim == 4 else np.ascontiguousarray
    gx = memory.empty(v.shape)
    program.run(arrange(v), arrange(gy), gx)
    return gx


# Elementwise with a broadcast, joining and resizing, in inference.


def _apply(build: Callable[..., _Program], y_shape: Shape, kind: Kind, arrays: Sequence[Any], *settings: Any) -> Any:
    """What the program that ``build`` makes for these settings gives; None where there is none."""
    program = _made(build, *settings)
    if program is None:
        return None
    y = memory.empty(y_shape, kind)
    program.run(*arrays, y)
    return y


def _build_multiply(library: _Library, shape: Shape, scale_shape: Shape, kind: Kind) -> _Program:
    x, scale, y = _nhwc(library, shape), _nhwc(library, scale_shape), _nhwc(library, shape, kind)
    parts = _BINARY_MULTIPLY, x, scale, y, _attributes(library)
    desc = library.create("binary_primitive_desc", library.engine, *parts)
    return _Program(library, desc, _SRC, _SRC_1, _DST)


def multiply(x: Floats, scale: Floats) -> Any:
    """x (n, channels, height, width) times ``scale`` (n, channels, 1, 1)."""
    settings = x.shape, scale.shape, FLOAT32
    return _apply(_build_multiply, x.shape, FLOAT32, (_channels_last(x), _channels_last(scale)), *settings)


def _build_concatenate(library: _Library, parts: Sequence[tuple[Shape, Shape]], y_shape: Shape, kind: Kind) -> _Program:
    handles = [_describe(library, shape, [s // kind.itemsize for s in strides], kind) for shape, strides in parts]
    sources = (c_void_p * len(parts))(*(handle.value.value for handle in handles))
    y, attributes = _nhwc(library, y_shape, kind), _attributes(library)
    desc = library.create("concat_primitive_desc", library.engine, y, len(parts), 1, sources, attributes)
    return _Program(library, desc, *(_MANY_SRC + i for i in range(len(parts))), _DST)


def concatenate(arrays: Sequence[Any]) -> Any:
    """Arrays of rank 4 and one dtype joined along the channels."""
    (n, _, h, w), kind, parts = arrays[0].shape, arrays[0].dtype, tuple((a.shape, a.strides) for a in arrays)
    y_shape = (n, sum(a.shape[1] for a in arrays), h, w)
    return _apply(_build_concatenate, y_shape, kind, arrays, parts, y_shape, kind)


def _build_resize(library: _Library, shape: Shape, y_shape: Shape, mode: str, kind: Kind) -> _Program:
    x, y, attributes = _nhwc(library, shape, kind), _nhwc(library, y_shape, kind), _attributes(library)
    parts = library.engine, _INFERENCE, _RESAMPLINGS[mode], None, x, y, attributes
    return _Program(library, library.create("resampling_forward_primitive_desc", *parts), _SRC, _DST)


def resize(x: Any, size: tuple[int, int], mode: str) -> Any:
    """x at another height and width, half-integers the centres of pixels, without antialiasing."""
    y_shape = (*x.shape[:2], *size)
    return _apply(_build_resize, y_shape, x.dtype, (_channels_last(x),), x.shape, y_shape, mode, x.dtype)


# Matrix products.


def _matrix(a: Floats) -> Floats:
    """a itself where the strides of its last two axes are those of a matrix or its transpose, a copy otherwise."""
    rows, columns = a.strides[-2:]
    m, n = a.shape[-2:]
    dense = (columns == 4 and rows >= 4 * n) or (rows == 4 and columns >= 4 * m)
    return a if dense and all(s > 0 and s % 4 == 0 for s in a.strides) else np.ascontiguousarray(a)


def _build_matmul(
    library: _Library, a: tuple[Shape, Shape], b: tuple[Shape, Shape], bias: bool, activation: Activation | None
) -> _Program:
    """Both matrices are given by shape and strides in bytes."""
    left, right = (_describe(library, shape, [s // 4 for s in strides]) for shape, strides in (a, b))
    return _matmul_program(library, left, right, (*a[0][:-1], b[0][-1]), bias, FLOAT32, activation)


def _matmul_program(
    library: _Library,
    left: _Handle,
    right: _Handle,
    y_shape: Shape,
    bias: bool,
    y_kind: Kind = FLOAT32,
    activation: Activation | None = None,
    residual: Kind | None = None,
) -> _Program:
    row = _dense(library, (1, y_shape[-1])) if bias else None
    added = None if residual is None else _dense(library, y_shape, residual)
    parts = left, right, row, _dense(library, y_shape, y_kind), _attributes(library, activation, (_BINARY_ADD, added))
    desc = library.create("matmul_primitive_desc", library.engine, *parts)
    return _Program(library, desc, *_forward_arguments(bias, added))


def matmul(
    a: Floats, b: Floats, bias: Floats | None = None, out: Floats | None = None, activation: Activation | None = None
) -> Floats | None:
    """The product of two matrices (plus a row) or of two equally long stacks, in ``out``; None for anything else."""
    if a.ndim != b.ndim or a.ndim not in (2, 3) or a.shape[-1] != b.shape[-2] or a.shape[:-2] != b.shape[:-2]:
        return None
    a, b = _matrix(a), _matrix(b)
    sides = (a.shape, a.strides), (b.shape, b.strides)
    settings = *sides, bias is not None, activation
    program = _made(_build_matmul, *settings)
    if program is None:
        return None
    y = memory.empty((*a.shape[:-1], b.shape[-1])) if out is None else out
    program.run(a, b, y, None if bias is None else np.ascontiguousarray(bias))
    return y


class FusedLinear(_Fused):
    """A linear layer with packed weights, bias, residual and activation in one pass; see ``kernels.FusedLinear``."""

    def __init__(self, w: Floats, b: Floats | None, activation: Activation | None, kinds: Kinds) -> None:
        super().__init__(w.T, b, w.shape[0], activation, kinds)

    def build(self, library: _Library, x_shape: Shape, residual: Kind | None) -> tuple[_Program, Shape, int]:
        x, w = _dense(library, x_shape, self.kinds[0]), _describe(library, self.shape, None, self.kinds[0])
        y_shape = x_shape[0], self.shape[1]
        program = _matmul_program(library, x, w, y_shape, True, self.kinds[1], self.activation, residual)
        return program, y_shape, self.packed(library, _Packing(library, program.desc, _WEIGHTS, self.shape))


class PackedStack(_Fused):
    """A stack of matrices (n, in, out), packed, to multiply stacks of rows (n, rows, in) with."""

    def __init__(self, w: Floats) -> None:
        super().__init__(w, None, w.shape[2], None, (FLOAT32, FLOAT32))

    def build(self, library: _Library, x_shape: Shape, residual: Kind | None) -> tuple[_Program, Shape, int]:
        y_shape = (*x_shape[:2], self.shape[2])
        program = _matmul_program(library, _dense(library, x_shape), _describe(library, self.shape), y_shape, False)
        return program, y_shape, self.packed(library, _Packing(library, program.desc, _WEIGHTS, self.shape))

    def prepare(self, x_shape: Shape) -> tuple[_Program, Floats]:
        """The program for rows of this shape and the matrices as it wants them."""
        program, _, layout = _cached((self.token, x_shape), self.build, x_shape, None)
        return program, self.layouts[layout][1]
