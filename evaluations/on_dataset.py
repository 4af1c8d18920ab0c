"""Running a detector over a data set of any format."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from ..vision.masks import decode_rle, encode_rle
from .metrics import (
    BoxesFound,
    CocoMetrics,
    MasksFound,
    MaskTruth,
    VocMetrics,
    box_metrics,
    voc_detection,
    voc_instance,
)
from .metrics.coco import IouType
from .metrics.voc import Method
from .on_coco import DATA, PUBLISHED, evaluate_detector, match_categories
from .runner import (
    Evaluation,
    Key,
    category_names,
    check_options,
    describe_weights,
    model_name,
    published,
    published_data,
    run,
)

VOC_DATA = "VOC2007 test"
VOC_PUBLISHED = {"AP50": "mAP", "mAP": "mAP"}
SBD_DATA = "SBD val"


def evaluate_boxes(
    model: Any,
    dataset: Any,
    *,
    metric: Literal["coco", "voc"] = "coco",
    score_threshold: float | None = None,
    method: Method = "area",
    limit: int | None = None,
    weights: str | os.PathLike[str] | None = None,
    resume: str | os.PathLike[str] | None = None,
    progress: bool | None = None,
) -> Evaluation:
    """Predict every image of a data set and score the boxes with COCO's or Pascal VOC's metric.

    ``dataset``: has ``categories``, ``name``, a length and ``annotations(i)`` with ``path``, ``image_id``, ``boxes``,
    ``labels``, ``ignore`` and ``areas`` (what `chainsight.datasets` opens). ``method`` is VOC's. The other arguments
    and errors are those of `on_coco.evaluate_detector`.
    """
    check_options(limit, score_threshold)
    truths = {i: dataset.annotations(i) for i in range(len(dataset))[:limit]}
    if not truths:
        raise ValueError(f"{dataset.name}: there are no images to evaluate")
    labels, notes = match_categories(
        category_names(model), {name: k for k, name in enumerate(dataset.categories)}, dataset.name
    )

    def predict(key: Key) -> dict[str, Any]:
        source = truths[int(key)].path or dataset[int(key)].image  # drawn scenes have no file
        found = model.predict(source, score_threshold=score_threshold)
        kept = [j for j, label in enumerate(np.asarray(found.labels).tolist()) if label in labels]
        return {
            "boxes": np.asarray(found.boxes, float)[kept].tolist(),
            "scores": np.asarray(found.scores, float)[kept].tolist(),
            "labels": [labels[int(found.labels[j])] for j in kept],
        }

    described = describe_weights(model, weights)
    settings = {"data": dataset.name, "score_threshold": score_threshold, "limit": limit}
    identity = settings | {
        "source": dataset.source,
        "images": len(dataset),
        "model": model_name(model),
        "weights": described["sha256"] or described["name"],
    }
    result = run(list(truths), predict, settings=identity, resume=resume, progress=progress)
    scored = [truths[int(key)] for key in result.records]
    found = [BoxesFound(**record) for record in result.records.values()]
    metrics: CocoMetrics | VocMetrics
    if metric == "coco":
        metrics = box_metrics(scored, found, dataset.categories)
        figures, data = PUBLISHED["bbox"], DATA
    else:
        # The data sets of the package already have continuous coordinates, the last pixel inside.
        metrics = voc_detection(scored, found, dataset.categories, method=method)
        figures, data = VOC_PUBLISHED, published_data(model, dataset.name, VOC_DATA)
        settings |= {"method": method}
    return Evaluation(
        task="object detection",
        metrics=metrics,
        model=model_name(model),
        weights=described,
        settings=settings | {"metric": metric},
        image_ids=[truth.image_id for truth in scored],
        images_per_second=result.images_per_second,
        published=published(model, figures, data),
        published_on=data,
        failures={truths[int(key)].image_id: reason for key, reason in result.failures.items()},
        notes=notes,
        predictions=found,
        indices=[int(key) for key in result.records],
    )


def evaluate_instances(
    model: Any, dataset: Any, *, iou_type: IouType, limit: int | None = None, **options: Any
) -> Evaluation:
    """Predict every image of a data set and score its masks ("segm") or keypoints ("keypoints") with COCO's metric.

    ``dataset``: as for `evaluate_boxes`; its samples have ``masks``, its annotations ``keypoints``. ``options`` and
    errors are those of `on_coco.evaluate_detector`.
    """
    check_options(limit)
    indices = list(range(len(dataset)))[:limit]

    def image(key: Key) -> Any:
        return dataset.annotations(int(key)).path or dataset[int(key)].image  # drawn scenes have no file

    truth = coco_truth(dataset, indices, iou_type)
    found = evaluate_detector(model, truth, image, iou_type=iou_type, name=dataset.name, **options)
    scored = [int(key) for key in found.image_ids]
    ids = {i: dataset.annotations(i).image_id for i in indices}
    return replace(
        found,
        image_ids=[ids[i] for i in scored],
        indices=scored,
        failures={ids[int(key)]: reason for key, reason in found.failures.items()},
        settings=found.settings | {"limit": limit},
    )


def evaluate_voc_masks(
    model: Any,
    dataset: Any,
    *,
    iou_threshold: float = 0.5,
    method: Method = "area",
    score_threshold: float | None = None,
    limit: int | None = None,
    weights: str | os.PathLike[str] | None = None,
    resume: str | os.PathLike[str] | None = None,
    progress: bool | None = None,
) -> Evaluation:
    """Predict every image of a data set with instance masks and score them with Pascal VOC's metric, as SBD does.

    Masks are kept as run lengths, so that a run can be resumed. The arguments and errors are those of `evaluate_boxes`.
    """
    check_options(limit, score_threshold)
    indices = list(range(len(dataset)))[:limit]
    if not indices:
        raise ValueError(f"{dataset.name}: there are no images to evaluate")
    labels, notes = match_categories(
        category_names(model), {name: k for k, name in enumerate(dataset.categories)}, dataset.name
    )

    def predict(key: Key) -> list[dict[str, Any]]:
        source = dataset.annotations(int(key)).path or dataset[int(key)].image  # drawn scenes have no file
        found = model.predict(source, score_threshold=score_threshold)
        given = np.asarray(found.labels).tolist()
        entries = found.to_coco(int(key))
        return [
            entry | {"image_id": int(key), "category_id": labels[k]}
            for k, entry in zip(given, entries, strict=True)
            if k in labels
        ]

    described = describe_weights(model, weights)
    settings = {"data": dataset.name, "score_threshold": score_threshold, "limit": limit}
    identity = settings | {
        "source": dataset.source,
        "images": len(dataset),
        "model": model_name(model),
        "weights": described["sha256"] or described["name"],
        "masks": "voc",
    }
    result = run(indices, predict, settings=identity, resume=resume, progress=progress)

    def truths() -> Iterator[MaskTruth]:
        for key in result.records:
            sample = dataset[int(key)]
            yield MaskTruth(sample.masks, sample.labels, sample.ignore)

    def detections() -> Iterator[MasksFound]:
        for record in result.records.values():
            masks = [decode_rle(found["segmentation"]) for found in record]
            yield MasksFound(masks, [found["score"] for found in record], [found["category_id"] for found in record])

    metrics = voc_instance(truths(), detections(), dataset.categories, iou_threshold=iou_threshold, method=method)
    data = published_data(model, dataset.name, SBD_DATA)
    ids = {key: dataset.annotations(int(key)).image_id for key in indices}
    return Evaluation(
        task="instance segmentation",
        metrics=metrics,
        model=model_name(model),
        weights=described,
        settings=settings | {"method": method, "iou_threshold": iou_threshold, "iou_type": "segm"},
        image_ids=[ids[int(key)] for key in result.records],
        images_per_second=result.images_per_second,
        published=published(model, {f"mask AP{round(100 * iou_threshold)}": "mAP"}, data),
        published_on=data,
        failures={ids[int(key)]: reason for key, reason in result.failures.items()},
        notes=notes,
        predictions=[entry for record in result.records.values() for entry in record],
        indices=[int(key) for key in result.records],
    )


def coco_truth(dataset: Any, indices: Sequence[int], iou_type: IouType) -> dict[str, Any]:
    """The annotations of some images as COCO's JSON has them; an image's id is its index, a category's its label."""
    points = {"keypoints": list(dataset.keypoint_names)} if dataset.keypoint_names else {}
    categories = [{"id": k, "name": name, **points} for k, name in enumerate(dataset.categories)]
    images: list[dict[str, Any]] = []
    objects: list[dict[str, Any]] = []
    for i in indices:
        known = dataset.annotations(i)
        masks = dataset[i].masks if iou_type == "segm" else None
        images.append({"id": i, "file_name": str(known.path)})
        if known.size is not None:
            images[-1] |= {"height": int(known.size[0]), "width": int(known.size[1])}
        for k, (x0, y0, x1, y1) in enumerate(np.asarray(known.boxes, float).tolist()):
            entry: dict[str, Any] = {
                "id": len(objects) + 1,
                "image_id": i,
                "category_id": int(known.labels[k]),
                "bbox": [x0, y0, x1 - x0, y1 - y0],
                "iscrowd": int(known.ignore[k]),
            }
            if known.areas is not None:
                entry["area"] = float(known.areas[k])
            if masks is not None:
                entry["segmentation"] = encode_rle(masks[k])
            if known.keypoints is not None:
                entry["keypoints"] = np.asarray(known.keypoints[k], float).ravel().tolist()
            objects.append(entry)
    return {"images": images, "annotations": objects, "categories": categories}


def label_map(dataset: Any, index: int) -> Any:
    """The label map (height, width) of an image, without reading the image where the data set can.

    Raises ValueError for an image that has none.
    """
    found = dataset.label_map(index) if hasattr(dataset, "label_map") else dataset[index].semantic
    if found is None:
        raise ValueError(f"{dataset.name}: image {index} has no label map")
    return found
