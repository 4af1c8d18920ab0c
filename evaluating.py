"""Scoring any model on any data set of its task."""

from __future__ import annotations

import os
from typing import Any

from .datasets import Dataset
from .datasets import open as open_dataset
from .datasets.dataset import INSTANCE, KEYPOINTS
from .evaluations.metrics.coco import IouType
from .evaluations.runner import Evaluation
from .vision.detection.keypoint_rcnn import KeypointRCNN
from .vision.detection.mask_rcnn import MaskRCNN
from .vision.model import Classifier, Detector, Model


def evaluate(
    model: Model[Any],
    data: Dataset | str | os.PathLike[str],
    *,
    score_threshold: float | None = None,
    **options: Any,
) -> Evaluation:
    """The metrics of a model on a data set, or on the data at ``PATH`` or ``PATH@SPLIT``.

    Detectors get COCO's numbers, those of masks or keypoints where the model finds and the data have them
    (``iou_type="bbox"`` compares boxes), segmenters the mean IoU and accuracies, classifiers the top-1 and top-5
    accuracy.
    ``score_threshold`` is the least score that counts; None means the model's published evaluation settings.
    ``options`` are those of the task's function in ``chainsight.evaluations``. Raises ValueError for data without the
    model's classes, TypeError for a model or data of another kind.
    """
    if not isinstance(model, Model):
        raise TypeError(f"expected a model, as chainsight.load gives it, got {type(model).__name__}")
    dataset = open_dataset(os.fspath(data)) if isinstance(data, (str, os.PathLike)) else data
    if not isinstance(dataset, Dataset):
        raise TypeError(f"expected a data set or the path of one, got {type(data).__name__}")
    if isinstance(model, Detector):
        from .evaluations.on_dataset import evaluate_boxes, evaluate_instances

        iou_type = options.pop("iou_type", None) or _compared(model, dataset, **options)
        if iou_type != "bbox":
            return evaluate_instances(model, dataset, iou_type=iou_type, score_threshold=score_threshold, **options)
        return evaluate_boxes(model, dataset, score_threshold=score_threshold, **options)
    if isinstance(model, Classifier):
        from .evaluations.imagenet import evaluate_classifier

        return evaluate_classifier(model, dataset, **options)
    from .evaluations.semantic_segmentation import evaluate_semantic

    return evaluate_semantic(model, dataset, **options)


def _compared(model: Detector, dataset: Dataset, metric: str = "coco", **_: Any) -> IouType:
    """What COCO's metric compares."""
    if metric == "coco" and isinstance(model, MaskRCNN) and INSTANCE in dataset.tasks:
        return "segm"
    if metric == "coco" and isinstance(model, KeypointRCNN) and KEYPOINTS in dataset.tasks:
        return "keypoints"
    return "bbox"
