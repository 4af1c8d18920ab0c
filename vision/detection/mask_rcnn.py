"""Mask R-CNN: He et al. 2017, "Mask R-CNN", on a feature pyramid."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from ...core import Tensor
from ...core.layers import BatchNorm2d, Conv2d, ConvTranspose2d, Module, ReLU, Sequential, init
from ...weights.entry import WeightsEntry
from ...weights.loading import TORCHVISION_RENAMES
from ...weights.torchvision import coco_entry
from ..categories import Categories
from ..masks import InstanceMasks
from ..model import ModelInfo, sigmoid
from ..results import Detections
from ..sample import Sample
from .faster_rcnn import FasterRCNN, published_norm, pyramid_rpn, resnet50_pyramid
from .roi import BoxPredictor, MultiScaleRoIAlign, RoIHeads, TwoMLPHead, conv_fc_head
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

    def __init__(self, box_head: Module, box_predictor: BoxPredictor, mask_head: Sequential, classes: int) -> None:
        super().__init__(box_head, box_predictor)
        self.mask_roi_pool = MultiScaleRoIAlign(14)
        self.mask_head = mask_head
        self.mask_predictor = MaskPredictor(256, classes)

    def masks(self, levels: Sequence[Tensor], boxes: Sequence[np.ndarray], image_size: tuple[int, int]) -> Tensor:
        """Mask logits (r, classes, 28, 28) of the boxes (r_i, 4) of each image, in pixels of the network's input."""
        return self.mask_predictor(self.mask_head(self.mask_roi_pool(levels, boxes, image_size)))  # type: ignore[no-any-return]


class MaskRCNN(FasterRCNN):
    """Faster R-CNN that draws a mask of 28x28 cells in each box it found (section 3).

    >>> model = maskrcnn_resnet50_fpn(Categories.with_background(["boat"]))
    >>> model.roi_heads.mask_predictor.mask_fcn_logits.weight.shape
    (2, 256, 1, 1)
    """

    roi_heads: MaskHeads
    class_layers: tuple[str, ...] = ("roi_heads.box_predictor.", "roi_heads.mask_predictor.mask_fcn_logits.")

    def predict_image(self, image: np.ndarray, score_threshold: float | None) -> Detections:
        found = self.find(image, score_threshold)
        result = self.result(image, found)
        if len(result):
            logits = self.roi_heads.masks(found.levels, [found.boxes], found.size).numpy()
            crops = sigmoid(logits[np.arange(len(result)), found.slots])
        else:
            crops = np.zeros((0, 28, 28), np.float32)
        return replace(result, masks=InstanceMasks(crops, result.boxes, result.image_size))

    def losses(self, samples: Sequence[Sample], rng: np.random.Generator) -> dict[str, Tensor]:
        """Raises NotImplementedError: the losses of Faster R-CNN alone would leave the masks as they are."""
        raise NotImplementedError("MaskRCNN cannot be trained yet: the loss of its masks is missing")


def maskrcnn_resnet50_fpn(categories: Categories) -> MaskRCNN:
    """Mask R-CNN with a ResNet-50 and a pyramid of strides 4 to 64."""
    predictor = BoxPredictor(1024, categories.outputs)
    heads = MaskHeads(TwoMLPHead(256 * 7 * 7), predictor, tower(256, 4), categories.outputs)
    return MaskRCNN(resnet50_pyramid(published_norm), pyramid_rpn(), heads, categories)


def maskrcnn_resnet50_fpn_v2(categories: Categories) -> MaskRCNN:
    """The same with norms and more convolutions in its heads (Li et al. 2021, "Benchmarking detection transfer")."""
    predictor = BoxPredictor(1024, categories.outputs)
    heads = MaskHeads(conv_fc_head(256), predictor, tower(256, 4, BatchNorm2d), categories.outputs)
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
