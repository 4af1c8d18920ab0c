"""The built-in detector and its demo: the stated figure holds on scenes that were not trained on or chosen by."""

import csv
import json
import re
import socket
from html.parser import HTMLParser
from pathlib import Path

import chainsight
import numpy as np
import pytest
from chainsight import cli
from chainsight.datasets import ShapeScenes
from chainsight.demo import ON_A_PHOTO, run_demo
from chainsight.vision.detection.nanodet import SHAPES_INPUT

DATA = Path(chainsight.__file__).parent / "vision/data"
(ENTRY,) = chainsight.model_info("nanodet_shapes").entries
((MEASURED_ON, FIGURES),) = ENTRY.metrics.items()


@pytest.fixture
def no_network(monkeypatch):
    def refuse(*arguments, **options):
        raise AssertionError("the demo connected to the network")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "create_connection", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


@pytest.mark.parametrize("seed", [5, 77])
def test_reaches_the_stated_ap_on_unseen_seeds(no_network, seed):
    """The AP of 60 scenes differs from that of 300 by a few hundredths."""
    assert f"ShapeScenes(300, size={SHAPES_INPUT}, seed=2026)" == MEASURED_ON
    model = chainsight.load("nanodet_shapes")
    scenes = ShapeScenes(60, size=SHAPES_INPUT, seed=seed)
    measured = chainsight.evaluate(model, scenes, progress=False).metrics
    assert FIGURES["box AP"] / 100 - 0.06 < measured.AP


def test_the_file_is_small_and_half_precision_costs_nothing_that_counts():
    path = DATA / "nanodet_shapes.safetensors"
    assert path.stat().st_size <= 2_000_000
    model = chainsight.load("nanodet_shapes")
    assert {p.dtype for p in model.parameters()} == {np.dtype(np.float32)}
    assert model.categories.names == ShapeScenes(1).categories
    again = chainsight.load(path)
    image = ShapeScenes(1, size=SHAPES_INPUT, seed=5)[0].image
    np.testing.assert_array_equal(again.predict(image).boxes, model.predict(image).boxes)


def test_the_log_of_the_training_lies_beside_the_weights():
    stages = sorted(DATA.glob("nanodet_shapes.stage-*.csv"))
    settings = [json.loads(path.with_suffix(".json").read_text()) for path in stages]
    assert stages
    for path, about in zip(stages, settings):
        rows = list(csv.DictReader(path.read_text().splitlines()))
        assert about["model"] == "nanodet_shapes"
        assert "seed=2026" not in about["train"] + about["valid"]
        assert 0 < len(rows) <= about["epochs"]
        assert float(rows[-1]["AP"]) > 0


class Page(HTMLParser):
    """What a page shows and what it would load."""

    def __init__(self):
        super().__init__()
        self.images, self.loads, self.text = [], [], []

    def handle_starttag(self, tag, attributes):
        for name, value in attributes:
            if name in ("src", "href", "srcset", "data", "action"):
                (self.images if tag == "img" else self.loads).append(value)
        assert tag not in ("script", "iframe", "object")

    def handle_data(self, data):
        self.text.append(data)


def test_the_command(no_network, tmp_path, capsys):
    out = tmp_path / "shown"
    assert cli.main(["demo", "--out", str(out), "--scenes", "14"]) == 0
    shown = capsys.readouterr().out
    assert float(re.search(r"AP (0\.\d+)", shown)[1]) > 0.4
    assert int(re.search(r"(\d+) images per second", shown)[1]) > 0
    assert f"\n  {ON_A_PHOTO}\n" in shown
    assert str(out / "index.html") in shown
    pictures = sorted((out / "pictures").iterdir())
    assert len(pictures) == 12
    drawn = [chainsight.read_image(p) for p in pictures]
    assert all(picture.shape == drawn[0].shape for picture in drawn)


def test_the_page_is_self_contained(tmp_path):
    demo = run_demo(tmp_path, scenes=3)
    source = demo.page.read_text(encoding="utf-8")
    page = Page()
    page.feed(source)
    assert page.loads == []
    assert len(page.images) == 7  # two of each scene, and the curves
    assert all(image.startswith("data:image/") for image in page.images)
    assert "url(" not in source
    assert "http" not in source
    text = " ".join(page.text)
    assert f"{demo.metrics.AP:.3f}" in text
    assert ON_A_PHOTO in text


def test_no_scenes(tmp_path):
    with pytest.raises(ValueError, match="at least one scene, got 0"):
        run_demo(tmp_path, scenes=0)
    assert list(tmp_path.iterdir()) == []
