"""Boxes: conversion, overlap, suppression and coding, in NumPy.

The box convention of the whole package, stated once:

- A set of boxes is float32 of shape (n, 4); a row is x1, y1, x2, y2 ("xyxy"), in pixels of the original image.
- x grows to the right, y downwards; (0, 0) is the outer corner of the first pixel, whose centre is (0.5, 0.5). A box
  that covers the whole image is (0, 0, width, height).
- Coordinates are continuous: width is x2 - x1 and area is width times height, without the "+ 1" of inclusive pixels.
- A box with x2 <= x1 or y2 <= y1 is degenerate: it has no area, overlaps nothing, and never suppresses anything.
- An image size is (height, width), in this order, as in ``image.shape``.
- No objects is (0, 4), never None.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

Array = np.ndarray

_LARGEST_LOG_SCALE = math.log(1000 / 16)
# Suppression compares at most this many candidate pairs one by one; more are thinned out by blocks of boxes first.
_MOST_PAIRS = 2_000_000
_PAIRS_AT_ONCE = 100_000
_BLOCK = 512
# A tile of winners times a stretch of boxes stays in the second-level cache.
_TILE = 32
_STRETCH = 1024
_MOST_STRIPS = 1 << 20


def area(boxes: Array) -> Array:
    """Areas (...,) of boxes (..., 4) xyxy in square pixels; degenerate boxes have area 0.

    >>> area(np.array([[0, 0, 2, 3], [5, 5, 4, 9]], np.float32))
    array([6., 0.], dtype=float32)
    """
    sides = np.maximum(boxes[..., 2:] - boxes[..., :2], 0)
    return np.asarray(sides[..., 0] * sides[..., 1])


def clip(boxes: Array, image_size: tuple[float, float]) -> Array:
    """Boxes (..., 4) xyxy moved into an image of ``image_size`` = (height, width).

    >>> clip(np.array([[-3, 2, 30, 9]], np.float32), (8, 20))
    array([[ 0.,  2., 20.,  8.]], dtype=float32)
    """
    height, width = image_size
    return np.asarray(np.clip(boxes, 0, np.array([width, height, width, height], boxes.dtype)))


def scale(boxes: Array, from_size: tuple[float, float], to_size: tuple[float, float]) -> Array:
    """Boxes (..., 4) of an image of ``from_size`` (height, width), for the same image resized to ``to_size``.

    Each axis has its own ratio, computed in float32 as torchvision does.

    >>> scale(np.array([[2, 4, 6, 8]], np.float32), (10, 20), (5, 40))
    array([[ 4.,  2., 12.,  4.]], dtype=float32)
    """
    y, x = np.asarray(to_size, np.float32) / np.asarray(from_size, np.float32)
    return np.asarray(boxes * np.array([x, y, x, y], np.float32))


def at_least(boxes: Array, side: float) -> Array:
    """Mask (n,) of the boxes (n, 4) whose width and height both reach ``side`` pixels.

    >>> at_least(np.array([[0, 0, 2, 3], [0, 0, 2, 0.5]], np.float32), 1.0)
    array([ True, False])
    """
    return np.asarray(np.all(boxes[..., 2:] - boxes[..., :2] >= side, axis=-1))


def xyxy_to_xywh(boxes: Array) -> Array:
    """Corners (..., 4) to left, top, width, height: the form of COCO's JSON files."""
    return np.concatenate([boxes[..., :2], boxes[..., 2:] - boxes[..., :2]], -1)


def xywh_to_xyxy(boxes: Array) -> Array:
    """Left, top, width, height (..., 4) to corners.

    >>> xywh_to_xyxy(np.array([[1, 2, 3, 4]], np.float32))
    array([[1., 2., 4., 6.]], dtype=float32)
    """
    return np.concatenate([boxes[..., :2], boxes[..., :2] + boxes[..., 2:]], -1)


def xyxy_to_cxcywh(boxes: Array) -> Array:
    """Corners (..., 4) to centre x, centre y, width, height: the form of YOLO and DETR."""
    return np.concatenate([(boxes[..., :2] + boxes[..., 2:]) / 2, boxes[..., 2:] - boxes[..., :2]], -1)


def cxcywh_to_xyxy(boxes: Array) -> Array:
    """Centre x, centre y, width, height (..., 4) to corners.

    >>> cxcywh_to_xyxy(np.array([[3, 4, 2, 4]], np.float32))
    array([[2., 2., 4., 6.]], dtype=float32)
    """
    half = boxes[..., 2:] / 2
    return np.concatenate([boxes[..., :2] - half, boxes[..., :2] + half], -1)


def iou(a: Array, b: Array) -> Array:
    """Intersection over union (n, m) of boxes ``a`` (n, 4) with boxes ``b`` (m, 4); 0 where both are degenerate.

    >>> iou(np.array([[0, 0, 2, 2]], np.float32), np.array([[1, 0, 3, 2], [0, 0, 2, 2]], np.float32)).round(3)
    array([[0.333, 1.   ]], dtype=float32)
    """
    inter, union, _ = _inter_union_hull(a, b)
    return np.asarray(np.divide(inter, union, out=np.zeros_like(inter), where=union > 0))


def giou(a: Array, b: Array) -> Array:
    """Generalised IoU (n, m), in [-1, 1], of boxes ``a`` (n, 4) with boxes ``b`` (m, 4) (Rezatofighi et al. 2019).

    >>> giou(np.array([[0, 0, 1, 1]], np.float32), np.array([[3, 0, 4, 1]], np.float32))
    array([[-0.5]], dtype=float32)
    """
    inter, union, hull = _inter_union_hull(a, b)
    overlap = np.divide(inter, union, out=np.zeros_like(inter), where=union > 0)
    return np.asarray(overlap - np.divide(hull - union, hull, out=np.zeros_like(inter), where=hull > 0))


def _inter_union_hull(a: Array, b: Array) -> tuple[Array, Array, Array]:
    inter = np.concatenate([np.maximum(a[:, None, :2], b[:, :2]), np.minimum(a[:, None, 2:], b[:, 2:])], -1)
    hull = np.concatenate([np.minimum(a[:, None, :2], b[:, :2]), np.maximum(a[:, None, 2:], b[:, 2:])], -1)
    shared = area(inter)
    return shared, area(a)[:, None] + area(b) - shared, area(hull)


_FIRST_LOOK = 4  # times as many boxes as are wanted are looked at first


def nms(boxes: Array, scores: Array, threshold: float) -> Array:
    """Indices (k,) of the boxes that greedy non-maximum suppression keeps, by falling score.

    Equal to torchvision's: from the best score down, a kept box removes every later one whose IoU with it exceeds
    ``threshold`` (strictly), in float32 arithmetic; equal scores keep their order. Memory grows linearly with n.

    - ``boxes``: (n, 4) xyxy; ``scores``: (n,), any real dtype.

    Raises ValueError for other shapes, for a box or score that is not finite (naming the first), and for a threshold
    outside [0, 1].

    >>> boxes = np.array([[0, 0, 4, 4], [0, 0, 4, 5], [9, 9, 12, 12]], np.float32)
    >>> nms(boxes, np.array([0.6, 0.9, 0.3]), 0.5)
    array([1, 2])
    """
    boxes, scores, limit = _checked(boxes, scores, threshold)
    order = np.argsort(-scores, kind="stable")
    return np.asarray(order[_suppress(boxes[order], limit)])


def batched_nms(boxes: Array, scores: Array, classes: Array, threshold: float, limit: int | None = None) -> Array:
    """Indices (k,), by falling score, of the boxes kept when :func:`nms` runs on every class alone.

    With ``limit`` only the first that many, for which most boxes need not be looked at: whether a box is kept depends
    on better ones only.

    Exact for every class: the coordinates are not shifted apart, so no precision is lost (torchvision shifts small
    inputs, and may then differ in a last digit).

    - ``boxes``: (n, 4) xyxy; ``scores``: (n,); ``classes``: (n,) integers.

    Raises what :func:`nms` raises, and ValueError when ``classes`` has another length.

    >>> boxes = np.array([[0, 0, 4, 4], [0, 0, 4, 5]], np.float32)
    >>> batched_nms(boxes, np.array([0.6, 0.9]), np.array([1, 2]), 0.5)
    array([1, 0])
    """
    boxes, scores, least = _checked(boxes, scores, threshold)
    classes = np.asarray(classes)
    if classes.shape != scores.shape:
        raise ValueError(f"expected one class for each of the {len(scores)} boxes, got shape {classes.shape}")
    count = len(scores) if limit is None else _FIRST_LOOK * limit
    while count < len(scores):
        top = np.flatnonzero(scores >= np.partition(scores, len(scores) - count)[len(scores) - count])
        kept = top[_batched_nms(boxes[top], scores[top], classes[top], least)]
        if len(kept) >= limit:
            return kept[:limit]
        count *= 2
    return _batched_nms(boxes, scores, classes, least)[:limit]


def _batched_nms(boxes: Array, scores: Array, classes: Array, limit: np.float32) -> Array:
    order = np.lexsort((-scores, classes))
    boxes = boxes[order]
    change = np.flatnonzero(np.diff(classes[order])) + 1
    starts = np.concatenate([[0], change]).astype(np.int64)
    ends = np.concatenate([change, [len(order)]]).astype(np.int64)
    pairs = _Pairs(_columns(boxes), np.repeat(np.arange(len(starts)), ends - starts), limit)
    if pairs.total <= _MOST_PAIRS:
        kept = pairs.survivors()
    else:
        kept = np.concatenate([start + _suppress(boxes[start:end], limit) for start, end in zip(starts, ends)])
    # The stable sort by score must see equal scores in the order of the input, not of the classes.
    chosen = np.sort(order[kept])
    return np.asarray(chosen[np.argsort(-scores[chosen], kind="stable")])


def _checked(boxes: Array, scores: Array, threshold: float) -> tuple[Array, Array, np.float32]:
    boxes, scores = np.asarray(boxes, np.float32), np.asarray(scores)
    if boxes.ndim != 2 or boxes.shape[1] != 4 or scores.shape != boxes.shape[:1]:
        raise ValueError(f"expected boxes (n, 4) and scores (n,), got {boxes.shape} and {scores.shape}")
    if not 0 <= threshold <= 1:
        raise ValueError(f"expected an IoU threshold in [0, 1], got {threshold}")
    if scores.dtype.kind != "f":
        scores = scores.astype(np.float64)
    for name, values in (("box", boxes), ("score", scores[:, None])):
        bad = np.flatnonzero(~np.isfinite(values).all(1))
        if len(bad):
            raise ValueError(f"expected finite boxes and scores, got {name} {bad[0]} = {values[bad[0]].tolist()}")
    # torchvision compares the float32 IoU with the threshold in double precision. The largest float32 that does not
    # exceed the threshold decides every comparison the same way.
    limit = np.float32(threshold)
    return boxes, scores, limit if float(limit) <= threshold else np.nextafter(limit, np.float32(-1))


def _suppress(boxes: Array, limit: np.float32) -> Array:
    """Ascending indices of the kept boxes among ``boxes`` (n, 4), which come by falling score.

    While too many boxes are close to one another, the best ones are settled as a block and strike out later boxes;
    crowded boxes soon vanish. As soon as close pairs are few they are all compared at once.
    """
    columns = _columns(boxes)
    alive = np.arange(len(boxes))
    kept = []
    while len(alive):
        pairs = _Pairs(columns[:, alive], np.zeros(len(alive), np.int64), limit)
        if pairs.total <= _MOST_PAIRS or len(alive) <= _BLOCK:
            kept.append(alive[pairs.survivors()])
            break
        for size in (_BLOCK // 4, _BLOCK, _BLOCK):
            block, alive = alive[:size], alive[size:]
            winners = block[_Pairs(columns[:, block], np.zeros(len(block), np.int64), limit).survivors()]
            kept.append(winners)
            alive = alive[~_struck(columns[:, winners], columns[:, alive], limit)]
    return np.concatenate(kept) if kept else alive


def _columns(boxes: Array) -> Array:
    """x1, y1, x2, y2 and the signed area, each contiguous: (5, n)."""
    x1, y1, x2, y2 = boxes.T
    with np.errstate(over="ignore"):
        return np.stack([x1, y1, x2, y2, (x2 - x1) * (y2 - y1)])


def _over(a: Array, b: Array, limit: np.float32) -> Array:
    """Where the IoU of columns ``a`` with columns ``b`` (broadcast) exceeds ``limit``, in torchvision's arithmetic."""
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        inter = np.minimum(a[2], b[2])
        work = np.maximum(a[0], b[0])
        inter -= work
        np.maximum(inter, 0, out=inter)
        high = np.minimum(a[3], b[3])
        np.maximum(a[1], b[1], out=work)
        high -= work
        np.maximum(high, 0, out=high)
        inter *= high
        np.add(a[4], b[4], out=work)
        work -= inter
        inter /= work
        return np.asarray(inter > limit)


def _reach(low: Array, high: Array, widest: float, limit: np.float32) -> tuple[Array, Array]:
    """Between which values the low edge of another interval lies if its IoU with low..high can exceed ``limit``.

    An IoU over t needs a common length of at least t times the longer interval. With W = high - low, the other is at
    most W / t long, so its low edge lies between low - (W / t - W) and low + (1 - t) W. The slack covers rounding.
    """
    low, high = low.astype(np.float64), high.astype(np.float64)
    length = np.maximum(high - low, 0)
    t = float(limit) * (1 - 1e-4)
    back = np.minimum(length / t - length, widest) if t > 0 else np.full_like(length, widest)
    slack = 1e-6 * (np.abs(low) + length + widest)
    return low - back - slack, low + (1 - t) * length + slack


def _widest(low: Array, high: Array) -> float:
    return max(float((high.astype(np.float64) - low).max(initial=0)), 0.0)


def _struck(winners: Array, others: Array, limit: np.float32) -> Array:
    """Which of the ``others`` (5, n) any of the ``winners`` (5, m) suppresses: mask (n,).

    Both are sorted by their left edges, so a tile of winners meets one contiguous stretch of the others.
    """
    winners = winners[:, np.argsort(winners[0], kind="stable")]
    by_left = np.argsort(others[0], kind="stable")
    others = others[:, by_left]
    low, high = _reach(winners[0], winners[2], _widest(others[0], others[2]), limit)
    first = np.searchsorted(others[0].astype(np.float64), low, "left")
    last = np.searchsorted(others[0].astype(np.float64), high, "right")
    struck = np.zeros(others.shape[1], bool)
    for begin in range(0, winners.shape[1], _TILE):
        tile = slice(begin, begin + _TILE)
        for start in range(int(first[tile].min()), int(last[tile].max()), _STRETCH):
            stretch = slice(start, min(start + _STRETCH, int(last[tile].max())))
            struck[stretch] |= _over(winners[:, tile, None], others[:, None, stretch], limit).any(0)
    result = np.empty_like(struck)
    result[by_left] = struck
    return result


def _search(ascending: Array, values: Array) -> Array:
    """``np.searchsorted`` on the left side, several times faster for many values in no order."""
    order = np.argsort(values)
    found = np.empty(len(values), np.int64)
    found[order] = np.searchsorted(ascending, values[order])
    return found


class _Pairs:
    """The pairs of boxes, within groups, whose IoU may exceed the limit, found through horizontal strips.

    Every box lies in the strip of its top edge; a box is compared with those boxes of the strips in its reach whose
    left edges are in its reach too. In a group boxes come by falling score. ``total`` counts both orders of a pair.
    """

    def __init__(self, columns: Array, group: Array, limit: np.float32) -> None:
        self.columns, self.limit = columns, limit
        x1, y1, x2, y2, _ = columns
        n = len(group)
        self.total = 0
        if n < 2:
            return
        left, right = _reach(x1, x2, _widest(x1, x2), limit)
        top, bottom = _reach(y1, y2, _widest(y1, y2), limit)
        origin = float(top.min())
        # Strips as high as the mean reach: a box looks into two of them on average, whatever the mixture of sizes.
        height = max(float((bottom - top).mean()), (float(bottom.max()) - origin) / _MOST_STRIPS, 1e-300)
        strip = ((y1.astype(np.float64) - origin) / height).astype(np.int64)
        first_strip = ((top - origin) / height).astype(np.int64)
        strips = ((bottom - origin) / height).astype(np.int64) - first_strip + 1
        by_left = np.argsort(x1, kind="stable")
        rank = np.empty(n, np.int64)
        rank[by_left] = np.arange(n)
        edges = x1[by_left].astype(np.float64)
        key = (group * (_MOST_STRIPS + 2) + strip) * (n + 1) + rank
        self.by_key = np.argsort(key, kind="stable").astype(np.int32)
        key = key[self.by_key]
        self.box = np.repeat(np.arange(n, dtype=np.int32), strips)
        row = (group[self.box] * (_MOST_STRIPS + 2) + _ranges(first_strip, strips)) * (n + 1)
        self.start = _search(key, row + _search(edges, left)[self.box])
        self.length = _search(key, row + _search(edges, right)[self.box]) - self.start
        self.total = int(self.length.sum())

    def survivors(self) -> Array:
        """Ascending indices of the boxes that no kept box of their group suppresses."""
        lost = np.zeros(self.columns.shape[1], bool)
        if self.total == 0:
            return np.flatnonzero(~lost)
        areas, least = self.columns[4], self.limit * np.float32(1 - 1e-4)
        part = np.cumsum(self.length) // _PAIRS_AT_ONCE
        bounds = [0, *(np.flatnonzero(np.diff(part)) + 1).tolist(), len(part)]
        for begin, end in pairwise(bounds):
            length = self.length[begin:end]
            better = np.repeat(self.box[begin:end], length)
            worse = self.by_key[_ranges(self.start[begin:end], length)]
            later = np.flatnonzero(worse > better)
            better, worse = better.take(later), worse.take(later)
            # The IoU is at most the ratio of the areas, which costs less than the IoU to compare.
            small, large = areas.take(better), areas.take(worse)
            possible = np.flatnonzero(np.minimum(small, large) > np.maximum(small, large) * least)
            better, worse = better.take(possible), worse.take(possible)
            over = np.flatnonzero(_over(self.columns.take(better, 1), self.columns.take(worse, 1), self.limit))
            if len(over) == 0:
                continue
            better, worse = better[over], worse[over]
            heads = np.concatenate([[0], np.flatnonzero(np.diff(better)) + 1])
            ends = [*heads[1:].tolist(), len(better)]
            for i, head, last in zip(better[heads].tolist(), heads.tolist(), ends):
                if not lost[i]:
                    lost[worse[head:last]] = True
        return np.flatnonzero(~lost)


def _ranges(starts: Array, lengths: Array) -> Array:
    """The integers start, start + 1, ... of every range, one range after the other."""
    before = np.cumsum(lengths) - lengths
    return np.asarray(np.arange(int(lengths.sum())) + np.repeat(starts - before, lengths))


@dataclass(frozen=True)
class BoxCoder:
    """Boxes as offsets from anchors: the regression targets of R-CNN (Girshick et al. 2014, appendix C).

    With centre (x, y), width w and height h, a box b is coded against an anchor a as
    ``wx (x_b - x_a) / w_a, wy (y_b - y_a) / h_a, ww log(w_b / w_a), wh log(h_b / h_a)``.
    ``weights`` = (wx, wy, ww, wh): (1, 1, 1, 1) in region proposal networks and RetinaNet,
    (10, 10, 5, 5) in R-CNN heads and SSD.
    Decoding cuts the logarithms at log(1000 / 16), so an untrained network cannot overflow.

    >>> coder = BoxCoder((10.0, 10.0, 5.0, 5.0))
    >>> anchors = np.array([[0, 0, 10, 10]], np.float32)
    >>> codes = coder.encode(anchors, np.array([[1, 0, 11, 20]], np.float32))
    >>> coder.decode(anchors, codes).round(3)
    array([[ 1.,  0., 11., 20.]], dtype=float32)
    """

    weights: tuple[float, float, float, float] = (1.0, 1.0, 1.0, 1.0)

    def encode(self, anchors: Array, boxes: Array) -> Array:
        """Codes (..., 4) of ``boxes`` (..., 4) xyxy against ``anchors`` (..., 4) xyxy; both need a positive area."""
        anchor, box = xyxy_to_cxcywh(anchors), xyxy_to_cxcywh(boxes)
        shift = (box[..., :2] - anchor[..., :2]) / anchor[..., 2:]
        stretch = np.log(box[..., 2:] / anchor[..., 2:])
        return np.asarray(np.concatenate([shift, stretch], -1) * np.array(self.weights, np.float32))

    def decode(self, anchors: Array, codes: Array) -> Array:
        """Boxes (..., 4) xyxy of ``codes`` (..., 4) against ``anchors`` (..., 4) xyxy; the leading axes broadcast."""
        codes = codes / np.array(self.weights, np.float32)
        side = anchors[..., 2:] - anchors[..., :2]
        centre = codes[..., :2] * side + (anchors[..., :2] + np.float32(0.5) * side)
        half = np.float32(0.5) * np.exp(np.minimum(codes[..., 2:], np.float32(_LARGEST_LOG_SCALE))) * side
        return np.concatenate([centre - half, centre + half], -1)


def encode_distances(points: Array, boxes: Array) -> Array:
    """Distances left, top, right, bottom (..., 4) from ``points`` (..., 2) to the sides of ``boxes`` (..., 4) xyxy.

    Negative where a point lies outside its box. The coding of FCOS (Tian et al. 2019, equation 1) and NanoDet.

    >>> encode_distances(np.array([[3, 3]], np.float32), np.array([[1, 2, 9, 5]], np.float32))
    array([[2., 1., 6., 2.]], dtype=float32)
    """
    return np.concatenate([points - boxes[..., :2], boxes[..., 2:] - points], -1)


def decode_distances(points: Array, distances: Array) -> Array:
    """Boxes (..., 4) xyxy from ``points`` (..., 2) and distances left, top, right, bottom (..., 4), in pixels.

    >>> decode_distances(np.array([[3, 3]], np.float32), np.array([[2, 1, 6, 2]], np.float32))
    array([[1., 2., 9., 5.]], dtype=float32)
    """
    return np.concatenate([points - distances[..., :2], points + distances[..., 2:]], -1)
