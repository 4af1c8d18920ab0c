"""Inception v3: Szegedy et al. 2015, "Rethinking the Inception architecture for computer vision", without the auxiliary
head. The parts have TensorFlow's names, by the sizes of the maps in the paper's table 1."""

from __future__ import annotations

from functools import partial

from ...core import Tensor
from ...core import functions as F
from ...core.layers import Dropout, Linear, Module, Sequential
from ...weights.torchvision import imagenet_entry
from ..categories import Categories
from ..model import Classifier
from .blocks import classifier_info, inception_conv, symmetric_input


def _pool(x: Tensor) -> Tensor:
    return F.avg_pool2d(x, 3, 1, 1)


def _flat(in_channels: int, out_channels: int, width: int) -> Sequential:
    return inception_conv(in_channels, out_channels, (1, width), padding=(0, width // 2))


def _tall(in_channels: int, out_channels: int, height: int) -> Sequential:
    return inception_conv(in_channels, out_channels, (height, 1), padding=(height // 2, 0))


class InceptionA(Module):
    """1x1, 5x5, twice 3x3, pooled (figure 5)."""

    def __init__(self, in_channels: int, pooled: int) -> None:
        self.branch1x1 = inception_conv(in_channels, 64, 1)
        self.branch5x5_1 = inception_conv(in_channels, 48, 1)
        self.branch5x5_2 = inception_conv(48, 64, 5, padding=2)
        self.branch3x3dbl_1 = inception_conv(in_channels, 64, 1)
        self.branch3x3dbl_2 = inception_conv(64, 96, 3, padding=1)
        self.branch3x3dbl_3 = inception_conv(96, 96, 3, padding=1)
        self.branch_pool = inception_conv(in_channels, pooled, 1)

    def forward(self, x: Tensor) -> Tensor:
        five = self.branch5x5_2(self.branch5x5_1(x))
        double = self.branch3x3dbl_3(self.branch3x3dbl_2(self.branch3x3dbl_1(x)))
        return F.concatenate([self.branch1x1(x), five, double, self.branch_pool(_pool(x))], 1)


class InceptionB(Module):
    """To half the size: 3x3, twice 3x3, pooled (figure 10)."""

    def __init__(self, in_channels: int) -> None:
        self.branch3x3 = inception_conv(in_channels, 384, 3, 2)
        self.branch3x3dbl_1 = inception_conv(in_channels, 64, 1)
        self.branch3x3dbl_2 = inception_conv(64, 96, 3, padding=1)
        self.branch3x3dbl_3 = inception_conv(96, 96, 3, 2)

    def forward(self, x: Tensor) -> Tensor:
        double = self.branch3x3dbl_3(self.branch3x3dbl_2(self.branch3x3dbl_1(x)))
        return F.concatenate([self.branch3x3(x), double, F.max_pool2d(x, 3, 2)], 1)


class InceptionC(Module):
    """1x1, 7x7 in two parts, twice that, pooled (figure 6, n = 7)."""

    def __init__(self, in_channels: int, c: int) -> None:
        self.branch1x1 = inception_conv(in_channels, 192, 1)
        self.branch7x7_1 = inception_conv(in_channels, c, 1)
        self.branch7x7_2 = _flat(c, c, 7)
        self.branch7x7_3 = _tall(c, 192, 7)
        self.branch7x7dbl_1 = inception_conv(in_channels, c, 1)
        self.branch7x7dbl_2 = _tall(c, c, 7)
        self.branch7x7dbl_3 = _flat(c, c, 7)
        self.branch7x7dbl_4 = _tall(c, c, 7)
        self.branch7x7dbl_5 = _flat(c, 192, 7)
        self.branch_pool = inception_conv(in_channels, 192, 1)

    def forward(self, x: Tensor) -> Tensor:
        seven = self.branch7x7_3(self.branch7x7_2(self.branch7x7_1(x)))
        double = self.branch7x7dbl_3(self.branch7x7dbl_2(self.branch7x7dbl_1(x)))
        double = self.branch7x7dbl_5(self.branch7x7dbl_4(double))
        return F.concatenate([self.branch1x1(x), seven, double, self.branch_pool(_pool(x))], 1)


class InceptionD(Module):
    """To half the size: 3x3, 7x7 in two parts and 3x3, pooled."""

    def __init__(self, in_channels: int) -> None:
        self.branch3x3_1 = inception_conv(in_channels, 192, 1)
        self.branch3x3_2 = inception_conv(192, 320, 3, 2)
        self.branch7x7x3_1 = inception_conv(in_channels, 192, 1)
        self.branch7x7x3_2 = _flat(192, 192, 7)
        self.branch7x7x3_3 = _tall(192, 192, 7)
        self.branch7x7x3_4 = inception_conv(192, 192, 3, 2)

    def forward(self, x: Tensor) -> Tensor:
        seven = self.branch7x7x3_3(self.branch7x7x3_2(self.branch7x7x3_1(x)))
        three = self.branch3x3_2(self.branch3x3_1(x))
        return F.concatenate([three, self.branch7x7x3_4(seven), F.max_pool2d(x, 3, 2)], 1)


class InceptionE(Module):
    """1x1, 3x3 whose two parts stand side by side, 3x3 before such, pooled (figure 7)."""

    def __init__(self, in_channels: int) -> None:
        self.branch1x1 = inception_conv(in_channels, 320, 1)
        self.branch3x3_1 = inception_conv(in_channels, 384, 1)
        self.branch3x3_2a = _flat(384, 384, 3)
        self.branch3x3_2b = _tall(384, 384, 3)
        self.branch3x3dbl_1 = inception_conv(in_channels, 448, 1)
        self.branch3x3dbl_2 = inception_conv(448, 384, 3, padding=1)
        self.branch3x3dbl_3a = _flat(384, 384, 3)
        self.branch3x3dbl_3b = _tall(384, 384, 3)
        self.branch_pool = inception_conv(in_channels, 192, 1)

    def forward(self, x: Tensor) -> Tensor:
        three = self.branch3x3_1(x)
        double = self.branch3x3dbl_2(self.branch3x3dbl_1(x))
        return F.concatenate(
            [
                self.branch1x1(x),
                self.branch3x3_2a(three),
                self.branch3x3_2b(three),
                self.branch3x3dbl_3a(double),
                self.branch3x3dbl_3b(double),
                self.branch_pool(_pool(x)),
            ],
            1,
        )


class InceptionV3(Module):
    """The convolutional part: x (n, 3, height, width), at least 75 pixels, to the last maps of five strides.

    Many convolutions have no padding, so that the maps are a little smaller than the size over the stride. The input is
    normalised as for every backbone; the network brings it to -1 to 1 itself, as it was trained.

    >>> import numpy as np

    >>> [m.shape[1:] for m in InceptionV3()(Tensor(np.zeros((1, 3, 75, 75), np.float32)))]
    [(64, 35, 35), (192, 15, 15), (288, 7, 7), (768, 3, 3), (2048, 1, 1)]
    """

    channels = (64, 192, 288, 768, 2048)
    strides = (2, 4, 8, 16, 32)

    def __init__(self) -> None:
        self.Conv2d_1a_3x3 = inception_conv(3, 32, 3, 2)
        self.Conv2d_2a_3x3 = inception_conv(32, 32, 3)
        self.Conv2d_2b_3x3 = inception_conv(32, 64, 3, padding=1)
        self.Conv2d_3b_1x1 = inception_conv(64, 80, 1)
        self.Conv2d_4a_3x3 = inception_conv(80, 192, 3)
        self.Mixed_5b = InceptionA(192, 32)
        self.Mixed_5c = InceptionA(256, 64)
        self.Mixed_5d = InceptionA(288, 64)
        self.Mixed_6a = InceptionB(288)
        self.Mixed_6b = InceptionC(768, 128)
        self.Mixed_6c = InceptionC(768, 160)
        self.Mixed_6d = InceptionC(768, 160)
        self.Mixed_6e = InceptionC(768, 192)
        self.Mixed_7a = InceptionD(768)
        self.Mixed_7b = InceptionE(1280)
        self.Mixed_7c = InceptionE(2048)

    def maps(self, x: Tensor) -> list[Tensor]:
        """The last maps of the strides 2, 4, 8, 16 and 32."""
        c1 = self.Conv2d_2b_3x3(self.Conv2d_2a_3x3(self.Conv2d_1a_3x3(symmetric_input(x))))
        c2 = self.Conv2d_4a_3x3(self.Conv2d_3b_1x1(F.max_pool2d(c1, 3, 2)))
        c3 = self.Mixed_5d(self.Mixed_5c(self.Mixed_5b(F.max_pool2d(c2, 3, 2))))
        c4 = self.Mixed_6a(c3)
        for part in (self.Mixed_6b, self.Mixed_6c, self.Mixed_6d, self.Mixed_6e):
            c4 = part(c4)
        return [c1, c2, c3, c4, self.Mixed_7c(self.Mixed_7b(self.Mixed_7a(c4)))]

    def forward(self, x: Tensor) -> list[Tensor]:
        return self.maps(x)


class InceptionV3Classifier(InceptionV3, Classifier):
    """Inception v3 with its classifier: x (n, 3, height, width), at least 75 pixels, to logits (n, classes)."""

    class_layers = ("fc.",)
    ignored_keys = (  # the auxiliary head that helped the training
        *(
            f"AuxLogits.conv{i}.{key}"
            for i in (0, 1)
            for key in (
                "conv.weight",
                *(f"bn.{n}" for n in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")),
            )
        ),
        "AuxLogits.fc.weight",
        "AuxLogits.fc.bias",
    )

    def __init__(self, categories: Categories) -> None:
        super().__init__()
        self.categories = categories
        self.dropout = Dropout(0.5)
        self.fc = Linear(2048, categories.outputs)

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return self.fc(self.dropout(F.mean(self.maps(x)[-1], (2, 3))))  # type: ignore[no-any-return]


def inception_v3(categories: Categories) -> InceptionV3Classifier:
    """Inception v3 (table 1)."""
    return InceptionV3Classifier(categories)


info = partial(classifier_info, "Szegedy et al. 2015, Rethinking the Inception architecture for computer vision")
MODELS = (
    info(
        inception_v3,
        5.713,
        # 27,161,264 parameters with the auxiliary head
        imagenet_entry(1, "inception_v3_google-0cc3c7bd", 23_834_568, 77.294, 93.450, resize=342, crop=299),
    ),
)
