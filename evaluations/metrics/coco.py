"""COCO's detection metrics (Lin et al. 2014, https://cocodataset.org/#detection-eval) for boxes, masks and keypoints.

The numbers equal pycocotools' to the last digits. It runs in NumPy; ``matching`` holds the algorithm.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from .coco_format import check_ground_truth, check_results, number_rows, read_json, some
from .coco_masks import read_runs
from .inputs import BoxesFound, BoxTruth, flatten
from .matching import Bools, Floats, Found, Overlap, Truth, match, precision_recall
from .overlaps import Runs, box_overlap, keypoint_overlap, mask_overlap

IouType = Literal["bbox", "segm", "keypoints"]
IOU_THRESHOLDS: Floats = np.linspace(0.5, 0.95, 10)
RECALL_THRESHOLDS: Floats = np.linspace(0.0, 1.0, 101)
AREA_RANGES = {"all": (0.0, 1e10), "s": (0.0, 32.0**2), "m": (32.0**2, 96.0**2), "l": (96.0**2, 1e10)}
"""Object areas in square pixels, both ends included (COCO's own definition; "all" has its upper bound of 1e10)."""
PERSON_SIGMAS = np.array(
    [0.026, 0.025, 0.025, 0.035, 0.035, 0.079, 0.079, 0.072, 0.072]
    + [0.062, 0.062, 0.107, 0.107, 0.087, 0.087, 0.089, 0.089]
)
"""COCO's tolerance of each of the 17 keypoints of a person, relative to the square root of the person's area."""


@dataclass(frozen=True)
class CocoMetrics:
    """COCO's numbers, in 0..1; -1 where there is no object to find, as in pycocotools.

    ``metrics["AP"]`` gives one of: AP, AP50, AP75, APs, APm, APl, AR1, AR10, AR100, ARs, ARm, ARl (boxes and masks;
    the digits after AR are the limits ``max_detections``) or AP, AP50, AP75, APm, APl, AR, AR50, AR75, ARm, ARl
    (keypoints).

    - ``per_category``: {name: AP}; -1 for a category without objects.
    - ``precision``: (T, R, K, A) at IoU threshold, recall, category and area range, for the largest limit;
      ``scores``: the detection score there, 0 where the recall is not reached.
    - ``recall``: (T, K, A, M), the highest recall for each limit of detections per image and category.
    - ``images``, ``objects``, ``detections``: how many took part; ``objects`` are those that count (no crowds).
    """

    iou_type: IouType
    categories: tuple[str, ...]
    category_ids: tuple[int, ...]
    iou_thresholds: Floats
    recall_thresholds: Floats
    area_ranges: tuple[str, ...]
    max_detections: tuple[int, ...]
    precision: Floats
    scores: Floats
    recall: Floats
    images: int
    objects: int
    detections: int

    def __getitem__(self, name: str) -> float:
        values = self.to_dict()
        if name not in values:
            raise KeyError(f"no metric {name!r}; there are {', '.join(values)}")
        return values[name]

    @property
    def AP(self) -> float:
        """Mean over the IoU thresholds, categories and recalls of the precision."""
        return self._average_precision()

    @property
    def AP50(self) -> float:
        """AP at IoU 0.5 alone; -1 if that is not among the thresholds."""
        return self._average_precision(iou=0.5)

    @property
    def AP75(self) -> float:
        """AP at IoU 0.75 alone; -1 if that is not among the thresholds."""
        return self._average_precision(iou=0.75)

    @property
    def per_category(self) -> dict[str, float]:
        """AP of each category."""
        precision = self.precision[:, :, :, 0]
        return {name: _mean(precision[:, :, k]) for k, name in enumerate(self.categories)}

    def to_dict(self) -> dict[str, float]:
        """All numbers by name, in COCO's order."""
        values = {"AP": self.AP, "AP50": self.AP50, "AP75": self.AP75}
        sizes = self.area_ranges[1:]
        values |= {f"AP{size}": self._average_precision(area=size) for size in sizes}
        if self.iou_type == "keypoints":
            values |= {"AR": self._average_recall(), "AR50": self._average_recall(iou=0.5)}
            values["AR75"] = self._average_recall(iou=0.75)
        else:
            values |= {f"AR{limit}": self._average_recall(m=m) for m, limit in enumerate(self.max_detections)}
        return values | {f"AR{size}": self._average_recall(area=size) for size in sizes}

    def __str__(self) -> str:
        kind = {"bbox": "boxes", "segm": "masks", "keypoints": "keypoints"}[self.iou_type]
        low, high = self.iou_thresholds[0], self.iou_thresholds[-1]
        head = f"COCO {kind}: {self.images} images, {self.objects} objects, {self.detections} detections"
        limits = "/".join(map(str, self.max_detections))
        cells = [f"{name:>5} {'-' if value < 0 else format(value, '.4f')}" for name, value in self.to_dict().items()]
        half = (len(cells) + 1) // 2
        rows = ["  ".join(f"{cell:12}" for cell in part).rstrip() for part in (cells[:half], cells[half:])]
        return "\n".join([head, f"IoU {low:.2f}..{high:.2f}, at most {limits} detections", *rows])

    def _average_precision(self, area: str = "all", iou: float | None = None) -> float:
        return _mean(self.precision[self._thresholds(iou), :, :, self.area_ranges.index(area)])

    def _average_recall(self, area: str = "all", iou: float | None = None, m: int = -1) -> float:
        return _mean(self.recall[self._thresholds(iou), :, self.area_ranges.index(area), m])

    def _thresholds(self, iou: float | None) -> Bools:
        return np.ones(len(self.iou_thresholds), bool) if iou is None else np.isclose(self.iou_thresholds, iou)


def coco_metrics(
    ground_truth: Mapping[str, Any] | str | os.PathLike[str],
    detections: Sequence[Mapping[str, Any]] | str | os.PathLike[str],
    *,
    iou_type: IouType = "bbox",
    max_detections: Sequence[int] | None = None,
    image_ids: Iterable[int | str] | None = None,
    iou_thresholds: Sequence[float] | Floats = IOU_THRESHOLDS,
    keypoint_sigmas: Sequence[float] | Floats | None = None,
) -> CocoMetrics:
    """COCO's metrics of a results list against annotations, both as COCO's JSON or a path to it.

    - ``ground_truth``: ``images``, ``annotations`` and ``categories``. Ids need not be contiguous, images without
      objects count. A missing ``iscrowd`` is 0 and a missing ``area`` that of the box (of the mask for ``segm``).
    - ``detections``: dicts with ``image_id``, ``category_id``, ``score`` and ``bbox`` [x, y, width, height] in pixels,
      ``segmentation`` (RLE or polygons) or ``keypoints`` [x, y, anything] * k. A detection's area is that of what is
      compared: the box, the mask, or the extent of the keypoints.
    - ``max_detections``: limits per image and category, by default 1, 10, 100 (keypoints 20). AP uses the largest.
      (pycocotools' own summary always looks for 100 and prints -1 if it is not there.)
    - ``image_ids``: score only these images; by default all.
    - ``keypoint_sigmas``: each keypoint's tolerance; by default those of COCO's 17 of a person, or where the categories
      name another number of ``keypoints`` the mean of those for each.

    Raises ValueError, naming the file or argument and the entry, for missing keys, duplicate ids, annotations or
    detections of unknown images or categories, negative sizes and values that are not finite.

    >>> truth = {"images": [{"id": 7}], "categories": [{"id": 3, "name": "boat"}],
    ...          "annotations": [{"id": 1, "image_id": 7, "category_id": 3, "bbox": [10, 10, 40, 40]}]}
    >>> found = [{"image_id": 7, "category_id": 3, "bbox": [10, 10, 40, 30], "score": 0.9}]
    >>> metrics = coco_metrics(truth, found)
    >>> round(metrics.AP, 3), round(metrics.AP75, 3), metrics["APs"]
    (0.6, 1.0, -1.0)
    """
    if iou_type not in ("bbox", "segm", "keypoints"):
        raise ValueError(f"iou_type: expected 'bbox', 'segm' or 'keypoints', got {iou_type!r}")
    thresholds = np.asarray(iou_thresholds, float)
    truth_name, data = read_json(ground_truth, "ground truth")
    found_name, results = read_json(detections, "detections")
    check_ground_truth(data, truth_name)
    check_results(results, data, found_name)
    if image_ids is None:
        images = sorted(image["id"] for image in data["images"])
    else:
        images = sorted(set(image_ids))
        if unknown := set(images) - {image["id"] for image in data["images"]}:
            raise ValueError(f"image_ids: {truth_name} has no image {some(unknown)}")
    image_index = {image: i for i, image in enumerate(images)}
    categories = sorted(data["categories"], key=lambda category: category["id"])
    category_index = {category["id"]: k for k, category in enumerate(categories)}
    annotations = [entry for entry in data["annotations"] if entry["image_id"] in image_index]
    results = [entry for entry in results if entry["image_id"] in image_index]

    compared = compare(
        iou_type, data, annotations, results, thresholds.min(), keypoint_sigmas, (truth_name, found_name)
    )
    return _score(
        Truth(
            image=np.array([image_index[entry["image_id"]] for entry in annotations], np.int64),
            category=np.array([category_index[entry["category_id"]] for entry in annotations], np.int64),
            area=compared.truth_area,
            ignore=compared.ignore,
            crowd=compared.crowd,
        ),
        Found(
            image=np.array([image_index[entry["image_id"]] for entry in results], np.int64),
            category=np.array([category_index[entry["category_id"]] for entry in results], np.int64),
            area=compared.found_area,
            score=np.array([entry["score"] for entry in results], float),
        ),
        compared.overlap,
        iou_type=iou_type,
        categories=tuple((category["name"], category["id"]) for category in categories),
        images=len(images),
        max_detections=max_detections,
        iou_thresholds=thresholds,
    )


class Compared(NamedTuple):
    """How annotations and results of one kind overlap, and the facts of both that the metric needs."""

    overlap: Overlap
    truth_area: Floats
    found_area: Floats
    crowd: Bools
    ignore: Bools


def compare(
    iou_type: IouType,
    data: Mapping[str, Any],
    annotations: Sequence[Mapping[str, Any]],
    results: Sequence[Mapping[str, Any]],
    least: float = 0.5,
    keypoint_sigmas: Sequence[float] | Floats | None = None,
    names: tuple[str, str] = ("ground truth", "detections"),
) -> Compared:
    """Compare by boxes, masks or keypoints; overlaps of masks below ``least`` may be given as 0.

    ``data``: the checked ground truth that ``annotations`` are of. Raises ValueError naming the entry that lacks what
    ``iou_type`` needs.
    """
    truth_name, found_name = names
    crowd = np.array([bool(entry.get("iscrowd", 0)) for entry in annotations], bool)
    ignore = crowd
    if iou_type == "bbox":
        boxes = number_rows((_get(e, "bbox", truth_name) for e in annotations), 4, truth_name, "bbox")
        found_boxes = number_rows((_get(e, "bbox", found_name) for e in results), 4, found_name, "bbox")
        overlap = box_overlap(found_boxes, boxes, crowd)
        truth_area, found_area = boxes[:, 2:].prod(1), found_boxes[:, 2:].prod(1)
    elif iou_type == "segm":
        size = {image["id"]: (_side(image, "height"), _side(image, "width")) for image in data["images"]}
        runs = _runs(annotations, size, truth_name)
        found_runs = _runs(results, size, found_name)
        overlap = mask_overlap(found_runs, runs, crowd, least=least)
        truth_area, found_area = runs.area, found_runs.area
    else:
        sigmas = np.asarray(_default_sigmas(data) if keypoint_sigmas is None else keypoint_sigmas, float)
        width = 3 * len(sigmas)
        points = number_rows((_get(e, "keypoints", truth_name) for e in annotations), width, truth_name, "keypoints")
        found_points = number_rows((_get(e, "keypoints", found_name) for e in results), width, found_name, "keypoints")
        points, found_points = points.reshape(-1, width // 3, 3), found_points.reshape(-1, width // 3, 3)
        boxes = number_rows((_get(e, "bbox", truth_name) for e in annotations), 4, truth_name, "bbox")
        truth_area = _areas(annotations, boxes[:, 2:].prod(1))
        overlap = keypoint_overlap(found_points, points, boxes, truth_area, sigmas)
        found_area = np.ptp(found_points[:, :, :2], axis=1).prod(1)
        ignore = crowd | (np.array([_visible(entry) for entry in annotations], int) == 0)
    return Compared(overlap, _areas(annotations, truth_area), found_area, crowd, ignore)


def _default_sigmas(data: Mapping[str, Any]) -> Floats:
    named = next((len(c["keypoints"]) for c in data["categories"] if c.get("keypoints")), len(PERSON_SIGMAS))
    return PERSON_SIGMAS if named == len(PERSON_SIGMAS) else np.full(named, PERSON_SIGMAS.mean())


def box_metrics(
    truths: Iterable[BoxTruth],
    detections: Iterable[BoxesFound],
    categories: Sequence[str],
    *,
    max_detections: Sequence[int] | None = None,
    iou_thresholds: Sequence[float] | Floats = IOU_THRESHOLDS,
) -> CocoMetrics:
    """COCO's box metrics of arrays, image by image, for data sets that are not in COCO's format.

    ``truths`` and ``detections`` run over the same images in the same order; see `BoxTruth` and `BoxesFound` for what
    an image gives (a data set's samples and a detector's results fit). Ignored objects are treated as COCO's crowds.
    Labels index ``categories``. Raises ValueError naming the image for shapes and labels that do not fit.

    >>> truth = [BoxTruth(boxes=[[0, 0, 10, 10]], labels=[0])]
    >>> found = [BoxesFound(boxes=[[0, 0, 10, 8], [20, 20, 30, 30]], scores=[0.9, 0.3], labels=[0, 0])]
    >>> round(box_metrics(truth, found, ["boat"]).AP50, 3)
    1.0
    """
    truth, found = flatten(truths, detections, len(categories))
    truth_boxes, found_boxes = _xywh(truth.boxes), _xywh(found.boxes)
    return _score(
        Truth(truth.image, truth.label, truth.area, ignore=truth.ignore, crowd=truth.ignore),
        Found(found.image, found.label, found_boxes[:, 2:].prod(1), found.score),
        box_overlap(found_boxes, truth_boxes, truth.ignore),
        iou_type="bbox",
        categories=tuple((name, k) for k, name in enumerate(categories)),
        images=truth.images,
        max_detections=max_detections,
        iou_thresholds=np.asarray(iou_thresholds, float),
    )


def _score(
    truth: Truth,
    found: Found,
    overlap: Overlap,
    *,
    iou_type: IouType,
    categories: tuple[tuple[str, int], ...],
    images: int,
    max_detections: Sequence[int] | None,
    iou_thresholds: Floats,
) -> CocoMetrics:
    limits = _limits(max_detections, iou_type)
    areas = {name: bounds for name, bounds in AREA_RANGES.items() if name != "s" or iou_type != "keypoints"}
    matches = match(
        truth,
        found,
        overlap,
        categories=len(categories),
        thresholds=iou_thresholds,
        areas=np.array(list(areas.values())),
        limit=limits[-1],
    )
    precision, scores, recall = precision_recall(matches, recall_thresholds=RECALL_THRESHOLDS, max_detections=limits)
    return CocoMetrics(
        iou_type=iou_type,
        categories=tuple(name for name, _ in categories),
        category_ids=tuple(number for _, number in categories),
        iou_thresholds=iou_thresholds,
        recall_thresholds=RECALL_THRESHOLDS,
        area_ranges=tuple(areas),
        max_detections=limits,
        precision=precision,
        scores=scores,
        recall=recall,
        images=images,
        objects=int(np.count_nonzero(~truth.ignore)),
        detections=len(found.score),
    )


def _limits(max_detections: Sequence[int] | None, iou_type: IouType) -> tuple[int, ...]:
    if max_detections is None:
        return (20,) if iou_type == "keypoints" else (1, 10, 100)
    limits = tuple(sorted(set(max_detections)))
    if not limits or limits[0] < 1:
        raise ValueError(f"max_detections: expected limits of at least 1, got {max_detections}")
    return limits


def _get(entry: Mapping[str, Any], key: str, name: str) -> Any:
    if key not in entry:
        which = f"annotation {entry['id']}" if "id" in entry else "a detection"
        raise ValueError(f"{name}: {which} of image {entry['image_id']}: missing key {key!r}")
    return entry[key]


def _side(image: Mapping[str, Any], key: str) -> int:
    if key not in image:
        raise ValueError(f"image {image['id']}: missing key {key!r}, which masks need")
    return int(image[key])


def _runs(entries: Sequence[Mapping[str, Any]], sizes: Mapping[Any, tuple[int, int]], name: str) -> Runs:
    return read_runs(
        [_get(entry, "segmentation", name) for entry in entries],
        [sizes[entry["image_id"]] for entry in entries],
        [f"{name}: image {entry['image_id']}" for entry in entries],
    )


def _areas(annotations: Sequence[Mapping[str, Any]], default: Floats) -> Floats:
    given = [entry.get("area") for entry in annotations]
    return np.array([own if area is None else area for area, own in zip(given, default)], float)


def _visible(annotation: Mapping[str, Any]) -> int:
    """How many keypoints the annotation says are labelled."""
    counted = sum(v > 0 for v in annotation["keypoints"][2::3])
    return int(annotation.get("num_keypoints", counted))


def _xywh(boxes: Floats) -> Floats:
    return np.concatenate([boxes[:, :2], boxes[:, 2:] - boxes[:, :2]], axis=1)


def _mean(values: Floats) -> float:
    defined = values[values > -1]
    return float(defined.mean()) if defined.size else -1.0
