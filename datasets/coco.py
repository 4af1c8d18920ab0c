"""COCO JSON: boxes, polygons, run-length masks, crowds, keypoints (https://cocodataset.org/#format-data)."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ..vision.masks import rle_area
from .cleaning import Problem, problem
from .files import (
    IMAGE_FOLDERS,
    Layout,
    ordered_splits,
    sorted_files,
    sorted_folders,
    spellings,
    split_folders,
    split_of,
    subfolder,
)
from .json_stream import iterate_arrays
from .objects import ObjectDataset, ObjectTable

_KEYS = re.compile(r'"(images|annotations|categories)"\s*:\s*\[')
_MINIVAL = re.compile(r"instances_(minival|valminusminival)2014")
_ANNOTATION_FOLDERS = ("annotations", "annotation", "labels", "ann")
_NOT_OBJECTS = ("captions", "panoptic", "image_info", "stuff", "sem_", "lvis_caption")


class COCODataset(ObjectDataset):
    """Objects of a COCO annotation file; opening reads the file in a stream and no image.

    ``annotations`` is the JSON file, ``images`` the folder of the image files (None: found beside the JSON). Category
    ids are sorted and mapped to 0..n-1; ``category_ids`` keeps them. Crowds become ``ignore``.
    Raises ValueError naming the file when it is not COCO JSON, `DirtyDataError` for dirty data when ``strict``.

    >>> import tempfile, pathlib
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "a.json"
    >>> _ = path.write_text('''{"images": [{"id": 7, "file_name": "a.jpg", "width": 9, "height": 9}],
    ...   "annotations": [{"id": 1, "image_id": 7, "category_id": 3, "bbox": [1, 2, 3, 4]}],
    ...   "categories": [{"id": 3, "name": "cat"}]}''')
    >>> found = COCODataset(path)
    >>> found.annotations(0).boxes.tolist(), found.categories, found.category_ids
    ([[1.0, 2.0, 4.0, 6.0]], ('cat',), (3,))
    """

    format = "COCO"

    def __init__(
        self,
        annotations: str | Path,
        images: str | Path | None = None,
        *,
        name: str | None = None,
        strict: bool = False,
    ) -> None:
        path = Path(annotations)
        problems: list[Problem] = []
        records: dict[Any, dict[str, Any]] = {}
        categories: dict[int, dict[str, Any]] = {}
        order: dict[Any, int] = {}
        table = ObjectTable()
        seen_keys = set()
        count = 0
        for key, items in iterate_arrays(path, {"images", "annotations", "categories"}, "segmentation"):
            seen_keys.add(key)
            if not all(isinstance(item, dict) for item in items):
                raise ValueError(f"{path}: expected objects in {key!r}, found {str(items)[:60]!r}")
            if key == "annotations":
                first = len(table)
                added = items
                if not _add_all(table, items, count, order):
                    added = [i for n, i in enumerate(items, count) if _add(table, i, n, order, problems, str(path))]
                for row, item in enumerate(added, first):
                    if item.get("segmentation") or "keypoints" in item:
                        _add_outline(table, row, item, table.numbers[row], problems, str(path))
                count += len(items)
            elif key == "images":
                _add_images(records, items, problems, str(path))
            else:
                categories |= {int(item["id"]): item for item in items}
        if "images" not in seen_keys:
            raise ValueError(f"{path}: expected COCO JSON with a filled 'images' array")

        known = np.array(sorted(categories), np.int64)
        table_images, table_labels = np.array(table.images, np.int64), np.array(table.labels, np.int64)
        if not categories and len(table):
            known = np.unique(table_labels)
            categories = {int(k): {"name": str(int(k))} for k in known}
            problems.append(Problem("unknown class", "kept", str(path), None, "no 'categories': ids serve as names"))
        folder = Path(images) if images is not None else find_images(path, [r["file_name"] for r in records.values()])
        position, rows = _existing(records, folder, path, problems)

        image_of = np.array([position.get(identity, -1) for identity in order], np.int64)
        table_images = image_of[table_images] if len(table) else table_images
        labels = np.searchsorted(known, table_labels)
        unknown = labels == len(known)
        unknown[~unknown] = known[labels[~unknown]] != table_labels[~unknown]
        for at in np.flatnonzero(unknown):
            message = f"category id {table_labels[at]}, annotation id {table.ids[at]}"
            problems.append(problem("unknown class", str(path), int(table.numbers[at]), message))
        identities = list(order)
        for at in np.flatnonzero(table_images < 0):
            identity = identities[table.images[at]]
            if identity not in records:
                message = f"image id {identity!r} is not among the images, annotation id {table.ids[at]}"
                problems.append(problem("unreadable", str(path), int(table.numbers[at]), message))
        table.assign(np.where(unknown, -1, table_images), labels)

        self.category_ids = tuple(int(k) for k in known)
        names = next((c["keypoints"] for c in categories.values() if c.get("keypoints")), None)
        self.keypoint_names = None if names is None else tuple(str(n) for n in names)
        super().__init__(
            table,
            rows,
            [str(categories[int(k)].get("name", k)) for k in known],
            name=name or f"{path.parent.name}/{path.stem}",
            source=str(path),
            problems=problems,
            strict=strict,
        )


def _add_images(
    records: dict[Any, dict[str, Any]], items: list[dict[str, Any]], problems: list[Problem], path: str
) -> None:
    for item in items:
        identity = item.get("id")
        if identity is None or "file_name" not in item:
            problems.append(problem("unreadable", path, None, f"image without id or file_name: {item}"))
        elif identity in records:
            problems.append(problem("unreadable", path, None, f"a second image has the id {identity}"))
        else:
            records[identity] = {key: item[key] for key in ("file_name", "width", "height") if key in item}


def _add_all(table: ObjectTable, items: list[dict[str, Any]], number: int, order: dict[Any, int]) -> bool:
    """Append many annotations column by column; False, and nothing is appended, when one of them is not well-formed."""
    try:
        boxes = np.array([item["bbox"] for item in items])
        images = [item["image_id"] for item in items]
        labels = [item["category_id"] for item in items]
        ids = [item["id"] for item in items]
        areas = [float(item["area"]) for item in items]
        ignore = [bool(item.get("iscrowd") or item.get("ignore")) for item in items]
        if boxes.shape != (len(items), 4) or boxes.dtype.kind not in "if":
            return False
        if not all(type(v) is int for v in labels) or not all(type(v) is int for v in ids):
            return False
        positions = [order.setdefault(image, len(order)) for image in images]
    except (KeyError, TypeError, ValueError):
        return False
    boxes = boxes.astype(np.float64)
    boxes[:, 2:] += boxes[:, :2]
    table.extend(positions, labels, boxes, number, ignore=ignore, ids=ids, areas=areas)
    return True


def _add(
    table: ObjectTable, item: dict[str, Any], number: int, order: dict[Any, int], problems: list[Problem], path: str
) -> bool:
    """Append one annotation, whatever it looks like; False, and a problem, when it cannot be used."""
    try:
        image, category = item["image_id"], int(item["category_id"])
        outline = item.get("segmentation")
        box = item.get("bbox")
        if not box and outline and not isinstance(outline, dict):
            rings = json.loads(outline) if isinstance(outline, str) else outline
            points = np.concatenate([np.asarray(ring, np.float64).reshape(-1, 2) for ring in rings])
            box = [*points.min(0), *(points.max(0) - points.min(0))]
        if not box:
            raise ValueError("no bbox")
        x, y, w, h = box
        area = item.get("area")
        table.add(
            order.setdefault(image, len(order)),
            category,
            (x, y, x + w, y + h),
            number,
            ignore=bool(item.get("iscrowd") or item.get("ignore")),
            identity=item["id"] if isinstance(item.get("id"), int) else -1,
            area=-1.0 if area is None else float(area),
        )
    except (KeyError, TypeError, ValueError) as error:
        shown = {k: item[k] for k in ("id", "image_id", "category_id", "bbox") if k in item}
        message = f"expected image_id, category_id and bbox of four numbers, got {shown} ({error!r})"
        problems.append(problem("unreadable", path, number, message))
        return False
    return True


def _add_outline(
    table: ObjectTable, row: int, item: dict[str, Any], number: int, problems: list[Problem], path: str
) -> None:
    """Give an appended annotation its polygons, run-length mask and keypoints, as far as they are well-formed."""
    outline, points = item.get("segmentation"), item.get("keypoints")
    where = f"annotation id {item.get('id')}"
    try:
        if isinstance(outline, dict):
            height, width = outline["size"]
            counts = outline["counts"]
            runs = counts.encode() if isinstance(counts, str) else np.asarray(counts, np.uint32)
            rle = {"size": [int(height), int(width)], "counts": runs}
            rle_area(rle)  # raises when the runs do not fill the size
            table.add_rle(row, rle)
        elif isinstance(outline, str) and _is_plain(outline):
            table.add_rings_text(row, outline)
        elif outline:
            rings = json.loads(outline) if isinstance(outline, str) else outline
            rings = rings if not rings or isinstance(rings[0], list) else [rings]
            good = [ring for ring in rings if len(ring) >= 6 and len(ring) % 2 == 0]
            for ring in (r for r in rings if r not in good):
                problems.append(problem("unreadable", path, number, f"a polygon of {len(ring)} numbers, {where}"))
            if good:
                np.array([v for ring in good for v in ring], np.float32)  # are these numbers?
                table.add_rings_text(row, json.dumps(good))
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        problems.append(problem("unreadable", path, number, f"segmentation, {where}: {error!r}"))
    if points:
        try:
            table.add_keypoints(row, np.asarray(points, np.float32).reshape(-1, 3))
        except (TypeError, ValueError):
            message = f"keypoints, {where}: expected x, y, visibility of each, got {str(points)[:60]}"
            problems.append(problem("unreadable", path, number, message))


def _is_plain(text: str) -> bool:
    """Whether the JSON text is one polygon with an even number of at least 6 numbers: nothing to look at closer."""
    commas = text.count(",")
    return commas >= 5 and commas % 2 == 1 and text.count("[") == 2


def _existing(
    records: dict[Any, dict[str, Any]], folder: Path, path: Path, problems: list[Problem]
) -> tuple[dict[Any, int], list[tuple[str, int | str, tuple[int, int], str]]]:
    """Positions by image id and the rows of the images whose files exist; all when not one does (annotations only)."""
    listed = {e.name for e in os.scandir(folder)} if folder.is_dir() else set()
    there = {}
    for identity, record in records.items():
        file_name = str(record["file_name"]).replace("\\", "/")
        if file_name in listed or ("/" in file_name and (folder / file_name).is_file()):
            there[identity] = file_name
        elif os.path.basename(file_name) in listed:
            there[identity] = os.path.basename(file_name)
    if not there and records:
        message = f"none of the {len(records)} images is in {folder}; annotations only"
        problems.append(Problem("missing image", "kept", str(path), None, message))
        there = {identity: str(record["file_name"]) for identity, record in records.items()}
    position: dict[Any, int] = {}
    rows: list[tuple[str, int | str, tuple[int, int], str]] = []
    source = str(path)
    for identity, record in records.items():
        if identity not in there:
            problems.append(
                problem("missing image", str(folder / str(record["file_name"])), None, f"image id {identity}")
            )
            continue
        position[identity] = len(rows)
        size = (int(record.get("height") or 0), int(record.get("width") or 0))
        rows.append((os.path.join(folder, there[identity]), identity, size, source))
    return position, rows


def find_images(path: Path, names: list[str]) -> Path:
    """The folder beside the annotation file that holds most of (a sample of) the named images."""
    split = split_of(path.stem) or split_of(path.parent.name)
    token = re.sub(r"^(instances|person_keypoints|annotations|panoptic|coco)[_-]*", "", path.stem)
    drawn = token.replace("valminusminival", "val").replace("minival", "val")  # images of val2014
    words = list(dict.fromkeys([token, drawn, path.stem] + (spellings(split) if split else [])))
    bases = [path.parent, path.parent.parent]
    candidates: list[Path] = []
    for base in bases:
        inner = [f for name in IMAGE_FOLDERS if (f := subfolder(base, (name,)))]
        inner += [f for word in words if (f := subfolder(base, (word,)))]
        deeper = [f for folder in inner for name in (*words, *IMAGE_FOLDERS) if (f := subfolder(folder, (name,)))]
        candidates += [base, *inner, *deeper]
    step = max(1, len(names) // 20)
    sample = [n.replace("\\", "/") for n in names[::step]]

    def score(folder: Path) -> int:
        if not folder.is_dir():
            return 0
        whole = sum((folder / n).is_file() for n in sample)
        return whole or sum((folder / os.path.basename(n)).is_file() for n in sample)

    best = max(candidates, key=score)
    return best if score(best) else path.parent


def is_coco(path: Path) -> bool:
    """Whether a JSON file looks like COCO's: its arrays are named in the first megabyte."""
    try:
        with path.open(encoding="utf-8-sig", errors="replace") as file:
            head = file.read(1 << 16)
            if '"shapes"' in head:
                return False
            found = set(_KEYS.findall(head))
            if found and len(found) < 2:
                found |= set(_KEYS.findall(head + file.read(1 << 20)))
    except OSError:
        return False
    return "annotations" in found or len(found) >= 2 or ("images" in found and '"file_name"' in head)


def _usable(files: Iterable[Path]) -> list[Path]:
    return [f for f in files if not f.name.lower().startswith(_NOT_OBJECTS) and is_coco(f)]


def find(root: Path) -> Layout | None:
    """COCO files in ``root`` and ``root/annotations``, or in each split folder; several of one split: one is chosen.

    Of the files of a split the one named just like it comes first (val.json), then instances_*, then others by name;
    all of them open by their full stem.
    """
    folders = [root] + [f for f in sorted_folders(root) if f.name.lower() in _ANNOTATION_FOLDERS]
    usable = _usable(f for folder in folders for f in _few_json(folder))
    groups: dict[str | None, list[Path]] = {}
    for file in usable:
        groups.setdefault(split_of(file.stem), []).append(file)
    if not usable:
        for split, folder in split_folders(root).items():
            inside = [f for sub in [folder, *sorted_folders(folder)] for f in _few_json(sub)]
            if inside := _usable(inside):
                groups[split] = inside
    if not groups:
        return None

    def opener(file: Path, split: str) -> partial[COCODataset]:
        return partial(COCODataset, file, name=f"{root.name}@{split}")

    chosen = {s: min(files, key=lambda f: _rank(f)) for s, files in groups.items() if s is not None}
    if "train" in chosen or "val" in chosen:
        chosen.pop("trainval", None)
    splits = {s: opener(chosen[s], s) for s in ordered_splits(chosen)}
    if not splits:
        splits = {f.stem: opener(f, f.stem) for f in groups[None]}
    alternates = {f.stem: opener(f, f.stem) for files in groups.values() for f in files}
    for file in groups.get(None, []):
        if (part := _MINIVAL.fullmatch(file.stem)) is not None:
            alternates[part[1]] = opener(file, part[1])
    return Layout("COCO", splits, alternates)


def _few_json(folder: Path) -> list[Path]:
    """The JSON files of a folder, none when it holds so many that each must belong to one image."""
    files = sorted_files(folder, {".json"})
    return files if len(files) <= 50 else []


def _rank(file: Path) -> tuple[int, str]:
    words = [w for w in re.split(r"[^a-z]+", file.stem.lower()) if w]
    if len(words) == 1:
        return 0, file.name
    return (1 if "instances" in words else 2), file.name
