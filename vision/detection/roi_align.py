"""RoIAlign: features of boxes, sampled bilinearly."""

from __future__ import annotations

import numpy as np

from ...core import Tensor
from ...core import functions as F
from ...core.functions.conv import Pair, pair
from ...core.functions.interpolate import Interpolate, Taps


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
    gradient for the boxes. Raises ValueError for shapes that do not match or an image that is not there.

    >>> x = Tensor(np.ones((1, 3, 8, 8), np.float32))
    >>> roi_align(x, np.array([[0, 0, 4, 4.0]]), np.array([0]), 2).shape
    (1, 3, 2, 2)
    """
    out_h, out_w = pair(output_size)
    if x.ndim != 4:
        raise ValueError(f"roi_align: expected x (n, channels, height, width), got {x.shape}")
    n, c, h, w = x.shape
    real = x.dtype if x.dtype == np.float64 else np.dtype(np.float32)
    boxes, image = np.asarray(boxes, real), np.asarray(batch_index, np.int64)
    if boxes.shape != (len(image), 4):
        raise ValueError(f"roi_align: expected {len(image)} boxes (r, 4), got shape {boxes.shape}")
    if len(image) and not (image.min() >= 0 and image.max() < n):
        raise ValueError(f"roi_align: expected batch_index from 0 to {n - 1}, got {image.min()} to {image.max()}")
    if not np.isfinite(boxes).all():
        bad = np.flatnonzero(~np.isfinite(boxes).all(1))[0]
        raise ValueError(f"roi_align: expected finite boxes, got {boxes[bad].tolist()} as box {bad}")
    rows = F.reshape(F.transpose(x, (0, 2, 3, 1)), (n * h * w, c))
    offset = real.type(0.5 if aligned else 0)
    start = boxes[:, 1::-1] * real.type(spatial_scale) - offset  # (r, 2): y, x
    extent = boxes[:, :1:-1] * real.type(spatial_scale) - offset - start
    if not aligned:
        extent = np.maximum(extent, 1)
    cell = extent / np.array([out_h, out_w], real)
    count = np.full((len(boxes), 2), sampling_ratio) if sampling_ratio > 0 else np.ceil(cell).astype(int)
    parts, order = [], []
    for sy, sx in np.unique(count, axis=0) if len(boxes) else [(1, 1)]:
        chosen = np.flatnonzero((count == (sy, sx)).all(1))
        iy, wy = _axis_samples(start[chosen, 0], cell[chosen, 0], out_h, sy, h)
        ix, wx = _axis_samples(start[chosen, 1], cell[chosen, 1], out_w, sx, w)
        base = image[chosen, None, None, None, None] * (h * w)
        index = base + iy[:, :, None, :, None] * w + ix[:, None, :, None, :]
        weight = wy[:, :, None, :, None] * wx[:, None, :, None, :]
        shape = (len(chosen) * out_h * out_w, iy.shape[2] * ix.shape[2])
        values = Interpolate(Taps(index.reshape(shape), weight.reshape(shape), n * h * w), 0)(rows)
        parts.append(F.transpose(F.reshape(values, (len(chosen), out_h, out_w, c)), (0, 3, 1, 2)))
        order.append(chosen)
    return parts[0] if len(parts) == 1 else F.getitem(F.concatenate(parts), np.argsort(np.concatenate(order)))


def _axis_samples(
    start: np.ndarray, cell: np.ndarray, cells: int, count: int, size: int
) -> tuple[np.ndarray, np.ndarray]:
    """Along one axis, the two neighbours of every sample of every cell: index and weight, (r, cells, 2 * count).

    A box without extent has no sample: it gets one of weight 0.
    """
    real = start.dtype.type
    step = (np.arange(max(count, 1), dtype=start.dtype) + real(0.5)) / real(max(count, 1))
    at = start[:, None, None] + (np.arange(cells, dtype=start.dtype)[:, None] + step) * cell[:, None, None]
    inside = (at >= -1) & (at <= size)
    at = np.clip(at, 0, size)
    low = np.minimum(at.astype(np.int64), size - 1)
    high = np.minimum(low + 1, size - 1)
    upper = np.where(low >= size - 1, 0, at - low).astype(start.dtype)
    scale = (inside & (count > 0)).astype(start.dtype) / real(max(count, 1))
    shape = (len(start), cells, 2 * at.shape[2])
    return np.stack([low, high], -1).reshape(shape), np.stack([(1 - upper) * scale, upper * scale], -1).reshape(shape)
