"""Running a model over COCO annotations and scoring it: what the three COCO scripts share."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .metrics.coco import IouType, coco_metrics
from .metrics.coco_format import check_ground_truth, read_json
from .runner import (
    Evaluation,
    Key,
    category_names,
    check_options,
    describe_weights,
    first,
    model_name,
    published,
    published_data,
    run,
    settings_hash,
)

DATA = "COCO val2017"
TASKS: dict[IouType, str] = {
    "bbox": "object detection",
    "segm": "instance segmentation",
    "keypoints": "keypoint detection",
}
IOU_TYPES: dict[str, IouType] = {"instance segmentation": "segm", "keypoint detection": "keypoints"}  # by task
PUBLISHED: dict[IouType, dict[str, str]] = {
    "bbox": {"box AP": "AP", "box AP50": "AP50", "box AP75": "AP75"},
    "segm": {"mask AP": "AP", "mask AP50": "AP50", "mask AP75": "AP75"},
    "keypoints": {"keypoint AP": "AP", "keypoint AP50": "AP50", "keypoint AP75": "AP75"},
}


def evaluate_detector(
    model: Any,
    annotations: Mapping[str, Any] | str | os.PathLike[str],
    images: str | os.PathLike[str] | Callable[[Key], Any],
    *,
    iou_type: IouType = "bbox",
    name: str | None = None,
    score_threshold: float | None = None,
    max_detections: int | None = None,
    limit: int | None = None,
    weights: str | os.PathLike[str] | None = None,
    resume: str | os.PathLike[str] | None = None,
    progress: bool | None = None,
) -> Evaluation:
    """Predict every annotated image and score the detections with `coco_metrics`.

    - ``model``: has ``predict(path, score_threshold=...)``, which gives an object with ``labels``, ``image_size``
      (height, width) and ``to_coco(image_id)``; and ``categories`` (names), matched by name, so that ids may differ.
    - ``annotations``: COCO's JSON or a path to it; ``images``: the folder its ``file_name`` are in, or
      a function that gives the image of an id. ``name``: what to call the annotations; None: as the path.
    - ``score_threshold``: None for the model's published evaluation settings.
    - ``max_detections``: the largest limit per image and category; None for COCO's 100 (keypoints: 20).
    - ``limit``: only the first so many images, by id. ``weights``: the file the model was loaded from, for the record.
    - ``resume``, ``progress``: see `runner.run`.

    An image that cannot be read, or has another size than annotated, is reported and is in no figure. ValueError if the
    annotations are unsound, no category of the data is one of the model's, or every image fails.
    """
    check_options(limit, score_threshold)
    if max_detections is not None and max_detections < 1:
        raise ValueError(f"expected max_detections of at least 1, got {max_detections}")
    read_name, data = read_json(annotations, "annotations")
    name = name or read_name
    check_ground_truth(data, name)
    _check_complete(data, name, iou_type, files=not callable(images))
    if not callable(images) and not Path(images).is_dir():
        raise ValueError(f"images: there is no folder {images}")
    listed = {image["id"]: image for image in sorted(data["images"], key=lambda image: image["id"])[:limit]}
    if not listed:
        raise ValueError(f"{name}: there are no images to evaluate")
    ids, notes = match_categories(
        category_names(model), {category["name"]: category["id"] for category in data["categories"]}, name
    )

    def predict(key: Key) -> list[dict[str, Any]]:
        image = listed[key]
        source = images(key) if callable(images) else Path(images) / image["file_name"]
        if isinstance(source, Path) and not source.is_file():
            raise FileNotFoundError(f"{source}: listed in {name}, but there is no such file")
        found = model.predict(source, score_threshold=score_threshold)
        size = image.get("height", found.image_size[0]), image.get("width", found.image_size[1])
        if tuple(found.image_size) != size:
            place = source if isinstance(source, Path) else f"image {key}"
            raise ValueError(f"{place}: annotated as (height, width) {size}, but the image is {found.image_size}")
        entries = found.to_coco(key)
        labels = np.asarray(found.labels).tolist()
        return [entry | {"category_id": ids[k]} for k, entry in zip(labels, entries, strict=True) if k in ids]

    # ChainerCV's figures of some models are of "COCO minival2014", torchvision's of "COCO val2017".
    data_name = published_data(model, f"COCO {Path(name).stem.removeprefix('instances_')}", DATA)
    described = describe_weights(model, weights)
    settings = {
        "data": name,
        "data_sha256": settings_hash(data),
        "images": name if callable(images) else str(Path(images)),
        "iou_type": iou_type,
        "score_threshold": score_threshold,
        "limit": limit,
    }
    identity = settings | {"model": model_name(model), "weights": described["sha256"] or described["name"]}
    result = run(list(listed), predict, settings=identity, resume=resume, progress=progress)
    predictions = [entry for record in result.records.values() for entry in record]
    limits = None if max_detections is None else sorted({1, 10, max_detections})
    if iou_type == "keypoints" and max_detections is not None:
        limits = [max_detections]
    metrics = coco_metrics(data, predictions, iou_type=iou_type, max_detections=limits, image_ids=result.records)
    return Evaluation(
        task=TASKS[iou_type],
        metrics=metrics,
        model=model_name(model),
        weights=described,
        settings=settings | {"max_detections": list(metrics.max_detections)},
        image_ids=list(result.records),
        images_per_second=result.images_per_second,
        published=published(model, PUBLISHED[iou_type], data_name),
        published_on=data_name,
        failures=result.failures,
        notes=notes,
        predictions=predictions,
    )


def _check_complete(data: Mapping[str, Any], name: str, iou_type: IouType, files: bool) -> None:
    """Raise ValueError for what would be missed only after hours of predictions."""
    for i, image in enumerate(data["images"] if files else []):
        if not isinstance(image.get("file_name"), str) or not image["file_name"]:
            raise ValueError(f"{name}: images[{i}]: expected a text as 'file_name', got {image.get('file_name')!r:.80}")
    key = {"bbox": "bbox", "segm": "segmentation", "keypoints": "keypoints"}[iou_type]
    for i, entry in enumerate(data["annotations"]):
        if key not in entry:
            raise ValueError(f"{name}: annotations[{i}]: missing key {key!r}, which metrics of {TASKS[iou_type]} need")


def match_categories(names: Sequence[str], ids: Mapping[str, int], data: str) -> tuple[dict[int, int], list[str]]:
    """The data's category id for each of the model's labels, matched by name; and what a reader should know about it.

    ValueError if no name is in both.

    >>> match_categories(["cat", "dog"], {"Dog": 18}, "pets.json")
    ({1: 18}, ['not scored: 1 categories of the model that pets.json lacks (cat)'])
    """
    by_name = {name.casefold(): number for name, number in reversed([*ids.items()])} | dict(ids)
    found = {label: by_name.get(name, by_name.get(name.casefold())) for label, name in enumerate(names)}
    matched = {label: number for label, number in found.items() if number is not None}
    if not matched:
        raise ValueError(
            f"no category of the model is one of {data}: the model has {first(names)}; the data {first(ids)}"
        )
    unscored = [name for label, name in enumerate(names) if label not in matched]
    unknown = [name for name, number in ids.items() if number not in matched.values()]
    notes = []
    if unscored:
        notes.append(f"not scored: {len(unscored)} categories of the model that {data} lacks ({first(unscored)})")
    if unknown:
        notes.append(f"never found: {len(unknown)} categories of {data} that the model lacks ({first(unknown)})")
    return matched, notes
