"""Faster R-CNN: Ren et al. 2015, on a feature pyramid (Lin et al. 2017), as torchvision builds and trains it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from ...core import Tensor
from ...core.layers import BatchNorm2d, FrozenBatchNorm2d, Module
from ...core.plan import planned
from ...weights.entry import WeightsEntry
from ...weights.loading import TORCHVISION_RENAMES
from ...weights.torchvision import coco_entry
from .. import boxes as box_ops
from ..backbones.blocks import Norm
from ..backbones.mobilenet_v3 import LARGE, MobileNetV3
from ..backbones.resnet import Bottleneck, ResNet
from ..backbones.stages import Stages
from ..categories import Categories
from ..model import Detector, ModelInfo
from ..results import Detections
from ..sample import Sample
from .anchors import AnchorGenerator
from .fpn import LastLevelMaxPool, PyramidBackbone
from .resizing import ShortSideResize
from .roi import BoxPredictor, RoIHeads, TwoMLPHead, conv_fc_head
from .rpn import RegionProposalNetwork, RPNHead
from .targets import counted, truth_of


class Proposed(NamedTuple):
    """What may be an object in one photo, in pixels of the network's input: ``boxes`` (r, 4), best first.

    ``levels`` are the feature maps that regions are taken from, ``size`` is the photo's (height, width) in the input,
    and ``edges`` are the (height, width) where boxes end.
    """

    levels: list[Tensor]
    size: tuple[float, float]
    edges: tuple[float, float]
    boxes: np.ndarray


class Found(NamedTuple):
    """What was found in one photo, in pixels of the network's input: ``boxes`` (n, 4), ``scores`` (n,), ``slots`` (n,).

    ``levels`` are the feature maps that regions are taken from, ``size`` is the photo's (height, width) in the input.
    """

    levels: list[Tensor]
    size: tuple[float, float]
    boxes: np.ndarray
    scores: np.ndarray
    slots: np.ndarray


class Objects(NamedTuple):
    """The regions of one photo that are learned from as objects.

    They are ``boxes`` (k, 4) in pixels of the network's input, where the photo is ``size`` (height, width); ``rows``
    (k,) are their objects in the ``sample``, and ``slots`` (k,) the outputs of their classes. With those of the
    background the photo has ``regions`` of them.
    """

    sample: Sample
    size: tuple[float, float]
    rows: np.ndarray
    boxes: np.ndarray
    slots: np.ndarray
    regions: int = 0


class FasterRCNN(Detector):
    """A backbone with a pyramid, a region proposal network and a head for each region.

    >>> model = fasterrcnn_resnet50_fpn(Categories.with_background(["boat"]))
    >>> model.roi_heads.box_predictor.cls_score.weight.shape
    (2, 1024)
    """

    class_layers: tuple[str, ...] = ("roi_heads.box_predictor.",)
    proposal_levels, region_levels = slice(None), slice(None, -1)  # the backbone's maps that each is taken from
    over_padding = False  # whether proposals may reach over the photo's edges into the padding

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
        return self.result(image, self.find(image, score_threshold))

    def first_stage(self, x: Tensor) -> tuple[list[Tensor], list[Tensor], list[Tensor], list[np.ndarray]]:
        """The maps for the regions; and, by map for the proposals, their logits, codes and anchors."""
        levels = self.backbone(x)
        maps = levels[self.proposal_levels]
        logits, codes = self.rpn(maps)
        anchors = self.rpn.anchors([level.shape[2:] for level in maps], x.shape[2:])  # type: ignore[arg-type]
        return levels[self.region_levels], logits, codes, anchors

    def propose(self, image: np.ndarray) -> Proposed:
        """What may be an object of a photo."""
        x, size = self.resize(image)
        levels, logits, codes, anchors = planned(self, x, "first_stage")
        edges, scale = x.shape[2:] if self.over_padding else size, size[0] / image.shape[0]
        outputs = [t.numpy()[0] for t in logits], [t.numpy()[0] for t in codes]
        return Proposed(levels, size, edges, self.rpn.propose(*outputs, anchors, edges, scale))

    def find(self, image: np.ndarray, score_threshold: float | None) -> Found:
        """The objects of a photo, still in pixels of the network's input, and the features they were found in."""
        levels, size, _, proposals = self.propose(image)
        if not len(proposals):
            return Found(levels, size, proposals, np.zeros(0, np.float32), np.zeros(0, np.int64))
        scores, deltas = self.roi_heads(levels, [proposals], size)
        threshold = self.score_threshold if score_threshold is None else score_threshold
        boxes, score, slots = self.roi_heads.select(scores.numpy(), deltas.numpy(), proposals, size, threshold)
        known = self.categories.labels_of(slots) >= 0
        return Found(levels, size, boxes[known], score[known], slots[known])

    def result(self, image: np.ndarray, found: Found) -> Detections:
        """The boxes that were found, in pixels of the photo."""
        boxes = box_ops.scale(found.boxes, found.size, image.shape[:2])  # type: ignore[arg-type]
        return self.detections(image, boxes, found.scores, found.slots)

    def losses(self, samples: Sequence[Sample], rng: np.random.Generator) -> dict[str, Tensor]:
        """The losses of the proposals and of the heads of a batch; training minimises their sum.

        ``rng`` chooses the anchors and regions that are learned from.
        """
        x, sizes = self.resize.batch([sample.image for sample in samples])
        boxes = [
            np.zeros((0, 4), np.float32) if sample.boxes is None else box_ops.scale(sample.boxes, sample.size, size)
            for sample, size in zip(samples, sizes)
        ]
        truths = [truth_of(sample, self.categories, box) for sample, box in zip(samples, boxes)]
        levels, logits, codes, anchors = self.first_stage(x)
        photos = [self.resize.size(sample.size) for sample in samples]
        losses = self.rpn.losses(logits, codes, anchors, truths, photos, rng)
        proposals = []
        for i, (sample, size) in enumerate(zip(samples, sizes)):
            outputs = [t.data[i] for t in logits], [t.data[i] for t in codes]
            edges, scale = x.shape[2:] if self.over_padding else size, size[0] / sample.size[0]
            proposals.append(self.rpn.propose(*outputs, anchors, edges, scale, self.rpn.in_training))
        regions = [self.roi_heads.sample(p, t, rng) for p, t in zip(proposals, truths, strict=True)]
        largest = (max(height for height, _ in sizes), max(width for _, width in sizes))
        losses |= self.roi_heads.losses(levels, regions, truths, largest)
        objects = []
        for sample, size, box, r in zip(samples, sizes, boxes, regions):
            k = len(r.matched)
            rows = counted(sample, box)[r.matched]
            objects.append(Objects(sample, size, rows, r.boxes[:k], r.slots[:k], len(r.boxes)))
        return losses | self.instance_losses(levels, objects, largest)

    def instance_losses(
        self, levels: Sequence[Tensor], objects: Sequence[Objects], image_size: tuple[float, float]
    ) -> dict[str, Tensor]:
        """The losses of what a subclass finds in each region beside its class and box: here nothing."""
        return {}


PYRAMID_SIZES = [[32], [64], [128], [256], [512]]
RATIOS = (0.5, 1.0, 2.0)
published_norm = partial(FrozenBatchNorm2d, eps=0.0)  # of the first ResNet-50 weights: they were trained with this eps


def resnet50_pyramid(norm: Norm, pyramid_norm: Norm | None = None) -> PyramidBackbone:
    """ResNet-50 and a pyramid of strides 4 to 64, 256 channels wide."""
    body = ResNet(Bottleneck, (3, 4, 6, 3), norm=norm)
    return PyramidBackbone(body, (0, 1, 2, 3), 256, LastLevelMaxPool(), pyramid_norm)


def pyramid_rpn(depth: int = 1) -> RegionProposalNetwork:
    """The proposals of `resnet50_pyramid`: one size of anchors for each level, ``depth`` convolutions."""
    anchors = AnchorGenerator(PYRAMID_SIZES, RATIOS)
    return RegionProposalNetwork(RPNHead(256, anchors.per_cell[0], depth), anchors)


def fasterrcnn_resnet50_fpn(categories: Categories) -> FasterRCNN:
    """Faster R-CNN with a ResNet-50 and a pyramid of strides 4 to 64."""
    heads = RoIHeads(TwoMLPHead(256 * 7 * 7), BoxPredictor(1024, categories.outputs))
    return FasterRCNN(resnet50_pyramid(published_norm), pyramid_rpn(), heads, categories)


def fasterrcnn_resnet50_fpn_v2(categories: Categories) -> FasterRCNN:
    """The same with norms and more convolutions in its heads (Li et al. 2021, "Benchmarking detection transfer")."""
    heads = RoIHeads(conv_fc_head(256), BoxPredictor(1024, categories.outputs))
    return FasterRCNN(resnet50_pyramid(BatchNorm2d, BatchNorm2d), pyramid_rpn(2), heads, categories)


def _mobilenet(categories: Categories, per_level: int, total: int, resize: ShortSideResize) -> FasterRCNN:
    """Faster R-CNN on two maps of MobileNetV3-Large, both of stride 32, with anchors of all sizes on each."""
    body = MobileNetV3(LARGE, FrozenBatchNorm2d, at=(13, 16))
    stages = Stages(body.features, body.at, body.channels)
    anchors = AnchorGenerator([[32, 64, 128, 256, 512]] * 3, RATIOS)
    rpn = RegionProposalNetwork(RPNHead(256, anchors.per_cell[0]), anchors, per_level, total, score_threshold=0.05)
    heads = RoIHeads(TwoMLPHead(256 * 7 * 7), BoxPredictor(1024, categories.outputs))
    return FasterRCNN(PyramidBackbone(stages, (0, 1), 256, LastLevelMaxPool()), rpn, heads, categories, resize)


def fasterrcnn_mobilenet_v3_large_fpn(categories: Categories) -> FasterRCNN:
    """Faster R-CNN on MobileNetV3-Large, 800 pixels."""
    return _mobilenet(categories, 1000, 1000, ShortSideResize())


def fasterrcnn_mobilenet_v3_large_320_fpn(categories: Categories) -> FasterRCNN:
    """Faster R-CNN on MobileNetV3-Large, 320 pixels and 150 proposals: for phones."""
    return _mobilenet(categories, 150, 150, ShortSideResize(320, 640))


def _info(build: Callable[[Categories], FasterRCNN], entry: WeightsEntry, gflops: float, paper: str) -> ModelInfo:
    return ModelInfo(
        name=build.__name__,
        task="detection",
        build=build,
        spread=Categories.with_background,
        published=Categories.by_id,
        entries=(entry,),
        paper="Ren et al. 2015, Faster R-CNN; " + paper,
        gflops=gflops,
        renames=TORCHVISION_RENAMES,
    )


PYRAMIDS, MOBILE = "Lin et al. 2017, Feature pyramid networks", "Howard et al. 2019, Searching for MobileNetV3"
MODELS = (
    _info(
        fasterrcnn_resnet50_fpn,
        coco_entry("fasterrcnn_resnet50_fpn_coco-258fb6c6", 41_755_286, box_ap=37.0),
        134.38,
        PYRAMIDS,
    ),
    _info(
        fasterrcnn_resnet50_fpn_v2,
        coco_entry("fasterrcnn_resnet50_fpn_v2_coco-dd69338a", 43_712_278, box_ap=46.7),
        280.371,
        "Li et al. 2021, Benchmarking detection transfer learning with vision transformers",
    ),
    _info(
        fasterrcnn_mobilenet_v3_large_fpn,
        coco_entry("fasterrcnn_mobilenet_v3_large_fpn-fb6a3cc7", 19_386_354, box_ap=32.8),
        4.494,
        MOBILE,
    ),
    _info(
        fasterrcnn_mobilenet_v3_large_320_fpn,
        coco_entry("fasterrcnn_mobilenet_v3_large_320_fpn-907ea3f9", 19_386_354, box_ap=22.8),
        0.719,
        MOBILE,
    ),
)
