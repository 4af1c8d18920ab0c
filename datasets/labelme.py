"""LabelMe JSON: one file an image, with polygons, rectangles and circles (https://github.com/wkentaro/labelme)."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from .cleaning import Problem, problem
from .files import (
    IMAGE_FOLDERS,
    IMAGE_SUFFIXES,
    Layout,
    class_list,
    sorted_files,
    sorted_folders,
    split_folders,
    subfolder,
)
from .objects import ObjectDataset, ObjectTable

CLASS_FILES = ("labels.txt", "classes.txt", "class_names.txt")
_CIRCLE_POINTS = 64


class LabelMeDataset(ObjectDataset):
    """Boxes and masks of LabelMe files.

    - ``files``: the JSON files; ``images``: folders to look for the images in, after the JSON's own.
    - ``categories``: class names; None: those that occur, sorted. ``_background_`` and ``__ignore__`` are left out.

    Shapes of one label and one ``group_id`` are one object. Points and lines have no area and are reported.
    """

    format = "LabelMe"

    def __init__(
        self,
        files: list[Path],
        images: list[Path],
        *,
        name: str,
        source: str,
        categories: list[str] | None = None,
        strict: bool = False,
    ) -> None:
        problems: list[Problem] = []
        table = ObjectTable()
        if categories is not None:
            categories = [c for c in categories if c not in ("_background_", "__ignore__")]
        names: dict[str, int] = {c: i for i, c in enumerate(categories or [])}
        records: list[tuple[str, int | str, tuple[int, int], str]] = []
        for file in files:
            content = _read(file, problems)
            if content is None:
                continue
            image = _image(file, content, images)
            if image is None:
                message = f"no image {content.get('imagePath')!r} beside it"
                problems.append(problem("missing image", str(file), None, message))
                continue
            for number, label, rings in _objects(content, file, problems):
                if categories is not None and label not in names:
                    problems.append(problem("unknown class", str(file), number, f"class {label!r}"))
                    continue
                points = np.concatenate(rings)
                table.add(len(records), names.setdefault(label, len(names)), (*points.min(0), *points.max(0)), number)
                for ring in rings:
                    table.add_ring(ring.reshape(-1).tolist())
            size = int(content.get("imageHeight") or 0), int(content.get("imageWidth") or 0)
            records.append((str(image), image.stem, size, str(file)))
        if categories is None:
            categories = sorted(names)
        mapping = np.array([categories.index(n) for n in names] or [0], np.int64)
        table.assign(np.array(table.images, np.int64), mapping[np.array(table.labels, np.int64)])
        super().__init__(table, records, categories, name=name, source=source, problems=problems, strict=strict)


def _read(file: Path, problems: list[Problem]) -> dict[str, Any] | None:
    try:
        content = json.loads(file.read_text("utf-8-sig"))
    except (OSError, ValueError) as error:
        problems.append(problem("unreadable", str(file), None, f"not JSON: {error}"))
        return None
    if not isinstance(content, dict) or not isinstance(content.get("shapes"), list):
        problems.append(problem("unreadable", str(file), None, "no list of shapes"))
        return None
    return content


def _image(file: Path, content: dict[str, Any], folders: list[Path]) -> Path | None:
    stated = str(content.get("imagePath") or "").replace("\\", "/")
    options = [file.parent / stated] if stated else []
    for folder in [file.parent, *folders]:
        if stated:
            options.append(folder / stated.rsplit("/", 1)[-1])
        options += [folder / f"{file.stem}{suffix}" for suffix in (".jpg", ".png", ".jpeg", ".JPG", ".bmp")]
    return next((o for o in options if o.suffix.lower() in IMAGE_SUFFIXES and o.is_file()), None)


def _objects(content: dict[str, Any], file: Path, problems: list[Problem]) -> list[tuple[int, str, list[np.ndarray]]]:
    """(number, label, polygons) of each object; number is the index of its first shape."""
    found: list[tuple[int, str, list[np.ndarray]]] = []
    groups: dict[tuple[str, Any], list[np.ndarray]] = {}
    for number, shape in enumerate(content["shapes"]):
        try:
            label = str(shape["label"])
            kind = shape.get("shape_type") or "polygon"
            points = np.asarray(shape["points"], np.float64).reshape(-1, 2)
        except (KeyError, TypeError, ValueError) as error:
            problems.append(problem("unreadable", str(file), number, f"expected label and points: {error!r}"))
            continue
        if label in ("_background_", "__ignore__"):
            continue
        ring = _ring(kind, points)
        if ring is None:
            message = f"{kind} of {len(points)} points has no area (polygon, rectangle and circle have)"
            problems.append(problem("unreadable", str(file), number, message))
            continue
        group = shape.get("group_id")
        if group is not None and (label, group) in groups:
            groups[label, group].append(ring)
            continue
        rings = [ring]
        if group is not None:
            groups[label, group] = rings
        found.append((number, label, rings))
    return found


def _ring(kind: str, points: np.ndarray) -> np.ndarray | None:
    """The outline of a shape as (k, 2) polygon, None when it has no area."""
    if kind == "polygon" and len(points) >= 3:
        return points
    if kind == "rectangle" and len(points) in (2, 4):
        (x0, y0), (x1, y1) = points.min(0), points.max(0)
        return np.array([[x0, y0], [x1, y0], [x1, y1], [x0, y1]])
    if kind == "circle" and len(points) == 2:
        radius = math.dist(points[0], points[1])
        angle = np.linspace(0, 2 * np.pi, _CIRCLE_POINTS, endpoint=False)
        return np.stack([points[0, 0] + radius * np.cos(angle), points[0, 1] + radius * np.sin(angle)], 1)
    return None


def _occurring(files: Iterable[Path]) -> list[str]:
    """The class names of some files, so that every split of a set has the same classes."""
    names: set[str] = set()
    for file in files:
        content = _read(file, [])
        if content is not None:
            names |= {label for _, label, _ in _objects(content, file, [])}
    return sorted(names)


def _open(
    files: list[Path], images: list[Path], every: list[Path], folders: list[Path], name: str, strict: bool = False
) -> LabelMeDataset:
    categories = class_list(folders, CLASS_FILES) or _occurring(every) or None
    return LabelMeDataset(files, images, name=name, source=str(folders[-1]), categories=categories, strict=strict)


def _is_labelme(file: Path) -> bool:
    try:
        with file.open(encoding="utf-8-sig", errors="replace") as text:
            head = text.read(1 << 16)
    except OSError:
        return False
    return '"shapes"' in head


def _files(folder: Path) -> list[Path]:
    files = sorted_files(folder, {".json"})
    return files if any(_is_labelme(f) for f in files[:5]) else []


def _place(root: Path) -> list[Path]:
    """The LabelMe files of ``root`` or of one usual folder in it."""
    inner = subfolder(root, ("annotations", "labels", "json", "jsons", "labelme", "ann"))
    return (
        _files(root)
        or (_files(inner) if inner else [])
        or next(
            (files for name in IMAGE_FOLDERS if (folder := subfolder(root, (name,))) and (files := _files(folder))), []
        )
    )


def find(root: Path) -> Layout | None:
    """LabelMe files beside their images, or in an annotations folder; per split folder or not."""
    splits = {}
    for split, folder in split_folders(root).items():
        if files := _place(folder):
            splits[split] = (files, folder)
    annotations = subfolder(root, ("annotations", "labels", "json", "jsons", "labelme", "ann"))
    if not splits and annotations:
        splits = {s: (files, f) for s, f in split_folders(annotations).items() if (files := _files(f))}
    if not splits and (files := _place(root)):
        splits = {"all": (files, root)}
    if not splits:
        return None
    around = [root, *sorted_folders(root)]
    around += [f for folder in around[1:] for f in sorted_folders(folder)]
    every = [file for files, _ in splits.values() for file in files]

    def nearest_first(folder: Path) -> list[Path]:
        return list(dict.fromkeys([folder, *sorted_folders(folder), *around]))

    return Layout(
        "LabelMe",
        {
            s: partial(
                _open,
                files,
                nearest_first(folder),
                every,
                [root, folder],
                root.name if s == "all" else f"{root.name}@{s}",
            )
            for s, (files, folder) in splits.items()
        },
    )
