"""COCO's metrics of boxes: ``python -m chainsight.evaluations.coco_detection --help``."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from .command import run_coco
from .on_coco import evaluate_detector

__all__ = ["evaluate_detector", "main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the figures beside the published ones; the exit code is 1 if some image could not be scored."""
    return run_coco("bbox", "coco_detection", arguments)


if __name__ == "__main__":
    sys.exit(main())
