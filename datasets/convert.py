"""Conversion between COCO, VOC and YOLO, without loss of what both formats can hold.

=================  ==========================  ============================  ================================
what               COCO                        VOC                           YOLO
=================  ==========================  ============================  ================================
boxes              yes                         sides over 1 pixel            sides over 1e-6 of the image
class list, order  yes, with ids               yes (``labels.txt``)          yes (``data.yaml``)
ignore             ``iscrowd``                 ``difficult``                 no
polygons           yes                         no                            one polygon an object (not boxes)
run-length masks   yes                         no                            no
keypoints          yes                         no                            yes (then no polygons)
image, object ids  yes                         image name                    image name
=================  ==========================  ============================  ================================

Whatever the target cannot hold is counted in the returned notes and logged.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import xml.etree.ElementTree as ElementTree
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from .cleaning import log
from .dataset import DETECTION, INSTANCE, KEYPOINTS, Annotations, Concatenation, Dataset, Subset
from .objects import ObjectDataset
from .opening import splits

FORMATS = ("coco", "voc", "yolo")


def convert(
    data: Dataset | Mapping[str, Dataset] | str | Path,
    out: str | Path,
    format: str,
    *,
    link: bool = False,
    progress: bool = False,
) -> dict[str, int]:
    """Write a data set in another format; returns how often something could not be kept, by what it was.

    - ``data``: a path (all its splits, or ``PATH@SPLIT``), data sets by split name, or one data set (as "train").
    - ``out``: a folder that does not exist yet or is empty; it appears complete or not at all.
    - ``format``: coco, voc or yolo. ``link``: hard links to the images where the file system can, else copies.

    Raises ValueError for a set without boxes or another format name, FileExistsError when ``out`` has content.
    """
    target, out = format.lower(), Path(out)
    if target not in FORMATS:
        raise ValueError(f"expected one of the formats {', '.join(FORMATS)}, got {format!r}")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise FileExistsError(f"{out}: expected a folder that is empty or does not exist")
    if isinstance(data, (str, Path)):
        sets: dict[str, Dataset] = splits(data)
    else:
        sets = {"train": data} if isinstance(data, Dataset) else dict(data)
    for name, dataset in sets.items():
        if DETECTION not in dataset.tasks:
            raise ValueError(f"{name}: expected a set with boxes, got {dataset!r}")
    categories = {d.categories for d in sets.values()}
    if len(categories) != 1:
        raise ValueError(f"expected splits with one class list, got {sorted(len(c) for c in categories)} classes")
    out.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(dir=out.parent, prefix=f".{out.name}."))
    try:
        os.chmod(work, 0o755)
        kinds: dict[str, type[_Writer]] = {"coco": _COCOWriter, "voc": _VOCWriter, "yolo": _YOLOWriter}
        writer = kinds[target](work, sets)
        bar = tqdm(total=sum(len(d) for d in sets.values()), unit="image", disable=not progress, desc=f"to {target}")
        with bar:
            for split, dataset in sets.items():
                names = _file_names(dataset, writer.taken)
                writer.begin(split, dataset)
                for index in range(len(dataset)):
                    found = dataset.annotations(index)
                    _place(found.path, writer.images(split) / names[index], link)
                    writer.add(dataset, index, found, names[index])
                    bar.update()
                writer.finish(split, dataset)
        if out.exists():
            out.rmdir()
        os.replace(work, out)
    except BaseException:
        shutil.rmtree(work, ignore_errors=True)
        raise
    notes = dict(writer.notes)
    if notes:
        log.warning("%s: not kept in %s: %s", out, target, ", ".join(f"{n} {what}" for what, n in notes.items()))
    return notes


def _file_names(dataset: Dataset, taken: set[str]) -> list[str]:
    """A file name for each image, its own unless another image has the same stem: then numbered."""
    names = []
    for index in range(len(dataset)):
        path = Path(dataset.annotations(index).path)
        name, number = path.name, 1
        while Path(name).stem.lower() in taken:
            number += 1
            name = f"{path.stem}_{number}{path.suffix}"
        taken.add(Path(name).stem.lower())
        names.append(name)
    return names


def _place(source: str, target: Path, link: bool) -> None:
    if link:
        try:
            os.link(source, target)
            return
        except OSError:  # another file system, or one without hard links
            pass
    shutil.copyfile(source, target)


def _origin(dataset: Dataset, index: int) -> tuple[ObjectDataset | None, int]:
    """The set at the bottom of views, and the image's index there: it knows polygons and run-length masks."""
    if isinstance(dataset, Subset):
        return _origin(dataset.base, int(dataset.indices[index]))
    if isinstance(dataset, Concatenation):
        part, at = dataset.locate(index)
        return _origin(dataset.parts[part], at)
    return (dataset, index) if isinstance(dataset, ObjectDataset) else (None, index)


def _outlines(dataset: Dataset, index: int, count: int) -> list[list[np.ndarray] | dict[str, Any]]:
    """For each object its polygons (none: an empty list) or its run-length mask."""
    origin, at = _origin(dataset, index)
    if origin is None:
        return [[] for _ in range(count)]
    return [rle if rle is not None else rings for rings, rle in zip(origin.polygons(at), origin.run_lengths(at))]


def _number(value: float) -> float | int:
    """A coordinate for a text file: float32's digits, whole numbers without a point."""
    rounded = round(float(value), 5)
    return int(rounded) if rounded == int(rounded) else rounded


class _Writer(ABC):
    """What the three writers share: the folder, the images' folder of each split, and what could not be kept."""

    def __init__(self, root: Path, sets: Mapping[str, Dataset]) -> None:
        self.root, self.notes = root, Counter[str]()
        self.taken: set[str] = set()

    def images(self, split: str) -> Path:
        return self.root / "images" / split

    def begin(self, split: str, dataset: Dataset) -> None:
        self.images(split).mkdir(parents=True, exist_ok=True)

    @abstractmethod
    def add(self, dataset: Dataset, index: int, found: Annotations, name: str) -> None: ...

    @abstractmethod
    def finish(self, split: str, dataset: Dataset) -> None: ...


class _COCOWriter(_Writer):
    """annotations/instances_<split>.json and images/<split>/."""

    def begin(self, split: str, dataset: Dataset) -> None:
        super().begin(split, dataset)
        self.records: list[dict[str, Any]] = []
        self.objects: list[dict[str, Any]] = []
        self.category_ids = dataset.category_ids or tuple(range(1, len(dataset.categories) + 1))
        self.image_ids = _image_ids(dataset)
        self.own_ids = self._unique_ids(dataset)

    @staticmethod
    def _unique_ids(dataset: Dataset) -> bool:
        """Whether every object has an id of its own, so that the ids can be kept."""
        ids = [dataset.annotations(i).ids for i in range(len(dataset))]
        if any(part is None for part in ids):
            return False
        every = np.concatenate([part for part in ids if part is not None] or [np.zeros(0, np.int64)])
        return len(np.unique(every)) == len(every)

    def add(self, dataset: Dataset, index: int, found: Annotations, name: str) -> None:
        if found.size is None:
            raise ValueError(f"{found.path}: the image's size is not known")
        height, width = found.size
        image_id = self.image_ids[index]
        self.records.append({"id": image_id, "file_name": name, "width": width, "height": height})
        outlines = _outlines(dataset, index, len(found))
        for i, (box, outline) in enumerate(zip(found.boxes.astype(np.float64), outlines)):
            x0, y0, x1, y1 = box
            item: dict[str, Any] = {
                "id": int(found.ids[i]) if self.own_ids and found.ids is not None else len(self.objects) + 1,
                "image_id": image_id,
                "category_id": self.category_ids[found.labels[i]],
                "bbox": [_number(v) for v in (x0, y0, x1 - x0, y1 - y0)],
                "area": _number(found.areas[i] if found.areas is not None else (x1 - x0) * (y1 - y0)),
                "iscrowd": int(found.ignore[i]),
            }
            if isinstance(outline, dict):
                counts = outline["counts"]
                text = counts.decode() if isinstance(counts, bytes) else np.asarray(counts).tolist()
                item["segmentation"] = {"size": outline["size"], "counts": text}
            elif outline:
                item["segmentation"] = [[_number(v) for v in ring.reshape(-1)] for ring in outline]
            if found.keypoints is not None:
                points = found.keypoints[i].astype(np.float64)
                item["keypoints"] = [_number(v) for v in points.reshape(-1)]
                item["num_keypoints"] = int((points[:, 2] > 0).sum())
            self.objects.append(item)

    def finish(self, split: str, dataset: Dataset) -> None:
        keypoints = {"keypoints": list(dataset.keypoint_names), "skeleton": []} if dataset.keypoint_names else {}
        content = {
            "images": self.records,
            "annotations": self.objects,
            "categories": [{"id": k, "name": n, **keypoints} for k, n in zip(self.category_ids, dataset.categories)],
        }
        folder = self.root / "annotations"
        folder.mkdir(exist_ok=True)
        (folder / f"instances_{split}.json").write_text(json.dumps(content), "utf-8")


def _image_ids(dataset: Dataset) -> list[int]:
    """Whole numbers for COCO: the images' own ids, or the numbers that their names are, or 1..n."""
    own = [dataset.annotations(i).image_id for i in range(len(dataset))]
    if all(isinstance(v, int) or v.isdecimal() for v in own):
        numbers = [int(v) for v in own]
        if len(set(numbers)) == len(numbers):
            return numbers
    return list(range(1, len(own) + 1))


class _VOCWriter(_Writer):
    """Annotations/, JPEGImages/, ImageSets/Main/<split>.txt and labels.txt, the class list."""

    def images(self, split: str) -> Path:
        return self.root / "JPEGImages"

    def begin(self, split: str, dataset: Dataset) -> None:
        super().begin(split, dataset)
        for folder in ("Annotations", "ImageSets/Main"):
            (self.root / folder).mkdir(parents=True, exist_ok=True)
        self.names: list[str] = []
        if INSTANCE in dataset.tasks:
            self.notes["masks"] += sum(len(dataset.annotations(i)) for i in range(len(dataset)))
        if KEYPOINTS in dataset.tasks:
            self.notes["keypoints"] += sum(len(dataset.annotations(i)) for i in range(len(dataset)))

    def add(self, dataset: Dataset, index: int, found: Annotations, name: str) -> None:
        if found.size is None:
            raise ValueError(f"{found.path}: the image's size is not known")
        root = ElementTree.Element("annotation")
        ElementTree.SubElement(root, "filename").text = name
        size = ElementTree.SubElement(root, "size")
        for key, value in (("width", found.size[1]), ("height", found.size[0]), ("depth", 3)):
            ElementTree.SubElement(size, key).text = str(value)
        for box, label, ignore in zip(found.boxes.astype(np.float64), found.labels, found.ignore):
            corners = [_number(v) for v in (box[0] + 1, box[1] + 1, box[2], box[3])]
            if corners[0] >= corners[2] or corners[1] >= corners[3]:
                self.notes["boxes with a side of at most 1 pixel"] += 1
                continue
            item = ElementTree.SubElement(root, "object")
            ElementTree.SubElement(item, "name").text = dataset.categories[label]
            ElementTree.SubElement(item, "difficult").text = str(int(ignore))
            bounds = ElementTree.SubElement(item, "bndbox")
            for key, corner in zip(("xmin", "ymin", "xmax", "ymax"), corners):
                ElementTree.SubElement(bounds, key).text = str(corner)
        ElementTree.indent(root)
        stem = Path(name).stem
        ElementTree.ElementTree(root).write(self.root / "Annotations" / f"{stem}.xml", encoding="utf-8")
        self.names.append(stem)

    def finish(self, split: str, dataset: Dataset) -> None:
        (self.root / "ImageSets" / "Main" / f"{split}.txt").write_text("".join(f"{n}\n" for n in self.names), "utf-8")
        (self.root / "labels.txt").write_text("".join(f"{c}\n" for c in dataset.categories), "utf-8")


class _YOLOWriter(_Writer):
    """images/<split>/, labels/<split>/ and data.yaml; polygons when every object has one, keypoints before that."""

    def __init__(self, root: Path, sets: Mapping[str, Dataset]) -> None:
        super().__init__(root, sets)
        self.keypoints = max((self._keypoint_count(d) for d in sets.values()), default=0)
        self.polygons = not self.keypoints and all(INSTANCE in d.tasks for d in sets.values())

    @staticmethod
    def _keypoint_count(dataset: Dataset) -> int:
        if KEYPOINTS not in dataset.tasks or not len(dataset):
            return 0
        points = dataset.annotations(0).keypoints
        return 0 if points is None else points.shape[1]

    def begin(self, split: str, dataset: Dataset) -> None:
        super().begin(split, dataset)
        self.labels = self.root / "labels" / split
        self.labels.mkdir(parents=True, exist_ok=True)

    def add(self, dataset: Dataset, index: int, found: Annotations, name: str) -> None:
        if found.size is None:
            raise ValueError(f"{found.path}: the image's size is not known")
        height, width = found.size
        scale = np.array([width, height], np.float64)
        lines = []
        outlines = _outlines(dataset, index, len(found)) if self.polygons else [[] for _ in range(len(found))]
        for i, (box, outline) in enumerate(zip(found.boxes.astype(np.float64), outlines)):
            if found.ignore[i]:
                self.notes["ignored objects (crowd, difficult)"] += 1
                continue
            low, high = box[:2] / scale, box[2:] / scale
            values = [*((low + high) / 2), *(high - low)]
            if self.keypoints and found.keypoints is not None:
                points = found.keypoints[i].astype(np.float64)
                values += [v for x, y, seen in points for v in (x / width, y / height, seen)]
            elif isinstance(outline, dict):
                self.notes["run-length masks (their boxes are kept)"] += 1
            elif outline:
                if len(outline) > 1:
                    self.notes["objects of several polygons (joined into one)"] += 1
                values = list((_join(outline) / scale).reshape(-1))
            lines.append(" ".join([str(found.labels[i]), *(f"{v:.8f}".rstrip("0").rstrip(".") for v in values)]))
        (self.labels / f"{Path(name).stem}.txt").write_text("".join(f"{line}\n" for line in lines), "utf-8")

    def finish(self, split: str, dataset: Dataset) -> None:
        folder = self.root / "images"
        parts = [f"{s.name}: images/{s.name}\n" for s in sorted(folder.iterdir())]
        names = "".join(f"  {i}: {json.dumps(name, ensure_ascii=False)}\n" for i, name in enumerate(dataset.categories))
        shape = f"kpt_shape: [{self.keypoints}, 3]\n" if self.keypoints else ""
        (self.root / "data.yaml").write_text("path: .\n" + "".join(parts) + shape + "names:\n" + names, "utf-8")


def _join(rings: list[np.ndarray]) -> np.ndarray:
    """One polygon (k, 2) that covers several: from each one a bridge of no width leads to the next and back."""
    joined = rings[0].astype(np.float64)
    for ring in rings[1:]:
        distance = ((joined[:, None] - ring[None]) ** 2).sum(2)
        here, there = (int(v) for v in np.unravel_index(distance.argmin(), distance.shape))
        visit = np.concatenate([ring[there:], ring[: there + 1]])
        joined = np.concatenate([joined[: here + 1], visit, joined[here:]])
    return joined
