"""What detectors learn from: which anchors belong to which objects, and which of them are sampled.

Regions to be ignored (COCO's crowds, VOC's difficult objects) follow one rule everywhere: an anchor that no object
claims is neither background nor object when at least half of its area lies in one of them. An anchor that an object
claims stays with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from .. import boxes as box_ops
from ..categories import Categories
from ..sample import Sample

BACKGROUND, NEITHER = -1, -2
LEAST_SIDE = 1e-2  # pixels of the network's input; a narrower object has no code


@dataclass(frozen=True)
class Truth:
    """The objects of one image: ``boxes`` (n, 4) float32 in pixels of the network's input, ``slots`` (n,) the head's
    outputs that stand for their classes, ``ignored`` (m, 4) the regions that count nothing."""

    boxes: np.ndarray
    slots: np.ndarray
    ignored: np.ndarray


def truth_of(sample: Sample, categories: Categories, boxes: np.ndarray) -> Truth:
    """The objects of a sample whose boxes lie at ``boxes`` (n, 4) in the network's input; degenerate ones are left out.

    Raises ValueError, naming the sample, where it has no boxes at all (an image without objects has (0, 4)), a label
    that the model does not know, or a box that is not finite.

    >>> sample = Sample(np.zeros((8, 8, 3), np.uint8), boxes=np.array([[0, 0, 4, 4.0]]), labels=np.array([0]))
    >>> truth_of(sample, Categories.with_background(["boat"]), sample.boxes).slots
    array([1])
    """
    where = str(sample.source or sample.image_id)
    if sample.boxes is None or sample.labels is None or sample.ignore is None:
        raise ValueError(f"{where}: training a detector needs boxes, got a sample without")
    if len(sample) and not 0 <= sample.labels.min() <= sample.labels.max() < len(categories.names):
        raise ValueError(f"{where}: expected labels 0 to {len(categories.names) - 1}, got {sample.labels.tolist()}")
    if not np.isfinite(boxes).all():
        bad = int(np.flatnonzero(~np.isfinite(boxes).all(1))[0])
        raise ValueError(f"{where}: box {bad} is not finite: {boxes[bad].tolist()}")
    rows = counted(sample, boxes)
    regions = boxes[box_ops.at_least(boxes, LEAST_SIDE) & sample.ignore]
    return Truth(boxes[rows], categories.slots_of(sample.labels[rows]), regions)


def counted(sample: Sample, boxes: np.ndarray) -> np.ndarray:
    """The rows (n,) of a sample's objects that are learned from, which are those of `truth_of`, in that order.

    >>> sample = Sample(np.zeros((8, 8, 3), np.uint8), boxes=np.array([[0, 0, 4, 4], [0, 0, 0, 4], [1, 1, 2, 2.0]]))
    >>> counted(sample, sample.boxes)
    array([0, 2])
    """
    return np.flatnonzero(box_ops.at_least(boxes, LEAST_SIDE) & ~np.asarray(sample.ignore, bool))


def match(anchors: np.ndarray, truth: Truth, high: float, low: float) -> np.ndarray:
    """For each anchor (n,) the object it overlaps most, if the IoU is at least ``high``; below ``low`` BACKGROUND.

    In between NEITHER (Ren et al. 2015, section 3.1.2).

    >>> objects = Truth(np.array([[0, 0, 4, 4]], np.float32), np.array([1]), np.zeros((0, 4), np.float32))
    >>> match(np.array([[0, 0, 4, 4], [0, 0, 4, 2.4], [8, 8, 9, 9]], np.float32), objects, 0.7, 0.3)
    array([ 0, -2, -1])
    """
    return _match(_overlaps(anchors, truth), anchors, truth, high, low)[0]


def match_and_claim_ties(anchors: np.ndarray, truth: Truth, high: float, low: float) -> np.ndarray:
    """As `match`, and the anchors that overlap some object most of all anchors, equals too, are objects at any IoU.

    Each of them goes to the object that it overlaps most itself, as in torchvision.
    """
    ious = _overlaps(anchors, truth)
    matches, nearest = _match(ious, anchors, truth, high, low)
    if len(truth.boxes) and len(anchors):
        best = ious.max(1, keepdims=True)
        claimed = np.flatnonzero(((ious == best) & (best > 0)).any(0))
        matches[claimed] = nearest[claimed]
    return matches


def match_and_claim_best(anchors: np.ndarray, truth: Truth, threshold: float) -> np.ndarray:
    """As `match` with one threshold, and every object claims the anchor that overlaps it most (SSD, section 2.2)."""
    ious = _overlaps(anchors, truth)
    matches, _ = _match(ious, anchors, truth, threshold, threshold)
    if len(truth.boxes) and len(anchors):
        for i, best in enumerate(ious.argmax(1).tolist()):
            matches[best] = i
    return matches


def match_and_claim_in_turn(anchors: np.ndarray, truth: Truth, threshold: float) -> np.ndarray:
    """As `match_and_claim_best`, but no two objects claim one anchor: the greatest overlap of all is given first, then
    the greatest one of the other objects and anchors, and so on (ChainerCV's SSD, after the original implementation).

    >>> objects = Truth(np.array([[0, 0, 4, 4], [0, 0, 4, 5]], np.float32), np.array([1, 2]), np.zeros((0, 4)))
    >>> match_and_claim_in_turn(np.array([[0, 0, 4, 4], [0, 0, 4, 1.0]]), objects, 0.5)
    array([0, 1])
    """
    ious = _overlaps(anchors, truth)
    matches, _ = _match(ious, anchors, truth, threshold, threshold)
    left = np.round(ious.T, 5)  # equals stay equal, whatever the rounding of the anchors: the first one wins
    for _ in range(min(left.shape)):
        anchor, i = np.unravel_index(left.argmax(), left.shape)
        if left[anchor, i] <= 1e-6:
            break
        matches[anchor] = i
        left[anchor], left[:, i] = 0, 0
    return matches


def _overlaps(anchors: np.ndarray, truth: Truth) -> np.ndarray:
    """The IoU (objects, anchors)."""
    return box_ops.iou(truth.boxes, anchors)


def _match(
    ious: np.ndarray, anchors: np.ndarray, truth: Truth, high: float, low: float
) -> tuple[np.ndarray, np.ndarray]:
    if len(truth.boxes):
        nearest, best = ious.argmax(0), ious.max(0)
        matches = np.where(best >= np.float32(high), nearest, np.where(best < np.float32(low), BACKGROUND, NEITHER))
    else:
        matches = nearest = np.full(len(anchors), BACKGROUND)
    return leave_out_ignored(matches, anchors, truth.ignored), nearest


def leave_out_ignored(matches: np.ndarray, anchors: np.ndarray, regions: np.ndarray) -> np.ndarray:
    """The matches (n,) with NEITHER instead of BACKGROUND where half of an anchor lies in one of ``regions`` (m, 4).

    >>> leave_out_ignored(np.array([-1, -1]), np.array([[0, 0, 4, 4], [0, 0, 4, 9.0]]), np.array([[0, 0, 4, 4.0]]))
    array([-2, -1])
    """
    if not len(regions):
        return matches
    low = np.maximum(anchors[:, None, :2], regions[None, :, :2])
    high = np.minimum(anchors[:, None, 2:], regions[None, :, 2:])
    inside = np.maximum(high - low, 0).prod(-1).max(1)
    return np.where((matches == BACKGROUND) & (inside >= 0.5 * box_ops.area(anchors)), NEITHER, matches)


def adaptive_match(anchors: Sequence[np.ndarray], truth: Truth, top: int) -> np.ndarray:
    """The object of each anchor of all levels (n,), by the statistics of the best candidates (ATSS, algorithm 1).

    Zhang et al. 2020, "Bridging the gap between anchor-based and anchor-free detection". ``anchors`` are those of each
    level (n_i, 4). Of each level the ``top`` anchors nearest to an object's centre are its candidates. Those whose IoU
    reaches mean + standard deviation of the candidates', and whose centre lies in the object (by 0.01 pixel), become
    the object's; where several want an anchor, it goes to the one it overlaps most.
    """
    flat = np.concatenate(anchors)
    matches = np.full(len(flat), BACKGROUND)
    count = len(truth.boxes)
    if count:
        centres, middles = (box_ops.xyxy_to_cxcywh(b)[:, :2] for b in (flat, truth.boxes))
        distances = (centres[:, 0] - middles[:, :1]) ** 2 + (centres[:, 1] - middles[:, 1:]) ** 2
        nearest, start = [], 0
        for level in anchors:
            nearest.append(_least(distances[:, start : start + len(level)], top) + start)
            start += len(level)
        candidates = np.concatenate(nearest, 1)
        ious = np.stack([box_ops.iou(truth.boxes[i : i + 1], flat[row])[0] for i, row in enumerate(candidates)])
        least = ious.mean(1) + (ious.std(1, ddof=1) if candidates.shape[1] > 1 else 0)
        within = box_ops.encode_distances(centres[candidates], truth.boxes[:, None]).min(-1) > 0.01
        wanted = np.full((count, len(flat)), -1.0, np.float32)
        chosen = (ious >= least[:, None]) & within
        rows = np.broadcast_to(np.arange(count)[:, None], chosen.shape)
        wanted[rows[chosen], candidates[chosen]] = ious[chosen]
        taken = np.flatnonzero(wanted.max(0) >= 0)
        matches[taken] = wanted[:, taken].argmax(0)
    return leave_out_ignored(matches, flat, truth.ignored)


def _least(values: np.ndarray, count: int) -> np.ndarray:
    """The indices (rows, count) of each row's least values, ties by index; all of a row that has no more."""
    if values.shape[1] <= count:
        return np.broadcast_to(np.arange(values.shape[1]), values.shape)
    bound = np.partition(values, count - 1, axis=1)[:, count - 1 : count]
    # Of the few that reach the bound the first ones: a stable sort of all of them would cost ten times as much.
    found = [np.flatnonzero(row <= least) for row, least in zip(values, bound)]
    return np.stack([f[np.argsort(row[f], kind="stable")[:count]] for f, row in zip(found, values)])


def sample_balanced(
    matches: np.ndarray, count: int, fraction: float, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Indices of ``count`` anchors at random: objects, at most ``fraction`` of them, and background, both ascending.

    >>> objects, background = sample_balanced(np.array([0, 1, -1, -1, -2]), 2, 0.5, np.random.default_rng(0))
    >>> len(objects), len(background)
    (1, 1)
    """
    objects, background = np.flatnonzero(matches >= 0), np.flatnonzero(matches == BACKGROUND)
    objects = rng.permutation(objects)[: int(count * fraction)]
    background = rng.permutation(background)[: count - len(objects)]
    return np.sort(objects), np.sort(background)


def hardest(losses: np.ndarray, allowed: np.ndarray, count: int) -> np.ndarray:
    """The indices of the ``count`` greatest losses (n,) among those that are ``allowed`` (n,), ties by index.

    >>> hardest(np.array([3.0, 9.0, 5.0]), np.array([True, False, True]), 1)
    array([2])
    """
    index = np.flatnonzero(allowed)
    return index[np.argsort(-losses[index], kind="stable")[:count]]


class Claimed(NamedTuple):
    """The anchors of a batch that belong to objects: ``image`` (k,) and ``anchor`` (k,) say which, ``boxes`` (k, 4) and
    ``slots`` (k,) are those of their objects."""

    image: np.ndarray
    anchor: np.ndarray
    boxes: np.ndarray
    slots: np.ndarray


def claimed(matches: np.ndarray, truths: Sequence[Truth]) -> Claimed:
    """What the matches (images, anchors) give to the objects of each image.

    >>> objects = Truth(np.array([[0, 0, 4, 4]], np.float32), np.array([7]), np.zeros((0, 4), np.float32))
    >>> found = claimed(np.array([[-1, 0, -2]]), [objects])
    >>> found.anchor, found.slots
    (array([1]), array([7]))
    """
    image, anchor = np.nonzero(matches >= 0)
    of_image = [(t.boxes[m[m >= 0]], t.slots[m[m >= 0]]) for t, m in zip(truths, matches, strict=True)]
    boxes, slots = (np.concatenate(parts) for parts in zip(*of_image))
    return Claimed(image, anchor, boxes, slots)


def match_centres(cells: Sequence[np.ndarray], truth: Truth, radius: float) -> np.ndarray:
    """The object of each cell of all levels (n,), by the place of the cell's centre (FCOS, section 3.2).

    ``cells`` are those of each level (n_i, 4), squares of one stride. An object takes the cells whose centres lie in it
    and, on both axes, less than ``radius`` strides from its middle ("centre sampling"), on the level where the farthest
    of its sides is between 4 and 8 strides away; the first and last level take the smaller and larger ones too. Where
    several want a cell, it goes to the smallest.

    >>> objects = Truth(np.array([[0, 0, 24, 24]], np.float32), np.array([1]), np.zeros((0, 4), np.float32))
    >>> match_centres([np.array([[8, 8, 16, 16], [32, 8, 40, 16]], np.float32)], objects, 1.5)
    array([ 0, -1])
    """
    flat = np.concatenate(cells)
    matches = np.full(len(flat), BACKGROUND)
    if len(truth.boxes):
        stride = flat[:, 2:3] - flat[:, :1]
        low, high = 4 * stride, 8 * stride
        low[: len(cells[0])], high[len(flat) - len(cells[-1]) :] = 0, np.inf
        centres, middles = (box_ops.xyxy_to_cxcywh(b)[:, :2] for b in (flat, truth.boxes))
        near = np.abs(centres[:, None] - middles).max(-1) < radius * stride
        distances = box_ops.encode_distances(centres[:, None], truth.boxes)
        farthest = distances.max(-1)
        wanted = near & (distances.min(-1) > 0) & (farthest > low) & (farthest < high)
        taken = wanted.any(1)
        matches[taken] = np.where(wanted[taken], box_ops.area(truth.boxes), np.inf).argmin(1)
    return leave_out_ignored(matches, flat, truth.ignored)


def dynamic_match(
    cells: np.ndarray, truth: Truth, boxes: np.ndarray, scores: np.ndarray, radius: float, top: int
) -> tuple[np.ndarray, np.ndarray]:
    """The object of each cell (n,), by what the network says there, and the IoU of its box with it, else 0 (n,).

    SimOTA (YOLOX, section 2.1) as the official code has it. ``cells`` (n, 4) are squares of one stride, ``boxes``
    (n, 4) and ``scores`` (n, classes) what is predicted in them. Candidates are the cells whose centre is, on both
    axes, less than ``radius`` strides from the middle of some object. A pair costs its cross entropy - 3 log IoU, and
    far more where the cell is another object's candidate. As many cells as the ``top`` greatest IoUs add up to, at
    least one, go to an object, the cheapest; where several want a cell, it goes to the one that it costs least.
    """
    matches, quality = np.full(len(cells), BACKGROUND), np.zeros(len(cells), np.float32)
    centres, middles = (box_ops.xyxy_to_cxcywh(b)[:, :2] for b in (cells, truth.boxes))
    near = np.abs(centres - middles[:, None]).max(-1) < radius * (cells[:, 2] - cells[:, 0])
    candidates = np.flatnonzero(near.any(0))
    if len(candidates):
        ious = box_ops.iou(truth.boxes, boxes[candidates])
        with np.errstate(divide="ignore"):
            other, right = (np.maximum(np.log(p), -100) for p in (1 - scores[candidates], scores[candidates]))
        entropy = (other - right)[:, truth.slots].T - other.sum(1)
        cost = entropy - 3 * np.log(ious + np.float32(1e-8)) + np.where(near[:, candidates], np.float32(0), 1e6)
        cheapest = _least(cost, top)
        order = np.argsort(np.take_along_axis(cost, cheapest, 1), 1, kind="stable")
        counts = np.maximum(np.take_along_axis(ious, _least(-ious, top), 1).sum(1).astype(np.int64), 1)
        row, rank = np.nonzero(np.arange(order.shape[1]) < counts[:, None])
        wanted = np.zeros(cost.shape, bool)
        wanted[row, np.take_along_axis(cheapest, order, 1)[row, rank]] = True
        several = np.flatnonzero(wanted.sum(0) > 1)
        wanted[:, several] = False
        wanted[cost[:, several].argmin(0), several] = True
        taken = np.flatnonzero(wanted.any(0))
        objects = wanted[:, taken].argmax(0)
        matches[candidates[taken]], quality[candidates[taken]] = objects, ious[objects, taken]
    return leave_out_ignored(matches, cells, truth.ignored), quality
