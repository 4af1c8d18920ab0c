"""Top-1 and top-5 accuracy of a classification model: ``python -m chainsight.evaluations.imagenet --help``."""

from __future__ import annotations

import argparse
import copy
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from .command import Report, add_data, dataset_report, finish, open_data, parser
from .metrics import TopKAccuracy
from .runner import Evaluation, Key, category_names, check_options, describe_weights, model_name, published, run

DATA = "ImageNet-1K"
PUBLISHED = {
    "center": {"acc@1": "top1", "acc@5": "top5"},
    "10": {"acc@1 (10 crops)": "top1", "acc@5 (10 crops)": "top5"},
}


def evaluate_classifier(
    model: Any,
    dataset: Any,
    *,
    crop: Literal["center", "10"] = "center",
    limit: int | None = None,
    weights: str | os.PathLike[str] | None = None,
    resume: str | os.PathLike[str] | None = None,
    progress: bool | None = None,
) -> Evaluation:
    """Predict every image of a data set and count how often its class is the best and among the five best.

    - ``model``: ``predict(path)`` gives an object whose ``probabilities`` are (classes,).
    - ``dataset``: ``annotations(i)`` with ``path`` and ``label``. Its classes are the model's by name; if no name
      agrees, as with ImageNet's folders ``n01440764``..., by order, and then both must have equally many.

    - ``crop``: the square in the middle of each image, or the mean over "10" (see `vision.model.CropPreset`).

    Raises ValueError if the classes do not fit. The other arguments and errors are those of `runner.run`.
    """
    check_options(limit)
    if crop == "10":
        model = ten_crops(model)
    labels = match_classes(category_names(model), dataset.categories, dataset.name)

    def predict(key: Key) -> list[float]:
        """True class; its rank, how many of the others come before it; the best class and its probability."""
        one = dataset.annotations(int(key))
        scores = np.asarray(model.predict(one.path).probabilities, float)
        best = np.argsort(-scores, kind="stable")
        rank = int(np.flatnonzero(best == labels[one.label])[0])
        return [labels[one.label], rank, int(best[0]), float(scores[best[0]])]

    described = describe_weights(model, weights)
    settings = {"data": dataset.name, "crop": crop, "limit": limit}
    identity = settings | {"source": str(dataset.source), "model": model_name(model), "weights": described}
    result = run(list(range(len(dataset)))[:limit], predict, settings=identity, resume=resume, progress=progress)
    metrics = TopKAccuracy((1, min(5, len(category_names(model)))))
    metrics.add_ranks([record[1] for record in result.records.values()])
    return Evaluation(
        task="classification",
        metrics=metrics,
        model=model_name(model),
        weights=described,
        settings=settings,
        image_ids=[dataset.annotations(int(key)).image_id for key in result.records],
        images_per_second=result.images_per_second,
        published=published(model, PUBLISHED[crop], DATA),
        published_on=DATA,
        predictions=list(result.records.values()),
        indices=[int(key) for key in result.records],
        failures={dataset.annotations(int(key)).image_id: reason for key, reason in result.failures.items()},
    )


def ten_crops(model: Any) -> Any:
    """The model with a preset of ten crops, the given one left as it is; ValueError for one without such a preset."""
    if not hasattr(getattr(model, "preset", None), "ten_crops"):
        raise ValueError(f"{model_name(model)}: expected a classifier with crops for crop='10'")
    other = copy.copy(model)
    other.preset = replace(model.preset, ten_crops=True)
    return other


def match_classes(names: Sequence[str], folders: Sequence[str], data: str) -> list[int]:
    """The model's class of each of the data's.

    >>> match_classes(["cat", "dog"], ["dog"], "pets"), match_classes(["cat", "dog"], ["n01", "n02"], "pets")
    ([1], [0, 1])
    """
    missing = [folder for folder in folders if folder not in names]
    if not missing:
        return [list(names).index(folder) for folder in folders]
    if len(missing) == len(folders) == len(names):
        return list(range(len(names)))
    raise ValueError(f"{data} has {len(missing)} classes that are none of the model's {len(names)}: {missing[:5]}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the figures beside the published ones; the exit code is 1 if some image could not be scored."""
    options = parser("imagenet", "Top-1 and top-5 accuracy on a folder of class folders, beside the published figures.")
    add_data(options)
    options.add_argument("--crop", choices=("center", "10"), default="center", help="one square of each image, or ten")

    def evaluate(model: Any, given: argparse.Namespace) -> tuple[Evaluation, Report]:
        data = open_data(given)
        evaluation = evaluate_classifier(
            model, data, crop=given.crop, limit=given.limit, weights=given.weights, resume=given.resume
        )
        return evaluation, dataset_report(data)

    return finish(evaluate, options.parse_args(arguments))


if __name__ == "__main__":
    sys.exit(main())
