"""The few heavy operations as a table: each picks the fast kernels or the reference by the type of its arrays.

Arrays are logically (batch, channels, height, width) with any strides; results are physically channels-last.
float32 NumPy arrays go to oneDNN where it is found, everything else (float64, CuPy) to the reference. The environment
variable ``CHAINSIGHT_ONEDNN=0`` selects the reference always.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from math import log2, prod
from operator import index
from typing import Any, NamedTuple

import numpy as np

from ..device import Array, get_namespace
from . import onednn, reference, threads, winograd
from .memory import empty as empty
from .reference import Activation as Activation
from .reference import erf as erf
from .reference import max_pool2d_indices as max_pool2d_indices
from .specs import ConvSpec as ConvSpec
from .specs import PoolSpec as PoolSpec
from .specs import Quantization as Quantization
from .tape import noting, tape

_FLOAT32, _BFLOAT16 = onednn.FLOAT32, onednn.BFLOAT16
_SMALL_PRODUCT = 32768  # multiplications below which NumPy's call costs less
_SMALL_ACTIVATION = 16384  # elements below which NumPy's calls cost less
_LOSE_NAN = ("relu", "relu6", "clip", "hard_sigmoid")  # oneDNN's give a number for NaN: divergence would go unseen
_precision: ContextVar[str] = ContextVar("precision", default="f32")
RELU: Activation = ("relu", 0.0, 0.0)
_reference_only: ContextVar[bool] = ContextVar("reference_only", default=os.environ.get("CHAINSIGHT_ONEDNN") == "0")


@contextmanager
def use_reference() -> Iterator[None]:
    """Run the reference kernels in this context (and thread).

    >>> with use_reference():
    ...     backend_name()
    'reference'
    """
    token = _reference_only.set(True)
    try:
        yield
    finally:
        _reference_only.reset(token)


def precision() -> str:
    """What convolutions and linear layers of inference multiply: "f32" or "bf16"."""
    return _precision.get()


@contextmanager
def use_precision(name: str) -> Iterator[None]:
    """Multiply in "f32" or "bf16" (8 bits of mantissa, sums in float32) in this context (and thread), in inference.

    Raises ValueError for another name, and for "bf16" where the processor or the library lacks it.

    >>> with use_precision("f32"):
    ...     precision()
    'f32'
    """
    if name not in ("f32", "bf16"):
        raise ValueError(f'expected a precision of "f32" or "bf16", got {name!r}')
    library = onednn.load() if _fast() else None
    if name == "bf16" and not (library and library.has_bfloat16):
        lack = "a processor with avx512_bf16 or amx_bf16" if library else "oneDNN, which is missing or switched off"
        raise ValueError(f"bf16 needs {lack}: use f32")
    token = _precision.set(name)
    try:
        yield
    finally:
        _precision.reset(token)


def _kinds(inner: bool) -> tuple[onednn.Kind, onednn.Kind]:
    """What a kernel of inference multiplies, and its results: always float32 where the network may end."""
    kind = _BFLOAT16 if precision() == "bf16" else _FLOAT32
    return kind, kind if inner else _FLOAT32


def widen(x: Array) -> Array:
    """x itself, but float32 instead of bfloat16."""
    return onednn.arrange(x, _FLOAT32) if x.dtype.kind == "V" else x


def _fast(*arrays: Array, bfloat16: bool = False) -> bool:
    """Whether oneDNN may take these arrays: all float32 of NumPy (None is a missing bias), and the library there."""
    for a in arrays:
        if a is None or (isinstance(a, np.ndarray) and (a.dtype == _FLOAT32 or (bfloat16 and a.dtype == _BFLOAT16))):
            continue
        return False
    return not _reference_only.get() and onednn.load() is not None


def backend_name() -> str:
    """What computes on float32 NumPy arrays: "onednn" or "reference"."""
    return "onednn" if _fast() else "reference"


def library_version() -> str | None:
    """The version of oneDNN, None when it is not used."""
    library = onednn.load() if _fast() else None
    return None if library is None else library.version


def set_num_threads(count: int) -> None:
    """Use ``count`` threads for each heavy operation. Raises ValueError below 1, TypeError for no whole number."""
    if index(count) < 1:
        raise ValueError(f"expected at least 1 thread, got {count}")
    onednn.set_num_threads(count)
    reference.set_num_threads(count)


def get_num_threads() -> int:
    """The number of threads that a heavy operation uses."""
    return onednn.get_num_threads()


class PoolState(NamedTuple):
    """What ``max_pool2d_grad`` needs of the forward pass: the reference's taps, or what oneDNN noted for itself."""

    spec: PoolSpec
    taps: Array
    from_onednn: bool


def conv2d(x: Array, w: Array, b: Array | None, spec: ConvSpec) -> Array:
    """Cross-correlation of x (batch, in, height, width) with w (out, in / groups, height, width), plus b (out,)."""
    if _fast(x, w, b) and (y := onednn.conv2d(x, w, b, spec)) is not None:
        return y
    return reference.conv2d(x, w, b, spec)


def conv2d_input_grad(gy: Array, w: Array, x_shape: tuple[int, ...], spec: ConvSpec) -> Array:
    """The gradient of ``conv2d`` by x, of shape ``x_shape``; also the forward pass of a transposed convolution."""
    if _fast(gy, w) and (gx := onednn.conv2d_input_grad(gy, w, x_shape, spec)) is not None:
        return gx
    return reference.conv2d_input_grad(gy, w, x_shape, spec)


def conv2d_weight_grad(x: Array, gy: Array, w_shape: tuple[int, ...], spec: ConvSpec) -> Array:
    """The gradient of ``conv2d`` by w, of shape ``w_shape``."""
    if _fast(x, gy) and (gw := onednn.conv2d_weight_grad(x, gy, w_shape, spec)) is not None:
        return gw
    return reference.conv2d_weight_grad(x, gy, w_shape, spec)


def max_pool2d(x: Array, spec: PoolSpec, need_state: bool = True) -> tuple[Array, PoolState]:
    """The largest value of each window, and what ``max_pool2d_grad`` needs (not noted unless ``need_state``).

    The reference keeps NaN and -inf; oneDNN skips NaN, and its least result is the lowest finite float32.
    """
    if _fast(x, bfloat16=True) and (found := onednn.pool2d(x, spec, "max", need_state)) is not None:
        return found[0], PoolState(spec, found[1], True)
    y, taps = reference.max_pool2d(widen(x), spec)
    return y, PoolState(spec, taps, False)


def max_pool2d_grad(gy: Array, x_shape: tuple[int, ...], state: PoolState) -> Array:
    """The gradient of ``max_pool2d``."""
    if state.from_onednn:
        return onednn.pool2d_grad(gy, x_shape, state.spec, "max", state.taps)
    return reference.max_pool2d_grad(gy, x_shape, state.taps, state.spec)


def avg_pool2d(x: Array, spec: PoolSpec, count_include_pad: bool) -> Array:
    """The mean of each window; zeros of the padding count as elements if ``count_include_pad``."""
    mode = "include" if count_include_pad else "exclude"
    if _fast(x) and (found := onednn.pool2d(x, spec, mode, False)) is not None:
        return found[0]
    return reference.avg_pool2d(x, spec, count_include_pad)


def mean_of_maps(x: Array) -> Array | None:
    """The means (n, channels, 1, 1) of x's maps, in inference; None where no kernel has them."""
    if not _fast(x) or x.size == 0:
        return None
    height, width = x.shape[2:]  # rows first, then their means: rounding grows with a side, not with the area
    rows = avg_pool2d(x, PoolSpec((1, width), (1, width)), True)
    return avg_pool2d(rows, PoolSpec((height, 1), (height, 1)), True)


def avg_pool2d_grad(gy: Array, x_shape: tuple[int, ...], spec: PoolSpec, count_include_pad: bool) -> Array:
    """The gradient of ``avg_pool2d``."""
    mode = "include" if count_include_pad else "exclude"
    if _fast(gy) and (gx := onednn.pool2d_grad(gy, x_shape, spec, mode)) is not None:
        return gx
    return reference.avg_pool2d_grad(gy, x_shape, spec, count_include_pad)


def batch_norm(
    x: Array, gamma: Array, beta: Array, eps: float, relu: bool = False
) -> tuple[Array, Array, Array, Array | None]:
    """x normalised over batch, height and width, times gamma plus beta, and a ReLU if asked for.

    Then come the mean, the biased variance, and oneDNN's notes about its ReLU for ``batch_norm_grad``.
    """
    if _fast(x, gamma, beta) and (found := onednn.batch_norm(x, gamma, beta, eps, relu)) is not None:
        return found
    y, mean, var = reference.batch_norm(x, gamma, beta, eps)
    return activate(y, RELU) if relu else y, mean, var, None


def batch_norm_grad(
    x: Array, gy: Array, gamma: Array, mean: Array, var: Array, eps: float, notes: Array | None = None
) -> tuple[Array, Array, Array]:
    """The gradients of ``batch_norm`` by x, gamma and beta, from the statistics (and the notes) it returned.

    Without notes there is no ReLU: gy must be that of the values before it.
    """
    arrays = x, gy, gamma, mean, var
    if (notes is not None or _fast(*arrays)) and (grads := onednn.batch_norm_grad(*arrays, eps, notes)) is not None:
        return grads
    return reference.batch_norm_grad(*arrays, eps)


def layer_norm(x: Array, gamma: Array, beta: Array, eps: float) -> Array | None:
    """x normalised over its last axis, in inference; None where no kernel has it."""
    dense = _fast(x, gamma, beta) and x.flags.c_contiguous and x.size >= _SMALL_ACTIVATION
    return onednn.layer_norm(x, gamma, beta, eps) if dense else None


def group_norm(x: Array, groups: int, gamma: Array, beta: Array, eps: float, out: Any = None) -> Any:
    """x, one image, normalised within groups of channels, in inference; None where no kernel has it.

    The channels' moments are the batch norm's; a group's follow from them.
    """
    if len(x) != 1 or not _fast(x, gamma, beta) or x.size < _SMALL_ACTIVATION:
        return None
    y = empty(x.shape) if out is None else out
    if tape.notes is not None:
        tape.notes.add(lambda x, y: group_norm(x, groups, gamma, beta, eps, y), x, y)
    with noting(None):
        normal, *moments, _ = batch_norm(x, np.ones_like(gamma), np.zeros_like(beta), eps)
        rest = mean_of_maps(normal)  # what the mean's rounding left
    mean, var, rest = (moment.astype(np.float64).reshape(groups, -1) for moment in (*moments, rest))
    std = np.sqrt(var + eps)
    middle = (mean + rest * std).mean(1, keepdims=True)
    scale = 1 / np.sqrt((var + (mean + rest * std - middle) ** 2).mean(1, keepdims=True) + eps)
    gain = ((std * scale).reshape(-1, 1) * gamma[:, None]).astype(_FLOAT32)
    shift = (((mean - middle) * scale).reshape(-1, 1) * gamma[:, None] + beta[:, None]).astype(_FLOAT32)

    def work(rows: Sequence[int]) -> None:
        for row in rows:  # stays in a cache
            np.multiply(normal[0, :, row], gain, out=y[0, :, row])
            y[0, :, row] += shift

    threads.share(work, range(x.shape[2]))
    return y


def matmul(a: Array, b: Array) -> Array:
    """The matrix product of the last two axes, the axes before them broadcast."""
    if a.ndim < 2 or b.ndim < 2 or a.size * b.shape[-1] < _SMALL_PRODUCT or not _fast(a, b):
        return reference.matmul(a, b)
    stack = () if b.ndim == 2 else np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    if b.ndim == 2:
        left, right = a.reshape(-1, a.shape[-1]), b
    else:
        left = np.broadcast_to(a, (*stack, *a.shape[-2:])).reshape(-1, *a.shape[-2:])
        right = np.broadcast_to(b, (*stack, *b.shape[-2:])).reshape(-1, *b.shape[-2:])
    y = onednn.matmul(left, right)
    if y is None:
        return reference.matmul(a, b)
    return y.reshape(*(stack or a.shape[:-2]), a.shape[-2], b.shape[-1])


def linear(x: Array, w: Array, b: Array | None) -> Array:
    """x (..., in) times the transpose of w (out, in), plus b (out,)."""
    if x.size * w.shape[0] >= _SMALL_PRODUCT and _fast(x, w, b):
        y = onednn.matmul(x.reshape(-1, x.shape[-1]), w.T, b)
        if y is not None:
            return y.reshape(*x.shape[:-1], w.shape[0])
    return reference.linear(x, w, b)


def activate(x: Array, activation: Activation) -> Array:
    """An activation (name, alpha, beta): relu, relu6, clip(alpha, beta), leaky_relu(alpha), sigmoid, silu, ...

    >>> activate(np.array([-1.0, 2.0]), ("leaky_relu", 0.5, 0.0)).tolist()
    [-0.5, 2.0]
    """
    if x.size < _SMALL_ACTIVATION:
        return reference.activate(x, activation)
    if activation[0] not in _LOSE_NAN and _fast(x) and (y := onednn.activate(x, activation)) is not None:
        return y

    def work(x: Array, y: Array) -> None:
        y[...] = reference.activate(x, activation)

    y = _like(x)
    threads.blockwise(work, x, y)
    return y


def activate_grad(v: Array, gy: Array, activation: Activation) -> Array | None:
    """The gradient by the activation's input; None where no kernel has it.

    ``v`` is the activation's output for relu, relu6, sigmoid and tanh, its input for the others.
    """
    return onednn.activate_grad(v, gy, activation) if _fast(v, gy) else None


def add(a: Array, b: Array, relu: bool = False) -> Array:
    """The sum of two arrays of one shape and dtype, and a ReLU if asked for.

    >>> add(np.array([-1.0, 2.0]), np.array([0.5, 1.0]), relu=True).tolist()
    [0.0, 3.0]
    """
    xp = get_namespace(a)
    if a.size < _SMALL_ACTIVATION:
        return xp.maximum(a + b, 0) if relu else a + b

    def work(a: Array, b: Array, y: Array) -> None:
        xp.add(a, b, out=y)
        if relu:
            xp.maximum(y, 0, out=y)

    y = _like(a)
    threads.blockwise(work, a, b, y)
    return y


def multiply(a: Array, b: Array) -> Array:
    """The product of two arrays that broadcast.

    >>> multiply(np.ones((1, 2, 1, 2)), np.array([[[[2.0]], [[3.0]]]])).tolist()
    [[[[2.0, 2.0]], [[3.0, 3.0]]]]
    """
    by_channel = a.ndim == 4 and b.shape == (*a.shape[:2], 1, 1) and a.size >= _SMALL_ACTIVATION
    y = onednn.multiply(a, b) if by_channel and _fast(a, b) else None
    return a * b if y is None else y


def concatenate(arrays: Sequence[Array], axis: int) -> Array:
    """Arrays of one dtype, equal in shape but for ``axis``, joined along it.

    >>> concatenate([np.ones(1), np.zeros(2)], 0).tolist()
    [1.0, 0.0, 0.0]
    """
    large = axis == 1 and arrays[0].ndim == 4 and arrays[0].size >= _SMALL_ACTIVATION
    y = onednn.concatenate(arrays) if large and _fast(*arrays, bfloat16=True) else None
    return get_namespace(arrays[0]).concatenate(arrays, axis=axis) if y is None else y


def resize(x: Array, size: tuple[int, int], mode: str) -> Array | None:
    """x (n, channels, height, width) at ``size``, "bilinear" or "nearest"; None where no kernel does it exactly.

    Where one size is not the other times a power of two, oneDNN's places are some roundings off; of two nearest
    neighbours when shrinking it takes the other one.
    """
    powers = [log2(after / before) for before, after in zip(x.shape[2:], size)]
    exact = all(power == round(power) for power in powers) and (mode == "bilinear" or min(powers) >= 0)
    return onednn.resize(x, size, mode) if exact and _fast(x, bfloat16=True) else None


def _like(x: Array) -> Array:
    """An uninitialised array of this shape, dtype and order."""
    xp = get_namespace(x)
    if xp is np and x.ndim == 4 and x.transpose(0, 2, 3, 1).flags.c_contiguous:
        return empty(x.shape, x.dtype)
    return empty((x.size,), x.dtype).reshape(x.shape) if xp is np and x.flags.c_contiguous else xp.empty_like(x)


class FusedConv2d:
    """A convolution prepared for inference: activation(conv(x) + b + residual) in one pass over the output.

    ``scale`` (out,) multiplies the weights, which are packed for the kernel that the first input asks for, and must not
    change. With "bf16" results are bfloat16 after an activation, and ``inner`` says so of others; see
    ``use_precision``. With a ``quantization`` the weights are int8, and bytes are multiplied.

    >>> conv = FusedConv2d(np.ones((1, 1, 3, 3), np.float32), None, ConvSpec(), ("relu", 0.0, 0.0))
    >>> conv(np.ones((1, 1, 3, 4), np.float32)).tolist()
    [[[[9.0, 9.0]]]]
    """

    def __init__(
        self,
        w: Array,
        b: Array | None,
        spec: ConvSpec,
        activation: Activation | None = None,
        inner: bool = False,
        quantization: Quantization | None = None,
        scale: Array | None = None,
    ) -> None:
        self.w, self.b, self.spec, self.activation, self.quantization = w, b, spec, activation, quantization
        self.scale, self._kinds = scale, _kinds(inner or activation is not None)
        self._direct: onednn.FusedConv2d | None = None
        self._winograd: winograd.Winograd | None = None

    def weights(self) -> Array:
        """What is multiplied: made when it is packed, so that nobody has to keep it."""
        w = self.w.astype(_FLOAT32) if self.quantization else self.w
        return w if self.scale is None else w * self.scale.reshape(-1, 1, 1, 1)

    def __call__(self, x: Array, residual: Array | None = None) -> Array:
        bytes_ = self.quantization
        if _fast(x, residual, bfloat16=True) and _fast(None if bytes_ else self.w, self.b):
            plain = residual is bytes_ is None and self._kinds[0] == x.dtype == _FLOAT32
            if plain and winograd.pays(x.shape, self.w.shape, self.spec):
                if self._winograd is None:
                    self._winograd = winograd.Winograd(self.weights(), self.b, self.activation, self.spec.dilation[0])
                return self._winograd(x)
            if self._direct is None:
                settings = self.b, self.spec, self.activation, self._kinds, bytes_
                self._direct = onednn.FusedConv2d(self.weights(), *settings)
            if (y := self._direct(x, residual)) is not None:
                return y
        x, w = widen(x), self.weights()
        x, w = bytes_.rounded(x, w) if bytes_ else (x, w)
        return _finish(reference.conv2d(x, w, self.b, self.spec), residual, self.activation)


class FusedLinear:
    """A linear layer prepared for inference: activation(x @ w.T + b + residual), x of shape (..., in)."""

    def __init__(self, w: Array, b: Array | None, activation: Activation | None = None) -> None:
        self.w, self.b, self.activation, self._kinds = w, b, activation, _kinds(activation is not None)
        self._packed: onednn.FusedLinear | None = None

    def __call__(self, x: Array, residual: Array | None = None) -> Array:
        if _fast(x, residual, bfloat16=True) and _fast(self.w, self.b):
            if self._packed is None:
                self._packed = onednn.FusedLinear(self.w, self.b, self.activation, self._kinds)
            rows, out = prod(x.shape[:-1]), self.w.shape[0]
            wide = None if residual is None else residual.reshape(rows, out)
            y = self._packed(x.reshape(rows, x.shape[-1]), wide)
            if y is not None:
                return y.reshape(*x.shape[:-1], out)
        return _finish(reference.linear(widen(x), self.w, self.b), residual, self.activation)


def _finish(y: Array, residual: Array | None, activation: Activation | None) -> Array:
    y = y if residual is None else y + widen(residual)
    return y if activation is None else activate(y, activation)
