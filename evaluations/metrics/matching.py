"""Matching detections with ground truth and turning matches into precision and recall, as COCO defines them.

The rules are those of COCO's evaluation (https://cocodataset.org/#detection-eval and its reference implementation):
within one image and category, detections in falling order of score each take the still free object they overlap most.
All groups, IoU thresholds and area ranges are worked on at once: only pairs that overlap enough can ever match, and
there are few of them, so round r lets the r-th such detection of every group choose.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Overlap = Callable[[Ints, Ints], Floats]
"""``overlap(found, truth)``: the overlap of each pair of a detection's and an object's index, in 0..1."""

PAIRS_AT_ONCE = 1 << 17


@dataclass
class Truth:
    """The annotated objects of all images: ``image`` and ``category`` index their lists; ``area`` in pixels.

    ``ignore``: neither finding nor missing it counts. ``crowd``: may be matched by any number of detections.
    """

    image: Ints
    category: Ints
    area: Floats
    ignore: Bools
    crowd: Bools


@dataclass
class Found:
    """The detections of all images: ``image`` and ``category`` index their lists; ``area`` in pixels."""

    image: Ints
    category: Ints
    area: Floats
    score: Floats


@dataclass
class Matches:
    """What became of each detection, sorted by category, then falling score.

    ``index`` into the given detections, ``rank`` within its image and category; ``hit`` and ``ignored`` (n, T, A) for
    each of T thresholds and A area ranges; ``positives`` (K, A): the objects that count, by category and area range.
    """

    index: Ints
    category: Ints
    score: Floats
    rank: Ints
    hit: Bools
    ignored: Bools
    positives: Ints


def match(
    truth: Truth, found: Found, overlap: Overlap, *, categories: int, thresholds: Floats, areas: Floats, limit: int
) -> Matches:
    """Match the ``limit`` best detections of every image and category, for ``thresholds`` (T,) and ``areas`` (A, 2)."""
    group = found.image * categories + found.category
    order = np.lexsort((-found.score, group))  # stable: equal scores keep the given order
    group = group[order]
    first = np.searchsorted(group, group)
    rank = np.arange(len(group)) - first
    order, group, rank = order[rank < limit], group[rank < limit], rank[rank < limit]

    truth_order = np.argsort(truth.image * categories + truth.category, kind="stable")
    truth_group = (truth.image * categories + truth.category)[truth_order]
    ranges = (np.searchsorted(truth_group, group), np.searchsorted(truth_group, group, side="right"))
    # Exact overlap 1 must pass a threshold of 1 in spite of rounding; COCO's own guard.
    thresholds = np.minimum(thresholds, 1 - 1e-10)
    pair_found, pair_truth, iou = _pairs(*ranges, order, truth_order, overlap, thresholds.min())

    outside = (truth.area[:, None] < areas[:, 0]) | (truth.area[:, None] > areas[:, 1])
    ignore = outside | truth.ignore[:, None]
    shape = len(order), len(thresholds), len(areas)
    hit, ignored = np.zeros(shape, bool), np.zeros(shape, bool)
    taken = np.zeros((len(truth.area), *shape[1:]), bool)
    turn = _rank_among_candidates(pair_found, group)
    by_turn = np.lexsort((pair_truth, iou, pair_found, turn))
    bounds = np.searchsorted(turn[by_turn], np.arange(turn.max(initial=-1) + 2))
    for start, stop in pairwise(bounds):
        pairs = by_turn[start:stop]
        now, objects = pair_found[pairs], truth_order[pair_truth[pairs]]
        may = iou[pairs, None, None] >= thresholds[:, None]
        may = may & (truth.crowd[objects, None, None] | ~taken[objects])
        # The pairs of one detection lie together by rising IoU (ties: the later object wins), so the highest number
        # that may is the best; objects that count stand above all ignored ones.
        number = np.arange(1, len(pairs) + 1, dtype=np.int32)[:, None] + np.where(
            ignore[objects], np.int32(0), np.int32(len(pairs))
        )
        starts = np.flatnonzero(np.r_[True, now[1:] != now[:-1]])
        best = np.maximum.reduceat(np.where(may, number[:, None], np.int32(0)), starts, axis=0)
        which, t, a = np.nonzero(best)
        chosen = objects[(best[which, t, a] - 1) % len(pairs)]
        hit[now[starts[which]], t, a] = True
        ignored[now[starts[which]], t, a] = ignore[chosen, a]
        taken[chosen, t, a] = True

    area = found.area[order, None]
    ignored |= ~hit & ((area < areas[:, 0]) | (area > areas[:, 1]))[:, None]
    positives = np.zeros((categories, len(areas)), np.int64)
    np.add.at(positives, truth.category, ~ignore)
    score, category = found.score[order], found.category[order]
    by = np.lexsort((-score, category))
    return Matches(order[by], category[by], score[by], rank[by], hit[by], ignored[by], positives)


def _pairs(
    starts: Ints, stops: Ints, order: Ints, truth_order: Ints, overlap: Overlap, threshold: float
) -> tuple[Ints, Ints, Floats]:
    """Positions (detection, object) and overlap of all pairs of one image and category that overlap enough."""
    counts = stops - starts
    total = np.cumsum(counts)
    parts: list[tuple[Ints, Ints, Floats]] = []
    begin = 0
    while begin < len(counts):
        done = total[begin - 1] if begin else 0
        end = max(begin + 1, int(np.searchsorted(total, done + PAIRS_AT_ONCE, side="right")))
        count = counts[begin:end]
        found = np.repeat(np.arange(begin, end), count)
        truth = np.arange(len(found)) + np.repeat(starts[begin:end] - (total[begin:end] - count - done), count)
        iou = overlap(order[found], truth_order[truth])
        keep = iou >= threshold
        parts.append((found[keep], truth[keep], iou[keep]))
        begin = end
    if not parts:
        return np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0)
    found_parts, truth_parts, iou_parts = zip(*parts)
    return np.concatenate(found_parts), np.concatenate(truth_parts), np.concatenate(iou_parts)


def _rank_among_candidates(pair_found: Ints, group: Ints) -> Ints:
    """For each pair (sorted by detection) how many detections of its group that also have a pair come before."""
    candidates, inverse = np.unique(pair_found, return_inverse=True)
    groups = group[candidates]
    rank: Ints = np.arange(len(candidates)) - np.searchsorted(groups, groups)
    return rank[inverse]


def precision_recall(
    matches: Matches, *, recall_thresholds: Floats, max_detections: tuple[int, ...]
) -> tuple[Floats, Floats, Floats]:
    """Precision and score (T, R, K, A) at each recall for the largest limit, and recall (T, K, A, M); -1 is undefined.

    Precision is COCO's: at recall r, the highest precision at any recall of at least r, 0 where r is not reached.
    """
    categories, areas = matches.positives.shape
    shape = matches.hit.shape[1], len(recall_thresholds), categories, areas
    precision, scores = np.full(shape, -1.0), np.full(shape, -1.0)
    recall = np.full((shape[0], categories, areas, len(max_detections)), -1.0)
    bounds = np.searchsorted(matches.category, np.arange(categories + 1))
    for k, a in zip(*np.nonzero(matches.positives)):
        part = slice(bounds[k], bounds[k + 1])
        positives = matches.positives[k, a]
        hit, counts = matches.hit[part, :, a], ~matches.ignored[part, :, a]
        true, false = hit & counts, ~hit & counts
        for m, limit in enumerate(max_detections):
            recall[:, k, a, m] = true[matches.rank[part] < limit].sum(0) / positives
        tp, fp = np.cumsum(true, axis=0).astype(float), np.cumsum(false, axis=0).astype(float)
        envelope = np.maximum.accumulate((tp / (fp + tp + np.spacing(1)))[::-1])[::-1]
        for t in range(shape[0]):
            at = np.searchsorted(tp[:, t] / positives, recall_thresholds)
            reached = at < len(tp)
            precision[t, :, k, a] = scores[t, :, k, a] = 0
            precision[t, reached, k, a] = envelope[at[reached], t]
            scores[t, reached, k, a] = matches.score[part][at[reached]]
    return precision, scores, recall
