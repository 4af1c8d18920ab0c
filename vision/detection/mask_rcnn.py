"""Mask R-CNN: He et al. 2017, "Mask R-CNN", on a feature pyramid."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from ...core import Tensor
from ...core import functions as F
from ...core.layers import BatchNorm2d, Conv2d, ConvTranspose2d, Module, ReLU, Sequential, init
from ...weights.entry import WeightsEntry
from ...weights.loading import TORCHVISION_RENAMES
from ...weights.torchvision import coco_entry
from ..categories import Categories
from ..masks import InstanceMasks
from ..model import ModelInfo, sigmoid
from ..results import Detections
from .faster_rcnn import FasterRCNN, Objects, published_norm, pyramid_rpn, resnet50_pyramid
from .roi import BoxPredictor, MultiScaleRoIAlign, RoIHeads, TwoMLPHead, conv_fc_head, no_loss
from .towers import tower


class MaskPredictor(Module):
    """Twice the size by a transposed convolution, then a logit for each class in each cell (figure 4, right)."""

    def __init__(self, channels: int, classes: int) -> None:
        self.conv5_mask = ConvTranspose2d(channels, channels, 2, stride=2)
        self.relu = ReLU()
        self.mask_fcn_logits = Conv2d(channels, classes, 1)
        for layer in (self.conv5_mask, self.mask_fcn_logits):
            layer.weight.data = init.he_normal(layer.weight.shape)

    def forward(self, x: Tensor) -> Tensor:
        return self.mask_fcn_logits(self.relu(self.conv5_mask(x)))  # type: ignore[no-any-return]


class MaskHeads(RoIHeads):
    """Classes and refined boxes of proposals, and masks of the boxes."""

    def __init__(
        self, box_head: Module, box_predictor: BoxPredictor, mask_head: Sequential, predictor: MaskPredictor
    ) -> None:
        super().__init__(box_head, box_predictor)
        self.mask_roi_pool = MultiScaleRoIAlign(14)
        self.mask_head = mask_head
        self.mask_predictor = predictor

    def masks(self, levels: Sequence[Tensor], boxes: Sequence[np.ndarray], image_size: tuple[float, float]) -> Tensor:
        """Mask logits (r, classes, 28, 28) of the boxes (r_i, 4) of each image, in pixels of the network's input."""
        return self.mask_predictor(self.mask_head(self.mask_roi_pool(levels, boxes, image_size)))  # type: ignore[no-any-return]


def need_masks(objects: Objects) -> None:
    """Raise ValueError, naming the sample, where there are objects without masks."""
    sample = objects.sample
    if len(objects.rows) and sample.masks is None:
        raise ValueError(f"{sample.source or sample.image_id}: training masks needs masks, got a sample without")


def mask_targets(objects: Objects, cells: int) -> np.ndarray:
    """What the mask of each region should be: the share of its object in each cell (k, cells, cells).

    That is RoIAlign of the object's mask, resized to the network's input by nearest neighbour, as in torchvision. Both
    are linear along each axis, so only the part of the original mask that lies in a region is read.
    """
    sample = objects.sample
    need_masks(objects)
    targets = np.zeros((len(objects.rows), cells, cells), np.float32)
    for target, row, (x0, y0, x1, y1) in zip(targets, objects.rows, objects.boxes):
        top, down = _line(y0, y1, cells, objects.size[0], sample.size[0])
        left, right = _line(x0, x1, cells, objects.size[1], sample.size[1])
        inside = sample.masks[row, top : top + down.shape[1], left : left + right.shape[1]]  # type: ignore[index]
        target[...] = down @ inside.astype(np.float32) @ right.T
    return targets


def _line(start: np.float32, end: np.float32, cells: int, size: int, pixels: int) -> tuple[int, np.ndarray]:
    """RoIAlign from start to end along one axis of the network's input, whose ``size`` stands for ``pixels``.

    Returns the first of the pixels that count, and their weights (cells, count) in each cell.
    """
    extent = max(end - start, np.float32(1))
    samples = int(np.ceil(extent / np.float32(cells)))
    step = (np.arange(samples, dtype=np.float32) + np.float32(0.5)) / np.float32(samples)
    place = start + (np.arange(cells, dtype=np.float32)[:, None] + step).ravel() * (extent / np.float32(cells))
    within = (place >= -1) & (place <= size)
    place = np.clip(place, 0, size - 1)
    low = place.astype(np.int64)
    upper = place - low.astype(np.float32)
    nearest = np.arange(size, dtype=np.float32) * np.float32(pixels / size)
    near = np.minimum(nearest.astype(np.int64), pixels - 1)
    first, second = near[low], near[np.minimum(low + 1, size - 1)]
    weights = np.zeros((cells, second[-1] - first[0] + 1), np.float32)
    cell = np.repeat(np.arange(cells), samples)
    np.add.at(weights, (cell, first - first[0]), within * (1 - upper) / np.float32(samples))
    np.add.at(weights, (cell, second - first[0]), within * upper / np.float32(samples))
    return int(first[0]), weights


class MaskRCNN(FasterRCNN):
    """Faster R-CNN that draws a mask of 28x28 cells in each box it found (section 3).

    >>> model = maskrcnn_resnet50_fpn(Categories.with_background(["boat"]))
    >>> model.roi_heads.mask_predictor.mask_fcn_logits.weight.shape
    (2, 256, 1, 1)
    """

    roi_heads: MaskHeads
    instance_masks: type[InstanceMasks] = InstanceMasks  # how they are pasted
    targets_of: Callable[[Objects, int], np.ndarray] = staticmethod(mask_targets)  # what masks should be in training
    class_layers: tuple[str, ...] = ("roi_heads.box_predictor.", "roi_heads.mask_predictor.mask_fcn_logits.")

    def predict_image(self, image: np.ndarray, score_threshold: float | None) -> Detections:
        found = self.find(image, score_threshold)
        result = self.result(image, found)
        if len(result):
            logits = self.roi_heads.masks(found.levels, [found.boxes], found.size).numpy()
            crops = sigmoid(logits[np.arange(len(result)), found.slots])
        else:
            crops = np.zeros((0, 28, 28), np.float32)
        return replace(result, masks=self.instance_masks(crops, result.boxes, result.image_size))

    def instance_losses(
        self, levels: Sequence[Tensor], objects: Sequence[Objects], image_size: tuple[float, float]
    ) -> dict[str, Tensor]:
        """The cross entropy of the masks of the true classes (section 3).

        Raises ValueError, naming the sample, where there are objects without masks.
        """
        slots = np.concatenate([found.slots for found in objects])
        targets = np.concatenate([self.targets_of(found, 28) for found in objects])
        if not len(slots):
            return {"mask": no_loss(self.roi_heads.mask_head) + no_loss(self.roi_heads.mask_predictor)}
        logits = self.roi_heads.masks(levels, [found.boxes for found in objects], image_size)
        return {"mask": F.sigmoid_cross_entropy(logits[np.arange(len(slots)), slots], Tensor(targets))}


def maskrcnn_resnet50_fpn(categories: Categories) -> MaskRCNN:
    """Mask R-CNN with a ResNet-50 and a pyramid of strides 4 to 64."""
    predictors = BoxPredictor(1024, categories.outputs), MaskPredictor(256, categories.outputs)
    heads = MaskHeads(TwoMLPHead(256 * 7 * 7), predictors[0], tower(256, 4), predictors[1])
    return MaskRCNN(resnet50_pyramid(published_norm), pyramid_rpn(), heads, categories)


def maskrcnn_resnet50_fpn_v2(categories: Categories) -> MaskRCNN:
    """The same with norms and more convolutions in its heads (Li et al. 2021, "Benchmarking detection transfer")."""
    predictors = BoxPredictor(1024, categories.outputs), MaskPredictor(256, categories.outputs)
    heads = MaskHeads(conv_fc_head(256), predictors[0], tower(256, 4, BatchNorm2d), predictors[1])
    return MaskRCNN(resnet50_pyramid(BatchNorm2d, BatchNorm2d), pyramid_rpn(2), heads, categories)


def _info(build: Callable[[Categories], MaskRCNN], entry: WeightsEntry, gflops: float, paper: str) -> ModelInfo:
    return ModelInfo(
        name=build.__name__,
        task="instance segmentation",
        build=build,
        spread=Categories.with_background,
        published=Categories.by_id,
        entries=(entry,),
        paper="He et al. 2017, Mask R-CNN; " + paper,
        gflops=gflops,
        renames=TORCHVISION_RENAMES,
    )


MODELS = (
    _info(
        maskrcnn_resnet50_fpn,
        coco_entry("maskrcnn_resnet50_fpn_coco-bf2d0c1e", 44_401_393, box_ap=37.9, mask_ap=34.6),
        134.38,
        "Lin et al. 2017, Feature pyramid networks",
    ),
    _info(
        maskrcnn_resnet50_fpn_v2,
        coco_entry("maskrcnn_resnet50_fpn_v2_coco-73cbd019", 46_359_409, box_ap=47.4, mask_ap=41.8),
        333.577,
        "Li et al. 2021, Benchmarking detection transfer learning with vision transformers",
    ),
)
