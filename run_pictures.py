"""What a training shows: its batches, its predictions and its curves."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from .datasets import Dataset
from .evaluations.plots import COLOURS, Line, line_plot
from .vision.draw import draw_detections, draw_segmentation
from .vision.image import write_image
from .vision.masks import PixelMasks
from .vision.model import Model
from .vision.results import Classification, Detections, SegmentationMap
from .vision.sample import Sample

TILE, COLUMNS, TILES = 320, 4, 16


def write_samples(path: Path, samples: Sequence[Sample], categories: Sequence[str]) -> None:
    """A sheet of the first samples of a batch as the model is given them, annotations drawn."""
    _sheet(path, [_annotated(sample, categories) for sample in samples[:TILES]])


def write_predictions(path: Path, model: Model[Any], data: Dataset) -> None:
    """A sheet of some images all over a data set: above what is annotated, below what the model finds."""
    tiles: list[np.ndarray] = []
    count = min(len(data), COLUMNS)
    shown = [data[i * len(data) // count] for i in range(count)]  # class folders come one after the other
    for row in (
        [_annotated(sample, data.categories) for sample in shown],
        [_found(model.predict(sample.image), sample.image) for sample in shown],
    ):
        tiles += row
    _sheet(path, tiles, columns=len(shown))


def write_curves(path: Path, history: Sequence[dict[str, float]], epochs: int) -> None:
    """The losses, each as a share of its largest value, and the metrics over the epochs."""
    x = np.array([row["epoch"] for row in history], float) / epochs
    lines = []
    names = [k for k in history[0] if k not in ("epoch", "lr")]
    metrics = [k for k in names if not k.startswith("loss")][:3]
    for i, name in enumerate([k for k in names if k.startswith("loss")] + metrics):
        y = np.array([row.get(name, np.nan) for row in history], float)
        if not np.isfinite(y).all():
            continue
        label, width = f"{name} {y[-1]:.4f}", 4
        if name.startswith("loss"):
            largest = max(float(y.max()), 1e-12)
            label, width, y = f"{label}, of {largest:.3g}", 2, y / largest
        lines.append(Line(x, np.clip(y, 0, 1), label, COLOURS[i % len(COLOURS)], width))
    picture = line_plot(lines, f"Training: {len(history)} of {epochs} epochs", ("share of the epochs", "metric, loss"))
    write_image(path, np.asarray(picture.convert("RGB")))


def _annotated(sample: Sample, categories: Sequence[str]) -> np.ndarray:
    if sample.boxes is None or sample.labels is None:
        if sample.semantic is not None:
            return draw_segmentation(sample.image, sample.semantic, categories)
        return sample.image if sample.label is None else _named(sample.image, categories, sample.label, None)
    names = tuple(categories) + tuple(f"{name} (ignored)" for name in categories)
    labels = sample.labels + len(categories) * (0 if sample.ignore is None else sample.ignore)
    drawn = Detections(
        boxes=sample.boxes,
        scores=np.ones(len(sample), np.float32),
        labels=labels,
        categories=names,
        image_size=sample.size,
        masks=None if sample.masks is None else PixelMasks(sample.masks),
        keypoints=sample.keypoints,
    )
    return draw_detections(sample.image, drawn, scores=False)


def _found(result: Any, image: np.ndarray) -> np.ndarray:
    if isinstance(result, Classification):
        return _named(image, result.categories, result.label, result.score)
    return np.asarray(result.draw()) if isinstance(result, (Detections, SegmentationMap)) else image


def _named(image: np.ndarray, categories: Sequence[str], label: int, score: float | None) -> np.ndarray:
    """An image with the name of its class, in a frame all around."""
    drawn = Detections(
        boxes=np.array([[0, 0, image.shape[1], image.shape[0]]], np.float32),
        scores=np.array([1 if score is None else score], np.float32),
        labels=np.array([label], np.int64),
        categories=tuple(categories),
        image_size=image.shape[:2],
    )
    return draw_detections(image, drawn, scores=score is not None)


def _sheet(path: Path, pictures: Sequence[np.ndarray], columns: int = COLUMNS) -> None:
    tiles = []
    for picture in pictures:
        scale = TILE / max(picture.shape[:2])
        size = (max(1, round(picture.shape[1] * scale)), max(1, round(picture.shape[0] * scale)))
        small = cv2.resize(picture, size, interpolation=cv2.INTER_AREA if scale < 1 else cv2.INTER_NEAREST)
        tile = np.full((TILE, TILE, 3), 255, np.uint8)
        tile[: size[1], : size[0]] = small
        tiles.append(tile)
    columns = min(columns, len(tiles))
    tiles += [np.full((TILE, TILE, 3), 255, np.uint8)] * (-len(tiles) % columns)
    write_image(path, np.vstack([np.hstack(tiles[i : i + columns]) for i in range(0, len(tiles), columns)]))
