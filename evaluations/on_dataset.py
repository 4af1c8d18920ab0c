"""Running a detector over a data set of any format."""

from __future__ import annotations

import os
from typing import Any, Literal

import numpy as np

from .metrics import BoxesFound, CocoMetrics, VocMetrics, box_metrics, voc_detection
from .metrics.voc import Method
from .on_coco import DATA, PUBLISHED, match_categories
from .runner import Evaluation, Key, category_names, check_options, describe_weights, model_name, published, run

VOC_DATA = "VOC2007 test"


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
        figures, data = {"mAP": "mAP"}, VOC_DATA
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
