"""Classifiers learn from folders of images, by the same call and command as everything else."""

import json

import chainsight as cs
import numpy as np
import pytest
from chainsight import core
from chainsight.cli import main
from chainsight.core import Tensor, no_grad
from chainsight.core import functions as F
from chainsight.core.layers import Flatten, Linear
from chainsight.vision.categories import Categories
from chainsight.vision.image import read_image
from chainsight.vision.model import Classifier, CropPreset
from chainsight.vision.recipes import recipe
from chainsight.vision.sample import Sample
from PIL import Image, ImageDraw


class Tiny(Classifier):
    """One linear layer on images of 8 x 8."""

    preset = CropPreset(8, 8)

    def __init__(self, categories):
        core.seed(0)
        self.flatten, self.fc = Flatten(), Linear(3 * 64, categories.outputs)
        self.categories = categories

    def forward(self, x):
        return self.fc(self.flatten(x))


def samples(*labels):
    rng = np.random.default_rng(0)
    return [Sample(rng.integers(0, 256, (9, 12, 3), np.uint8), label=k, source=f"{k}.png") for k in labels]


def test_the_loss_is_the_cross_entropy_of_what_predict_sees():
    model, batch = Tiny(Categories.with_background(["cat", "dog"])), samples(1, 0, 1)
    (name, loss), *others = model.losses(batch, np.random.default_rng(0)).items()
    with no_grad():
        logits = np.concatenate([model(model.preset(s.image)).numpy() for s in batch])
    logs = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    assert (name, others) == ("class", [])
    assert loss.item() == pytest.approx(-np.mean([logs[0, 2], logs[1, 1], logs[2, 2]]), rel=1e-6)
    loss.backward()
    assert all(p.grad is not None for p in model.parameters())


def test_ten_crops_share_the_label():
    model, batch = Tiny(Categories.plain(["cat", "dog"])), samples(0, 1)
    model.preset = CropPreset(9, 8, ten_crops=True)
    x = np.concatenate([model.preset(s.image).numpy() for s in batch])
    expected = F.softmax_cross_entropy(model(Tensor(x)), np.repeat([0, 1], 10)).item()
    assert model.losses(batch, np.random.default_rng(0))["class"].item() == expected


def test_a_sample_without_a_class_is_named():
    broken = Sample(np.zeros((9, 9, 3), np.uint8), source="a/b.png")
    with pytest.raises(ValueError, match=r"a/b\.png: training a classifier needs the image's class"):
        Tiny(Categories.plain(["cat", "dog"])).losses([*samples(0), broken], np.random.default_rng(0))


def test_every_classifier_has_the_recipe_and_its_crops_keep_the_class():
    transform = recipe(cs.load("resnet18", weights=None)).augmentation(())
    (sample,) = samples(1)
    for seed in range(20):
        changed = transform(sample, np.random.default_rng(seed), lambda: sample)
        assert changed.label == 1
        assert np.prod(changed.size) >= 0.2 * np.prod(sample.size)


def write_folders(root):
    """Red discs and blue squares on noise: folders of classes below folders of splits."""
    rng = np.random.default_rng(0)
    for split, count in (("train", 16), ("val", 8)):
        for name in ("disc", "square"):
            folder = root / split / name
            folder.mkdir(parents=True)
            for i in range(count):
                image = Image.fromarray(rng.integers(90, 166, (56, 72, 3), dtype=np.uint8))
                radius = int(rng.integers(12, 20))
                x, y = (int(rng.integers(radius, side - radius)) for side in (72, 56))
                box, draw = (x - radius, y - radius, x + radius, y + radius), ImageDraw.Draw(image)
                if name == "disc":
                    draw.ellipse(box, fill=(230, 60, 40))
                else:
                    draw.rectangle(box, fill=(40, 60, 230))
                image.save(folder / f"{i}.png")
    return root


@pytest.mark.slow
def test_train_evaluate_and_predict_by_the_command(tmp_path, capsys):
    data, out = write_folders(tmp_path / "data"), tmp_path / "run"
    command = ["train", "--model", "squeezenet1_1", "--weights", "none", "--data", f"{data}@train"]
    assert main([*command, "--valid", f"{data}@val", "--epochs", "2", "--batch", "8", "--out", str(out)]) == 0
    assert "top1" in capsys.readouterr().out
    assert {p.name for p in out.iterdir()} >= {"best.safetensors", "curves.png", "valid_predictions.jpg"}
    assert read_image(out / "valid_predictions.jpg").shape == (2 * 320, 4 * 320, 3)
    model = cs.load(out / "best.safetensors")
    assert model.categories.names == ("disc", "square")
    report = ["--json", str(tmp_path / "e.json"), "--report", str(tmp_path / "report")]
    assert main(["evaluate", "--model", str(out / "best.safetensors"), "--data", f"{data}@val", *report]) == 0
    figures = json.loads((tmp_path / "e.json").read_text())
    assert (figures["task"], figures["metrics"]["top2"]) == ("classification", 1.0)


@pytest.mark.slow
def test_a_few_epochs_from_random_weights_tell_two_classes_apart(tmp_path):
    data = write_folders(tmp_path / "data")
    core.seed(0)
    model = cs.load("resnet18", weights=None, categories=("disc", "square"))
    run = cs.fit(
        model, f"{data}@train", f"{data}@val", epochs=6, batch_size=8, out=tmp_path / "run", progress=False, workers=1
    )
    assert run.metrics["top1"] >= 0.9
    assert model.predict(data / "val" / "square" / "0.png").name == "square"
