"""Swin Transformer: Liu et al. 2021, "Swin Transformer: hierarchical vision transformer using shifted windows", and
2022, "Swin Transformer V2: scaling up capacity and resolution"."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache, partial

import numpy as np

from ...core import Buffer, Parameter, Tensor
from ...core import functions as F
from ...core.layers import (
    GELU,
    Conv2d,
    Dropout,
    LayerNorm,
    Linear,
    Module,
    Permute,
    ReLU,
    Sequential,
    StochasticDepth,
    init,
)
from ...weights.torchvision import imagenet_entry
from ..categories import Categories
from ..model import Classifier
from .attention import join_heads, split_heads
from .blocks import classifier_info, depth_ratios, initialise, join_windows, relative_positions, split_windows


@lru_cache(maxsize=64)
def shift_mask(height: int, width: int, window: int, shift: tuple[int, int]) -> np.ndarray:
    """What to add to the attention in shifted windows (windows, 1, places, places): -100 between places that were no
    neighbours before the shift (2021, figure 4).

    >>> shift_mask(4, 4, 2, (1, 0))[:, 0, 0, 2].tolist()
    [0.0, 0.0, -100.0, -100.0]
    """
    regions = []
    for length, moved in ((height, shift[0]), (width, shift[1])):
        i = np.arange(length)
        regions.append((i >= length - window).astype(int) + (i >= length - moved) if moved else np.zeros_like(i))
    ids = 3 * regions[0][:, None] + regions[1]
    ids = ids.reshape(height // window, window, width // window, window).transpose(0, 2, 1, 3)
    ids = ids.reshape(-1, 1, window * window)
    return np.where(ids[..., :, None] == ids[..., None, :], 0, -100).astype(np.float32)


class ShiftedWindows(Module):
    """Attention within windows of x (n, height, width, features), shifted by ``shift`` (2021, section 3.2).

    A subclass computes the attention within windows in ``attend``.
    """

    def __init__(self, features: int, heads: int, window: int, shift: int) -> None:
        self.heads, self.window, self.shift = heads, window, shift
        self.qkv = Linear(features, 3 * features)
        self.proj = Linear(features, features)
        self.relative_position_index = Buffer(relative_positions(window).reshape(-1))

    def attend(self, x: Tensor, mask: np.ndarray | None) -> Tensor:
        """The attention in windows x (n, windows, places, features); the mask is added to the weights' logarithms."""
        raise NotImplementedError(f"{type(self).__name__} has no attend")

    def bias_of(self, table: Tensor) -> Tensor:
        """The bias (heads, places, places) for each pair, from its row in a table (offsets, heads)."""
        places = self.window**2
        rows = F.getitem(table, self.relative_position_index)
        return F.transpose(F.reshape(rows, (places, places, self.heads)), (2, 0, 1))

    def weigh(
        self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor, mask: np.ndarray | None, scale: Tensor | None
    ) -> Tensor:
        """The attention's output (n * windows, places, features)."""
        if mask is None:
            return join_heads(F.attention(q, k, v, bias, scale))
        windows = mask.shape[0]
        q, k, v = (F.reshape(t, (t.shape[0] // windows, windows, *t.shape[1:])) for t in (q, k, v))
        y = F.attention(q, k, v, bias + Tensor(bias.xp.asarray(mask)), scale)
        return join_heads(F.reshape(y, (y.shape[0] * windows, *y.shape[2:])))

    def forward(self, x: Tensor) -> Tensor:
        n, h, w, c = x.shape
        below, right = -h % self.window, -w % self.window
        if below or right:
            x = F.pad(x, [(0, 0), (0, below), (0, right), (0, 0)])
        height, width = h + below, w + right
        # one window along an axis is the whole: nothing to shift
        shift = tuple(0 if length <= self.window else self.shift for length in (height, width))
        for axis in (1, 2):
            x = F.roll(x, -shift[axis - 1], axis)
        mask = shift_mask(height, width, self.window, shift) if any(shift) else None
        y = self.attend(F.reshape(split_windows(x, self.window, self.window), (-1, self.window**2, c)), mask)
        y = self.proj(y)
        y = join_windows(F.reshape(y, (n, -1, self.window**2, c)), height, width, self.window, self.window)
        for axis in (1, 2):
            y = F.roll(y, shift[axis - 1], axis)
        return y[:, :h, :w] if below or right else y


class WindowAttention(ShiftedWindows):
    """With a learned bias for each relative position (2021, equation 4)."""

    def __init__(self, features: int, heads: int, window: int, shift: int) -> None:
        super().__init__(features, heads, window, shift)
        self.relative_position_bias_table = Parameter(init.normal(((2 * window - 1) ** 2, heads), 0.02))

    def attend(self, x: Tensor, mask: np.ndarray | None) -> Tensor:
        q, k, v = split_heads(self.qkv(x), self.heads)
        return self.weigh(q, k, v, self.bias_of(self.relative_position_bias_table), mask, None)


class WindowAttentionV2(ShiftedWindows):
    """By the cosine, with a bias that a small network computes from the relative position (2022, sections 3.2, 3.3)."""

    def __init__(self, features: int, heads: int, window: int, shift: int) -> None:
        super().__init__(features, heads, window, shift)
        self.logit_scale = Parameter(init.constant((heads, 1, 1), math.log(10)))
        self.cpb_mlp = Sequential(Linear(2, 512), ReLU(), Linear(512, heads, bias=False))
        offsets = np.arange(1 - window, window, dtype=np.float32) * np.float32(8 / (window - 1))
        offsets = np.sign(offsets) * np.log2(np.abs(offsets) + 1) / np.float32(3)
        self.relative_coords_table = Buffer(np.stack(np.meshgrid(offsets, offsets, indexing="ij"), 2)[None])

    def attend(self, x: Tensor, mask: np.ndarray | None) -> Tensor:
        of_q, _, of_v = F.split(self.qkv.bias, 3)  # type: ignore[arg-type]
        bias = F.concatenate([of_q, of_v * 0, of_v])  # keys have none
        q, k, v = split_heads(F.linear(x, self.qkv.weight, bias), self.heads)
        table = F.reshape(self.cpb_mlp(self.relative_coords_table), (-1, self.heads))
        scale = F.exp(F.clip(self.logit_scale, -math.inf, math.log(100)))
        q, k = F.normalize(q, -1), F.normalize(k, -1)
        return self.weigh(q, k, v, F.sigmoid(self.bias_of(table)) * 16, mask, scale)


class Perceptron(Sequential):
    """Linear to four times the features, GELU, linear back."""

    def __init__(self, features: int) -> None:
        super().__init__(
            Linear(features, 4 * features), GELU(), Dropout(0.0), Linear(4 * features, features), Dropout(0.0)
        )


class Block(Module):
    """Attention and a perceptron, each on normalised values and added to them (2021, equation 3)."""

    def __init__(self, features: int, heads: int, window: int, shift: int, drop: float) -> None:
        self.norm1 = LayerNorm(features)
        self.attn = WindowAttention(features, heads, window, shift)
        self.stochastic_depth = StochasticDepth(drop)
        self.norm2 = LayerNorm(features)
        self.mlp = Perceptron(features)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.stochastic_depth(self.attn(self.norm1(x)))
        y, drop = self.norm2(x), self.stochastic_depth
        return x + drop(self.mlp(y)) if drop.active else self.mlp(y, x)  # type: ignore[no-any-return]


class BlockV2(Module):
    """Attention and a perceptron, each normalised and then added (2022, section 3.1)."""

    def __init__(self, features: int, heads: int, window: int, shift: int, drop: float) -> None:
        self.norm1 = LayerNorm(features)
        self.attn = WindowAttentionV2(features, heads, window, shift)
        self.stochastic_depth = StochasticDepth(drop)
        self.norm2 = LayerNorm(features)
        self.mlp = Perceptron(features)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.stochastic_depth(self.norm1(self.attn(x)))
        return x + self.stochastic_depth(self.norm2(self.mlp(x)))  # type: ignore[no-any-return]


def four_in_one(x: Tensor) -> Tensor:
    """Squares of 2x2 places of (n, height, width, features) as one place with four times the features.

    Odd sizes are padded with zeros. The order within a square is by columns.

    >>> four_in_one(Tensor(np.arange(4.0).reshape(1, 2, 2, 1))).numpy().ravel()
    array([0., 2., 1., 3.])
    """
    x = F.pad(x, [(0, 0), (0, x.shape[1] % 2), (0, x.shape[2] % 2), (0, 0)])
    n, h, w, c = x.shape
    y = F.transpose(F.reshape(x, (n, h // 2, 2, w // 2, 2, c)), (0, 1, 3, 4, 2, 5))
    return F.reshape(y, (n, h // 2, w // 2, 4 * c))


class PatchMerging(Module):
    """Half the size, twice the features; the norm before the reduction (2021, section 3.1)."""

    def __init__(self, features: int) -> None:
        self.reduction = Linear(4 * features, 2 * features, bias=False)
        self.norm = LayerNorm(4 * features)

    def forward(self, x: Tensor) -> Tensor:
        return self.reduction(self.norm(four_in_one(x)))  # type: ignore[no-any-return]


class PatchMergingV2(Module):
    """Half the size, twice the features; the norm after the reduction."""

    def __init__(self, features: int) -> None:
        self.reduction = Linear(4 * features, 2 * features, bias=False)
        self.norm = LayerNorm(2 * features)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.reduction(four_in_one(x)))  # type: ignore[no-any-return]


class Swin(Module):
    """The transformer: x (n, 3, height, width) to the maps of the four stages, strides 4, 8, 16 and 32.

    ``features`` are those of the first stage, each further one has twice as many. ``drop`` is the ratio of stochastic
    depth in the last block.

    >>> net = Swin(Block, PatchMerging, 8, (1, 1, 1, 1), (1, 2, 4, 8), window=7)
    >>> [m.shape[1:] for m in net(Tensor(np.zeros((1, 3, 64, 64), np.float32)))]
    [(8, 16, 16), (16, 8, 8), (32, 4, 4), (64, 2, 2)]
    """

    at = (1, 3, 5, 7)
    strides = (4, 8, 16, 32)

    def __init__(
        self,
        block: type[Block] | type[BlockV2],
        merging: type[PatchMerging] | type[PatchMergingV2],
        features: int,
        depths: Sequence[int],
        heads: Sequence[int],
        window: int,
        drop: float = 0.0,
    ) -> None:
        parts: list[Module] = [Sequential(Conv2d(3, features, 4, 4), Permute(0, 2, 3, 1), LayerNorm(features))]
        ratios = iter(depth_ratios(drop, sum(depths)))
        for i, (depth, count) in enumerate(zip(depths, heads)):
            if i > 0:
                parts.append(merging(features))
                features *= 2
            blocks = (block(features, count, window, window // 2 * (j % 2), next(ratios)) for j in range(depth))
            parts.append(Sequential(*blocks))
        self.features = Sequential(*parts)
        self.channels = tuple(features >> i for i in (3, 2, 1, 0))
        initialise(self, Linear, partial(init.normal, std=0.02))

    def forward(self, x: Tensor) -> list[Tensor]:
        return [F.transpose(y, (0, 3, 1, 2)) for y in self.features.outputs(x, self.at)]


class SwinClassifier(Swin, Classifier):
    """The transformer with its classifier: x (n, 3, height, width) to logits (n, classes)."""

    class_layers = ("head.",)

    def __init__(
        self,
        block: type[Block] | type[BlockV2],
        merging: type[PatchMerging] | type[PatchMergingV2],
        features: int,
        depths: Sequence[int],
        heads: Sequence[int],
        window: int,
        drop: float,
        categories: Categories,
    ) -> None:
        super().__init__(block, merging, features, depths, heads, window, drop)
        self.categories = categories
        self.norm = LayerNorm(self.channels[-1])
        self.head = Linear(self.channels[-1], categories.outputs)
        initialise(self.head, Linear, partial(init.normal, std=0.02))

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return self.head(F.mean(self.norm(self.features(x)), (1, 2)))  # type: ignore[no-any-return]


T, S, B = (2, 2, 6, 2), (2, 2, 18, 2), (2, 2, 18, 2)  # 2021, section 3.3
FEW_HEADS, MANY_HEADS = (3, 6, 12, 24), (4, 8, 16, 32)  # of 32 features each


def swin_t(categories: Categories) -> SwinClassifier:
    """Swin-T."""
    return SwinClassifier(Block, PatchMerging, 96, T, FEW_HEADS, 7, 0.2, categories)


def swin_s(categories: Categories) -> SwinClassifier:
    """Swin-S."""
    return SwinClassifier(Block, PatchMerging, 96, S, FEW_HEADS, 7, 0.3, categories)


def swin_b(categories: Categories) -> SwinClassifier:
    """Swin-B."""
    return SwinClassifier(Block, PatchMerging, 128, B, MANY_HEADS, 7, 0.5, categories)


def swin_v2_t(categories: Categories) -> SwinClassifier:
    """SwinV2-T with windows of 8."""
    return SwinClassifier(BlockV2, PatchMergingV2, 96, T, FEW_HEADS, 8, 0.2, categories)


def swin_v2_s(categories: Categories) -> SwinClassifier:
    """SwinV2-S with windows of 8."""
    return SwinClassifier(BlockV2, PatchMergingV2, 96, S, FEW_HEADS, 8, 0.3, categories)


def swin_v2_b(categories: Categories) -> SwinClassifier:
    """SwinV2-B with windows of 8."""
    return SwinClassifier(BlockV2, PatchMergingV2, 128, B, MANY_HEADS, 8, 0.5, categories)


BICUBIC = {"interpolation": "bicubic"}
info = partial(
    classifier_info, "Liu et al. 2021, Swin Transformer: hierarchical vision transformer using shifted windows"
)
info_v2 = partial(classifier_info, "Liu et al. 2022, Swin Transformer V2: scaling up capacity and resolution")
MODELS = (
    info(swin_t, 4.491, imagenet_entry(1, "swin_t-704ceda3", 28_288_354, 81.474, 95.776, resize=232, **BICUBIC)),
    info(swin_s, 8.741, imagenet_entry(1, "swin_s-5e29d889", 49_606_258, 83.196, 96.360, resize=246, **BICUBIC)),
    info(swin_b, 15.431, imagenet_entry(1, "swin_b-68c6b09e", 87_768_224, 83.582, 96.640, resize=238, **BICUBIC)),
    info_v2(
        swin_v2_t,
        5.94,
        imagenet_entry(
            1, "swin_v2_t-b137f0e2", 28_351_570, 82.072, 96.132, resize=260, crop=256, interpolation="bicubic"
        ),
    ),
    info_v2(
        swin_v2_s,
        11.546,
        imagenet_entry(
            1, "swin_v2_s-637d8ceb", 49_737_442, 83.712, 96.816, resize=260, crop=256, interpolation="bicubic"
        ),
    ),
    info_v2(
        swin_v2_b,
        20.325,
        imagenet_entry(
            1, "swin_v2_b-781e5279", 87_930_848, 84.112, 96.864, resize=272, crop=256, interpolation="bicubic"
        ),
    ),
)
