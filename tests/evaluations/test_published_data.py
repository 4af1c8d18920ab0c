"""Every row of ChainerCV's tables: which published figure stands beside a measurement."""

import argparse
from types import SimpleNamespace

import numpy as np
import pytest
from chainsight import datasets
from chainsight.evaluations import semantic_segmentation, voc_detection
from chainsight.evaluations.on_dataset import VOC_PUBLISHED
from chainsight.evaluations.runner import published, published_data
from PIL import Image


def model_with(metrics):
    return SimpleNamespace(entry=SimpleNamespace(metrics=metrics), name="m")


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("VOC2007@test", "VOC2007 test"),
        ("VOC2012@semantic-val", "VOC2012 val"),
        ("Cityscapes val", "Cityscapes val"),
        ("ADE20K val", "ADE20K val"),
        ("CamVid test", "CamVid test"),
        ("SBD val_voc2012", "SBD val"),
        ("COCO minival2014", "COCO minival2014"),
    ],
)
def test_published_name(name, data):
    assert published_data(model_with({data: {"mIoU": 50.0}}), name, "else") == data
    assert published_data(model_with({"other": {"mIoU": 50.0}}), name, "else") == "else"
    assert published_data(SimpleNamespace(), name, "else") == "else"


def test_voc_figures_of_both_names():
    for name in ("AP50", "mAP"):
        assert published(model_with({"VOC2007 test": {name: 77.5}}), VOC_PUBLISHED, "VOC2007 test") == {"mAP": 0.775}


def test_voc_script_has_voc2007s_settings(monkeypatch):
    """ChainerCV's users lost five points to defaults: here 11 points, and difficult objects count for nothing."""
    seen = {}
    monkeypatch.setattr(voc_detection, "finish", lambda evaluate, options: seen.update(vars(options)) or 0)
    assert voc_detection.main(["--model", "m", "--data", "d"]) == 0
    assert argparse.Namespace(**seen).method == "11 points"


class Everywhere:
    """Gives every pixel the first class but the left column, which is the second."""

    name = "first"

    def __init__(self, categories, metrics):
        self.categories, self.entry = categories, SimpleNamespace(name="W", url="", sha256="0" * 64, metrics=metrics)

    def predict(self, path):
        labels = np.zeros(np.asarray(Image.open(path)).shape[:2], np.uint8)
        labels[:, 0] = 1
        return SimpleNamespace(labels=labels)


def test_camvid_from_folder_to_published_figure(tmp_path, capsys):
    maps = np.full((4, 5), 11, np.uint8)
    maps[:2], maps[2] = 0, 1
    for folder, pixels in (("test", np.zeros((4, 5, 3), np.uint8)), ("testannot", maps)):
        (tmp_path / folder).mkdir()
        Image.fromarray(pixels).save(tmp_path / folder / "a.png")
    (tmp_path / "test.txt").write_text("/SegNet/CamVid/test/a.png /SegNet/CamVid/testannot/a.png\n")
    data = datasets.open(tmp_path, "test")
    model = Everywhere(data.categories, {"CamVid test": {"mIoU": 49.4, "class accuracy": 67.1}})
    found = semantic_segmentation.evaluate_semantic(model, data, progress=False)
    assert found.metrics.confusion.sum() == 15  # the last row is not annotated
    assert found.metrics.pixel_accuracy == pytest.approx((8 + 1) / 15)
    assert found.published == {"mIoU": 0.494, "class_accuracy": 0.671}
    assert "published on CamVid test" in str(found)


def test_voc_background_by_either_name(tmp_path):
    root = tmp_path / "VOC2012"
    for folder, pixels in (
        ("JPEGImages", np.zeros((4, 5, 3), np.uint8)),
        ("SegmentationClass", np.eye(4, 5, dtype="u1")),
    ):
        (root / folder).mkdir(parents=True)
        Image.fromarray(pixels).save(root / folder / "a.png")
    (root / "ImageSets/Segmentation").mkdir(parents=True)
    (root / "ImageSets/Segmentation/val.txt").write_text("a\n")
    names = ("__background__", *datasets.VOC_CATEGORIES)
    model = Everywhere(names, {"VOC2012 val": {"mIoU": 82.36}})
    for split in ("semantic-val", "val"):
        found = semantic_segmentation.evaluate_semantic(model, datasets.open(root, split), progress=False)
        assert found.published == {"mIoU": 0.8236}
        assert found.metrics.pixel_accuracy == pytest.approx(14 / 20)
