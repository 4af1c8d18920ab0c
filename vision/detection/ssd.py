"""SSD: Liu et al. 2016, "SSD: Single shot multibox detector", and SSDLite (Sandler et al. 2018, section 6.2)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise

import numpy as np

from ...core import Parameter, Tensor
from ...core import functions as F
from ...core.layers import BatchNorm2d, Conv2d, MaxPool2d, Module, ModuleList, ReLU, ReLU6, Sequential, init
from ...core.plan import planned
from ...weights import chainer
from ...weights.torchvision import coco_entry
from .. import boxes as box_ops
from ..backbones.blocks import Norm, conv_norm_activation, initialise
from ..backbones.mobilenet_v3 import LARGE_REDUCED_TAIL, InvertedResidual, MobileNetV3
from ..backbones.vgg import VGG, D
from ..categories import Categories
from ..model import Detector, ModelInfo, softmax
from ..results import Detections
from ..sample import Sample
from .anchors import DefaultBoxes
from .resizing import FixedResize
from .rpn import top_indices
from .targets import BACKGROUND, Truth, hardest, match_and_claim_best, match_and_claim_in_turn, truth_of


class MapModules(Module):
    """One module for each map; their outputs as rows of ``width`` values, joined over the maps."""

    def __init__(self, modules: list[Module], width: int) -> None:
        self.module_list = ModuleList(modules)
        self.width = width

    def forward(self, maps: Sequence[Tensor]) -> Tensor:
        rows = [
            module(x).transpose(0, 2, 3, 1).reshape(x.shape[0], -1, self.width)
            for module, x in zip(self.module_list, maps, strict=True)
        ]
        return F.concatenate(rows, 1)


class MultiBoxHead(Module):
    """For each default box of each cell of every map class logits and a box code (figure 2)."""

    def __init__(self, classification: list[Module], regression: list[Module], classes: int) -> None:
        self.classification_head = MapModules(classification, classes)
        self.regression_head = MapModules(regression, 4)

    def forward(self, maps: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Class logits (n, boxes, classes) and codes (n, boxes, 4)."""
        return self.classification_head(maps), self.regression_head(maps)


class SSD(Detector):
    """A backbone with maps of falling size, default boxes on each, and a head that classifies and moves them.

    >>> model = ssdlite320_mobilenet_v3_large(Categories.with_background(["boat"]))
    >>> model.head.classification_head.module_list[0][1].weight.shape
    (12, 672, 1, 1)
    """

    coder = box_ops.BoxCoder((10.0, 10.0, 5.0, 5.0))
    class_layers = ("head.classification_head.",)

    def __init__(
        self,
        backbone: Module,
        default_boxes: DefaultBoxes,
        head: MultiBoxHead,
        categories: Categories,
        resize: FixedResize,
    ) -> None:
        self.backbone, self.head = backbone, head
        self.default_boxes, self.categories, self.resize = default_boxes, categories, resize
        self.score_threshold, self.nms_threshold = 0.01, 0.45
        self.per_class, self.limit = 400, 200  # None is all
        self.inside = True  # boxes end at the photo's edges
        self.match = match_and_claim_best

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, np.ndarray]:
        """Class logits (n, boxes, classes), codes (n, boxes, 4) and the default boxes (boxes, 4)."""
        maps = self.backbone(x)
        logits, codes = self.head(maps)
        anchors = self.default_boxes([m.shape[2:] for m in maps], x.shape[2:])  # type: ignore[arg-type]
        return logits, codes, anchors

    def predict_image(self, image: np.ndarray, score_threshold: float | None) -> Detections:
        x, size = self.resize(image)
        logits, codes, anchors = planned(self, x)
        threshold = self.score_threshold if score_threshold is None else score_threshold
        boxes, scores, slots = self.select(logits.numpy()[0], codes.numpy()[0], anchors, size, threshold)
        return self.detections(image, box_ops.scale(boxes, size, image.shape[:2]), scores, slots)  # type: ignore[arg-type]

    def select(
        self,
        logits: np.ndarray,
        codes: np.ndarray,
        anchors: np.ndarray,
        image_size: tuple[int, int],
        score_threshold: float,
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Boxes (n, 4), scores (n,) and classes (n,): the best of each class, after suppression within it."""
        scores = np.ascontiguousarray(softmax(logits)[:, 1:].T)  # (classes, boxes); output 0 is the background
        chosen = scores > score_threshold
        if self.per_class is not None:
            for k in np.flatnonzero(chosen.sum(1) > self.per_class):
                chosen[k] = False
                chosen[k, top_indices(scores[k], self.per_class)] = True
        column, row = np.nonzero(chosen)
        score = scores[column, row]
        boxes = self.coder.decode(anchors, codes)
        boxes = (box_ops.clip(boxes, image_size) if self.inside else boxes)[row]
        keep = box_ops.batched_nms(boxes, score, column, self.nms_threshold, self.limit)
        return boxes[keep], score[keep], column[keep] + 1

    def losses(self, samples: Sequence[Sample], rng: np.random.Generator) -> dict[str, Tensor]:
        """The "class" and "box" losses of a batch; training minimises their sum."""
        inputs, truths = [], []
        for sample in samples:
            x, size = self.resize(sample.image)
            inputs.append(x.data)
            boxes = np.zeros((0, 4), np.float32) if sample.boxes is None else sample.boxes
            truths.append(truth_of(sample, self.categories, box_ops.scale(boxes, sample.size, size)))
        logits, codes, anchors = self(Tensor(np.concatenate(inputs)))
        return self.losses_of(logits, codes, anchors, truths)

    def losses_of(
        self, logits: Tensor, codes: Tensor, anchors: np.ndarray, truths: Sequence[Truth]
    ) -> dict[str, Tensor]:
        """The losses of what the head said, (n, boxes, classes) and (n, boxes, 4), about n images (section 2.2).

        The cross entropy of all objects' boxes and, for each, of the three background boxes with the greatest loss;
        smooth L1 of the objects' codes; both over the number of objects' boxes.
        """
        rows, targets, at, wanted = [], [], [], []
        surprise = -F.log_softmax(logits.detach(), 2).numpy()[:, :, 0]
        for i, truth in enumerate(truths):
            matches = self.match(anchors, truth, 0.5)
            objects = np.flatnonzero(matches >= 0)
            background = hardest(surprise[i], matches == BACKGROUND, 3 * len(objects))
            start = i * len(anchors)
            rows += [objects + start, background + start]
            targets += [truth.slots[matches[objects]], np.zeros(len(background), np.int64)]
            at.append(objects + start)
            wanted.append(self.coder.encode(anchors[objects], truth.boxes[matches[objects]]))
        count = max(sum(map(len, at)), 1)
        row, target = np.concatenate(rows), np.concatenate(targets)
        chosen = logits.reshape(-1, logits.shape[2])[row]
        code = codes.reshape(-1, 4)[np.concatenate(at)]
        return {
            "class": F.softmax_cross_entropy(chosen, target, reduction="sum") / count,
            "box": F.smooth_l1_loss(code, Tensor(np.concatenate(wanted)), reduction="sum") / count,
        }


class SSDBackbone(Module):
    """VGG-16 to its last convolution, its fully connected layers as convolutions, and more ``blocks`` (figure 2).

    The first map, conv4_3, is divided by its norm in each cell and scaled for each channel (section 3.1).
    """

    def __init__(self, blocks: Sequence[Sequential]) -> None:
        parts = list(VGG(D).features)
        pools = [i for i, part in enumerate(parts) if isinstance(part, MaxPool2d)]
        parts[pools[2]] = MaxPool2d(2, ceil_mode=True)
        self.scale_weight = Parameter(init.constant((512,), 20))
        self.features = Sequential(*parts[: pools[3]])
        fc6, fc7 = Conv2d(512, 1024, 3, padding=6, dilation=6), Conv2d(1024, 1024, 1)
        fully = Sequential(MaxPool2d(3, 1, 1), fc6, ReLU(), fc7, ReLU())
        self.channels = (512, 1024, *(block[2].weight.shape[0] for block in blocks))  # type: ignore[attr-defined]
        self.extra = ModuleList([Sequential(*parts[pools[3] : pools[4]], fully), *blocks])
        for part in (fully, *blocks):
            initialise(part, Conv2d, init.xavier_uniform)

    def forward(self, x: Tensor) -> list[Tensor]:
        x = self.features(x)
        maps = [F.normalize(x) * self.scale_weight.reshape(1, -1, 1, 1)]
        for block in self.extra:
            x = block(x)
            maps.append(x)
        return maps


def _reduced(in_channels: int, width: int, stride: int = 1, kernel: int = 3) -> Sequential:
    """1x1 to ``width`` channels and 3x3 to twice as many, with padding where there is a stride or a larger kernel."""
    last = Conv2d(width, 2 * width, kernel, stride, stride - 1 + kernel - 3)
    return Sequential(Conv2d(in_channels, width, 1), ReLU(), last, ReLU())


class SSDLiteBackbone(Module):
    """MobileNetV3 cut inside the last strided bottleneck, after its expansion, and four more strided blocks."""

    def __init__(self, body: MobileNetV3, norm: Norm) -> None:
        parts = list(body.features)
        cut = max(i for i, part in enumerate(parts) if isinstance(part, InvertedResidual) and _strided(part))
        expand, *rest = parts[cut].block  # type: ignore[attr-defined]
        after = Sequential(**{str(i): part for i, part in enumerate(rest, 1)})  # keeps the names they had in the block
        self.features = Sequential(Sequential(*parts[:cut], expand), Sequential(after, *parts[cut + 1 :]))
        widths = (body.channels[-1], 512, 256, 256, 128)
        self.extra = ModuleList([_extra(a, b, norm) for a, b in pairwise(widths)])
        self.channels = (expand[0].weight.shape[0], *widths)

    def forward(self, x: Tensor) -> list[Tensor]:
        maps = []
        for part in (*self.features, *self.extra):
            x = part(x)
            maps.append(x)
        return maps


def _strided(part: InvertedResidual) -> bool:
    return any(isinstance(m, Conv2d) and m.spec.stride != (1, 1) for _, m in part.named_modules())


def _extra(in_channels: int, out_channels: int, norm: Norm) -> Sequential:
    """Half as many channels, depthwise with stride 2, and out."""
    half = out_channels // 2
    return Sequential(
        conv_norm_activation(in_channels, half, 1, norm=norm, activation=ReLU6()),
        conv_norm_activation(half, half, 3, 2, groups=half, norm=norm, activation=ReLU6()),
        conv_norm_activation(half, out_channels, 1, norm=norm, activation=ReLU6()),
    )


def _separable(in_channels: int, out_channels: int, norm: Norm) -> Sequential:
    """SSDLite's predictor: depthwise, then 1x1."""
    depthwise = conv_norm_activation(in_channels, in_channels, 3, groups=in_channels, norm=norm, activation=ReLU6())
    return Sequential(depthwise, Conv2d(in_channels, out_channels, 1))


def _vgg16(categories: Categories, blocks: Sequence[Sequential], boxes: DefaultBoxes, resize: FixedResize) -> SSD:
    backbone = SSDBackbone(blocks)
    head = MultiBoxHead(
        [Conv2d(c, n * categories.outputs, 3, padding=1) for c, n in zip(backbone.channels, boxes.per_cell)],
        [Conv2d(c, n * 4, 3, padding=1) for c, n in zip(backbone.channels, boxes.per_cell)],
        categories.outputs,
    )
    initialise(head, Conv2d, init.xavier_uniform)
    return SSD(backbone, boxes, head, categories, resize)


def _blocks300() -> list[Sequential]:
    return [_reduced(1024, 256, 2), _reduced(512, 128, 2), _reduced(256, 128), _reduced(256, 128)]


def ssd300_vgg16(categories: Categories) -> SSD:
    """SSD on VGG-16, 300x300 pixels, as torchvision has it."""
    scales = [0.07, 0.15, 0.33, 0.51, 0.69, 0.87, 1.05]
    boxes = DefaultBoxes([[2], [2, 3], [2, 3], [2, 3], [2], [2]], scales, (8, 16, 32, 64, 100, 300))
    resize = FixedResize((300, 300), (0.48235, 0.45882, 0.40784), (1 / 255, 1 / 255, 1 / 255))
    return _vgg16(categories, _blocks300(), boxes, resize)


def _chainercv(
    categories: Categories,
    blocks: Sequence[Sequential],
    size: int,
    ratios: Sequence[Sequence[float]],
    scales: Sequence[float],
    steps: Sequence[int],
) -> SSD:
    """ChainerCV's: default boxes may be larger than the image, boxes reach over it, and their number has no limit."""
    resize = FixedResize((size, size), (123 / 255, 117 / 255, 104 / 255), (1 / 255, 1 / 255, 1 / 255))
    model = _vgg16(categories, blocks, DefaultBoxes(ratios, scales, steps, math.inf), resize)
    model.per_class = model.limit = None
    model.inside = False
    model.match = match_and_claim_in_turn
    return model


def ssd300(categories: Categories) -> SSD:
    """SSD on VGG-16, 300x300 pixels, as the paper and ChainerCV have it."""
    ratios, steps = [[2], [2, 3], [2, 3], [2, 3], [2], [2]], (8, 16, 32, 64, 100, 300)
    scales = [pixels / 300 for pixels in (30, 60, 111, 162, 213, 264, 315)]
    return _chainercv(categories, _blocks300(), 300, ratios, scales, steps)


def ssd512(categories: Categories) -> SSD:
    """SSD on VGG-16, 512x512 pixels, as the paper and ChainerCV have it."""
    ratios, steps = [[2], [2, 3], [2, 3], [2, 3], [2, 3], [2], [2]], (8, 16, 32, 64, 128, 256, 512)
    scales = [pixels / 512 for pixels in (35.84, 76.8, 153.6, 230.4, 307.2, 384.0, 460.8, 537.6)]
    strided = [_reduced(1024, 256, 2), *(_reduced(before, 128, 2) for before in (512, 256, 256))]
    return _chainercv(categories, [*strided, _reduced(256, 128, kernel=4)], 512, ratios, scales, steps)


def _chainercv_rules() -> list[tuple[str, str]]:
    """The layers' names in ChainerCV's files and here."""
    vgg = [(stage + 1, i + 1) for stage, depth in enumerate(D) for i in range(depth)]
    at = [part for stage, depth in enumerate(D[:4]) for part in range(sum(D[:stage]) * 2 + stage, 1000, 2)[:depth]]
    rules = [(rf"^extractor\.conv{s}_{i}\.", f"backbone.features.{k}.") for (s, i), k in zip(vgg, at)]
    rules += [(rf"^extractor\.conv5_{i}\.", f"backbone.extra.0.{2 * i - 1}.") for i in (1, 2, 3)]
    rules += [(r"^extractor\.conv6\.", "backbone.extra.0.7.1."), (r"^extractor\.conv7\.", "backbone.extra.0.7.3.")]
    rules += [
        (rf"^extractor\.conv{n}_{i}\.", f"backbone.extra.{n - 7}.{2 * i - 2}.") for n in range(8, 13) for i in (1, 2)
    ]
    rules += [(r"^extractor\.norm4\.scale", "backbone.scale_weight")]
    rules += [(r"^multibox\.loc", "head.regression_head.module_list")]
    return [*rules, (r"^multibox\.conf", "head.classification_head.module_list")]


def ssdlite320_mobilenet_v3_large(categories: Categories) -> SSD:
    """SSDLite on MobileNetV3-Large with the reduced tail, 320x320 pixels."""
    norm = partial(BatchNorm2d, eps=1e-3, momentum=0.03)
    backbone = SSDLiteBackbone(MobileNetV3(LARGE_REDUCED_TAIL, norm), norm)
    scales = [0.2 + 0.75 * k / 5 for k in range(6)]
    boxes = DefaultBoxes([[2, 3]] * 6, [*scales, 1.0])
    head = MultiBoxHead(
        [_separable(c, n * categories.outputs, norm) for c, n in zip(backbone.channels, boxes.per_cell)],
        [_separable(c, n * 4, norm) for c, n in zip(backbone.channels, boxes.per_cell)],
        categories.outputs,
    )
    model = SSD(backbone, boxes, head, categories, FixedResize((320, 320), (0.5, 0.5, 0.5), (0.5, 0.5, 0.5)))
    model.score_threshold, model.per_class, model.nms_threshold, model.limit = 0.001, 300, 0.55, 300
    for _, module in model.named_modules():
        if isinstance(module, Conv2d):
            module.weight.data = init.normal(module.weight.shape, 0.03)
            if module.bias is not None:
                module.bias.data = init.constant(module.bias.shape, 0)
    return model


def _chainercv_info(
    build: Callable[[Categories], SSD], parameters: int, gflops: float, *entries: tuple[str, str, float]
) -> ModelInfo:
    """The row of one of ChainerCV's; ``entries`` are name, file and AP50 on VOC2007."""
    listed = tuple(
        chainer.entry(name, file, parameters, {"VOC2007 test": {"AP50": figure}}) for name, file, figure in entries
    )
    convert = chainer.converter(_chainercv_rules(), (r"head\.regression_head", chainer.swap_axes))
    paper = "Liu et al. 2016, SSD: Single shot multibox detector"
    spread = Categories.with_background
    return ModelInfo(build.__name__, "detection", build, spread, listed, paper, gflops, convert=convert)


MODELS = (
    _chainercv_info(
        ssd300,
        26_285_486,
        31.374,
        ("VOC0712", "ssd300_voc0712_converted_2017_06_06", 77.8),
        ("VOC0712_TRAINED", "ssd300_voc0712_trained_2017_08_08", 77.5),
    ),
    _chainercv_info(
        ssd512,
        27_188_676,
        90.208,
        ("VOC0712", "ssd512_voc0712_converted_2017_06_06", 79.7),
        ("VOC0712_TRAINED", "ssd512_voc0712_trained_2017_08_08", 80.1),
    ),
    ModelInfo(
        name="ssd300_vgg16",
        task="detection",
        build=ssd300_vgg16,
        spread=Categories.with_background,
        published=Categories.by_id,
        entries=(coco_entry("ssd300_vgg16_coco-b556d3b4", 35_641_826, box_ap=25.1),),
        paper="Liu et al. 2016, SSD: Single shot multibox detector",
        gflops=34.858,
    ),
    ModelInfo(
        name="ssdlite320_mobilenet_v3_large",
        task="detection",
        build=ssdlite320_mobilenet_v3_large,
        spread=Categories.with_background,
        published=Categories.by_id,
        entries=(coco_entry("ssdlite320_mobilenet_v3_large_coco-a79551df", 3_440_060, box_ap=21.3),),
        paper="Howard et al. 2019, Searching for MobileNetV3, section 6.3; Liu et al. 2016, SSD",
        gflops=0.583,
    ),
)
