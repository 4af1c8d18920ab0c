"""GoogLeNet: Szegedy et al. 2014, "Going deeper with convolutions", with batch norms and without auxiliary heads."""

from __future__ import annotations

from functools import partial

from ...core import Tensor
from ...core import functions as F
from ...core.layers import Dropout, Linear, MaxPool2d, Module, Sequential
from ...weights.torchvision import imagenet_entry
from ..categories import Categories
from ..model import Classifier
from .blocks import classifier_info, inception_conv, symmetric_input


class Inception(Module):
    """Four branches side by side (figure 2b); the published weights have 3x3 where the paper has 5x5."""

    def __init__(self, in_channels: int, one: int, three: tuple[int, int], five: tuple[int, int], pooled: int) -> None:
        self.branch1 = inception_conv(in_channels, one, 1)
        self.branch2 = Sequential(
            inception_conv(in_channels, three[0], 1), inception_conv(three[0], three[1], 3, padding=1)
        )
        self.branch3 = Sequential(
            inception_conv(in_channels, five[0], 1), inception_conv(five[0], five[1], 3, padding=1)
        )
        self.branch4 = Sequential(MaxPool2d(3, 1, 1), inception_conv(in_channels, pooled, 1))

    def forward(self, x: Tensor) -> Tensor:
        return F.concatenate([branch(x) for branch in (self.branch1, self.branch2, self.branch3, self.branch4)], 1)


class GoogLeNet(Module):
    """The convolutional part: x (n, 3, height, width) to the last maps of the strides 2, 4, 8, 16 and 32.

    The input is normalised as for every backbone; the network brings it to -1 to 1 itself, as it was trained.

    >>> import numpy as np

    >>> [m.shape[1:] for m in GoogLeNet()(Tensor(np.zeros((1, 3, 64, 64), np.float32)))]
    [(64, 32, 32), (192, 16, 16), (480, 8, 8), (832, 4, 4), (1024, 2, 2)]
    """

    channels = (64, 192, 480, 832, 1024)
    strides = (2, 4, 8, 16, 32)

    def __init__(self) -> None:  # table 1
        self.conv1 = inception_conv(3, 64, 7, 2, padding=3)
        self.conv2 = inception_conv(64, 64, 1)
        self.conv3 = inception_conv(64, 192, 3, padding=1)
        self.inception3a = Inception(192, 64, (96, 128), (16, 32), 32)
        self.inception3b = Inception(256, 128, (128, 192), (32, 96), 64)
        self.inception4a = Inception(480, 192, (96, 208), (16, 48), 64)
        self.inception4b = Inception(512, 160, (112, 224), (24, 64), 64)
        self.inception4c = Inception(512, 128, (128, 256), (24, 64), 64)
        self.inception4d = Inception(512, 112, (144, 288), (32, 64), 64)
        self.inception4e = Inception(528, 256, (160, 320), (32, 128), 128)
        self.inception5a = Inception(832, 256, (160, 320), (32, 128), 128)
        self.inception5b = Inception(832, 384, (192, 384), (48, 128), 128)

    def maps(self, x: Tensor) -> list[Tensor]:
        """The last maps of the strides 2, 4, 8, 16 and 32."""
        c1 = self.conv1(symmetric_input(x))
        c2 = self.conv3(self.conv2(F.max_pool2d(c1, 3, 2, ceil_mode=True)))
        c3 = self.inception3b(self.inception3a(F.max_pool2d(c2, 3, 2, ceil_mode=True)))
        c4 = F.max_pool2d(c3, 3, 2, ceil_mode=True)
        for part in (self.inception4a, self.inception4b, self.inception4c, self.inception4d, self.inception4e):
            c4 = part(c4)
        c5 = self.inception5b(self.inception5a(F.max_pool2d(c4, 2, 2, ceil_mode=True)))
        return [c1, c2, c3, c4, c5]

    def forward(self, x: Tensor) -> list[Tensor]:
        return self.maps(x)


class GoogLeNetClassifier(GoogLeNet, Classifier):
    """GoogLeNet with its classifier: x (n, 3, height, width) to logits (n, classes)."""

    class_layers = ("fc.",)
    ignored_keys = tuple(  # the auxiliary heads that helped the training
        f"aux{i}.{key}"
        for i in (1, 2)
        for key in (
            "conv.conv.weight",
            *(f"conv.bn.{n}" for n in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")),
            *(f"fc{k}.{n}" for k in (1, 2) for n in ("weight", "bias")),
        )
    )

    def __init__(self, categories: Categories) -> None:
        super().__init__()
        self.categories = categories
        self.dropout = Dropout(0.2)
        self.fc = Linear(1024, categories.outputs)

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return self.fc(self.dropout(F.mean(self.maps(x)[-1], (2, 3))))  # type: ignore[no-any-return]


def googlenet(categories: Categories) -> GoogLeNetClassifier:
    """GoogLeNet (table 1)."""
    return GoogLeNetClassifier(categories)


info = partial(classifier_info, "Szegedy et al. 2014, Going deeper with convolutions")
MODELS = (info(googlenet, 1.498, imagenet_entry(1, "googlenet-1378be20", 6_624_904, 69.778, 89.530)),)
