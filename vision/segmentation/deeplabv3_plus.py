"""DeepLabv3+: Chen et al. 2018, "Encoder-decoder with atrous separable convolution for semantic image segmentation",
on Xception-65 as TensorFlow's DeepLab and ChainerCV have it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from ...core import Tensor
from ...core import functions as F
from ...core.layers import BatchNorm2d, Conv2d, Module, ReLU, Sequential
from ...core.plan import planned
from ...weights import chainer
from ...weights.categories import VOC_21
from ...weights.entry import WeightsEntry
from ..backbones.blocks import Norm, conv_norm_activation
from ..backbones.chainercv_resnet import CHAINER_NORM
from ..categories import Categories
from ..label_sets import ADE20K, CITYSCAPES
from ..model import ModelInfo, to_input
from .averaging import AveragingSegmenter, resize_planes
from .deeplabv3 import ASPP

XCEPTION_NORM: Norm = partial(BatchNorm2d, eps=1e-3, momentum=3e-4)
HEAD_NORM: Norm = partial(BatchNorm2d, momentum=3e-4)


def separable(
    in_channels: int,
    out_channels: int,
    stride: int = 1,
    dilation: int = 1,
    norm: Norm = XCEPTION_NORM,
    activations: tuple[bool, bool] = (False, False),
) -> Sequential:
    """A 3x3 convolution within each channel and a 1x1 across them, each with a norm, and a ReLU where asked for."""
    each = conv_norm_activation(
        in_channels, in_channels, 3, stride, dilation, in_channels, norm, ReLU() if activations[0] else None
    )
    across = conv_norm_activation(
        in_channels, out_channels, 1, norm=norm, activation=ReLU() if activations[1] else None
    )
    return Sequential(depthwise=each, pointwise=across)


def atrous_separable(in_channels: int, out_channels: int, rate: int) -> Sequential:
    """A separable convolution of the head with dilation ``rate``."""
    return separable(in_channels, out_channels, 1, rate, HEAD_NORM, (True, True))


class XceptionBlock(Module):
    """ReLU and three separable convolutions around a shortcut, a 1x1 convolution where the shape changes (figure 4).

    ``inner`` is the second one's output, from which the decoder takes its fine map.
    """

    def __init__(self, in_channels: int, widths: Sequence[int], stride: int = 1, dilation: int = 1) -> None:
        a, b, c = widths
        self.separable1 = separable(in_channels, a, 1, dilation, activations=(False, True))
        self.separable2 = separable(a, b, 1, dilation)
        self.separable3 = separable(b, c, stride, dilation)
        if stride > 1 or in_channels != c:
            self.conv = conv_norm_activation(in_channels, c, 1, stride, norm=XCEPTION_NORM)

    def inner(self, x: Tensor) -> Tensor:
        return self.separable2(self.separable1(F.relu(x)))  # type: ignore[no-any-return]

    def outer(self, x: Tensor, inner: Tensor) -> Tensor:
        shortcut = self.conv(x) if hasattr(self, "conv") else x
        return self.separable3(F.relu(inner), shortcut)  # type: ignore[no-any-return]

    def forward(self, x: Tensor) -> Tensor:
        return self.outer(x, self.inner(x))


class Xception65(Module):
    """Xception of stride 8: x (n, 3, height, width) to a fine map of stride 4 and a coarse one (Chollet 2017).

    >>> [m.shape for m in Xception65()(Tensor(np.zeros((1, 3, 33, 33), np.float32)))]
    [(1, 256, 9, 9), (1, 2048, 5, 5)]
    """

    channels = (256, 2048)

    def __init__(self) -> None:
        conv = partial(conv_norm_activation, kernel=3, norm=XCEPTION_NORM, activation=ReLU())
        self.stem = Sequential(conv(3, 32, stride=2), conv(32, 64), XceptionBlock(64, (128,) * 3, 2))
        self.fine = XceptionBlock(128, (256,) * 3, 2)
        middle = [XceptionBlock(728, (728,) * 3, dilation=2) for _ in range(16)]
        last = [
            separable(before, after, 1, 4, activations=(True, True))
            for before, after in ((1024, 1536), (1536, 1536), (1536, 2048))
        ]
        exit1 = XceptionBlock(728, (728, 1024, 1024), dilation=2)
        self.coarse = Sequential(XceptionBlock(256, (728,) * 3), *middle, exit1, *last)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.stem(x)
        fine = self.fine.inner(x)
        return fine, self.coarse(self.fine.outer(x, fine))


class Decoder(Module):
    """The coarse map beside the fine one in few channels, two separable convolutions, and logits (figure 2)."""

    def __init__(self, fine_channels: int, coarse_channels: int, classes: int) -> None:
        self.project = conv_norm_activation(fine_channels, 48, 1, norm=CHAINER_NORM, activation=ReLU())
        joined = coarse_channels + 48
        self.convs = Sequential(
            separable(joined, 256, norm=HEAD_NORM, activations=(True, True)),
            separable(256, 256, norm=HEAD_NORM, activations=(True, True)),
            Conv2d(256, classes, 1),
        )

    def forward(self, fine: Tensor, coarse: Tensor) -> Tensor:
        coarse = F.resize(coarse, fine.shape[2:], align_corners=True)  # type: ignore[arg-type]
        return self.convs(F.concatenate([coarse, self.project(fine)], 1))  # type: ignore[no-any-return]


@dataclass(frozen=True)
class PaddedPreset:
    """Preprocessing for segmentation: photos padded at the right and below to at least ``size`` (height, width).

    They are seen at each of ``scales``, with ``flip`` mirrored too.
    """

    size: tuple[int, int] = (513, 513)
    scales: tuple[float, ...] = (1.0,)
    flip: bool = False
    mean: tuple[float, float, float] = (0.5, 0.5, 0.5)
    std: tuple[float, float, float] = (0.5, 0.5, 0.5)

    def __call__(self, image: np.ndarray) -> Tensor:
        """The tensor (1, 3, h, w) of an image (height, width, 3)."""
        height, width = image.shape[:2]
        below, beside = max(self.size[0] - height, 0), max(self.size[1] - width, 0)
        x = to_input(image, self.mean, self.std)
        return F.pad(x, ((0, 0), (0, 0), (0, below), (0, beside))) if below or beside else x


class DeepLabV3Plus(AveragingSegmenter):
    """A backbone with a fine and a coarse map, atrous pyramid pooling of the coarse one, and a decoder.

    >>> model = deeplabv3plus_xception65(Categories.plain(["sky", "sea"])).eval()
    >>> model.logits(Tensor(np.zeros((1, 3, 33, 65), np.float32))).shape
    (1, 2, 9, 17)
    """

    preset = PaddedPreset()
    class_layers = ("decoder.convs.2.",)

    def __init__(self, backbone: Xception65, categories: Categories) -> None:
        self.backbone, self.categories = backbone, categories
        self.aspp = ASPP(2048, 256, atrous=atrous_separable)
        self.decoder = Decoder(256, 256, categories.outputs)

    def logits(self, x: Tensor) -> Tensor:
        """Logits (n, classes, h, w) at a quarter of the input's size."""
        fine, coarse = self.backbone(x)
        return self.decoder(fine, self.aspp(coarse))  # type: ignore[no-any-return]

    def probabilities(self, image: np.ndarray) -> np.ndarray:
        found = self._once(image)
        return (found + self._once(image[:, ::-1])[..., ::-1]) / 2 if self.preset.flip else found

    def _once(self, image: np.ndarray) -> np.ndarray:
        x = self.preset(np.ascontiguousarray(image))
        coarse = F.softmax(planned(self, x, "logits"), 1)
        return self.resize_logits(coarse, x.shape[2:]).numpy()[0, :, : image.shape[0], : image.shape[1]]  # type: ignore[no-any-return]

    def back_to_size(self, probabilities: np.ndarray, size: tuple[int, int]) -> np.ndarray:
        return resize_planes(probabilities, size)


def deeplabv3plus_xception65(categories: Categories) -> DeepLabV3Plus:
    """DeepLabv3+ on Xception-65 of stride 8."""
    return DeepLabV3Plus(Xception65(), categories)


def _rules() -> list[tuple[str, str]]:
    """The layers' names in ChainerCV's files and here."""
    parts = ["entryflow_block3", *(f"middleflow_block{k}" for k in range(1, 17)), "exitflow_block1"]
    rules = [(rf"^feature_extractor\.{name}\.", f"backbone.coarse.{i}.") for i, name in enumerate(parts)]
    rules += [
        (rf"^feature_extractor\.exitflow_block2\.separable{k}\.", f"backbone.coarse.{17 + k}.") for k in (1, 2, 3)
    ]
    rules += [(rf"^feature_extractor\.entryflow_conv{k}\.", f"backbone.stem.{k - 1}.") for k in (1, 2)]
    rules += [
        (r"^feature_extractor\.entryflow_block1\.", "backbone.stem.2."),
        (r"^feature_extractor\.entryflow_block2\.", "backbone.fine."),
        (r"^aspp\.image_pooling_conv\.conv\.", "aspp.convs.4.1."),
        (r"^aspp\.image_pooling_conv\.bn\.", "aspp.convs.4.2."),
        (r"^aspp\.conv1x1\.", "aspp.convs.0."),
        (r"^aspp\.atrous(\d)\.", r"aspp.convs.\1."),
        (r"^aspp\.proj\.", "aspp.project."),
        (r"^decoder\.feature_proj\.", "decoder.project."),
        (r"^decoder\.conv1\.", "decoder.convs.0."),
        (r"^decoder\.conv2\.", "decoder.convs.1."),
        (r"^decoder\.conv_logits\.", "decoder.convs.2."),
        (r"\.(depth|point)wise\.(weight|bias)", r".\1wise.0.\2"),
        (r"\.dw_bn\.", ".depthwise.1."),
        (r"\.pw_bn\.", ".pointwise.1."),
        (r"(.*)\.conv\.conv\.", r"\1.conv.0."),
        (r"(.*)\.conv\.bn\.", r"\1.conv.1."),
        (r"(stem\.[01]|aspp\.convs\.0|project)\.conv\.", r"\1.0."),
        (r"(stem\.[01]|aspp\.convs\.0|project)\.bn\.", r"\1.1."),
    ]
    return rules


def _pooled_last(weight: np.ndarray) -> np.ndarray:
    """The weights of the five joined branches of 256 channels, the pooled image after instead of before the others."""
    return np.roll(weight, -256, 1)


def _entry(name: str, file: str, parameters: int, data: str, miou: float, categories: Sequence[str]) -> WeightsEntry:
    size = (1025, 2049) if name == "CITYSCAPES" else (513, 513)
    file = f"deeplabv3plus_xception65_{file}"
    return chainer.entry(name, file, parameters, {data: {"mIoU": miou}}, categories, settings={"size": size})


MODELS = (
    ModelInfo(
        name="deeplabv3plus_xception65",
        task="semantic segmentation",
        build=deeplabv3plus_xception65,
        spread=Categories.plain,
        entries=(
            _entry("VOC", "voc_converted_2019_02_15", 41_055_413, "VOC2012 val", 82.36, VOC_21),
            _entry(
                "CITYSCAPES",
                "cityscapes_converted_2019_02_15",
                41_054_899,
                "Cityscapes val",
                79.14,
                tuple(c.name for c in CITYSCAPES),
            ),
            _entry(
                "ADE20K", "ade20k_converted_2019_03_08", 41_088_566, "ADE20K val", 42.52, tuple(c.name for c in ADE20K)
            ),
        ),
        paper="Chen et al. 2018, Encoder-decoder with atrous separable convolution for semantic image segmentation",
        gflops=176.852,
        convert=chainer.converter(_rules(), (r"aspp\.project\.0\.weight", _pooled_last)),
    ),
)
