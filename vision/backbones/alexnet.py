"""AlexNet with one column: Krizhevsky 2014, "One weird trick for parallelizing convolutional neural networks"."""

from __future__ import annotations

from functools import partial

from ...core import Tensor
from ...core import functions as F
from ...core.layers import Conv2d, Dropout, Linear, MaxPool2d, Module, ReLU, Sequential
from ...weights.torchvision import imagenet_entry
from ..categories import Categories
from ..model import Classifier
from .blocks import classifier_info


class AlexNet(Module):
    """The convolutional part: x (n, 3, height, width) to the last maps of the strides 4, 8 and 16, before pooling.

    >>> import numpy as np

    >>> [m.shape[1:] for m in AlexNet()(Tensor(np.zeros((1, 3, 67, 67), np.float32)))]
    [(64, 16, 16), (192, 7, 7), (256, 3, 3)]
    """

    at = (1, 4, 11)
    channels = (64, 192, 256)
    strides = (4, 8, 16)

    def __init__(self) -> None:
        self.features = Sequential(
            Conv2d(3, 64, 11, stride=4, padding=2),
            ReLU(),
            MaxPool2d(3, stride=2),
            Conv2d(64, 192, 5, padding=2),
            ReLU(),
            MaxPool2d(3, stride=2),
            Conv2d(192, 384, 3, padding=1),
            ReLU(),
            Conv2d(384, 256, 3, padding=1),
            ReLU(),
            Conv2d(256, 256, 3, padding=1),
            ReLU(),
            MaxPool2d(3, stride=2),
        )

    def forward(self, x: Tensor) -> list[Tensor]:
        return self.features.outputs(x, self.at)


class AlexNetClassifier(AlexNet, Classifier):
    """AlexNet with its classifier: x (n, 3, height, width), at least 63 pixels, to logits (n, classes)."""

    class_layers = ("classifier.6.",)

    def __init__(self, categories: Categories) -> None:
        super().__init__()
        self.categories = categories
        self.classifier = Sequential(
            Dropout(0.5),
            Linear(256 * 6 * 6, 4096),
            ReLU(),
            Dropout(0.5),
            Linear(4096, 4096),
            ReLU(),
            Linear(4096, categories.outputs),
        )

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        y = F.adaptive_avg_pool2d(self.features(x), 6)
        return self.classifier(F.reshape(y, (y.shape[0], -1)))  # type: ignore[no-any-return]


def alexnet(categories: Categories) -> AlexNetClassifier:
    """AlexNet."""
    return AlexNetClassifier(categories)


info = partial(classifier_info, "Krizhevsky 2014, One weird trick for parallelizing convolutional neural networks")
MODELS = (info(alexnet, 0.714, imagenet_entry(1, "alexnet-owt-7be5be79", 61_100_840, 56.522, 79.066)),)
