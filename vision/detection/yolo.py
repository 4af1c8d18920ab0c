"""YOLOv2 (Redmon and Farhadi 2017, "YOLO9000: better, faster, stronger"), its tiny version, and YOLOv3 (2018, "YOLOv3:
an incremental improvement") as ChainerCV has them: Darknet's networks, written here instead of in a `.cfg`."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from ...core.layers import BatchNorm2d
from ...weights import chainer
from ..categories import Categories
from ..model import ModelInfo
from .darknet import Darknet, Letterbox

SIZE = 416
NET = f"[net]\nwidth={SIZE}\nheight={SIZE}\nchannels=3"
DEPTHS = (1, 2, 8, 8, 4)  # of Darknet-53
POOL = "[maxpool]\nsize=2\nstride=2"


def _conv(filters: int, size: int, stride: int = 1) -> str:
    """A convolution that keeps the size (up to its stride), batch norm, leaky ReLU."""
    return (
        f"[convolutional]\nbatch_normalize=1\nfilters={filters}\nsize={size}\nstride={stride}\npad=1\nactivation=leaky"
    )


def _head(anchors: int, classes: int) -> str:
    return f"[convolutional]\nfilters={anchors * (5 + classes)}\nsize=1\nactivation=linear"


def _region(anchors: Sequence[float], classes: int) -> list[str]:
    """YOLOv2's head; anchors are widths and heights in cells."""
    listed = ",".join(map(str, anchors))
    count = len(anchors) // 2
    section = f"[region]\nanchors={listed}\nnum={count}\nclasses={classes}\ncoords=4\nsoftmax=1"
    section += "\nbias_match=1\nrescore=1\nobject_scale=5\nthresh=.6"
    return [_head(count, classes), section]


def _yolo(mask: str, classes: int) -> list[str]:
    """One of YOLOv3's heads; anchors are widths and heights in pixels."""
    anchors = "10,13, 16,30, 33,23, 30,61, 62,45, 59,119, 116,90, 156,198, 373,326"
    section = f"[yolo]\nmask={mask}\nanchors={anchors}\nnum=9\nclasses={classes}\nignore_thresh=.5\niou_normalizer=1"
    return [_head(3, classes), section]


def _v2(classes: int) -> list[str]:
    sections = []
    for stage, depth in enumerate((1, 1, 3, 3, 5, 5)):
        sections += [POOL] if stage else []
        sections += [_conv((32 << stage) >> k % 2, 1 if k % 2 else 3) for k in range(depth)]
    sections += [_conv(1024, 3), _conv(1024, 3), "[route]\nlayers=-9", _conv(64, 1), "[reorg]\nstride=2"]
    sections += ["[route]\nlayers=-1,-4", _conv(1024, 3)]
    anchors = (1.3221, 1.73145, 3.19275, 4.00944, 5.05587, 8.09892, 9.47112, 4.84053, 11.2364, 10.0071)
    return [*sections, *_region(anchors, classes)]


def _v2_tiny(classes: int) -> list[str]:
    sections = []
    for stage in range(7):
        sections += [_conv(16 << stage, 3), *([POOL] if stage < 5 else [])]
        sections += ["[maxpool]\nsize=2\nstride=1"] if stage == 5 else []
    anchors = (1.08, 1.19, 3.42, 4.41, 6.63, 11.38, 9.42, 5.11, 16.62, 10.52)
    return [*sections, _conv(1024, 3), *_region(anchors, classes)]


def _v3(classes: int) -> list[str]:
    sections, ends = [_conv(32, 3)], []
    for stage, depth in enumerate(DEPTHS):
        width = 64 << stage
        sections.append(_conv(width, 3, 2))
        for _ in range(depth):
            sections += [_conv(width // 2, 1), _conv(width, 3), "[shortcut]\nfrom=-3\nactivation=linear"]
        ends.append(len(sections) - 1)
    for width, mask, finer in ((512, "6,7,8", None), (256, "3,4,5", ends[3]), (128, "0,1,2", ends[2])):
        if finer is not None:  # the map from before the last head, upsampled, beside a finer one
            sections += ["[route]\nlayers=-4", _conv(width, 1), "[upsample]\nstride=2", f"[route]\nlayers=-1,{finer}"]
        sections += [_conv(width, 1), _conv(2 * width, 3)] * 2
        sections += [_conv(width, 1), _conv(2 * width, 3), *_yolo(mask, classes)]
    return sections


def _model(sections: Sequence[str], categories: Categories) -> Darknet:
    """The model with ChainerCV's preprocessing and batch norms; its boxes may reach over the photo."""
    model = Darknet("\n".join([NET, *sections]), categories)
    model.resize, model.inside = Letterbox(model.network.size, enlarge=False), False
    for _, module in model.named_modules():
        if isinstance(module, BatchNorm2d):
            module.eps = 2e-5
    return model


def yolo_v2(categories: Categories) -> Darknet:
    """YOLOv2 at 416x416 pixels: Darknet-19, and its finer map beside the last one."""
    return _model(_v2(categories.outputs), categories)


def yolo_v2_tiny(categories: Categories) -> Darknet:
    """YOLOv2 tiny at 416x416 pixels: seven convolutions with poolings between them, and one more."""
    return _model(_v2_tiny(categories.outputs), categories)


def yolo_v3(categories: Categories) -> Darknet:
    """YOLOv3 at 416x416 pixels: Darknet-53 and three heads, from the coarsest map to the finest."""
    return _model(_v3(categories.outputs), categories)


def _v3_links() -> list[str]:
    """ChainerCV's names of YOLOv3's convolutions in the order of the layers; residual blocks are links of two."""
    links, k = ["extractor.0"], 1
    for depth in DEPTHS:
        links += [f"extractor.{k}", *(f"extractor.{k + 1 + i}.{j}" for i in range(depth) for j in (0, 1))]
        k += 1 + depth
    for head, count in enumerate((5, 6, 6)):
        links += [*(f"extractor.{k + i}" for i in range(count)), f"subnet.{head}.0", f"subnet.{head}.1"]
        k += count
    return links


def _converter(sections: Sequence[str], links: Sequence[str], anchors: int) -> Callable[[Any], Any]:
    """From ChainerCV's arrays; ``links`` are its names of the convolutions, in the order of the layers."""
    layers = [i for i, section in enumerate(sections) if section.startswith("[convolutional]")]
    rules, heads = [], []
    for link, layer in zip(links, layers, strict=True):
        plain = sections[layer + 1].startswith(("[yolo]", "[region]"))
        rules.append((rf"^{re.escape(link)}\.", f"network.layers.{layer}." + ("conv." if plain else "")))
        heads += [rf"network\.layers\.{layer}\."] if plain else []
    return chainer.converter(rules, ("|".join(heads), lambda a: chainer.swap_axes(a, len(a) // anchors)))


def _info(
    build: Callable[[Categories], Darknet],
    convert: Callable[[Any], Any],
    file: str,
    parameters: int,
    figures: tuple[float, float],
) -> ModelInfo:
    """The row of a model; ``figures`` are its AP50 on VOC2007 and its computation."""
    weights = chainer.entry("VOC0712", file, parameters, {"VOC2007 test": {"AP50": figures[0]}})
    paper = "Redmon and Farhadi 2018, YOLOv3: an incremental improvement" if build is yolo_v3 else V2
    return ModelInfo(
        build.__name__, "detection", build, Categories.plain, (weights,), paper, figures[1], convert=convert
    )


V2 = "Redmon and Farhadi 2017, YOLO9000: better, faster, stronger"
_LINEAR = [f"extractor.{k}" for k in range(22)]
MODELS = (
    _info(
        yolo_v2,
        _converter(_v2(20), [*_LINEAR, "subnet"], 5),
        "yolo_v2_voc0712_converted_2018_05_03",
        50_655_389,
        (75.8, 14.68),
    ),
    _info(
        yolo_v2_tiny,
        _converter(_v2_tiny(20), [*_LINEAR[:8], "subnet"], 5),
        "yolo_v2_tiny_voc0712_converted_2018_10_19",
        15_861_773,
        (53.5, 3.486),
    ),
    _info(
        yolo_v3, _converter(_v3(20), _v3_links(), 3), "yolo_v3_voc0712_converted_2018_05_01", 61_626_049, (80.2, 32.714)
    ),
)
