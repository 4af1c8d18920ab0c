"""YOLOX: Ge et al. 2021, "YOLOX: Exceeding YOLO series in 2021" (github.com/Megvii-BaseDetection/YOLOX)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import cv2
import numpy as np

from ...core import Tensor
from ...core import functions as F
from ...core.function import is_recording
from ...core.layers import Activation, BatchNorm2d, Conv2d, LeakyReLU, Module, ModuleList, Sequential, SiLU, init
from ...core.layers.packing import Packed
from ...core.plan import planned
from ...weights.categories import COCO_80, COCO_80_IDS
from ...weights.entry import WeightsEntry
from .. import boxes as box_ops
from ..categories import Categories
from ..model import Detector, ModelInfo, sigmoid
from ..results import Detections
from ..sample import Sample
from .losses import iou_loss
from .targets import NEITHER, Truth, claimed, dynamic_match, truth_of

PAD = 114  # grey, where the photo does not fill the input
leaky = partial(LeakyReLU, 0.1)


class BaseConv(Module):
    """Convolution, batch norm, activation."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel: int,
        stride: int = 1,
        groups: int = 1,
        activation: Callable[[], Activation] = SiLU,
    ) -> None:
        self.conv = Conv2d(in_channels, out_channels, kernel, stride, kernel // 2, groups=groups, bias=False)
        self.bn = BatchNorm2d(out_channels, eps=1e-3, momentum=0.03)
        self.act = activation()

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """The block's output, plus ``residual`` if there is one."""
        y = self.conv.fused(x, self.bn, self.act)
        return y if residual is None else y + residual


class DepthwiseConv(Module):
    """A depthwise block and a 1x1 block, in place of one `BaseConv`."""

    def __init__(self, in_channels: int, out_channels: int, kernel: int, stride: int = 1) -> None:
        self.dconv = BaseConv(in_channels, in_channels, kernel, stride, in_channels)
        self.pconv = BaseConv(in_channels, out_channels, 1)

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """The block's output, plus ``residual`` if there is one."""
        return self.pconv(self.dconv(x), residual)  # type: ignore[no-any-return]


Conv = Callable[[int, int, int, int], Module]  # in channels, out channels, kernel, stride


class Focus(Module):
    """Each 2x2 cell of pixels as one with four times the channels, and a convolution.

    In inference that is one convolution of the pixels with stride 2, whose kernel is twice as large.
    """

    def __init__(self, in_channels: int, out_channels: int) -> None:
        self.conv = BaseConv(4 * in_channels, out_channels, 3)
        self.packed = Packed()

    def forward(self, x: Tensor) -> Tensor:
        if is_recording() or self.training or x.shape[2] % 2 or x.shape[3] % 2:
            cells = [x[:, :, row::2, column::2] for column in (0, 1) for row in (0, 1)]
            return self.conv(F.concatenate(cells, 1))  # type: ignore[no-any-return]
        weight = self.conv.conv.weight
        pixels = self.packed.get("pixels", [weight], lambda: _of_pixels(weight))
        return pixels.fused(x, self.conv.bn, self.conv.act)  # type: ignore[no-any-return]


def _of_pixels(weight: Tensor) -> Conv2d:
    """The convolution of pixels that one with this weight (out, 4 * in, k, k) is of cells."""
    out, cells, k, _ = weight.shape
    conv = Conv2d(cells // 4, out, 2 * k, 2, k - 1, bias=False).eval()
    by_place = weight.numpy().reshape(out, 2, 2, cells // 4, k, k)  # out, column, row, in, and of cells row, column
    conv.weight.data = np.ascontiguousarray(by_place.transpose(0, 3, 4, 2, 5, 1).reshape(conv.weight.shape))
    return conv


class Bottleneck(Module):
    """1x1 and 3x3, around a shortcut if there is one."""

    def __init__(self, channels: int, shortcut: bool, conv: Conv) -> None:
        self.conv1 = BaseConv(channels, channels, 1)
        self.conv2 = conv(channels, channels, 3, 1)
        self.shortcut = shortcut

    def forward(self, x: Tensor) -> Tensor:
        return self.conv2(self.conv1(x), x if self.shortcut else None)  # type: ignore[no-any-return]


class CSPLayer(Module):
    """Two 1x1 convolutions side by side, bottlenecks after one of them, and both joined (Wang et al. 2020, CSPNet)."""

    def __init__(self, in_channels: int, out_channels: int, depth: int, shortcut: bool, conv: Conv) -> None:
        width = out_channels // 2
        self.conv1 = BaseConv(in_channels, width, 1)
        self.conv2 = BaseConv(in_channels, width, 1)
        self.conv3 = BaseConv(2 * width, out_channels, 1)
        self.m = Sequential(*(Bottleneck(width, shortcut, conv) for _ in range(depth)))

    def forward(self, x: Tensor) -> Tensor:
        return self.conv3(F.concatenate([self.m(self.conv1(x)), self.conv2(x)], 1))  # type: ignore[no-any-return]


class SPPBottleneck(Module):
    """A map beside its maxima over 5x5, 9x9 and 13x13 cells (He et al. 2014, spatial pyramid pooling)."""

    def __init__(self, in_channels: int, out_channels: int, activation: Callable[[], Activation] = SiLU) -> None:
        width = in_channels // 2
        self.conv1 = BaseConv(in_channels, width, 1, activation=activation)
        self.conv2 = BaseConv(4 * width, out_channels, 1, activation=activation)

    def forward(self, x: Tensor) -> Tensor:
        maps = [self.conv1(x)]
        for _ in range(3):  # a maximum over 5 cells of maxima over 5 is one over 9, and so on
            maps.append(F.max_pool2d(maps[-1], 5, 1, 2))
        return self.conv2(F.concatenate(maps, 1))  # type: ignore[no-any-return]


class DarknetStages(Module):
    """x (n, 3, height, width) to the maps of its last three stages, of strides 8, 16 and 32."""

    stem: Module
    dark2: Module
    dark3: Module
    dark4: Module
    dark5: Module

    def forward(self, x: Tensor) -> list[Tensor]:
        x = self.dark2(self.stem(x))
        maps = []
        for stage in (self.dark3, self.dark4, self.dark5):
            x = stage(x)
            maps.append(x)
        return maps


class CSPDarknet(DarknetStages):
    """x (n, 3, height, width) to maps of strides 8, 16 and 32; ``width`` is that of the first layer."""

    def __init__(self, width: int, depth: int, conv: Conv) -> None:
        self.stem = Focus(3, width)
        w = [width * 2**k for k in range(5)]
        self.dark2 = Sequential(conv(w[0], w[1], 3, 2), CSPLayer(w[1], w[1], depth, True, conv))
        self.dark3 = Sequential(conv(w[1], w[2], 3, 2), CSPLayer(w[2], w[2], 3 * depth, True, conv))
        self.dark4 = Sequential(conv(w[2], w[3], 3, 2), CSPLayer(w[3], w[3], 3 * depth, True, conv))
        self.dark5 = Sequential(
            conv(w[3], w[4], 3, 2), SPPBottleneck(w[4], w[4]), CSPLayer(w[4], w[4], depth, False, conv)
        )
        self.channels = tuple(w[2:])


class PathAggregation(Module):
    """CSPDarknet, then top-down and bottom-up again (Liu et al. 2018, PANet) with CSP layers."""

    def __init__(self, backbone: CSPDarknet, depth: int, conv: Conv) -> None:
        self.backbone = backbone
        a, b, c = backbone.channels
        self.lateral_conv0 = BaseConv(c, b, 1)
        self.C3_p4 = CSPLayer(2 * b, b, depth, False, conv)
        self.reduce_conv1 = BaseConv(b, a, 1)
        self.C3_p3 = CSPLayer(2 * a, a, depth, False, conv)
        self.bu_conv2 = conv(a, a, 3, 2)
        self.C3_n3 = CSPLayer(2 * a, b, depth, False, conv)
        self.bu_conv1 = conv(b, b, 3, 2)
        self.C3_n4 = CSPLayer(2 * b, c, depth, False, conv)
        self.channels = backbone.channels

    def forward(self, x: Tensor) -> list[Tensor]:
        fine, middle, coarse = self.backbone(x)
        top = self.lateral_conv0(coarse)
        middle = self.C3_p4(_join_upsampled(top, middle))
        lateral = self.reduce_conv1(middle)
        fine = self.C3_p3(_join_upsampled(lateral, fine))
        middle = self.C3_n3(F.concatenate([self.bu_conv2(fine), lateral], 1))
        coarse = self.C3_n4(F.concatenate([self.bu_conv1(middle), top], 1))
        return [fine, middle, coarse]


def _join_upsampled(coarse: Tensor, fine: Tensor) -> Tensor:
    return F.concatenate([F.resize(coarse, fine.shape[2:], "nearest"), fine], 1)  # type: ignore[arg-type]


class ResLayer(Module):
    """1x1 to half the channels and 3x3 back, around a shortcut (Redmon and Farhadi 2018, YOLOv3, table 1)."""

    def __init__(self, channels: int) -> None:
        self.layer1 = BaseConv(channels, channels // 2, 1, activation=leaky)
        self.layer2 = BaseConv(channels // 2, channels, 3, activation=leaky)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer2(self.layer1(x), x)  # type: ignore[no-any-return]


class Darknet53(DarknetStages):
    """x (n, 3, height, width) to maps of strides 8, 16 and 32; the last one through spatial pyramid pooling."""

    def __init__(self) -> None:
        self.stem = Sequential(BaseConv(3, 32, 3, activation=leaky), *_group(32, 1))
        self.dark2 = Sequential(*_group(64, 2))
        self.dark3 = Sequential(*_group(128, 8))
        self.dark4 = Sequential(*_group(256, 8))
        self.dark5 = Sequential(
            *_group(512, 4),
            *_alternating(1024, 512, 2),
            SPPBottleneck(1024, 512, leaky),
            BaseConv(512, 1024, 3, activation=leaky),
            BaseConv(1024, 512, 1, activation=leaky),
        )


def _group(channels: int, depth: int) -> list[Module]:
    """A strided convolution to twice the channels, and residual layers."""
    layers = [ResLayer(2 * channels) for _ in range(depth)]
    return [BaseConv(channels, 2 * channels, 3, 2, activation=leaky), *layers]


def _alternating(in_channels: int, width: int, count: int) -> list[Module]:
    """1x1 convolutions to ``width`` and 3x3 ones to twice as many, in turn."""
    parts: list[Module] = []
    for i in range(count):
        out, kernel = (2 * width, 3) if i % 2 else (width, 1)
        parts.append(BaseConv(in_channels, out, kernel, activation=leaky))
        in_channels = out
    return parts


class TopDown(Module):
    """Darknet-53, then top-down as in YOLOv3."""

    channels = (128, 256, 512)

    def __init__(self) -> None:
        self.backbone = Darknet53()
        self.out1_cbl = BaseConv(512, 256, 1, activation=leaky)
        self.out1 = Sequential(*_alternating(512 + 256, 256, 5))
        self.out2_cbl = BaseConv(256, 128, 1, activation=leaky)
        self.out2 = Sequential(*_alternating(256 + 128, 128, 5))

    def forward(self, x: Tensor) -> list[Tensor]:
        fine, middle, coarse = self.backbone(x)
        middle = self.out1(_join_upsampled(self.out1_cbl(coarse), middle))
        return [self.out2(_join_upsampled(self.out2_cbl(middle), fine)), middle, coarse]


class DecoupledHead(Module):
    """On every level, convolutions for the class and others for the box and the objectness (figure 2)."""

    def __init__(
        self, in_channels: Sequence[int], width: int, classes: int, conv: Conv, stem: Callable[..., Module] = BaseConv
    ) -> None:
        levels = range(len(in_channels))
        self.cls_convs = ModuleList([Sequential(conv(width, width, 3, 1), conv(width, width, 3, 1)) for _ in levels])
        self.reg_convs = ModuleList([Sequential(conv(width, width, 3, 1), conv(width, width, 3, 1)) for _ in levels])
        self.cls_preds = ModuleList([Conv2d(width, classes, 1) for _ in levels])
        self.reg_preds = ModuleList([Conv2d(width, 4, 1) for _ in levels])
        self.obj_preds = ModuleList([Conv2d(width, 1, 1) for _ in levels])
        self.stems = ModuleList([stem(c, width, 1) for c in in_channels])
        for predict in (*self.cls_preds, *self.obj_preds):
            predict.bias.data = init.constant(predict.bias.shape, -math.log((1 - 0.01) / 0.01))

    def forward(self, levels: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Of all cells the box codes (n, cells, 4), logits of objectness (n, cells, 1) and classes (n, cells, k)."""
        outputs: list[list[Tensor]] = [[], [], []]
        for i, level in enumerate(levels):
            x = self.stems[i](level)
            box_features, class_features = self.reg_convs[i](x), self.cls_convs[i](x)
            maps = (self.reg_preds[i](box_features), self.obj_preds[i](box_features), self.cls_preds[i](class_features))
            for rows, y in zip(outputs, maps):
                rows.append(y.transpose(0, 2, 3, 1).reshape(y.shape[0], -1, y.shape[1]))
        codes, objectness, logits = (F.concatenate(rows, 1) for rows in outputs)
        return codes, objectness, logits


class YOLOX(Detector):
    """A backbone with a pyramid, and a head whose cells say what they see, where, and whether it is an object.

    The photo is scaled to fit ``size`` (height, width) and laid into its upper left corner, blue, green, red, 0 to 255.
    A cell's class is its most probable one, its score the product with the objectness. Boxes may reach out of the photo
    a little, as in the official code.

    >>> model = yolox_nano(Categories.plain(["boat"]))
    >>> model.head.cls_preds[0].weight.shape
    (1, 64, 1, 1)
    """

    class_layers = ("head.cls_preds.",)
    strides = (8, 16, 32)
    score_threshold, nms_threshold = 0.01, 0.65
    radius, candidates = 1.5, 10  # of the matching in training: strides around a middle; IoUs that decide how many

    def __init__(self, backbone: Module, head: DecoupledHead, categories: Categories, size: tuple[int, int]) -> None:
        self.backbone, self.head = backbone, head
        self.categories, self.size = categories, size

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.head(self.backbone(x))  # type: ignore[no-any-return]

    def preprocess(self, image: np.ndarray) -> tuple[Tensor, float]:
        """The input (1, 3, height, width) of a photo, and the factor it was scaled by."""
        height, width = self.size
        scale = min(height / image.shape[0], width / image.shape[1])
        fitted = (max(1, int(image.shape[1] * scale)), max(1, int(image.shape[0] * scale)))
        x = np.full((1, height, width, 3), PAD, np.float32)
        x[0, : fitted[1], : fitted[0]] = cv2.resize(image, fitted, interpolation=cv2.INTER_LINEAR)[:, :, ::-1]
        return Tensor(x.transpose(0, 3, 1, 2)), scale

    def corners(self, size: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
        """The upper left corners (cells, 2) x, y and the strides (cells,) of all cells for an input (height, width)."""
        points, strides = [], []
        for s in self.strides:
            y, x = np.mgrid[: size[0] // s, : size[1] // s].astype(np.float32)
            points.append(np.stack([x * s, y * s], -1).reshape(-1, 2))
            strides.append(np.full(len(points[-1]), s, np.float32))
        return np.concatenate(points), np.concatenate(strides)

    def predict_image(self, image: np.ndarray, score_threshold: float | None) -> Detections:
        x, scale = self.preprocess(image)
        codes, objectness, logits = (t.numpy()[0] for t in planned(self, x))
        threshold = self.score_threshold if score_threshold is None else score_threshold
        presence = sigmoid(objectness[:, 0])
        rows = np.flatnonzero(presence >= threshold)  # the others cannot reach it
        slots = logits[rows].argmax(1)
        scores = presence[rows] * sigmoid(logits[rows, slots])
        enough = scores >= threshold
        rows, slots, scores = rows[enough], slots[enough], scores[enough]
        boxes = self.decode(codes[rows], rows)
        keep = box_ops.batched_nms(boxes, scores, slots, self.nms_threshold)
        return self.detections(image, boxes[keep] / np.float32(scale), scores[keep], slots[keep])

    def decode(self, codes: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Boxes (n, 4) xyxy in pixels of the input from the codes (n, 4) of the cells ``rows`` (n,)."""
        points, strides = self.corners(self.size)
        stride = strides[rows, None]
        centre = codes[:, :2] * stride + points[rows]
        return box_ops.cxcywh_to_xyxy(np.concatenate([centre, np.exp(codes[:, 2:]) * stride], 1))

    def losses(self, samples: Sequence[Sample], rng: np.random.Generator) -> dict[str, Tensor]:
        """The "box", "objectness" and "class" losses of a batch; training minimises their sum.

        As in the official code, without the L1 loss that it adds in the last epochs of a training of hundreds.
        """
        inputs, truths = [], []
        for sample in samples:
            x, scale = self.preprocess(sample.image)
            inputs.append(x.data)
            boxes = np.zeros((0, 4), np.float32) if sample.boxes is None else sample.boxes
            truths.append(truth_of(sample, self.categories, boxes * np.float32(scale)))
        return self.losses_of(*self(Tensor(np.concatenate(inputs))), truths)

    def losses_of(
        self, codes: Tensor, objectness: Tensor, logits: Tensor, truths: Sequence[Truth]
    ) -> dict[str, Tensor]:
        """The losses of what the head said, (n, cells, 4), (n, cells, 1) and (n, cells, classes), about n images.

        Of the cells that SimOTA gives to objects 1 - IoU^2, times 5, and the cross entropy of the classes, whose
        target is the IoU; the cross entropy of all cells' objectness; each over the number of the objects' cells.
        """
        points, strides = self.corners(self.size)
        cells = np.concatenate([points, points + strides[:, None]], 1)
        matched = []
        for i, truth in enumerate(truths):
            scores = np.sqrt(sigmoid(logits.data[i]) * sigmoid(objectness.data[i]))
            boxes = self.decode(codes.data[i], np.arange(len(cells)))
            matched.append(dynamic_match(cells, truth, boxes, scores, self.radius, self.candidates))
        matches, quality = (np.stack(part) for part in zip(*matched))
        found = claimed(matches, truths)
        count, at = max(len(found.anchor), 1), (found.image, found.anchor)

        code, stride = codes[at], strides[found.anchor, None]
        centre = code[:, :2] * Tensor(stride) + Tensor(points[found.anchor])
        half = F.exp(code[:, 2:]) * Tensor(stride / 2)
        box = F.concatenate([centre - half, centre + half], 1)
        miss = iou_loss(box, Tensor(found.boxes), "iou", "none", 1e-16)
        present = F.sigmoid_cross_entropy(objectness[:, :, 0], Tensor((matches >= 0).astype(np.float32)), "none")
        target = np.zeros((len(found.anchor), logits.shape[2]), np.float32)
        target[np.arange(len(target)), found.slots] = quality[at]
        return {
            "box": (miss * (2 - miss)).sum() * (5 / count),  # 1 - IoU^2
            "objectness": (present * Tensor((matches != NEITHER).astype(np.float32))).sum() / count,
            "class": F.sigmoid_cross_entropy(logits[at], Tensor(target), "sum") / count,
        }


def _yolox(categories: Categories, depth: float, width: float, size: int, conv: Conv = BaseConv) -> YOLOX:
    """YOLOX on CSPDarknet: ``depth`` and ``width`` scale the blocks and channels of YOLOX-L."""
    blocks = round(3 * depth)
    backbone = PathAggregation(CSPDarknet(int(64 * width), blocks, conv), blocks, conv)
    head = DecoupledHead(backbone.channels, int(256 * width), categories.outputs, conv)
    return YOLOX(backbone, head, categories, (size, size))


def yolox_nano(categories: Categories) -> YOLOX:
    """YOLOX-Nano at 416 pixels: depthwise convolutions."""
    return _yolox(categories, 0.33, 0.25, 416, DepthwiseConv)


def yolox_tiny(categories: Categories) -> YOLOX:
    """YOLOX-Tiny at 416 pixels."""
    return _yolox(categories, 0.33, 0.375, 416)


def yolox_s(categories: Categories) -> YOLOX:
    """YOLOX-S at 640 pixels."""
    return _yolox(categories, 0.33, 0.5, 640)


def yolox_m(categories: Categories) -> YOLOX:
    """YOLOX-M at 640 pixels."""
    return _yolox(categories, 0.67, 0.75, 640)


def yolox_l(categories: Categories) -> YOLOX:
    """YOLOX-L at 640 pixels."""
    return _yolox(categories, 1.0, 1.0, 640)


def yolox_x(categories: Categories) -> YOLOX:
    """YOLOX-X at 640 pixels."""
    return _yolox(categories, 1.33, 1.25, 640)


def yolox_darknet53(categories: Categories) -> YOLOX:
    """YOLOX on Darknet-53 at 640 pixels: YOLOv3's network with the new head."""
    backbone = TopDown()
    conv = partial(BaseConv, activation=leaky)
    head = DecoupledHead(backbone.channels, 256, categories.outputs, conv, conv)
    return YOLOX(backbone, head, categories, (640, 640))


def _info(build: Callable[[Categories], YOLOX], file: str, parameters: int, box_ap: float, gflops: float) -> ModelInfo:
    weights = WeightsEntry(
        name="COCO",
        url=f"https://github.com/Megvii-BaseDetection/YOLOX/releases/download/0.1.1rc0/{file}.pth",
        sha256="",
        size=None,
        parameters=parameters,
        licence="Apache-2.0",
        source="Megvii, github.com/Megvii-BaseDetection/YOLOX",
        categories=COCO_80,
        category_ids=COCO_80_IDS,
        metrics={"COCO val2017": {"box AP": box_ap}},
    )
    paper = "Ge et al. 2021, YOLOX: Exceeding YOLO series in 2021"
    return ModelInfo(build.__name__, "detection", build, Categories.plain, (weights,), paper, gflops)


MODELS = (
    _info(yolox_nano, "yolox_nano", 912_159, 25.8, 1.08),
    _info(yolox_tiny, "yolox_tiny", 5_055_855, 32.8, 6.45),
    _info(yolox_s, "yolox_s", 8_968_255, 40.5, 26.8),
    _info(yolox_m, "yolox_m", 25_326_495, 46.9, 73.8),
    _info(yolox_l, "yolox_l", 54_208_895, 49.7, 155.6),
    _info(yolox_x, "yolox_x", 99_071_455, 51.1, 281.9),
    _info(yolox_darknet53, "yolox_darknet", 63_724_767, 47.7, 185.3),
)
