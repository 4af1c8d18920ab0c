"""Scripts over data sets of any format, with real annotations and models that are wrong in known ways."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
from chainsight.evaluations.imagenet import evaluate_classifier, match_classes
from chainsight.evaluations.on_dataset import evaluate_boxes
from chainsight.evaluations.semantic_segmentation import evaluate_semantic
from PIL import Image


class Photos:
    """A data set in memory: what the adapters of `chainsight.datasets` give, without decoding."""

    name, source = "photos", "memory"

    def __init__(self, items, categories, label_maps=()):
        self.items, self.categories, self.maps = items, categories, label_maps

    def __len__(self):
        return len(self.items)

    def annotations(self, index):
        return self.items[index]

    def label_map(self, index):
        return np.asarray(Image.open(self.maps[index]))


class ShiftedModel:
    """Finds every annotated box, moved to the right by a share of its width, and a false one on the last image."""

    def __init__(self, photos, shift):
        self.categories = photos.categories[::-1]
        self.by_path = {item.path: item for item in photos.items}
        self.shift, self.last = shift, photos.items[-1].path

    def predict(self, path, *, score_threshold=0.5):
        item = self.by_path[path]
        boxes = item.boxes + (item.boxes[:, 2:3] - item.boxes[:, :1]) * [self.shift, 0, self.shift, 0]
        labels = len(self.categories) - 1 - item.labels
        scores = np.full(len(boxes), 0.8)
        if path == self.last:
            boxes, labels = np.append(boxes, [[0, 0, 3, 3]], 0), np.append(labels, 0)
            scores = np.append(scores, 0.9)
        return SimpleNamespace(boxes=boxes, scores=scores, labels=labels)


@pytest.fixture
def boats(ten_photos):
    truth, images, _ = ten_photos
    categories = tuple(category["name"] for category in truth["categories"])
    ids = [category["id"] for category in truth["categories"]]
    items = []
    for image in truth["images"]:
        own = [entry for entry in truth["annotations"] if entry["image_id"] == image["id"]]
        boxes = np.array([entry["bbox"] for entry in own]).reshape(-1, 4)
        boxes[:, 2:] += boxes[:, :2]
        items.append(
            SimpleNamespace(
                path=str(images / image["file_name"]),
                image_id=image["id"],
                boxes=boxes,
                labels=np.array([ids.index(entry["category_id"]) for entry in own], int),
                ignore=np.zeros(len(own), bool),
                areas=None,
            )
        )
    return Photos(items, categories)


def test_boxes_by_both_metrics(boats, tmp_path):
    # A shift by 0.24 of the width leaves IoU 0.76 / 1.24 = 0.613: it passes three of the ten thresholds.
    model = ShiftedModel(boats, 0.24)
    coco = evaluate_boxes(model, boats, progress=False)
    voc = evaluate_boxes(model, boats, metric="voc", resume=tmp_path / "run.jsonl", progress=False)
    false = boats.categories[-1]
    assert coco.metrics["AP"] == pytest.approx(0.3, abs=0.01)
    assert coco.metrics["AP75"] < 0.02  # a few neighbours of one class lie a quarter of their width apart
    assert voc.metrics.mAP == pytest.approx(coco.metrics["AP50"], abs=0.01)
    assert set(voc.metrics.to_dict()) == {"mAP"}
    assert coco.images == 10
    assert false in coco.metrics.categories
    again = evaluate_boxes(model, boats, metric="voc", resume=tmp_path / "run.jsonl", progress=False)
    assert again.images_per_second is None
    assert again.metrics.mAP == voc.metrics.mAP
    few = evaluate_boxes(model, boats, limit=2, progress=False)
    assert few.image_ids == [item.image_id for item in boats.items[:2]]


def test_an_empty_data_set_is_named(boats):
    with pytest.raises(ValueError, match="photos: there are no images to evaluate"):
        evaluate_boxes(ShiftedModel(boats, 0), Photos([], boats.categories))


def test_label_maps_of_real_photos(shared, tmp_path):
    maps = sorted((shared / "data/coco128/semantic/val").glob("*.png"))[:4]
    names = tuple(str(k) for k in range(256))
    items = [SimpleNamespace(path=str(path), image_id=path.stem) for path in maps]
    photos = Photos(items, names, maps)

    class Shifted:
        categories = names

        def predict(self, path):
            return SimpleNamespace(labels=np.roll(np.asarray(Image.open(path)), 2, 1))

    evaluation = evaluate_semantic(Shifted(), photos, ignore_index=None, resume=tmp_path / "run.jsonl", progress=False)
    figures = evaluation.metrics.to_dict()
    assert 0.7 < figures["pixel_accuracy"] < 1
    assert evaluation.images == 4
    again = evaluate_semantic(Shifted(), photos, ignore_index=None, resume=tmp_path / "run.jsonl", progress=False)
    assert again.metrics.to_dict() == figures
    evaluation.save(tmp_path / "e.json")
    assert json.loads((tmp_path / "e.json").read_text())["metrics"] == figures
    with pytest.raises(ValueError, match="expected a data set of the model's 256 classes"):
        evaluate_semantic(Shifted(), Photos(items, names[:21], maps))


def test_classes_of_photos(tmp_path):
    names = ("cat", "dog", "horse", "cow", "hen", "owl", "elk")
    items = [SimpleNamespace(path=f"{k}.jpg", image_id=k, label=k % 3) for k in range(9)]

    class Ranker:
        """Puts the true class on place 0, 1 or 6 in turn."""

        categories = names

        def predict(self, path):
            k = int(path.split(".")[0])
            scores = np.array([0.5, 0.4, 0.3, 0.2, 0.1, 0.05, 0.0])
            order = [label for label in range(7) if label != k % 3]
            order.insert((0, 1, 6)[k // 3], k % 3)
            probabilities = np.zeros(7)
            probabilities[order] = scores
            return SimpleNamespace(probabilities=probabilities)

    evaluation = evaluate_classifier(Ranker(), Photos(items, names[:3]), progress=False)
    assert evaluation.metrics.to_dict() == {"top1": pytest.approx(1 / 3), "top5": pytest.approx(2 / 3)}
    assert "(9 images)" in str(evaluation)
    with pytest.raises(ValueError, match=r"photos has 1 classes that are none of the model's 7: \['yak'\]"):
        match_classes(names, ("cat", "yak"), "photos")
