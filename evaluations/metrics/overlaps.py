"""How much a detection overlaps an object: boxes and masks by intersection over union, keypoints by OKS.

Each function returns ``overlap(found, truth)``, which takes two arrays of indices and gives the overlap of each pair
in 0..1. For a crowd region the union is the detection alone, so that a detection inside it overlaps fully.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .matching import Bools, Floats, Ints, Overlap

RUNS_AT_ONCE = 1 << 20


def box_overlap(found: Floats, truth: Floats, crowd: Bools, offset: float = 0.0) -> Overlap:
    """Boxes (n, 4) as x, y, width, height in pixels; ``offset`` 1 counts the last pixel in (Pascal VOC)."""
    found_area = (found[:, 2] + offset) * (found[:, 3] + offset)
    truth_area = (truth[:, 2] + offset) * (truth[:, 3] + offset)

    def overlap(f: Ints, t: Ints) -> Floats:
        a, b = found[f], truth[t]
        sides = np.minimum(a[:, 2:] + a[:, :2], b[:, 2:] + b[:, :2]) - np.maximum(a[:, :2], b[:, :2]) + offset
        inter = np.where((sides > 0).all(1), sides[:, 0] * sides[:, 1], 0.0)
        union = np.where(crowd[t], found_area[f], found_area[f] + truth_area[t] - inter)
        return np.divide(inter, union, out=np.zeros_like(inter), where=inter > 0)

    return overlap


@dataclass
class Runs:
    """Masks as runs of foreground pixels in column-major order, as COCO has them.

    ``start`` and ``stop`` (int32) of all runs one after the other, ``first`` (n + 1,) bounds of each mask's runs,
    ``area`` (n,) in pixels, ``box`` (n, 4) x, y, x, y around each (whole columns where a run goes over several),
    ``filled`` (n,) pixels of foreground and background.
    """

    start: NDArray[np.int32]
    stop: NDArray[np.int32]
    first: Ints
    area: Floats
    box: Ints
    filled: Ints

    @classmethod
    def from_counts(cls, background: Ints, foreground: Ints, pairs: Ints, heights: Ints) -> tuple[Runs, Ints]:
        """From run lengths in turn, ``pairs`` (n,) of them for each of n masks; and the least run length of each."""
        first = np.concatenate([[0], np.cumsum(pairs)])
        some = np.flatnonzero(pairs)
        starts = first[some]
        total = np.cumsum(background + foreground)
        edge = np.concatenate([[0], total])[first]
        filled = np.diff(edge)
        total -= np.repeat(edge[:-1], pairs)
        least, area = np.zeros(len(pairs), np.int64), np.zeros(len(pairs))
        box = np.zeros((len(pairs), 4), np.int64)
        if len(some):
            least[some] = np.minimum.reduceat(np.minimum(background, foreground), starts)
            area[some] = np.add.reduceat(foreground, starts)
        stop = total.astype(np.int32)
        start = stop - foreground.astype(np.int32)
        if len(some):
            height = np.repeat(np.maximum(heights, 1).astype(np.int32), pairs)
            column = start // height * height
            top, bottom = start - column, stop - column
            over = bottom > height  # runs that go on in the next column touch both edges
            top[over], bottom[over] = 0, height[over]
            none = foreground == 0  # no pixel, no box
            top[none], bottom[none] = height[none], 0
            ends = first[1:][some] - 1
            ends -= none[ends] & (ends > starts)
            box[some, 0] = start[starts] // height[starts]
            box[some, 1] = np.minimum.reduceat(top, starts)
            box[some, 2] = (stop[ends] - 1) // height[ends] + 1
            box[some, 3] = np.maximum.reduceat(bottom, starts)
        return cls(start, stop, first, area, box, filled), least

    @classmethod
    def join(cls, parts: Sequence[Runs]) -> Runs:
        """One after the other."""
        runs = np.concatenate([np.diff(part.first) for part in parts])
        return cls(
            start=np.concatenate([part.start for part in parts]),
            stop=np.concatenate([part.stop for part in parts]),
            first=np.concatenate([[0], np.cumsum(runs)]),
            area=np.concatenate([part.area for part in parts]),
            box=np.concatenate([part.box for part in parts]),
            filled=np.concatenate([part.filled for part in parts]),
        )


def mask_overlap(found: Runs, truth: Runs, crowd: Bools, least: float) -> Overlap:
    """Masks of equally large images; overlaps that must stay under ``least`` are given as 0 without counting pixels."""
    # All truth masks lie one behind the other on one axis; covered[i] counts the pixels of all runs before run i.
    room = int(max(truth.stop.max(initial=0), found.stop.max(initial=0))) + 1
    which = np.repeat(np.arange(len(truth.area)), np.diff(truth.first))
    start, length = truth.start + which * room, truth.stop - truth.start
    covered = np.concatenate([[0], np.cumsum(length)])

    def pixels_before(at: Ints) -> Ints:
        run = np.searchsorted(start, at, side="right") - 1
        count: Ints = np.where(run < 0, 0, covered[run] + np.minimum(at - start[run], length[run]))
        return count

    def intersection(f: Ints, t: Ints) -> Floats:
        counts = found.first[f + 1] - found.first[f]
        ends = np.cumsum(counts)
        run = np.arange(ends[-1]) + np.repeat(found.first[f] - (ends - counts), counts)
        shift = np.repeat(t * room, counts)
        inside = pixels_before(found.stop[run] + shift) - pixels_before(found.start[run] + shift)
        return np.add.reduceat(inside, ends - counts).astype(float)

    def overlap(f: Ints, t: Ints) -> Floats:
        a, b = found.area[f], truth.area[t]
        sides = np.minimum(found.box[f, 2:], truth.box[t, 2:]) - np.maximum(found.box[f, :2], truth.box[t, :2])
        most = np.minimum(np.minimum(a, b), sides.clip(0).prod(1))
        union = np.where(crowd[t], a, a + b - most)
        worth = np.flatnonzero((most > 0) & (most >= (least - 1e-9) * union))
        result = np.zeros(len(f))
        # In portions, so that masks of many runs do not need all memory at once.
        portion = np.cumsum(np.diff(found.first)[f[worth]]) // RUNS_AT_ONCE
        for pairs in np.split(worth, np.flatnonzero(np.diff(portion)) + 1):
            if len(pairs):
                inter = intersection(f[pairs], t[pairs])
                result[pairs] = inter / np.where(crowd[t[pairs]], a[pairs], a[pairs] + b[pairs] - inter)
        return result

    return overlap


def keypoint_overlap(found: Floats, truth: Floats, boxes: Floats, area: Floats, sigmas: Floats) -> Overlap:
    """Object keypoint similarity of ``found`` (n, k, 2 or 3) and ``truth`` (m, k, 3) x, y, visibility, in pixels.

    ``boxes`` (m, 4) x, y, width, height and ``area`` (m,) of the objects. An object without visible keypoints stands
    for a region: distances count only beyond its box grown to three times its size.
    """
    visible = truth[:, :, 2] > 0
    counted = np.count_nonzero(visible, axis=1)
    low, high = boxes[:, :2] - boxes[:, 2:], boxes[:, :2] + boxes[:, 2:] * 2
    variance = (sigmas * 2) ** 2

    def overlap(f: Ints, t: Ints) -> Floats:
        at = found[f, :, :2]
        region = np.maximum(0, low[t, None] - at) + np.maximum(0, at - high[t, None])
        shift = np.where((counted[t] > 0)[:, None, None], at - truth[t, :, :2], region)
        error = (shift**2).sum(2) / variance / (area[t, None] + np.spacing(1)) / 2
        similar = np.where(visible[t] | (counted[t] == 0)[:, None], np.exp(-error), 0)
        return np.asarray(similar.sum(1) / np.where(counted[t] > 0, counted[t], len(sigmas)), float)

    return overlap
