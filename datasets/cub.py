"""Caltech-UCSD Birds-200-2011 (Wah et al. 2011): 11,788 images of one bird each, of 200 species.

``images.txt``, ``classes.txt``, ``image_class_labels.txt``, ``bounding_boxes.txt``, ``parts/parts.txt``,
``parts/part_locs.txt``, ``train_test_split.txt`` and ``images/``; ``segmentations/`` lies inside or beside.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np

from ..vision.image import read_image
from ..vision.sample import Sample
from .cleaning import Problem, problem, report
from .dataset import CLASSIFICATION, DETECTION, KEYPOINTS, Annotations, Dataset
from .files import Layout, header_size, read_lines
from .semantic import read_label_map

_LISTS = ("images.txt", "classes.txt", "image_class_labels.txt", "bounding_boxes.txt")


class CUBDataset(Dataset):
    """Species, box and 15 parts of each bird.

    ``split``: "train" or "test" as in ``train_test_split.txt``, or "all". A part is visible (2) when it is marked so
    and lies inside the image, otherwise absent (0).
    """

    format = "CUB-200-2011"

    def __init__(self, root: str | Path, split: str = "all", *, strict: bool = False) -> None:
        self.root = Path(root)
        self.name, self.source = f"CUB-200-2011 {split}", str(root)
        self.tasks = (CLASSIFICATION, DETECTION, KEYPOINTS)
        classes = _table(self.root / "classes.txt", 1)
        self.categories = tuple(name.split(".", 1)[-1] for (name,) in classes.values())
        self.category_ids = tuple(classes)
        label_of = {number: label for label, number in enumerate(classes)}
        images = _table(self.root / "images.txt", 1)
        labels = _table(self.root / "image_class_labels.txt", 1)
        boxes = _table(self.root / "bounding_boxes.txt", 4)
        chosen = list(images)
        if split != "all":
            flags = _table(self.root / "train_test_split.txt", 1)
            chosen = [i for i in images if flags[i] == [{"train": "1", "test": "0"}[split]]]
        try:
            self.species = np.array([label_of[int(labels[i][0])] for i in chosen], np.int64)
            xywh = np.array([[float(v) for v in boxes[i]] for i in chosen], np.float32).reshape(-1, 4)
        except (KeyError, ValueError) as error:
            raise ValueError(f"{self.root}: an image without class or box in the lists: {error!r}") from error
        self.boxes = np.concatenate([xywh[:, :2], xywh[:, :2] + xywh[:, 2:]], 1)
        self.paths = [self.root / "images" / images[i][0] for i in chosen]
        self.keypoint_names, self.points = self._parts(chosen)
        problems: list[Problem] = [
            problem("missing image", str(p), None, "listed in images.txt") for p in self.paths if not p.is_file()
        ]
        if problems:
            there = np.array([p.is_file() for p in self.paths], bool)
            self.paths = [p for p in self.paths if p.is_file()]
            self.species, self.boxes, self.points = (
                self.species[there],
                self.boxes[there],
                self.points[there],
            )
        self.problems = problems
        report(self.name, problems, strict)

    def _parts(self, chosen: list[int]) -> tuple[tuple[str, ...], np.ndarray]:
        """Names of the parts and (n, parts, 3) float32 x, y, 0 or 2."""
        lines = read_lines(self.root / "parts" / "parts.txt")
        numbers = {int(number): k for k, (number, _) in enumerate(line.split(None, 1) for line in lines)}
        points = np.zeros((len(chosen), len(numbers), 3), np.float32)
        position = {image: i for i, image in enumerate(chosen)}
        file = self.root / "parts" / "part_locs.txt"
        for at, line in enumerate(read_lines(file), 1):
            try:
                image, part, x, y, visible = line.split()
                if int(image) in position and int(visible):
                    points[position[int(image)], numbers[int(part)]] = float(x), float(y), 2
            except (ValueError, KeyError) as error:
                raise ValueError(f"{file}, line {at}: expected image, part, x, y, visible; got {line!r}") from error
        return tuple(line.split(None, 1)[1] for line in lines), points

    def __len__(self) -> int:
        return len(self.paths)

    def image_labels(self) -> np.ndarray:
        return self.species

    def annotations(self, index: int) -> Annotations:
        path = self.paths[index]
        height, width = header_size(path)
        points = self.points[index].copy()
        points[(points[:, :2] < 0).any(1) | (points[:, 0] > width) | (points[:, 1] > height)] = 0
        return Annotations(
            boxes=np.clip(self.boxes[index][None], 0, np.array([width, height, width, height], np.float32)),
            labels=self.species[index][None],
            ignore=np.zeros(1, bool),
            size=(height, width),
            image_id=path.stem,
            path=str(path),
            source=str(self.root / "parts" / "part_locs.txt"),
            keypoints=points[None],
            label=int(self.species[index]),
        )

    def load(self, index: int) -> Sample:
        found = self.annotations(index)
        return Sample(
            read_image(found.path),
            boxes=found.boxes,
            labels=found.labels,
            keypoints=found.keypoints,
            label=found.label,
            image_id=found.image_id,
            source=found.path,
        )

    def probability_map(self, index: int) -> np.ndarray:
        """(height, width) float32, the share of annotators who saw the bird at each pixel, from ``segmentations``."""
        path = self.paths[index]
        for folder in (self.root / "segmentations", self.root.parent / "segmentations"):
            if (file := folder / path.parent.name / f"{path.stem}.png").is_file():
                return read_label_map(file).astype(np.float32) / 255
        raise FileNotFoundError(f"{path}: no map of this name in segmentations/ in or beside {self.root}")


def _table(file: Path, columns: int) -> dict[int, list[str]]:
    """The lines "number value..." of a list; ValueError naming the line that is none."""
    found: dict[int, list[str]] = {}
    for at, line in enumerate(read_lines(file), 1):
        number, *values = line.split()
        if not number.isdigit() or len(values) != columns:
            raise ValueError(f"{file}, line {at}: expected a number and {columns} values, got {line!r}")
        found[int(number)] = values
    return found


def find(root: Path) -> Layout | None:
    """The folder of the lists or the one above it."""
    for folder in (root, root / "CUB_200_2011"):
        if all((folder / name).is_file() for name in _LISTS):
            if (folder / "train_test_split.txt").is_file():
                splits = {s: partial(CUBDataset, folder, s) for s in ("train", "test")}
                return Layout("CUB-200-2011", splits, {"all": partial(CUBDataset, folder)})
            return Layout("CUB-200-2011", {"all": partial(CUBDataset, folder)})
    return None
