"""Masks, keypoints and label maps of data sets on disk are scored by the metric of the model's task."""

import json

import chainsight as cs
import numpy as np
import pytest
from chainsight.cli import main
from chainsight.datasets import ShapeScenes
from chainsight.evaluations.report import write_dataset_report
from chainsight.vision.boxes import xyxy_to_xywh
from chainsight.vision.categories import Categories
from chainsight.vision.detection.keypoint_rcnn import KeypointRCNN
from chainsight.vision.detection.mask_rcnn import MaskRCNN
from chainsight.vision.image import write_image
from chainsight.vision.masks import PixelMasks, encode_rle
from chainsight.vision.model import Segmenter
from chainsight.vision.results import Detections, SegmentationMap

SCENES = ShapeScenes(6, size=96, seed=4)


def write_coco(folder, scenes):
    """The scenes as COCO's JSON with run-length masks (compressed or not) and keypoints."""
    (folder / "images").mkdir(parents=True)
    images, objects = [], []
    for i, sample in enumerate(scenes):
        write_image(folder / "images" / f"{i}.png", sample.image)
        images.append({"id": i + 50, "file_name": f"{i}.png", "height": 96, "width": 96})
        for k, box in enumerate(xyxy_to_xywh(sample.boxes).tolist()):
            objects.append(
                {
                    "id": len(objects) + 1,
                    "image_id": i + 50,
                    "category_id": int(sample.labels[k]) + 7,
                    "bbox": box,
                    "area": int(sample.masks[k].sum()),
                    "iscrowd": 0,
                    "segmentation": encode_rle(sample.masks[k], compressed=bool(k % 2)),
                    "keypoints": sample.keypoints[k].ravel().tolist(),
                    "num_keypoints": int((sample.keypoints[k, :, 2] > 0).sum()),
                }
            )
    names = list(scenes.keypoint_names)
    categories = [{"id": k + 7, "name": name, "keypoints": names} for k, name in enumerate(scenes.categories)]
    document = {"images": images, "annotations": objects, "categories": categories}
    (folder / "val.json").write_text(json.dumps(document))
    return folder


def by_pixels(scenes):
    return {sample.image.tobytes(): sample for sample in scenes}


class Oracle:
    """Knows what is annotated on every picture, but finds masks and keypoints ``shift`` pixels to the right."""

    def __init__(self, shift):
        self.categories, self.shift, self.known = Categories.plain(SCENES.categories), shift, by_pixels(SCENES)

    def predict_image(self, image, score_threshold):
        truth = self.known[image.tobytes()]
        points = truth.keypoints + [self.shift, 0, 0]
        return Detections(
            boxes=truth.boxes,
            scores=np.linspace(0.9, 0.5, len(truth), dtype=np.float32),
            labels=truth.labels,
            categories=self.categories.names,
            image_size=truth.size,
            masks=PixelMasks(np.roll(truth.masks, self.shift, 2)) if isinstance(self, MaskRCNN) else None,
            keypoints=points.astype(np.float32) if isinstance(self, KeypointRCNN) else None,
            image=image,
        )


class MaskOracle(Oracle, MaskRCNN):
    pass


class PointOracle(Oracle, KeypointRCNN):
    pass


@pytest.mark.parametrize(("make", "iou_type", "shift"), [(MaskOracle, "segm", 2), (PointOracle, "keypoints", 1)])
def test_masks_and_keypoints(make, iou_type, shift, tmp_path):
    data = cs.datasets.open(f"{write_coco(tmp_path / 'shapes', SCENES)}@val")
    right, wrong = (cs.evaluate(make(by), data, progress=False) for by in (0, shift))
    assert right.metrics.iou_type == iou_type == right.settings["iou_type"]
    assert right.metrics["AP"] == pytest.approx(1)
    assert 0.05 < wrong.metrics.AP < 0.8
    assert right.metrics.to_dict() == cs.evaluate(make(0), SCENES, progress=False).metrics.to_dict()
    boxes = cs.evaluate(make(shift), data, iou_type="bbox", progress=False)
    assert boxes.metrics.iou_type == "bbox"
    assert boxes.metrics["AP"] == pytest.approx(1)
    assert right.image_ids == [50, 51, 52, 53, 54, 55]
    part = cs.evaluate(make(0), SCENES.subset([4, 1]), limit=1, progress=False)
    assert (part.image_ids, part.indices, part.metrics.images) == ([4], [0], 1)
    page = write_dataset_report(tmp_path / "report", wrong, data, make(shift))
    assert f"{wrong.metrics.AP:.3f}" in page.read_text()


class MapOracle(Segmenter):
    """Knows every label map, but takes a part of the background for a circle."""

    def __init__(self, scenes):
        self.categories, self.known = Categories.plain(scenes.categories), by_pixels(scenes)

    def predict_image(self, image, score_threshold):
        labels = self.known[image.tobytes()].semantic.copy()
        labels[:8][labels[:8] == 0] = 1
        return SegmentationMap(labels, self.categories.names, None, image)


def write_maps(folder, scenes):
    """The scenes as pictures and label maps."""
    for part in ("images", "masks"):
        (folder / part / "val").mkdir(parents=True)
    for i, sample in enumerate(scenes):
        write_image(folder / "images/val" / f"{i}.png", sample.image)
        write_image(folder / "masks/val" / f"{i}.png", np.repeat(sample.semantic[..., None], 3, 2))
    (folder / "classes.txt").write_text("\n".join(scenes.categories))
    return folder


def test_label_maps(tmp_path):
    scenes = ShapeScenes(4, size=96, seed=4, background=True)
    data = cs.datasets.open(f"{write_maps(tmp_path / 'maps', scenes)}@val")
    model = MapOracle(scenes)
    found = [cs.evaluate(model, d, progress=False).metrics.to_dict() for d in (data, scenes, scenes[:2] + scenes[2:])]
    assert found[0] == found[1] == found[2]
    assert 0.9 < found[0]["pixel_accuracy"] < 0.95
    assert write_dataset_report(tmp_path / "report", cs.evaluate(model, scenes, progress=False), scenes, model)


@pytest.mark.slow
def test_train_and_evaluate_label_maps_by_the_command(tmp_path, capsys):
    folder = write_maps(tmp_path / "maps", ShapeScenes(4, size=96, seed=4, background=True))
    data, out = f"{folder}@val", tmp_path / "run"
    command = ["train", "--model", "lraspp_mobilenet_v3_large", "--weights", "none", "--data", data, "--valid", data]
    assert main([*command, "--epochs", "1", "--out", str(out)]) == 0
    assert "best 1 mIoU" in capsys.readouterr().out
    report = ["--json", str(tmp_path / "e.json"), "--report", str(tmp_path / "report")]
    assert main(["evaluate", "--model", str(out / "best.safetensors"), "--data", data, *report]) == 0
    figures = json.loads((tmp_path / "e.json").read_text())
    assert figures["task"] == "semantic segmentation"
    assert 0 <= figures["metrics"]["mIoU"] < 0.5  # after one step from random weights
