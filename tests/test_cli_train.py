"""`chainsight train` on files in COCO's format, and going on with its run."""

import json

import chainsight as cs
import pytest
from chainsight.cli import main
from chainsight.datasets import ShapeScenes
from chainsight.vision.boxes import xyxy_to_xywh
from chainsight.vision.image import write_image


@pytest.fixture
def data(tmp_path):
    """Three drawn scenes as a COCO data set."""
    scenes = ShapeScenes(3, size=64, seed=2)
    folder = tmp_path / "shapes"
    folder.mkdir()
    images, annotations = [], []
    for i, sample in enumerate(scenes):
        write_image(folder / f"{i}.png", sample.image)
        images.append({"id": i, "file_name": f"{i}.png", "height": 64, "width": 64})
        for box, label in zip(xyxy_to_xywh(sample.boxes).tolist(), sample.labels.tolist()):
            entry = {"id": len(annotations) + 1, "image_id": i, "category_id": label + 10, "bbox": box, "iscrowd": 0}
            annotations.append({**entry, "area": box[2] * box[3]})
    categories = [{"id": i + 10, "name": name} for i, name in enumerate(scenes.categories)]
    document = {"images": images, "annotations": annotations, "categories": categories}
    (folder / "train.json").write_text(json.dumps(document))
    return folder / "train.json"


@pytest.mark.slow
def test_train_evaluate_and_resume(data, tmp_path, capsys):
    out = tmp_path / "run"
    command = ["train", "--model", "nanodet_g", "--weights", "none", "--data", str(data), "--valid", str(data)]
    assert main([*command, "--epochs", "1", "--out", str(out)]) == 0
    shown = capsys.readouterr().out
    assert "1 epochs, best 1 AP" in shown
    assert str(out / "best.safetensors") in shown
    model = cs.load(out / "best.safetensors")
    assert model.categories.ids == tuple(range(10, 18))
    before = (out / "checkpoint.safetensors").read_bytes()
    assert main(["train", "--resume", str(out)]) == 0  # it is finished: nothing changes
    assert (out / "checkpoint.safetensors").read_bytes() == before
    assert main(["evaluate", "--model", str(out / "best.safetensors"), "--data", str(data)]) == 0
    assert main([*command, "--out", str(out)]) == 2
    assert "holds a run already" in capsys.readouterr().err


def test_what_is_missing_is_named(tmp_path, capsys):
    assert main(["train", "--model", "nanodet_g"]) == 2
    assert "expected --data (or --resume RUN)" in capsys.readouterr().err
    assert main(["train", "--resume"]) == 2
    assert "--resume needs the run's folder" in capsys.readouterr().err
    assert main(["train", "--resume", str(tmp_path)]) == 2
    assert "there is no run to go on with" in capsys.readouterr().err


def test_options_that_a_resumed_run_would_not_follow_are_refused(tmp_path, capsys):
    settings = {"model": "nanodet_g", "epochs": 3, "batch_size": 2, "lr": 0.001, "freeze": [], "patience": None}
    settings |= {"seed": 0, "data": "a@train", "valid_data": None, "weights": "default"}
    (tmp_path / "settings.json").write_text(json.dumps(settings))
    (tmp_path / "checkpoint.safetensors").write_bytes(b"")
    others = {"--model": "ssd300", "--weights": "none", "--data": "b", "--valid": "b", "--epochs": "4"}
    others |= {"--batch-size": "3", "--lr": "0.5", "--freeze": "backbone.", "--patience": "2", "--seed": "1"}
    for option, value in others.items():
        assert main(["train", "--resume", str(tmp_path), option, value]) == 2
        assert f"a resumed run keeps its settings ({option} " in capsys.readouterr().err
    command = ["train", "--model", "nanodet_g", "--data", "a@train", "--epochs", "3", "--lr", "1e-3", "--seed", "0"]
    assert main([*command, "--out", str(tmp_path), "--resume"]) == 2  # it agrees; what fails is the empty checkpoint
    assert "keeps its settings" not in capsys.readouterr().err
