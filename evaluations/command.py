"""The command lines of the evaluation scripts. They stand on top of the package, as its own command does."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from .metrics.coco import IouType
from .on_coco import TASKS, evaluate_detector
from .runner import Evaluation


def parser(script: str, description: str) -> argparse.ArgumentParser:
    """The options that all scripts have."""
    options = argparse.ArgumentParser(prog=f"python -m chainsight.evaluations.{script}", description=description)
    options.add_argument("--model", required=True, help="name of the model, see `chainsight models`")
    options.add_argument("--weights", default="default", help="published entry, file or ENTRY=FILE (first entry)")
    options.add_argument("--limit", type=int, help="evaluate only the first so many images")
    options.add_argument("--resume", type=Path, metavar="FILE", help="keep finished images here and go on from there")
    options.add_argument("--json", type=Path, metavar="FILE", help="write figures, settings, versions and hashes here")
    options.add_argument(
        "--report", type=Path, metavar="DIR", help="write a page with curves, tables and pictures here"
    )
    return options


def add_threshold(options: argparse.ArgumentParser) -> None:
    """The option of every detector."""
    options.add_argument("--score", type=float, help="lowest score (as in the model's published evaluation)")


def add_data(options: argparse.ArgumentParser) -> None:
    """The option of every script that takes a data set of any format."""
    options.add_argument("--data", required=True, metavar="DIR", help="a data set, DIR@SPLIT for one of its splits")


def open_data(options: argparse.Namespace) -> Any:
    """The data set of `add_data`."""
    from ..datasets.opening import open as open_dataset

    return open_dataset(options.data)


Report = Callable[[Path, Any, Evaluation], Path]


def finish(
    evaluate: Callable[[Any, argparse.Namespace], tuple[Evaluation, Report]], options: argparse.Namespace
) -> int:
    """Load the model, evaluate, print and write; 0: all went well, 1: some image failed, 2: nothing came of it.

    ``evaluate`` also gives what writes the page of its kind into a folder.
    """
    from ..vision.models import load

    try:
        model = load(options.model, weights=options.weights)
        evaluation, report = evaluate(model, options)
        print(evaluation)
        if options.json:
            evaluation.save(options.json)
        if options.report:
            print(f"report: {report(options.report, model, evaluation)}")
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 1 if evaluation.failures else 0


def dataset_report(data: Any) -> Report:
    """Writes the page of an evaluation on a data set of any format."""
    from .report import write_dataset_report

    return lambda folder, model, evaluation: write_dataset_report(folder, evaluation, data, model)


def run_coco(iou_type: IouType, script: str, arguments: Sequence[str] | None) -> int:
    """The scripts over COCO annotations."""
    options = parser(script, f"COCO's metrics of {TASKS[iou_type]}, beside the published ones.")
    add_threshold(options)
    options.add_argument("--data", type=Path, required=True, metavar="ANNOTATIONS.json")
    options.add_argument("--images", type=Path, required=True, metavar="DIR")
    options.add_argument("--max-detections", type=int, help="per image and category (100; keypoints 20)")

    def evaluate(model: Any, given: argparse.Namespace) -> tuple[Evaluation, Report]:
        from .report import write_report

        evaluation = evaluate_detector(
            model,
            given.data,
            given.images,
            iou_type=iou_type,
            score_threshold=given.score,
            max_detections=given.max_detections,
            limit=given.limit,
            weights=given.weights,
            resume=given.resume,
        )
        return evaluation, lambda folder, _, found: write_report(folder, found, given.data, given.images)

    return finish(evaluate, options.parse_args(arguments))
