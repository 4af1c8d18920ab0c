"""Pascal VOC's metric of masks, as SBD is scored: ``python -m chainsight.evaluations.voc_instance --help``.

SBD: ``--data SBD@val_voc2012`` with ``--iou 0.5`` and ``--iou 0.7``; VOC: ``--data VOC2012@instance-val``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from .command import Report, add_data, add_threshold, dataset_report, finish, open_data, parser
from .on_dataset import evaluate_voc_masks
from .runner import Evaluation


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the figures beside the published ones; the exit code is 1 if some image could not be scored."""
    options = parser("voc_instance", "Pascal VOC's mAP of instance masks, beside the published one.")
    add_threshold(options)
    add_data(options)
    options.add_argument("--method", choices=("area", "11 points"), default="11 points", help="SBD and VOC 2007: 11")
    options.add_argument("--iou", type=float, default=0.5, help="least overlap with the object (0.5)")

    def evaluate(model: Any, given: argparse.Namespace) -> tuple[Evaluation, Report]:
        data = open_data(given)
        evaluation = evaluate_voc_masks(
            model,
            data,
            iou_threshold=given.iou,
            method=given.method,
            score_threshold=given.score,
            limit=given.limit,
            weights=given.weights,
            resume=given.resume,
        )
        return evaluation, dataset_report(data)

    return finish(evaluate, options.parse_args(arguments))


if __name__ == "__main__":
    sys.exit(main())
