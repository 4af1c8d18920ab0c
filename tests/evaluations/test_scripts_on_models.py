"""Every script on a real model with name-seeded weights; the truth is what the model finds, with known changes.

Each run is interrupted after its first image and resumed.
"""

import json
from pathlib import Path

import chainsight
import numpy as np
import pytest
import stored_goldens
from chainsight.evaluations import (
    coco_instance,
    coco_keypoints,
    imagenet,
    semantic_segmentation,
    voc_detection,
    voc_instance,
)
from chainsight.vision.masks import decode_rle
from chainsight.vision.model import Model
from chainsight.weights.writer import save_safetensors
from PIL import Image


@pytest.fixture
def photos(shared):
    """Three real photos, small."""
    files = sorted((shared / "data/coco128/images/val").glob("*.jpg"))[:3]
    return {path.stem: np.asarray(Image.open(path).convert("RGB").resize((160, 120))) for path in files}


def write_image(path, image):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(image).save(path)


def saved(name, folder):
    """A model of the golden weights, and the options that give it to a script."""
    model, _ = stored_goldens.seeded_model(name)
    save_safetensors(folder / "weights.safetensors", model.state_dict())
    return model.eval(), ["--model", name, "--weights", str(folder / "weights.safetensors")]


def interrupted(script, arguments, folder, monkeypatch):
    """The JSON of a run that is stopped at its second image and then resumed; and of one in one go."""
    arguments = [*arguments, "--resume", str(folder / "run.jsonl"), "--json", str(folder / "e.json")]
    whole, calls = Model.predict, []

    def second_stops(self, source, **options):
        calls.append(source)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return whole(self, source, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Model, "predict", second_stops)
        with pytest.raises(KeyboardInterrupt):
            script.main(arguments)
        assert len((folder / "run.jsonl").read_text().splitlines()) == 2
        assert script.main([*arguments, "--report", str(folder / "report")]) == 0
    paths = [source for source in calls if not isinstance(source, np.ndarray)]
    assert len(paths) == len(calls[:1]) + 1 + 2  # the first image is not asked for again
    page = (folder / "report/index.html").read_text()
    assert "data:image/png" in page
    assert "</html>" in page
    return json.loads((folder / "e.json").read_text())


def check_reproducible(data):
    assert len(data["weights"]["sha256"]) == 64
    assert data["images"] == 3
    assert data["failures"] == {}
    assert {"python", "numpy"} <= data["versions"].keys()
    assert data["published"]["metrics"]


def coco_files(folder, photos, model, score=0.05):
    """The best detections of a model as COCO's annotations, one a crowd, one image without objects."""
    images, annotations = [], []
    for k, (name, image) in enumerate(photos.items()):
        write_image(folder / "images" / f"{name}.png", image)
        images.append({"id": k + 1, "file_name": f"{name}.png", "height": image.shape[0], "width": image.shape[1]})
        found = model.predict(image, score_threshold=score)[:6]
        for entry in found.to_coco(k + 1) if k < 2 else []:
            entry["area"] = entry["bbox"][2] * entry["bbox"][3]
            if found.keypoints is not None:
                points = np.array(entry["keypoints"]).reshape(-1, 3)
                points[:, 2] = 2
                entry |= {"keypoints": points.ravel().tolist(), "num_keypoints": len(points)}
            annotations.append(entry | {"id": len(annotations) + 1, "iscrowd": int(len(annotations) == 1)})
            del annotations[-1]["score"]
    names = model.categories
    categories = [{"id": number, "name": name} for number, name in zip(names.ids, names.names)]
    truth = {"images": images, "annotations": annotations, "categories": categories}
    (folder / "truth.json").write_text(json.dumps(truth))
    return ["--data", str(folder / "truth.json"), "--images", str(folder / "images"), "--score", str(score)]


@pytest.mark.slow
def test_coco_instance(photos, tmp_path, monkeypatch, capsys):
    model, arguments = saved("maskrcnn_resnet50_fpn", tmp_path)
    data = interrupted(coco_instance, arguments + coco_files(tmp_path, photos, model), tmp_path, monkeypatch)
    check_reproducible(data)
    assert data["metrics"]["AP"] > 0.5
    assert "published on COCO val2017" in capsys.readouterr().out


@pytest.mark.slow
def test_coco_keypoints(photos, tmp_path, monkeypatch, capsys):
    """Strips of the photos, and few people: with such weights a low threshold finds a hundred in each."""
    model, arguments = saved("keypointrcnn_resnet50_fpn", tmp_path)
    strips = {name: image[45:75] for name, image in reversed(photos.items())}
    arguments += coco_files(tmp_path, strips, model, score=0.5)
    data = interrupted(coco_keypoints, arguments, tmp_path, monkeypatch)
    check_reproducible(data)
    assert data["metrics"]["AP"] > 0.5
    assert data["metrics"]["AP50"] > 0.5
    assert "published on COCO val2017" in capsys.readouterr().out


def test_voc_detection(photos, tmp_path, monkeypatch, capsys):
    model, arguments = saved("ssdlite320_mobilenet_v3_large", tmp_path)
    coco_files(tmp_path, photos, model)
    data = chainsight.datasets.COCODataset(tmp_path / "truth.json", tmp_path / "images")
    chainsight.datasets.convert(data, tmp_path / "voc", "voc")
    arguments += ["--data", str(tmp_path / "voc"), "--score", "0.05"]
    found = interrupted(voc_detection, arguments, tmp_path, monkeypatch)
    assert found["images"] == 3
    assert len(found["weights"]["sha256"]) == 64
    assert found["metrics"]["mAP"] > 0.3
    assert found["settings"]["method"] == "11 points"
    assert "VOC mAP" in capsys.readouterr().out


def test_semantic_segmentation(photos, tmp_path, monkeypatch, capsys):
    model, arguments = saved("lraspp_mobilenet_v3_large", tmp_path)
    changed = 0
    for name, image in photos.items():
        labels = model.predict(image).labels.copy()
        labels[:12] = (labels[:12].astype(int) + 1) % len(model.categories.names)
        labels[12:20] = 255
        changed += 12 / 112 / len(photos)
        write_image(tmp_path / "data/images" / f"{name}.png", image)
        (tmp_path / "data/masks").mkdir(exist_ok=True)
        Image.fromarray(labels.astype(np.uint8)).save(tmp_path / "data/masks" / f"{name}.png")
    (tmp_path / "data/classes.json").write_text(json.dumps(list(model.categories.names)))
    data = interrupted(semantic_segmentation, [*arguments, "--data", str(tmp_path / "data")], tmp_path, monkeypatch)
    check_reproducible(data)
    assert data["metrics"]["pixel_accuracy"] == pytest.approx(1 - changed, abs=1e-9)
    assert 0 < data["metrics"]["mIoU"] < 1
    assert "published on COCO val2017 (VOC classes)" in capsys.readouterr().out


def test_imagenet(photos, tmp_path, monkeypatch, capsys):
    model, arguments = saved("squeezenet1_1", tmp_path)
    for k, (name, image) in enumerate(photos.items()):
        best = [name for name, _ in model.predict(image).top(9)]
        write_image(Path(tmp_path / "data" / best[(0, 2, 8)[k]].replace("/", "_") / f"{name}.png"), image)
    data = interrupted(imagenet, [*arguments, "--data", str(tmp_path / "data")], tmp_path, monkeypatch)
    check_reproducible(data)
    assert data["metrics"] == {"top1": pytest.approx(1 / 3), "top5": pytest.approx(2 / 3)}
    assert "published on ImageNet-1K" in capsys.readouterr().out


def test_imagenet_ten_crops(photos, tmp_path, capsys):
    """Probabilities are means over ten squares; the model that was loaded keeps its own crop."""
    model, arguments = saved("squeezenet1_1", tmp_path)
    ten = imagenet.ten_crops(model)
    for k, (name, image) in enumerate(photos.items()):
        best = [name for name, _ in ten.predict(image).top(9)]
        write_image(Path(tmp_path / "data" / best[(0, 2, 8)[k]].replace("/", "_") / f"{name}.png"), image)
        assert not np.allclose(ten.predict(image).probabilities, model.predict(image).probabilities)
    arguments += ["--data", str(tmp_path / "data"), "--json", str(tmp_path / "e.json"), "--crop", "10"]
    assert imagenet.main(arguments) == 0
    data = json.loads((tmp_path / "e.json").read_text())
    assert data["metrics"] == {"top1": pytest.approx(1 / 3), "top5": pytest.approx(2 / 3)}
    assert data["settings"]["crop"] == "10"
    assert not model.preset.ten_crops


@pytest.mark.slow
def test_voc_instance(photos, tmp_path, monkeypatch, capsys):
    """The largest masks that the model finds, as VOC's PNG files."""
    model, arguments = saved("maskrcnn_resnet50_fpn", tmp_path)
    names = []
    for k, (name, image) in enumerate((name, image[45:75]) for name, image in photos.items()):
        found = model.predict(image, score_threshold=0.05)
        objects, classes = np.zeros(image.shape[:2], np.uint8), np.zeros(image.shape[:2], np.uint8)
        if k < 2:  # and one image without objects
            masks = [decode_rle(entry["segmentation"]) for entry in found.to_coco(0)]
            best = max(range(len(found)), key=lambda i: masks[i].sum())
            objects[masks[best]], classes[masks[best]] = 1, int(found.labels[best]) + 1
        for folder, pixels in (("SegmentationObject", objects), ("SegmentationClass", classes)):
            write_image(tmp_path / "voc" / folder / f"{name}.png", pixels)
        write_image(tmp_path / "voc/JPEGImages" / f"{name}.png", image)
        names.append(name)
    (tmp_path / "voc/ImageSets/Segmentation").mkdir(parents=True)
    (tmp_path / "voc/ImageSets/Segmentation/val.txt").write_text("\n".join(names))
    (tmp_path / "voc/labels.txt").write_text("\n".join(model.categories.names))
    arguments += ["--data", f"{tmp_path / 'voc'}@instance-val", "--score", "0.05", "--iou", "0.7"]
    data = interrupted(voc_instance, arguments, tmp_path, monkeypatch)
    assert data["images"] == 3
    assert data["metrics"]["mAP"] > 0.3
    assert data["settings"]["iou_threshold"] == 0.7
    assert "VOC mAP" in capsys.readouterr().out
