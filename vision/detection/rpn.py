"""Region proposals: Ren et al. 2015, "Faster R-CNN", section 3.1."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from ...core import Tensor
from ...core import functions as F
from ...core.layers import Conv2d, Module, ReLU, Sequential, init
from .. import boxes as box_ops
from ..model import sigmoid
from .anchors import CellAnchors
from .targets import NEITHER, Truth, match_and_claim_ties, sample_balanced


class RPNHead(Module):
    """Convolutions, then for each anchor of each cell an objectness logit and a box code (figure 3).

    The convolutions are ``width`` wide, as the maps if it is None. With two ``logits`` the first is the background's.
    """

    def __init__(self, channels: int, anchors: int, depth: int = 1, width: int | None = None, logits: int = 1) -> None:
        widths = [channels, *[width or channels] * depth]
        self.conv = Sequential(*(Sequential(_conv(a, b, 3), ReLU()) for a, b in pairwise(widths)))
        self.cls_logits = _conv(widths[-1], anchors * logits, 1)
        self.bbox_pred = _conv(widths[-1], anchors * 4, 1)

    def forward(self, level: Tensor) -> tuple[Tensor, Tensor]:
        x = self.conv(level)
        return self.cls_logits(x), self.bbox_pred(x)


class RegionProposalNetwork(Module):
    """The head, its anchors, and the choice of the best boxes.

    Inference keeps ``per_level`` boxes of each level before and ``total`` after non-maximum suppression at IoU
    ``nms_threshold``; boxes with an objectness below ``score_threshold`` never count.
    """

    coder = box_ops.BoxCoder((1.0, 1.0, 1.0, 1.0))
    in_training = (2000, 2000)  # what ``per_level`` and ``total`` are there
    object_share = 0.5  # of the anchors that are learned from, at most
    edge_margin: int | None = None  # in pixels right and below, of the anchors that are learned from; None is all

    def __init__(
        self,
        head: RPNHead,
        anchors: CellAnchors,
        per_level: int = 1000,
        total: int = 1000,
        nms_threshold: float = 0.7,
        score_threshold: float = 0.0,
    ) -> None:
        self.head = head
        self.anchors = anchors
        self.per_level, self.total = per_level, total
        self.nms_threshold, self.score_threshold = nms_threshold, score_threshold

    def forward(self, levels: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """Of each level the logits (n, cells * anchors) and the codes (n, cells * anchors, 4)."""
        logits, codes = [], []
        for level in levels:
            objectness, deltas = self.head(level)
            n = objectness.shape[0]
            logits.append(objectness.transpose(0, 2, 3, 1).reshape(n, -1))
            codes.append(deltas.transpose(0, 2, 3, 1).reshape(n, -1, 4))
        return logits, codes

    def propose(
        self,
        logits: Sequence[np.ndarray],
        codes: Sequence[np.ndarray],
        anchors: Sequence[np.ndarray],
        image_size: tuple[float, float],
        scale: float,
        limits: tuple[int, int] | None = None,
    ) -> np.ndarray:
        """The proposals (r, 4) of one image from its logits, codes and anchors by level, best first.

        ``scale`` pixels of the input stand for one of the photo. ``limits`` replaces ``per_level`` and ``total``:
        training keeps more.
        """
        per_level, total = limits or (self.per_level, self.total)
        scores, boxes, level_of = [], [], []
        for i, (logit, code, anchor) in enumerate(zip(logits, codes, anchors, strict=True)):
            best = top_indices(logit, per_level)
            scores.append(logit[best])
            boxes.append(self.coder.decode(anchor[best], code[best]))
            level_of.append(np.full(len(best), i))
        objectness = sigmoid(np.concatenate(scores))
        box, level = box_ops.clip(np.concatenate(boxes), image_size), np.concatenate(level_of)
        valid = box_ops.at_least(box, self.least_side(scale)) & (objectness >= self.score_threshold)
        box, objectness, level = box[valid], objectness[valid], level[valid]
        return box[box_ops.batched_nms(box, objectness, level, self.nms_threshold, total)]

    def least_side(self, scale: float) -> float:
        """The shortest side of a proposal in the input, of which ``scale`` pixels stand for one of the photo."""
        return 1e-3

    def losses(
        self,
        logits: Sequence[Tensor],
        codes: Sequence[Tensor],
        anchors: Sequence[np.ndarray],
        truths: Sequence[Truth],
        sizes: Sequence[tuple[int, int]],
        rng: np.random.Generator,
    ) -> dict[str, Tensor]:
        """The losses of ``forward``'s outputs (section 3.1.2), on 256 anchors of each image, half of them objects.

        ``sizes`` are the photos' (height, width) in the input.
        """
        flat = np.concatenate(anchors)
        rows, labels, at, wanted = [], [], [], []
        for i, (truth, size) in enumerate(zip(truths, sizes, strict=True)):
            usable = np.arange(len(flat)) if self.edge_margin is None else inside(flat, size, self.edge_margin)
            matches = np.full(len(flat), NEITHER)
            matches[usable] = match_and_claim_ties(flat[usable], truth, 0.7, 0.3)
            objects, background = sample_balanced(matches, 256, self.object_share, rng)
            start = i * len(flat)
            rows += [objects + start, background + start]
            labels += [np.ones(len(objects), np.float32), np.zeros(len(background), np.float32)]
            at.append(objects + start)
            wanted.append(self.coder.encode(flat[objects], truth.boxes[matches[objects]]))
        row = np.concatenate(rows)
        logit = F.concatenate(list(logits), 1).reshape(-1)[row]
        code = F.concatenate(list(codes), 1).reshape(-1, 4)[np.concatenate(at)]
        box = F.smooth_l1_loss(code, Tensor(np.concatenate(wanted)), 1 / 9, "sum")
        return {
            "objectness": F.sigmoid_cross_entropy(logit, Tensor(np.concatenate(labels))),
            "proposal box": box / max(len(row), 1),
        }


class SoftmaxRPN(RegionProposalNetwork):
    """Proposals on one map as in the original: logits of background and object, and small boxes are dropped first.

    The order is that of the object's logit alone. No side is shorter than ``smallest`` pixels of the photo.
    """

    smallest = 16
    in_training = (12000, 2000)
    edge_margin = 0

    def least_side(self, scale: float) -> float:
        return self.smallest * scale

    def propose(
        self,
        logits: Sequence[np.ndarray],
        codes: Sequence[np.ndarray],
        anchors: Sequence[np.ndarray],
        image_size: tuple[float, float],
        scale: float,
        limits: tuple[int, int] | None = None,
    ) -> np.ndarray:
        before, after = limits or (self.per_level, self.total)
        box, score = box_ops.clip(self.coder.decode(anchors[0], codes[0]), image_size), logits[0][1::2]
        valid = np.flatnonzero(box_ops.at_least(box, self.least_side(scale)))
        best = valid[top_indices(score[valid], before)]
        box, score = box[best], score[best]
        return box[box_ops.batched_nms(box, score, np.zeros(len(best), int), self.nms_threshold, after)]

    def losses(
        self,
        logits: Sequence[Tensor],
        codes: Sequence[Tensor],
        anchors: Sequence[np.ndarray],
        truths: Sequence[Truth],
        sizes: Sequence[tuple[int, int]],
        rng: np.random.Generator,
    ) -> dict[str, Tensor]:
        pairs = logits[0].reshape(len(truths), -1, 2)  # the softmax of two is the logistic function of their difference
        return super().losses([pairs[:, :, 1] - pairs[:, :, 0]], codes, anchors, truths, sizes, rng)


def inside(anchors: np.ndarray, size: tuple[int, int], margin: int) -> np.ndarray:
    """The indices of the anchors (n, 4) that do not reach over the edges of a photo of ``size`` (height, width).

    Their right and lower sides end ``margin`` pixels before.

    >>> inside(np.array([[0, 0, 4, 4], [0, 0, 5, 4]]), (4, 4), 0)
    array([0])
    """
    height, width = size
    ends = width - margin, height - margin
    return np.flatnonzero((anchors[:, :2] >= 0).all(1) & (anchors[:, 2:] <= ends).all(1))


def top_indices(scores: np.ndarray, count: int) -> np.ndarray:
    """The indices of the ``count`` greatest scores (fewer if there are fewer), greatest first, ties by index.

    >>> top_indices(np.array([1.0, 3.0, 2.0]), 2)
    array([1, 2])
    """
    if len(scores) > count:
        cut = np.partition(scores, len(scores) - count)[len(scores) - count]
        chosen = np.flatnonzero(scores >= cut)
    else:
        chosen = np.arange(len(scores))
    return chosen[np.argsort(-scores[chosen], kind="stable")][:count]


def _conv(in_channels: int, out_channels: int, kernel: int) -> Conv2d:
    conv = Conv2d(in_channels, out_channels, kernel, padding=kernel // 2)
    conv.weight.data = init.normal(conv.weight.shape, 0.01)
    conv.bias.data = init.constant(conv.bias.shape, 0)  # type: ignore[union-attr]
    return conv
