"""Darknet's detectors from their `.cfg` files: YOLOv2 (Redmon and Farhadi 2017, "YOLO9000"), YOLOv3 (2018), YOLOv4
(Bochkovskiy et al. 2020), their tiny versions, Yolo-Fastest and what else is made of the same layers."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from ...core import Tensor
from ...core import functions as F
from ...core.layers import (
    Activation,
    BatchNorm2d,
    Conv2d,
    Dropout,
    Identity,
    LeakyReLU,
    MaxPool2d,
    Mish,
    Module,
    ModuleList,
    ReLU,
    ReLU6,
    Sequential,
    Sigmoid,
    SiLU,
    Tanh,
    init,
)
from ...core.plan import planned
from ...weights import darknet as files
from ...weights.categories import COCO_80, COCO_80_IDS, VOC_20
from ...weights.darknet import Section
from ...weights.errors import WeightsError
from .. import boxes as box_ops
from ..categories import Categories
from ..model import Detector, ModelInfo
from ..results import Detections
from ..sample import Sample
from .anchor_head import AnchorHead, RegionLoss, YoloLoss
from .targets import Truth, truth_of

log = logging.getLogger("chainsight")

NAME = "darknet"
PAPER = "Redmon and Farhadi 2018, YOLOv3: an incremental improvement; Bochkovskiy et al. 2020, YOLOv4"
Shape = tuple[int, int, int]  # channels, height, width

ACTIVATIONS: dict[str, Callable[[], Activation] | None] = {
    "linear": None,
    "leaky": partial(LeakyReLU, 0.1),
    "logistic": Sigmoid,
    "mish": Mish,
    "relu": ReLU,
    "relu6": ReLU6,
    "swish": SiLU,
    "tanh": Tanh,
}

# Of each section the options that say what it computes, and those that matter in training alone.
OPTIONS = {
    "net": (
        "width height channels letter_box",
        "batch subdivisions time_steps track augment_speed sequential_subdivisions try_fix_nan loss_scale "
        "dynamic_minibatch optimized_memory workspace_size_limit_mb adam b1 b2 eps ema_alpha weights_reject_freq "
        "equidistant_point badlabels_rejection_percentage num_sigmas_reject_badlabels min_crop max_crop mixup cutmix "
        "mosaic mosaic_bound angle aspect saturation exposure hue power policy learning_rate learning_rate_min "
        "batches_per_cycle batches_cycle_mult burn_in step steps scale scales gamma seq_scales max_batches momentum "
        "decay blur gaussian_noise show_receptive_field resize_step attention adversarial_lr max_chart_loss "
        "label_smooth_eps flip center",
    ),
    "convolutional": (
        "filters size stride stride_x stride_y pad padding groups dilation batch_normalize activation",
        "stopbackward onlyforward dont_update burnin_update train_only_bn learning_rate grad_centr",
    ),
    "shortcut": ("from activation", ""),
    "route": ("layers groups group_id", "stopbackward"),
    "maxpool": ("size stride stride_x stride_y padding", ""),
    "upsample": ("stride scale", ""),
    "reorg": ("stride", ""),
    "avgpool": ("", ""),
    "dropout": ("probability", ""),
    "region": (
        "anchors num classes coords softmax",
        "bias_match jitter rescore object_scale noobject_scale class_scale coord_scale absolute thresh random",
    ),
    "yolo": (
        "anchors mask num classes scale_x_y new_coords nms_kind",
        "jitter resize random ignore_thresh truth_thresh iou_thresh iou_loss iou_normalizer cls_normalizer "
        "obj_normalizer delta_normalizer max_delta max beta_nms label_smooth_eps objectness_smooth focal_loss "
        "counters_per_class map show_details stopbackward iou_thresh_kind",
    ),
}


# What changes Darknet's losses and has no part in ours, with the values that leave them as they are.
NOT_LEARNED = {
    "region": {},
    "yolo": {
        "focal_loss": "0",
        "objectness_smooth": "0",
        "max_delta": "",
        "counters_per_class": "",
        "iou_thresh_kind": "iou",
    },
}


class Shortcut(Module):
    """The sum of maps of one shape, then an activation."""

    def __init__(self, activation: Activation | None) -> None:
        self.act = activation or Identity()

    def forward(self, x: Tensor, *others: Tensor) -> Tensor:
        for other in others:
            x = x + other
        return self.act(x)  # type: ignore[no-any-return]


class Route(Module):
    """Maps joined channel by channel; of several ``groups`` of each map's channels only the one numbered ``group``."""

    def __init__(self, groups: int = 1, group: int = 0) -> None:
        self.groups, self.group = groups, group

    def forward(self, *maps: Tensor) -> Tensor:
        parts = []
        for x in maps:
            width = x.shape[1] // self.groups
            parts.append(x if self.groups == 1 else x[:, self.group * width : (self.group + 1) * width])
        return parts[0] if len(parts) == 1 else F.concatenate(parts, 1)


class PaddedMaxPool(Module):
    """A max pooling whose padding, all below and to the right, never wins."""

    def __init__(self, size: int, stride: tuple[int, int], before: int, after: int) -> None:
        self.size, self.stride, self.widths = size, stride, (before, after)

    def forward(self, x: Tensor) -> Tensor:
        lowest = float(np.finfo(np.float32).min)
        return F.max_pool2d(F.pad(x, [(0, 0), (0, 0), self.widths, self.widths], lowest), self.size, self.stride)


class Upsample(Module):
    """Each value ``stride`` times in both directions, times ``scale``."""

    def __init__(self, stride: int, scale: float) -> None:
        self.stride, self.scale = stride, scale

    def forward(self, x: Tensor) -> Tensor:
        y = F.resize(x, (x.shape[2] * self.stride, x.shape[3] * self.stride), "nearest")
        return y if self.scale == 1 else y * self.scale


class Reorg(Module):
    """Maps of stride² times the channels and a stride-th of the sides, in the order that Darknet's weights expect.

    It takes the values for those of a map with fewer channels and larger sides, whose cells of stride x stride become
    channels; the rows of the true map are mixed so, which the layers after it have learned with.
    """

    def __init__(self, stride: int) -> None:
        self.stride = stride

    def forward(self, x: Tensor) -> Tensor:
        (n, c, h, w), s = x.shape, self.stride
        cells = x.reshape(n, c // s**2, h, s, w, s).transpose(0, 3, 5, 1, 2, 4)
        return cells.reshape(n, c * s**2, h // s, w // s)


class GlobalAverage(Module):
    """The mean of each map."""

    def forward(self, x: Tensor) -> Tensor:
        return F.mean(x, (2, 3), True)


class Network(Module):
    """The layers of a `.cfg`, one module for each section after [net]; x (n, channels, height, width) to what the
    [yolo] and [region] sections get.

    ``outputs`` is the number of classes, whatever the `.cfg` says. Raises WeightsError, which names the line, for
    sections, options and values that are unknown or do not fit together.
    """

    def __init__(self, sections: Sequence[Section], outputs: int) -> None:
        for section in sections:
            _check_options(section)
        net, *layers = sections
        self.size = (net.integer("height", least=1), net.integer("width", least=1))
        self.outputs = outputs
        self.sources: list[tuple[int, ...]] = []  # of each layer; -1 is the image
        self.shapes: list[Shape] = [(net.integer("channels", 3, least=1), *self.size)]  # the last is the image's
        modules = []
        for i, section in enumerate(layers):
            after = layers[i + 1] if i + 1 < len(layers) else None
            module, sources, shape = self._layer(section, i, after)
            modules.append(module)
            self.sources.append(sources)
            self.shapes.insert(i, shape)
        self.layers = ModuleList(modules)
        self.heads = [i for i, module in enumerate(modules) if isinstance(module, AnchorHead)]
        if not self.heads:
            raise WeightsError("expected a detector, got a .cfg without a [yolo] or [region] section")
        self.filters = {i: section.integer("filters", 1) for i, section in enumerate(layers)}
        self.kept = {s for i, sources in enumerate(self.sources) for s in sources if s != i - 1}

    def forward(self, x: Tensor) -> list[Tensor]:
        found, kept = [], {-1: x}
        for i, (layer, sources) in enumerate(zip(self.layers, self.sources)):
            x = layer(*(x if s == i - 1 else kept[s] for s in sources))
            if i in self.kept:
                kept[i] = x
            if i in self.heads:
                found.append(x)
        return found

    def stored(self) -> list[tuple[str, tuple[int, ...]]]:
        """The names and shapes of all parameters in the order of a `.weights` file."""
        own = {name: array.shape for name, array in self.state_dict().items()}
        for i in self.heads:  # the file's classes may be others
            for part in ("weight", "bias"):
                name = f"layers.{i - 1}.conv.{part}"
                own[name] = (self.filters[i - 1], *own[name][1:])
        order = ("bn.bias", "conv.bias", "bn.weight", "bn.running_mean", "bn.running_var", "conv.weight")
        names = [f"layers.{i}.{part}" for i in range(len(self.layers)) for part in order]
        return [(name, own[name]) for name in names if name in own]

    def _layer(self, section: Section, i: int, after: Section | None) -> tuple[Module, tuple[int, ...], Shape]:
        """The module of section i, the layers it takes, and the shape of its output."""
        taken = {"shortcut": "from", "route": "layers"}.get(section.kind)
        sources = (i - 1,) if taken is None else _sources(section, taken, i)
        if section.kind == "shortcut":
            sources = (i - 1, *sources)
        shapes = [self.shapes[s] for s in sources]
        match section.kind:
            case "convolutional":
                count = section.integer("filters", 1, least=1)
                if after is not None and after.kind in ("yolo", "region"):
                    count = _head_channels(section, after, self.outputs)
                made = _convolution(section, shapes[0], count)
            case "shortcut":
                made = _shortcut(section, shapes)
            case "route":
                made = _route(section, shapes)
            case "maxpool":
                made = _max_pool(section, shapes[0])
            case "upsample":
                made = _upsample(section, shapes[0])
            case "reorg":
                made = _reorg(section, shapes[0])
            case "avgpool":
                made = GlobalAverage(), (shapes[0][0], 1, 1)
            case "dropout":
                made = Dropout(section.number("probability", 0.5)), shapes[0]
            case "yolo":
                made = _yolo(section, shapes[0], self.outputs), shapes[0]
            case _:
                made = _region(section, shapes[0], self.outputs, self.size), shapes[0]
        return made[0], sources, made[1]


def _check_options(section: Section) -> None:
    kind = "net" if section.kind == "network" else section.kind
    if kind not in OPTIONS:
        raise section.error(f"is not a section that is supported, expected one of {', '.join(OPTIONS)}")
    known = {option for part in OPTIONS[kind] for option in part.split()}
    for option in section.options:
        if option.lower() not in known:
            raise section.error(f"does not take the option {option}={section.options[option]}", option)


def _sources(section: Section, option: str, i: int) -> tuple[int, ...]:
    """The layers that an option lists: by number, or counted back from layer i."""
    found = []
    for given in section.integers(option):
        source = i + given if given < 0 else given
        if not 0 <= source < i:
            raise section.error(f"expected {option} to name layers before this one, number {i}, got {given}", option)
        found.append(source)
    return tuple(found)


def _activation(section: Section, default: str) -> Activation | None:
    name = section.text("activation", default)
    if name not in ACTIVATIONS:
        raise section.error(f"expected an activation of {', '.join(ACTIVATIONS)}, got {name}", "activation")
    make = ACTIVATIONS[name]
    return None if make is None else make()


def _strides(section: Section) -> tuple[int, int]:
    stride = section.integer("stride", 1, least=1)
    return section.integer("stride_y", stride, least=1), section.integer("stride_x", stride, least=1)


def _convolution(section: Section, shape: Shape, filters: int) -> tuple[Module, Shape]:
    size, groups = section.integer("size", 1, least=1), section.integer("groups", 1, least=1)
    strides, dilation = _strides(section), section.integer("dilation", 1, least=1) if size > 1 else 1
    padding = size // 2 if section.integer("pad", 0) else section.integer("padding", 0)
    height, width = ((side + 2 * padding - size) // stride + 1 for side, stride in zip(shape[1:], strides))
    if shape[0] % groups or filters % groups:
        raise section.error(f"expected groups that divide {shape[0]} and {filters} channels, got {groups}", "groups")
    if min(height, width) < 1:
        raise section.error(f"expected a kernel that fits maps of {_sizes([shape])}, got size {size}", "size")
    normed = bool(section.integer("batch_normalize", 0))
    conv = Conv2d(shape[0], filters, size, strides, padding * dilation, dilation, groups, bias=not normed)
    parts: dict[str, Module] = {"conv": conv}
    if normed:
        parts["bn"] = BatchNorm2d(filters)
    if (activation := _activation(section, "logistic")) is not None:
        parts["act"] = activation
    return Sequential(**parts), (filters, height, width)


def _head_channels(section: Section, head: Section, outputs: int) -> int:
    """The channels that the convolution before a [yolo] or [region] section needs for ``outputs`` classes."""
    anchors = len(_mask(head)) if head.kind == "yolo" else head.integer("num", 1, least=1)
    stated, classes = section.integer("filters", 1, least=1), head.integer("classes", 20, least=1)
    if stated != anchors * (5 + classes):
        raise section.error(
            f"expected filters={anchors * (5 + classes)} for {anchors} anchors and {classes} classes of the "
            f"[{head.kind}] on line {head.line}, got {stated}",
            "filters",
        )
    return anchors * (5 + outputs)


def _shortcut(section: Section, shapes: Sequence[Shape]) -> tuple[Module, Shape]:
    if len(set(shapes)) > 1:
        raise section.error(f"expected maps of one shape to add, got {_sizes(shapes)}", "from")
    return Shortcut(_activation(section, "linear")), shapes[0]


def _route(section: Section, shapes: Sequence[Shape]) -> tuple[Module, Shape]:
    groups, group = section.integer("groups", 1, least=1), section.integer("group_id", 0)
    if len({shape[1:] for shape in shapes}) > 1:
        raise section.error(f"expected maps of one size to join, got {_sizes(shapes)}", "layers")
    if group >= groups or any(c % groups for c, _, _ in shapes):
        raise section.error(f"there is no group {group} of {groups} in {_sizes(shapes)}", "groups")
    return Route(groups, group), (sum(c for c, _, _ in shapes) // groups, *shapes[0][1:])


def _sizes(shapes: Sequence[Shape]) -> str:
    return " and ".join(f"{c} x {h} x {w}" for c, h, w in shapes)


def _max_pool(section: Section, shape: Shape) -> tuple[Module, Shape]:
    strides = _strides(section)
    size = section.integer("size", max(strides), least=1)
    padding = section.integer("padding", size - 1)
    height, width = ((side + padding - size) // stride + 1 for side, stride in zip(shape[1:], strides))
    before = padding // 2
    after = padding - before
    if before == after <= size // 2:
        return MaxPool2d(size, strides, before), (shape[0], height, width)
    return PaddedMaxPool(size, strides, before, after), (shape[0], height, width)


def _upsample(section: Section, shape: Shape) -> tuple[Module, Shape]:
    stride = section.integer("stride", 2, least=1)
    return Upsample(stride, section.number("scale", 1)), (shape[0], shape[1] * stride, shape[2] * stride)


def _reorg(section: Section, shape: Shape) -> tuple[Module, Shape]:
    stride, (c, h, w) = section.integer("stride", 1, least=1), shape
    if c % stride**2 or h % stride or w % stride:
        raise section.error(f"{_sizes([shape])} cannot be cut into cells of {stride} x {stride}", "stride")
    return Reorg(stride), (c * stride**2, h // stride, w // stride)


def _mask(section: Section) -> list[int]:
    return section.integers("mask") if "mask" in section.options else list(range(section.integer("num", 1)))


def _anchors(section: Section, count: int) -> np.ndarray:
    """The widths and heights (count, 2) that a section lists."""
    values = section.numbers("anchors")
    if len(values) < 2 * count or min(values) <= 0:
        raise section.error(f"expected {count} positive widths and heights, got {len(values)} numbers", "anchors")
    return np.array(values[: 2 * count], np.float32).reshape(count, 2)


def _check_input(section: Section, shape: Shape, anchors: int, outputs: int) -> None:
    if shape[0] != anchors * (5 + outputs):
        raise section.error(f"expected {anchors * (5 + outputs)} channels for {anchors} anchors, got {shape[0]}")


def _yolo(section: Section, shape: Shape, outputs: int) -> AnchorHead:
    mask, count = _mask(section), section.integer("num", 1, least=1)
    if not mask or not all(0 <= k < count for k in mask):
        raise section.error(f"expected numbers of anchors from 0 to {count - 1} as mask, got {mask}", "mask")
    if section.text("nms_kind", "default") not in ("default", "greedynms"):
        raise section.error("expected nms_kind=greedynms, the only one that is supported", "nms_kind")
    _check_input(section, shape, len(mask), outputs)
    anchors, plain = _anchors(section, count), bool(section.integer("new_coords", 0))
    kind = section.text("iou_loss", "mse").lower()
    if kind not in ("mse", "iou", "giou", "diou", "ciou"):
        raise section.error(f"expected iou_loss to be mse, iou, giou, diou or ciou, got {kind}", "iou_loss")
    defaults = (("iou_normalizer", 0.75), ("obj_normalizer", 1), ("cls_normalizer", 1))
    weights = [section.number("delta_normalizer", 1) * section.number(name, value) for name, value in defaults]
    thresholds = [
        section.number(name, x) for name, x in (("ignore_thresh", 0.5), ("truth_thresh", 1), ("iou_thresh", 1))
    ]
    smoothing = section.number("label_smooth_eps", 0)
    loss = YoloLoss(anchors, mask, tuple(thresholds), kind, tuple(weights), smoothing)  # type: ignore[arg-type]
    return AnchorHead(anchors[mask], loss, section.number("scale_x_y", 1), plain)


def _region(section: Section, shape: Shape, outputs: int, size: tuple[int, int]) -> AnchorHead:
    """A [region], whose anchors are given in cells."""
    count = section.integer("num", 1, least=1)
    if section.integer("coords", 4) != 4:
        raise section.error("expected coords=4, the only number that is supported", "coords")
    _check_input(section, shape, count, outputs)
    cell = np.array([size[1] / shape[2], size[0] / shape[1]], np.float32)
    names = ("coord_scale", "object_scale", "noobject_scale", "class_scale")
    scales: Any = tuple(section.number(name, 1) for name in names)
    rescore, bias_match = (bool(section.integer(name, 0)) for name in ("rescore", "bias_match"))
    loss = RegionLoss(scales, section.number("thresh", 0.5), rescore, bias_match)
    return AnchorHead(_anchors(section, count) * cell, loss, exclusive=bool(section.integer("softmax", 0)))


class Stretch:
    """The photo resized to ``size`` (height, width), whatever its aspect: what AlexeyAB's Darknet does."""

    def __init__(self, size: tuple[int, int]) -> None:
        self.size = size

    def __call__(self, image: np.ndarray) -> np.ndarray:
        """The input (height, width, 3), values 0 to 255."""
        return cv2.resize(image.astype(np.float32), self.size[::-1], interpolation=cv2.INTER_LINEAR)

    def to_photo(self, boxes: np.ndarray, image_size: tuple[int, int]) -> np.ndarray:
        """Boxes (n, 4) of the input, in the photo of ``image_size`` (height, width)."""
        return box_ops.scale(boxes, self.size, image_size)

    def to_input(self, boxes: np.ndarray, image_size: tuple[int, int]) -> np.ndarray:
        """Boxes (n, 4) of the photo of ``image_size`` (height, width), in the input."""
        return box_ops.scale(boxes, image_size, self.size)


class Letterbox:
    """The photo with its aspect kept, in the middle of a grey input of ``size`` (height, width): the first Darknet's.

    A photo smaller than the input stays as it is unless it is to ``enlarge``.
    """

    def __init__(self, size: tuple[int, int], enlarge: bool = True) -> None:
        self.size, self.enlarge = size, enlarge

    def fitted(self, image_size: tuple[int, int]) -> tuple[int, int]:
        """(height, width) of the photo in the input."""
        scale = min(self.size[0] / image_size[0], self.size[1] / image_size[1])
        if not self.enlarge:
            scale = min(scale, 1)
        return max(1, int(image_size[0] * scale)), max(1, int(image_size[1] * scale))

    def __call__(self, image: np.ndarray) -> np.ndarray:
        """The input (height, width, 3), values 0 to 255."""
        height, width = self.fitted(image.shape[:2])  # type: ignore[arg-type]
        top, left = (self.size[0] - height) // 2, (self.size[1] - width) // 2
        x = np.full((*self.size, 3), 127.5, np.float32)
        small = cv2.resize(image.astype(np.float32), (width, height), interpolation=cv2.INTER_LINEAR)
        x[top : top + height, left : left + width] = small
        return x

    def to_photo(self, boxes: np.ndarray, image_size: tuple[int, int]) -> np.ndarray:
        """Boxes (n, 4) of the input, in the photo of ``image_size`` (height, width); the centres of both are one."""
        return box_ops.scale(boxes - _middle(self.size), self.fitted(image_size), image_size) + _middle(image_size)

    def to_input(self, boxes: np.ndarray, image_size: tuple[int, int]) -> np.ndarray:
        """Boxes (n, 4) of the photo of ``image_size`` (height, width), in the input."""
        return box_ops.scale(boxes - _middle(image_size), image_size, self.fitted(image_size)) + _middle(self.size)


def _middle(size: tuple[int, int]) -> np.ndarray:
    """The middle x, y, x, y of an image (height, width)."""
    return np.array([size[1], size[0]] * 2, np.float32) / 2


class Darknet(Detector):
    """A network of Darknet's layers and what it does with a photo: red, green, blue, 0 to 1.

    The photo is stretched, as AlexeyAB's Darknet has it, or with ``letter_box=1`` in [net] kept in its aspect;
    ``model.resize = Letterbox(model.network.size)`` does so for weights of the first Darknet. A cell gives a box for
    every class that is probable enough; boxes are suppressed within their class, then end at the photo's edges.

    >>> net, conv = "[net]\\nwidth=64\\nheight=32", "[convolutional]\\nsize=32\\nstride=32\\nfilters=6"
    >>> cfg = "\\n".join([net, conv, "activation=linear", "[yolo]\\nanchors=10,20\\nnum=1\\nclasses=1"])
    >>> Darknet(cfg, Categories.plain(["boat"])).network.layers[0].conv.weight.shape
    (6, 3, 32, 32)
    """

    score_threshold, nms_threshold = 0.005, 0.45  # of `darknet detector valid`

    def __init__(self, cfg: str, categories: Categories) -> None:
        self.cfg, self.categories = cfg, categories
        sections = files.parse_cfg(cfg)
        self.network = Network(sections, categories.outputs)
        boxed = sections[0].integer("letter_box", 0)
        self.resize: Stretch | Letterbox = (Letterbox if boxed else Stretch)(self.network.size)
        self.class_layers = tuple(f"network.layers.{i - 1}.conv." for i in self.network.heads)
        self.inside = True  # boxes end at the photo's edges
        options = ((s, option) for s in sections for option in NOT_LEARNED.get(s.kind, ()) if option in s.options)
        self.not_learned = [f"{k}={s.options[k]}" for s, k in options if s.options[k] != NOT_LEARNED[s.kind][k]]

    def forward(self, x: Tensor) -> list[Tensor]:
        return self.network(x)  # type: ignore[no-any-return]

    def losses(self, samples: Sequence[Sample], rng: np.random.Generator) -> dict[str, Tensor]:
        """The "box", "objectness" and "class" losses of a batch; training minimises their sum.

        They are Darknet's, by the options of the `.cfg`: see `RegionLoss` and `YoloLoss`. A warning in the log names
        those that are not followed.
        """
        if self.not_learned:
            log.warning("%s: training does not follow %s of the .cfg", self.name, ", ".join(self.not_learned))
            self.not_learned = []  # said once
        inputs, truths = [], []
        for sample in samples:
            x = self.resize(sample.image)
            x /= 255
            inputs.append(x.transpose(2, 0, 1))
            boxes = np.zeros((0, 4), np.float32) if sample.boxes is None else sample.boxes
            boxes = self.resize.to_input(boxes, sample.size)
            truths.append(truth_of(sample, self.categories, box_ops.clip(boxes, self.network.size)))
        return self.losses_of(self(Tensor(np.stack(inputs))), truths)

    def losses_of(self, maps: Sequence[Tensor], truths: Sequence[Truth]) -> dict[str, Tensor]:
        """The losses of what the heads got about n images, (n, anchors * (5 + classes), h, w): the sums, by image."""
        heads = [self.network.layers[i] for i in self.network.heads]
        parts = [head.loss(head, x, truths, self.network.size) for head, x in zip(heads, maps, strict=True)]
        names = ("box", "objectness", "class")
        return {name: sum(of_heads, Tensor(0.0)) / len(truths) for name, of_heads in zip(names, zip(*parts))}

    def load_state_dict(self, state: Mapping[str, np.ndarray], strict: bool = True) -> None:
        """As `Module.load_state_dict`; weights that do not say how long they trained are past the first batches."""
        trained = {
            f"{name}.num_batches_tracked": np.array(module.burn_in)
            for name, module in self.named_modules()
            if isinstance(module, RegionLoss)
        }
        super().load_state_dict({**trained, **state}, strict)

    def read(self, path: str | os.PathLike[str]) -> dict[str, Any]:
        """The arrays of a file by name, also of a `.weights` file."""
        if Path(path).suffix != ".weights":
            return super().read(path)
        return files.read_weights(path, [(f"network.{name}", shape) for name, shape in self.network.stored()])

    def carry_over(self, name: str, fresh: np.ndarray, published: np.ndarray) -> np.ndarray:
        """The classes' rows start fresh, those of boxes and objectness go on."""
        count = len(self.network.layers[int(name.split(".")[2]) + 1].anchors)
        kept = fresh.reshape(count, -1, *fresh.shape[1:]).copy()
        kept[:, :5] = published.reshape(count, -1, *published.shape[1:])[:, :5]
        return kept.reshape(fresh.shape)

    def save(self, path: str | os.PathLike[str], **facts: Any) -> None:
        """Write the model as ``Model.save`` does, with its `.cfg`."""
        super().save(path, cfg=self.cfg, **facts)

    def predict_image(self, image: np.ndarray, score_threshold: float | None) -> Detections:
        threshold = self.score_threshold if score_threshold is None else score_threshold
        x = self.resize(image)
        x /= 255
        maps = planned(self, Tensor(x[None].transpose(0, 3, 1, 2)))
        heads = [self.network.layers[i] for i in self.network.heads]
        parts = [head.decode(y.numpy()[0], x.shape[:2], threshold) for head, y in zip(heads, maps)]
        boxes, scores, slots = (np.concatenate(part) for part in zip(*parts))
        size = image.shape[0], image.shape[1]
        boxes = self.resize.to_photo(boxes, size)
        keep = box_ops.batched_nms(boxes, scores, slots, self.nms_threshold)
        boxes = box_ops.clip(boxes[keep], size) if self.inside else boxes[keep]
        return self.detections(image, boxes, scores[keep], slots[keep])


def info_of(cfg: str) -> ModelInfo:
    """The row of the zoo for the network of a `.cfg`."""
    return ModelInfo(NAME, "detection", partial(Darknet, cfg), Categories.plain, (), PAPER, 0.0)


def from_files(weights: Path, names: tuple[str, ...] | None) -> tuple[ModelInfo, Darknet, bool]:
    """The network of the `.cfg` beside a `.weights` file, not filled yet, and whether its classes are the file's.

    Raises WeightsError that names the file and its line.
    """
    path = files.find_cfg(weights)
    try:
        cfg = files.read_text(path)
        stored = categories_of(cfg, weights, names)
        if names is not None and names != stored.names:
            return info_of(cfg), Darknet(cfg, Categories.plain(names)), False
        with init.skip_init():
            return info_of(cfg), Darknet(cfg, stored), True
    except WeightsError as error:
        error.path = error.path or path
        raise


def categories_of(cfg: str, weights: Path, names: Sequence[str] | None) -> Categories:
    """The classes that a `.weights` file tells apart, in the order of its head.

    Their names are in a file beside it (`weights.darknet.find_names`), or else ``names`` if these are as many. Failing
    that, 80 classes are COCO's, 20 those of PASCAL VOC, and others are called "class 0" and so on; the log says so.
    """
    counts = {s.integer("classes", 20, least=1) for s in files.parse_cfg(cfg) if s.kind in ("yolo", "region")}
    if len(counts) != 1:
        raise WeightsError(f"expected [yolo] or [region] sections with one number of classes, got {sorted(counts)}")
    (count,) = counts
    found = files.find_names(weights, count)
    if found is None and names is not None and len(names) == count:
        found = tuple(names)
    if found is None:
        known = {80: (COCO_80, "COCO's"), 20: (VOC_20, "those of PASCAL VOC")}
        found, what = known.get(count, (tuple(f"class {k}" for k in range(count)), '"class 0", "class 1" and so on'))
        log.warning("%s: there is no file of names beside it; its classes are taken for %s", weights, what)
    return Categories.plain(found, COCO_80_IDS if found == COCO_80 else None)
