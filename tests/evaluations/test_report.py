import base64
import dataclasses
import io
import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest
from chainsight.datasets import ShapeScenes
from chainsight.evaluations.on_coco import evaluate_detector
from chainsight.evaluations.on_dataset import evaluate_instances
from chainsight.evaluations.report import write_dataset_report, write_report
from chainsight.evaluations.semantic_segmentation import evaluate_semantic
from chainsight.vision.masks import PixelMasks
from chainsight.vision.results import Detections, SegmentationMap
from PIL import Image


class Checker(HTMLParser):
    """Collects what a page shows, and what is open at its end."""

    void = ("meta", "img", "br")

    def __init__(self):
        super().__init__()
        self.open, self.images, self.text, self.links = [], [], [], []

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        if tag == "img":
            self.images.append(values["src"])
        self.links += [value for key, value in attributes if key in ("href", "src") and not value.startswith("data:")]
        if tag not in self.void:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def test_the_page_holds_everything(ten_photos, tmp_path):
    truth, images, model = ten_photos
    truth["images"][0]["file_name"] = "absent & gone.jpg"
    evaluation = evaluate_detector(model, truth, images, progress=False)
    path = write_report(tmp_path / "report", evaluation, truth, images, worst=3)
    page = Checker()
    page.feed(path.read_text())
    assert page.open == []
    assert page.links == []
    text = " ".join(page.text)
    for part in ("nanodet_replayed", "AP50", "person", "9 images scored", "absent & gone.jpg", "most errors", "sha256"):
        assert part in text
    pictures = [Image.open(io.BytesIO(base64.b64decode(source.split(",", 1)[1]))) for source in page.images]
    assert len(pictures) == 3 + 2 * 3
    assert all(np.asarray(picture.convert("RGB")).std() > 5 for picture in pictures)
    rows = re.findall(r"(\d+) right, (\d+) false, (\d+) missed", text)
    errors = [int(wrong) + int(missed) for _, wrong, missed in rows]
    assert errors == sorted(errors, reverse=True)
    assert len(errors) == 3
    names = {entry.name for entry in path.parent.iterdir()}
    assert names == {"index.html", "evaluation.json", "precision_recall.png", "f1.png", "confusion.png"}
    assert json.loads((path.parent / "evaluation.json").read_text())["images"] == 9


def test_truth_and_prediction_are_drawn_apart(ten_photos, tmp_path):
    truth, images, model = ten_photos
    evaluation = evaluate_detector(model, truth, images, progress=False)
    path = write_report(tmp_path, evaluation, truth, images, worst=1, score_threshold=0.4)
    page = Checker()
    page.feed(path.read_text())
    left, right = (np.asarray(Image.open(io.BytesIO(base64.b64decode(s.split(",", 1)[1])))) for s in page.images[-2:])
    assert left.shape == right.shape
    assert (left != right).any()
    assert "at least score 0.40" in " ".join(page.text)


@pytest.mark.parametrize(("task", "iou_type"), [("masks", "segm"), ("keypoints", "keypoints"), ("labels", None)])
def test_pages_of_every_task_from_drawn_scenes(task, iou_type, tmp_path):
    scenes = ShapeScenes(4, 96, seed=5, background=task == "labels")
    model = Shifted(scenes)
    if iou_type is None:
        evaluation = evaluate_semantic(model, scenes, progress=False)
    else:
        evaluation = evaluate_instances(model, scenes, iou_type=iou_type, progress=False)
    path = write_dataset_report(tmp_path, evaluation, scenes, model, worst=2, score_threshold=0.5)
    page = Checker()
    page.feed(path.read_text())
    assert page.open == []
    assert page.links == []
    text = " ".join(page.text)
    for part in ("Confusion", "Classes", "Settings", "circle"):
        assert part in text
    left, right = (np.asarray(Image.open(io.BytesIO(base64.b64decode(s.split(",", 1)[1])))) for s in page.images[-2:])
    assert left.shape == right.shape
    assert (left != right).any()


@pytest.mark.parametrize("iou_type", ["segm", "keypoints"])
@pytest.mark.parametrize("lacking", ["objects", "detections"])
def test_pages_of_images_without_objects_or_detections(iou_type, lacking, tmp_path):
    scenes = ShapeScenes(3, 96, seed=5) if lacking == "detections" else FirstIsEmpty(3, 96, seed=5)
    model = Shifted(ShapeScenes(3, 96, seed=5))
    if lacking == "detections":
        whole, first = model.predict, scenes[0].image
        model.predict = lambda image, score_threshold: whole(image)[: 0 if np.array_equal(image, first) else None]
    evaluation = evaluate_instances(model, scenes, iou_type=iou_type, progress=False)
    path = write_dataset_report(tmp_path, evaluation, scenes, model, worst=3, score_threshold=0.5)
    page = Checker()
    page.feed(path.read_text())
    assert page.open == []
    pictures = [np.asarray(Image.open(io.BytesIO(base64.b64decode(s.split(",", 1)[1])))) for s in page.images[-6:]]
    assert len({picture.shape for picture in pictures}) == 1  # three pairs, the one of the first image among them


class FirstIsEmpty(ShapeScenes):
    """Drawn scenes, the first of them without annotations."""

    def load(self, index):
        sample = super().load(index)
        return sample.select(np.full(len(sample), index > 0))

    def annotations(self, index, scene=None):
        known = super().annotations(index, scene)
        if index or scene:
            return known
        fields = ("boxes", "labels", "ignore", "areas", "keypoints")
        return dataclasses.replace(known, **{name: getattr(known, name)[:0] for name in fields})


class Shifted:
    """Finds what is annotated on drawn scenes, a few pixels beside its place."""

    name = "shifted"

    def __init__(self, scenes):
        self.scenes, self.categories = scenes, scenes.categories

    def predict(self, image, score_threshold=None):
        sample = next(sample for sample in self.scenes if np.array_equal(sample.image, image))
        if self.scenes.background:
            return SegmentationMap(np.roll(sample.semantic, 4, 1), self.categories)
        points = sample.keypoints + np.array([4, 0, 0], np.float32)
        masks = PixelMasks(np.roll(sample.masks, 4, 2))
        scores = np.full(len(sample), 0.9)
        return Detections(
            sample.boxes, scores, sample.labels, self.categories, sample.size, masks=masks, keypoints=points
        )
