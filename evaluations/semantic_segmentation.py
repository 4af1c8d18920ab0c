"""Mean IoU and accuracies of a segmentation model: ``python -m chainsight.evaluations.semantic_segmentation --help``.

Label maps are compared at the size of the image. torchvision's published mIoU is measured at the size the network saw
(short side 520, labels resized to it by nearest neighbour, ``references/segmentation``): slightly other figures.
ChainerCV's are measured as here: ``--data CITYSCAPES@val``, ``ADE@val``, ``CAMVID@test``, ``VOC2012@semantic-val``.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from .command import Report, add_data, dataset_report, finish, open_data, parser
from .metrics import SemanticMetrics
from .on_dataset import label_map
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

DATA = "COCO val2017 (VOC classes)"
PUBLISHED = {"mIoU": "mIoU", "pixel accuracy": "pixel_accuracy", "class accuracy": "class_accuracy"}


def evaluate_semantic(
    model: Any,
    dataset: Any,
    *,
    ignore_index: int | None = 255,
    limit: int | None = None,
    weights: str | os.PathLike[str] | None = None,
    resume: str | os.PathLike[str] | None = None,
    progress: bool | None = None,
) -> Evaluation:
    """Predict every image of a data set and count its pixels by true and predicted class.

    - ``model``: ``predict(path)`` gives an object whose ``labels`` are (height, width), at the size of the image.
    - ``dataset``: ``categories`` equal to the model's, ``annotations(i).path`` and the map as `label_map` finds it.

    Raises ValueError if the categories differ. The other arguments and errors are those of `runner.run`.
    """
    check_options(limit)
    names = category_names(model)
    # torchvision writes VOC's first class as "__background__".
    if [name.strip("_") for name in dataset.categories] != [name.strip("_") for name in names]:
        raise ValueError(
            f"expected a data set of the model's {len(names)} classes {list(names)[:5]}..., in that order; "
            f"{dataset.name} has {len(dataset.categories)}: {list(dataset.categories)[:5]}..."
        )

    def predict(key: Key) -> list[list[int]]:
        known = dataset.annotations(int(key))
        image = known.path or dataset[int(key)].image  # drawn scenes have no file
        one = SemanticMetrics(names, ignore_index)
        predicted = np.asarray(model.predict(image).labels)
        one.update(predicted, label_map(dataset, int(key)), where=str(known.path or known.image_id))
        rows, columns = np.nonzero(one.confusion)
        return [[int(r), int(c), int(one.confusion[r, c])] for r, c in zip(rows, columns)]

    data = published_data(model, dataset.name, DATA)
    described = describe_weights(model, weights)
    settings = {"data": dataset.name, "ignore_index": ignore_index, "limit": limit}
    identity = settings | {"source": str(dataset.source), "model": model_name(model), "weights": described}
    result = run(list(range(len(dataset)))[:limit], predict, settings=identity, resume=resume, progress=progress)
    metrics = SemanticMetrics(names, ignore_index)
    for record in result.records.values():
        metrics.add_counts(record)
    return Evaluation(
        task="semantic segmentation",
        metrics=metrics,
        model=model_name(model),
        weights=described,
        settings=settings,
        image_ids=[dataset.annotations(int(key)).image_id for key in result.records],
        images_per_second=result.images_per_second,
        published=published(model, PUBLISHED, data),
        published_on=data,
        predictions=list(result.records.values()),
        indices=[int(key) for key in result.records],
        failures={dataset.annotations(int(key)).image_id: reason for key, reason in result.failures.items()},
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the figures beside the published ones; the exit code is 1 if some image could not be scored."""
    options = parser("semantic_segmentation", "Mean IoU, pixel and class accuracy, beside the published figures.")
    add_data(options)

    def evaluate(model: Any, given: argparse.Namespace) -> tuple[Evaluation, Report]:
        data = open_data(given)
        evaluation = evaluate_semantic(model, data, limit=given.limit, weights=given.weights, resume=given.resume)
        return evaluation, dataset_report(data)

    return finish(evaluate, options.parse_args(arguments))


if __name__ == "__main__":
    sys.exit(main())
