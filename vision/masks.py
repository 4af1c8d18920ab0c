"""Instance masks: COCO's run lengths, polygons, and box-sized crops that are pasted only when asked for.

A full-size mask of a 12-megapixel photo takes 12 MB, of a hundred objects 1.2 GB. So masks are kept small, as run
lengths or as crops, and functions that need pixels work through them one at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from .boxes import scale

_ROWS_AT_ONCE = 256
_FARTHEST = 1e6


def encode_rle(mask: np.ndarray, *, compressed: bool = True) -> dict[str, Any]:
    """COCO's run-length encoding of a mask (height, width): ``{"size": [height, width], "counts": ...}``.

    Runs go down the columns and alternate, starting with zeros. ``counts`` is COCO's compressed text (a str, so the
    result is JSON-safe), or with ``compressed=False`` the list of run lengths.

    >>> encode_rle(np.array([[0, 1], [1, 1]]), compressed=False)
    {'size': [2, 2], 'counts': [1, 3]}
    """
    mask = np.asarray(mask)
    if mask.ndim != 2:
        raise ValueError(f"expected a mask (height, width), got shape {mask.shape}")
    flat = (mask != 0).ravel(order="F")
    changes = np.flatnonzero(flat[1:] != flat[:-1]) + 1
    first = [0] if len(flat) and flat[0] else []
    counts = np.diff(np.concatenate([[0], first, changes, [len(flat)]]).astype(np.int64))
    return _rle(counts, mask.shape, compressed)


def _rle(counts: np.ndarray, size: Sequence[int], compressed: bool) -> dict[str, Any]:
    return {"size": [int(side) for side in size], "counts": _to_text(counts) if compressed else counts.tolist()}


def decode_rle(rle: dict[str, Any]) -> np.ndarray:
    """The mask (height, width) bool of an RLE with ``counts`` as a list, str or bytes.

    Raises ValueError when the runs do not fill the size exactly or the text is not COCO's.

    >>> decode_rle({"size": [2, 2], "counts": [1, 3]}).tolist()
    [[False, True], [True, True]]
    """
    counts = _counts(rle)
    height, width = rle["size"]
    values = np.zeros(len(counts), bool)
    values[1::2] = True
    return np.asarray(np.repeat(values, counts).reshape(width, height).T)


def rle_area(rle: dict[str, Any]) -> int:
    """Number of pixels inside.

    >>> rle_area({"size": [2, 2], "counts": [1, 3]})
    3
    """
    return int(_counts(rle)[1::2].sum())


def rle_box(rle: dict[str, Any]) -> np.ndarray:
    """Box (4,) float32 xyxy around the pixels of an RLE; zeros when it has none.

    >>> rle_box({"size": [3, 2], "counts": [1, 2, 3]})
    array([0., 1., 1., 3.], dtype=float32)
    """
    height = rle["size"][0]
    counts = _counts(rle)
    ends = np.cumsum(counts)[1::2]
    starts, ends = ends - counts[1::2], ends - 1
    filled = ends >= starts
    if not filled.any():
        return np.zeros(4, np.float32)
    starts, ends = starts[filled], ends[filled]
    columns = starts // height, ends // height
    if (columns[0] != columns[1]).any():  # A run that crosses into the next column touches both edges.
        top, bottom = 0, height
    else:
        top, bottom = int((starts % height).min()), int((ends % height).max()) + 1
    return np.array([columns[0].min(), top, columns[1].max() + 1, bottom], np.float32)


def _counts(rle: dict[str, Any]) -> np.ndarray:
    """Run lengths (n,) int64, checked against the size."""
    counts, (height, width) = rle["counts"], rle["size"]
    if isinstance(counts, (str, bytes)):
        counts = _from_text(counts)
    counts = np.asarray(counts, np.int64)
    if counts.ndim != 1 or (counts < 0).any() or counts.sum() != height * width:
        raise ValueError(
            f"expected run lengths that fill {height} x {width} = {height * width} pixels, "
            f"got {counts.size} runs of {counts.sum()} pixels in all"
        )
    return counts


def _to_text(counts: np.ndarray) -> str:
    """COCO's text: from the fourth run on the difference to the run two before, five bits a character, low bits first.

    Bit 5 of a character says that more follow; bit 4 of the last one is the sign. Characters start at "0" (48).
    """
    value = counts.copy()
    value[3:] -= counts[1:-2]
    characters, used = [], []
    going = np.ones(len(value), bool)
    while going.any():
        low = value & 31
        value >>= 5
        more = np.where(low & 16, value != -1, value != 0)
        characters.append(low + 32 * more + 48)
        used.append(going)
        going = going & more
    if not characters:
        return ""
    text = np.stack(characters, 1)[np.stack(used, 1)]
    return str(text.astype(np.uint8).tobytes(), "ascii")


def _from_text(text: str | bytes) -> np.ndarray:
    data = text.encode("latin-1", "replace") if isinstance(text, str) else text
    codes = np.frombuffer(data, np.uint8).astype(np.int64) - 48
    if len(codes) == 0:
        return codes
    if (codes < 0).any() or (codes > 63).any() or codes[-1] & 32:
        raise ValueError(f"expected COCO's compressed run lengths, got {text[:40]!r}")
    last = (codes & 32) == 0
    starts = np.concatenate([[0], np.flatnonzero(last)[:-1] + 1])
    digit = np.arange(len(codes)) - np.repeat(starts, np.diff(np.append(starts, len(codes))))
    if digit.max() > 9:
        raise ValueError(f"expected COCO's compressed run lengths, got a number of {digit.max() + 1} characters")
    value = np.add.reduceat((codes & 31) << (5 * digit), starts)
    ends = np.flatnonzero(last)
    value -= np.where(codes[ends] & 16, 1 << (5 * (digit[ends] + 1)), 0)
    counts = value.copy()
    counts[1::2] = np.cumsum(value[1::2])
    counts[2::2] = np.cumsum(value[2::2])
    return np.asarray(counts)


def polygons_to_mask(polygons: Sequence[Sequence[float] | np.ndarray], image_size: tuple[int, int]) -> np.ndarray:
    """The union (height, width) bool of polygons, drawn by COCO's rule, pixel for pixel.

    - ``polygons``: each x1, y1, x2, y2, ... in pixels (a flat list, or (k, 2)); at least three points.
    - ``image_size``: (height, width).

    COCO walks each edge on a grid five times finer than the pixels and toggles, in every column of pixel centres it
    crosses, all pixels from there on. Equals pycocotools' ``frPyObjects``, merged and decoded.

    Raises ValueError for a polygon of fewer than three points or an odd number of coordinates, and for coordinates
    that are NaN or more than a million pixels away.

    >>> polygons_to_mask([[1, 0, 3, 0, 3, 2, 1, 2]], (2, 4)).astype(int).tolist()
    [[0, 1, 1, 0], [0, 1, 1, 0]]
    """
    height, width = image_size
    mask = np.zeros((height, width), bool)
    for k, polygon in enumerate(polygons):
        points = np.asarray(polygon, np.float64).ravel()
        if points.size < 6 or points.size % 2:
            raise ValueError(f"polygon {k}: expected at least 3 points as x, y pairs, got {points.size} numbers")
        if not (np.abs(points) <= _FARTHEST).all():
            raise ValueError(f"polygon {k}: expected coordinates within {_FARTHEST:g} pixels, got {points.tolist()}")
        toggles = _toggles(points.reshape(-1, 2), height, width)
        parity = np.bincount(toggles, minlength=height * width)[: height * width].cumsum() & 1
        mask |= parity.reshape(width, height).T.astype(bool)
    return mask


def _toggles(points: np.ndarray, height: int, width: int) -> np.ndarray:
    """Column-major positions from which on the inside changes."""
    fine = 5
    # Truncation towards zero, like a cast to int in C.
    corners = np.trunc(points * fine + 0.5).astype(np.int64)
    start, end = corners, np.roll(corners, -1, axis=0)
    span = np.abs(end - start)
    steep = span[:, 1] > span[:, 0]
    steps = span.max(1)
    # An edge is rounded from the same end whichever way it is walked: the one of the smaller long coordinate.
    along = np.where(steep, 1, 0)
    rows = np.arange(len(start))
    flip = start[rows, along] > end[rows, along]
    origin, target = np.where(flip[:, None], end, start), np.where(flip[:, None], start, end)
    across = target[rows, 1 - along] - origin[rows, 1 - along]
    slope = across / np.maximum(steps, 1)

    edge = np.repeat(rows, steps + 1)
    step = np.arange(len(edge)) - np.repeat(np.cumsum(steps + 1) - (steps + 1), steps + 1)
    step = np.where(flip[edge], steps[edge] - step, step)
    long = origin[edge, along[edge]] + step
    short = np.trunc(origin[edge, 1 - along[edge]] + slope[edge] * step + 0.5).astype(np.int64)
    u, v = np.where(steep[edge], short, long), np.where(steep[edge], long, short)

    moved = np.flatnonzero(u[1:] != u[:-1]) + 1
    column = np.where(u[moved] < u[moved - 1], u[moved], u[moved] - 1)
    x = (column + 0.5) / fine - 0.5
    y = np.ceil(np.clip((np.minimum(v[moved], v[moved - 1]) + 0.5) / fine - 0.5, 0, height)).astype(np.int64)
    valid = (np.floor(x) == x) & (x >= 0) & (x <= width - 1)
    return np.asarray(x[valid].astype(np.int64) * height + y[valid])


@dataclass(frozen=True)
class InstanceMasks:
    """Masks of n objects as box-sized crops of probabilities, pasted into the image one at a time.

    - ``crops``: (n, m, m) float32, the probability that a cell of the box belongs to the object (m = 28 in Mask R-CNN).
    - ``boxes``: (n, 4) float32 xyxy, pixels of the image.
    - ``image_size``: (height, width).

    Iteration gives (height, width) bool masks one by one; indexing by a mask, slice or indices selects objects.
    Pasting follows torchvision (``roi_heads.py``, ``paste_masks_in_image``): a border of one zero cell, the box grown
    by (m + 2) / m about its centre, corners cut to integers towards zero, x2 - x1 + 1 by y2 - y1 + 1 pixels resized
    bilinearly.

    >>> masks = InstanceMasks(np.ones((1, 28, 28)), np.array([[1, 2, 4, 8]]), (9, 9))
    >>> len(masks), masks.areas()
    (1, array([40]))
    """

    border: ClassVar[int] = 1  # cells around a crop when it is pasted
    threshold: ClassVar[float] = 0.5  # what a probability must exceed
    crops: np.ndarray
    boxes: np.ndarray
    image_size: tuple[int, int]

    def __post_init__(self) -> None:
        crops, boxes = np.asarray(self.crops, np.float32), np.asarray(self.boxes, np.float32)
        if crops.ndim != 3 or crops.shape[1] != crops.shape[2] or boxes.shape != (len(crops), 4):
            raise ValueError(f"expected crops (n, m, m) and boxes (n, 4), got {crops.shape} and {boxes.shape}")
        object.__setattr__(self, "crops", crops)
        object.__setattr__(self, "boxes", boxes)

    def __len__(self) -> int:
        return len(self.boxes)

    def __getitem__(self, keep: slice | np.ndarray) -> InstanceMasks:
        return replace(self, crops=self.crops[keep], boxes=self.boxes[keep])

    def __iter__(self) -> Iterator[np.ndarray]:
        return (self.binary(i) for i in range(len(self)))

    def resized(self, image_size: tuple[int, int]) -> InstanceMasks:
        """The masks for the same image at another size (height, width)."""
        return replace(self, boxes=scale(self.boxes, self.image_size, image_size), image_size=image_size)

    def probabilities(self, index: int) -> np.ndarray:
        """Object ``index`` as probabilities (height, width) float32, 0 outside its box."""
        full = np.zeros(self.image_size, np.float32)
        place = self.place(index)
        for rows, values in self._rows(index):
            full[rows, place[1]] = values
        return full

    def binary(self, index: int, threshold: float | None = None) -> np.ndarray:
        """Object ``index`` as a mask (height, width) bool: where its probability exceeds ``threshold``."""
        full = np.zeros(self.image_size, bool)
        full[self.place(index)] = self.window(index, threshold)
        return full

    def place(self, index: int) -> tuple[slice, slice]:
        """Rows and columns of the image that object ``index`` may cover."""
        height, width = self.image_size
        x1, y1, x2, y2 = self._corners(index)
        top, left = max(y1, 0), max(x1, 0)
        bottom, right = min(y2 + 1, height), min(x2 + 1, width)
        return slice(top, max(bottom, top)), slice(left, max(right, left))

    def window(self, index: int, threshold: float | None = None) -> np.ndarray:
        """The mask of object ``index``, bool, in its :meth:`place` only."""
        rows, columns = self.place(index)
        inside = np.zeros((rows.stop - rows.start, columns.stop - columns.start), bool)
        threshold = self.threshold if threshold is None else threshold
        for part, values in self._rows(index):
            inside[part.start - rows.start : part.stop - rows.start] = values > threshold
        return inside

    def to_rle(self, threshold: float | None = None) -> list[dict[str, Any]]:
        """COCO's compressed run lengths of every object, made one at a time."""
        return [self._window_rle(i, threshold) for i in range(len(self))]

    def areas(self, threshold: float | None = None) -> np.ndarray:
        """Pixels (n,) int64 of every object."""
        return np.array([np.count_nonzero(self.window(i, threshold)) for i in range(len(self))], np.int64)

    def _window_rle(self, index: int, threshold: float | None) -> dict[str, Any]:
        """Like ``encode_rle(self.binary(index))`` without the full-size mask."""
        height, width = self.image_size
        rows, columns = self.place(index)
        inside = self.window(index, threshold)
        # A row of zeros above and below makes every run start and end inside its column.
        edges = np.zeros((inside.shape[0] + 2, inside.shape[1]), np.int8)
        edges[1:-1] = inside
        x, y = np.nonzero(np.diff(edges, axis=0).T)
        positions = (x + columns.start) * height + y + rows.start
        # Runs that touch across the edge of a column are one run: both of their ends vanish.
        same = np.flatnonzero(positions[1:] == positions[:-1])
        positions = np.delete(positions, np.concatenate([same, same + 1]))
        counts = np.diff(np.concatenate([[0], positions, [height * width]]))
        if len(counts) > 1 and counts[-1] == 0:
            counts = counts[:-1]
        return _rle(counts, self.image_size, True)

    def _grown(self, index: int) -> np.ndarray:
        """The box with its border."""
        x1, y1, x2, y2 = self.boxes[index]
        m, half = self.crops.shape[1], np.float32(0.5)
        grow = np.float32((m + 2 * self.border) / m)
        x, y = (x2 + x1) * half, (y2 + y1) * half
        w, h = (x2 - x1) * half * grow, (y2 - y1) * half * grow
        return np.array([x - w, y - h, x + w, y + h])

    def _corners(self, index: int) -> tuple[int, int, int, int]:
        """The first and the last pixel of the crop with its border."""
        x1, y1, x2, y2 = (int(value) for value in self._grown(index))
        return x1, y1, x2, y2

    def _rows(self, index: int) -> Iterator[tuple[slice, np.ndarray]]:
        """Probabilities of the place of object ``index``, some rows at a time."""
        x1, y1, x2, y2 = self._corners(index)
        rows, columns = self.place(index)
        padded = np.pad(self.crops[index], self.border)
        right = _interpolation(len(padded), max(x2 - x1 + 1, 1), columns.start - x1, columns.stop - x1).T
        for top in range(rows.start, rows.stop, _ROWS_AT_ONCE):
            bottom = min(top + _ROWS_AT_ONCE, rows.stop)
            left = _interpolation(len(padded), max(y2 - y1 + 1, 1), top - y1, bottom - y1)
            yield slice(top, bottom), (left @ padded) @ right


@dataclass(frozen=True)
class RoundedMasks(InstanceMasks):
    """Masks whose grown boxes are rounded to whole pixels, as Detectron and ChainerCV paste them.

    >>> masks = RoundedMasks(np.ones((1, 28, 28)), np.array([[1, 2, 4, 8]]), (9, 9))
    >>> masks.areas()
    array([18])
    """

    def _corners(self, index: int) -> tuple[int, int, int, int]:
        x1, y1, x2, y2 = np.rint(self._grown(index)).astype(int).tolist()
        return x1, y1, x2 - 1, y2 - 1


@dataclass(frozen=True)
class PixelMasks:
    """Masks of n objects as pixels of the whole image, (n, height, width) bool: annotations, or few on a small image.

    They do what `InstanceMasks` do.

    >>> masks = PixelMasks(np.array([[[0, 1, 1], [0, 0, 1]]]))
    >>> masks.place(0), masks.window(0).tolist(), masks.areas()
    ((slice(0, 2, None), slice(1, 3, None)), [[True, True], [False, True]], array([3]))
    """

    pixels: np.ndarray

    def __post_init__(self) -> None:
        pixels = np.asarray(self.pixels)
        if pixels.ndim != 3:
            raise ValueError(f"expected masks (n, height, width), got {pixels.shape}")
        object.__setattr__(self, "pixels", pixels.astype(bool, copy=False))

    @property
    def image_size(self) -> tuple[int, int]:
        return self.pixels.shape[1], self.pixels.shape[2]

    def __len__(self) -> int:
        return len(self.pixels)

    def __getitem__(self, keep: slice | np.ndarray) -> PixelMasks:
        return PixelMasks(self.pixels[keep])

    def __iter__(self) -> Iterator[np.ndarray]:
        return iter(self.pixels)

    def resized(self, image_size: tuple[int, int]) -> PixelMasks:
        """The masks for the same image at another size (height, width); each pixel is that of its centre."""
        rows, columns = ((np.arange(to) * 2 + 1) * side // (2 * to) for side, to in zip(self.image_size, image_size))
        return PixelMasks(self.pixels[:, rows[:, None], columns])

    def binary(self, index: int) -> np.ndarray:
        """Object ``index`` as a mask (height, width) bool."""
        return np.asarray(self.pixels[index])

    def place(self, index: int) -> tuple[slice, slice]:
        """Rows and columns of the image that object ``index`` covers."""
        rows, columns = (np.flatnonzero(self.pixels[index].any(axis)) for axis in (1, 0))
        if not len(rows):
            return slice(0, 0), slice(0, 0)
        return slice(int(rows[0]), int(rows[-1]) + 1), slice(int(columns[0]), int(columns[-1]) + 1)

    def window(self, index: int) -> np.ndarray:
        """The mask of object ``index``, bool, in its :meth:`place` only."""
        return np.asarray(self.pixels[index][self.place(index)])

    def to_rle(self) -> list[dict[str, Any]]:
        """COCO's compressed run lengths of every object."""
        return [encode_rle(mask) for mask in self.pixels]

    def areas(self) -> np.ndarray:
        """Pixels (n,) int64 of every object."""
        return np.count_nonzero(self.pixels, axis=(1, 2)).astype(np.int64)


def _interpolation(size: int, to_size: int, start: int, stop: int) -> np.ndarray:
    """Rows ``start`` to ``stop`` of the matrix (to_size, size) that resizes bilinearly, corners not aligned."""
    ratio = np.float32(size / to_size)
    position = np.maximum(ratio * (np.arange(start, stop, dtype=np.float32) + np.float32(0.5)) - np.float32(0.5), 0)
    low = np.minimum(position.astype(np.int64), size - 1)
    weight = position - low.astype(np.float32)
    matrix = np.zeros((stop - start, size), np.float32)
    row = np.arange(stop - start)
    matrix[row, low] = 1 - weight
    matrix[row, np.minimum(low + 1, size - 1)] += weight
    return matrix
