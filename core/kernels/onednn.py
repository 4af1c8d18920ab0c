"""The heavy operations through oneDNN (3.x) by ctypes, for float32 NumPy arrays.

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
from collections.abc import Callable, Sequence
from ctypes import byref, c_float, c_int, c_int64, c_size_t, c_void_p
from typing import Any

import numpy as np
import numpy.typing as npt

from . import memory
from .specs import ConvSpec, PoolSpec

Floats = npt.NDArray[np.float32]
logger = logging.getLogger("chainsight")

# Numbers of dnnl_types.h (oneDNN 3).
_SUCCESS, _UNIMPLEMENTED = 0, 3
_F32, _ANY, _CPU, _IN_ORDER, _USER_SCRATCHPAD = 3, 1, 1, 1, 1
_TRAINING, _INFERENCE, _BACKWARD = 64, 96, 128
_DIRECT, _POOL_MAX, _POOL_INCLUDE, _POOL_EXCLUDE, _BINARY_ADD = 1, 0x1FF, 0x2FF, 0x3FF, 0x1FFF0
_SRC, _DST, _WEIGHTS, _BIAS, _MEAN, _VARIANCE, _SCALE, _SHIFT = 1, 17, 33, 41, 49, 50, 51, 52
_WORKSPACE, _SCRATCHPAD, _DIFF_SRC, _DIFF_DST, _DIFF_WEIGHTS, _DIFF_SCALE, _DIFF_SHIFT = 64, 80, 129, 145, 161, 255, 256
_FIRST_POST_OP_SRC_1 = 32768 | 2
_USE_SCALE_AND_SHIFT = 6
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
_CACHED_PROGRAMS = 4096


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
        destroyer = (
            "memory_desc" if kind == "any_desc" else "primitive_desc" if kind.endswith("primitive_desc") else kind
        )
        return _Handle(handle, getattr(self.fast, f"dnnl_{destroyer}_destroy"))

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
                logger.warning(
                    "oneDNN is not available, the slower reference kernels run instead: %s", "; ".join(reasons)
                )
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
        self.programs: OrderedDict[Any, Any] = OrderedDict()

    def reset(self, library: _Library) -> None:
        self.generation = _generation
        self.programs.clear()
        if _threads is not None and hasattr(library.slow, "omp_set_num_threads"):
            library.slow.omp_set_num_threads(_threads)  # OpenMP keeps this number per thread
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


def _address(array: npt.NDArray[Any]) -> int:
    return c_size_t.from_address(id(array) + _HEAD).value


_probe = np.zeros(1)
if _address(_probe) != _probe.ctypes.data:

    def _address(array: npt.NDArray[Any]) -> int:
        return int(array.ctypes.data)


class _Program:
    """A compiled primitive with its memory objects; ``run`` takes one address per argument, in order."""

    def __init__(self, library: _Library, desc: _Handle, arguments: Sequence[int]) -> None:
        name = ctypes.c_char_p()
        library.call("primitive_desc_query", desc, _QUERY_IMPLEMENTATION, 0, byref(name))
        if (name.value or b"ref").startswith(b"ref"):
            raise _Unsupported
        self.set_address, self.execute, self.thread = library.set_address, library.execute, _thread
        self.scratch = library.size(library.query(desc.value, _QUERY_ARGUMENT, _SCRATCHPAD))
        self.count = len(arguments) + (self.scratch > 0)
        order = (*arguments, _SCRATCHPAD)[: self.count]
        descs = [library.query(desc.value, _QUERY_ARGUMENT, index) for index in order]
        self.sizes = [library.size(d) for d in descs]
        self.handles = [library.create("memory", c_void_p(d), library.engine, c_void_p(0)) for d in descs]
        self.memories = [handle.value.value for handle in self.handles]
        self.array = (_Argument * self.count)(*map(_Argument, order, self.memories))
        self.array_address = ctypes.addressof(self.array)
        self.primitive = library.create("primitive", desc)
        self.primitive_address = self.primitive.value.value
        self.stream = _thread.stream
        self.stream_address = self.stream.value.value
        self.last: tuple[int, ...] = (0,) * self.count
        self.desc = desc
        _thread.reserve(self.scratch)

    def run(self, *addresses: int) -> None:
        if self.scratch:
            addresses = (*addresses, self.thread.scratch_address)
        if addresses != self.last:
            for mem, new, old in zip(self.memories, addresses, self.last):
                if new != old:
                    self.set_address(mem, new)
            self.last = addresses
        status = self.execute(self.primitive_address, self.stream_address, self.count, self.array_address)
        if status:
            raise RuntimeError(f"oneDNN: running a primitive failed with status {status}")


def _cached(key: Any, build: Callable[..., Any], *arguments: Any) -> Any:
    """The program (or tuple of programs) for ``key`` of this thread, built on first use; None where oneDNN has none."""
    thread = _thread
    library = _library
    if library is None:
        return None
    if thread.generation != _generation:
        thread.reset(library)
    programs = thread.programs
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


# Descriptions of memory.


def _dims(*values: int) -> Any:
    return (c_int64 * 12)(*values)


def _describe(library: _Library, shape: Sequence[int], strides: Sequence[int] | None = None) -> _Handle:
    """float32 memory of this shape; strides in elements, or the library's own choice."""
    if strides is None:
        return library.create("any_desc", len(shape), _dims(*shape), _F32, _ANY)
    return library.create("memory_desc", len(shape), _dims(*shape), _F32, _dims(*strides))


def _nhwc(library: _Library, shape: tuple[int, ...]) -> _Handle:
    _, c, h, w = shape
    return _describe(library, shape, (h * w * c, 1, w * c, c))


def _row(library: _Library, length: int) -> _Handle:
    return _describe(library, (length,), (1,))


def _eltwise(activation: tuple[str, float, float]) -> tuple[int, c_float, c_float]:
    if activation[0] not in _ACTIVATIONS:
        raise _Unsupported  # the reference says what is wrong
    algorithm, alpha, beta = _ACTIVATIONS[activation[0]]
    return (
        algorithm,
        c_float(activation[1] if alpha is None else alpha),
        c_float(activation[2] if beta is None else beta),
    )


def _attributes(
    library: _Library, activation: tuple[str, float, float] | None = None, residual: _Handle | None = None
) -> _Handle:
    attributes = library.create("primitive_attr")
    library.call("primitive_attr_set_scratchpad_mode", attributes, _USER_SCRATCHPAD)
    if activation or residual:
        post_ops = library.create("post_ops")
        if residual:
            library.call("post_ops_append_binary", post_ops, _BINARY_ADD, residual)
        if activation:
            library.call("post_ops_append_eltwise", post_ops, *_eltwise(activation))
        library.call("primitive_attr_set_post_ops", attributes, post_ops)
    return attributes


def _channels_last(x: Floats) -> Floats:
    """x itself where it is dense in channels-last order, a copy otherwise."""
    _, c, h, w = x.shape
    if x.strides == (h * w * c * 4, 4, w * c * 4, c * 4) or x.transpose(0, 2, 3, 1).flags.c_contiguous:
        return x
    y = memory.empty(x.shape)
    if x.size >= 8192 and x.flags.c_contiguous:
        program = _cached(("reorder", x.shape), _build_transpose, x.shape)
        if program is not None:
            program.run(_address(x), _address(y))
            return y
    y[...] = x
    return y


def _build_transpose(library: _Library, shape: tuple[int, ...]) -> _Program:
    _, c, h, w = shape
    source, target = _describe(library, shape, (c * h * w, h * w, w, 1)), _nhwc(library, shape)
    return _reorder(library, source.value, target.value)


def _reorder(library: _Library, source: Any, target: Any) -> _Program:
    engine, attributes = library.engine, _attributes(library)
    desc = library.create("reorder_primitive_desc", source, engine, target, engine, attributes)
    return _Program(library, desc, (_SRC, _DST))


class _Packing:
    """The change between an array of weights and the layout that a primitive wants for them."""

    def __init__(self, library: _Library, desc: _Handle, argument: int, shape: tuple[int, ...], groups: int) -> None:
        self.desc, self.shape, self.groups = desc, shape, groups
        self.chosen = c_void_p(library.query(desc.value, _QUERY_ARGUMENT, argument))  # lives as long as desc
        self.nbytes = library.size(self.chosen)

    def _plain(self, library: _Library, strides: tuple[int, ...]) -> _Handle:
        shape, elements = self.shape, [s // 4 for s in strides]
        if self.groups > 1:
            shape = (self.groups, shape[0] // self.groups, *shape[1:])
            elements = [elements[0] * shape[1], *elements]
        return _describe(library, shape, elements)

    def build(self, library: _Library, strides: tuple[int, ...], back: bool) -> _Program | bool:
        """The reorder from (or back to) an array of these strides; False where both layouts are one."""
        plain = self._plain(library, strides)
        if library.fast.dnnl_memory_desc_equal(plain.value, self.chosen):
            return False
        ends = (self.chosen, plain.value) if back else (plain.value, self.chosen)
        return _reorder(library, *ends)

    def pack(self, w: Floats) -> Floats:
        """The weights in the primitive's layout (w itself if that is its layout)."""
        if any(s % 4 or s <= 0 for s in w.strides):
            w = np.ascontiguousarray(w)
        program = _cached((self, w.strides), self.build, w.strides, False)
        if program is False:
            return w
        packed = memory.empty((self.nbytes,), np.uint8)
        program.run(_address(w), _address(packed))
        return packed

    def unpack(self, run: Callable[[int], None]) -> Floats:
        """Let ``run`` write weights at the address it is given, and return them as a C-contiguous array."""
        w = np.empty(self.shape, np.float32)
        if _cached((self, "back"), self.build, w.strides, True) is False:
            run(_address(w))
            return w
        packed = memory.empty((self.nbytes,), np.uint8)
        run(_address(packed))
        return self.plain(packed)

    def plain(self, packed: Floats) -> Floats:
        """Packed weights as a C-contiguous array."""
        w = np.empty(self.shape, np.float32)
        _cached((self, "back"), self.build, w.strides, True).run(_address(packed), _address(w))
        return w


class _Packed:
    """Weights in every layout that some input shape has asked for so far (mostly one); the array itself is let go."""

    def __init__(self, w: Floats) -> None:
        self.w: Floats | None = w
        self.token = object()  # names these weights in the threads' caches without keeping them alive
        self.layouts: list[tuple[_Packing, Floats]] = []

    def address(self, library: _Library, packing: _Packing) -> int:
        for known, packed in self.layouts:
            if library.fast.dnnl_memory_desc_equal(known.chosen, packing.chosen):
                return _address(packed)
        w = self.w
        if w is not None:
            packed = packing.pack(w)
        else:
            known, source = self.layouts[0]
            packed = memory.empty((packing.nbytes,), np.uint8)
            _reorder(library, known.chosen, packing.chosen).run(_address(source), _address(packed))
        self.layouts.append((packing, packed))
        self.w = w if packed is w else None
        return _address(packed)

    def plain(self) -> Floats:
        """The weights as an ordinary array."""
        return self.w if self.w is not None else self.layouts[0][0].plain(self.layouts[0][1])


# Convolution.


def _conv_parts(
    library: _Library, x_shape: tuple[int, ...], w_shape: tuple[int, ...], spec: ConvSpec
) -> tuple[tuple[int, ...], _Handle, _Handle, _Handle, list[Any]]:
    """Output shape; descriptions of input, weights and output; strides, dilation and padding as the library wants."""
    if x_shape[1] != w_shape[1] * spec.groups or w_shape[0] % spec.groups:
        raise _Unsupported  # the reference says what is wrong
    y_shape = (x_shape[0], w_shape[0], *spec.output_size((x_shape[2], x_shape[3]), (w_shape[2], w_shape[3])))
    if 0 in x_shape or 0 in y_shape:
        raise _Unsupported
    grouped = (spec.groups, w_shape[0] // spec.groups, *w_shape[1:]) if spec.groups > 1 else w_shape
    top, bottom, left, right = spec.padding
    geometry = [
        _dims(*spec.stride),
        _dims(spec.dilation[0] - 1, spec.dilation[1] - 1),
        _dims(top, left),
        _dims(bottom, right),
    ]
    return y_shape, _nhwc(library, x_shape), _describe(library, grouped), _nhwc(library, y_shape), geometry


class _Forward:
    """A convolution's program, the shape of its output and the packing of its weights."""

    def __init__(
        self,
        library: _Library,
        x_shape: tuple[int, ...],
        w_shape: tuple[int, ...],
        spec: ConvSpec,
        bias: bool,
        activation: tuple[str, float, float] | None = None,
        residual: bool = False,
    ) -> None:
        self.y_shape, x, w, y, geometry = _conv_parts(library, x_shape, w_shape, spec)
        attributes = _attributes(library, activation, y if residual else None)
        b = _row(library, w_shape[0]) if bias else None
        desc = library.create(
            "convolution_forward_primitive_desc", library.engine, _INFERENCE, _DIRECT, x, w, b, y, *geometry, attributes
        )
        arguments = (_SRC, _WEIGHTS, _DST, *((_BIAS,) if bias else ()), *((_FIRST_POST_OP_SRC_1,) if residual else ()))
        self.program = _Program(library, desc, arguments)
        self.packing = _Packing(library, desc, _WEIGHTS, w_shape, spec.groups)


def conv2d(x: Floats, w: Floats, b: Floats | None, spec: ConvSpec) -> Floats | None:
    forward = _cached(("conv", x.shape, w.shape, spec, b is None), _Forward, x.shape, w.shape, spec, b is not None)
    if forward is None:
        return None
    x, packed = _channels_last(x), forward.packing.pack(w)
    y = memory.empty(forward.y_shape)
    if b is None:
        forward.program.run(_address(x), _address(packed), _address(y))
    else:
        b = np.ascontiguousarray(b)
        forward.program.run(_address(x), _address(packed), _address(y), _address(b))
    return y


class _Backward:
    """One of the two gradients of a convolution: its program and the packing of its weights."""

    def __init__(
        self, library: _Library, kind: str, x_shape: tuple[int, ...], w_shape: tuple[int, ...], spec: ConvSpec
    ) -> None:
        self.y_shape, x, w, y, geometry = _conv_parts(library, x_shape, w_shape, spec)
        attributes = _attributes(library)
        hint = library.create(
            "convolution_forward_primitive_desc",
            library.engine,
            _TRAINING,
            _DIRECT,
            x,
            w,
            None,
            y,
            *geometry,
            attributes,
        )
        parts: tuple[_Handle | None, ...]
        if kind == "data":
            parts, arguments, weights = (x, w, y), (_DIFF_DST, _WEIGHTS, _DIFF_SRC), _WEIGHTS
        else:
            parts, arguments, weights = (x, w, None, y), (_SRC, _DIFF_DST, _DIFF_WEIGHTS), _DIFF_WEIGHTS
        name = f"convolution_backward_{kind}_primitive_desc"
        desc = library.create(name, library.engine, _DIRECT, *parts, *geometry, hint, attributes)
        self.program = _Program(library, desc, arguments)
        self.packing = _Packing(library, desc, weights, w_shape, spec.groups)


def conv2d_input_grad(gy: Floats, w: Floats, x_shape: tuple[int, ...], spec: ConvSpec) -> Floats | None:
    backward = _cached(("data", x_shape, w.shape, spec), _Backward, "data", x_shape, w.shape, spec)
    if backward is None or backward.y_shape != gy.shape:
        return None
    gy, packed = _channels_last(gy), backward.packing.pack(w)
    gx = memory.empty(x_shape)
    backward.program.run(_address(gy), _address(packed), _address(gx))
    return gx


def conv2d_weight_grad(x: Floats, gy: Floats, w_shape: tuple[int, ...], spec: ConvSpec) -> Floats | None:
    backward = _cached(("weights", x.shape, w_shape, spec), _Backward, "weights", x.shape, w_shape, spec)
    if backward is None or backward.y_shape != gy.shape:
        return None
    x, gy = _channels_last(x), _channels_last(gy)
    gw: Floats = backward.packing.unpack(lambda address: backward.program.run(_address(x), _address(gy), address))
    return gw


class FusedConv2d:
    """A convolution with packed weights, bias, residual and activation in one pass; see ``kernels.FusedConv2d``."""

    def __init__(
        self, w: Floats, b: Floats | None, spec: ConvSpec, activation: tuple[str, float, float] | None
    ) -> None:
        self.w_shape, self.spec, self.activation = w.shape, spec, activation
        self.b = np.zeros(w.shape[0], np.float32) if b is None else np.ascontiguousarray(b)
        self.b_address = _address(self.b)
        self.packed = _Packed(w)

    def _build(self, library: _Library, x_shape: tuple[int, ...], residual: bool) -> Any:
        forward = _Forward(library, x_shape, self.w_shape, self.spec, True, self.activation, residual)
        return forward.program, forward.y_shape, self.packed.address(library, forward.packing)

    def __call__(self, x: Floats, residual: Floats | None) -> Floats | None:
        key = (self.packed.token, x.shape, residual is None)
        found = _cached(key, self._build, x.shape, residual is not None)
        if found is None:
            return None
        program, y_shape, weights = found
        x = _channels_last(x)
        y = memory.empty(y_shape)
        if residual is None:
            program.run(_address(x), weights, _address(y), self.b_address)
        else:
            residual = _channels_last(residual if residual.shape == y_shape else np.broadcast_to(residual, y_shape))
            program.run(_address(x), weights, _address(y), self.b_address, _address(residual))
        return y


# Pooling.


def _pool_parts(library: _Library, x_shape: tuple[int, ...], spec: PoolSpec) -> tuple[tuple[int, ...], list[Any]]:
    """Output shape, and stride, kernel, dilation and padding as the library wants them."""
    size = (x_shape[2], x_shape[3])
    y_shape = (*x_shape[:2], *spec.output_size(size))
    if 0 in x_shape or 0 in y_shape:
        raise _Unsupported
    ends = list(spec.padding)
    for axis, full in enumerate(spec.full_padding(size)[1::2]):
        # The padding behind must yield just this number of windows: with ceil_mode one more might fit into it.
        extent = spec.dilation[axis] * (spec.kernel[axis] - 1) + 1
        room = size[axis] + spec.padding[2 * axis] + full - extent
        ends[2 * axis + 1] = full - max(0, room - y_shape[2 + axis] * spec.stride[axis] + 1)
    top, bottom, left, right = ends
    dilation = _dims(spec.dilation[0] - 1, spec.dilation[1] - 1)
    return y_shape, [_dims(*spec.stride), _dims(*spec.kernel), dilation, _dims(top, left), _dims(bottom, right)]


class _Pool:
    """The forward and the backward program of a pooling."""

    def __init__(
        self, library: _Library, x_shape: tuple[int, ...], spec: PoolSpec, algorithm: int, direction: int
    ) -> None:
        self.y_shape, geometry = _pool_parts(library, x_shape, spec)
        x, y, attributes = _nhwc(library, x_shape), _nhwc(library, self.y_shape), _attributes(library)
        self.workspace = 0
        kind = _INFERENCE if direction == _INFERENCE else _TRAINING
        hint = library.create(
            "pooling_forward_primitive_desc", library.engine, kind, algorithm, x, y, *geometry, attributes
        )
        state = (_WORKSPACE,) if algorithm == _POOL_MAX and direction != _INFERENCE else ()
        if state:
            self.workspace = library.size(library.query(hint.value, _QUERY_ARGUMENT, _WORKSPACE))
        if direction != _BACKWARD:
            self.program = _Program(library, hint, (_SRC, _DST, *state))
            return
        desc = library.create(
            "pooling_backward_primitive_desc", library.engine, algorithm, x, y, *geometry, hint, attributes
        )
        self.program = _Program(library, desc, (_DIFF_DST, _DIFF_SRC, *state))


def max_pool2d(x: Floats, spec: PoolSpec, need_state: bool) -> tuple[Floats, npt.NDArray[np.uint8] | None] | None:
    direction = _TRAINING if need_state else _INFERENCE
    pool = _cached(("pool", x.shape, spec, _POOL_MAX, direction), _Pool, x.shape, spec, _POOL_MAX, direction)
    if pool is None:
        return None
    x, y = _channels_last(x), memory.empty(pool.y_shape)
    if not need_state:
        pool.program.run(_address(x), _address(y))
        return y, None
    state = memory.empty((pool.workspace,), np.uint8)
    pool.program.run(_address(x), _address(y), _address(state))
    return y, state


def max_pool2d_grad(
    gy: Floats, x_shape: tuple[int, ...], state: npt.NDArray[np.uint8], spec: PoolSpec
) -> Floats | None:
    pool = _cached(("pool", x_shape, spec, _POOL_MAX, _BACKWARD), _Pool, x_shape, spec, _POOL_MAX, _BACKWARD)
    if pool is None:
        return None
    gy, gx = _channels_last(gy), memory.empty(x_shape)
    pool.program.run(_address(gy), _address(gx), _address(state))
    return gx


def _average(spec: PoolSpec, size: tuple[int, int], count_include_pad: bool) -> int | None:
    """The algorithm; None where windows hang over the padding, which oneDNN would count as elements."""
    if not count_include_pad:
        return _POOL_EXCLUDE
    return _POOL_INCLUDE if spec.full_padding(size) == tuple(spec.padding) else None


def avg_pool2d(x: Floats, spec: PoolSpec, count_include_pad: bool) -> Floats | None:
    algorithm = _average(spec, (x.shape[2], x.shape[3]), count_include_pad)
    if algorithm is None:
        return None
    pool = _cached(("pool", x.shape, spec, algorithm, _INFERENCE), _Pool, x.shape, spec, algorithm, _INFERENCE)
    if pool is None:
        return None
    x, y = _channels_last(x), memory.empty(pool.y_shape)
    pool.program.run(_address(x), _address(y))
    return y


def avg_pool2d_grad(gy: Floats, x_shape: tuple[int, ...], spec: PoolSpec, count_include_pad: bool) -> Floats | None:
    algorithm = _average(spec, (x_shape[2], x_shape[3]), count_include_pad)
    if algorithm is None:
        return None
    pool = _cached(("pool", x_shape, spec, algorithm, _BACKWARD), _Pool, x_shape, spec, algorithm, _BACKWARD)
    if pool is None:
        return None
    gy, gx = _channels_last(gy), memory.empty(x_shape)
    pool.program.run(_address(gy), _address(gx))
    return gx


# Batch normalisation.


def _build_batch_norm(library: _Library, shape: tuple[int, ...], eps: float, backward: bool) -> _Program:
    if 0 in shape:
        raise _Unsupported
    x, attributes = _nhwc(library, shape), _attributes(library)
    name, last = "batch_normalization_{}_primitive_desc", (c_float(eps), _USE_SCALE_AND_SHIFT)
    hint = library.create(name.format("forward"), library.engine, _TRAINING, x, x, *last, attributes)
    if not backward:
        return _Program(library, hint, (_SRC, _SCALE, _SHIFT, _DST, _MEAN, _VARIANCE))
    desc = library.create(name.format("backward"), library.engine, _BACKWARD, x, x, x, *last, hint, attributes)
    arguments = (_SRC, _DIFF_DST, _SCALE, _MEAN, _VARIANCE, _DIFF_SRC, _DIFF_SCALE, _DIFF_SHIFT)
    return _Program(library, desc, arguments)


def batch_norm(x: Floats, gamma: Floats, beta: Floats, eps: float) -> tuple[Floats, Floats, Floats] | None:
    program = _cached(("norm", x.shape, eps), _build_batch_norm, x.shape, eps, False)
    if program is None:
        return None
    x, y = _channels_last(x), memory.empty(x.shape)
    gamma, beta = np.ascontiguousarray(gamma), np.ascontiguousarray(beta)
    mean, var = np.empty_like(gamma), np.empty_like(gamma)
    program.run(*map(_address, (x, gamma, beta, y, mean, var)))
    return y, mean, var


def batch_norm_grad(
    x: Floats, gy: Floats, gamma: Floats, mean: Floats, var: Floats, eps: float
) -> tuple[Floats, Floats, Floats] | None:
    program = _cached(("norm grad", x.shape, eps), _build_batch_norm, x.shape, eps, True)
    if program is None:
        return None
    x, gy, gx = _channels_last(x), _channels_last(gy), memory.empty(x.shape)
    gamma, mean, var = map(np.ascontiguousarray, (gamma, mean, var))
    ggamma, gbeta = np.empty_like(gamma), np.empty_like(gamma)
    program.run(*map(_address, (x, gy, gamma, mean, var, gx, ggamma, gbeta)))
    return gx, ggamma, gbeta


# Activations.


def _build_activation(library: _Library, size: int, activation: tuple[str, float, float]) -> _Program:
    row, (algorithm, alpha, beta) = _row(library, size), _eltwise(activation)
    attributes = _attributes(library)
    desc = library.create(
        "eltwise_forward_primitive_desc", library.engine, _INFERENCE, algorithm, row, row, alpha, beta, attributes
    )
    return _Program(library, desc, (_SRC, _DST))


def activate(x: Floats, activation: tuple[str, float, float]) -> Floats | None:
    """An activation of a dense array, in C or channels-last order; None for other layouts."""
    last = x.ndim == 4 and x.transpose(0, 2, 3, 1).flags.c_contiguous
    if not (last or x.flags.c_contiguous):
        return None
    program = _cached(("activation", x.size, activation), _build_activation, x.size, activation)
    if program is None:
        return None
    y = memory.empty(x.shape) if last else memory.empty((x.size,)).reshape(x.shape)
    program.run(_address(x), _address(y))
    return y


# Matrix products.


def _matrix(a: Floats) -> Floats:
    """a itself where the strides of its last two axes are those of a matrix or its transpose, a copy otherwise."""
    rows, columns = a.strides[-2:]
    m, n = a.shape[-2:]
    dense = (columns == 4 and rows >= 4 * n) or (rows == 4 and columns >= 4 * m)
    return a if dense and all(s > 0 and s % 4 == 0 for s in a.strides) else np.ascontiguousarray(a)


def _elements(a: Floats) -> tuple[int, ...]:
    return tuple([s // 4 for s in a.strides])


def _build_matmul(
    library: _Library,
    a: tuple[tuple[int, ...], tuple[int, ...]],
    b: tuple[tuple[int, ...], tuple[int, ...] | None],
    bias: bool = False,
    activation: tuple[str, float, float] | None = None,
    residual: bool = False,
) -> _Program:
    shape = (*a[0][:-1], b[0][-1])
    if 0 in shape or 0 in a[0]:
        raise _Unsupported
    strides = [1] * len(shape)
    for axis in range(len(shape) - 2, -1, -1):
        strides[axis] = strides[axis + 1] * shape[axis + 1]
    y = _describe(library, shape, strides)
    row = _describe(library, (1, shape[-1]), (shape[-1], 1)) if bias else None
    attributes = _attributes(library, activation, y if residual else None)
    desc = library.create(
        "matmul_primitive_desc", library.engine, _describe(library, *a), _describe(library, *b), row, y, attributes
    )
    arguments = (_SRC, _WEIGHTS, _DST, *((_BIAS,) if bias else ()), *((_FIRST_POST_OP_SRC_1,) if residual else ()))
    return _Program(library, desc, arguments)


def matmul(a: Floats, b: Floats) -> Floats | None:
    """The product of two matrices or of two equally long stacks of them (rank 2 or 3); None for anything else."""
    if a.ndim != b.ndim or a.ndim not in (2, 3) or a.shape[-1] != b.shape[-2] or a.shape[:-2] != b.shape[:-2]:
        return None
    a, b = _matrix(a), _matrix(b)
    sides = (a.shape, _elements(a)), (b.shape, _elements(b))
    program = _cached(("matmul", sides), _build_matmul, *sides)
    if program is None:
        return None
    y = memory.empty((*a.shape[:-1], b.shape[-1]))
    program.run(_address(a), _address(b), _address(y))
    return y


def linear(x: Floats, w: Floats, b: Floats | None) -> Floats | None:
    """x (rows, in) times the transpose of w (out, in), plus b (out,)."""
    if x.shape[1] != w.shape[1]:
        return None
    x, wt = _matrix(x), _matrix(w.T)
    sides = (x.shape, _elements(x)), (wt.shape, _elements(wt))
    program = _cached(("linear", sides, b is None), _build_matmul, *sides, b is not None)
    if program is None:
        return None
    y = memory.empty((x.shape[0], w.shape[0]))
    if b is None:
        program.run(_address(x), _address(wt), _address(y))
    else:
        b = np.ascontiguousarray(b)
        program.run(_address(x), _address(wt), _address(y), _address(b))
    return y


class FusedLinear:
    """A linear layer with packed weights, bias, residual and activation in one pass; see ``kernels.FusedLinear``."""

    def __init__(self, w: Floats, b: Floats | None, activation: tuple[str, float, float] | None) -> None:
        self.shape, self.activation = (w.shape[1], w.shape[0]), activation
        self.b = np.zeros(w.shape[0], np.float32) if b is None else np.ascontiguousarray(b)
        self.b_address = _address(self.b)
        self.packed = _Packed(w.T)

    def _build(self, library: _Library, x_shape: tuple[int, ...], strides: tuple[int, ...], residual: bool) -> Any:
        sides = (x_shape, strides), (self.shape, None)
        program = _build_matmul(library, *sides, True, self.activation, residual)
        packing = _Packing(library, program.desc, _WEIGHTS, self.shape, 1)
        return program, self.packed.address(library, packing)

    def __call__(self, x: Floats, residual: Floats | None) -> Floats | None:
        x = _matrix(x)
        key = (self.packed.token, x.shape, x.strides, residual is None)
        found = _cached(key, self._build, x.shape, _elements(x), residual is not None)
        if found is None:
            return None
        program, weights = found
        y = memory.empty((x.shape[0], self.shape[1]))
        if residual is None:
            program.run(_address(x), weights, _address(y), self.b_address)
        else:
            residual = np.ascontiguousarray(np.broadcast_to(residual, y.shape))
            program.run(_address(x), weights, _address(y), self.b_address, _address(residual))
        return y
