"""MaxViT: Tu et al. 2022, "MaxViT: multi-axis vision transformer"."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from ...core import Buffer, Parameter, Tensor
from ...core import functions as F
from ...core.layers import (
    GELU,
    AdaptiveAvgPool2d,
    AvgPool2d,
    BatchNorm2d,
    Conv2d,
    Flatten,
    LayerNorm,
    Linear,
    Module,
    Sequential,
    SiLU,
    StochasticDepth,
    Tanh,
    init,
)
from ...weights.torchvision import imagenet_entry
from ..categories import Categories
from ..model import Classifier
from .attention import join_heads, split_heads
from .blocks import (
    SqueezeExcitation,
    classifier_info,
    conv_norm_activation,
    depth_ratios,
    initialise,
    join_windows,
    relative_positions,
    split_windows,
)

norm = partial(BatchNorm2d, eps=1e-3, momentum=0.01)
WINDOW = 7  # also the grid's height and width


class MBConv(Module):
    """Norm, expand, depthwise, squeeze-and-excite, project, around a shortcut (appendix A.1)."""

    def __init__(self, in_channels: int, channels: int, stride: int, drop: float) -> None:
        inner = 4 * channels
        if stride > 1 or in_channels != channels:
            self.proj = Sequential(AvgPool2d(3, stride, 1), Conv2d(in_channels, channels, 1))
        self.layers = Sequential(
            pre_norm=norm(in_channels),
            conv_a=conv_norm_activation(in_channels, inner, 1, norm=norm, activation=GELU()),
            conv_b=conv_norm_activation(inner, inner, 3, stride, groups=inner, norm=norm, activation=GELU()),
            squeeze_excitation=SqueezeExcitation(inner, channels // 4, SiLU()),
            conv_c=Conv2d(inner, channels, 1),
        )
        self.stochastic_depth = StochasticDepth(drop)

    def forward(self, x: Tensor) -> Tensor:
        shortcut = self.proj(x) if hasattr(self, "proj") else x
        drop = self.stochastic_depth
        return shortcut + drop(self.layers(x)) if drop.active else self.layers(x, shortcut)  # type: ignore[no-any-return]


class RelativeAttention(Module):
    """Attention in groups of 7x7 places x (n, groups, places, features) with a bias for each relative position."""

    def __init__(self, features: int, heads: int) -> None:
        self.heads = heads
        self.to_qkv = Linear(features, 3 * features)
        self.merge = Linear(features, features)
        self.relative_position_bias_table = Parameter(init.normal(((2 * WINDOW - 1) ** 2, heads), 0.02))
        self.relative_position_index = Buffer(relative_positions(WINDOW))

    def forward(self, x: Tensor) -> Tensor:
        n, groups, places, features = x.shape
        q, k, v = split_heads(self.to_qkv(F.reshape(x, (n * groups, places, features))), self.heads)
        bias = F.transpose(F.getitem(self.relative_position_bias_table, self.relative_position_index), (2, 0, 1))
        y = join_heads(F.attention(q, k, v, bias, features**-0.5))  # the published weights' scale: of all heads
        return F.reshape(self.merge(y), x.shape)


class PartitionAttention(Module):
    """Attention and a perceptron in groups of places of (n, features, height, width); see the subclasses."""

    def __init__(self, features: int, heads: int, drop: float) -> None:
        self.attn_layer = Sequential(LayerNorm(features), RelativeAttention(features, heads))
        self.mlp_layer = Sequential(
            LayerNorm(features), Linear(features, 4 * features), GELU(), Linear(4 * features, features)
        )
        self.stochastic_depth = StochasticDepth(drop)

    def mix(self, x: Tensor) -> Tensor:
        """What happens in each group of x (n, groups, places, features)."""
        x = x + self.stochastic_depth(self.attn_layer(x))
        return x + self.stochastic_depth(self.mlp_layer(x))  # type: ignore[no-any-return]


class WindowAttention(PartitionAttention):
    """Groups of neighbours: windows of 7x7 (section 3.2, "block attention")."""

    def forward(self, x: Tensor) -> Tensor:
        y = F.transpose(x, (0, 2, 3, 1))
        height, width = y.shape[1:3]
        y = join_windows(self.mix(split_windows(y, WINDOW, WINDOW)), height, width, WINDOW, WINDOW)
        return F.transpose(y, (0, 3, 1, 2))


class GridAttention(PartitionAttention):
    """Groups spread over the whole map: the same place of each of 7x7 windows (section 3.2, "grid attention")."""

    def forward(self, x: Tensor) -> Tensor:
        y = F.transpose(x, (0, 2, 3, 1))
        height, width = y.shape[1:3]
        rows, columns = height // WINDOW, width // WINDOW
        y = self.mix(F.transpose(split_windows(y, rows, columns), (0, 2, 1, 3)))
        y = join_windows(F.transpose(y, (0, 2, 1, 3)), height, width, rows, columns)
        return F.transpose(y, (0, 3, 1, 2))


class MaxViTLayer(Module):
    """Convolution, attention in windows, attention in the grid (figure 2)."""

    def __init__(self, in_channels: int, channels: int, stride: int, heads: int, drop: float) -> None:
        self.layers = Sequential(
            MBconv=MBConv(in_channels, channels, stride, drop),
            window_attention=WindowAttention(channels, heads, drop),
            grid_attention=GridAttention(channels, heads, drop),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)  # type: ignore[no-any-return]


class Stage(Module):
    """Layers at one size, the first of which halves it."""

    def __init__(self, layers: Sequence[MaxViTLayer]) -> None:
        self.layers = Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)  # type: ignore[no-any-return]


class MaxViT(Module):
    """The transformer: x (n, 3, height, width), multiples of 224, to the maps of the stages, strides 4, 8, 16, 32.

    ``size`` is the number of features of a head, ``drop`` the ratio of stochastic depth in the last block.

    >>> import numpy as np

    >>> net = MaxViT(8, (8, 8, 16, 16), (1, 1, 1, 1), size=8)
    >>> [m.shape[1:] for m in net(Tensor(np.zeros((1, 3, 224, 224), np.float32)))]
    [(8, 56, 56), (8, 28, 28), (16, 14, 14), (16, 7, 7)]
    """

    strides = (4, 8, 16, 32)

    def __init__(self, stem: int, channels: Sequence[int], depths: Sequence[int], size: int, drop: float = 0.0) -> None:
        self.stem = Sequential(
            conv_norm_activation(3, stem, 3, 2, norm=norm, activation=GELU()),
            Sequential(Conv2d(stem, stem, 3, padding=1)),
        )
        ratios = iter(depth_ratios(drop, sum(depths)))
        stages, before = [], stem
        for width, depth in zip(channels, depths):
            layers = []
            for i in range(depth):
                layers.append(MaxViTLayer(before, width, 2 if i == 0 else 1, width // size, next(ratios)))
                before = width
            stages.append(Stage(layers))
        self.blocks = Sequential(*stages)
        self.channels = tuple(channels)
        initialise(self, (Conv2d, Linear), partial(init.normal, std=0.02))

    def maps(self, x: Tensor) -> list[Tensor]:
        """The maps of the stages."""
        least = 32 * WINDOW
        if x.ndim != 4 or x.shape[2] % least or x.shape[3] % least:
            raise ValueError(f"expected x (n, 3, height, width) of multiples of {least} pixels, got {x.shape}")
        return self.blocks.outputs(self.stem(x), range(len(self.channels)))

    def forward(self, x: Tensor) -> list[Tensor]:
        return self.maps(x)


class MaxViTClassifier(MaxViT, Classifier):
    """MaxViT with its classifier: x (n, 3, height, width), multiples of 224, to logits (n, classes)."""

    class_layers = ("classifier.5.",)

    def __init__(
        self, stem: int, channels: Sequence[int], depths: Sequence[int], size: int, drop: float, categories: Categories
    ) -> None:
        super().__init__(stem, channels, depths, size, drop)
        self.categories = categories
        last = channels[-1]
        self.classifier = Sequential(
            AdaptiveAvgPool2d(1),
            Flatten(),
            LayerNorm(last),
            Linear(last, last),
            Tanh(),
            Linear(last, categories.outputs, bias=False),
        )
        initialise(self.classifier, Linear, partial(init.normal, std=0.02))

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return self.classifier(self.maps(x)[-1])  # type: ignore[no-any-return]


def maxvit_t(categories: Categories) -> MaxViTClassifier:
    """MaxViT-T (table 1)."""
    return MaxViTClassifier(64, (64, 128, 256, 512), (2, 2, 5, 2), 32, 0.2, categories)


info = partial(classifier_info, "Tu et al. 2022, MaxViT: multi-axis vision transformer")
MODELS = (
    info(
        maxvit_t,
        5.558,
        imagenet_entry(1, "maxvit_t-bc5ab103", 30_919_624, 83.700, 96.722, resize=224, interpolation="bicubic"),
    ),
)
