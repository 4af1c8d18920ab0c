import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest


@dataclass
class Replayed:
    """What a detector's result gives to an evaluation."""

    entries: list
    labels: np.ndarray
    boxes: np.ndarray
    scores: np.ndarray
    image_size: tuple

    def to_coco(self, image_id):
        return [dict(entry, image_id=image_id) for entry in self.entries]


class ReplayModel:
    """Gives the detections that NanoDet-g made on real photos, by the photo's name."""

    name = "nanodet_replayed"

    def __init__(self, ground_truth, detections):
        self.categories = tuple(category["name"] for category in ground_truth["categories"])
        self.ids = [category["id"] for category in ground_truth["categories"]]
        self.sizes = {i["file_name"]: (i["height"], i["width"]) for i in ground_truth["images"]}
        self.found = {
            i["file_name"]: [d for d in detections if d["image_id"] == i["id"]] for i in ground_truth["images"]
        }
        self.asked = []

    def predict(self, path, *, score_threshold=0.5):
        self.asked.append(Path(path).name)
        least = 0 if score_threshold is None else score_threshold
        entries = [entry for entry in self.found[Path(path).name] if entry["score"] >= least]
        boxes = np.array([entry["bbox"] for entry in entries]).reshape(-1, 4)
        return Replayed(
            entries,
            np.array([self.ids.index(entry["category_id"]) for entry in entries], np.int64),
            np.concatenate([boxes[:, :2], boxes[:, :2] + boxes[:, 2:]], 1),
            np.array([entry["score"] for entry in entries]),
            self.sizes[Path(path).name],
        )


@pytest.fixture
def ten_photos(shared):
    """Ground truth of ten real photos, their folder, and a model that replays real detections on them."""
    detections = json.loads((shared / "weights/nanodet_g_val_detections.json").read_text())
    truth = json.loads((shared / "data/coco128/val.json").read_text())
    ids = {detection["image_id"] for detection in detections}
    truth["images"] = [image for image in truth["images"] if image["id"] in ids]
    truth["annotations"] = [entry for entry in truth["annotations"] if entry["image_id"] in ids]
    return truth, shared / "data/coco128/images/val", ReplayModel(truth, detections)
