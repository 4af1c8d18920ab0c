"""Faster R-CNN (Ren et al. 2015) and Mask R-CNN (He et al. 2017) as ChainerCV builds and trains them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import cv2
import numpy as np

from ...core.layers import Conv2d, FrozenBatchNorm2d, MaxPool2d
from ...weights import chainer
from ...weights.categories import COCO_80, COCO_80_IDS
from ...weights.entry import WeightsEntry
from ..backbones.blocks import Norm
from ..backbones.chainercv_resnet import DEPTHS_50, DEPTHS_101, resnet_rules, stride_first
from ..backbones.resnet import Bottleneck, ResNet
from ..backbones.vgg import VGG, D
from ..categories import Categories
from ..masks import RoundedMasks
from ..model import ModelInfo
from .anchors import CellAnchors
from .faster_rcnn import RATIOS, FasterRCNN, Objects
from .fpn import LastLevelMaxPool, PyramidBackbone
from .mask_rcnn import MaskHeads, MaskPredictor, MaskRCNN, need_masks
from .resizing import OneScaleResize, WidthScaleResize
from .roi import BoxPredictor, RoIHeads, RoIMaxPool, TwoMLPHead
from .rpn import RegionProposalNetwork, RPNHead, SoftmaxRPN
from .towers import tower

STRIDES = (4, 8, 16, 32, 64)
IMAGENET_MEAN = (123.15163084 / 255, 115.90288257 / 255, 103.0626238 / 255)
CAFFE_MEAN = (122.7717 / 255, 115.9465 / 255, 102.9801 / 255)
BYTES = (1 / 255,) * 3  # the scale of pixels that are not divided by anything


def _pyramid(depths: Sequence[int]) -> PyramidBackbone:
    norm: Norm = partial(FrozenBatchNorm2d, eps=2e-5)
    body = stride_first(ResNet(Bottleneck, depths, norm))
    if depths == DEPTHS_50:
        body.conv1 = Conv2d(3, 64, 7, 2, 3)  # with a bias, as in the original ResNet-50
    return PyramidBackbone(body, (0, 1, 2, 3), 256, LastLevelMaxPool())


def pyramid_anchors() -> CellAnchors:
    """One size on each level, around the centres of the cells; sides in whole cells before they are enlarged.

    >>> pyramid_anchors().cells[0]
    array([[-22., -10.,  26.,  14.],
           [-14., -14.,  18.,  18.],
           [-10., -22.,  14.,  26.]], dtype=float32)
    """
    cells = []
    for stride in STRIDES:
        width = np.round(stride / np.sqrt(RATIOS))
        sides = np.stack([width, np.round(width * RATIOS)], 1) * 8
        cells.append(np.concatenate([stride / 2 - sides / 2, stride / 2 + sides / 2], 1).astype(np.float32))
    return CellAnchors(cells, STRIDES)


def _rpn() -> RegionProposalNetwork:
    anchors = pyramid_anchors()
    rpn = RegionProposalNetwork(RPNHead(256, anchors.per_cell[0]), anchors)
    rpn.edge_margin, rpn.object_share = 1, 0.25
    return rpn


def whole_mask_targets(objects: Objects, cells: int) -> np.ndarray:
    """What the mask of each region should be, as ChainerCV has it: 1 in the cells that lie in the object as a whole.

    The region, enlarged by a cell on each side and rounded to pixels of the network's input, is cut out of the object's
    mask there (resized by nearest neighbour) and resized to the cells; the result is (k, cells, cells), 0 or 1.
    """
    need_masks(objects)
    sample, count = objects.sample, cells + 2
    targets = np.zeros((len(objects.rows), cells, cells), np.float32)
    nearest = [
        np.minimum((np.arange(n) * (pixels / n)).astype(np.int64), pixels - 1)
        for n, pixels in zip(objects.size, sample.size)
    ]
    low, high = objects.boxes[:, :2].astype(np.float64), objects.boxes[:, 2:]
    reach = (high - low) / 2 * (count / cells)
    corners = np.round([(low + high) / 2 - reach, (low + high) / 2 + reach]).astype(np.int64)
    for target, row, (left, top), (right, bottom) in zip(targets, objects.rows, *corners):
        cut = np.zeros((bottom - top, right - left), np.float32)
        rows, columns = (n[max(at, 0) : max(end, 0)] for n, at, end in zip(nearest, (top, left), (bottom, right)))
        if len(rows) and len(columns):
            inner = sample.masks[row][np.ix_(rows, columns)]  # type: ignore[index]
            cut[max(-top, 0) :, max(-left, 0) :][: len(rows), : len(columns)] = inner
            target[...] = np.floor(cv2.resize(cut, (count, count)))[1:-1, 1:-1]
    return targets


def with_settings(model: FasterRCNN) -> FasterRCNN:
    """The model with what all of ChainerCV's share: proposals reach into the padding, all that is found is returned.

    That includes boxes of which nothing is left within the photo.
    """
    model.over_padding = True
    model.roi_heads.limit, model.roi_heads.least_side, model.roi_heads.beta = None, 0, 1.0
    return model


def _faster_rcnn(depths: Sequence[int], categories: Categories) -> FasterRCNN:
    heads = RoIHeads(TwoMLPHead(256 * 7 * 7), BoxPredictor(1024, categories.outputs))
    resize = OneScaleResize(mean=IMAGENET_MEAN, std=BYTES)
    return with_settings(FasterRCNN(_pyramid(depths), _rpn(), heads, categories, resize))


def _mask_rcnn(depths: Sequence[int], categories: Categories) -> FasterRCNN:
    box, mask = BoxPredictor(1024, categories.outputs), MaskPredictor(256, categories.outputs)
    heads = MaskHeads(TwoMLPHead(256 * 7 * 7), box, tower(256, 4), mask)
    model = MaskRCNN(_pyramid(depths), _rpn(), heads, categories, OneScaleResize(mean=IMAGENET_MEAN, std=BYTES))
    model.instance_masks, model.targets_of = RoundedMasks, whole_mask_targets
    return with_settings(model)


def faster_rcnn_fpn_resnet50(categories: Categories) -> FasterRCNN:
    """ChainerCV's Faster R-CNN with a ResNet-50 and a pyramid of strides 4 to 64."""
    return _faster_rcnn(DEPTHS_50, categories)


def faster_rcnn_fpn_resnet101(categories: Categories) -> FasterRCNN:
    """ChainerCV's Faster R-CNN with a ResNet-101 and a pyramid of strides 4 to 64."""
    return _faster_rcnn(DEPTHS_101, categories)


def mask_rcnn_fpn_resnet50(categories: Categories) -> FasterRCNN:
    """ChainerCV's Mask R-CNN with a ResNet-50 and a pyramid of strides 4 to 64."""
    return _mask_rcnn(DEPTHS_50, categories)


def mask_rcnn_fpn_resnet101(categories: Categories) -> FasterRCNN:
    """ChainerCV's Mask R-CNN with a ResNet-101 and a pyramid of strides 4 to 64."""
    return _mask_rcnn(DEPTHS_101, categories)


def plane_anchors(scales: Sequence[float]) -> CellAnchors:
    """Of every ratio the sizes 16 times ``scales`` around the centres of cells of 16 pixels.

    >>> plane_anchors((8,)).cells[0][1]
    array([-56., -56.,  72.,  72.], dtype=float32)
    """
    ratio = np.repeat(RATIOS, len(scales))
    side = np.tile(np.asarray(scales) * 16, len(RATIOS))
    half = np.stack([side / np.sqrt(ratio), side * np.sqrt(ratio)], 1) / 2
    return CellAnchors([np.concatenate([8 - half, 8 + half], 1).astype(np.float32)], (16,))


def faster_rcnn_vgg16(categories: Categories) -> FasterRCNN:
    """Faster R-CNN on the last convolution of VGG-16, as in the original."""
    body = VGG(D)
    for _, module in body.named_modules():
        if isinstance(module, MaxPool2d):
            module.ceil_mode = True
    anchors = plane_anchors((8, 16, 32))
    rpn = SoftmaxRPN(RPNHead(512, anchors.per_cell[0], logits=2), anchors, 6000, 300)
    predictor = BoxPredictor(4096, categories.outputs)
    heads = RoIHeads(TwoMLPHead(512 * 7 * 7, 4096), predictor, RoIMaxPool(7, 1 / 16))
    heads.nms_threshold, heads.samples = 0.3, 128
    model = FasterRCNN(body, rpn, heads, categories, WidthScaleResize(600, 1000, mean=CAFFE_MEAN, std=BYTES))
    model.proposal_levels = model.region_levels = slice(-1, None)
    return with_settings(model)


PYRAMID_RULES = [
    (r"^extractor\.base\.", "backbone.body."),
    *resnet_rules(r"^backbone\.body\."),
    (r"^extractor\.inner\.(\d)", r"backbone.fpn.inner_blocks.\1.0"),
    (r"^extractor\.outer\.(\d)", r"backbone.fpn.layer_blocks.\1.0"),
    (r"^rpn\.conv\.", "rpn.head.conv.0.0."),
    (r"^rpn\.conf", "rpn.head.cls_logits"),
    (r"^rpn\.loc", "rpn.head.bbox_pred"),
    (r"^bbox_head\.fc1", "roi_heads.box_head.fc6"),
    (r"^bbox_head\.fc2", "roi_heads.box_head.fc7"),
    (r"^bbox_head\.conf", "roi_heads.box_predictor.cls_score"),
    (r"^bbox_head\.loc", "roi_heads.box_predictor.bbox_pred"),
    (r"^mask_head\.conv5", "roi_heads.mask_predictor.conv5_mask"),
    (r"^mask_head\.seg", "roi_heads.mask_predictor.mask_fcn_logits"),
    *((rf"^mask_head\.conv{k + 1}\.conv", f"roi_heads.mask_head.{k}.0") for k in range(4)),
]


def _vgg16_rules() -> list[tuple[str, str]]:
    convs = [
        (stage + 1, i + 1, 2 * (sum(D[:stage]) + i) + stage) for stage, depth in enumerate(D) for i in range(depth)
    ]
    return [(rf"^extractor\.conv{s}_{i}\.conv", f"backbone.features.{at}") for s, i, at in convs]


PLANE_RULES = [
    (r"^rpn\.conv1", "rpn.head.conv.0.0"),
    (r"^rpn\.score", "rpn.head.cls_logits"),
    (r"^rpn\.loc", "rpn.head.bbox_pred"),
    (r"^head\.(fc6|fc7)", r"roi_heads.box_head.\1"),
    (r"^head\.score", "roi_heads.box_predictor.cls_score"),
    (r"^head\.cls_loc", "roi_heads.box_predictor.bbox_pred"),
]


def _info(build: Callable[[Categories], FasterRCNN], parameters: int, gflops: float, **metrics: float) -> ModelInfo:
    """The row of a model with a pyramid; ``metrics`` as ``box_ap=37.1``."""
    figures = {"COCO val2017": {key.replace("_ap", " AP"): value for key, value in metrics.items()}}
    file = f"{build.__name__}_coco_trained_2019_03_15"
    masks = "mask_ap" in metrics
    return ModelInfo(
        name=build.__name__,
        task="instance segmentation" if masks else "detection",
        build=build,
        spread=Categories.with_background,
        entries=(chainer.entry("COCO", file, parameters, figures, COCO_80, COCO_80_IDS),),
        paper=f"{'He et al. 2017, Mask R-CNN' if masks else 'Ren et al. 2015, Faster R-CNN'}; "
        "Lin et al. 2017, Feature pyramid networks",
        gflops=gflops,
        convert=chainer.converter(PYRAMID_RULES, (r".*bbox_pred\.", chainer.swap_axes)),
    )


def _vgg16_entry(name: str, file: str, figure: float) -> WeightsEntry:
    return chainer.entry(name, f"faster_rcnn_vgg16_{file}", 137_078_239, {"VOC2007 test": {"AP50": figure}})


MODELS = (
    ModelInfo(
        name="faster_rcnn_vgg16",
        task="detection",
        build=faster_rcnn_vgg16,
        spread=Categories.with_background,
        entries=(
            _vgg16_entry("VOC0712", "voc0712_trained_2017_07_21", 74.7),
            _vgg16_entry("VOC07", "voc07_trained_2018_06_01", 70.6),
        ),
        paper="Ren et al. 2015, Faster R-CNN; Girshick 2015, Fast R-CNN",
        gflops=149.812,
        convert=chainer.converter([*_vgg16_rules(), *PLANE_RULES], (r".*bbox_pred\.", chainer.swap_axes)),
    ),
    _info(faster_rcnn_fpn_resnet50, 41_704_100, 131.379, box_ap=37.1),
    _info(faster_rcnn_fpn_resnet101, 60_643_940, 178.729, box_ap=39.5),
    _info(mask_rcnn_fpn_resnet50, 44_347_637, 131.379, box_ap=38.0, mask_ap=34.2),
    _info(mask_rcnn_fpn_resnet101, 63_287_477, 178.729, box_ap=40.4, mask_ap=36.0),
)
