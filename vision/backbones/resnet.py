"""ResNet: He et al. 2015, "Deep residual learning for image recognition", with the stride on the 3x3 convolution;
ResNeXt: Xie et al. 2016, "Aggregated residual transformations for deep neural networks"; and Wide ResNet: Zagoruyko
and Komodakis 2016, "Wide residual networks"."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from ...core import Tensor
from ...core import functions as F
from ...core.layers import BatchNorm2d, Conv2d, Linear, MaxPool2d, Module, ReLU, Sequential, init
from ...weights.torchvision import imagenet_entry
from ..categories import Categories
from ..model import Classifier
from .blocks import Norm, SqueezeExcitation, classifier_info


class BasicBlock(Module):
    """Two 3x3 convolutions around a shortcut (figure 5, left)."""

    expansion = 1

    def __init__(self, in_channels: int, width: int, stride: int, norm: Norm) -> None:
        self.conv1 = Conv2d(in_channels, width, 3, stride, padding=1, bias=False)
        self.bn1 = norm(width)
        self.conv2 = Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = norm(width)
        self.relu = ReLU()
        if stride > 1 or in_channels != width:
            self.downsample = Sequential(Conv2d(in_channels, width, 1, stride, bias=False), norm(width))

    def forward(self, x: Tensor) -> Tensor:
        shortcut = self.downsample(x) if hasattr(self, "downsample") else x
        y = self.conv1.fused(x, self.bn1, self.relu)
        return self.conv2.fused(y, self.bn2, self.relu, shortcut)


class Bottleneck(Module):
    """1x1 to a narrow width, 3x3, 1x1 back to four times that, around a shortcut (figure 5, right)."""

    expansion = 4

    def __init__(
        self, in_channels: int, width: int, stride: int, norm: Norm, dilation: int = 1, groups: int = 1, base: int = 64
    ) -> None:
        out = width * self.expansion
        inner = width * base // 64 * groups
        self.conv1 = Conv2d(in_channels, inner, 1, bias=False)
        self.bn1 = norm(inner)
        self.conv2 = Conv2d(inner, inner, 3, stride, dilation, dilation, groups, bias=False)
        self.bn2 = norm(inner)
        self.conv3 = Conv2d(inner, out, 1, bias=False)
        self.bn3 = norm(out)
        self.relu = ReLU()
        if stride > 1 or in_channels != out:
            self.downsample = Sequential(Conv2d(in_channels, out, 1, stride, bias=False), norm(out))

    def forward(self, x: Tensor) -> Tensor:
        shortcut = self.downsample(x) if hasattr(self, "downsample") else x
        y = self.conv1.fused(x, self.bn1, self.relu)
        return self.join(self.conv2.fused(y, self.bn2, self.relu), shortcut)

    def join(self, y: Tensor, shortcut: Tensor) -> Tensor:
        """The last convolution of y, and the sum with the shortcut."""
        return self.conv3.fused(y, self.bn3, self.relu, shortcut)


class SEBottleneck(Bottleneck):
    """A bottleneck whose output channels are gated before the sum (Hu et al. 2018, figure 3)."""

    def __init__(
        self, in_channels: int, width: int, stride: int, norm: Norm, dilation: int = 1, groups: int = 1, base: int = 64
    ) -> None:
        super().__init__(in_channels, width, stride, norm, dilation, groups, base)
        out = width * self.expansion
        self.se = SqueezeExcitation(out, out // 16)

    def join(self, y: Tensor, shortcut: Tensor) -> Tensor:
        return F.add_relu(self.se(self.conv3.fused(y, self.bn3)), shortcut)


class ResNet(Module):
    """The convolutional part: x (n, 3, height, width) to the feature maps of the four stages, strides 4, 8, 16, 32.

    ``block`` makes one block from (in_channels, width, stride, norm); ``depths`` counts blocks per stage.

    >>> import numpy as np
    >>> maps = ResNet(BasicBlock, (1, 1, 1, 1))(Tensor(np.zeros((1, 3, 64, 64), np.float32)))
    >>> [m.shape for m in maps]
    [(1, 64, 16, 16), (1, 128, 8, 8), (1, 256, 4, 4), (1, 512, 2, 2)]
    """

    strides = (4, 8, 16, 32)
    stem_channels = 64

    def __init__(
        self,
        block: type[BasicBlock] | type[Bottleneck],
        depths: Sequence[int],
        norm: Norm = BatchNorm2d,
        dilations: Sequence[int] = (1, 1, 1, 1),
        groups: int = 1,
        base: int = 64,
    ) -> None:
        self.conv1 = Conv2d(3, 64, 7, 2, 3, bias=False)
        self.bn1 = norm(64)
        self.relu = ReLU()
        self.maxpool = MaxPool2d(3, 2, 1)
        self.channels = tuple(w * block.expansion for w in (64, 128, 256, 512))
        wide = {} if block is BasicBlock else {"groups": groups, "base": base}
        channels, before = self.stem_channels, 1
        for stage, (width, depth) in enumerate(zip((64, 128, 256, 512), depths)):
            blocks = []
            for i in range(depth):
                # a dilated stage keeps the size; its first block still has the dilation of the stage before
                stride = 2 if i == 0 and stage > 0 and dilations[stage] == 1 else 1
                dilation = before if i == 0 else dilations[stage]
                if block is not BasicBlock:
                    wide["dilation"] = dilation
                blocks.append(block(channels, width, stride, norm, **wide))
                channels = width * block.expansion
            before = dilations[stage]
            setattr(self, f"layer{stage + 1}", Sequential(*blocks))
        for _, module in self.named_modules():
            if isinstance(module, Conv2d):
                module.weight.data = init.he_normal(module.weight.shape)

    def stem(self, x: Tensor) -> Tensor:
        """What is pooled before the first stage."""
        return self.conv1.fused(x, self.bn1, self.relu)

    def features(self, x: Tensor) -> list[Tensor]:
        """The feature maps of the four stages."""
        x = self.maxpool(self.stem(x))
        maps = []
        for layer in (self.layer1, self.layer2, self.layer3, self.layer4):  # type: ignore[attr-defined]
            x = layer(x)
            maps.append(x)
        return maps

    def forward(self, x: Tensor) -> list[Tensor]:
        return self.features(x)


class ResNetClassifier(ResNet, Classifier):
    """ResNet with its classifier: x (n, 3, height, width) to logits (n, classes)."""

    class_layers = ("fc.",)

    def __init__(
        self,
        block: type[BasicBlock] | type[Bottleneck],
        depths: Sequence[int],
        categories: Categories,
        norm: Norm = BatchNorm2d,
        groups: int = 1,
        base: int = 64,
    ) -> None:
        super().__init__(block, depths, norm, groups=groups, base=base)
        self.fc = Linear(self.channels[-1], categories.outputs)
        self.categories = categories

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return self.fc(F.mean(self.features(x)[-1], (2, 3)))  # type: ignore[no-any-return]


def resnet18(categories: Categories) -> ResNetClassifier:
    """ResNet-18 (table 1)."""
    return ResNetClassifier(BasicBlock, (2, 2, 2, 2), categories)


def resnet34(categories: Categories) -> ResNetClassifier:
    """ResNet-34 (table 1)."""
    return ResNetClassifier(BasicBlock, (3, 4, 6, 3), categories)


def resnet50(categories: Categories) -> ResNetClassifier:
    """ResNet-50 (table 1)."""
    return ResNetClassifier(Bottleneck, (3, 4, 6, 3), categories)


def resnet101(categories: Categories) -> ResNetClassifier:
    """ResNet-101 (table 1)."""
    return ResNetClassifier(Bottleneck, (3, 4, 23, 3), categories)


def resnet152(categories: Categories) -> ResNetClassifier:
    """ResNet-152 (table 1)."""
    return ResNetClassifier(Bottleneck, (3, 8, 36, 3), categories)


def resnext50_32x4d(categories: Categories) -> ResNetClassifier:
    """ResNeXt-50 with 32 groups of 4 channels (table 1 of the paper)."""
    return ResNetClassifier(Bottleneck, (3, 4, 6, 3), categories, groups=32, base=4)


def resnext101_32x8d(categories: Categories) -> ResNetClassifier:
    """ResNeXt-101 with 32 groups of 8 channels."""
    return ResNetClassifier(Bottleneck, (3, 4, 23, 3), categories, groups=32, base=8)


def resnext101_64x4d(categories: Categories) -> ResNetClassifier:
    """ResNeXt-101 with 64 groups of 4 channels."""
    return ResNetClassifier(Bottleneck, (3, 4, 23, 3), categories, groups=64, base=4)


def wide_resnet50_2(categories: Categories) -> ResNetClassifier:
    """ResNet-50 with 3x3 convolutions of twice the width."""
    return ResNetClassifier(Bottleneck, (3, 4, 6, 3), categories, base=128)


def wide_resnet101_2(categories: Categories) -> ResNetClassifier:
    """ResNet-101 with 3x3 convolutions of twice the width."""
    return ResNetClassifier(Bottleneck, (3, 4, 23, 3), categories, base=128)


info = partial(classifier_info, "He et al. 2015, Deep residual learning for image recognition")
info_next = partial(classifier_info, "Xie et al. 2016, Aggregated residual transformations for deep neural networks")
info_wide = partial(classifier_info, "Zagoruyko and Komodakis 2016, Wide residual networks")
MODELS = (
    info(resnet18, 1.814, imagenet_entry(1, "resnet18-f37072fd", 11_689_512, 69.758, 89.078)),
    info(resnet34, 3.664, imagenet_entry(1, "resnet34-b627a593", 21_797_672, 73.314, 91.420)),
    info(
        resnet50,
        4.089,
        imagenet_entry(2, "resnet50-11ad3fa6", 25_557_032, 80.858, 95.434, resize=232),
        imagenet_entry(1, "resnet50-0676ba61", 25_557_032, 76.130, 92.862),
    ),
    info(
        resnet101,
        7.801,
        imagenet_entry(2, "resnet101-cd907fc2", 44_549_160, 81.886, 95.780, resize=232),
        imagenet_entry(1, "resnet101-63fe2227", 44_549_160, 77.374, 93.546),
    ),
    info(
        resnet152,
        11.514,
        imagenet_entry(2, "resnet152-f82ba261", 60_192_808, 82.284, 96.002, resize=232),
        imagenet_entry(1, "resnet152-394f9c45", 60_192_808, 78.312, 94.046),
    ),
    info_next(
        resnext50_32x4d,
        4.23,
        imagenet_entry(2, "resnext50_32x4d-1a0047aa", 25_028_904, 81.198, 95.340, resize=232),
        imagenet_entry(1, "resnext50_32x4d-7cdf4587", 25_028_904, 77.618, 93.698),
    ),
    info_next(
        resnext101_32x8d,
        16.414,
        imagenet_entry(2, "resnext101_32x8d-110c445d", 88_791_336, 82.834, 96.228, resize=232),
        imagenet_entry(1, "resnext101_32x8d-8ba56ff5", 88_791_336, 79.312, 94.526),
    ),
    info_next(
        resnext101_64x4d,
        15.46,
        imagenet_entry(1, "resnext101_64x4d-173b62eb", 83_455_272, 83.246, 96.454, resize=232),
    ),
    info_wide(
        wide_resnet50_2,
        11.398,
        imagenet_entry(2, "wide_resnet50_2-9ba9bcbe", 68_883_240, 81.602, 95.758, resize=232),
        imagenet_entry(1, "wide_resnet50_2-95faca4d", 68_883_240, 78.468, 94.086),
    ),
    info_wide(
        wide_resnet101_2,
        22.753,
        imagenet_entry(2, "wide_resnet101_2-d733dc28", 126_886_696, 82.510, 96.020, resize=232),
        imagenet_entry(1, "wide_resnet101_2-32ee1156", 126_886_696, 78.848, 94.284),
    ),
)
