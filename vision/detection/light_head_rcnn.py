"""Light-Head R-CNN: Li et al. 2017, "Light-head R-CNN: in defense of two-stage object detector", as in ChainerCV."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...core import Tensor
from ...core import functions as F
from ...core.layers import Conv2d, Flatten, FrozenBatchNorm2d, Linear, Module, ReLU, Sequential, init
from ...weights import chainer
from ...weights.categories import COCO_80, COCO_80_IDS
from ..backbones.blocks import initialise
from ..backbones.chainercv_resnet import DEPTHS_101, resnet_rules, stride_first
from ..backbones.resnet import Bottleneck, ResNet
from ..categories import Categories
from ..model import ModelInfo
from .chainercv_rcnn import (
    BYTES,
    CAFFE_MEAN,
    PLANE_RULES,
    plane_anchors,
    with_settings,
)
from .faster_rcnn import FasterRCNN
from .resizing import WidthScaleResize
from .roi import BoxPredictor, PSRoIMaxAlign, Regions, RoIHeads
from .rpn import RPNHead, SoftmaxRPN, top_indices
from .targets import Truth
from .towers import normal_001


def dilated_resnet101() -> ResNet:
    """ResNet-101 whose last stage keeps the size and has dilation 2 instead, its norms frozen.

    >>> dilated_resnet101().layer4[0].conv2.spec.dilation
    (2, 2)
    """
    body = stride_first(ResNet(Bottleneck, DEPTHS_101, FrozenBatchNorm2d, (1, 1, 1, 2)))
    body.bn1.eps = 2e-5
    body.layer4[0].conv2.spec = body.layer4[1].conv2.spec  # type: ignore[attr-defined]
    return body


class LargeSeparableConv(Module):
    """k x k cells seen by a column and then a row, and by a row and then a column; their sum (figure 3).

    >>> import numpy as np
    >>> LargeSeparableConv(8, 4, 6)(Tensor(np.zeros((1, 8, 5, 5), np.float32))).shape
    (1, 6, 5, 5)
    """

    def __init__(self, in_channels: int, width: int, out_channels: int, kernel: int = 15) -> None:
        column, row, pad = (kernel, 1), (1, kernel), kernel // 2
        self.column_first = Conv2d(in_channels, width, column, padding=(pad, 0))
        self.row_second = Conv2d(width, out_channels, row, padding=(0, pad))
        self.row_first = Conv2d(in_channels, width, row, padding=(0, pad))
        self.column_second = Conv2d(width, out_channels, column, padding=(pad, 0))
        self.relu = ReLU()
        initialise(self, Conv2d, normal_001)

    def forward(self, x: Tensor) -> Tensor:
        y = self.row_second(self.column_first(x))
        return self.column_second.fused(self.row_first(x), None, self.relu, y)


class ThinMapBackbone(Module):
    """A backbone's third map for the proposals, and a thin map made of its last for the regions (section 3.2)."""

    def __init__(self, body: ResNet, thin: LargeSeparableConv) -> None:
        self.body, self.thin = body, thin

    def forward(self, x: Tensor) -> list[Tensor]:
        maps = self.body(x)
        return [maps[2], self.thin(maps[3])]


class HardestRoIHeads(RoIHeads):
    """Heads that learn from the 256 regions of an image with the greatest losses (Shrivastava et al. 2016, OHEM).

    The boxes' loss counts twice (section 4.1).
    """

    samples = None
    hardest = 256

    def losses(
        self,
        levels: Sequence[Tensor],
        regions: Sequence[Regions],
        truths: Sequence[Truth],
        image_size: tuple[float, float],
    ) -> dict[str, Tensor]:
        slots = np.concatenate([region.slots for region in regions])
        if not len(slots):
            return super().losses(levels, regions, truths, image_size)
        classes, boxes = self.each_loss(levels, regions, truths, image_size)
        rows, of_box = np.flatnonzero(slots), F.sum(boxes, 1)
        surprise = classes.numpy().copy()
        surprise[rows] += of_box.numpy()
        chosen = top_indices(surprise, self.hardest * len(regions))
        learned = np.flatnonzero(np.isin(rows, chosen))
        return {"class": F.mean(classes[chosen]), "box": F.sum(of_box[learned]) * 2 / len(chosen)}


def light_head_rcnn_resnet101(categories: Categories) -> FasterRCNN:
    """Light-Head R-CNN on ResNet-101: ten thin maps for each of 7x7 bins, and one wide layer for each region."""
    backbone = ThinMapBackbone(dilated_resnet101(), LargeSeparableConv(2048, 256, 10 * 7 * 7))
    anchors = plane_anchors((2, 4, 8, 16, 32))
    rpn = SoftmaxRPN(RPNHead(1024, anchors.per_cell[0], width=512, logits=2), anchors, 6000, 1000)
    rpn.smallest = 0
    fc = Linear(10 * 7 * 7, 2048)
    fc.weight.data = normal_001(fc.weight.shape)
    fc.bias.data = init.constant(fc.bias.shape, 0)  # type: ignore[union-attr]
    predictor = BoxPredictor(2048, categories.outputs)
    heads = HardestRoIHeads(Sequential(Flatten(), fc, ReLU()), predictor, PSRoIMaxAlign(7, 1 / 16))
    model = FasterRCNN(backbone, rpn, heads, categories, WidthScaleResize(800, 1333, mean=CAFFE_MEAN, std=BYTES))
    model.score_threshold = 0.001
    model.proposal_levels, model.region_levels = slice(0, 1), slice(1, 2)
    return with_settings(model)


RULES = [
    (r"^extractor\.", "backbone.body."),
    *resnet_rules(r"^backbone\.body\."),
    (r"^head\.global_context_module\.col_max", "backbone.thin.column_first"),
    (r"^head\.global_context_module\.col\.", "backbone.thin.row_second."),
    (r"^head\.global_context_module\.row_max", "backbone.thin.row_first"),
    (r"^head\.global_context_module\.row\.", "backbone.thin.column_second."),
    (r"^head\.fc1", "roi_heads.box_head.1"),
    *PLANE_RULES,
]

MODELS = (
    ModelInfo(
        name="light_head_rcnn_resnet101",
        task="detection",
        build=light_head_rcnn_resnet101,
        spread=Categories.with_background,
        entries=(
            chainer.entry(
                "COCO",
                "light_head_rcnn_resnet101_trained_2019_06_13",
                68_488_835,
                {"COCO minival2014": {"box AP": 39.3}},
                COCO_80,
                COCO_80_IDS,
            ),
        ),
        paper="Li et al. 2017, Light-head R-CNN: in defense of two-stage object detector",
        gflops=187.023,
        convert=chainer.converter(RULES, (r".*bbox_pred\.", chainer.swap_axes)),
    ),
)
