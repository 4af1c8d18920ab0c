import csv
import hashlib
from dataclasses import FrozenInstanceError, replace
from pathlib import Path
from typing import Any

import pytest
from chainsight.weights import categories
from chainsight.weights.entry import WeightsEntry, validate

GOOD = WeightsEntry(
    name="COCO_V1",
    url="https://example.org/models/detector-258fb6c6.pth",
    sha256="258fb6c6",
    size=167502836,
    parameters=41755286,
    licence="BSD-3-Clause",
    source="torchvision",
    categories=("person", "bicycle"),
    category_ids=(1, 2),
    settings={"min_size": 800},
    metrics={"COCO val2017": {"box AP": 37.0}},
)


def test_a_good_entry() -> None:
    validate(GOOD)
    with pytest.raises(FrozenInstanceError):
        GOOD.size = 3  # type: ignore[misc]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": "COCO V1"}, "name 'COCO V1'"),
        ({"url": "ftp://example.org/a"}, "url"),
        ({"url": "https://example.org/"}, "url"),
        ({"sha256": "258FB6C6"}, "sha256"),
        ({"sha256": "258fb6"}, "sha256"),
        ({"size": 0}, "size 0"),
        ({"parameters": 0}, "parameters 0"),
        ({"licence": " "}, "licence is empty"),
        ({"source": ""}, "source is empty"),
        ({"categories": ()}, "categories is not"),
        ({"categories": ["person", "bicycle"]}, "categories is not"),
        ({"category_ids": (1,)}, "1 category_ids for 2 categories"),
        ({"category_ids": (1, 1)}, "occurs twice"),
        ({"metrics": {"COCO": {}}}, "no metric for 'COCO'"),
        ({"metrics": {"COCO": {"AP": float("nan")}}}, "'AP' on 'COCO' is nan"),
        ({"metrics": {"COCO": {"AP": 370.0}}}, "expected percent"),
    ],
)
def test_bad_entries(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        validate(replace(GOOD, **change))


def test_all_faults_are_named_at_once() -> None:
    with pytest.raises(ValueError, match=r"weights entry 'COCO_V1': .*size 0.*; parameters 0"):
        validate(replace(GOOD, size=0, parameters=0))


def test_every_published_torchvision_file_is_expressible(shared: Path) -> None:
    with open(shared / "facts" / "torchvision_weights.tsv", newline="") as file:
        rows = list(csv.reader(file, delimiter="\t"))[1:]
    assert len(rows) > 150
    for row in rows:
        stem = row[2].rsplit("/", 1)[-1].removesuffix(".pth")
        digits = stem.replace("_", "-").rsplit("-", 1)[-1]
        validate(replace(GOOD, name=row[1].split(".")[-1], url=row[2], sha256=digits, parameters=int(row[4])))


def digest(names: tuple[str, ...]) -> str:
    return hashlib.sha256("\n".join(names).encode()).hexdigest()[:16]


def test_categories() -> None:
    # The hashes are those of torchvision 0.29.1's own lists (torchvision/models/_meta.py).
    assert digest(categories.COCO_91) == "33f69abe1637147d"
    assert digest(categories.VOC_21) == "3cb45be7d4bb1a70"
    assert digest(categories.IMAGENET_1000) == "0b0f9fee7c952f25"
    assert len(categories.COCO_80) == len(categories.COCO_80_IDS) == 80
    assert categories.COCO_80_IDS[-1] == 90
    assert [categories.COCO_91[i] for i in categories.COCO_80_IDS] == list(categories.COCO_80)
    assert categories.COCO_91.count("N/A") == 10
