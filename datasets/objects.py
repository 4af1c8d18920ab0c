"""`ObjectDataset`: annotated objects of all images in flat arrays; the base of COCO, VOC, YOLO, CSV, LabelMe."""

from __future__ import annotations

import json
import os
from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..vision.image import read_image
from ..vision.masks import decode_rle, polygons_to_mask
from ..vision.sample import Sample
from .cleaning import Problem, clean_boxes, log, problem, report
from .dataset import DETECTION, INSTANCE, KEYPOINTS, Annotations, Dataset
from .files import header_size, stored_size, undo_rotation

_FRACTION_ROUNDING = 1e-3
_FRACTION_MIN_SIDE = 1e-6


class ObjectTable:
    """Objects in the order in which a file lists them, appended one by one to compact arrays."""

    def __init__(self) -> None:
        self.images, self.labels, self.numbers, self.ids = array("q"), array("q"), array("q"), array("q")
        self.boxes, self.areas, self.ignore = array("d"), array("f"), array("b")
        self.keypoints: dict[int, np.ndarray] = {}
        self.rles: dict[int, dict[str, Any]] = {}
        self.texts: dict[int, str] = {}
        self.coordinates, self.ring_ends, self.first_rings = array("f"), array("q"), array("q")

    def __len__(self) -> int:
        return len(self.images)

    def add(
        self,
        image: int,
        label: int,
        box: Sequence[float],
        number: int,
        *,
        ignore: bool = False,
        identity: int = -1,
        area: float = -1.0,
    ) -> None:
        """Append an object of image ``image``; ``box`` is xyxy, ``number`` its index in the annotation file."""
        x0, y0, x1, y1 = box
        self.boxes.extend((float(x0), float(y0), float(x1), float(y1)))
        self.images.append(image)
        self.labels.append(label)
        self.numbers.append(number)
        self.ignore.append(ignore)
        self.ids.append(identity)
        self.areas.append(area)
        self.first_rings.append(len(self.ring_ends))

    def extend(
        self,
        images: list[int],
        labels: list[int],
        boxes: np.ndarray,
        first_number: int,
        *,
        ignore: list[bool],
        ids: list[int],
        areas: list[float],
    ) -> None:
        """Append many objects at once, numbered from ``first_number``; ``boxes`` is (n, 4) xyxy."""
        self.boxes.frombytes(np.ascontiguousarray(boxes, np.float64).tobytes())
        self.images.extend(images)
        self.labels.extend(labels)
        self.numbers.extend(range(first_number, first_number + len(images)))
        self.ignore.extend(ignore)
        self.ids.extend(ids)
        self.areas.extend(areas)
        self.first_rings.extend([len(self.ring_ends)] * len(images))

    def assign(self, images: np.ndarray, labels: np.ndarray) -> None:
        """Replace the image and the label of every object; image -1 drops the object."""
        self.images, self.labels = (
            array("q", images.astype(np.int64).tobytes()),
            array("q", labels.astype(np.int64).tobytes()),
        )

    def add_ring(self, xy: list[float]) -> None:
        """Give the last object one more polygon, x and y in turn; raises TypeError when ``xy`` is not numbers."""
        self.coordinates.fromlist(xy)
        self.ring_ends.append(len(self.coordinates))

    def add_rings_text(self, row: int, text: str) -> None:
        """Give object ``row`` the JSON text of its polygons, parsed when they are asked for."""
        self.texts[row] = text

    def add_rle(self, row: int, rle: dict[str, Any]) -> None:
        """Give object ``row`` a COCO run-length mask: size, and counts as bytes (compressed) or array of runs."""
        self.rles[row] = rle

    def add_keypoints(self, row: int, points: np.ndarray) -> None:
        """Give object ``row`` (k, 3) keypoints: x, y, visibility."""
        self.keypoints[row] = points


class Outlines:
    """Polygons and run-length masks of all objects, found by the object's row in the table."""

    def __init__(self, table: ObjectTable) -> None:
        self.coordinates = (
            np.frombuffer(table.coordinates, np.float32) if table.coordinates else np.zeros(0, np.float32)
        )
        self.ring_ends = np.array(table.ring_ends, np.int64)
        self.first_rings = np.append(np.array(table.first_rings, np.int64), len(self.ring_ends))
        self.rles, self.texts = table.rles, table.texts

    def present(self, rows: np.ndarray) -> np.ndarray:
        """(n,) bool: which of the rows have a polygon or a run-length mask."""
        polygons = self.first_rings[rows + 1] > self.first_rings[rows]
        others = np.concatenate([np.fromiter(d, np.int64, len(d)) for d in (self.rles, self.texts)])
        return np.asarray(polygons | np.isin(rows, others))

    def polygons(self, row: int) -> list[np.ndarray]:
        """The object's polygons, each (k, 2) float32 x, y; empty for a run-length mask."""
        text = self.texts.get(row)
        if text is not None:
            return [np.array(ring, np.float32).reshape(-1, 2) for ring in json.loads(text)]
        ends = self.ring_ends
        first, last = self.first_rings[row], self.first_rings[row + 1]
        starts = [int(ends[r - 1]) if r else 0 for r in range(first, last)]
        return [self.coordinates[s : int(e)].reshape(-1, 2) for s, e in zip(starts, ends[first:last])]

    def mask(self, row: int, size: tuple[int, int], scale: np.ndarray, box: np.ndarray) -> np.ndarray:
        """(height, width) bool mask of the object; an object without outline is its box."""
        height, width = size
        rle = self.rles.get(row)
        if rle is not None:
            stored = decode_rle(rle)
            if stored.shape == size:
                return stored
            mask = np.zeros(size, bool)
            h, w = min(height, stored.shape[0]), min(width, stored.shape[1])
            mask[:h, :w] = stored[:h, :w]
            return mask
        polygons = self.polygons(row)
        if polygons:
            return polygons_to_mask([p * scale for p in polygons], size)
        mask = np.zeros(size, bool)
        x0, y0, x1, y1 = (round(float(v)) for v in box)
        mask[y0:y1, x0:x1] = True
        return mask


class ObjectDataset(Dataset):
    """A data set of boxes (and outlines, keypoints) held as flat arrays; images are read when indexed.

    - ``paths``, ``image_ids``, ``sizes`` ((n, 2) height and width, 0: not known), ``sources``: one for each image.
    - ``fractions``: coordinates are fractions of the image's width and height (YOLO).

    The annotated size wins over EXIF rotation: when a photo is rotated by its EXIF tag but was annotated as stored,
    its pixels are given as stored, so that the boxes fit.
    """

    def __init__(
        self,
        table: ObjectTable,
        images: Sequence[tuple[str, int | str, tuple[int, int], str]],
        categories: Sequence[str],
        *,
        name: str,
        source: str,
        problems: list[Problem],
        strict: bool = False,
        fractions: bool = False,
    ) -> None:
        self.name, self.source = name, source
        self.categories = tuple(categories)
        self.paths = [path for path, _, _, _ in images]
        self.image_ids = [identity for _, identity, _, _ in images]
        self.sources = [text for _, _, _, text in images]
        self.sizes = np.array([size for _, _, size, _ in images], np.int32).reshape(-1, 2)
        self.fractions = fractions
        self._size_noted: set[int] = set()

        owners = np.array(table.images, np.int64)
        rows = np.argsort(owners, kind="stable")
        rows = rows[np.searchsorted(owners[rows], 0) :]
        boxes = np.frombuffer(table.boxes, np.float64).reshape(-1, 4)[rows] if len(table) else np.zeros((0, 4))
        owners = owners[rows]
        if fractions:
            cleaned = clean_boxes(
                boxes, np.ones((len(rows), 2)), rounding=_FRACTION_ROUNDING, min_side=_FRACTION_MIN_SIDE
            )
        else:
            cleaned = clean_boxes(boxes, self.sizes[owners])
        self.problems = problems
        numbers = np.array(table.numbers, np.int64)[rows]
        ids = np.array(table.ids, np.int64)[rows]
        for kind, at, message in cleaned.findings:
            named = message if ids[at] < 0 else f"{message}, annotation id {ids[at]}"
            problems.append(problem(kind, self._place(int(owners[at])), int(numbers[at]), named))

        self.outlines = Outlines(table) if table.ring_ends or table.rles or table.texts else None
        if self.outlines is not None:
            for at in np.flatnonzero(cleaned.keep & ~self.outlines.present(rows)).tolist():
                problems.append(
                    problem("no mask", self._place(int(owners[at])), int(numbers[at]), "its box is the mask")
                )

        keep = cleaned.keep
        self._rows = rows[keep]
        self.boxes = cleaned.boxes[keep]
        self.labels = np.array(table.labels, np.int32)[self._rows]
        self.ignored = np.array(table.ignore, bool)[self._rows]
        self.numbers = numbers[keep]
        areas = np.array(table.areas, np.float32)[self._rows]
        self.areas = areas if len(areas) and areas.min() >= 0 else None
        self.ids = ids[keep] if len(ids) and ids.min() >= 0 else None
        self._ends: np.ndarray = np.searchsorted(owners[keep], np.arange(len(images)), side="right")
        self._keypoints = self._pack_keypoints(table.keypoints)
        self.tasks = (DETECTION,)
        if self.outlines is not None:
            self.tasks += (INSTANCE,)
        if self._keypoints is not None:
            self.tasks += (KEYPOINTS,)
        report(name, problems, strict)

    def _place(self, image: int) -> str:
        """For a message: the annotation file, and the image when the file holds several."""
        if self.sources[image] == self.source:
            return f"{self.source}: {os.path.basename(self.paths[image])}"
        return self.sources[image]

    def _pack_keypoints(self, keypoints: dict[int, np.ndarray]) -> np.ndarray | None:
        if not keypoints:
            return None
        count = max(len(k) for k in keypoints.values())
        packed = np.zeros((len(self._rows), count, 3), np.float32)
        for at, row in enumerate(self._rows.tolist()):
            points = keypoints.get(row)
            if points is not None:
                packed[at, : len(points)] = points
        return packed

    def __len__(self) -> int:
        return len(self.paths)

    def span(self, index: int) -> slice:
        """The rows of ``boxes``, ``labels``, ... that belong to image ``index``."""
        return slice(int(self._ends[index - 1]) if index else 0, int(self._ends[index]))

    def object_count(self) -> int:
        return len(self.boxes)

    def histogram(self) -> np.ndarray:
        return np.bincount(self.labels[~self.ignored], minlength=len(self.categories)).astype(np.int64)

    def size(self, index: int) -> tuple[int, int]:
        """(height, width) of image ``index`` as annotated; from the image's header when the annotation lacks it."""
        if not self.sizes[index].all():
            self.sizes[index] = header_size(self.paths[index])
        return int(self.sizes[index][0]), int(self.sizes[index][1])

    def polygons(self, index: int) -> list[list[np.ndarray]]:
        """For each object of image ``index`` its polygons, (k, 2) float32 in pixels; none for run-length masks."""
        if self.outlines is None:
            return [[] for _ in range(*self.span(index).indices(len(self.boxes)))]
        scale = self._scale(self.size(index))
        return [[p * scale for p in self.outlines.polygons(row)] for row in self._rows[self.span(index)].tolist()]

    def run_lengths(self, index: int) -> list[dict[str, Any] | None]:
        """For each object of image ``index`` its run-length mask as the file has it, or None."""
        rles = {} if self.outlines is None else self.outlines.rles
        return [rles.get(row) for row in self._rows[self.span(index)].tolist()]

    def _scale(self, size: tuple[int, int]) -> np.ndarray:
        return np.array(size[::-1] if self.fractions else (1, 1), np.float32)

    def annotations(self, index: int) -> Annotations:
        span = self.span(index)
        known = bool(self.sizes[index].all())
        size = self.size(index) if known or self.fractions or os.path.exists(self.paths[index]) else None
        boxes = self.boxes[span]
        keypoints = None if self._keypoints is None else self._keypoints[span]
        if size is not None and self.fractions:
            boxes = boxes * np.tile(self._scale(size), 2)
            keypoints = None if keypoints is None else keypoints * np.append(self._scale(size), np.float32(1))
        return Annotations(
            boxes=boxes,
            labels=self.labels[span].astype(np.int64),
            ignore=self.ignored[span],
            size=size,
            image_id=self.image_ids[index],
            path=self.paths[index],
            source=self.sources[index],
            ids=None if self.ids is None else self.ids[span],
            areas=None if self.areas is None else self.areas[span],
            numbers=self.numbers[span],
            keypoints=keypoints,
        )

    def load(self, index: int) -> Sample:
        path = self.paths[index]
        image = read_image(path)
        if not self.sizes[index].all():
            self.sizes[index] = image.shape[:2]
        annotated = self.size(index)
        if annotated != image.shape[:2]:
            if annotated == image.shape[1::-1] and (orientation := stored_size(path)[1]) >= 5:
                image = undo_rotation(image, orientation)
            else:
                self._note_size(index, image.shape[:2], annotated)
        found = self.annotations(index)
        height, width = image.shape[:2]
        boxes = np.clip(found.boxes, 0, np.array([width, height, width, height], np.float32))
        masks = None
        if self.outlines is not None:
            scale = self._scale(annotated)
            masks = np.zeros((len(boxes), height, width), bool)
            for mask, row, box in zip(masks, self._rows[self.span(index)].tolist(), boxes):
                mask[...] = self.outlines.mask(row, (height, width), scale, box)
        extra = {"ids": found.ids, "areas": found.areas}
        return Sample(
            image,
            boxes=boxes,
            labels=found.labels,
            ignore=found.ignore,
            masks=masks,
            keypoints=found.keypoints,
            image_id=found.image_id,
            source=path,
            extra={key: value for key, value in extra.items() if value is not None},
        )

    def _note_size(self, index: int, real: tuple[int, int], annotated: tuple[int, int]) -> None:
        if index in self._size_noted:
            return
        self._size_noted.add(index)
        message = f"the image is {real[1]}x{real[0]}, annotated as {annotated[1]}x{annotated[0]} (width x height)"
        note = problem("size", self.paths[index], None, message)
        log.warning("%s: %s", self.name, note)
        self.problems = [*self.problems, note]
