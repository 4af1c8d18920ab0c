"""What torchvision's weight entries have in common: host, licence, and the hash in the file's name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .categories import COCO_80, COCO_80_IDS, IMAGENET_1000
from .entry import WeightsEntry

LICENCE = "BSD-3-Clause (torchvision); the training images have licences of their own"


def entry(
    name: str,
    file: str,
    parameters: int,
    categories: Sequence[str],
    metrics: Mapping[str, Mapping[str, float]],
    category_ids: Sequence[int] | None = None,
    settings: Mapping[str, Any] | None = None,
) -> WeightsEntry:
    """One of torchvision's files, ``file`` being its name without ".pth".

    >>> entry("V1", "net-0123abcd", 10, ["cat"], {"ImageNet-1K": {"acc@1": 70.0}}).sha256
    '0123abcd'
    """
    return WeightsEntry(
        name=name,
        url=f"https://download.pytorch.org/models/{file}.pth",
        sha256=file.rpartition("-")[2],
        size=None,
        parameters=parameters,
        licence=LICENCE,
        source="torchvision, github.com/pytorch/vision",
        categories=tuple(categories),
        category_ids=None if category_ids is None else tuple(category_ids),
        settings=settings or {},
        metrics=metrics,
    )


def coco_entry(file: str, parameters: int, name: str = "COCO_V1", **metrics: float) -> WeightsEntry:
    """A detector trained on COCO; metrics as ``box_ap=37.0``.

    >>> coco_entry("net-0123abcd", 10, box_ap=37.0).metrics
    {'COCO val2017': {'box AP': 37.0}}
    """
    figures = {key.replace("_ap", " AP"): value for key, value in metrics.items()}
    return entry(name, file, parameters, COCO_80, {"COCO val2017": figures}, COCO_80_IDS)


def imagenet_entry(version: int, file: str, parameters: int, top1: float, top5: float, **settings: Any) -> WeightsEntry:
    """A classifier trained on ImageNet-1K; ``settings`` are those of its preprocessing that are not the usual ones.

    >>> imagenet_entry(2, "net-0123abcd", 10, 80.858, 95.434, resize=232).name
    'IMAGENET1K_V2'
    """
    figures = {"ImageNet-1K": {"acc@1": top1, "acc@5": top5}}
    return entry(f"IMAGENET1K_V{version}", file, parameters, IMAGENET_1000, figures, settings=settings)
