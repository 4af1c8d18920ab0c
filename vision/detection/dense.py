"""What the detectors have in common that classify every anchor of every cell (RetinaNet and FCOS)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ...core import Tensor
from ...core import functions as F
from ...core.layers import Module, Sequential
from .. import boxes as box_ops
from ..categories import Categories
from ..model import Detector, sigmoid
from ..results import Detections
from ..sample import Sample
from .anchors import AnchorGenerator
from .losses import focal_loss
from .resizing import ShortSideResize
from .rpn import top_indices
from .targets import NEITHER, Claimed, Truth, truth_of
from .towers import conv3x3, normal_001

PRIOR = -math.log((1 - 0.01) / 0.01)  # training starts with a probability of 0.01 (Lin et al. 2017b, section 4.1)


def rows(x: Tensor, width: int) -> Tensor:
    """(n, anchors * width, height, width) to (n, cells * anchors, width), cell by cell.

    >>> rows(Tensor(np.zeros((1, 6, 2, 2), np.float32)), 3).shape
    (1, 8, 3)
    """
    return x.transpose(0, 2, 3, 1).reshape(x.shape[0], -1, width)


class ClassificationHead(Module):
    """Convolutions, then a logit for each class of each anchor of each cell; all levels share them."""

    def __init__(self, conv: Sequential, channels: int, anchors: int, classes: int) -> None:
        self.conv = conv
        self.cls_logits = conv3x3(channels, anchors * classes, normal_001, PRIOR)
        self.classes = classes

    def forward(self, level: Tensor) -> Tensor:
        """Logits (n, cells * anchors, classes)."""
        return rows(self.cls_logits(self.conv(level)), self.classes)


class DenseHead(Module):
    """A classification head and a regression head that gives a tuple, on every level."""

    def __init__(self, classification: ClassificationHead, regression: Module) -> None:
        self.classification_head, self.regression_head = classification, regression

    def forward(self, levels: Sequence[Tensor]) -> list[tuple[Tensor, ...]]:
        """For each level the class logits (n, cells * anchors, classes) and what the regression head gives."""
        return [(self.classification_head(level), *self.regression_head(level)) for level in levels]


class DenseDetector(Detector):
    """A backbone with a pyramid, anchors, and heads that judge each of them.

    A subclass says in ``candidates`` which are the best of a level, and in ``losses_of`` how wrong all of them are.
    """

    class_layers = ("head.classification_head.cls_logits.",)
    per_level, nms_threshold, limit = 1000, 0.5, 100

    def __init__(
        self,
        backbone: Module,
        anchors: AnchorGenerator,
        head: DenseHead,
        categories: Categories,
        resize: ShortSideResize = ShortSideResize(),  # noqa: B008  frozen
    ) -> None:
        self.backbone, self.anchors, self.head = backbone, anchors, head
        self.categories, self.resize = categories, resize

    def forward(self, x: Tensor) -> tuple[list[tuple[Tensor, ...]], list[np.ndarray]]:
        """The head's outputs and the anchors (cells * anchors, 4), each by level."""
        levels = self.backbone(x)
        return self.head(levels), self.anchors([level.shape[2:] for level in levels], x.shape[2:])  # type: ignore[misc, arg-type]

    def candidates(
        self, outputs: Sequence[np.ndarray], anchors: np.ndarray, score_threshold: float
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Boxes (k, 4), scores (k,) and classes (k,) of the best ``per_level`` of a level that exceed the threshold."""
        raise NotImplementedError(f"{type(self).__name__} has no candidates")

    def predict_image(self, image: np.ndarray, score_threshold: float | None) -> Detections:
        x, size = self.resize(image)
        outputs, anchors = self(x)
        threshold = self.score_threshold if score_threshold is None else score_threshold
        found = [
            self.candidates([t.numpy()[0] for t in level], anchor, threshold)
            for level, anchor in zip(outputs, anchors, strict=True)
        ]
        boxes, scores, slots = (np.concatenate(part) for part in zip(*found))
        boxes = box_ops.clip(boxes, size)
        keep = box_ops.batched_nms(boxes, scores, slots, self.nms_threshold)[: self.limit]
        boxes = box_ops.scale(boxes[keep], size, image.shape[:2])  # type: ignore[arg-type]
        return self.detections(image, boxes, scores[keep], slots[keep])

    def losses(self, samples: Sequence[Sample], rng: np.random.Generator) -> dict[str, Tensor]:
        """The losses of a batch by name; training minimises their sum."""
        x, sizes = self.resize.batch([sample.image for sample in samples])
        truths = []
        for sample, size in zip(samples, sizes):
            boxes = np.zeros((0, 4), np.float32) if sample.boxes is None else sample.boxes
            truths.append(truth_of(sample, self.categories, box_ops.scale(boxes, sample.size, size)))
        outputs, anchors = self(x)
        return self.losses_of([F.concatenate(level, 1) for level in zip(*outputs)], anchors, truths)

    def losses_of(
        self, outputs: Sequence[Tensor], anchors: Sequence[np.ndarray], truths: Sequence[Truth]
    ) -> dict[str, Tensor]:
        """The losses of the head's outputs (n, anchors, ...), joined over the levels, about n images."""
        raise NotImplementedError(f"{type(self).__name__} has no losses_of")


def class_loss(logits: Tensor, matches: np.ndarray, found: Claimed, weight: np.ndarray) -> Tensor:
    """The focal loss of the logits (n, anchors, classes), times ``weight`` (n,) of each image (Lin et al. 2017b).

    An anchor that belongs to an object shows its class, the others none; those that ``matches`` (n, anchors) calls
    NEITHER count nothing.

    >>> none = Claimed(*(np.zeros(0, np.int64),) * 2, np.zeros((0, 4)), np.zeros(0, np.int64))
    >>> class_loss(Tensor([[[0.0], [5.0]]]), np.array([[-1, -2]]), none, np.ones(1)).item().__round__(4)
    0.13
    """
    target = np.zeros(logits.shape, np.float32)
    target[found.image, found.anchor, found.slots] = 1
    counted = ((matches != NEITHER) * weight[:, None])[..., None].astype(np.float32)
    return (focal_loss(logits, Tensor(target), reduction="none") * Tensor(counted)).sum()


def likely(logits: np.ndarray, probability: float) -> tuple[np.ndarray, np.ndarray]:
    """Rows and columns of the logits (n, classes) whose probabilities may exceed ``probability``.

    Found without computing the probabilities of all; a few that are just below are among them.

    >>> likely(np.array([[0.0, 3.0], [-3.0, -4.0]]), 0.5)
    (array([0, 0]), array([0, 1]))
    """
    if not 0 < probability < 1:
        least = -math.inf if probability <= 0 else math.inf
    else:
        least = math.log(probability / (1 - probability)) - 1e-3
    index = np.flatnonzero(logits.reshape(-1) > least)
    return np.divmod(index, logits.shape[1])


def best_scores(
    logits: np.ndarray, threshold: float, count: int, quality: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows, columns and scores of the ``count`` best of the logits (n, classes), all above ``threshold``, best first.

    The score is the probability, or the root of its product with the row's ``quality`` (n,), from 0 to 1.

    >>> row, column, score = best_scores(np.array([[0.0, 3.0], [-3.0, 1.0]]), 0.4, 2)
    >>> row, column, score.round(2)
    (array([0, 1]), array([1, 1]), array([0.95, 0.73]))
    """
    row, column = likely(logits, threshold if quality is None else threshold**2)
    score = sigmoid(logits[row, column])
    if quality is not None:
        score = np.sqrt(score * quality[row])
    above = np.flatnonzero(score > threshold)
    best = above[top_indices(score[above], count)]
    return row[best], column[best], score[best]
