"""The commands as a user runs them, with a real model and real photos."""

import json
import subprocess
import sys

import pytest
from chainsight.evaluations import (
    coco_detection,
    coco_instance,
    coco_keypoints,
    imagenet,
    semantic_segmentation,
    voc_instance,
)
from chainsight.evaluations import voc_detection as voc_script

WEIGHTS = "weights/nanodet_g.safetensors"
SHA256 = "81482513fb3cd357b7abd1b29109a3d89511cb5051508446e019dd35b1a3b6b2"


def test_coco_detection_in_a_process_of_its_own(shared, tmp_path):
    command = [sys.executable, "-m", "chainsight.evaluations.coco_detection", "--model", "nanodet_g"]
    command += ["--weights", shared / WEIGHTS, "--data", shared / "data/coco128/val.json"]
    command += ["--images", shared / "data/coco128/images/val", "--score", "0.05", "--limit", "3"]
    command += ["--json", tmp_path / "e.json", "--report", tmp_path / "report", "--resume", tmp_path / "run.jsonl"]
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for part in ("AP50", "published on COCO val2017", "0.2290", "3 images scored", "images per second", "report: "):
        assert part in done.stdout
    data = json.loads((tmp_path / "e.json").read_text())
    assert data["weights"]["sha256"] == SHA256
    assert data["model"] == "nanodet_g"
    assert data["published"]["metrics"] == {"AP": 0.229}
    assert 0 < data["metrics"]["AP"] < 1
    assert (tmp_path / "report/index.html").exists()
    assert len((tmp_path / "run.jsonl").read_text().splitlines()) == 4


@pytest.mark.slow
def test_all_photos_give_the_known_figures(shared, tmp_path):
    """The row of the weights' README made with the authors' preprocessing."""
    arguments = ["--model", "nanodet_g", "--weights", str(shared / WEIGHTS), "--score", "0.05"]
    arguments += ["--data", str(shared / "data/coco128/val.json")]
    arguments += ["--images", str(shared / "data/coco128/images/val"), "--json", str(tmp_path / "e.json")]
    assert coco_detection.main(arguments) == 0
    metrics = json.loads((tmp_path / "e.json").read_text())["metrics"]
    assert [metrics[name] for name in ("AP", "AP50", "AP75")] == pytest.approx([0.2978, 0.4414, 0.3171], abs=0.002)


def test_voc_detection_of_classes_the_model_lacks(shared, capsys):
    arguments = ["--model", "nanodet_g", "--weights", str(shared / WEIGHTS), "--data", f"{shared / 'data/bccd'}@val"]
    assert voc_script.main(arguments) == 2
    assert "no category of the model is one of" in capsys.readouterr().err


def test_errors_are_one_line(shared, capsys):
    arguments = ["--weights", str(shared / WEIGHTS), "--data", "absent.json", "--images", str(shared)]
    assert coco_detection.main(["--model", "nanodet_g", *arguments]) == 2
    assert capsys.readouterr().err == "error: annotations: there is no file absent.json\n"
    assert coco_detection.main(["--model", "nanodet_h", *arguments]) == 2
    assert "did you mean nanodet_g" in capsys.readouterr().err


@pytest.mark.parametrize(
    "script",
    [coco_detection, coco_instance, coco_keypoints, voc_script, voc_instance, semantic_segmentation, imagenet],
)
def test_every_script_explains_itself(script, capsys):
    with pytest.raises(SystemExit) as stop:
        script.main(["--help"])
    assert stop.value.code == 0
    text = capsys.readouterr().out
    for option in ("--model", "--weights", "--data", "--resume", "--json"):
        assert option in text
