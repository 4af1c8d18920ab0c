"""The heads of YOLOv2 (Redmon and Farhadi 2017, "YOLO9000", section 2), YOLOv3 (2018, "YOLOv3: an incremental
improvement", sections 2.1 and 2.2) and YOLOv4 (Bochkovskiy et al. 2020, section 3.4): what their numbers mean, and what
they learn.

The losses are those whose gradients Darknet computes (github.com/pjreddie/darknet and github.com/AlexeyAB/darknet,
`src/region_layer.c` and `src/yolo_layer.c`), with three exceptions. Where several objects claim one anchor of a cell it
learns their mean, not the last of them. A predicted box that overlaps an object well is never background (as in the
papers), even where no class is probable there. And for losses of IoU see `YoloLoss`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from ...core import Buffer, Tensor
from ...core import functions as F
from ...core.layers import Module
from .. import boxes as box_ops
from ..model import sigmoid, softmax
from .losses import iou_loss
from .targets import BACKGROUND, NEITHER, Truth, leave_out_ignored

Pairs = tuple[np.ndarray, np.ndarray]  # objects and the numbers of the head's anchors that they claim
# Of a head, the objects of an image, and the codes (anchors, objects, 4) in the cells of their centres.
Choose = Callable[["AnchorHead", Truth, np.ndarray], Pairs]
Losses = tuple[Tensor, Tensor, Tensor]  # of the boxes, the objectness and the classes


class AnchorHead(Module):
    """What the numbers mean that a [yolo] or [region] section gets for each anchor of each cell.

    ``anchors`` (k, 2) are widths and heights in pixels of the network's input. Of each anchor there are the centre x, y
    within its cell, the logarithms of width and height, the objectness and the classes; ``exclusive`` classes go
    through a softmax. A centre may reach over its cell by ``reach`` - 1 of its size. With ``plain`` the numbers are
    probabilities already, and the sides are squares of twice them (YOLOv4-CSP's "new_coords").

    A place is an anchor of a cell: anchor by anchor, row by row.
    """

    def __init__(
        self,
        anchors: np.ndarray,
        loss: RegionLoss | YoloLoss,
        reach: float = 1.0,
        plain: bool = False,
        exclusive: bool = False,
    ) -> None:
        self.anchors, self.loss = anchors, loss
        self.reach, self.plain, self.exclusive = reach, plain, exclusive

    def forward(self, x: Tensor) -> Tensor:
        return x

    def decode(
        self, values: np.ndarray, size: tuple[int, int], threshold: float
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Boxes (n, 4) xyxy in pixels of an input (height, width), scores (n,) and classes (n,).

        ``values`` (anchors * (5 + classes), h, w) is what the section got. Each anchor of each cell gives a box for
        every class whose product with the objectness exceeds the threshold.
        """
        _, rows, columns = values.shape
        cells = values.reshape(len(self.anchors), -1, rows, columns)
        activate = np.asarray if self.plain else sigmoid
        objectness = activate(cells[:, 4])
        anchor, i, j = np.nonzero(objectness > threshold)  # the others cannot reach it
        found = cells[anchor, :, i, j]
        classes = softmax(found[:, 5:]) if self.exclusive else activate(found[:, 5:])
        scores = objectness[anchor, i, j][:, None] * classes
        row, slot = np.nonzero(scores > threshold)
        boxes = self.boxes(found[:, :4], (anchor, i, j), cell_of((rows, columns), size))
        return boxes[row], scores[row, slot], slot

    def boxes(
        self, codes: np.ndarray, place: tuple[np.ndarray, np.ndarray, np.ndarray], cell: np.ndarray
    ) -> np.ndarray:
        """Boxes (n, 4) xyxy of the codes (n, 4) at places given by anchor, row and column; a cell is ``cell`` large."""
        anchor, i, j = place
        centre = codes[:, :2] if self.plain else sigmoid(codes[:, :2])
        centre = centre * np.float32(self.reach) - np.float32((self.reach - 1) / 2)
        grown = (2 * codes[:, 2:]) ** 2 if self.plain else np.exp(codes[:, 2:])
        boxes = np.concatenate([(centre + np.stack([j, i], 1)) * cell, grown * self.anchors[anchor]], 1)
        return box_ops.cxcywh_to_xyxy(boxes.astype(np.float32))


class RegionLoss(Module):
    """The loss of a [region] section, YOLOv2's: squared errors, of the activated numbers where they are activated.

    An object belongs to the cell that its centre lies in, to the anchor whose size is most like its own
    (``bias_match``), or whose predicted size is. The box's error is weighted by ``coord_scale`` and by 2 - the object's
    share of the image; the objectness there, by ``object_scale``, shall be 1, or with ``rescore`` the IoU of the
    predicted box. Elsewhere it shall be 0, by ``noobject_scale``, unless the predicted box overlaps an object by more
    than ``thresh``. In the first ``burn_in`` batches the boxes of all other places are drawn to their anchors a little.
    ``scales`` are those of coordinates, objects, no objects and classes.
    """

    burn_in = 200  # batches: Darknet's 12,800 images in its batches of 64

    def __init__(
        self, scales: tuple[float, float, float, float], thresh: float, rescore: bool, bias_match: bool
    ) -> None:
        self.scales, self.thresh, self.rescore, self.bias_match = scales, thresh, rescore, bias_match
        self.num_batches_tracked = Buffer(np.zeros((), np.int64))

    def forward(self, head: AnchorHead, x: Tensor, truths: Sequence[Truth], size: tuple[int, int]) -> Losses:
        """The three losses of x (n, anchors * (5 + classes), rows, columns), summed over n images."""
        coordinates, objects, no_objects, classes = self.scales
        cells, grid = _split(head, x)
        found = _look(head, cells.numpy(), truths, size, self._choose, self.thresh)
        codes, objectness, logits = _parts(cells, found)

        offset, side = found.targets(head, grid, size)
        wrong = F.concatenate([F.sigmoid(codes[:, :2]) - Tensor(offset), codes[:, 2:] - Tensor(side)], 1)
        box = (wrong * wrong * Tensor(found.weight(size)[:, None])).sum() * (coordinates / 2)
        burning = int(self.num_batches_tracked.data) < self.burn_in
        if burning:
            free = np.ones(found.state.shape, np.float32)
            free[found.at] = 0
            box = box + _to_anchors(cells, free) * (0.01 / 2)
        if self.training:
            self.num_batches_tracked.writable()[...] += 1

        target, scale = np.zeros(found.state.shape, np.float32), no_objects * (found.state == BACKGROUND)
        target[found.at] = found.mean(found.overlap) if self.rescore else 1
        scale[found.at] = objects
        missed = F.sigmoid(objectness) - Tensor(target)
        present = (missed * missed * Tensor(scale.astype(np.float32))).sum() / 2

        wanted = found.classes(logits.shape[1])
        if head.exclusive:
            return box, present, -(F.log_softmax(logits, 1) * Tensor(wanted)).sum() * classes
        return box, present, F.sigmoid_cross_entropy(logits, Tensor(wanted), "sum") * classes

    def _choose(self, head: AnchorHead, truth: Truth, codes: np.ndarray) -> Pairs:
        sizes = head.anchors[None]
        if not self.bias_match:
            sizes = sizes * np.exp(codes[:, :, 2:]).swapaxes(0, 1)
        return np.arange(len(truth.boxes)), _size_ious(truth, sizes).argmax(1)


class YoloLoss(Module):
    """The loss of a [yolo] section, YOLOv3's and v4's: cross entropies, and squared errors or losses of IoU of boxes.

    An object belongs to the cell that its centre lies in, to the anchor whose size is most like its own of ``sizes``
    (all, 2), those of all heads in pixels, and also to every other one whose IoU with it exceeds ``iou_thresh``; the
    head has those of the numbers ``mask``. The objectness is 1 there and elsewhere 0, unless the predicted box overlaps
    an object by more than ``ignore``; by more than ``truth``, it is that object's, too. Where several objects claim one
    anchor of a cell, it has the classes of all.

    ``kind`` is "mse" (weighted by 2 - the object's share of the image; of the centre the cross entropy) or that of
    `iou_loss`. Darknet leaves the size of the anchor in the image, a, out of the gradient of the IoU by the logarithm
    of the box's size, so that its ``iou_normalizer`` fits losses that are 1 / a as large. Here this factor, the root of
    both sides' product, belongs to the loss; that of the centre gets the gradient that is right then.
    ``weights`` are Darknet's normalizers of box, objectness and classes.
    """

    def __init__(
        self,
        sizes: np.ndarray,
        mask: Sequence[int],
        thresholds: tuple[float, float, float] = (0.5, 1.0, 1.0),
        kind: str = "mse",
        weights: tuple[float, float, float] = (1.0, 1.0, 1.0),
        smoothing: float = 0.0,
    ) -> None:
        self.sizes, self.mask, self.kind, self.weights, self.smoothing = sizes, tuple(mask), kind, weights, smoothing
        self.ignore, self.truth, self.iou_thresh = thresholds

    def forward(self, head: AnchorHead, x: Tensor, truths: Sequence[Truth], size: tuple[int, int]) -> Losses:
        """The three losses of x (n, anchors * (5 + classes), rows, columns), summed over n images."""
        cells, grid = _split(head, x)
        found = _look(head, cells.numpy(), truths, size, self._choose, self.ignore, self.truth)
        codes, objectness, logits = _parts(cells, found)

        each = self._squared(head, codes, found, grid, size) if self.kind == "mse" else None
        if each is None:
            share = head.anchors[found.place[1]].prod(1) / (size[0] * size[1])
            boxes = _boxes(head, codes, found.place, cell_of(grid, size))
            each = iou_loss(boxes, Tensor(found.boxes), self.kind, "none") * Tensor(found.share / np.sqrt(share))

        target, counted = np.zeros(found.state.shape, np.float32), (found.state == BACKGROUND).astype(np.float32)
        target[found.at] = counted[found.at] = 1
        present = _cross_entropy(objectness, target, head.plain) * Tensor(counted)
        wanted = np.ceil(found.classes(logits.shape[1])) * (1 - self.smoothing) + self.smoothing / 2
        named = _cross_entropy(logits, wanted.astype(np.float32), head.plain)
        box_weight, objectness_weight, class_weight = self.weights
        return each.sum() * box_weight, present.sum() * objectness_weight, named.sum() * class_weight

    def _squared(
        self, head: AnchorHead, codes: Tensor, found: Found, grid: tuple[int, int], size: tuple[int, int]
    ) -> Tensor:
        offset, side = found.targets(head, grid, size)
        centre, margin, reach = codes[:, :2], np.float32((head.reach - 1) / 2), head.reach
        if head.plain:
            miss, sides = centre * reach - margin - Tensor(offset), codes[:, 2:] - Tensor(np.exp(side / 2) / 2)
            wrong = miss * miss * (0.5 / reach)
        else:
            wrong = F.sigmoid_cross_entropy(centre, Tensor((offset + margin) / np.float32(reach)), "none") * reach
            sides = codes[:, 2:] - Tensor(side)
        return F.concatenate([wrong, sides * sides * 0.5], 1).sum(1) * Tensor(found.weight(size))

    def _choose(self, head: AnchorHead, truth: Truth, codes: np.ndarray) -> Pairs:
        ious = _size_ious(truth, self.sizes[None])
        chosen = ious > self.iou_thresh
        chosen[np.arange(len(ious)), ious.argmax(1)] = True
        return np.nonzero(chosen[:, self.mask])


class Found(NamedTuple):
    """What the objects of a batch claim of one head, k claims of p places.

    ``state`` (n, places) is NEITHER or BACKGROUND, without regard to claims; ``at`` are the images (p,) and places (p,)
    that are claimed, ``row`` (k,) says which of them a claim means, ``place`` its image, anchor, row and column, four
    (k,), ``share`` (k,) is 1 over the number of claims there. ``boxes`` (k, 4) and ``slots`` (k,) are of the objects,
    ``overlap`` (k,) is the IoU of the predicted box.
    """

    state: np.ndarray
    at: tuple[np.ndarray, np.ndarray]
    row: np.ndarray
    place: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]
    share: np.ndarray
    boxes: np.ndarray
    slots: np.ndarray
    overlap: np.ndarray

    def targets(self, head: AnchorHead, grid: tuple[int, int], size: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
        """The centres (k, 2) within their cells, and the logarithms (k, 2) of the sides by the anchors'."""
        _, anchor, i, j = self.place
        centre, side = np.split(box_ops.xyxy_to_cxcywh(self.boxes), 2, axis=1)
        offset = centre / cell_of(grid, size) - np.stack([j, i], 1)
        return offset.astype(np.float32), np.log(side / head.anchors[anchor])

    def weight(self, size: tuple[int, int]) -> np.ndarray:
        """2 - the share of the image (k,), times that of the claim."""
        return (self.share * (2 - box_ops.area(self.boxes) / (size[0] * size[1]))).astype(np.float32)

    def mean(self, values: np.ndarray) -> np.ndarray:
        """The mean over the claims of each place (p,)."""
        return np.bincount(self.row, values * self.share, len(self.at[0])).astype(np.float32)

    def classes(self, count: int) -> np.ndarray:
        """The share of each class in the claims of each place (p, classes)."""
        wanted = np.zeros((len(self.at[0]), count), np.float32)
        np.add.at(wanted, (self.row, self.slots), self.share)
        return wanted


def cell_of(grid: tuple[int, int], size: tuple[int, int]) -> np.ndarray:
    """The width and height (2,) of a cell of a grid (rows, columns) in an input (height, width).

    >>> cell_of((2, 4), (64, 64))
    array([16., 32.], dtype=float32)
    """
    return np.array([size[1] / grid[1], size[0] / grid[0]], np.float32)


def _split(head: AnchorHead, x: Tensor) -> tuple[Tensor, tuple[int, int]]:
    """The numbers (n, anchors, 5 + classes, rows, columns), and rows and columns."""
    n, _, rows, columns = x.shape
    return x.reshape(n, len(head.anchors), -1, rows, columns), (rows, columns)


def _parts(cells: Tensor, found: Found) -> tuple[Tensor, Tensor, Tensor]:
    """The codes (k, 4) of the claims, the objectness (n, places) of all, the classes (p, classes) of claimed places."""
    image, place = found.at
    anchor, i, j = np.unravel_index(place, (cells.shape[1], *cells.shape[3:]))
    claimed = cells[image, anchor, :, i, j]
    return claimed[found.row][:, :4], cells[:, :, 4].reshape(cells.shape[0], -1), claimed[:, 5:]


def _look(
    head: AnchorHead,
    cells: np.ndarray,
    truths: Sequence[Truth],
    size: tuple[int, int],
    choose: Choose,
    ignore: float,
    certain: float = math.inf,
) -> Found:
    """What the objects claim by ``choose``, and by predicted boxes that overlap them by more than ``certain``.

    A place whose predicted box overlaps an object by more than ``ignore`` is NEITHER, as are anchors in regions that
    are to be ignored.
    """
    count, _, rows, columns = cells.shape[1:]
    shape = (count, rows, columns)
    everywhere: tuple[np.ndarray, ...] = np.unravel_index(np.arange(math.prod(shape)), shape)
    cell = cell_of((rows, columns), size)
    anchors = np.concatenate([np.full((len(everywhere[0]), 2), 0.5, np.float32), head.anchors[everywhere[0]]], 1)
    anchors[:, :2] = (anchors[:, :2] + np.stack(everywhere[:0:-1], 1)) * cell
    anchors = box_ops.cxcywh_to_xyxy(anchors)
    states, claims = [], []
    for n, truth in enumerate(truths):
        codes = cells[n, :, :4].transpose(0, 2, 3, 1)
        overlaps = box_ops.iou(truth.boxes, head.boxes(codes.reshape(-1, 4), everywhere, cell))
        state = np.full(len(anchors), BACKGROUND)
        if len(truth.boxes):
            state[overlaps.max(0) > ignore] = NEITHER
            middle = box_ops.xyxy_to_cxcywh(truth.boxes)[:, :2]
            at = np.clip((middle / cell).astype(np.int64), 0, (columns - 1, rows - 1))[:, ::-1]
            chosen = np.zeros(overlaps.shape, bool)
            mine, anchor = choose(head, truth, codes[:, at[:, 0], at[:, 1]])
            chosen[mine, np.ravel_multi_index((anchor, *at[mine].T), shape)] = True
            sure = np.flatnonzero(overlaps.max(0) > certain)
            chosen[overlaps[:, sure].argmax(0), sure] = True
            mine, place = np.nonzero(chosen)
            key = n * len(anchors) + place
            claims.append((key, truth.boxes[mine], truth.slots[mine], overlaps[mine, place]))
        states.append(leave_out_ignored(state, anchors, truth.ignored))
    none = np.zeros(0, np.int64)
    claims.append((none, np.zeros((0, 4), np.float32), none, np.zeros(0, np.float32)))
    key, boxes, slots, overlap = (np.concatenate(part) for part in zip(*claims))
    keys, row, times = np.unique(key, return_inverse=True, return_counts=True)
    place = np.unravel_index(key, (len(truths), *shape))
    share = (1 / times[row]).astype(np.float32)
    return Found(np.stack(states), np.divmod(keys, len(anchors)), row, place, share, boxes, slots, overlap)


def _size_ious(truth: Truth, sizes: np.ndarray) -> np.ndarray:
    """The IoU (objects, k) of objects and ``sizes`` (1 or objects, k, 2) that share a corner."""
    side = (truth.boxes[:, 2:] - truth.boxes[:, :2])[:, None]
    inter = np.minimum(side, sizes).prod(2)
    return np.asarray(inter / (side.prod(2) + sizes.prod(2) - inter))


def _boxes(
    head: AnchorHead,
    codes: Tensor,
    place: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray],
    cell: np.ndarray,
) -> Tensor:
    """As `AnchorHead.boxes`, with gradients."""
    _, anchor, i, j = place
    centre, side = (codes[:, :2], codes[:, 2:]) if head.plain else (F.sigmoid(codes[:, :2]), F.exp(codes[:, 2:]))
    grown = side * side * 4 if head.plain else side
    corner = np.stack([j, i], 1).astype(np.float32) - np.float32((head.reach - 1) / 2)
    middle = (centre * head.reach + Tensor(corner)) * Tensor(cell)
    half = grown * Tensor(head.anchors[anchor] / 2)
    return F.concatenate([middle - half, middle + half], 1)


def _to_anchors(cells: Tensor, free: np.ndarray) -> Tensor:
    """The squared distance of the boxes from anchors in the middle of their cells, where ``free`` (n, places)."""
    n, count, _, rows, columns = cells.shape
    away = F.concatenate([F.sigmoid(cells[:, :, :2]) - 0.5, cells[:, :, 2:4]], 2)
    return (away * away * Tensor(free.reshape(n, count, 1, rows, columns))).sum()


def _cross_entropy(values: Tensor, target: np.ndarray, plain: bool) -> Tensor:
    """Of each logit, or with ``plain`` of each probability."""
    if not plain:
        return F.sigmoid_cross_entropy(values, Tensor(target), "none")
    p = F.clip(values, 1e-7, 1 - 1e-7)
    return -(F.log(p) * Tensor(target) + F.log(1 - p) * Tensor(1 - target))
