"""Keypoint R-CNN: He et al. 2017, "Mask R-CNN", section 5: a heat map for each keypoint of each person."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np

from ...core import Tensor
from ...core import functions as F
from ...core.layers import ConvTranspose2d, Module, ReLU, Sequential, init
from ...weights.entry import WeightsEntry
from ...weights.loading import TORCHVISION_RENAMES
from ...weights.torchvision import entry
from ..categories import Categories
from ..model import ModelInfo
from ..results import Detections
from .faster_rcnn import FasterRCNN, Objects, published_norm, pyramid_rpn, resnet50_pyramid
from .roi import BoxPredictor, MultiScaleRoIAlign, RoIHeads, TwoMLPHead, no_loss
from .towers import conv3x3

KEYPOINTS = 17  # nose, eyes, ears, shoulders, elbows, wrists, hips, knees, ankles: each left, then right


class KeypointPredictor(Module):
    """Twice the size by a transposed convolution and twice again by interpolation: 56x56 logits for each keypoint."""

    def __init__(self, channels: int, keypoints: int) -> None:
        self.kps_score_lowres = ConvTranspose2d(channels, keypoints, 4, stride=2, padding=1)
        self.kps_score_lowres.weight.data = init.he_normal(self.kps_score_lowres.weight.shape)

    def forward(self, x: Tensor) -> Tensor:
        x = self.kps_score_lowres(x)
        return F.resize(x, (2 * x.shape[2], 2 * x.shape[3]))


class KeypointHeads(RoIHeads):
    """Classes and refined boxes of proposals, and heat maps of the boxes."""

    def __init__(
        self, box_head: Module, box_predictor: BoxPredictor, keypoint_head: Sequential, predictor: KeypointPredictor
    ) -> None:
        super().__init__(box_head, box_predictor)
        self.keypoint_roi_pool = MultiScaleRoIAlign(14)
        self.keypoint_head = keypoint_head
        self.keypoint_predictor = predictor

    def heatmaps(
        self, levels: Sequence[Tensor], boxes: Sequence[np.ndarray], image_size: tuple[float, float]
    ) -> Tensor:
        """Logits (r, keypoints, 56, 56) of the boxes (r_i, 4) of each image, in pixels of the network's input."""
        features = self.keypoint_roi_pool(levels, boxes, image_size)
        return self.keypoint_predictor(self.keypoint_head(features))  # type: ignore[no-any-return]


class KeypointRCNN(FasterRCNN):
    """Faster R-CNN that finds the keypoints of each person it found.

    A keypoint's score is the logit at its place, as torchvision has it: its sign means little, its order does.

    >>> model = keypointrcnn_resnet50_fpn(Categories.with_background(["person"]))
    >>> model.roi_heads.keypoint_predictor.kps_score_lowres.weight.shape
    (512, 17, 4, 4)
    """

    roi_heads: KeypointHeads

    def predict_image(self, image: np.ndarray, score_threshold: float | None) -> Detections:
        found = self.find(image, score_threshold)
        result = self.result(image, found)
        points = np.zeros((len(found.boxes), self.keypoints, 3), np.float32)
        if len(result):
            heatmaps = self.roi_heads.heatmaps(found.levels, [found.boxes], found.size).numpy()
            for i, (maps, box) in enumerate(zip(heatmaps, found.boxes)):
                points[i] = peaks(maps, box)
        ratio = np.array(image.shape[1::-1], np.float32) / np.array(found.size[::-1], np.float32)
        return replace(result, keypoints=points * np.array([*ratio, 1], np.float32))

    @property
    def keypoints(self) -> int:
        """How many keypoints an object has."""
        return self.roi_heads.keypoint_predictor.kps_score_lowres.weight.shape[1]

    def renew_keypoints(self, keypoints: int) -> None:
        """Make the last layer anew, for another number of keypoints."""
        channels = self.roi_heads.keypoint_predictor.kps_score_lowres.weight.shape[0]
        self.roi_heads.keypoint_predictor = KeypointPredictor(channels, keypoints)

    def take_shapes(self, state: Mapping[str, np.ndarray]) -> None:
        weight = state.get("roi_heads.keypoint_predictor.kps_score_lowres.weight")
        if weight is not None and weight.shape[1] != self.keypoints:
            self.renew_keypoints(weight.shape[1])

    def instance_losses(
        self, levels: Sequence[Tensor], objects: Sequence[Objects], image_size: tuple[float, float]
    ) -> dict[str, Tensor]:
        """The cross entropy of the places of all annotated keypoints in all cells of their heat maps (section 5).

        Raises ValueError, naming the sample, where there are objects without keypoints or with another number of them.
        """
        targets = np.concatenate([heatmap_cells(found, self.keypoints, 56).ravel() for found in objects])
        row = np.flatnonzero(targets >= 0)
        if not len(row):
            return {"keypoint": no_loss(self.roi_heads.keypoint_head) + no_loss(self.roi_heads.keypoint_predictor)}
        logits = self.roi_heads.heatmaps(levels, [found.boxes for found in objects], image_size)
        return {"keypoint": F.softmax_cross_entropy(logits.reshape(len(targets), -1)[row], targets[row])}


def heatmap_cells(objects: Objects, keypoints: int, cells: int) -> np.ndarray:
    """The cell (k, keypoints), counted by rows, that each keypoint of each region lies in.

    -1 for those that are not annotated or lie outside of the region. The right and lower edges belong to it.
    """
    sample = objects.sample
    if len(objects.rows) and (sample.keypoints is None or sample.keypoints.shape[1] != keypoints):
        got = "a sample without" if sample.keypoints is None else f"{sample.keypoints.shape[1]}"
        raise ValueError(
            f"{sample.source or sample.image_id}: expected {keypoints} keypoints of each object, got {got}"
        )
    if not len(objects.rows):
        return np.zeros((0, keypoints), np.int64)
    points = sample.keypoints[objects.rows]  # type: ignore[index]
    ratio = np.array(objects.size[::-1], np.float32) / np.array(sample.size[::-1], np.float32)
    place = points[..., :2] * ratio
    start, end = objects.boxes[:, None, :2], objects.boxes[:, None, 2:]
    cell = np.floor((place - start) * (np.float32(cells) / (end - start)))
    cell = np.where(place == end, cells - 1, cell)
    annotated = (points[..., 2] > 0) & ((cell >= 0) & (cell < cells)).all(-1)
    return np.where(annotated, cell[..., 1] * cells + cell[..., 0], -1).astype(np.int64)


def peaks(heatmaps: np.ndarray, box: np.ndarray) -> np.ndarray:
    """The highest place (k, 3), x, y and value, of each of the heat maps (k, h, w) that cover a box xyxy.

    The maps are resized bicubically to whole pixels; the place is the centre of the highest one.

    >>> peaks(np.eye(4, dtype=np.float32)[None, :1].repeat(4, 1), np.array([8, 8, 12, 12], np.float32))[0].tolist()
    [8.5, 8.5, 1.0]
    """
    sides = np.maximum(box[2:] - box[:2], 1)
    width, height = (int(side) for side in np.ceil(sides))
    rows = _bicubic(heatmaps.shape[1], height) @ heatmaps
    columns = _bicubic(heatmaps.shape[2], width).T
    # A place's weights have the sum 1 and their negatives -3/16 at least, so most rows cannot hold the highest one.
    high, low = rows.max(2), rows.min(2)
    bound = high + 0.19 * (high - low) + 1e-5 * np.abs(high)
    reached = (rows[np.arange(len(rows)), bound.argmax(1)] @ columns).max(1)
    which, y = np.nonzero(~(bound < reached[:, None]))
    fine = rows[which, y] @ columns
    x, value = fine.argmax(1), fine.max(1)
    order = np.lexsort((-value, which))  # stable: the first of equal ones
    best = order[np.searchsorted(which[order], np.arange(len(rows)))]
    cell = np.stack([x[best], y[best]], 1).astype(np.float32)
    places = (cell + np.float32(0.5)) * (sides / np.array([width, height], np.float32)) + box[:2]
    return np.concatenate([places, value[best][:, None]], 1)


@lru_cache(maxsize=256)
def _bicubic(size: int, to_size: int) -> np.ndarray:
    """The matrix (to_size, size) of Keys' cubic convolution with a = -0.75, the border repeated, as torch has it."""
    position = (np.arange(to_size) + 0.5) * (size / to_size) - 0.5
    low = np.floor(position).astype(np.int64)
    matrix = np.zeros((to_size, size), np.float32)
    for tap in range(-1, 3):
        t = np.abs(position - (low + tap))
        near = (1.25 * t - 2.25) * t * t + 1
        far = ((-0.75 * t + 3.75) * t - 6) * t + 3
        np.add.at(matrix, (np.arange(to_size), np.clip(low + tap, 0, size - 1)), np.where(t <= 1, near, far))
    return matrix


def keypointrcnn_resnet50_fpn(categories: Categories) -> KeypointRCNN:
    """Keypoint R-CNN with a ResNet-50 and a pyramid of strides 4 to 64, for COCO's 17 keypoints."""
    convs: list[Module] = []
    for channels in (256, *[512] * 7):
        convs += [conv3x3(channels, 512, init.he_normal), ReLU()]
    predictor = BoxPredictor(1024, categories.outputs)
    heads = KeypointHeads(TwoMLPHead(256 * 7 * 7), predictor, Sequential(*convs), KeypointPredictor(512, KEYPOINTS))
    return KeypointRCNN(resnet50_pyramid(published_norm), pyramid_rpn(), heads, categories)


def _entry(name: str, file: str, box_ap: float, keypoint_ap: float) -> WeightsEntry:
    metrics = {"COCO val2017": {"box AP": box_ap, "keypoint AP": keypoint_ap}}
    return entry(name, file, 59_137_258, ("person",), metrics, (1,))


MODELS = (
    ModelInfo(
        name="keypointrcnn_resnet50_fpn",
        task="keypoint detection",
        build=keypointrcnn_resnet50_fpn,
        spread=Categories.with_background,
        entries=(
            _entry("COCO_V1", "keypointrcnn_resnet50_fpn_coco-fc266e95", 54.6, 65.0),
            _entry("COCO_LEGACY", "keypointrcnn_resnet50_fpn_coco-9f466800", 50.6, 61.1),
        ),
        paper="He et al. 2017, Mask R-CNN; Lin et al. 2017, Feature pyramid networks",
        gflops=137.42,
        renames=TORCHVISION_RENAMES,
    ),
)
