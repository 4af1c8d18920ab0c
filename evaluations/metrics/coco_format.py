"""Reading and checking COCO annotation and results JSON: one clear error instead of a wrong number."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Hashable, Iterable, Mapping, Sequence
from numbers import Integral, Real
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from .inputs import BoxesFound, BoxTruth
from .matching import Floats, Ints

logger = logging.getLogger(__name__)


def read_json(source: Any, name: str) -> tuple[str, Any]:
    """The content of a path to a JSON file, or ``source`` itself if it is not a path, and what to call it in errors."""
    if not isinstance(source, str | os.PathLike):
        return name, source
    path = Path(source)
    try:
        return str(path), json.loads(path.read_bytes())
    except FileNotFoundError:
        raise ValueError(f"{name}: there is no file {path}") from None
    except IsADirectoryError:
        raise ValueError(f"{name}: expected a JSON file, got the folder {path}") from None
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{path}: expected JSON, got something else ({error})") from None


def check_ground_truth(data: Any, name: str = "ground truth") -> None:
    """Raise ValueError unless ``data`` is sound COCO ground truth; log a warning for boxes without area.

    Ids may have gaps and any order, and images may have no objects.

    >>> check_ground_truth({"images": [], "categories": []})
    Traceback (most recent call last):
    ValueError: ground truth: missing key 'annotations'; COCO annotations have 'images', 'annotations' and 'categories'
    """
    if not isinstance(data, Mapping):
        raise ValueError(f"{name}: expected a JSON object with COCO annotations, got {type(data).__name__}")
    for key in ("images", "annotations", "categories"):
        if key not in data:
            raise ValueError(
                f"{name}: missing key {key!r}; COCO annotations have 'images', 'annotations' and 'categories'"
            )
        _need_keys(data[key], ("id", "name") if key == "categories" else ("id",), f"{name}: {key}")
        _need_ids(data[key], "id", f"{name}: {key}")
        _need_unique([entry["id"] for entry in data[key]], f"{name}: {key}")
    for i, category in enumerate(data["categories"]):
        if not isinstance(category["name"], str):
            raise ValueError(f"{name}: categories[{i}]: expected a text as 'name', got {category['name']!r:.80}")
    _need_unique([category["name"] for category in data["categories"]], f"{name}: categories", "name")
    _need_keys(data["annotations"], ("image_id", "category_id"), f"{name}: annotations")
    for i, entry in enumerate(data["annotations"]):
        if entry.get("iscrowd", 0) not in (0, 1, None):
            raise ValueError(f"{name}: annotations[{i}]: expected 0 or 1 as 'iscrowd', got {entry['iscrowd']!r:.80}")
    areas = [(i, entry["area"]) for i, entry in enumerate(data["annotations"]) if entry.get("area") is not None]
    if bad := [(i, area) for i, area in areas if isinstance(area, bool) or not isinstance(area, Real)]:
        raise ValueError(f"{name}: annotations[{bad[0][0]}]: expected a number as 'area', got {bad[0][1]!r:.80}")
    _need_known(data["annotations"], data, f"{name}: annotations")
    if with_box := [entry for entry in data["annotations"] if "bbox" in entry]:
        boxes = number_rows((entry["bbox"] for entry in with_box), 4, f"{name}: annotations", "bbox")
        where = [f"annotation {entry['id']} of image {entry['image_id']}" for entry in with_box]
        _need_sizes(boxes, where, name)
        if flat := [place for place, box in zip(where, boxes) if 0 in box[2:]]:
            logger.warning("%s: %d boxes have no area and cannot be found: %s", name, len(flat), some(flat))


def check_results(results: Any, data: Mapping[str, Any], name: str = "detections") -> None:
    """Raise ValueError unless ``results`` is a COCO results list for the ground truth ``data``."""
    if isinstance(results, str | bytes | Mapping) or not isinstance(results, Sequence):
        raise ValueError(f"{name}: expected a list of detections, got {type(results).__name__}")
    _need_keys(results, ("image_id", "category_id", "score"), name)
    for key in ("image_id", "category_id"):
        _need_ids(results, key, name)
    _need_known(results, data, name)
    scores = number_rows(([entry["score"]] for entry in results), 1, name, "score")
    if len(bad := np.flatnonzero(~np.isfinite(scores))):
        raise ValueError(f"{name}[{bad[0]}]: expected a finite score, got {results[bad[0]]['score']}")
    if with_box := [i for i, entry in enumerate(results) if "bbox" in entry]:
        boxes = number_rows((results[i]["bbox"] for i in with_box), 4, name, "bbox")
        _need_sizes(boxes, [f"[{i}], image {results[i]['image_id']}" for i in with_box], name)


class Images(NamedTuple):
    """COCO's JSON image by image: ``ids``, and ``truths`` and ``detections`` whose labels index ``categories``."""

    ids: list[Any]
    categories: list[str]
    truths: list[BoxTruth]
    detections: list[BoxesFound]


def to_images(data: Mapping[str, Any], results: Sequence[Mapping[str, Any]]) -> Images:
    """Boxes of checked COCO ground truth and results as arrays for each image, in the order of the image ids."""
    ids = sorted(image["id"] for image in data["images"])
    categories = sorted(data["categories"], key=lambda category: category["id"])
    label = {category["id"]: k for k, category in enumerate(categories)}
    objects: dict[Any, list[Mapping[str, Any]]] = {i: [] for i in ids}
    found: dict[Any, list[Mapping[str, Any]]] = {i: [] for i in ids}
    for entries, by_image in ((data["annotations"], objects), (results, found)):
        for entry in entries:
            by_image[entry["image_id"]].append(entry)

    def boxes(entries: list[Mapping[str, Any]]) -> Floats:
        xywh = np.array([entry["bbox"] for entry in entries], float).reshape(-1, 4)
        return np.concatenate([xywh[:, :2], xywh[:, :2] + xywh[:, 2:]], axis=1)

    def labels(entries: list[Mapping[str, Any]]) -> Ints:
        return np.array([label[entry["category_id"]] for entry in entries], np.int64)

    truths, detections = [], []
    for i in ids:
        ignore = np.array([bool(entry.get("iscrowd", 0)) for entry in objects[i]], bool)
        area = np.array([entry.get("area", np.nan) for entry in objects[i]], float)
        truths.append(BoxTruth(boxes(objects[i]), labels(objects[i]), ignore, area))
        scores = np.array([entry["score"] for entry in found[i]], float)
        detections.append(BoxesFound(boxes(found[i]), scores, labels(found[i])))
    return Images(ids, [category["name"] for category in categories], truths, detections)


def number_rows(rows: Iterable[Any], width: int, name: str, key: str) -> Floats:
    """The rows as (n, width) float64; ValueError naming the first row that is not ``width`` numbers."""
    rows = list(rows)
    try:
        array = np.array(rows, float)
    except (TypeError, ValueError):
        array = np.zeros(0)
    if not rows:
        return np.zeros((0, width))
    if array.shape != (len(rows), width):
        at = next(i for i, row in enumerate(rows) if not _is_row(row, width))
        raise ValueError(f"{name}[{at}]: expected {key!r} to hold {width} numbers, got {str(rows[at])[:80]}")
    return array


def some(things: Iterable[Any]) -> str:
    """The first few of many, for a message."""
    names = [str(thing) for thing in things]
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def _is_row(row: Any, width: int) -> bool:
    try:
        return np.array(row, float).shape == (width,)
    except (TypeError, ValueError):
        return False


def _need_keys(entries: Any, keys: tuple[str, ...], name: str) -> None:
    if isinstance(entries, str | bytes | Mapping) or not isinstance(entries, Sequence):
        raise ValueError(f"{name}: expected a list, got {type(entries).__name__}")
    if set(map(type, entries)) <= {dict} and all(key in entry for key in keys for entry in entries):
        return  # nearly always, and much quicker
    for i, entry in enumerate(entries):
        if not isinstance(entry, Mapping):
            raise ValueError(f"{name}[{i}]: expected an object, got {str(entry)[:80]}")
        for key in keys:
            if key not in entry:
                raise ValueError(f"{name}[{i}]: missing key {key!r}")


def _need_ids(entries: Sequence[Mapping[str, Any]], key: str, name: str) -> None:
    if {type(entry[key]) for entry in entries} == {int}:
        return  # nearly always, and much quicker
    kinds = {str if isinstance(entry[key], str) else int for entry in entries}
    for i, entry in enumerate(entries):
        value = entry[key]
        whole = isinstance(value, str | Integral) or (isinstance(value, float) and value.is_integer())
        if not whole or isinstance(value, bool) or len(kinds) > 1:
            raise ValueError(f"{name}[{i}]: expected integers (or texts) as {key!r} throughout, got {value!r:.80}")


def _need_unique(values: list[Any], name: str, key: str = "id") -> None:
    if len(set(values)) < len(values):
        seen: set[Any] = set()
        double = [value for value in values if value in seen or seen.add(value)]  # type: ignore[func-returns-value]
        raise ValueError(f"{name}: expected every {key} once, got {key} {some(double)} again")


def _need_known(entries: Sequence[Mapping[str, Any]], data: Mapping[str, Any], name: str) -> None:
    for key, kind in (("image_id", "images"), ("category_id", "categories")):
        known = {thing["id"] for thing in data[kind]}
        given = [entry[key] if type(entry[key]) is int else _hashable(entry[key]) for entry in entries]
        if known.issuperset(given):
            continue
        if unknown := [i for i, value in enumerate(given) if value not in known]:
            values = some(sorted({given[i] for i in unknown}, key=str))
            raise ValueError(
                f"{name}[{unknown[0]}]: {key} {entries[unknown[0]][key]!r} is none of the {len(known)} ids in {kind!r} "
                f"of the ground truth ({len(unknown)} entries with unknown {key}: {values})"
            )


def _hashable(value: Any) -> Hashable:
    return value if isinstance(value, Hashable) else str(value)


def _need_sizes(boxes: Floats, where: list[str], name: str) -> None:
    bad = np.flatnonzero(~np.isfinite(boxes).all(1) | (boxes[:, 2:] < 0).any(1))
    if len(bad):
        raise ValueError(
            f"{name}: {where[bad[0]]}: expected a box [x, y, width, height] of finite numbers, width and height "
            f"not negative, got {boxes[bad[0]].tolist()} ({len(bad)} such boxes)"
        )
