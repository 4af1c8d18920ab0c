"""Transforms that change colours and leave every pixel in its place."""

from __future__ import annotations

from dataclasses import dataclass, replace

import cv2
import numpy as np

from ..sample import Sample
from .base import SingleSample, check_range
from .geometry import GREY, Colour, keep_visible

_LEVELS = np.arange(256, dtype=np.float32)


@dataclass(frozen=True)
class HSVJitter(SingleSample):
    """Shifts hue, saturation and value by random amounts up to the given ones.

    ``hue`` in degrees of the colour circle, ``saturation`` and ``value`` in the 256 levels of a byte. The defaults are
    YOLOX's (Ge et al. 2021).
    """

    hue: float = 10.0
    saturation: float = 30.0
    value: float = 30.0

    def __post_init__(self) -> None:
        if min(self.hue, self.saturation, self.value) < 0:
            raise ValueError(f"HSVJitter: expected amounts >= 0, got {self}")

    def apply(self, sample: Sample, rng: np.random.Generator) -> Sample:
        hue, saturation, value = rng.uniform(-1, 1, 3) * [self.hue, self.saturation, self.value]
        tables = (_hue_shift(hue), _to_bytes(_LEVELS + saturation), _to_bytes(_LEVELS + value))
        return replace(sample, image=_in_hsv(sample.image, tables))


@dataclass(frozen=True)
class PhotometricDistort(SingleSample):
    """SSD's distortion: brightness, contrast, saturation and hue, each with probability one half.

    ``brightness`` is the largest shift in levels, ``contrast`` and ``saturation`` are ranges of factors, ``hue`` is
    the largest shift in degrees; contrast comes before or after the other two with equal chance. Defaults of Liu et
    al., "SSD" (ECCV 2016), 2.2, after Howard, "Some Improvements on Deep CNN Based Image Classification" (2013).
    """

    brightness: float = 32.0
    contrast: tuple[float, float] = (0.5, 1.5)
    saturation: tuple[float, float] = (0.5, 1.5)
    hue: float = 18.0

    def __post_init__(self) -> None:
        check_range(self, contrast=self.contrast, saturation=self.saturation)
        if min(self.brightness, self.hue) < 0:
            raise ValueError(f"PhotometricDistort: expected brightness, hue >= 0, got {self}")

    def apply(self, sample: Sample, rng: np.random.Generator) -> Sample:
        chosen = rng.random(5) < 0.5
        brightness = rng.uniform(-self.brightness, self.brightness) * chosen[0]
        contrast = rng.uniform(*self.contrast) if chosen[1] else 1.0
        saturation = rng.uniform(*self.saturation) if chosen[2] else 1.0
        hue = rng.uniform(-self.hue, self.hue) * chosen[3]
        first, last = (contrast, 1.0) if chosen[4] else (1.0, contrast)
        image = cv2.LUT(sample.image, _to_bytes((_LEVELS + brightness) * first))
        image = _in_hsv(image, (_hue_shift(hue), _to_bytes(_LEVELS * saturation), _to_bytes(_LEVELS)))
        return replace(sample, image=cv2.LUT(image, _to_bytes(_LEVELS * last)))


@dataclass(frozen=True)
class Blur(SingleSample):
    """Gaussian blur of a standard deviation drawn from ``sigma`` pixels; under 0.05 pixel nothing changes."""

    sigma: tuple[float, float] = (0.1, 2.0)

    def __post_init__(self) -> None:
        check_range(self, sigma=self.sigma)

    def apply(self, sample: Sample, rng: np.random.Generator) -> Sample:
        sigma = rng.uniform(*self.sigma)
        return sample if sigma < 0.05 else replace(sample, image=cv2.GaussianBlur(sample.image, (0, 0), sigma))


@dataclass(frozen=True)
class JPEGNoise(SingleSample):
    """The blocks and smeared colours of JPEG compression at a ``quality`` drawn between two bounds (1 to 100)."""

    quality: tuple[int, int] = (30, 95)

    def __post_init__(self) -> None:
        check_range(self, 1, quality=self.quality)
        if self.quality[1] > 100:
            raise ValueError(f"JPEGNoise: expected a quality of at most 100, got {self.quality}")

    def apply(self, sample: Sample, rng: np.random.Generator) -> Sample:
        quality = int(rng.integers(self.quality[0], self.quality[1] + 1))
        bgr = cv2.cvtColor(sample.image, cv2.COLOR_RGB2BGR)
        _, encoded = cv2.imencode(".jpg", bgr, [cv2.IMWRITE_JPEG_QUALITY, quality])
        decoded = np.asarray(cv2.imdecode(encoded, cv2.IMREAD_COLOR), np.uint8)
        return replace(sample, image=cv2.cvtColor(decoded, cv2.COLOR_BGR2RGB))


@dataclass(frozen=True)
class Cutout(SingleSample):
    """Paints ``holes`` rectangles over the picture, sides drawn from ``side`` (parts of the picture's side).

    DeVries and Taylor, "Improved Regularization of Convolutional Neural Networks with Cutout" (2017). Boxes, masks and
    label map stay whole, as the network shall infer what is hidden; a covered keypoint gets visibility 1, and an object
    of which less than a tenth still shows is dropped.
    """

    holes: int = 1
    side: tuple[float, float] = (0.1, 0.4)
    fill: Colour = GREY

    def __post_init__(self) -> None:
        check_range(self, side=self.side)
        if self.holes < 0:
            raise ValueError(f"Cutout: expected holes >= 0, got {self.holes}")

    def apply(self, sample: Sample, rng: np.random.Generator) -> Sample:
        hidden = np.zeros(sample.size, bool)
        for _ in range(self.holes):
            height, width = (int(side * rng.uniform(*self.side)) for side in sample.size)
            # The centre is anywhere in the picture, so that borders are covered as often as the middle.
            top, left = (int(rng.integers(side)) - hole // 2 for side, hole in zip(sample.size, (height, width)))
            hidden[max(top, 0) : top + height, max(left, 0) : left + width] = True
        if not hidden.any():
            return sample
        image = np.where(hidden[..., None], np.array(self.fill, np.uint8), sample.image)
        painted = replace(sample, image=image, keypoints=hide_keypoints(sample.keypoints, hidden))
        return keep_visible(painted, self._shown(sample, hidden))

    def _shown(self, sample: Sample, hidden: np.ndarray) -> np.ndarray:
        """(n,) the part of each object that no hole covers."""
        shown = np.ones(len(sample))
        for i in range(len(sample)):
            if sample.masks is not None and sample.masks[i].any():
                shown[i] = 1 - hidden[sample.masks[i]].mean()
            elif sample.boxes is not None:
                x0, y0 = np.floor(sample.boxes[i, :2]).astype(int)
                x1, y1 = np.ceil(sample.boxes[i, 2:]).astype(int)
                covered = hidden[max(y0, 0) : y1, max(x0, 0) : x1]
                shown[i] = 1 - covered.mean() if covered.size else 1
        return shown


def hide_keypoints(keypoints: np.ndarray | None, covered: np.ndarray) -> np.ndarray | None:
    """Turns visibility 2 into 1 for the keypoints under the (height, width) bool map ``covered``."""
    if keypoints is None:
        return None
    height, width = covered.shape
    x = np.clip(keypoints[..., 0].astype(int), 0, width - 1)
    y = np.clip(keypoints[..., 1].astype(int), 0, height - 1)
    keypoints = keypoints.copy()
    keypoints[..., 2] = np.where(covered[y, x], np.minimum(keypoints[..., 2], 1), keypoints[..., 2])
    return keypoints


def _to_bytes(levels: np.ndarray) -> np.ndarray:
    rounded: np.ndarray = np.clip(np.rint(levels), 0, 255).astype(np.uint8)
    return rounded


def _hue_shift(degrees: float) -> np.ndarray:
    # OpenCV stores hue as 0..179, half degrees.
    return ((np.arange(256) + round(degrees / 2)) % 180).astype(np.uint8)


def _in_hsv(image: np.ndarray, tables: tuple[np.ndarray, np.ndarray, np.ndarray]) -> np.ndarray:
    """Maps hue, saturation and value by a table each; the very image where the tables change nothing."""
    neutral = _LEVELS.astype(np.uint8)
    if np.array_equal(tables[0][:180], neutral[:180]) and all(np.array_equal(t, neutral) for t in tables[1:]):
        return image
    hsv = cv2.LUT(cv2.cvtColor(image, cv2.COLOR_RGB2HSV), np.stack(tables, axis=-1)[None])
    return cv2.cvtColor(hsv, cv2.COLOR_HSV2RGB)
