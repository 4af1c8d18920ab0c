"""Vision Transformer: Dosovitskiy et al. 2020, "An image is worth 16x16 words"."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import numpy as np

from ...core import Parameter, Tensor
from ...core import functions as F
from ...core.layers import GELU, Conv2d, Dropout, LayerNorm, Linear, Module, Sequential, init
from ...weights.torchvision import imagenet_entry, swag_entry
from ..categories import Categories
from ..model import Classifier
from .attention import MultiheadAttention
from .blocks import classifier_info, initialise


class EncoderBlock(Module):
    """Attention and a perceptron, each on the normalised tokens and added to them (equations 2 and 3)."""

    def __init__(self, features: int, heads: int, inner: int) -> None:
        self.ln_1 = LayerNorm(features, eps=1e-6)
        self.self_attention = MultiheadAttention(features, heads)
        self.ln_2 = LayerNorm(features, eps=1e-6)
        self.mlp = Sequential(Linear(features, inner), GELU(), Dropout(0.0), Linear(inner, features), Dropout(0.0))
        initialise(self.mlp, Linear, _xavier)

    def forward(self, x: Tensor) -> Tensor:
        x = self.self_attention(self.ln_1(x), x)
        return self.mlp(self.ln_2(x), x)  # type: ignore[no-any-return]


class Encoder(Module):
    """The blocks on tokens (n, 1 + rows * columns, features), with the embedding of their positions."""

    def __init__(self, grid: int, depth: int, features: int, heads: int, inner: int) -> None:
        self.pos_embedding = Parameter(init.normal((1, grid * grid + 1, features), 0.02))
        self.layers = Sequential(**{f"encoder_layer_{i}": EncoderBlock(features, heads, inner) for i in range(depth)})
        self.ln = LayerNorm(features, eps=1e-6)

    def positions(self, rows: int, columns: int) -> Tensor:
        """The embedding for a grid of patches, resized bilinearly if it was learned for another (section 3.2)."""
        side = round((self.pos_embedding.shape[1] - 1) ** 0.5)
        if (rows, columns) == (side, side):
            return self.pos_embedding
        of_class, of_patches = F.split(self.pos_embedding, (1, side * side), 1)
        grid = F.transpose(F.reshape(of_patches, (1, side, side, -1)), (0, 3, 1, 2))
        grid = F.transpose(F.resize(grid, (rows, columns)), (0, 2, 3, 1))
        return F.concatenate([of_class, F.reshape(grid, (1, rows * columns, -1))], 1)

    def forward(self, x: Tensor, rows: int, columns: int) -> Tensor:
        return self.ln(self.layers(x + self.positions(rows, columns)))  # type: ignore[no-any-return]


class VisionTransformer(Module):
    """The encoder: x (n, 3, height, width), multiples of ``patch``, to one map (n, features, rows, columns) of patches.

    ``size`` is the height and width of the images for which the embedding of the positions is made; those of others
    are interpolated.

    >>> net = VisionTransformer(16, 64, depth=2, features=8, heads=2, inner=16)
    >>> [m.shape for m in net(Tensor(np.zeros((1, 3, 64, 48), np.float32)))]
    [(1, 8, 4, 3)]
    """

    def __init__(self, patch: int, size: int, depth: int, features: int, heads: int, inner: int) -> None:
        self.conv_proj = Conv2d(3, features, patch, patch)
        self.class_token = Parameter(init.constant((1, 1, features), 0))
        self.encoder = Encoder(size // patch, depth, features, heads, inner)
        self.channels, self.strides = (features,), (patch,)

    def tokens(self, x: Tensor) -> tuple[Tensor, int, int]:
        """The tokens (n, 1 + rows * columns, features) of class and patches, and the rows and columns of patches."""
        (patch,) = self.strides
        if x.ndim != 4 or x.shape[2] % patch or x.shape[3] % patch:
            raise ValueError(f"expected x (n, 3, height, width) of multiples of {patch} pixels, got {x.shape}")
        y = F.transpose(self.conv_proj(x), (0, 2, 3, 1))
        n, rows, columns, features = y.shape
        of_class = F.broadcast_to(self.class_token, (n, 1, features))
        tokens = F.concatenate([of_class, F.reshape(y, (n, rows * columns, features))], 1)
        return self.encoder(tokens, rows, columns), rows, columns

    def forward(self, x: Tensor) -> list[Tensor]:
        tokens, rows, columns = self.tokens(x)
        return [F.transpose(F.reshape(tokens[:, 1:], (x.shape[0], rows, columns, -1)), (0, 3, 1, 2))]


class VisionTransformerClassifier(VisionTransformer, Classifier):
    """The encoder and a linear layer on its class token: x (n, 3, height, width) to logits (n, classes)."""

    class_layers = ("heads.head.",)

    def __init__(
        self, patch: int, size: int, depth: int, features: int, heads: int, inner: int, categories: Categories
    ) -> None:
        super().__init__(patch, size, depth, features, heads, inner)
        self.categories = categories
        self.heads = Sequential(head=Linear(features, categories.outputs))
        initialise(self.heads, Linear, partial(init.constant, value=0))

    def take_shapes(self, state: Mapping[str, np.ndarray]) -> None:
        """Make the embedding of the positions as large as that of a file, and images too: files differ in size."""
        found, own = state.get("encoder.pos_embedding"), self.encoder.pos_embedding
        if found is None or found.ndim != 3 or found.shape == own.shape or found.shape[2] != own.shape[2]:
            return
        side = round((found.shape[1] - 1) ** 0.5)
        own.data = init.constant(found.shape, 0)
        size = side * self.strides[0]
        self.preset = replace(self.preset, resize=size, crop=size)

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return self.heads(self.tokens(x)[0][:, 0])  # type: ignore[no-any-return]


def _xavier(shape: tuple[int, ...]) -> np.ndarray:
    return init.uniform(shape, (6 / sum(shape)) ** 0.5)


def vit_b_16(categories: Categories) -> VisionTransformerClassifier:
    """ViT-B/16 (table 1)."""
    return VisionTransformerClassifier(16, 224, 12, 768, 12, 3072, categories)


def vit_b_32(categories: Categories) -> VisionTransformerClassifier:
    """ViT-B/32 (table 1)."""
    return VisionTransformerClassifier(32, 224, 12, 768, 12, 3072, categories)


def vit_l_16(categories: Categories) -> VisionTransformerClassifier:
    """ViT-L/16 (table 1)."""
    return VisionTransformerClassifier(16, 224, 24, 1024, 16, 4096, categories)


def vit_l_32(categories: Categories) -> VisionTransformerClassifier:
    """ViT-L/32 (table 1)."""
    return VisionTransformerClassifier(32, 224, 24, 1024, 16, 4096, categories)


def vit_h_14(categories: Categories) -> VisionTransformerClassifier:
    """ViT-H/14 (table 1), for the images of 518 pixels that its recommended weights were trained on."""
    return VisionTransformerClassifier(14, 518, 32, 1280, 16, 5120, categories)


info = partial(
    classifier_info,
    "Dosovitskiy et al. 2020, An image is worth 16x16 words: transformers for image recognition at scale",
    renames=((r"(.*\.mlp)\.linear_1\.(.*)", r"\1.0.\2"), (r"(.*\.mlp)\.linear_2\.(.*)", r"\1.3.\2")),  # older files
)
MODELS = (
    info(
        vit_b_16,
        17.564,
        imagenet_entry(1, "vit_b_16-c867db91", 86_567_656, 81.072, 95.318),
        swag_entry("E2E", "vit_b_16_swag-9ac1b537", 86_859_496, 85.304, 97.650, resize=384, crop=384),
        swag_entry("LINEAR", "vit_b_16_lc_swag-4e70ced5", 86_567_656, 81.886, 96.180, resize=224),
    ),
    info(vit_b_32, 4.409, imagenet_entry(1, "vit_b_32-d86f8d99", 88_224_232, 75.912, 92.466)),
    info(
        vit_l_16,
        61.555,
        imagenet_entry(1, "vit_l_16-852ce7e3", 304_326_632, 79.662, 94.638, resize=242),
        swag_entry("E2E", "vit_l_16_swag-4f3808c9", 305_174_504, 88.064, 98.512, resize=512, crop=512),
        swag_entry("LINEAR", "vit_l_16_lc_swag-4d563306", 304_326_632, 85.146, 97.422, resize=224),
    ),
    info(vit_l_32, 15.378, imagenet_entry(1, "vit_l_32-c7638314", 306_535_400, 76.972, 93.070)),
    info(
        vit_h_14,
        1016.717,
        swag_entry("E2E", "vit_h_14_swag-80465313", 633_470_440, 88.552, 98.694, resize=518, crop=518),
        swag_entry("LINEAR", "vit_h_14_lc_swag-c1eb923e", 632_045_800, 85.708, 97.730, resize=224),
    ),
)
