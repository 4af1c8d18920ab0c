"""Weighted sums of a few entries along an axis: resizing, adaptive pooling, and RoIAlign, are tables of such sums.

A table is its own derivative, transposed, so one pair of operations gives all of them first and second gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from .. import kernels
from ..device import Array, get_namespace
from ..function import Function, is_recording
from ..kernels import memory, threads
from ..tensor import Tensor, wrap
from .conv import Pair, pair
from .reduce import mean

CHUNK_BYTES = 1 << 19  # values are gathered in pieces that stay in a core's second-level cache
WIDEST = 16
PIECES_PER_THREAD = 8  # fewer are done before a second thread has started
BLAS_SIZES = range(16, 8192)  # below, a product's call costs more than its work; above, it would start BLAS's threads


@dataclass(eq=False)
class Taps:
    """For each output row the input rows it sums, and with which weights.

    ``index`` (rows, taps) int and ``weight`` (rows, taps) are on the host; ``size`` is the number of input rows.
    """

    index: np.ndarray
    weight: np.ndarray
    size: int

    def apply(self, x: Array) -> Array:
        """(outer, size, inner) to (outer, rows, inner)."""
        xp = get_namespace(x)
        outer, _, inner = x.shape
        rows, taps = self.index.shape
        index, weight = xp.asarray(self.index), xp.asarray(self.weight.astype(x.dtype, copy=False))
        out = (memory if xp is np else xp).empty((outer, rows, inner), x.dtype)
        if taps == 1 and bool((self.weight == 1).all()):
            return _take(xp, x, index[:, 0], out)
        row_bytes = max(1, taps * inner * x.dtype.itemsize)
        limit = CHUNK_BYTES if xp is np else 128 * CHUNK_BYTES  # of a GPU, whose calls cost more, in its memory
        row_step = max(1, min(rows, limit // row_bytes))
        outer_step = max(1, limit // (row_bytes * row_step))

        def run(starts: tuple[int, int]) -> None:
            o, r = (slice(start, start + step) for start, step in zip(starts, (outer_step, row_step)))
            source, at, w, piece = x[o], index[r], weight[r], out[o, r]
            if inner in BLAS_SIZES and taps * inner in BLAS_SIZES:
                xp.matmul(w[:, None], _take(xp, source, at), out=piece[:, :, None])
                return
            piece[...] = 0
            for k in range(taps):
                part = _take(xp, source, at[:, k])
                part *= w[:, k, None]
                piece += part

        def run_all(pieces: Sequence[tuple[int, int]]) -> None:
            for piece in pieces:
                run(piece)

        pieces = [(o, r) for o in range(0, outer, outer_step) for r in range(0, rows, row_step)]
        threads.share(run_all, pieces, PIECES_PER_THREAD)
        return out

    def apply_transposed(self, y: Array) -> Array:
        """(outer, rows, inner) to (outer, size, inner)."""
        xp, pieces = get_namespace(y), self.transposed
        if len(pieces) == 1 and len(pieces[0][0]) == self.size:
            return pieces[0][1].apply(y)
        out = xp.zeros((y.shape[0], self.size, y.shape[2]), y.dtype)
        for targets, taps in pieces:
            out[:, xp.asarray(targets)] += taps.apply(y)
        return out

    @cached_property
    def transposed(self) -> list[tuple[np.ndarray, Taps]]:
        """The transposed table, in pieces of input rows with one number of taps, at most ``WIDEST``."""
        used = np.flatnonzero(self.weight)
        target = self.index.ravel()[used]
        order = used[np.argsort(target, kind="stable")]
        source, weight = order // self.index.shape[1], self.weight.ravel()[order]
        left = np.bincount(target, minlength=self.size)
        start = np.cumsum(left) - left
        pieces = []
        while left.any():
            width = np.minimum(left, WIDEST)
            for n in np.unique(width[width > 0]):
                targets = np.flatnonzero(width == n)
                place = start[targets, None] + np.arange(n)
                pieces.append((targets, Taps(source[place], weight[place], len(self.index))))
            start, left = start + width, left - width
        return pieces


def _take(xp: Any, x: Array, index: Array, out: Array | None = None) -> Array:
    """The entries of x (outer, size, inner) at ``index`` along its second axis."""
    # NumPy's default mode, "raise", would buffer the output; CuPy has no modes.
    return xp.take(x, index, axis=1, out=out, mode="clip") if xp is np else xp.take(x, index, axis=1, out=out)


def _spans(first: np.ndarray, last: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """first, first + 1, ... below last for each row, then repeating the final one; and which are no repetitions."""
    place = first[:, None] + np.arange((last - first).max(initial=1))
    return np.minimum(place, last[:, None] - 1), place < last[:, None]


class Interpolate(Function):
    """The weighted sums of ``taps`` along ``axis`` of (n, channels, height, width), or of (rows, channels)."""

    def __init__(self, taps: Taps, axis: int) -> None:
        self.taps, self.axis = taps, axis

    def forward(self, x: Array) -> Array:
        return _along_axis(x, self.axis, self.taps.apply)

    def backward(self, gy: Tensor) -> tuple[Tensor]:
        return (InterpolateTransposed(self.taps, self.axis)(gy),)


class InterpolateTransposed(Function):
    def __init__(self, taps: Taps, axis: int) -> None:
        self.taps, self.axis = taps, axis

    def forward(self, y: Array) -> Array:
        return _along_axis(y, self.axis, self.taps.apply_transposed)

    def backward(self, ggx: Tensor) -> tuple[Tensor]:
        return (Interpolate(self.taps, self.axis)(ggx),)


def _along_axis(x: Array, axis: int, apply: Callable[[Array], Array]) -> Array:
    """Run ``apply`` on x seen as (outer, axis, inner), channels last in memory."""
    xp = get_namespace(x)
    if x.ndim == 2:
        return apply(xp.ascontiguousarray(x)[None])[0]
    nhwc = xp.ascontiguousarray(x.transpose(0, 2, 3, 1))
    n, h, w, c = nhwc.shape
    y = apply(nhwc.reshape((n, h, w * c) if axis == 2 else (n * h, w, c)))
    return y.reshape((n, y.shape[1], w, c) if axis == 2 else (n, h, y.shape[1], c)).transpose(0, 3, 1, 2)


@lru_cache(maxsize=256)
def _nearest_taps(size: int, out: int, real: np.dtype[Any]) -> Taps:
    scale = real.type(size) / real.type(out)
    index = np.minimum((np.arange(out, dtype=real) * scale).astype(np.int64), size - 1)
    return Taps(index[:, None], np.ones((out, 1), real), size)


@lru_cache(maxsize=256)
def _linear_taps(size: int, out: int, align_corners: bool, real: np.dtype[Any]) -> Taps:
    at = np.arange(out, dtype=real)
    if align_corners:
        source = at * real.type((size - 1) / (out - 1) if out > 1 else 0)
    else:
        # one rounding at the end, like the fused multiply-add that torch's kernel is compiled to: its very indices
        scale = np.longdouble(real.type(size) / real.type(out))
        source = np.maximum(((at + real.type(0.5)) * scale - 0.5).astype(real), 0)
    low = np.minimum(source.astype(np.int64), size - 1)
    high = np.minimum(low + 1, size - 1)
    upper = np.clip(source - low, 0, 1).astype(real)
    return Taps(np.stack([low, high], 1), np.stack([1 - upper, upper], 1), size)


@lru_cache(maxsize=256)
def _antialias_taps(size: int, out: int, align_corners: bool) -> Taps:
    """A triangle as wide as the shrinking, as Pillow's resize has it."""
    scale = (size - 1) / (out - 1) if align_corners and out > 1 else size / out
    support = max(scale, 1.0)
    centre = scale * (np.arange(out) + 0.5)
    first = np.maximum((centre - support + 0.5).astype(np.int64), 0)
    place, inside = _spans(first, np.minimum((centre + support + 0.5).astype(np.int64), size))
    weight = np.maximum(0, 1 - np.abs((place - centre[:, None] + 0.5) / support)) * inside
    return Taps(place, weight / weight.sum(1, keepdims=True), size)


@lru_cache(maxsize=256)
def _cell_taps(size: int, out: int) -> Taps:
    """The means of ``out`` cells that cover ``size`` entries, those at the borders in both neighbours."""
    cell = np.arange(out)
    place, inside = _spans(cell * size // out, -(-(cell + 1) * size // out))
    return Taps(place, inside / inside.sum(1, keepdims=True), size)


def _precision(x: Tensor) -> np.dtype[Any]:
    """The dtype in which places are computed: float64 for float64 values, else float32, as everywhere."""
    return x.dtype if x.dtype == np.float64 else np.dtype(np.float32)


def _target(name: str, x: Tensor, size: Pair) -> tuple[int, int]:
    if x.ndim != 4 or min(pair(size)) < 1 or min(x.shape[2:]) < 1:
        expected = "x (n, channels, height, width) and a size of at least 1"
        raise ValueError(f"{name}: expected {expected}, got {x.shape}, {pair(size)}")
    return pair(size)


def resize(
    x: Tensor, size: Pair, mode: str = "bilinear", align_corners: bool = False, antialias: bool = False
) -> Tensor:
    """x (n, channels, height, width) at another (height, width), bilinear or nearest.

    Pixel centres are half-integers, or the corner pixels' centres stay in place with ``align_corners``. ``antialias``
    widens the bilinear kernel when shrinking. Raises ValueError for a size below 1 or another mode.

    >>> resize(Tensor(np.arange(4, dtype=np.float32).reshape(1, 1, 2, 2)), 4, "nearest").shape
    (1, 1, 4, 4)
    """
    out = _target("resize", x, size)
    if mode not in ("bilinear", "nearest") or (antialias and mode == "nearest"):
        raise ValueError(f'resize: expected mode "bilinear", or "nearest" without antialias, got {mode!r}')
    if not is_recording() and not antialias and not align_corners and x.shape[2:] != out:
        y = kernels.resize(x.data, out, mode)
        if y is not None:
            return wrap(y)
    for axis in (3, 2) if out[0] > x.shape[2] else (2, 3):  # the fewer rows, the less work along the width
        before, after = x.shape[axis], out[axis - 2]
        if before == after:
            continue
        if mode == "nearest":
            taps = _nearest_taps(before, after, _precision(x))
        elif antialias:
            taps = _antialias_taps(before, after, align_corners)
        else:
            taps = _linear_taps(before, after, align_corners, _precision(x))
        x = Interpolate(taps, axis)(x)
    return x


def adaptive_avg_pool2d(x: Tensor, size: Pair) -> Tensor:
    """The means of x (n, channels, height, width) over a grid of ``size`` cells that cover it evenly.

    Raises ValueError for an empty height or width or a size below 1.

    >>> adaptive_avg_pool2d(Tensor(np.ones((1, 2, 5, 7), np.float32)), 1).shape
    (1, 2, 1, 1)
    """
    out = _target("adaptive_avg_pool2d", x, size)
    if out == (1, 1):
        return mean(x, (2, 3), True)
    for axis in (2, 3):
        if x.shape[axis] != out[axis - 2]:
            x = Interpolate(_cell_taps(x.shape[axis], out[axis - 2]), axis)(x)
    return x
