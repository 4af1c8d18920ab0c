"""COCO's metrics of masks: ``python -m chainsight.evaluations.coco_instance --help``."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from .command import run_coco


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the figures beside the published ones; the exit code is 1 if some image could not be scored."""
    return run_coco("segm", "coco_instance", arguments)


if __name__ == "__main__":
    sys.exit(main())
