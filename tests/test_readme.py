"""What the README shows runs and says the truth."""

import json
import re
import shlex
import shutil
from pathlib import Path

import chainsight
import numpy as np
import pytest
from chainsight import cli, demo

README = (Path(__file__).resolve().parent.parent / "README.md").read_text(encoding="utf-8")
PYTHON = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
COMMANDS = re.findall(r"^```\n(.+)\n```$", README, re.MULTILINE)
STREET = "000000001490.jpg"


def test_the_set_up_commands_are_there():
    first, second, third = COMMANDS
    assert first == "pip install -e . && chainsight demo"
    assert second.startswith("chainsight predict PHOTO.jpg --model ")
    assert third == 'pip install -e ".[test]" && pytest'
    assert second == demo.ON_A_PHOTO


def test_the_command_for_a_photo_draws_boxes(shared, tmp_path, monkeypatch):
    """As it is written, but for the weights: a network of this model with a file made here instead of a download."""
    monkeypatch.chdir(tmp_path)
    shutil.copy(shared / "data/coco128/images/val" / STREET, "PHOTO.jpg")
    program, *arguments = shlex.split(COMMANDS[1])
    assert program == "chainsight"
    name = arguments[arguments.index("--model") + 1]
    assert "download.pytorch.org" in chainsight.model_info(name).entries[0].url
    chainsight.load(name, weights=None).save("model.safetensors")
    assert cli.main([*arguments, "--weights", "model.safetensors"]) == 0
    assert chainsight.read_image("found/PHOTO.jpg").shape == chainsight.read_image("PHOTO.jpg").shape


@pytest.fixture
def files(shared, tmp_path, monkeypatch):
    """The photo and the data set that the tour names, in COCO's own layout, with four real images."""
    monkeypatch.chdir(tmp_path)
    images = shared / "data/coco128/images/val"
    shutil.copy(images / STREET, "street.jpg")
    data = json.loads((shared / "data/coco128/val.json").read_text())

    def copy(target: Path, split: str, objects: list[dict], categories: list[dict]) -> None:
        kept = {a["image_id"] for a in objects}
        chosen = [image for image in data["images"] if image["id"] in kept]
        for folder in ("annotations", split):
            (target / folder).mkdir(parents=True, exist_ok=True)
        (target / f"annotations/instances_{split}.json").write_text(
            json.dumps({"images": chosen, "annotations": objects, "categories": categories})
        )
        for image in chosen:
            shutil.copy(images / image["file_name"], target / split)

    some = {image["id"] for image in data["images"][:4]}
    copy(Path("coco"), "val2017", [a for a in data["annotations"] if a["image_id"] in some], data["categories"])
    (boat,) = (c["id"] for c in data["categories"] if c["name"] == "boat")
    boats = [{**a, "category_id": 1 + a["id"] % 2} for a in data["annotations"] if a["category_id"] == boat]
    kinds = [{"id": 1, "name": "sail boat"}, {"id": 2, "name": "motor boat"}]
    first = boats[0]["image_id"]
    copy(Path("boats"), "train", [a for a in boats if a["image_id"] != first], kinds)
    copy(Path("boats"), "val", [a for a in boats if a["image_id"] == first], kinds)


@pytest.mark.slow
def test_the_tour(shared, files, monkeypatch, capsys):
    """As it is written, but every model is NanoDet-g, whose weights are at hand, and one epoch is enough."""
    names = []
    load, fit = chainsight.load, chainsight.fit

    def load_nanodet(name, **options):
        assert chainsight.model_info(name).entries[0].url.startswith("https://download.pytorch.org/")
        names.append(name)
        return load("nanodet_g", weights=shared / "weights/nanodet_g.safetensors", **options)

    monkeypatch.setattr(chainsight, "load", load_nanodet)
    monkeypatch.setattr(chainsight, "fit", lambda *data, **options: fit(*data, **options, epochs=1))
    made = {}
    exec(PYTHON[0], made)
    assert names == re.findall(r'cs\.load\("(\w+)"', PYTHON[0])
    assert made["found"].names == ["person"]
    assert len(made["cars"]) == 0
    assert load("boats.safetensors").categories.names == ("sail boat", "motor boat")
    for promised in ("curves.png", "checkpoint.safetensors"):
        assert (made["run"].folder / promised).exists()
    assert chainsight.read_image("found.jpg").shape == chainsight.read_image("street.jpg").shape
    shown = capsys.readouterr().out
    assert "Detections: 1 object in an image of 640 x 315 pixels" in shown
    assert re.search(r"AP 0\.\d{4} +AP50 0\.\d{4}", shown)


def test_the_examples_of_the_core(capsys):
    derivative, training = PYTHON[1:]
    made = {}
    exec(derivative, made)
    np.testing.assert_allclose(made["g"].numpy(), [3, 12])
    assert "[ 6., 12.]" in capsys.readouterr().out
    exec(training, made)
    assert made["loss"].item() < 0.1


def test_the_table_of_commands_names_real_options(capsys):
    rows = re.findall(r"^\| `chainsight (\w+) ?(.*?)` \|", README, re.MULTILINE)
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    known = set(re.findall(r"^    (\w+)\b", capsys.readouterr().out, re.MULTILINE))
    assert {name for name, _ in rows} == known
    for name, options in rows:
        with pytest.raises(SystemExit):
            cli.main([name, "--help"])
        text = capsys.readouterr().out
        for option in re.findall(r"--\w+", options):
            assert option in text, f"chainsight {name} has no {option}"


def test_files_that_the_readme_links_to_exist():
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert (Path(__file__).resolve().parent.parent / target).exists(), target
