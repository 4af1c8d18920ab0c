"""MobileNetV2: Sandler et al. 2018, "MobileNetV2: inverted residuals and linear bottlenecks"."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from ...core import Tensor
from ...core import functions as F
from ...core.layers import Activation, BatchNorm, BatchNorm2d, Conv2d, Dropout, Linear, Module, ReLU6, Sequential, init
from ...weights import chainer
from ...weights.torchvision import imagenet_entry
from ..categories import Categories
from ..model import Classifier, ModelInfo
from .blocks import Norm, classifier_info, conv_norm_activation, initialise, make_divisible

ROWS = (  # table 2: expansion, channels, blocks, stride of the first block
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


class InvertedResidual(Module):
    """Expand, depthwise, project without activation (table 1)."""

    def __init__(self, in_channels: int, channels: int, stride: int, expansion: int, norm: Norm) -> None:
        inner = in_channels * expansion
        parts: list[Module] = []
        if expansion != 1:
            parts.append(conv_norm_activation(in_channels, inner, 1, norm=norm, activation=ReLU6()))
        parts.append(conv_norm_activation(inner, inner, 3, stride, groups=inner, norm=norm, activation=ReLU6()))
        self.conv = Sequential(*parts, Conv2d(inner, channels, 1, bias=False), norm(channels))
        self.residual = stride == 1 and in_channels == channels

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x, x if self.residual else None)  # type: ignore[no-any-return]


class MobileNetV2(Module):
    """The convolutional part: x (n, 3, height, width) to the last maps of the strides 2, 4, 8, 16 and 32.

    The last map is that of the 1x1 convolution after the bottlenecks. ``width`` multiplies the channels.

    >>> import numpy as np

    >>> [m.shape[1:] for m in MobileNetV2()(Tensor(np.zeros((1, 3, 64, 64), np.float32)))]
    [(16, 32, 32), (24, 16, 16), (32, 8, 8), (96, 4, 4), (1280, 2, 2)]
    """

    at = (1, 3, 6, 13, 18)
    strides = (2, 4, 8, 16, 32)

    def __init__(self, width: float = 1.0, norm: Norm = BatchNorm2d) -> None:
        channels = make_divisible(32 * width)
        parts: list[Module] = [conv_norm_activation(3, channels, 3, 2, norm=norm, activation=ReLU6())]
        outs = [channels]
        for expansion, out, depth, stride in ROWS:
            for i in range(depth):
                before, channels = channels, make_divisible(out * width)
                parts.append(InvertedResidual(before, channels, stride if i == 0 else 1, expansion, norm))
                outs.append(channels)
        last = make_divisible(1280 * max(1.0, width))
        parts.append(conv_norm_activation(channels, last, 1, norm=norm, activation=ReLU6()))
        self.features = Sequential(*parts)
        self.channels = tuple([*outs, last][i] for i in self.at)
        initialise(self, Conv2d, init.he_normal)

    def forward(self, x: Tensor) -> list[Tensor]:
        return self.features.outputs(x, self.at)


class MobileNetV2Classifier(MobileNetV2, Classifier):
    """MobileNetV2 with its classifier: x (n, 3, height, width) to logits (n, classes)."""

    class_layers = ("classifier.1.",)

    def __init__(self, categories: Categories, width: float = 1.0, norm: Norm = BatchNorm2d) -> None:
        super().__init__(width, norm)
        self.categories = categories
        self.classifier = Sequential(Dropout(0.2), Linear(self.channels[-1], categories.outputs))
        initialise(self.classifier, Linear, partial(init.normal, std=0.01))

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return self.classifier(F.mean(self.features(x), (2, 3)))  # type: ignore[no-any-return]


def mobilenet_v2(categories: Categories) -> MobileNetV2Classifier:
    """MobileNetV2 at full width (table 2)."""
    return MobileNetV2Classifier(categories)


class SameConv2d(Conv2d):
    """A 3x3 convolution of stride 2 whose padding depends on the input's size, TensorFlow's "SAME".

    An odd number of rows gets one at each end, an even number one at the end only.

    >>> import numpy as np
    >>> conv = SameConv2d(Conv2d(1, 1, 3, 2, 1, bias=False))
    >>> conv.weight.data = np.ones((1, 1, 3, 3), np.float32)
    >>> [conv(Tensor(np.ones((1, 1, n, n), np.float32))).numpy()[0, 0].tolist() for n in (4, 3)]
    [[[9.0, 6.0], [6.0, 4.0]], [[4.0, 4.0], [4.0, 4.0]]]
    """

    def __init__(self, conv: Conv2d) -> None:
        out, inner, *kernel = conv.weight.shape
        groups = conv.spec.groups
        super().__init__(inner * groups, out, (kernel[0], kernel[1]), 2, (0, 1, 0, 1), 1, groups, bias=False)
        self.weight = conv.weight

    def fused(
        self,
        x: Tensor,
        norm: BatchNorm | None = None,
        activation: Activation | None = None,
        residual: Tensor | None = None,
    ) -> Tensor:
        top, left = (size % 2 for size in x.shape[2:])
        padded = F.pad(x, ((0, 0), (0, 0), (top, 0), (left, 0))) if top or left else x
        return super().fused(padded, norm, activation, residual)


def _tensorflow(categories: Categories, width: float) -> MobileNetV2Classifier:
    model = MobileNetV2Classifier(categories, width, partial(BatchNorm2d, eps=1e-3, momentum=1e-3))
    for _, part in model.named_modules():
        if isinstance(part, Sequential) and isinstance(first := part[0], Conv2d) and first.spec.stride == (2, 2):
            setattr(part, "0", SameConv2d(first))
    return model


def mobilenet_v2_tf(categories: Categories) -> MobileNetV2Classifier:
    """MobileNetV2 at full width as TensorFlow pads and normalises, from which ChainerCV converted its weights."""
    return _tensorflow(categories, 1.0)


def mobilenet_v2_tf_1_4(categories: Categories) -> MobileNetV2Classifier:
    """MobileNetV2 with 1.4 times the channels, as TensorFlow pads and normalises."""
    return _tensorflow(categories, 1.4)


def _chainercv_rules() -> list[tuple[str, str]]:
    """The layers' names in ChainerCV's files and here."""
    rules = [(r"^conv\.", "features.0."), (r"^conv1\.", "features.18."), (r"^logits_conv\.conv", "classifier.1")]
    rules += [(r"^expanded_conv\.depthwise", "features.1.conv.0"), (r"^expanded_conv\.project", "features.1.conv.1")]
    for k in range(1, 17):
        rules += [
            (rf"^expanded_conv_{k}\.{part}\.", f"features.{k + 1}.conv.{i}.")
            for i, part in enumerate(("expand", "depthwise", "project"))
        ]
    # a projection's convolution and norm are not in a Sequential of their own
    rules += [(r"^(features\.1\.conv)\.1\.conv\.conv", r"\1.1"), (r"^(features\.1\.conv)\.1\.bn", r"\1.2")]
    rules += [(r"^(features\.\d+\.conv)\.2\.conv\.conv", r"\1.2"), (r"^(features\.\d+\.conv)\.2\.bn", r"\1.3")]
    return [*rules, (r"\.conv\.conv\.", ".0."), (r"\.bn\.", ".1.")]


def _chainercv_info(
    build: Callable[[Categories], Any], gflops: float, width: str, parameters: int, *errors: float
) -> ModelInfo:
    """The row of a model whose file has a background before ImageNet's classes; ``errors`` of one and ten crops."""
    file = f"mobilenet_v2_depth_multiplier_{width}_imagenet_converted_2019_05_13"
    entry = chainer.imagenet_entry(file, parameters, errors[0], (128, 128, 128), errors[1])
    change = (r"classifier\.1\.weight", partial(np.squeeze, axis=(2, 3)))
    convert = chainer.converter(_chainercv_rules(), change)
    return info(build, gflops, entry, convert=convert, published=Categories.with_background)


info = partial(classifier_info, "Sandler et al. 2018, MobileNetV2: inverted residuals and linear bottlenecks")
MODELS = (
    info(
        mobilenet_v2,
        0.301,
        imagenet_entry(2, "mobilenet_v2-7ebf99e0", 3_504_872, 72.154, 90.822, resize=232),
        imagenet_entry(1, "mobilenet_v2-b0353104", 3_504_872, 71.878, 90.286),
    ),
    _chainercv_info(mobilenet_v2_tf, 0.301, "1.0", 3_506_153, 28.3, 25.6),
    _chainercv_info(mobilenet_v2_tf_1_4, 0.582, "1.4", 6_110_569, 24.3, 22.4),
)
