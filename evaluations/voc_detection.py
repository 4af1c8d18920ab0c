"""Pascal VOC's box metric of a detector: ``python -m chainsight.evaluations.voc_detection --help``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from .command import Report, add_data, add_threshold, dataset_report, finish, open_data, parser
from .on_dataset import evaluate_boxes
from .runner import Evaluation


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the figures beside the published ones; the exit code is 1 if some image could not be scored."""
    options = parser("voc_detection", "Pascal VOC's mAP of a detector, beside the published one.")
    add_threshold(options)
    add_data(options)
    options.add_argument("--method", choices=("area", "11 points"), default="11 points", help="VOC 2007: 11 points")

    def evaluate(model: Any, given: argparse.Namespace) -> tuple[Evaluation, Report]:
        data = open_data(given)
        evaluation = evaluate_boxes(
            model,
            data,
            metric="voc",
            score_threshold=given.score,
            method=given.method,
            limit=given.limit,
            weights=given.weights,
            resume=given.resume,
        )
        return evaluation, dataset_report(data)

    return finish(evaluate, options.parse_args(arguments))


if __name__ == "__main__":
    sys.exit(main())
