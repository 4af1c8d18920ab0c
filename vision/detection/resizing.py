"""The photo as the network sees it, and its boxes brought back to the photo."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...core import Tensor
from ...core import functions as F
from ..model import IMAGENET_MEAN, IMAGENET_STD, to_input


@dataclass(frozen=True)
class ShortSideResize:
    """Normalise, then resize bilinearly until the short side is ``short``, the long one at most ``long`` (torchvision).

    The sides are rounded down; the tensor is padded with zeros, the mean colour, to multiples of ``divisor``.
    """

    short: int = 800
    long: int = 1333
    divisor: int = 32
    mean: Sequence[float] = IMAGENET_MEAN
    std: Sequence[float] = IMAGENET_STD

    def size(self, image_size: tuple[int, int]) -> tuple[int, int]:
        """(height, width) after resizing, before padding."""
        scale = min(self.short / min(image_size), self.long / max(image_size))
        return max(1, int(image_size[0] * scale)), max(1, int(image_size[1] * scale))

    def __call__(self, image: np.ndarray) -> tuple[Tensor, tuple[int, int]]:
        """The tensor (1, 3, padded height, padded width) and the (height, width) of the photo in it."""
        height, width = self.size(image.shape[:2])
        rows, columns = -(-height // self.divisor) * self.divisor, -(-width // self.divisor) * self.divisor
        x = F.resize(to_input(image, self.mean, self.std), (height, width))
        padded = np.zeros((1, rows, columns, 3), np.float32)
        padded[0, :height, :width] = x.numpy()[0].transpose(1, 2, 0)
        return Tensor(padded.transpose(0, 3, 1, 2)), (height, width)

    def batch(self, images: Sequence[np.ndarray]) -> tuple[Tensor, list[tuple[int, int]]]:
        """The tensor (n, 3, padded height, padded width) of several photos, and the (height, width) of each in it."""
        single = [self(image) for image in images]
        rows, columns = (max(x.shape[axis] for x, _ in single) for axis in (2, 3))
        padded = np.zeros((len(single), rows, columns, 3), np.float32)
        for i, (x, _) in enumerate(single):
            padded[i, : x.shape[2], : x.shape[3]] = x.numpy()[0].transpose(1, 2, 0)
        return Tensor(padded.transpose(0, 3, 1, 2)), [size for _, size in single]


@dataclass(frozen=True)
class OneScaleResize(ShortSideResize):
    """As `ShortSideResize`, but boxes take one scale for both axes, that from before sides are rounded (ChainerCV).

    The size of the photo in the tensor is therefore not whole: what lies beyond it lies outside of the photo.
    """

    def __call__(self, image: np.ndarray) -> tuple[Tensor, tuple[float, float]]:  # type: ignore[override]
        """The tensor (1, 3, padded height, padded width) and the (height, width) of the photo in it."""
        x, _ = super().__call__(image)
        height, width = image.shape[:2]
        scale = self.scale((height, width), x)
        return x, (height * scale, width * scale)

    def scale(self, image_size: tuple[int, int], x: Tensor) -> float:
        """How many pixels of the input ``x`` stand for one of the photo."""
        return min(self.short / min(image_size), self.long / max(image_size))


@dataclass(frozen=True)
class WidthScaleResize(OneScaleResize):
    """As `OneScaleResize`, but the scale is that of the rounded width, and nothing is padded."""

    divisor: int = 1

    def scale(self, image_size: tuple[int, int], x: Tensor) -> float:
        return x.shape[3] / image_size[1]


@dataclass(frozen=True)
class FixedResize:
    """Normalise, then resize bilinearly to ``size`` (height, width), whatever the aspect."""

    size: tuple[int, int]
    mean: Sequence[float]
    std: Sequence[float]

    def __call__(self, image: np.ndarray) -> tuple[Tensor, tuple[int, int]]:
        """The tensor (1, 3, height, width) and its (height, width)."""
        return F.resize(to_input(image, self.mean, self.std), self.size), self.size
