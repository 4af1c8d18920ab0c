"""FCIS: Li et al. 2017, "Fully convolutional instance-aware semantic segmentation", as ChainerCV has it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple

import cv2
import numpy as np

from ...core import Tensor
from ...core import functions as F
from ...core.layers import Conv2d, MaxPool2d, Module, ReLU
from ...weights import chainer
from ...weights.categories import COCO_80, COCO_80_IDS, VOC_20
from .. import boxes as box_ops
from ..backbones.blocks import initialise
from ..backbones.chainercv_resnet import resnet_rules
from ..backbones.resnet import ResNet
from ..categories import Categories
from ..masks import RoundedMasks
from ..model import ModelInfo, sigmoid, softmax
from ..results import Detections
from .chainercv_rcnn import BYTES, PLANE_RULES, plane_anchors
from .faster_rcnn import FasterRCNN, Objects
from .light_head_rcnn import dilated_resnet101
from .resizing import WidthScaleResize
from .roi import PSRoIAveragePool, Regions, sample_regions
from .rpn import RPNHead, SoftmaxRPN
from .targets import Truth
from .towers import normal_001

BINS, BLOCKS = 21, 7  # along each side of a region
_MOST_PIXELS = 1 << 27  # of masks that a vote keeps at hand
MEAN = (123.15 / 255, 115.90 / 255, 103.06 / 255)


class ScoreMaps(Module):
    """For each of 7x7 blocks of a region the scores of inside and outside for each class, and a box code (figure 2)."""

    def __init__(self, channels: int, outputs: int) -> None:
        self.conv = Conv2d(channels, 1024, 1)
        self.cls_seg = Conv2d(1024, BLOCKS**2 * outputs * 2, 1)
        self.box = Conv2d(1024, BLOCKS**2 * 2 * 4, 1)
        self.relu = ReLU()
        initialise(self, Conv2d, normal_001)

    def forward(self, x: Tensor) -> list[Tensor]:
        x = self.conv.fused(x, None, self.relu)
        return [self.cls_seg(x), self.box(x)]


class ScoreMapBackbone(Module):
    """A backbone's third map for the proposals, and the score maps made of its last for the regions."""

    def __init__(self, body: ResNet, maps: ScoreMaps) -> None:
        self.body, self.maps = body, maps

    def forward(self, x: Tensor) -> list[Tensor]:
        maps = self.body(x)
        return [maps[2], *self.maps(maps[3])]


class Judged(NamedTuple):
    """Of r regions the class logits (r, classes), the logits (r, cells) of the inside against the outside of the class
    of each, and the codes (r, 2, 4) of the boxes of background and object."""

    logits: Tensor
    inside: Tensor
    codes: Tensor


class FCISHeads(Module):
    """What the score maps say about regions; it has no parameters."""

    coder = box_ops.BoxCoder((5.0, 5.0, 2.0, 2.0))

    def __init__(self) -> None:
        self.pool = PSRoIAveragePool(BINS, BLOCKS, 1 / 16)
        self.nms_threshold = 0.3
        self.limit: int | None = 100
        self.least_side = 16.0  # pixels of the network's input
        self.least_overlap = 0.1  # of background that is learned from, with an object

    def forward(self, levels: Sequence[Tensor], boxes: Sequence[np.ndarray], slots: np.ndarray | None = None) -> Judged:
        """What the maps say about the boxes (r_i, 4) of each image; of the most probable classes if there are no
        ``slots`` (r,)."""
        scores, codes = (self.pool(level, boxes) for level in levels)
        count = scores.shape[0]
        pairs = scores.reshape(count, BINS**2, scores.shape[2] // 2, 2)
        outside, inside = pairs[..., 0], pairs[..., 1]
        logits = F.mean(F.maximum(outside, inside), 1)
        chosen = np.arange(count), slice(None), logits.numpy().argmax(1) if slots is None else slots
        return Judged(logits, inside[chosen] - outside[chosen], F.mean(codes, 1).reshape(count, 2, 4))

    def sample(self, proposals: np.ndarray, truth: Truth, rng: np.random.Generator) -> Regions:
        """Regions of an image to learn from; background touches an object."""
        return sample_regions(proposals, truth, 128, rng, self.least_overlap)

    def losses(
        self,
        levels: Sequence[Tensor],
        regions: Sequence[Regions],
        truths: Sequence[Truth],
        image_size: tuple[float, float],
    ) -> dict[str, Tensor]:
        """The losses of class and box on what was sampled from each image."""
        slots = np.concatenate([region.slots for region in regions])
        if not len(slots):
            return {"class": Tensor(np.float32(0)), "box": Tensor(np.float32(0))}
        judged = self(levels, [region.boxes for region in regions], slots)
        wanted = [
            self.coder.encode(region.boxes[: len(region.matched)], truth.boxes[region.matched])
            for region, truth in zip(regions, truths, strict=True)
        ]
        code = judged.codes[np.flatnonzero(slots), 1]
        box = F.smooth_l1_loss(code, Tensor(np.concatenate(wanted)), reduction="sum")
        return {"class": F.softmax_cross_entropy(judged.logits, slots), "box": box / len(slots)}


@dataclass(frozen=True)
class VotedMasks(RoundedMasks):
    """Masks that fill their boxes, of probabilities over 0.4.

    >>> VotedMasks(np.full((1, 21, 21), 0.45), np.array([[1, 2, 4, 8]]), (9, 9)).areas()
    array([18])
    """

    border: ClassVar[int] = 0
    threshold: ClassVar[float] = 0.4


class FCIS(FasterRCNN):
    """Maps of which every region takes its class and its mask at once (section 2.2).

    >>> model = fcis_resnet101(Categories.with_background(["boat"]))
    >>> model.backbone.maps.cls_seg.weight.shape
    (196, 1024, 1, 1)
    """

    roi_heads: FCISHeads  # type: ignore[assignment]
    class_layers = ("backbone.maps.cls_seg.",)
    score_threshold = 1e-3

    def predict_image(self, image: np.ndarray, score_threshold: float | None) -> Detections:
        levels, size, edges, boxes = self.propose(image)
        boxes, logits, inside = self.judge(levels, boxes, edges)
        large = box_ops.at_least(boxes, self.roi_heads.least_side)
        photo = image.shape[:2]
        boxes = box_ops.clip(box_ops.scale(boxes[large], size, photo), photo)
        probabilities, masks = softmax(logits[large]), sigmoid(inside[large]).reshape(-1, BINS, BINS)
        threshold = self.score_threshold if score_threshold is None else score_threshold
        row, slot = np.nonzero(probabilities[:, 1:] >= threshold)
        score = probabilities[row, slot + 1]
        keep = box_ops.batched_nms(boxes[row], score, slot, self.roi_heads.nms_threshold, self.roi_heads.limit)
        crops, places, winners = vote(boxes, masks, probabilities, row[keep], slot[keep] + 1, photo)
        result = self.detections(image, places, score[keep][winners], slot[keep][winners] + 1)
        result.masks = VotedMasks(crops, result.boxes, photo)
        return result

    def instance_losses(
        self, levels: Sequence[Tensor], objects: Sequence[Objects], image_size: tuple[float, float]
    ) -> dict[str, Tensor]:
        """Ten times the cross entropy of the masks of the true classes, in which the background's count as 0.

        Raises ValueError, naming the sample, where there are objects without masks.
        """
        slots = np.concatenate([found.slots for found in objects])
        if not len(slots):
            return {"mask": Tensor(np.float32(0))}
        targets = np.concatenate([mask_targets(found, self.resize.size(found.sample.size)) for found in objects])
        inside = self.roi_heads(levels, [found.boxes for found in objects], slots).inside
        loss = F.sigmoid_cross_entropy(inside, Tensor(targets.reshape(len(slots), -1)))
        return {"mask": loss * (10 * len(slots) / sum(found.regions for found in objects))}

    def judge(
        self, levels: Sequence[Tensor], boxes: np.ndarray, edges: tuple[float, float]
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Boxes (2r, 4), class logits and mask logits of the proposals (r, 4) and of what they are refined to."""
        first = self.roi_heads(levels, [boxes])
        refined = box_ops.clip(self.roi_heads.coder.decode(boxes, first.codes.numpy()[:, 1]), edges)
        second = self.roi_heads(levels, [refined])
        joined = (np.concatenate([a.numpy(), b.numpy()]) for a, b in zip(first[:2], second[:2]))
        return np.concatenate([boxes, refined]), *joined


def mask_targets(objects: Objects, size: tuple[int, int]) -> np.ndarray:
    """The mask of each region's object in its cells (k, 21, 21), 0 or 1, of a photo of ``size`` in the input.

    The mask is resized to the input, cut out at the rounded box, and resized to the cells.
    """
    sample = objects.sample
    if len(objects.rows) and sample.masks is None:
        raise ValueError(f"{sample.source or sample.image_id}: training masks needs masks, got a sample without")
    targets = np.zeros((len(objects.rows), BINS, BINS), np.float32)
    for target, row, (x1, y1, x2, y2) in zip(targets, objects.rows, np.rint(objects.boxes).astype(int)):
        mask = cv2.resize(sample.masks[row].astype(np.float32), (size[1], size[0]))[y1:y2, x1:x2]  # type: ignore[index]
        if mask.size:
            target[...] = cv2.resize(mask, (BINS, BINS)) >= VotedMasks.threshold
    return targets


def vote(
    boxes: np.ndarray,
    masks: np.ndarray,
    probabilities: np.ndarray,
    rows: np.ndarray,
    slots: np.ndarray,
    image_size: tuple[int, int],
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The mask of each winner is the mean of those of all boxes that overlap it by half (section 2.3, "Inference").

    The winners are ``rows`` (k,) of the boxes (r, 4), xyxy in pixels of the photo, of the classes ``slots`` (k,). Each
    box's mask (r, m, m) counts, where its probability reaches 0.4, by the box's probability (r, classes) of that class.
    Returns the masks (n, m, m) and their boxes (n, 4) of those winners (n,) of whose means something reaches 0.4.
    """
    height, width = image_size
    corners = np.rint(boxes).astype(int)

    @lru_cache(max(_MOST_PIXELS // (height * width), 1))
    def pixels(row: int) -> np.ndarray:
        x1, y1, x2, y2 = corners[row]
        return np.asarray(cv2.resize(masks[row], (int(x2 - x1), int(y2 - y1))) >= VotedMasks.threshold)

    crops, places, winners = [], [], []
    filled = box_ops.at_least(corners, 1)
    overlaps = box_ops.iou(boxes[rows], boxes)
    for winner, slot in enumerate(slots):
        voters = np.flatnonzero(overlaps[winner] >= 0.5)
        shares = probabilities[voters, slot] / probabilities[voters, slot].sum()
        left, top = corners[voters, :2].min(0, initial=width + height)
        right, bottom = corners[voters, 2:].max(0, initial=0)
        mean = np.zeros((max(bottom - top, 0), max(right - left, 0)), np.float32)
        for row, share in zip(voters[filled[voters]].tolist(), shares[filled[voters]]):
            x1, y1, x2, y2 = corners[row] - (left, top, left, top)
            mean[y1:y2, x1:x2] += pixels(row) * share
        enough = mean >= VotedMasks.threshold
        y, x = np.flatnonzero(enough.any(1)), np.flatnonzero(enough.any(0))
        if len(y):
            place = x[0], y[0], x[-1] + 1, y[-1] + 1
            crop = cv2.resize(mean[place[1] : place[3], place[0] : place[2]], masks.shape[1:])
            crops.append(np.clip(crop, 0, 1))
            places.append(np.add(place, (left, top, left, top)))
            winners.append(winner)
    shape = (len(winners), *masks.shape[1:])
    return (
        np.reshape(np.array(crops, np.float32), shape),
        np.reshape(np.array(places, np.float32), (-1, 4)),
        np.array(winners, np.int64),
    )


def _fcis(categories: Categories, scales: Sequence[float], smallest: float) -> FCIS:
    body = dilated_resnet101()
    body.maxpool = MaxPool2d(3, 2, ceil_mode=True)
    anchors = plane_anchors(scales)
    rpn = SoftmaxRPN(RPNHead(1024, anchors.per_cell[0], width=512, logits=2), anchors, 6000, 300)
    backbone = ScoreMapBackbone(body, ScoreMaps(2048, categories.outputs))
    model = FCIS(backbone, rpn, FCISHeads(), categories, WidthScaleResize(600, 1000, mean=MEAN, std=BYTES))
    rpn.smallest = model.roi_heads.least_side = smallest
    model.proposal_levels, model.region_levels = slice(0, 1), slice(1, 3)
    model.over_padding = True
    return model


def fcis_resnet101(categories: Categories) -> FCIS:
    """FCIS on ResNet-101, as for SBD: objects of at least 16 pixels."""
    return _fcis(categories, (8, 16, 32), 16)


def fcis_resnet101_coco(categories: Categories) -> FCIS:
    """FCIS on ResNet-101, as for COCO: with smaller anchors, objects of at least 2 pixels."""
    model = _fcis(categories, (4, 8, 16, 32), 2)
    model.roi_heads.least_overlap = 0
    return model


def _swap_codes(array: np.ndarray) -> np.ndarray:
    """The maps of codes, of which each block has its own, from y, x, height, width to x, y, width, height."""
    blocks = array.reshape(-1, 4, BLOCKS**2, *array.shape[1:])
    return np.asarray(blocks[:, [1, 0, 3, 2]].reshape(array.shape))


RULES = [
    (r"^extractor\.", "backbone.body."),
    *resnet_rules(r"^backbone\.body\."),
    (r"^head\.conv1", "backbone.maps.conv"),
    (r"^head\.cls_seg", "backbone.maps.cls_seg"),
    (r"^head\.ag_loc", "backbone.maps.box"),
    *PLANE_RULES,
]


def _info(build: Callable[[Categories], FCIS], gflops: float, *entries: Any) -> ModelInfo:
    swap = (r"rpn\.head\.bbox_pred\.", chainer.swap_axes), (r"backbone\.maps\.box\.", _swap_codes)
    return ModelInfo(
        name=build.__name__,
        task="instance segmentation",
        build=build,
        spread=Categories.with_background,
        entries=entries,
        paper="Li et al. 2017, Fully convolutional instance-aware semantic segmentation",
        gflops=gflops,
        convert=chainer.converter(RULES, *swap),
    )


def _sbd(name: str, file: str, ap50: float, ap70: float) -> Any:
    metrics = {"SBD val": {"mask AP50": ap50, "mask AP70": ap70}}
    return chainer.entry(name, f"fcis_resnet101_sbd_{file}", 51_751_048, metrics, VOC_20)


def _coco(name: str, file: str, **metrics: float) -> Any:
    figures = {"COCO minival2014": {key.replace("_ap", " AP"): value for key, value in metrics.items()}}
    return chainer.entry(name, f"fcis_resnet101_coco_{file}", 57_787_282, figures, COCO_80, COCO_80_IDS)


MODELS = (
    _info(
        fcis_resnet101,
        85.110,
        _sbd("SBD_CONVERTED", "converted_2018_07_02", 64.2, 51.2),
        _sbd("SBD", "trained_2018_06_22", 64.1, 51.2),
    ),
    _info(
        fcis_resnet101_coco,
        93.817,
        _coco("COCO_CONVERTED", "converted_2019_01_30", mask_ap=27.9, mask_ap50=46.3),
        _coco("COCO", "trained_2019_01_30", mask_ap=24.3, mask_ap50=42.6),
    ),
)
