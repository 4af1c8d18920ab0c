"""Label maps from the mean of a network's probabilities over tiles, scales and mirror images."""

from __future__ import annotations

from collections.abc import Sequence

import cv2
import numpy as np

from ..model import Segmenter
from ..results import SegmentationMap


class AveragingSegmenter(Segmenter):
    """A model whose published figures come from ``probabilities`` of a photo, averaged over ``preset.scales``."""

    align_corners = True

    def probabilities(self, image: np.ndarray) -> np.ndarray:
        """Those of every pixel, (classes, height, width), of an image (height, width, 3) float32."""
        raise NotImplementedError(f"{type(self).__name__} has no probabilities")

    def predict_image(self, image: np.ndarray, score_threshold: float | None) -> SegmentationMap:
        """The most probable class of every pixel; ``score_threshold`` has no meaning here."""
        pixels = image.astype(np.float32)
        means = np.mean([self._at_scale(pixels, scale) for scale in self.preset.scales], 0)
        labels = means.argmax(0).astype(np.uint8 if len(means) < 256 else np.int32)
        return SegmentationMap(labels, self.categories.names, means, image)

    def _at_scale(self, image: np.ndarray, scale: float) -> np.ndarray:
        height, width = image.shape[:2]
        if scale == 1:
            return self.probabilities(image)
        size = max(1, int(width * scale)), max(1, int(height * scale))
        return self.back_to_size(self.probabilities(cv2.resize(image, size)), (height, width))

    def back_to_size(self, probabilities: np.ndarray, size: tuple[int, int]) -> np.ndarray:
        """Probabilities (classes, h, w) at ``size`` (height, width)."""
        raise NotImplementedError(f"{type(self).__name__} has no back_to_size")


def resize_planes(planes: np.ndarray, size: Sequence[int]) -> np.ndarray:
    """Planes (n, h, w) resized bilinearly to (height, width).

    >>> resize_planes(np.ones((2, 3, 4), np.float32), (6, 5)).shape
    (2, 6, 5)
    """
    return np.stack([cv2.resize(plane, (size[1], size[0])) for plane in planes])
