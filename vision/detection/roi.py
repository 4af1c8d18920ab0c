"""Features and classes of regions: Girshick 2015, "Fast R-CNN", with the levels of Lin et al. 2017."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from ...core import Tensor
from ...core import functions as F
from ...core.function import Function
from ...core.layers import BatchNorm2d, Flatten, Linear, Module, ReLU, Sequential, init
from .. import boxes as box_ops
from ..model import softmax
from .roi_align import roi_align
from .targets import BACKGROUND, NEITHER, Truth, match, sample_balanced
from .towers import tower

RegionPooling = Callable[[Sequence[Tensor], Sequence[np.ndarray], tuple[float, float]], Tensor]


class MultiScaleRoIAlign:
    """RoIAlign of each box on the pyramid level that fits its size (Lin et al. 2017, equation 1)."""

    def __init__(self, output_size: int, sampling_ratio: int = 2) -> None:
        self.output_size, self.sampling_ratio = output_size, sampling_ratio

    def __call__(
        self, levels: Sequence[Tensor], boxes: Sequence[np.ndarray], image_size: tuple[float, float]
    ) -> Tensor:
        """Features (r, channels, size, size) of the boxes (r_i, 4) of each image, in pixels of the network's input.

        ``image_size`` is that of the (largest) photo in the input, before padding.
        """
        scales = [2.0 ** round(np.log2(level.shape[2] / image_size[0])) for level in levels]
        finest, coarsest = -np.log2(scales[0]), -np.log2(scales[-1])
        flat = np.concatenate(boxes).astype(np.float32)
        image_of = np.repeat(np.arange(len(boxes)), [len(b) for b in boxes])
        size = np.sqrt(box_ops.area(flat))
        target = np.floor(4 + np.log2(size / np.float32(224) + np.float32(1e-12)) + np.float32(1e-6))
        chosen = np.clip(target, finest, coarsest).astype(int) - int(finest)
        parts, order = [], []
        for i, level in enumerate(levels):
            index = np.flatnonzero(chosen == i)
            if len(index):
                order.append(index)
                parts.append(
                    roi_align(level, flat[index], image_of[index], self.output_size, scales[i], self.sampling_ratio)
                )
        if not parts:
            return roi_align(levels[0], flat, image_of, self.output_size, scales[0], self.sampling_ratio)
        if len(parts) == 1:
            return parts[0]
        back = np.argsort(np.concatenate(order))
        return F.concatenate(parts)[back]


class RoIMaxPool:
    """The greatest value in each bin of a box, whose corners are rounded to cells (Girshick 2015, section 2.1).

    ``scale`` is the number of cells for one pixel. Bins overlap where a box has fewer cells than bins, and are 0 where
    they hold no cell.
    """

    def __init__(self, output_size: int, scale: float) -> None:
        self.output_size, self.scale = output_size, scale

    def __call__(
        self, levels: Sequence[Tensor], boxes: Sequence[np.ndarray], image_size: tuple[float, float]
    ) -> Tensor:
        """Features (r, channels, size, size) of the boxes (r_i, 4) of each image, in pixels of the network's input.

        A bin is covered by four rectangles whose sides are powers of two, of which all maxima are known.
        """
        (level,) = levels
        _, channels, height, width = level.shape
        corners = np.rint(np.concatenate(boxes).astype(np.float64) * self.scale).astype(np.int64)
        (top, bottom), (left, right) = self._bins(corners[:, 1::2], height), self._bins(corners[:, ::2], width)
        down, across = _log2(bottom - top), _log2(right - left)
        tables: list[Tensor] = []
        starts = np.zeros((down.max(initial=0) + 1, across.max(initial=0) + 1), np.int64)
        rows = level.transpose(0, 2, 3, 1)
        for k in range(len(starts)):
            rows = _shifted_max(rows, 1, k)
            table = rows
            for j in range(starts.shape[1]):
                table = _shifted_max(table, 2, j)
                starts[k, j] = sum(len(t) for t in tables)
                tables.append(table.reshape(-1, channels))
        values = F.concatenate(tables)
        image_of = np.repeat(np.arange(len(boxes)), [len(b) for b in boxes])[:, None, None]
        down, across = down[:, :, None], across[:, None, :]
        table_height, table_width = height + 1 - (1 << down), width + 1 - (1 << across)
        first = starts[down, across] + image_of * table_height * table_width
        places = [
            first + y.clip(0, table_height - 1) * table_width + x.clip(0, table_width - 1)  # clipped for empty bins
            for y in (top[:, :, None], bottom[:, :, None] - (1 << down))
            for x in (left[:, None, :], right[:, None, :] - (1 << across))
        ]
        filled = ((bottom > top)[:, :, None] & (right > left)[:, None, :]).reshape(-1, 1).astype(np.float32)
        parts = []
        for start in range(0, max(len(filled), 1), 2048):  # which fits into the processor's cache
            part = slice(start, start + 2048)
            a, b, c, d = (values[place.reshape(-1)[part]] for place in places)
            parts.append(F.maximum(F.maximum(a, b), F.maximum(c, d)) * Tensor(filled[part]))
        size = self.output_size
        return F.concatenate(parts).reshape(-1, size, size, channels).transpose(0, 3, 1, 2)

    def _bins(self, ends: np.ndarray, limit: int) -> tuple[np.ndarray, np.ndarray]:
        """First cells and those after the last (r, size) of the bins between first and last cells (r, 2)."""
        step = np.maximum(ends[:, 1] - ends[:, 0] + 1, 1)[:, None] / self.output_size
        bins = np.arange(self.output_size)
        start, stop = np.floor(bins * step), np.ceil((bins + 1) * step)
        return tuple((side + ends[:, :1]).clip(0, limit).astype(np.int64) for side in (start, stop))  # type: ignore[return-value]


class PSRoIMaxAlign:
    """Position-sensitive RoIAlign: each bin of a box takes the greatest of 2x2 samples of maps of its own.

    Li et al. 2017, "Light-head R-CNN", section 3.2. ``scale`` is the number of cells for one pixel. Of a map's channels
    those of bin (i, j) are every size * size-th from i * size + j. Samples that lie outside of the map do not count; a
    bin without others is 0.
    """

    def __init__(self, output_size: int, scale: float) -> None:
        self.output_size, self.scale = output_size, scale

    def __call__(
        self, levels: Sequence[Tensor], boxes: Sequence[np.ndarray], image_size: tuple[float, float]
    ) -> Tensor:
        """Features (r, channels / size**2, size, size) of the boxes (r_i, 4) of each image, in pixels of the input."""
        (level,), size = levels, self.output_size
        n, _, height, width = level.shape
        bins = level.reshape(n, -1, size * size, height, width).transpose(0, 3, 4, 2, 1)
        rows = bins.reshape(-1, bins.shape[4])
        flat = np.concatenate(boxes).astype(np.float32) * np.float32(self.scale)
        image_of = np.repeat(np.arange(len(boxes)), [len(b) for b in boxes])[:, None, None]
        bin_of = np.arange(2 * size) // 2
        tops, downs, inside_y = self._samples(flat[:, 1::2], height)
        lefts, acrosses, inside_x = self._samples(flat[:, ::2], width)
        found: Tensor | None = None
        for y, down in zip(tops, downs):
            for x, across in zip(lefts, acrosses):
                cell = (image_of * height + y[:, :, None]) * width + x[:, None, :]
                index = cell * (size * size) + bin_of[:, None] * size + bin_of
                part = rows[index.reshape(-1)] * Tensor((down[:, :, None] * across[:, None, :]).reshape(-1, 1))
                found = part if found is None else found + part
        samples = found.reshape(-1, size, 2, size, 2, bins.shape[4])  # type: ignore[union-attr]
        inside = (inside_y[:, :, None] & inside_x[:, None, :]).reshape(-1, size, 2, size, 2, 1)
        if not inside.all():
            samples = F.where(inside, samples, Tensor(np.float32(-np.inf)))
        pooled = F.max(samples, (2, 4))
        return F.where(inside.any((2, 4)), pooled, Tensor(np.float32(0))).transpose(0, 3, 1, 2)

    def _samples(
        self, ends: np.ndarray, limit: int
    ) -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray], np.ndarray]:
        """The cells (r, 2 * size) before and after the samples between ends (r, 2), their weights, which count."""
        steps = (np.arange(2 * self.output_size, dtype=np.float32) + np.float32(0.5)) / np.float32(2 * self.output_size)
        place = ends[:, :1] + steps * np.maximum(ends[:, 1:] - ends[:, :1], np.float32(0.1))
        inside = (place >= -1) & (place <= limit)
        place = place.clip(0, limit - 1)
        low = place.astype(np.int64)
        after = place - low.astype(np.float32)
        return (low, np.minimum(low + 1, limit - 1)), (1 - after, after), inside


class CumulativeSum(Function):
    """The sums of all values up to each along an axis."""

    def __init__(self, axis: int) -> None:
        self.axis = axis

    def forward(self, x: np.ndarray) -> np.ndarray:
        return x.cumsum(self.axis)

    def backward(self, gy: Tensor) -> tuple[Tensor]:
        return (F.flip(CumulativeSum(self.axis)(F.flip(gy, self.axis)), self.axis),)


class PSRoIAveragePool:
    """Position-sensitive RoI pooling: each bin of a box is the mean of its cells in maps of its own.

    Dai et al. 2016, "R-FCN", equation 1. ``scale`` is the number of cells for one pixel. There are ``size`` x size
    bins, of which those in each of ``groups`` x groups blocks share their maps: of a map's channels those of block
    (i, j) are every groups * groups-th from i * groups + j. A bin without a cell is 0.
    """

    def __init__(self, size: int, groups: int, scale: float) -> None:
        self.size, self.groups, self.scale = size, groups, scale

    def __call__(self, level: Tensor, boxes: Sequence[np.ndarray]) -> Tensor:
        """The bins (r, size * size, channels / groups**2) of the boxes (r_i, 4) of each image, in pixels of the input.

        From sums over all rectangles that begin at the map's corner, in double precision: a bin takes four of them.
        """
        groups = self.groups
        n, _, height, width = level.shape
        blocks = level.reshape(n, -1, groups * groups, height, width).transpose(0, 3, 4, 2, 1).astype("float64")
        sums = F.pad(CumulativeSum(2)(CumulativeSum(1)(blocks)), ((0, 0), (1, 0), (1, 0), (0, 0), (0, 0)))
        rows = sums.reshape(-1, sums.shape[4])
        flat = np.concatenate(boxes).astype(np.float64) * self.scale
        image_of = np.repeat(np.arange(len(boxes)), [len(b) for b in boxes])[:, None, None]
        block_of = np.arange(self.size) * groups // self.size
        (top, bottom), (left, right) = self._bins(flat[:, 1::2], height), self._bins(flat[:, ::2], width)
        cells = np.maximum(bottom - top, 0)[:, :, None] * np.maximum(right - left, 0)[:, None, :]
        share = np.where(cells > 0, 1 / np.maximum(cells, 1), 0).reshape(-1, 1)
        block = block_of[:, None] * groups + block_of
        places = [
            (((image_of * (height + 1) + y[:, :, None]) * (width + 1) + x[:, None, :]) * groups**2 + block).reshape(-1)
            for y, x in ((bottom, right), (bottom, left), (top, right), (top, left))
        ]
        parts = []
        for start in range(0, max(len(share), 1), 1 << 14):  # what stays in the processor's cache
            part = slice(start, start + (1 << 14))
            a, b, c, d = (rows[place[part]] for place in places)
            parts.append((((a - b) - (c - d)) * Tensor(share[part])).astype(level.dtype))
        return F.concatenate(parts).reshape(len(flat), self.size**2, rows.shape[1])

    def _bins(self, ends: np.ndarray, limit: int) -> tuple[np.ndarray, np.ndarray]:
        """First cells and those after the last (r, size) of the bins between ends (r, 2)."""
        step = np.maximum(ends[:, 1:] - ends[:, :1], 0.1) / self.size
        bins = np.arange(self.size)
        sides = np.floor(bins * step + ends[:, :1]), np.ceil((bins + 1) * step + ends[:, :1])
        return tuple(side.clip(0, limit).astype(np.int64) for side in sides)  # type: ignore[return-value]


def _log2(length: np.ndarray) -> np.ndarray:
    """The greatest powers of two that are not larger than lengths, 0 for those below 1."""
    return np.floor(np.log2(np.maximum(length, 1))).astype(np.int64)


def _shifted_max(x: Tensor, axis: int, k: int) -> Tensor:
    """From the maxima of 2^(k-1) values along an axis those of 2^k; for k = 0 the values themselves."""
    if k == 0:
        return x
    half, before = 1 << (k - 1), (slice(None),) * axis
    return F.maximum(x[(*before, slice(None, -half))], x[(*before, slice(half, None))])


class TwoMLPHead(Module):
    """Two fully connected layers on the flattened features."""

    def __init__(self, in_features: int, width: int = 1024) -> None:
        self.fc6 = Linear(in_features, width)
        self.fc7 = Linear(width, width)
        self.relu = ReLU()
        self.out_features = width

    def forward(self, x: Tensor) -> Tensor:
        x = x.reshape(x.shape[0], -1)
        return self.fc7.fused(self.fc6.fused(x, self.relu), self.relu)


def conv_fc_head(channels: int, width: int = 1024) -> Sequential:
    """Four normed convolutions on the 7x7 features and one fully connected layer."""
    convs = list(tower(channels, 4, BatchNorm2d))
    return Sequential(*convs, Flatten(), Linear(channels * 7 * 7, width), ReLU())


class BoxPredictor(Module):
    """Class logits (r, classes) and a box code for each class (r, classes * 4)."""

    def __init__(self, in_features: int, classes: int) -> None:
        self.cls_score = Linear(in_features, classes)
        self.bbox_pred = Linear(in_features, classes * 4)
        for layer, std in ((self.cls_score, 0.01), (self.bbox_pred, 0.001)):
            layer.weight.data = init.normal(layer.weight.shape, std)
            layer.bias.data = init.constant(layer.bias.shape, 0)  # type: ignore[union-attr]

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.cls_score(x), self.bbox_pred(x)


class Regions(NamedTuple):
    """What the heads learn from in one image: regions ``boxes`` (r, 4) xyxy in pixels of the network's input.

    The first k belong to the objects ``matched`` (k,), the others to the background; ``slots`` (r,) are the outputs of
    their classes, 0 for the background.
    """

    boxes: np.ndarray
    matched: np.ndarray
    slots: np.ndarray


def sample_regions(
    proposals: np.ndarray, truth: Truth, count: int | None, rng: np.random.Generator, least_overlap: float = 0.0
) -> Regions:
    """``count`` regions of an image, all if it is None, to learn from, a quarter of them objects.

    They are drawn from the proposals (r, 4) and the objects; the background overlaps one of these by at least
    ``least_overlap``, and by less than half.
    """
    regions = np.concatenate([proposals, truth.boxes])
    matches = match(regions, truth, 0.5, 0.5)
    if least_overlap > 0:
        matches[match(regions, truth, 0.5, least_overlap) == BACKGROUND] = NEITHER
    objects, background = sample_balanced(matches, count or len(regions), 0.25, rng)
    matched = matches[objects]
    slots = np.concatenate([truth.slots[matched], np.zeros(len(background), np.int64)])
    return Regions(regions[np.concatenate([objects, background])], matched, slots)


def no_loss(part: Module) -> Tensor:
    """0, with a gradient of zeros for every parameter of a part that had nothing to learn from."""
    total = Tensor(np.float32(0))
    for parameter in part.parameters():
        total = total + F.sum(parameter) * 0.0
    return total


class RoIHeads(Module):
    """Classes and refined boxes of proposals."""

    coder = box_ops.BoxCoder((10.0, 10.0, 5.0, 5.0))
    samples: int | None = 512  # of the regions of an image; None is all
    beta = 1 / 9  # where the loss of a box turns from square to linear

    def __init__(self, box_head: Module, box_predictor: BoxPredictor, pool: RegionPooling | None = None) -> None:
        self.box_roi_pool = pool or MultiScaleRoIAlign(7)
        self.box_head = box_head
        self.box_predictor = box_predictor
        self.nms_threshold = 0.5
        self.limit: int | None = 100  # of what is found in an image; None is all
        self.least_side = 1e-2  # of what is found, in pixels of the network's input

    def forward(
        self, levels: Sequence[Tensor], proposals: Sequence[np.ndarray], image_size: tuple[float, float]
    ) -> tuple[Tensor, Tensor]:
        """Class logits (r, classes) and box codes (r, classes * 4) of all proposals."""
        features = self.box_roi_pool(levels, proposals, image_size)
        return self.box_predictor(self.box_head(features))  # type: ignore[no-any-return]

    def select(
        self,
        logits: np.ndarray,
        codes: np.ndarray,
        proposals: np.ndarray,
        image_size: tuple[float, float],
        score_threshold: float,
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Boxes (n, 4), scores (n,) and classes (n,) of one image after suppression within each class, best first."""
        scores = softmax(logits)
        row, column = np.nonzero(scores[:, 1:] > score_threshold)  # output 0 is the background
        column += 1
        boxes = self.coder.decode(proposals[row], codes.reshape(len(codes), -1, 4)[row, column])
        boxes, score = box_ops.clip(boxes, image_size), scores[row, column]
        valid = box_ops.at_least(boxes, self.least_side)
        boxes, score, column = boxes[valid], score[valid], column[valid]
        keep = box_ops.batched_nms(boxes, score, column, self.nms_threshold, self.limit)
        return boxes[keep], score[keep], column[keep]

    def sample(self, proposals: np.ndarray, truth: Truth, rng: np.random.Generator) -> Regions:
        """Regions of an image to learn from (section 2.3)."""
        return sample_regions(proposals, truth, self.samples, rng)

    def losses(
        self,
        levels: Sequence[Tensor],
        regions: Sequence[Regions],
        truths: Sequence[Truth],
        image_size: tuple[float, float],
    ) -> dict[str, Tensor]:
        """The losses of class and box on what was sampled from each image (equation 1)."""
        slots = np.concatenate([region.slots for region in regions])
        if not len(slots):  # crowds everywhere
            return {"class": no_loss(self.box_head), "box": no_loss(self.box_predictor)}
        classes, boxes = self.each_loss(levels, regions, truths, image_size)
        return {"class": F.mean(classes), "box": F.sum(boxes) / len(slots)}

    def each_loss(
        self,
        levels: Sequence[Tensor],
        regions: Sequence[Regions],
        truths: Sequence[Truth],
        image_size: tuple[float, float],
    ) -> tuple[Tensor, Tensor]:
        """The losses of class (r,) of all regions and of box (k, 4) of those that are objects."""
        slots = np.concatenate([region.slots for region in regions])
        logits, codes = self(levels, [region.boxes for region in regions], image_size)
        wanted = [
            self.coder.encode(region.boxes[: len(region.matched)], truth.boxes[region.matched])
            for region, truth in zip(regions, truths, strict=True)
        ]
        row = np.flatnonzero(slots)
        code = codes.reshape(len(slots), -1, 4)[row, slots[row]]
        boxes = F.smooth_l1_loss(code, Tensor(np.concatenate(wanted)), self.beta, "none")
        return F.softmax_cross_entropy(logits, slots, reduction="none"), boxes
