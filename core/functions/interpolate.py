"""Weighted sums of a few entries along an axis: resizing, adaptive pooling and RoIAlign are tables of such sums.

A table is its own derivative, transposed, so one pair of operations gives all of them first and second gradients.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..device import Array, get_namespace
from ..function import Function
from ..tensor import Tensor
from .conv import Pair, pair
from .reduce import mean
from .shape import concatenate, reshape, transpose

CHUNK_BYTES = 1 << 20  # output rows are made in pieces that stay in a core's second-level cache


@dataclass(eq=False)
class Taps:
    """For each output row the input rows it sums, and with which weights.

    ``index`` (rows, taps) int and ``weight`` (rows, taps) of the values' dtype, both on the host; ``size`` is the number
    of input rows.
    """

    index: np.ndarray
    weight: np.ndarray
    size: int

    def on(self, xp: Any, dtype: Any) -> tuple[Array, Array]:
        return xp.asarray(self.index), xp.asarray(self.weight.astype(dtype, copy=False))

    def apply(self, x: Array) -> Array:
        """(outer, size, inner) to (outer, rows, inner)."""
        xp = get_namespace(x)
        index, weight = self.on(xp, x.dtype)
        outer, _, inner = x.shape
        rows, taps = index.shape
        out = xp.empty((outer, rows, inner), x.dtype)
        plain = taps == 1 and bool((self.weight == 1).all())
        step = max(1, CHUNK_BYTES // max(1, inner * x.dtype.itemsize))
        for o in range(outer):
            for start in range(0, rows, step):
                piece = out[o, start : start + step]
                at = index[start : start + step]
                xp.take(x[o], at[:, 0], axis=0, out=piece, **_unchecked(xp))
                if plain:
                    continue
                w = weight[start : start + step, :, None]
                piece *= w[:, 0]
                if taps > 1:
                    part = xp.empty_like(piece)
                for k in range(1, taps):
                    xp.take(x[o], at[:, k], axis=0, out=part, **_unchecked(xp))
                    part *= w[:, k]
                    piece += part
        return out

    def apply_transposed(self, y: Array) -> Array:
        """(outer, rows, inner) to (outer, size, inner)."""
        xp = get_namespace(y)
        outer, _, inner = y.shape
        out = xp.zeros((outer, self.size, inner), y.dtype)
        if not self.index.size or not inner:
            return out
        if xp is not np:
            index, weight = self.on(xp, y.dtype)
            for o in range(outer):
                for k in range(index.shape[1]):
                    xp.add.at(out[o], index[:, k], y[o] * weight[:, k, None])
            return out
        used = np.flatnonzero(self.weight.ravel())
        order = used[np.argsort(self.index.ravel()[used], kind="stable")]
        targets = self.index.ravel()[order]
        source = order // self.index.shape[1]
        weight = self.weight.ravel()[order].astype(y.dtype, copy=False)[:, None]
        starts = np.flatnonzero(np.concatenate([[True], targets[1:] != targets[:-1]])) if len(targets) else targets
        step = max(1, CHUNK_BYTES // (inner * y.dtype.itemsize))
        first = 0
        while first < len(starts):  # whole targets at a time, so that no sum is cut in two
            last = max(first + 1, int(np.searchsorted(starts, starts[first] + step)))
            begin, end = starts[first], starts[last] if last < len(starts) else len(order)
            for o in range(outer):
                part = y[o].take(source[begin:end], axis=0)
                part *= weight[begin:end]
                out[o, targets[starts[first:last]]] = np.add.reduceat(part, starts[first:last] - begin, axis=0)
            first = last
        return out


def _unchecked(xp: Any) -> dict[str, str]:
    return {"mode": "clip"} if xp is np else {}  # "raise", NumPy's default, would buffer the output


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


def _along_axis(x: Array, axis: int, apply: Any) -> Array:
    """Run ``apply`` on x seen as (outer, axis, inner), channels last in memory."""
    if x.ndim == 2:
        return apply(get_namespace(x).ascontiguousarray(x)[None])[0]
    nhwc = get_namespace(x).ascontiguousarray(x.transpose(0, 2, 3, 1))
    n, h, w, c = nhwc.shape
    if axis == 2:
        return apply(nhwc.reshape(n, h, w * c)).reshape(n, -1, w, c).transpose(0, 3, 1, 2)
    return apply(nhwc.reshape(n * h, w, c)).reshape(n, h, -1, c).transpose(0, 3, 1, 2)


def _nearest_taps(size: int, out: int) -> Taps:
    scale = np.float32(size) / np.float32(out)
    index = np.minimum((np.arange(out, dtype=np.float32) * scale).astype(np.int64), size - 1)
    return Taps(index[:, None], np.ones((out, 1)), size)


def _linear_taps(size: int, out: int, align_corners: bool) -> Taps:
    at = np.arange(out, dtype=np.float32)
    if align_corners:
        source = at * np.float32((size - 1) / (out - 1) if out > 1 else 0)
    else:
        source = np.maximum((at + np.float32(0.5)) * (np.float32(size) / np.float32(out)) - np.float32(0.5), 0)
    low = np.minimum(source.astype(np.int64), size - 1)
    high = np.minimum(low + 1, size - 1)
    upper = np.clip(source - low, 0, 1)
    return Taps(np.stack([low, high], 1), np.stack([1 - upper, upper], 1), size)


def _antialias_taps(size: int, out: int, align_corners: bool) -> Taps:
    """A triangle as wide as the shrinking, as Pillow's resize has it."""
    scale = (size - 1) / (out - 1) if align_corners and out > 1 else size / out
    support = max(scale, 1.0)
    rows = []
    for i in range(out):
        centre = scale * (i + 0.5)
        first, last = max(int(centre - support + 0.5), 0), min(int(centre + support + 0.5), size)
        weight = np.maximum(0, 1 - np.abs((np.arange(first, last) - centre + 0.5) / support))
        rows.append((first, weight / weight.sum()))
    return _ragged_taps(rows, size)


def _ragged_taps(rows: list[tuple[int, np.ndarray]], size: int) -> Taps:
    """A table from (first input row, weights of it and those that follow) for each output row."""
    width = max((len(w) for _, w in rows), default=1)
    index, weight = np.zeros((len(rows), width), np.int64), np.zeros((len(rows), width))
    for i, (first, w) in enumerate(rows):
        index[i, : len(w)] = first + np.arange(len(w))
        weight[i, : len(w)] = w
    return Taps(index, weight, size)


def resize(
    x: Tensor, size: Pair, mode: str = "bilinear", align_corners: bool = False, antialias: bool = False
) -> Tensor:
    """x (n, channels, height, width) at another (height, width), bilinear or nearest.

    Pixel centres are half-integers, or the corner pixels' centres stay in place with ``align_corners``. ``antialias``
    widens the bilinear kernel when shrinking. Raises ValueError for a size below 1 or another mode.

    >>> resize(Tensor(np.arange(4, dtype=np.float32).reshape(1, 1, 2, 2)), 4, "nearest").shape
    (1, 1, 4, 4)
    """
    out = pair(size)
    if x.ndim != 4 or min(out) < 1 or min(x.shape[2:]) < 1:
        raise ValueError(
            f"resize: expected x (n, channels, height, width) and a size of at least 1, got {x.shape}, {out}"
        )
    if mode not in ("bilinear", "nearest") or (antialias and mode == "nearest"):
        raise ValueError(f'resize: expected mode "bilinear", or "nearest" without antialias, got {mode!r}')
    for axis in (2, 3):
        before, after = x.shape[axis], out[axis - 2]
        if before == after:
            continue
        if mode == "nearest":
            taps = _nearest_taps(before, after)
        elif antialias:
            taps = _antialias_taps(before, after, align_corners)
        else:
            taps = _linear_taps(before, after, align_corners)
        x = Interpolate(taps, axis)(x)
    return x


def adaptive_avg_pool2d(x: Tensor, size: Pair) -> Tensor:
    """The means of x (n, channels, height, width) over a grid of ``size`` cells that cover it evenly.

    >>> adaptive_avg_pool2d(Tensor(np.ones((1, 2, 5, 7), np.float32)), 1).shape
    (1, 2, 1, 1)
    """
    out = pair(size)
    if out == (1, 1):
        return mean(x, (2, 3), True)
    for axis in (2, 3):
        n, m = x.shape[axis], out[axis - 2]
        if n != m:
            spans = [(i * n // m, math.ceil((i + 1) * n / m)) for i in range(m)]
            taps = _ragged_taps([(a, np.full(b - a, 1 / (b - a))) for a, b in spans], n)
            x = Interpolate(taps, axis)(x)
    return x


def roi_align(
    x: Tensor,
    boxes: np.ndarray,
    batch_index: np.ndarray,
    output_size: Pair,
    spatial_scale: float = 1.0,
    sampling_ratio: int = 2,
    aligned: bool = False,
) -> Tensor:
    """Features of boxes, sampled bilinearly on a regular grid (He et al. 2017, "Mask R-CNN", section 3).

    ``x`` is (n, channels, height, width), ``boxes`` (r, 4) xyxy in pixels of the image, ``batch_index`` (r,) the image
    of each box; the result is (r, channels, *output_size). ``spatial_scale`` is features per pixel; each cell averages
    ``sampling_ratio`` ** 2 points, or as many as its size in features where that is 0 or less. ``aligned`` shifts by
    half a feature and lets boxes be smaller than one. Points more than one feature outside count as 0. There is no
    gradient for the boxes. Raises ValueError for shapes that do not match.

    >>> x = Tensor(np.ones((1, 3, 8, 8), np.float32))
    >>> roi_align(x, np.array([[0, 0, 4, 4.0]]), np.array([0]), 2).shape
    (1, 3, 2, 2)
    """
    out_h, out_w = pair(output_size)
    n, c, h, w = x.shape
    boxes = np.asarray(boxes, np.float32)
    if boxes.shape != (len(batch_index), 4):
        raise ValueError(f"roi_align: expected {len(batch_index)} boxes (r, 4), got shape {boxes.shape}")
    rows = reshape(transpose(x, (0, 2, 3, 1)), (n * h * w, c))
    offset = np.float32(0.5 if aligned else 0)
    start = boxes[:, 1::-1] * np.float32(spatial_scale) - offset  # (r, 2): y, x
    extent = boxes[:, :1:-1] * np.float32(spatial_scale) - offset - start
    if not aligned:
        extent = np.maximum(extent, 1)
    cell = extent / np.array([out_h, out_w], np.float32)
    count = np.full((len(boxes), 2), sampling_ratio) if sampling_ratio > 0 else np.ceil(cell).astype(int)
    base = np.asarray(batch_index, np.int64) * (h * w)
    taps = []
    order = np.empty(0, np.int64)
    for sy, sx in np.unique(count, axis=0):
        chosen = np.flatnonzero((count == (sy, sx)).all(1))
        order = np.concatenate([order, chosen])
        iy, wy = _axis_samples(start[chosen, 0], cell[chosen, 0], out_h, max(sy, 0), h)
        ix, wx = _axis_samples(start[chosen, 1], cell[chosen, 1], out_w, max(sx, 0), w)
        index = base[chosen, None, None, None, None] + iy[:, :, None, :, None] * w + ix[:, None, :, None, :]
        weight = wy[:, :, None, :, None] * wx[:, None, :, None, :]
        shape = (len(chosen) * out_h * out_w, -1 if index.size else 1)
        taps.append(
            Taps(index.reshape(shape), weight.reshape(shape), n * h * w)
            if index.size
            else Taps(np.zeros(shape, np.int64), np.zeros(shape, np.float32), n * h * w)
        )
    if not taps:
        taps = [Taps(np.zeros((0, 1), np.int64), np.zeros((0, 1), np.float32), n * h * w)]
    parts = [transpose(reshape(Interpolate(t, 0)(rows), (-1, out_h, out_w, c)), (0, 3, 1, 2)) for t in taps]
    if len(parts) == 1:
        return parts[0]
    return concatenate(parts)[np.argsort(order)]


def _axis_samples(
    start: np.ndarray, cell: np.ndarray, cells: int, count: int, size: int
) -> tuple[np.ndarray, np.ndarray]:
    """Along one axis, the two neighbours of every sample of every cell: index and weight, (r, cells, 2 * count)."""
    step = (np.arange(count, dtype=np.float32) + np.float32(0.5)) / np.float32(max(count, 1))
    at = start[:, None, None] + (np.arange(cells, dtype=np.float32)[:, None] + step) * cell[:, None, None]
    inside = (at >= -1) & (at <= size)
    at = np.maximum(at, 0)
    low = np.minimum(at.astype(np.int64), size - 1)
    high = np.minimum(low + 1, size - 1)
    upper = np.where(low >= size - 1, 0, at - low).astype(np.float32)
    scale = inside.astype(np.float32) / np.float32(max(count, 1))
    shape = (len(start), cells, 2 * count)
    return np.stack([low, high], -1).reshape(shape), np.stack([(1 - upper) * scale, upper * scale], -1).reshape(shape)
