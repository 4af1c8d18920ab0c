"""ResNet and SE-ResNet as ChainerCV has them: He et al. 2015, "Deep residual learning for image recognition", and
Hu et al. 2018, "Squeeze-and-excitation networks"."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from ...core.layers import BatchNorm2d, Conv2d, MaxPool2d
from ...weights import chainer
from ..categories import Categories
from ..model import ModelInfo
from .blocks import Norm, classifier_info
from .resnet import Bottleneck, ResNet, ResNetClassifier, SEBottleneck

DEPTHS_50, DEPTHS_101, DEPTHS_152 = (3, 4, 6, 3), (3, 4, 23, 3), (3, 8, 36, 3)
MEAN = (123.15163084, 115.90288257, 103.0626238)
CHAINER_NORM: Norm = partial(BatchNorm2d, eps=2e-5)


def stride_first(body: ResNet) -> ResNet:
    """A ResNet of bottlenecks with the stride on their first convolution, as He et al. 2015 have it."""
    for _, block in body.named_modules():
        if isinstance(block, Bottleneck):
            stride = block.conv2.spec.stride
            block.conv1.spec = block.conv1.spec._replace(stride=stride)
            block.conv2.spec = block.conv2.spec._replace(stride=(1, 1))
    return body


def resnet_rules(start: str) -> list[tuple[str, str]]:
    """The names of a ResNet in ChainerCV's files and here, for names that begin with the regular expression.

    >>> list(chainer.torch_names({"res3/b2/conv1/bn/beta": 0}, resnet_rules("^")))
    ['layer2.2.bn1.bias']
    """
    rules = []
    for k in range(2, 6):
        rules += [(rf"({start})res{k}\.a\.", rf"\1layer{k - 1}.0."), (rf"({start})res{k}\.b", rf"\1layer{k - 1}.")]
    rules += [
        (rf"({start}.*)residual_conv\.conv", r"\1downsample.0"),
        (rf"({start}.*)residual_conv\.bn", r"\1downsample.1"),
    ]
    return [*rules, (rf"({start}.*)conv(\d)\.conv", r"\1conv\2"), (rf"({start}.*)conv(\d)\.bn", r"\1bn\2")]


def _resnet(
    block: type[Bottleneck], depths: Sequence[int], categories: Categories, groups: int = 1, base: int = 64
) -> ResNetClassifier:
    """One whose first pooling has no padding, but windows that may reach over the end."""
    model = ResNetClassifier(block, depths, categories, CHAINER_NORM, groups, base)
    model.maxpool = MaxPool2d(3, 2, ceil_mode=True)
    return model


def _stride_first(block: type[Bottleneck], depths: Sequence[int], categories: Categories) -> ResNetClassifier:
    model = _resnet(block, depths, categories)
    stride_first(model)
    return model


def resnet50_fb(categories: Categories) -> ResNetClassifier:
    """ResNet-50 with the stride on the 3x3 convolutions, trained by ChainerCV as in Goyal et al. 2017."""
    return _resnet(Bottleneck, DEPTHS_50, categories)


def resnet101_fb(categories: Categories) -> ResNetClassifier:
    """ResNet-101 with the stride on the 3x3 convolutions, trained by ChainerCV as in Goyal et al. 2017."""
    return _resnet(Bottleneck, DEPTHS_101, categories)


def resnet152_fb(categories: Categories) -> ResNetClassifier:
    """ResNet-152 with the stride on the 3x3 convolutions, trained by ChainerCV as in Goyal et al. 2017."""
    return _resnet(Bottleneck, DEPTHS_152, categories)


def resnet50_he(categories: Categories) -> ResNetClassifier:
    """The original ResNet-50: the stride is on the first convolution of a block, and the first of all has a bias."""
    model = _stride_first(Bottleneck, DEPTHS_50, categories)
    model.conv1 = Conv2d(3, 64, 7, 2, 3)
    return model


def resnet101_he(categories: Categories) -> ResNetClassifier:
    """The original ResNet-101: the stride is on the first convolution of a block."""
    return _stride_first(Bottleneck, DEPTHS_101, categories)


def resnet152_he(categories: Categories) -> ResNetClassifier:
    """The original ResNet-152: the stride is on the first convolution of a block."""
    return _stride_first(Bottleneck, DEPTHS_152, categories)


def se_resnet50(categories: Categories) -> ResNetClassifier:
    """SE-ResNet-50, the stride on the first convolution of a block."""
    return _stride_first(SEBottleneck, DEPTHS_50, categories)


def se_resnet101(categories: Categories) -> ResNetClassifier:
    """SE-ResNet-101, the stride on the first convolution of a block."""
    return _stride_first(SEBottleneck, DEPTHS_101, categories)


def se_resnet152(categories: Categories) -> ResNetClassifier:
    """SE-ResNet-152, the stride on the first convolution of a block."""
    return _stride_first(SEBottleneck, DEPTHS_152, categories)


def se_resnext50(categories: Categories) -> ResNetClassifier:
    """SE-ResNeXt-50 with 32 groups of 4 channels."""
    return _resnet(SEBottleneck, DEPTHS_50, categories, 32, 4)


def se_resnext101(categories: Categories) -> ResNetClassifier:
    """SE-ResNeXt-101 with 32 groups of 4 channels."""
    return _resnet(SEBottleneck, DEPTHS_101, categories, 32, 4)


def _as_convolution(weight: np.ndarray) -> np.ndarray:
    return weight[:, :, None, None]


RULES = [*resnet_rules("^"), (r"\.se\.down\.", ".se.fc1."), (r"\.se\.up\.", ".se.fc2."), (r"^fc6\.", "fc.")]
CONVERT = chainer.converter(RULES, (r".*\.se\.fc\d\.weight", _as_convolution))
HE = "He et al. 2015, Deep residual learning for image recognition"
HU = "Hu et al. 2018, Squeeze-and-excitation networks"


def _info(
    paper: str,
    build: Callable[[Categories], ResNetClassifier],
    gflops: float,
    file: str,
    parameters: int,
    *errors: float,
) -> ModelInfo:
    """The row of a model; ``errors`` of one crop and, where it is published, of ten."""
    ten_crops = errors[1] if len(errors) > 1 else None
    entry = chainer.imagenet_entry(file, parameters, errors[0], MEAN, ten_crops)
    return classifier_info(paper, build, gflops, entry, convert=CONVERT)


MODELS = (
    _info(HE, resnet50_fb, 4.089, "resnet50_imagenet_trained_2018_11_26", 25_557_032, 23.51),
    _info(HE, resnet101_fb, 7.801, "resnet101_imagenet_trained_2018_11_26", 44_549_160, 22.07),
    _info(HE, resnet152_fb, 11.514, "resnet152_imagenet_trained_2018_11_26", 60_192_808, 21.67),
    _info(HE, resnet50_he, 3.858, "resnet50_imagenet_converted_2018_03_07", 25_557_096, 24.8, 23.0),
    _info(HE, resnet101_he, 7.57, "resnet101_imagenet_converted_2018_03_07", 44_549_160, 23.6, 21.8),
    _info(HE, resnet152_he, 11.282, "resnet152_imagenet_converted_2018_03_07", 60_192_808, 23.2, 21.4),
    _info(HU, se_resnet50, 3.86, "se_resnet50_imagenet_converted_2018_06_25", 28_088_024, 22.7, 20.8),
    _info(HU, se_resnet101, 7.575, "se_resnet101_imagenet_converted_2018_06_25", 49_326_872, 21.8, 20.1),
    _info(HU, se_resnet152, 11.289, "se_resnet152_imagenet_converted_2018_06_25", 66_821_848, 21.4, 19.7),
    _info(HU, se_resnext50, 4.233, "se_resnext50_imagenet_converted_2018_06_28", 27_559_896, 20.9, 19.4),
    _info(HU, se_resnext101, 7.975, "se_resnext101_imagenet_converted_2018_06_28", 48_955_416, 19.7, 18.6),
)
