"""Anchor boxes of every cell of a feature map."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np


class CellAnchors:
    """The same boxes around every cell of a feature map, for several maps.

    ``cells`` has for each map the boxes (k, 4) xyxy in pixels around its cell (0, 0). Cell (i, j) lies ``stride``
    pixels from the next, by map; where there are no ``strides``, as many as fit into the input, as in torchvision.

    >>> CellAnchors([np.array([[-16, -16, 16, 16]], np.float32)])([(1, 2)], (8, 16))[0]
    array([[-16., -16.,  16.,  16.],
           [ -8., -16.,  24.,  16.]], dtype=float32)
    """

    def __init__(self, cells: Sequence[np.ndarray], strides: Sequence[int] | None = None) -> None:
        self.cells, self.strides = cells, strides
        self.cache: dict[tuple[object, ...], list[np.ndarray]] = {}

    @property
    def per_cell(self) -> list[int]:
        """The number of anchors of each cell, by map."""
        return [len(c) for c in self.cells]

    def __call__(self, map_sizes: Sequence[tuple[int, int]], image_size: tuple[int, int]) -> list[np.ndarray]:
        """For each map (height, width) its anchors (height * width * per cell, 4) xyxy in pixels of the input."""
        key = (*map_sizes, image_size)
        if key not in self.cache:
            if len(self.cache) > 16:
                self.cache.clear()
            made = []
            for i, ((height, width), cell) in enumerate(zip(map_sizes, self.cells, strict=True)):
                down, across = image_size[0] // height, image_size[1] // width
                if self.strides is not None:
                    down = across = self.strides[i]
                x = np.arange(width, dtype=np.float32) * across
                y = np.arange(height, dtype=np.float32) * down
                at_y, at_x = np.meshgrid(y, x, indexing="ij")
                shift = np.stack([at_x, at_y, at_x, at_y], -1).reshape(-1, 1, 4)
                made.append((shift + cell).reshape(-1, 4))
            self.cache[key] = made
        return self.cache[key]


class AnchorGenerator(CellAnchors):
    """Boxes of fixed sizes and aspect ratios around the cells of feature maps (Ren et al. 2015, section 3.1.1).

    ``sizes`` has for each map the square roots of the areas in pixels, ``ratios`` height / width. Corners are rounded
    and cell (i, j) lies at (j * stride, i * stride), as torchvision has it.

    >>> AnchorGenerator([[32]], [1.0])([(1, 2)], (8, 16))[0]
    array([[-16., -16.,  16.,  16.],
           [ -8., -16.,  24.,  16.]], dtype=float32)
    """

    def __init__(self, sizes: Sequence[Sequence[float]], ratios: Sequence[float]) -> None:
        cells = []
        for scales in sizes:
            h_ratio = np.sqrt(np.asarray(ratios, np.float32))
            w = ((1 / h_ratio)[:, None] * np.asarray(scales, np.float32)).ravel()
            h = (h_ratio[:, None] * np.asarray(scales, np.float32)).ravel()
            cells.append(np.round(np.stack([-w, -h, w, h], 1) / 2))
        super().__init__(cells)


class DefaultBoxes:
    """The default boxes of SSD (Liu et al. 2016, section 2.2, "Choosing scales and aspect ratios").

    Map k has per cell a square of scale s_k, one of sqrt(s_k * s_k+1), and for each ratio r of ``ratios[k]`` a box
    (s_k * sqrt(r), s_k / sqrt(r)) and its transpose; sides are at most ``largest``. ``scales`` are fractions of the
    image, one more than there are maps. Cells are ``steps`` pixels apart, or fill the image evenly where it is None.

    >>> DefaultBoxes([[2]], [0.2, 1.0])([(1, 1)], (100, 100)).shape
    (4, 4)
    """

    def __init__(
        self,
        ratios: Sequence[Sequence[float]],
        scales: Sequence[float],
        steps: Sequence[int] | None = None,
        largest: float = 1.0,
    ) -> None:
        self.steps = steps
        self.sides = []
        for k, of_map in enumerate(ratios):
            small, between = scales[k], math.sqrt(scales[k] * scales[k + 1])
            sides = [(small, small), (between, between)]
            for r in of_map:
                sides += [(small * math.sqrt(r), small / math.sqrt(r)), (small / math.sqrt(r), small * math.sqrt(r))]
            self.sides.append(np.clip(np.array(sides, np.float32), 0, largest))
        self.cache: dict[tuple[object, ...], np.ndarray] = {}

    @property
    def per_cell(self) -> list[int]:
        """The number of boxes of each cell, by map."""
        return [len(s) for s in self.sides]

    def __call__(self, map_sizes: Sequence[tuple[int, int]], image_size: tuple[int, int]) -> np.ndarray:
        """All boxes (total, 4) xyxy in pixels of the network's input, map by map, row by row."""
        key = (*map_sizes, image_size)
        if key not in self.cache:
            made = []
            for k, (height, width) in enumerate(map_sizes):
                across = image_size[1] / self.steps[k] if self.steps else width
                down = image_size[0] / self.steps[k] if self.steps else height
                x = ((np.arange(width, dtype=np.float32) + np.float32(0.5)) / np.float32(across)).astype(np.float32)
                y = ((np.arange(height, dtype=np.float32) + np.float32(0.5)) / np.float32(down)).astype(np.float32)
                at_y, at_x = np.meshgrid(y, x, indexing="ij")
                centre = np.stack([at_x, at_y], -1).reshape(-1, 1, 2)
                half = np.float32(0.5) * self.sides[k][None]
                size = np.array([image_size[1], image_size[0]], np.float32)
                made.append(np.concatenate([(centre - half) * size, (centre + half) * size], -1).reshape(-1, 4))
            self.cache = {key: np.concatenate(made)}
        return self.cache[key]
