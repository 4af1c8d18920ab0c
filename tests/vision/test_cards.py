import csv
import re

import chainsight
import pytest
from chainsight.vision import cards
from chainsight.vision.models import MODELS


@pytest.mark.parametrize("name", sorted(MODELS))
def test_every_card_says_everything(name):
    text = cards.card(name)
    info = MODELS[name]
    rows = dict(re.findall(r"^\| ([^|]+) \| ([^|\n]+) \|$", text, re.MULTILINE))
    for key in ("task", "paper", "parameters", "GFLOPs", "compared", "licence", "source", "file", "sha256", "classes"):
        assert rows[key].strip(), key
    assert re.search(r"\d", rows["preprocessing"])
    assert "``" not in text.replace("```", "")
    assert "None" not in text
    assert text.count("## Weights ") == len(info.entries)
    for entry in info.entries:
        assert f"{entry.parameters:,}" in rows["parameters"]
        assert entry.url in text
        for data, values in entry.metrics.items():
            assert f"| published on {data} | " in text
            assert all(f"{metric} {value:g}" in text for metric, value in values.items())
    # A table row is one line of two cells, whatever is in it: else the Markdown would not render.
    for line in text.splitlines():
        assert not line.startswith("|") or len(re.findall(r"\|", line)) == 3
    assert text.startswith(f"# {name}\n")


def test_what_was_compared_is_of_models_of_the_zoo():
    with open(cards.VERIFIED, encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    assert {row["model"] for row in rows} <= set(MODELS)
    assert len({row["model"] for row in rows}) == len(rows) > 100
    assert all(row["compared"] for row in rows)


def test_an_unknown_model_brings_similar_names():
    with pytest.raises(ValueError, match=r"did you mean maskrcnn_resnet50_fpn or .*`chainsight models` lists all"):
        chainsight.card("mask-rcnn_resnet50_fpn")
    with pytest.raises(ValueError, match=r"'qqq': `chainsight models` lists all \d+$"):
        chainsight.card("qqq")
    with pytest.raises(ValueError, match="fasterrcnn_resnet50_fpn") as error:
        chainsight.load("fasterrcnn")
    assert len(str(error.value)) < 300
