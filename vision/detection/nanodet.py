"""NanoDet-g: RangiLyu 2021 (github.com/RangiLyu/nanodet), a one-stage detector without anchors or objectness.

Its head is that of Li et al. 2020, "Generalized focal loss": each side of a box is the mean of a distribution.
"""

from __future__ import annotations

from collections.abc import Sequence

import cv2
import numpy as np

from ...core import Tensor
from ...core import functions as F
from ...core.layers import BatchNorm2d, Conv2d, LeakyReLU, MaxPool2d, Module, ModuleList, Sequential, init
from ...core.plan import planned
from ...weights.categories import COCO_80, COCO_80_IDS
from ...weights.entry import WeightsEntry
from .. import boxes as box_ops
from ..categories import Categories
from ..model import Detector, ModelInfo, sigmoid, softmax
from ..results import Detections
from ..sample import Sample
from .losses import iou_loss
from .targets import NEITHER, Truth, adaptive_match, truth_of

SHAPES_INPUT = 320  # pixels, the side of nanodet_shapes' input
MEAN, STD = (103.53, 116.28, 123.675), (57.375, 57.12, 58.395)  # of blue, green and red, 0 to 255


class ConvModule(Module):
    """Convolution, batch norm, leaky ReLU."""

    def __init__(self, in_channels: int, out_channels: int, kernel: int = 3, stride: int = 1) -> None:
        self.conv = Conv2d(in_channels, out_channels, kernel, stride, kernel // 2, bias=False)
        self.bn = BatchNorm2d(out_channels)
        self.act = LeakyReLU(0.1)
        self.conv.weight.data = init.he_normal(self.conv.weight.shape)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv.fused(x, self.bn, self.act)


class ResidualBlock(Module):
    """Two convolutions whose outputs are joined."""

    def __init__(self, channels: int) -> None:
        self.in_conv = ConvModule(channels, channels // 2)
        self.mid_conv = ConvModule(channels // 2, channels // 2)

    def forward(self, x: Tensor) -> Tensor:
        y = self.in_conv(x)
        return F.concatenate([self.mid_conv(y), y], 1)


class CspBlock(Module):
    """A strided convolution, ``depth`` residual blocks on its output, and both joined: twice as many channels."""

    def __init__(self, channels: int, depth: int, stride: int) -> None:
        self.in_conv = ConvModule(channels, channels, stride=stride)
        self.res_blocks = Sequential(*(ResidualBlock(channels) for _ in range(depth)))
        self.res_out_conv = ConvModule(channels, channels)

    def forward(self, x: Tensor) -> Tensor:
        x = self.in_conv(x)
        return F.concatenate([self.res_out_conv(self.res_blocks(x)), x], 1)


class CspNet(Module):
    """x (n, 3, height, width) to maps of strides 8, 16 and 32, with 4, 8 and 16 times ``width`` channels."""

    strides = (8, 16, 32)

    def __init__(self, width: int = 32) -> None:
        self.channels = (4 * width, 8 * width, 16 * width)
        self.stages = ModuleList(
            [
                ConvModule(3, width, stride=2),
                MaxPool2d(3, 2, 1),
                CspBlock(width, 1, 1),
                CspBlock(2 * width, 2, 2),
                CspBlock(4 * width, 2, 2),
                CspBlock(8 * width, 3, 2),
            ]
        )

    def forward(self, x: Tensor) -> list[Tensor]:
        maps = []
        for stage in self.stages:
            x = stage(x)
            maps.append(x)
        return maps[3:]


class PathAggregation(Module):
    """Top-down, then bottom-up, by plain resizing and addition (a PAN, Liu et al. 2018, without convolutions)."""

    def __init__(self, in_channels: Sequence[int], channels: int) -> None:
        self.lateral_convs = ModuleList([Lateral(c, channels) for c in in_channels])

    def forward(self, maps: Sequence[Tensor]) -> list[Tensor]:
        levels = [lateral(x) for lateral, x in zip(self.lateral_convs, maps, strict=True)]
        for i in range(len(levels) - 1, 0, -1):
            levels[i - 1] = levels[i - 1] + F.resize(levels[i], levels[i - 1].shape[2:])  # type: ignore[arg-type]
        for i in range(len(levels) - 1):
            levels[i + 1] = levels[i + 1] + F.resize(levels[i], levels[i + 1].shape[2:])  # type: ignore[arg-type]
        return levels


class Lateral(Module):
    """A 1x1 convolution with a bias."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        self.conv = Conv2d(in_channels, out_channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x)  # type: ignore[no-any-return]


class GFLHead(Module):
    """For every cell class logits and, for each side, logits of its distance in ``bins`` steps of the stride."""

    # the official head also builds separate regression layers, which share_cls_reg leaves unused, and a constant
    ignored_keys = (
        "distribution_project.project",
        *(f"gfl_reg.{level}.{part}" for level in range(3) for part in ("weight", "bias")),
    )
    bins = 11

    def __init__(self, channels: int, classes: int, levels: int) -> None:
        self.cls_convs = ModuleList([Sequential(ConvModule(channels, channels)) for _ in range(levels)])
        self.gfl_cls = ModuleList([Conv2d(channels, classes + 4 * self.bins, 1) for _ in range(levels)])
        self.classes = classes
        for conv in self.gfl_cls:
            conv.weight.data = init.normal(conv.weight.shape, 0.01)
            conv.bias.data = init.constant(conv.bias.shape, 0)
            conv.bias.data[:classes] = -4.595  # a prior probability of 0.01 (Lin et al. 2017, section 3.3)

    def forward(self, levels: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Class logits (n, cells, classes) and distance logits (n, cells, 4, bins) of all levels."""
        rows = []
        for convs, predict, x in zip(self.cls_convs, self.gfl_cls, levels, strict=True):
            y = predict(convs(x)).transpose(0, 2, 3, 1)
            rows.append(y.reshape(x.shape[0], -1, self.classes + 4 * self.bins))
        y = F.concatenate(rows, 1)
        distances = y[:, :, self.classes :]
        return y[:, :, : self.classes], distances.reshape(*distances.shape[:2], 4, self.bins)


class NanoDet(Detector):
    """A small convolutional network, a pyramid without convolutions, and a head that is not shared between levels.

    >>> model = nanodet_g(Categories.plain(["boat"]))
    >>> model.parameter_count()
    3758055
    """

    class_layers = ("head.gfl_cls.",)
    nms_threshold, limit = 0.6, 100
    octave_scale, candidates = 8, 9  # of the anchors that training matches, in strides; of each level for each object

    def carry_over(self, name: str, fresh: np.ndarray, published: np.ndarray) -> np.ndarray:
        """The classes' rows start fresh, the distances' rows go on."""
        sides = 4 * GFLHead.bins
        return np.concatenate([fresh[:-sides], published[-sides:].astype(fresh.dtype)])

    def __init__(self, backbone: CspNet, channels: int, categories: Categories, size: tuple[int, int]) -> None:
        self.backbone = backbone
        self.fpn = PathAggregation(backbone.channels, channels)
        self.head = GFLHead(channels, categories.outputs, len(backbone.channels))
        self.categories, self.size = categories, size
        self.strides = backbone.strides

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.head(self.fpn(self.backbone(x)))  # type: ignore[no-any-return]

    def preprocess(self, image: np.ndarray) -> tuple[Tensor, np.ndarray]:
        """The photo scaled into the middle of a black input, and the (3, 3) matrix that maps its pixels there."""
        height, width = self.size
        scale = min(height / image.shape[0], width / image.shape[1])
        matrix = np.array(
            [
                [scale, 0, (width - scale * image.shape[1]) / 2],
                [0, scale, (height - scale * image.shape[0]) / 2],
                [0, 0, 1],
            ]
        )
        warped = cv2.warpPerspective(image, matrix, (width, height))
        x = warped[:, :, ::-1].astype(np.float32)
        x -= np.array(MEAN, np.float32)
        x *= np.array([1 / s for s in STD], np.float32)
        return Tensor(x[None].transpose(0, 3, 1, 2)), matrix

    def centres(self, size: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
        """The centres (cells, 2) x, y and the strides (cells,) of all cells for an input (height, width)."""
        points, strides = [], []
        for s in self.strides:
            y, x = np.mgrid[: size[0] // s, : size[1] // s].astype(np.float32)
            points.append(np.stack([(x + 0.5) * s, (y + 0.5) * s], -1).reshape(-1, 2))
            strides.append(np.full(len(points[-1]), s, np.float32))
        return np.concatenate(points), np.concatenate(strides)

    def predict_image(self, image: np.ndarray, score_threshold: float | None) -> Detections:
        x, matrix = self.preprocess(image)
        logits, distances = (t.numpy()[0] for t in planned(self, x))
        threshold = self.score_threshold if score_threshold is None else score_threshold
        with np.errstate(divide="ignore"):
            least = np.log(np.float64(threshold) / (1 - np.float64(threshold))) if threshold < 1 else np.inf
        cell, column = np.nonzero(logits > least)
        points, strides = self.centres(self.size)
        rows, where = np.unique(cell, return_inverse=True)
        sides = softmax(distances[rows]) @ np.arange(GFLHead.bins, dtype=np.float32)
        boxes = box_ops.clip(box_ops.decode_distances(points[rows], sides * strides[rows, None]), self.size)
        boxes = (boxes - np.tile(matrix[:2, 2], 2)) / matrix[0, 0]
        boxes = box_ops.clip(boxes.astype(np.float32), image.shape[:2])[where]  # type: ignore[arg-type]
        scores = sigmoid(logits[cell, column])
        keep = box_ops.batched_nms(boxes, scores, column, self.nms_threshold, self.limit)
        return self.detections(image, boxes[keep], scores[keep], column[keep])

    def losses(self, samples: Sequence[Sample], rng: np.random.Generator) -> dict[str, Tensor]:
        """The "quality", "box" and "distribution" losses of a batch; training minimises their sum.

        Generalized focal loss (Li et al. 2020) on the cells that ATSS gives to the objects, weighted as in the official
        code: quality focal loss (beta 2) over the number of these cells; GIoU loss (times 2) and distribution focal
        loss (times 1/4) weighted by the cell's best score, over the sum of these weights.
        """
        inputs, truths = [], []
        for sample in samples:
            x, matrix = self.preprocess(sample.image)
            inputs.append(x.data)
            boxes = np.zeros((0, 4), np.float32) if sample.boxes is None else sample.boxes
            boxes = (boxes * matrix[0, 0] + np.tile(matrix[:2, 2], 2)).astype(np.float32)
            truths.append(truth_of(sample, self.categories, box_ops.clip(boxes, self.size)))
        logits, distances = self(Tensor(np.concatenate(inputs)))
        return self.losses_of(logits, distances, truths)

    def losses_of(self, logits: Tensor, distances: Tensor, truths: Sequence[Truth]) -> dict[str, Tensor]:
        """The losses of what the head said, (n, cells, classes) and (n, cells, 4, bins), about n images."""
        points, strides = self.centres(self.size)
        reach = self.octave_scale / 2 * strides[:, None]
        ends = np.flatnonzero(np.diff(strides)) + 1
        anchors = np.split(np.concatenate([points - reach, points + reach], 1), ends)
        matches = np.stack([adaptive_match(anchors, truth, self.candidates) for truth in truths])
        image, cell = np.nonzero(matches >= 0)
        objects = [(t.boxes[m[m >= 0]], t.slots[m[m >= 0]]) for t, m in zip(truths, matches)]
        boxes, slots = (np.concatenate(parts) for parts in zip(*objects))

        # from here on in strides of the cell
        where, box = points[cell] / strides[cell, None], boxes / strides[cell, None]
        bins = F.softmax(distances[image, cell], 2)
        sides = (bins * Tensor(np.arange(GFLHead.bins, dtype=np.float32))).sum(2)
        signs = Tensor(np.array([-1, -1, 1, 1], np.float32))
        found = Tensor(np.tile(where, 2)) + sides * signs
        score = sigmoid(logits.data[image, cell]).max(1) if len(cell) else np.zeros(0, np.float32)
        total = max(float(score.sum()), 1e-12)
        loss_box = (iou_loss(found, Tensor(box), "giou", "none", eps=1e-6) * Tensor(score)).sum() * (2 / total)

        side = np.clip(box_ops.encode_distances(where, box), 0, GFLHead.bins - 1 - 0.1)
        at = np.arange(GFLHead.bins, dtype=np.float32)
        share = np.maximum(1 - np.abs(at - side[..., None]), 0) * score[:, None, None]  # between the two nearest bins
        log_bins = F.log_softmax(distances[image, cell], 2)
        loss_distribution = -(log_bins * Tensor(share)).sum() * (0.25 / (4 * total))

        quality = np.zeros(logits.shape, np.float32)
        overlap = 1 - iou_loss(found.detach(), Tensor(box), "iou", "none", eps=1e-6).data
        quality[image, cell, slots] = overlap
        counted = Tensor((matches != NEITHER)[..., None].astype(np.float32))
        wrong = F.sigmoid(logits) - Tensor(quality)
        loss_quality = F.sigmoid_cross_entropy(logits, Tensor(quality), "none") * wrong * wrong * counted
        claimed = sum(max(int((m >= 0).sum()), 1) for m in matches)
        return {"quality": loss_quality.sum() / claimed, "box": loss_box, "distribution": loss_distribution}


def nanodet_g(categories: Categories) -> NanoDet:
    """NanoDet-g at 416x416 pixels: plain 3x3 convolutions, made for machines that run those fast."""
    return NanoDet(CspNet(), 128, categories, (416, 416))


def nanodet_shapes(categories: Categories) -> NanoDet:
    """The detector of the demo: NanoDet-g's layers at half the width, for the drawn shapes of ``ShapeScenes``."""
    return NanoDet(CspNet(16), 64, categories, (SHAPES_INPUT, SHAPES_INPUT))


MODELS = (
    ModelInfo(
        name="nanodet_g",
        task="detection",
        build=nanodet_g,
        spread=Categories.plain,
        entries=(
            WeightsEntry(
                name="COCO",
                url="https://drive.google.com/file/d/1f2lH7Ae1AY04g20zTZY7JS_dKKP37hvE/view",
                sha256="",
                size=None,
                parameters=3_788_628,
                licence="Apache-2.0",
                source="RangiLyu, github.com/RangiLyu/nanodet",
                categories=COCO_80,
                category_ids=COCO_80_IDS,
                metrics={"COCO val2017": {"box AP": 22.9}},
                by_hand=True,
            ),
        ),
        paper="Li et al. 2020, Generalized focal loss",
        gflops=4.2,
    ),
    ModelInfo(
        name="nanodet_shapes",
        task="detection",
        build=nanodet_shapes,
        spread=Categories.plain,
        entries=(
            WeightsEntry(
                name="SHAPES",
                url="package:vision/data/nanodet_shapes.safetensors",
                sha256="",
                size=None,
                parameters=946_892,
                licence="MIT",
                source="chainsight, demo_training.py",
                categories=("circle", "square", "triangle", "star", "ring", "cross", "heart", "arrow"),
                category_ids=tuple(range(1, 9)),
                metrics={"ShapeScenes(300, size=320, seed=2026)": {"box AP": 83.5}},
                notes="Part of the package, for the demo: finds the shapes of chainsight.datasets.ShapeScenes.",
            ),
        ),
        paper="Li et al. 2020, Generalized focal loss",
        gflops=0.22,
    ),
)
