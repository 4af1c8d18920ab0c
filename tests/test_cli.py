"""The command, on real photos and on what people give it by mistake."""

import json
import subprocess
import sys

import chainsight
import numpy as np
import pytest
from chainsight.cli import main
from PIL import Image


@pytest.fixture(scope="module")
def photos(shared):
    return shared / "data/coco128/images/val"


@pytest.fixture(scope="module")
def nanodet(shared):
    return ["--model", "nanodet_g", "--weights", str(shared / "weights/nanodet_g.safetensors")]


def test_predict_draws_and_writes_json(photos, nanodet, tmp_path, capsys):
    photo = photos / "000000000139.jpg"
    out, found = tmp_path / "out", tmp_path / "found.json"
    assert main(["predict", str(photo), *nanodet, "--out", str(out), "--json", str(found)]) == 0
    assert "tv" in capsys.readouterr().out
    assert chainsight.read_image(out / photo.name).shape == chainsight.read_image(photo).shape
    (entry,) = json.loads(found.read_text())
    assert entry["source"] == str(photo)
    names = [o["name"] for o in entry["objects"]] if "objects" in entry else [str(entry)]
    assert any("tv" in name for name in names)


def test_one_bad_file_does_not_stop_the_rest(photos, nanodet, tmp_path, capsys):
    bad = tmp_path / "bad.jpg"
    bad.write_text("not a picture")
    good = photos / "000000000285.jpg"
    found = tmp_path / "found.json"
    status = main(["predict", str(bad), str(good), str(tmp_path / "missing.png"), *nanodet, "--json", str(found)])
    errors = capsys.readouterr().err
    assert status == 1
    assert "bad.jpg" in errors
    assert "missing.png" in errors
    assert "2 of 3 images failed" in errors
    assert [e["source"] for e in json.loads(found.read_text())] == [str(good)]


def test_pictures_of_equal_names_do_not_overwrite_each_other(nanodet, tmp_path):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        Image.fromarray(np.zeros((32, 32, 3), np.uint8)).save(tmp_path / folder / "x.png")
    out = tmp_path / "out"
    assert main(["predict", str(tmp_path / "a/x.png"), str(tmp_path / "b/x.png"), *nanodet, "--out", str(out)]) == 0
    assert sorted(p.name for p in out.iterdir()) == ["x-2.png", "x.png"]


def test_pictures_never_replace_the_photos(nanodet, tmp_path, capsys):
    photo = tmp_path / "x.png"
    Image.fromarray(np.zeros((32, 32, 3), np.uint8)).save(photo)
    before = photo.read_bytes()
    assert main(["predict", str(photo), *nanodet, "--out", str(tmp_path)]) == 0
    assert photo.read_bytes() == before
    assert (tmp_path / "x-2.png").exists()
    assert str(tmp_path / "x-2.png") in capsys.readouterr().out


def test_predict_of_a_classifier_writes_its_classes_and_no_picture(photos, tmp_path, capsys):
    model = chainsight.load("squeezenet1_1", weights=None)
    model.save(tmp_path / "model.safetensors")
    found, out = tmp_path / "found.json", tmp_path / "out"
    arguments = ["--model", str(tmp_path / "model.safetensors"), "--json", str(found), "--out", str(out)]
    assert main(["predict", str(photos / "000000000139.jpg"), *arguments]) == 0
    assert "Classification: 1000 classes" in capsys.readouterr().out
    assert len(json.loads(found.read_text())[0]["classes"]) == 5
    assert list(out.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "nanodet_f"], "did you mean nanodet_g"),
        (["--model", "nanodet_g", "--weights", "COCO_V9"], "is no file"),
    ],
)
def test_unknown_names_say_what_is_known(photos, capsys, arguments, message):
    assert main(["predict", str(photos / "000000000139.jpg"), *arguments]) == 2
    assert message in capsys.readouterr().err


def test_weights_of_another_model(photos, shared, capsys):
    file = shared / "weights/nanodet_g.safetensors"
    status = main(["predict", str(photos / "000000000139.jpg"), "--model", "resnet18", "--weights", str(file)])
    errors = capsys.readouterr().err
    assert status == 2
    assert "not weights of resnet18" in errors
    assert "conv1.weight" in errors


def test_evaluate_writes_everything_needed_to_reproduce(shared, nanodet, tmp_path, capsys):
    data = shared / "data/coco128"
    file = tmp_path / "figures.json"
    status = main(
        [
            *("evaluate", *nanodet, "--data", str(data / "val.json"), "--images", str(data / "images/val")),
            *("--score", "0.05", "--limit", "4", "--json", str(file)),
        ]
    )
    assert status == 0
    written = json.loads(file.read_text())
    names = ["AP", "AP50", "AP75", "APs", "APm", "APl", "AR1", "AR10", "AR100", "ARs", "ARm", "ARl"]
    assert set(names) <= set(written["metrics"])
    assert written["weights"]["sha256"] == "81482513fb3cd357b7abd1b29109a3d89511cb5051508446e019dd35b1a3b6b2"
    assert {"model", "settings", "versions"} <= set(written)


@pytest.mark.slow
def test_nanodet_reaches_the_figures_measured_with_the_original(shared, nanodet, tmp_path):
    """AP, AP50 and AP75 of the aspect-kept warp in the README beside the weights."""
    data = shared / "data/coco128"
    file = tmp_path / "figures.json"
    main(
        [
            *("evaluate", *nanodet, "--data", str(data / "val.json"), "--images", str(data / "images/val")),
            *("--score", "0.05", "--json", str(file)),
        ]
    )
    metrics = json.loads(file.read_text())["metrics"]
    assert metrics["AP"] == pytest.approx(0.2978, abs=0.002)
    assert metrics["AP50"] == pytest.approx(0.4414, abs=0.002)
    assert metrics["AP75"] == pytest.approx(0.3171, abs=0.002)


def test_evaluate_with_unusable_annotations(nanodet, tmp_path, capsys):
    file = tmp_path / "empty.json"
    file.write_text("{}")
    assert main(["evaluate", *nanodet, "--data", str(file), "--images", str(tmp_path)]) == 2
    assert "empty.json" in capsys.readouterr().err


def test_models_lists_every_entry(capsys):
    assert main(["models", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {r["model"] for r in rows} == {n for n in chainsight.list_models() if chainsight.model_info(n).entries}
    assert main(["models", "--task", "detection"]) == 0
    assert "nanodet_g" in capsys.readouterr().out
    assert main(["models", "--task", "nonsense"]) == 2


def test_the_table_of_models_fits_a_terminal(capsys):
    assert main(["models"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    names = [line.split()[0] for line in lines if line and not line.isupper()]
    assert {name for name in chainsight.list_models() if chainsight.model_info(name).entries} <= set(names)
    assert main(["models", "--task", "segmentation"]) == 0
    text = capsys.readouterr().out
    assert all(name in text for name in ("maskrcnn_resnet50_fpn", "deeplabv3_resnet50"))
    assert "resnet18" not in text


def test_cards_of_models(capsys):
    assert main(["models", "nanodet_g", "lraspp_mobilenet_v3_large"]) == 0
    text = capsys.readouterr().out
    assert [line for line in text.splitlines() if line.startswith("# ")] == [
        "# nanodet_g",
        "# lraspp_mobilenet_v3_large",
    ]
    assert "Apache-2.0" in text
    assert main(["models", "nanodetg"]) == 2
    assert "did you mean nanodet_g" in capsys.readouterr().err


def test_benchmark_has_the_options_of_the_speed_script(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["benchmark", "--help"])
    assert ended.value.code == 0
    assert "--peer-python" in capsys.readouterr().out


def test_unknown_options_are_refused(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["models", "--tusk", "detection"])
    assert ended.value.code == 2
    assert "--tusk" in capsys.readouterr().err


def test_config_prints_versions(capsys):
    assert main(["config"]) == 0
    text = capsys.readouterr().out
    assert f"chainsight {chainsight.__version__}" in text
    assert "kernels:" in text


def test_the_installed_command_runs():
    run = subprocess.run(
        [sys.executable, "-m", "chainsight.cli", "--version"], capture_output=True, text=True, check=True
    )
    assert run.stdout.strip() == f"chainsight {chainsight.__version__}"
