"""One picture that shows what transforms do to a sample and its annotations."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import cv2
import numpy as np

from ...weights.writer import replacing
from ..sample import Sample
from .base import Others, Transform

TILE, TITLE, GAP = 320, 22, 6


def contact_sheet(
    sample: Sample,
    transforms: Mapping[str, Transform],
    path: str | os.PathLike[str],
    others: Others | None = None,
    seed: int = 0,
) -> None:
    """Write a picture (.png, .jpg) with a titled tile per transform of the sample, boxes, masks and keypoints drawn.

    Raises ValueError for another kind of file and OSError when it cannot be written.
    """
    path = Path(path)
    if path.suffix.lower() not in (".png", ".jpg"):
        raise ValueError(f"{path}: expected the name of a picture to end in .png or .jpg")
    rows: list[list[np.ndarray]] = [[]]
    for i, (name, transform) in enumerate(transforms.items()):
        if len(rows[-1]) == 4:
            rows.append([])
        rows[-1].append(_tile(transform(sample, np.random.default_rng([seed, i]), others), name))
    blank = np.full((TILE + TITLE + GAP, TILE + GAP, 3), 255, np.uint8)
    sheet = np.vstack([np.hstack(row + [blank] * (min(4, len(transforms)) - len(row))) for row in rows])
    _, encoded = cv2.imencode(path.suffix, cv2.cvtColor(sheet, cv2.COLOR_RGB2BGR))
    with replacing(path) as file:
        file.write(encoded.tobytes())


def _tile(sample: Sample, name: str) -> np.ndarray:
    scale = TILE / max(sample.size)
    height, width = (max(1, round(side * scale)) for side in sample.size)
    picture = cv2.resize(sample.image, (width, height), interpolation=cv2.INTER_AREA if scale < 1 else cv2.INTER_LINEAR)
    for i in range(len(sample)):
        colour = _colour(i)
        if sample.masks is not None:
            mask = cv2.resize(sample.masks[i].view(np.uint8), (width, height), interpolation=cv2.INTER_NEAREST)
            picture[mask > 0] = (0.6 * picture[mask > 0] + 0.4 * np.array(colour)).astype(np.uint8)
        if sample.boxes is not None:
            x0, y0, x1, y1 = (int(v) for v in np.rint(sample.boxes[i] * scale))
            cv2.rectangle(picture, (x0, y0), (max(x1 - 1, x0), max(y1 - 1, y0)), colour, 2)
        if sample.keypoints is not None:
            for x, y, visibility in sample.keypoints[i]:
                if visibility:
                    at = (int(x * scale), int(y * scale))
                    cv2.circle(picture, at, 3, (255, 255, 255) if visibility == 2 else (0, 0, 0), -1)
    tile = np.full((TILE + TITLE + GAP, TILE + GAP, 3), 255, np.uint8)
    tile[TITLE : TITLE + height, :width] = picture
    title = f"{name}  {sample.size[1]}x{sample.size[0]}"
    cv2.putText(tile, title, (2, TITLE - 7), cv2.FONT_HERSHEY_SIMPLEX, 0.42, (0, 0, 0), 1, cv2.LINE_AA)
    return tile


def _colour(i: int) -> tuple[int, int, int]:
    hsv = np.array([[[i * 67 % 180, 220, 255]]], np.uint8)
    red, green, blue = (int(v) for v in cv2.cvtColor(hsv, cv2.COLOR_HSV2RGB)[0, 0])
    return red, green, blue
