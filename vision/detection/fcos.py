"""FCOS: Tian et al. 2019, "FCOS: Fully convolutional one-stage object detection"."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...core import Tensor
from ...core import functions as F
from ...core.layers import FrozenBatchNorm2d, GroupNorm, Module, ReLU, Sequential
from ...weights.loading import TORCHVISION_RENAMES
from ...weights.torchvision import coco_entry
from .. import boxes as box_ops
from ..backbones.resnet import Bottleneck, ResNet
from ..categories import Categories
from ..model import ModelInfo, sigmoid
from .anchors import AnchorGenerator
from .dense import ClassificationHead, DenseDetector, DenseHead, best_scores, class_loss, rows
from .fpn import LastLevelP6P7, PyramidBackbone
from .losses import iou_loss
from .targets import Truth, claimed, match_centres
from .towers import conv3x3, normal_001


class RegressionHead(Module):
    """Convolutions, then for each cell its distances from a box's sides and its centre-ness; all levels share them."""

    def __init__(self, conv: Sequential, channels: int) -> None:
        self.conv = conv
        self.bbox_reg = conv3x3(channels, 4, normal_001)
        self.bbox_ctrness = conv3x3(channels, 1, normal_001)

    def forward(self, level: Tensor) -> tuple[Tensor, Tensor]:
        """Distances (n, cells, 4) in strides, not negative, and logits of the centre-ness (n, cells, 1)."""
        x = self.conv(level)
        return rows(F.relu(self.bbox_reg(x)), 4), rows(self.bbox_ctrness(x), 1)


class FCOS(DenseDetector):
    """A dense detector without anchors: each cell says how far a box's sides are from its centre (figure 2).

    torchvision describes the cells as square anchors of one stride around a cell's first corner, and takes a box's
    score to be the root of class probability times centre-ness.

    >>> model = fcos_resnet50_fpn(Categories.with_background(["boat"]))
    >>> model.head.classification_head.cls_logits.weight.shape
    (2, 256, 3, 3)
    """

    score_threshold, nms_threshold = 0.2, 0.6
    radius = 1.5  # strides around an object's middle, whose cells learn it

    def candidates(
        self, outputs: Sequence[np.ndarray], anchors: np.ndarray, score_threshold: float
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        logits, distances, centreness = outputs
        quality = sigmoid(centreness[:, 0])
        row, column, score = best_scores(logits, score_threshold, self.per_level, quality)
        cell = anchors[row]
        centre, stride = (cell[:, :2] + cell[:, 2:]) / 2, cell[:, 2:] - cell[:, :2]
        return box_ops.decode_distances(centre, distances[row] * np.tile(stride, 2)), score, column

    def losses_of(
        self, outputs: Sequence[Tensor], anchors: Sequence[np.ndarray], truths: Sequence[Truth]
    ) -> dict[str, Tensor]:
        """The "class", "box" and "centreness" losses (section 3.1), over the number of cells that belong to objects.

        The focal loss of all cells; of the objects' cells the GIoU loss and the cross entropy of the centre-ness.
        """
        logits, distances, centreness = outputs
        matches = np.stack([match_centres(anchors, truth, self.radius) for truth in truths])
        found = claimed(matches, truths)
        count = max(len(found.anchor), 1)
        cell = np.concatenate(anchors)[found.anchor]
        centre, stride = (cell[:, :2] + cell[:, 2:]) / 2, cell[:, 2:] - cell[:, :2]
        signed = np.concatenate([-stride, stride], 1)
        boxes = Tensor(np.tile(centre, 2)) + distances[found.image, found.anchor] * Tensor(signed)
        sides = box_ops.encode_distances(centre, found.boxes).reshape(-1, 2, 2)  # left, top and right, bottom
        wanted = np.sqrt((sides.min(1) / sides.max(1)).prod(1))
        quality = F.sigmoid_cross_entropy(centreness[found.image, found.anchor, 0], Tensor(wanted), "sum")
        return {
            "class": class_loss(logits, matches, found, np.full(len(truths), 1 / count)),
            "box": iou_loss(boxes, Tensor(found.boxes), "giou", "sum") / count,
            "centreness": quality / count,
        }


def _tower(channels: int, depth: int = 4) -> Sequential:
    """Convolutions with a bias, group norm and ReLU, numbered in one row."""
    parts: list[Module] = []
    for _ in range(depth):
        parts += [conv3x3(channels, channels, normal_001), GroupNorm(32, channels), ReLU()]
    return Sequential(*parts)


def fcos_resnet50_fpn(categories: Categories) -> FCOS:
    """FCOS with a ResNet-50 and a pyramid of strides 8 to 128."""
    body = ResNet(Bottleneck, (3, 4, 6, 3), norm=FrozenBatchNorm2d)
    backbone = PyramidBackbone(body, (1, 2, 3), 256, LastLevelP6P7(256, 256))
    anchors = AnchorGenerator([[8], [16], [32], [64], [128]], (1.0,))
    classification = ClassificationHead(_tower(256), 256, 1, categories.outputs)
    return FCOS(backbone, anchors, DenseHead(classification, RegressionHead(_tower(256), 256)), categories)


MODELS = (
    ModelInfo(
        name="fcos_resnet50_fpn",
        task="detection",
        build=fcos_resnet50_fpn,
        spread=Categories.with_background,
        published=Categories.by_id,
        entries=(coco_entry("fcos_resnet50_fpn_coco-99b0c9b7", 32_269_600, box_ap=39.2),),
        paper="Tian et al. 2019, FCOS: Fully convolutional one-stage object detection",
        gflops=128.207,
        renames=TORCHVISION_RENAMES,
    ),
)
