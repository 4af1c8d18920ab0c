"""Faster R-CNN: Ren et al. 2015, on a feature pyramid (Lin et al. 2017), as torchvision builds and trains it."""

from __future__ import annotations

from functools import partial

import numpy as np

from ...core.layers import FrozenBatchNorm2d, Module
from ...weights.loading import TORCHVISION_RENAMES
from ...weights.torchvision import coco_entry
from .. import boxes as box_ops
from ..backbones.resnet import Bottleneck, ResNet
from ..categories import Categories
from ..model import Detector, ModelInfo
from ..results import Detections
from .anchors import AnchorGenerator
from .fpn import LastLevelMaxPool, PyramidBackbone
from .resizing import ShortSideResize
from .roi import BoxPredictor, RoIHeads, TwoMLPHead
from .rpn import RegionProposalNetwork, RPNHead


class FasterRCNN(Detector):
    """A backbone with a pyramid, a region proposal network and a head for each region.

    >>> model = fasterrcnn_resnet50_fpn(Categories.with_background(["boat"]))
    >>> model.roi_heads.box_predictor.cls_score.weight.shape
    (2, 1024)
    """

    class_layers = ("roi_heads.box_predictor.",)

    def __init__(
        self,
        backbone: Module,
        rpn: RegionProposalNetwork,
        roi_heads: RoIHeads,
        categories: Categories,
        resize: ShortSideResize = ShortSideResize(),  # noqa: B008  frozen
    ) -> None:
        self.backbone, self.rpn, self.roi_heads = backbone, rpn, roi_heads
        self.categories, self.resize = categories, resize

    def predict_image(self, image: np.ndarray, score_threshold: float | None) -> Detections:
        x, size = self.resize(image)
        levels = self.backbone(x)
        logits, codes = self.rpn(levels)
        anchors = self.rpn.anchors([level.shape[2:] for level in levels], x.shape[2:])  # type: ignore[misc, arg-type]
        proposals = self.rpn.propose([t.numpy()[0] for t in logits], [t.numpy()[0] for t in codes], anchors, size)
        scores, deltas = self.roi_heads(levels[:-1], [proposals], size)
        threshold = self.score_threshold if score_threshold is None else score_threshold
        boxes, score, slots = self.roi_heads.select(scores.numpy(), deltas.numpy(), proposals, size, threshold)
        boxes = box_ops.scale(boxes, size, image.shape[:2])  # type: ignore[arg-type]
        return self.detections(image, boxes, score, slots)


PYRAMID_SIZES = [[32], [64], [128], [256], [512]]


def fasterrcnn_resnet50_fpn(categories: Categories) -> FasterRCNN:
    """Faster R-CNN with a ResNet-50 and a pyramid of strides 4 to 64; the published weights have batch norms of eps 0."""
    body = ResNet(Bottleneck, (3, 4, 6, 3), norm=partial(FrozenBatchNorm2d, eps=0.0))
    backbone = PyramidBackbone(body, (0, 1, 2, 3), 256, LastLevelMaxPool())
    anchors = AnchorGenerator(PYRAMID_SIZES, (0.5, 1.0, 2.0))
    rpn = RegionProposalNetwork(RPNHead(256, anchors.per_cell[0]), anchors)
    heads = RoIHeads(TwoMLPHead(256 * 7 * 7), BoxPredictor(1024, categories.outputs))
    return FasterRCNN(backbone, rpn, heads, categories)


MODELS = (
    ModelInfo(
        name="fasterrcnn_resnet50_fpn",
        task="detection",
        build=fasterrcnn_resnet50_fpn,
        spread=Categories.with_background,
        published=Categories.by_id,
        entries=(coco_entry("fasterrcnn_resnet50_fpn_coco-258fb6c6", 41_755_286, box_ap=37.0),),
        paper="Ren et al. 2015, Faster R-CNN; Lin et al. 2017, Feature pyramid networks",
        gflops=134.38,
        renames=TORCHVISION_RENAMES,
    ),
)
