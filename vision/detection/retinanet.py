"""RetinaNet: Lin et al. 2017, "Focal loss for dense object detection"."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from ...core import Tensor
from ...core import functions as F
from ...core.layers import BatchNorm2d, GroupNorm, Module, Sequential
from ...weights.entry import WeightsEntry
from ...weights.loading import TORCHVISION_RENAMES
from ...weights.torchvision import coco_entry
from .. import boxes as box_ops
from ..backbones.resnet import Bottleneck, ResNet
from ..categories import Categories
from ..model import ModelInfo
from .anchors import AnchorGenerator
from .dense import ClassificationHead, DenseDetector, DenseHead, best_scores, class_loss, rows
from .faster_rcnn import RATIOS, published_norm
from .fpn import LastLevelP6P7, PyramidBackbone
from .losses import iou_loss
from .targets import Truth, claimed, match_and_claim_ties
from .towers import conv3x3, normal_001, tower

# three sizes in each octave (section 4, "Anchors"), the fractions cut off as in torchvision
SIZES = [[int(side * 2 ** (k / 3)) for k in range(3)] for side in (32, 64, 128, 256, 512)]


class RegressionHead(Module):
    """Convolutions, then a box code for each anchor of each cell; all levels share them."""

    def __init__(self, conv: Sequential, channels: int, anchors: int) -> None:
        self.conv = conv
        self.bbox_reg = conv3x3(channels, anchors * 4, normal_001)

    def forward(self, level: Tensor) -> tuple[Tensor]:
        """Codes (n, cells * anchors, 4)."""
        return (rows(self.bbox_reg(self.conv(level)), 4),)


def code_loss(codes: Tensor, anchors: np.ndarray, boxes: np.ndarray) -> Tensor:
    """The L1 loss (n,) of the codes (n, 4) of anchors (n, 4) whose objects' boxes are ``boxes`` (n, 4).

    >>> code_loss(Tensor([[1.0, 0.0, 0.0, 0.5]]), *[np.array([[0, 0, 4, 4]], np.float32)] * 2).numpy()
    array([1.5], dtype=float32)
    """
    return F.l1_loss(codes, Tensor(RetinaNet.coder.encode(anchors, boxes)), "none").sum(1)


def giou_loss(codes: Tensor, anchors: np.ndarray, boxes: np.ndarray) -> Tensor:
    """The GIoU loss (n,) of the boxes that the codes (n, 4) of anchors (n, 4) stand for.

    >>> giou_loss(Tensor([[0.0, 0.0, 0.0, 0.0]]), *[np.array([[0, 0, 4, 4]], np.float32)] * 2).numpy()
    array([0.], dtype=float32)
    """
    side = anchors[:, 2:] - anchors[:, :2]
    centre = codes[:, :2] * Tensor(side) + Tensor((anchors[:, :2] + anchors[:, 2:]) / 2)
    half = F.exp(F.minimum(codes[:, 2:], math.log(1000 / 16))) * Tensor(side / 2)  # cut as the coder cuts
    found = F.concatenate([centre - half, centre + half], 1)
    return iou_loss(found, Tensor(boxes), "giou", "none")


class RetinaNet(DenseDetector):
    """A dense detector with nine anchors for each cell, each with a box code (figure 3).

    >>> model = retinanet_resnet50_fpn(Categories.with_background(["boat"]))
    >>> model.head.classification_head.cls_logits.weight.shape
    (18, 256, 3, 3)
    """

    coder = box_ops.BoxCoder((1.0, 1.0, 1.0, 1.0))
    limit = 300
    box_loss = staticmethod(code_loss)

    def candidates(
        self, outputs: Sequence[np.ndarray], anchors: np.ndarray, score_threshold: float
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        logits, codes = outputs
        row, column, score = best_scores(logits, score_threshold, self.per_level)
        return self.coder.decode(anchors[row], codes[row]), score, column

    def losses_of(
        self, outputs: Sequence[Tensor], anchors: Sequence[np.ndarray], truths: Sequence[Truth]
    ) -> dict[str, Tensor]:
        """The "class" and "box" losses: the focal loss of all anchors and ``box_loss`` of those that belong to objects.

        Both over the number of these anchors in the image (section 4, "Training"), averaged over the images. Where the
        paper has smooth L1, torchvision has L1, and in the second version GIoU.
        """
        logits, codes = outputs
        flat = np.concatenate(anchors)
        matches = np.stack([match_and_claim_ties(flat, truth, 0.5, 0.4) for truth in truths])
        found = claimed(matches, truths)
        weight = (1 / (np.maximum((matches >= 0).sum(1), 1) * len(truths))).astype(np.float32)
        box = self.box_loss(codes[found.image, found.anchor], flat[found.anchor], found.boxes)
        return {
            "class": class_loss(logits, matches, found, weight),
            "box": (box * Tensor(weight[found.image])).sum(),
        }


def _retinanet(
    backbone: PyramidBackbone, categories: Categories, norm: Callable[[int], Module] | None = None
) -> RetinaNet:
    """RetinaNet whose two heads have four convolutions each, with norms or without."""
    anchors = AnchorGenerator(SIZES, RATIOS)
    count = anchors.per_cell[0]
    towers = [tower(256, 4, norm, normal_001) for _ in range(2)]
    classification = ClassificationHead(towers[0], 256, count, categories.outputs)
    return RetinaNet(backbone, anchors, DenseHead(classification, RegressionHead(towers[1], 256, count)), categories)


def retinanet_resnet50_fpn(categories: Categories) -> RetinaNet:
    """RetinaNet with a ResNet-50 and a pyramid of strides 8 to 128."""
    body = ResNet(Bottleneck, (3, 4, 6, 3), norm=published_norm)
    return _retinanet(PyramidBackbone(body, (1, 2, 3), 256, LastLevelP6P7(256, 256)), categories)


def retinanet_resnet50_fpn_v2(categories: Categories) -> RetinaNet:
    """The same with norms in its heads, and a pyramid that goes on from the backbone's last map (Zhang et al. 2020)."""
    body = ResNet(Bottleneck, (3, 4, 6, 3), norm=BatchNorm2d)
    backbone = PyramidBackbone(body, (1, 2, 3), 256, LastLevelP6P7(2048, 256))
    model = _retinanet(backbone, categories, partial(GroupNorm, 32))
    model.box_loss = giou_loss
    return model


def _info(build: Callable[[Categories], RetinaNet], entry: WeightsEntry, gflops: float, paper: str) -> ModelInfo:
    return ModelInfo(
        name=build.__name__,
        task="detection",
        build=build,
        spread=Categories.with_background,
        published=Categories.by_id,
        entries=(entry,),
        paper=paper,
        gflops=gflops,
        renames=TORCHVISION_RENAMES,
    )


PAPER = "Lin et al. 2017, Focal loss for dense object detection"
MODELS = (
    _info(
        retinanet_resnet50_fpn,
        coco_entry("retinanet_resnet50_fpn_coco-eeacb38b", 34_014_999, box_ap=36.4),
        151.54,
        PAPER,
    ),
    _info(
        retinanet_resnet50_fpn_v2,
        coco_entry("retinanet_resnet50_fpn_v2_coco-5905b1c5", 38_198_935, box_ap=41.5),
        152.238,
        PAPER + "; Zhang et al. 2020, Bridging the gap between anchor-based and anchor-free detection",
    ),
)
