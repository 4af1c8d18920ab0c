"""The heavy operations in plain array code for any namespace (NumPy, CuPy): the fallback, and the fast kernels' oracle.

A convolution copies its windows in channels-last order, one slice per kernel tap, and is then one matrix product per
group; a depthwise one sums shifted slices. Windows are copied in chunks of batch and rows: the extra memory is bounded.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..device import Array, get_namespace
from . import memory
from .specs import ConvSpec, PoolSpec

Activation = tuple[str, float, float]
_CHUNK_BYTES = 32 * 1024 * 1024


def _empty(shape: tuple[int, ...], like: Array) -> Array:
    """An uninitialised array (batch, height, width, channels) that will leave as its transposed view."""
    xp = get_namespace(like)
    if xp is np:
        n, h, w, c = shape
        return memory.empty((n, c, h, w), like.dtype).transpose(0, 2, 3, 1)
    return xp.empty(shape, like.dtype)


def _padded(x: Array, padding: tuple[int, int, int, int], value: float = 0.0) -> Array:
    """``x`` (batch, channels, height, width) as padded (batch, height, width, channels)."""
    top, bottom, left, right = padding
    view = x.transpose(0, 2, 3, 1)
    if not any(padding):
        return view
    n, h, w, c = view.shape
    padded = get_namespace(x).full((n, h + top + bottom, w + left + right, c), value, x.dtype)
    padded[:, top : top + h, left : left + w] = view
    return padded


def _cropped(padded: Array, size: tuple[int, int], padding: tuple[int, int, int, int]) -> Array:
    top, _, left, _ = padding
    crop = padded[:, top : top + size[0], left : left + size[1]]
    xp = get_namespace(padded)
    return (crop if crop.shape == padded.shape else xp.ascontiguousarray(crop)).transpose(0, 3, 1, 2)


class _Window(NamedTuple):
    """The slices of a padded input that one kernel tap meets, for output rows ``rows`` and all columns."""

    stride: tuple[int, int]
    dilation: tuple[int, int]
    kernel: tuple[int, int]
    width: int

    def taps(self, rows: slice) -> Iterator[tuple[int, int, slice, slice]]:
        (sy, sx), (dy, dx) = self.stride, self.dilation
        count = rows.stop - rows.start
        for i in range(self.kernel[0]):
            y = rows.start * sy + i * dy
            for j in range(self.kernel[1]):
                x = j * dx
                yield i, j, slice(y, y + (count - 1) * sy + 1, sy), slice(x, x + (self.width - 1) * sx + 1, sx)


def _chunks(batch: int, height: int, bytes_per_row: int) -> Iterator[tuple[slice, slice]]:
    """Cut batch and output rows so that one chunk's windows fit the limit."""
    rows = max(1, min(height, _CHUNK_BYTES // max(bytes_per_row, 1)))
    images = max(1, _CHUNK_BYTES // max(bytes_per_row * height, 1)) if rows == height else 1
    for n in range(0, batch, images):
        for y in range(0, height, rows):
            yield slice(n, min(n + images, batch)), slice(y, min(y + rows, height))


class _Conv:
    """What the three convolution kernels share: sizes, groups and the copying of windows."""

    def __init__(self, x_shape: tuple[int, ...], w_shape: tuple[int, ...], spec: ConvSpec) -> None:
        self.batch, self.channels, h, w = x_shape
        self.out, self.group_in, ky, kx = w_shape
        self.groups = spec.groups
        if self.channels != self.group_in * self.groups or self.out % self.groups:
            raise ValueError(
                f"expected weights (out, in / groups, height, width) for {self.channels} input channels in "
                f"{self.groups} groups, got weights {w_shape}"
            )
        self.spec, self.size, self.kernel = spec, (h, w), (ky, kx)
        self.height, self.width = spec.output_size(self.size, self.kernel)
        self.empty = 0 in (self.batch, self.height, self.width, self.out, self.channels)
        self.depthwise = self.group_in == 1 and self.groups > 1
        self.window = _Window(spec.stride, spec.dilation, self.kernel, self.width)

    def chunks(self, itemsize: int) -> Iterator[tuple[slice, slice]]:
        taps = 1 if self.depthwise else self.kernel[0] * self.kernel[1]
        return _chunks(self.batch, self.height, self.width * taps * max(self.channels, self.out) * itemsize)

    def columns(self, padded: Array, images: slice, rows: slice) -> Array:
        """The windows of a chunk: (groups, positions, taps x channels of the group)."""
        xp = get_namespace(padded)
        n, count, g, c = images.stop - images.start, rows.stop - rows.start, self.groups, self.group_in
        columns = xp.empty((g, n, count, self.width, *self.kernel, c), padded.dtype)
        for i, j, y, x in self.window.taps(rows):
            columns[:, :, :, :, i, j] = (
                padded[images, y, x].reshape(n, count, self.width, g, c).transpose(3, 0, 1, 2, 4)
            )
        return columns.reshape(g, n * count * self.width, -1)

    def weight_matrix(self, w: Array) -> Array:
        """The weights as (groups, taps x channels of the group, outputs of the group)."""
        taps = w.reshape(self.groups, -1, self.group_in, *self.kernel).transpose(0, 3, 4, 2, 1)
        return taps.reshape(self.groups, -1, self.out // self.groups)

    def grouped(self, y: Array, images: slice, rows: slice) -> Array:
        """A chunk of an output-shaped array (batch, height, width, channels) as (groups, positions, channels)."""
        chunk = y[images, rows]
        return (
            chunk.reshape(*chunk.shape[:3], self.groups, -1)
            .transpose(3, 0, 1, 2, 4)
            .reshape(self.groups, chunk.shape[0] * chunk.shape[1] * chunk.shape[2], -1)
        )

    def tap_weights(self, w: Array) -> Array:
        """Depthwise weights as (kernel height, kernel width, channels, multiplier)."""
        return w.reshape(self.groups, -1, *self.kernel).transpose(2, 3, 0, 1)


def conv2d(x: Array, w: Array, b: Array | None, spec: ConvSpec) -> Array:
    """Cross-correlation of x (batch, in, height, width) with w (out, in / groups, height, width), plus b (out,)."""
    conv = _Conv(x.shape, w.shape, spec)
    y = _empty((conv.batch, conv.height, conv.width, conv.out), x)
    if conv.empty:
        y[...] = 0
    elif conv.depthwise:
        padded, taps = _padded(x, spec.padding), conv.tap_weights(w)
        for images, rows in conv.chunks(x.dtype.itemsize):
            shape = (images.stop - images.start, rows.stop - rows.start, conv.width, conv.groups, taps.shape[3])
            total = get_namespace(x).zeros(shape, x.dtype)
            for i, j, ys, xs in conv.window.taps(rows):
                total += padded[images, ys, xs][..., None] * taps[i, j]
            y[images, rows] = total.reshape(*total.shape[:3], conv.out)
    else:
        padded, matrix = _padded(x, spec.padding), conv.weight_matrix(w)
        for images, rows in conv.chunks(x.dtype.itemsize):
            chunk = get_namespace(x).matmul(conv.columns(padded, images, rows), matrix).transpose(1, 0, 2)
            y[images, rows] = chunk.reshape(-1, rows.stop - rows.start, conv.width, conv.out)
    if b is not None:
        y += b
    return y.transpose(0, 3, 1, 2)


def conv2d_input_grad(gy: Array, w: Array, x_shape: tuple[int, ...], spec: ConvSpec) -> Array:
    """The gradient of ``conv2d`` by x: what gy (the output's gradient) sends back to an input of shape ``x_shape``."""
    conv = _Conv(x_shape, w.shape, spec)
    xp = get_namespace(gy)
    top, bottom, left, right = spec.padding
    padded = xp.zeros((conv.batch, conv.size[0] + top + bottom, conv.size[1] + left + right, conv.channels), gy.dtype)
    source = gy.transpose(0, 2, 3, 1)
    if conv.empty:
        pass
    elif conv.depthwise:
        taps = conv.tap_weights(w)
        for images, rows in conv.chunks(gy.dtype.itemsize):
            chunk = source[images, rows]
            chunk = chunk.reshape(*chunk.shape[:3], conv.groups, -1)
            for i, j, ys, xs in conv.window.taps(rows):
                padded[images, ys, xs] += (chunk * taps[i, j]).sum(axis=-1)
    else:
        matrix = conv.weight_matrix(w).transpose(0, 2, 1)
        for images, rows in conv.chunks(gy.dtype.itemsize):
            columns = xp.matmul(conv.grouped(source, images, rows), matrix)
            columns = columns.reshape(conv.groups, -1, rows.stop - rows.start, conv.width, *conv.kernel, conv.group_in)
            for i, j, ys, xs in conv.window.taps(rows):
                tap = columns[:, :, :, :, i, j].transpose(1, 2, 3, 0, 4)
                padded[images, ys, xs] += tap.reshape(*tap.shape[:3], conv.channels)
    return _cropped(padded, conv.size, spec.padding)


def conv2d_weight_grad(x: Array, gy: Array, w_shape: tuple[int, ...], spec: ConvSpec) -> Array:
    """The gradient of ``conv2d`` by w, of shape ``w_shape``."""
    conv = _Conv(x.shape, w_shape, spec)
    xp = get_namespace(x)
    if conv.empty:
        return xp.zeros(w_shape, x.dtype)
    padded, source = _padded(x, spec.padding), gy.transpose(0, 2, 3, 1)
    if conv.depthwise:
        taps = xp.zeros((*conv.kernel, conv.groups, conv.out // conv.groups), x.dtype)
        for images, rows in conv.chunks(x.dtype.itemsize):
            chunk = source[images, rows]
            chunk = chunk.reshape(*chunk.shape[:3], conv.groups, -1)
            for i, j, ys, xs in conv.window.taps(rows):
                taps[i, j] += (padded[images, ys, xs][..., None] * chunk).sum(axis=(0, 1, 2))
        return xp.ascontiguousarray(taps.transpose(2, 3, 0, 1)).reshape(w_shape)
    matrix = xp.zeros((conv.groups, conv.kernel[0] * conv.kernel[1] * conv.group_in, conv.out // conv.groups), x.dtype)
    for images, rows in conv.chunks(x.dtype.itemsize):
        columns = conv.columns(padded, images, rows)
        matrix += xp.matmul(columns.transpose(0, 2, 1), conv.grouped(source, images, rows))
    taps = matrix.reshape(conv.groups, *conv.kernel, conv.group_in, -1).transpose(0, 4, 3, 1, 2)
    return xp.ascontiguousarray(taps).reshape(w_shape)


def max_pool2d(x: Array, spec: PoolSpec) -> tuple[Array, Array]:
    """The largest value of each window, and which tap of the window (row by row) held it first."""
    n, c, h, w = x.shape
    height, width = spec.output_size((h, w))
    xp = get_namespace(x)
    y, taps = _empty((n, height, width, c), x), xp.zeros((n, height, width, c), xp.int16)
    if 0 not in y.shape:
        padded = _padded(x, spec.full_padding((h, w)), -math.inf)
        window = _Window(spec.stride, spec.dilation, spec.kernel, width)
        for i, j, ys, xs in window.taps(slice(0, height)):
            values = padded[:, ys, xs]
            if i == j == 0:
                y[...] = values
                continue
            better = (values > y) | (values != values)
            y[...] = xp.where(better, values, y)
            taps[better] = i * spec.kernel[1] + j
    return y.transpose(0, 3, 1, 2), taps


def max_pool2d_grad(gy: Array, x_shape: tuple[int, ...], taps: Array, spec: PoolSpec) -> Array:
    """The gradient of ``max_pool2d``: gy goes to the position that held the maximum."""
    n, c, h, w = x_shape
    xp, padding = get_namespace(gy), spec.full_padding((h, w))
    padded = xp.zeros((n, h + padding[0] + padding[1], w + padding[2] + padding[3], c), gy.dtype)
    source = gy.transpose(0, 2, 3, 1)
    if 0 not in source.shape:
        window = _Window(spec.stride, spec.dilation, spec.kernel, source.shape[2])
        for i, j, ys, xs in window.taps(slice(0, source.shape[1])):
            padded[:, ys, xs] += source * (taps == i * spec.kernel[1] + j)
    return _cropped(padded, (h, w), padding)


def max_pool2d_indices(x: Array, spec: PoolSpec) -> Array:
    """Where each window's maximum lies: row * width + column in its plane, shape of the output, int64."""
    h, w = x.shape[2:]
    taps = max_pool2d(x, spec)[1]
    xp = get_namespace(x)
    rows = xp.arange(taps.shape[1]).reshape(-1, 1, 1) * spec.stride[0] - spec.padding[0]
    columns = xp.arange(taps.shape[2]).reshape(-1, 1) * spec.stride[1] - spec.padding[2]
    # An all -inf window reports its first tap, which may lie in the padding: the clip moves it to a real one.
    rows = xp.clip(rows + taps // spec.kernel[1] * spec.dilation[0], 0, max(h - 1, 0))
    columns = xp.clip(columns + taps % spec.kernel[1] * spec.dilation[1], 0, max(w - 1, 0))
    return (rows * w + columns).astype(xp.int64).transpose(0, 3, 1, 2)


def _pool_counts(x_shape: tuple[int, ...], spec: PoolSpec, count_include_pad: bool) -> Array:
    """By how many elements each window of an average divides, as float64 (height, width, 1)."""
    counts = []
    for axis, (before, after) in enumerate((spec.padding[:2], spec.padding[2:])):
        length = x_shape[2 + axis]
        starts = np.arange(spec.output_size((x_shape[2], x_shape[3]))[axis]) * spec.stride[axis] - before
        places = starts[:, None] + np.arange(spec.kernel[axis]) * spec.dilation[axis]
        low, high = (-before, length + after) if count_include_pad else (0, length)
        counts.append(((places >= low) & (places < high)).sum(axis=1))
    return np.maximum(counts[0][:, None, None] * counts[1][:, None], 1).astype(np.float64)


def avg_pool2d(x: Array, spec: PoolSpec, count_include_pad: bool) -> Array:
    """The mean of each window; zeros of the padding count as elements if ``count_include_pad``."""
    n, c, h, w = x.shape
    height, width = spec.output_size((h, w))
    y = _empty((n, height, width, c), x)
    y[...] = 0
    if 0 not in y.shape:
        padded = _padded(x, spec.full_padding((h, w)))
        for _, _, ys, xs in _Window(spec.stride, spec.dilation, spec.kernel, width).taps(slice(0, height)):
            y += padded[:, ys, xs]
        y /= get_namespace(x).asarray(_pool_counts(x.shape, spec, count_include_pad), x.dtype)
    return y.transpose(0, 3, 1, 2)


def avg_pool2d_grad(gy: Array, x_shape: tuple[int, ...], spec: PoolSpec, count_include_pad: bool) -> Array:
    """The gradient of ``avg_pool2d``."""
    n, c, h, w = x_shape
    xp, padding = get_namespace(gy), spec.full_padding((h, w))
    padded = xp.zeros((n, h + padding[0] + padding[1], w + padding[2] + padding[3], c), gy.dtype)
    if 0 not in gy.shape:
        share = gy.transpose(0, 2, 3, 1) / xp.asarray(_pool_counts(x_shape, spec, count_include_pad), gy.dtype)
        for _, _, ys, xs in _Window(spec.stride, spec.dilation, spec.kernel, gy.shape[3]).taps(slice(0, gy.shape[2])):
            padded[:, ys, xs] += share
    return _cropped(padded, (h, w), padding)


def sum_over(x: Array, axes: tuple[int, ...]) -> Array:
    """The sum over ``axes``, which stay with length 1.

    Where the fastest axis in memory stays, NumPy adds whole rows one after another, and over the positions of an image
    rounding adds up. Here it grows with a side, not with the area: one axis after another.
    """
    order = sorted(range(x.ndim), key=lambda axis: -x.strides[axis])
    y = x.transpose(order)
    if x.dtype not in (np.float32, np.float64) or not axes or order[-1] in axes or not y.flags.c_contiguous:
        return x.sum(axis=axes, keepdims=True)
    for i, axis in reversed(list(enumerate(order))):
        if axis in axes and isinstance(x, np.ndarray) and y.shape[-1] < 128:  # a product takes short rows faster
            y = (np.ones((1, y.shape[i]), x.dtype) @ y.swapaxes(i, -2)).swapaxes(i, -2)
        elif axis in axes:
            y = y.sum(axis=i, keepdims=True)
    return y.transpose(sorted(range(x.ndim), key=order.__getitem__))


def _wide(x: Array) -> Array:
    """Statistics of half precision are summed in single."""
    return x.astype(np.float32) if x.dtype == np.float16 else x


def _per_channel(v: Array) -> Array:
    return v.reshape(1, -1, 1, 1)


def batch_norm(x: Array, gamma: Array, beta: Array, eps: float) -> tuple[Array, Array, Array]:
    """x normalised over batch, height and width, times gamma plus beta; then the mean and the biased variance."""
    wide = _wide(x)
    count = max(x.shape[0] * x.shape[2] * x.shape[3], 1)
    mean = sum_over(wide, (0, 2, 3)).reshape(-1) / count
    centred = wide - _per_channel(mean)
    var = sum_over(centred * centred, (0, 2, 3)).reshape(-1) / count
    y = centred * _per_channel(gamma / get_namespace(x).sqrt(var + eps)) + _per_channel(beta)
    return y.astype(x.dtype, copy=False), mean, var


def batch_norm_grad(
    x: Array, gy: Array, gamma: Array, mean: Array, var: Array, eps: float
) -> tuple[Array, Array, Array]:
    """The gradients of ``batch_norm`` by x, gamma and beta, from the statistics it returned."""
    wide = _wide(gy)
    count = max(x.shape[0] * x.shape[2] * x.shape[3], 1)
    scale = 1 / get_namespace(x).sqrt(var + eps)
    normal = (_wide(x) - _per_channel(mean)) * _per_channel(scale)
    gbeta = sum_over(wide, (0, 2, 3)).reshape(-1)
    ggamma = sum_over(wide * normal, (0, 2, 3)).reshape(-1)
    gx = (wide - _per_channel(gbeta / count) - normal * _per_channel(ggamma / count)) * _per_channel(gamma * scale)
    return gx.astype(x.dtype, copy=False), ggamma.astype(gamma.dtype, copy=False), gbeta.astype(gamma.dtype, copy=False)


def matmul(a: Array, b: Array) -> Array:
    """The matrix product of the last two axes, the axes before them broadcast."""
    return get_namespace(a).matmul(a, b)


def linear(x: Array, w: Array, b: Array | None) -> Array:
    """x (..., in) times the transpose of w (out, in), plus b (out,)."""
    y = get_namespace(x).matmul(x, w.T)
    return y if b is None else y + b


def set_num_threads(count: int) -> None:
    """Let the OpenBLAS that NumPy's wheels carry use ``count`` threads; another BLAS keeps its own setting."""
    for path in (Path(np.__file__).parent.parent / "numpy.libs").glob("*openblas*"):
        library = ctypes.CDLL(str(path))
        for name in ("scipy_openblas_set_num_threads64_", "openblas_set_num_threads64_", "openblas_set_num_threads"):
            if hasattr(library, name):
                getattr(library, name)(count)
                break


# Coefficients of erf and erfc from Cephes (S. L. Moshier), ndtr.c, highest power first.
_ERF_P = (
    9.60497373987051638749, 90.0260197203842689217, 2232.00534594684319226, 7003.32514112805075473,
    55592.3013010394962768,
)  # fmt: skip
_ERF_Q = (
    1.0, 33.5617141647503099647, 521.357949780152679795, 4594.32382970980127987, 22629.0000613890934246,
    49267.3942608635921086,
)  # fmt: skip
_ERFC_P = (
    2.46196981473530512524e-10, 0.564189564831068821977, 7.46321056442269912687, 48.6371970985681366614,
    196.520832956077098242, 526.445194995477358631, 934.528527171957607540, 1027.55188689515710272,
    557.535335369399327526,
)  # fmt: skip
_ERFC_Q = (
    1.0, 13.2281951154744992508, 86.7072140885989742329, 354.937778887819891062, 975.708501743205489753,
    1823.90916687909736289, 2246.33760818710981792, 1656.66309194161350182, 557.535340817727675546,
)  # fmt: skip


def _polynomial(coefficients: tuple[float, ...], x: Array) -> Array:
    total = x * 0 + coefficients[0]
    for coefficient in coefficients[1:]:
        total = total * x + coefficient
    return total


def erf(x: Array) -> Array:
    """The error function, to the accuracy of the dtype (rational approximations of Cephes)."""
    xp = get_namespace(x)
    size = xp.abs(x)
    low = xp.minimum(size, 1)
    high = xp.clip(size, 1, 6)  # erf(6) is 1 to double precision
    square = low * low
    inner = low * _polynomial(_ERF_P, square) / _polynomial(_ERF_Q, square)
    outer = 1 - xp.exp(-high * high) * _polynomial(_ERFC_P, high) / _polynomial(_ERFC_Q, high)
    return xp.where(size != size, x, xp.sign(x) * xp.where(size < 1, inner, outer))


def sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x)) without overflow."""
    return 0.5 * get_namespace(x).tanh(0.5 * x) + 0.5


# Each takes the namespace, x, alpha and beta.
_ACTIVATIONS: dict[str, Callable[[Any, Array, float, float], Array]] = {
    "relu": lambda xp, x, *_: xp.maximum(x, 0),
    "relu6": lambda xp, x, *_: xp.clip(x, 0, 6),
    "clip": lambda xp, x, low, high: xp.clip(x, low, high),
    "leaky_relu": lambda xp, x, slope, _: xp.where(x > 0, x, x * slope),
    "sigmoid": lambda xp, x, *_: sigmoid(x),
    "silu": lambda xp, x, *_: x * sigmoid(x),
    "hard_sigmoid": lambda xp, x, *_: xp.clip(x / 6 + 0.5, 0, 1),
    "hard_swish": lambda xp, x, *_: x * xp.clip(x / 6 + 0.5, 0, 1),
    "tanh": lambda xp, x, *_: xp.tanh(x),
    "gelu": lambda xp, x, *_: 0.5 * x * (1 + erf(x * math.sqrt(0.5))),
    "mish": lambda xp, x, *_: x * xp.tanh(xp.maximum(x, 0) + xp.log1p(xp.exp(-xp.abs(x)))),
}


def activate(x: Array, activation: Activation) -> Array:
    """An activation by name: leaky_relu takes its slope as alpha, clip its bounds as alpha and beta."""
    name, alpha, beta = activation
    if name not in _ACTIVATIONS:
        raise ValueError(f"expected the name of an activation ({', '.join(_ACTIVATIONS)}), got {name!r}")
    return _ACTIVATIONS[name](get_namespace(x), x, alpha, beta)
