"""SegNet: Badrinarayanan et al. 2017, "SegNet: a deep convolutional encoder-decoder architecture for image
segmentation", its basic variant as in ChainerCV."""

from __future__ import annotations

from functools import partial

import numpy as np

from ...core import Tensor
from ...core import functions as F
from ...core.device import Array, get_namespace
from ...core.function import Function
from ...core.layers import BatchNorm2d, Conv2d, ModuleList, ReLU, init
from ...core.tensor import wrap
from ...weights import chainer
from ..backbones.blocks import Norm, conv_norm_activation, initialise
from ..categories import Categories
from ..label_sets import CAMVID
from ..model import UNLABELLED, ModelInfo, Segmenter, WholePreset


def normalise_locally(x: Tensor) -> Tensor:
    """x / (1 + 2e-5 s)^0.75 with the sum s of squares of a pixel's colours, x (n, 3, height, width).

    Krizhevsky et al. 2012, section 3.3, with a window of five channels, which holds all three.

    >>> normalise_locally(Tensor(np.full((1, 3, 1, 1), 100, np.float32))).numpy().ravel().round(2)
    array([70.29, 70.29, 70.29], dtype=float32)
    """
    return x * (F.sum(x * x, 1, True) * 2e-5 + 1) ** -0.75


class Unpool(Function):
    """Each value of y (n, channels, h, w) at the first place of its 2x2 window of x that has the value of ``pooled``.

    Zeros are around it. The result has an even number of rows and columns, one more than x where that has an odd one.

    >>> x = Tensor(np.array([[[[1, 5], [5, 3]]]], np.float32))
    >>> Unpool()(Tensor(np.full((1, 1, 1, 1), 7, np.float32)), x, F.max_pool2d(x, 2)).numpy()[0, 0].tolist()
    [[0.0, 7.0], [0.0, 0.0]]
    """

    def forward(self, y: Array, x: Array, pooled: Array) -> Array:
        xp = get_namespace(y)
        n, c, h, w = y.shape
        self.peaks = xp.zeros((n, 2 * h, 2 * w, c), y.dtype).transpose(0, 3, 1, 2)
        out = xp.zeros((n, 2 * h, 2 * w, c), y.dtype).transpose(0, 3, 1, 2)
        free = xp.ones((n, h, w, c), bool).transpose(0, 3, 1, 2)
        for top, left in ((0, 0), (0, 1), (1, 0), (1, 1)):
            values = x[:, :, top::2, left::2]
            part = (..., slice(values.shape[2]), slice(values.shape[3]))
            hit = (values == pooled[part]) & free[part]
            free[part] &= ~hit
            self.peaks[:, :, top::2, left::2][part] = hit
            out[:, :, top::2, left::2][part] = y[part] * hit
        return out

    def backward(self, gy: Tensor) -> tuple[Tensor, None, None]:
        return F.avg_pool2d(gy * wrap(self.peaks), 2) * 4, None, None


class SegNet(Segmenter):
    """Four convolutions each of which is pooled, and four after each pooling is undone (figure 2, without its depth).

    ``class_weight`` (classes,) scales the losses of pixels by their class; their sum is divided by the pixels' number.

    >>> model = segnet(Categories.plain(["sky", "sea"])).eval()
    >>> model(Tensor(np.zeros((1, 3, 36, 50), np.float32))).shape
    (1, 2, 36, 50)
    """

    preset = WholePreset(mean=(0, 0, 0), std=(1 / 255, 1 / 255, 1 / 255))
    class_layers = ("classifier.",)
    class_weight: np.ndarray | None = None

    def __init__(self, categories: Categories, width: int = 64) -> None:
        norm: Norm = partial(BatchNorm2d, eps=2e-5)
        convs = [conv_norm_activation(inner, width, 7, norm=norm, activation=ReLU()) for inner in (3, *[width] * 3)]
        self.encoder = ModuleList(convs)
        self.decoder = ModuleList([conv_norm_activation(width, width, 7, norm=norm) for _ in range(4)])
        self.classifier = Conv2d(width, categories.outputs, 1)
        self.categories = categories
        initialise(self, Conv2d, partial(init.he_normal, fan="in"))
        for stage in (*self.encoder, *self.decoder):
            stage[1].bias.data = stage[1].bias.data + np.float32(0.001)

    def logits(self, x: Tensor) -> Tensor:
        """Logits (n, classes, height, width); one row or column more than x where that has an odd number."""
        x = normalise_locally(x)
        pools = []
        for stage in self.encoder:
            whole = stage(x)
            x = F.max_pool2d(whole, 2, ceil_mode=True)
            pools.append((whole, x))
        for stage, (whole, pooled) in zip(self.decoder, reversed(pools)):
            height, width = pooled.shape[2:]
            x = stage(Unpool()(x[:, :, :height, :width], whole, pooled))
        return self.classifier(x)  # type: ignore[no-any-return]

    def cross_entropy(self, logits: Tensor, target: np.ndarray) -> Tensor:
        total = F.softmax_cross_entropy(logits, target, self.class_weight, UNLABELLED, reduction="sum")
        return total / max(int((target != UNLABELLED).sum()), 1)


def segnet(categories: Categories) -> SegNet:
    """SegNet's basic variant with 7x7 convolutions of 64 channels."""
    return SegNet(categories)


RULES = [
    *((rf"^conv{k + 1}\.", f"encoder.{k}.0.") for k in range(4)),
    *((rf"^conv{k + 1}_bn\.", f"encoder.{k}.1.") for k in range(4)),
    *((rf"^conv_decode{4 - k}\.", f"decoder.{k}.0.") for k in range(4)),
    *((rf"^conv_decode{4 - k}_bn\.", f"decoder.{k}.1.") for k in range(4)),
    (r"^conv_classifier\.", "classifier."),
]
NAMES = tuple(c.name for c in CAMVID)
FIGURES = {"CamVid test": {"mIoU": 49.4, "class accuracy": 67.1, "pixel accuracy": 82.7}}
MODELS = (
    ModelInfo(
        name="segnet",
        task="semantic segmentation",
        build=segnet,
        spread=Categories.plain,
        entries=(chainer.entry("CAMVID", "segnet_camvid_trained_2018_12_05", 1_416_075, FIGURES, NAMES),),
        paper="Badrinarayanan et al. 2017, SegNet: a deep convolutional encoder-decoder architecture",
        gflops=44.41,
        convert=chainer.converter(RULES),
    ),
)
