"""Every model of the zoo: it builds, is what its entries say, predicts, and comes back from a file as it was."""

import csv
import hashlib
import json
import re
from dataclasses import replace
from math import nan

import numpy as np
import pytest
from chainsight.core.layers import init
from chainsight.vision import models
from chainsight.vision.backbones.vit import VisionTransformerClassifier
from chainsight.vision.model import Classifier, CropPreset
from chainsight.weights.entry import validate
from chainsight.weights.torchvision import LICENCE, UNSUPPORTED
from chainsight.weights.writer import save_safetensors

HOST = "https://download.pytorch.org/models/"
ENTRIES = [pytest.param(info, e, id=f"{n}-{e.name}") for n, info in models.MODELS.items() for e in info.entries]
# small enough to be filled and run; the others are built by shape only
FITTING = [name for name, info in models.MODELS.items() if info.entries[0].parameters < 9_000_000]
WITHOUT_AUXILIARY_HEAD = {"inception_v3": 27_161_264}


def published(shared):
    """The rows of the table of everything that torchvision publishes."""
    with open(shared / "facts" / "torchvision_weights.tsv", newline="") as file:
        return list(csv.DictReader(file, delimiter="\t"))


def test_every_published_file_is_read_or_has_a_reason(shared):
    files = [row["url"].removeprefix(HOST).removesuffix(".pth") for row in published(shared)]
    assert len(files) == 166
    read = {e.url.removeprefix(HOST).removesuffix(".pth") for info in models.MODELS.values() for e in info.entries}
    refused = [file for group in UNSUPPORTED.values() for file in group]
    assert len(refused) == len(set(refused))
    assert not read & set(refused)
    assert set(refused) <= set(files)
    assert sorted(set(files) - read - set(refused)) == []


def test_classifiers_are_as_published(shared):
    """Parameters, metrics, preprocessing, licence and computation of torchvision's entries equal those of the table."""
    rows = {row["url"]: row for row in published(shared)}
    classifiers = [models.MODELS[name] for name in models.list_models("classification")]
    theirs = [(info, [e for e in info.entries if e.url.startswith(HOST)]) for info in classifiers]
    assert sum(bool(entries) for _, entries in theirs) >= 80
    for info, entries in theirs:
        for place, entry in enumerate(entries):
            row = rows[entry.url]
            assert row["model"] == info.name
            assert row["weight"].split(".")[1] == entry.name
            assert int(row["params"]) == WITHOUT_AUXILIARY_HEAD.get(info.name, entry.parameters)
            if place == 0:
                assert float(row["GFLOPS"]) == info.gflops
            found = {k: v for k, v in json.loads(row["metrics"])["ImageNet-1K"].items() if v is not nan and v == v}
            assert entry.metrics == ({"ImageNet-1K": found} if found else {})
            assert CropPreset(**entry.settings) == preset_of(row["transforms"])
            assert ("CC-BY-NC-4.0" in entry.licence) == ("SWAG" in row["license"])
            assert "CC-BY-NC-4.0" in entry.licence or entry.licence == LICENCE


def preset_of(text: str) -> CropPreset:
    """The preset that a row of the table describes."""
    numbers = {k: [float(v) for v in found.split(",")] for k, found in re.findall(r"(\w+)=\[([^]]+)\]", text)}
    (interpolation,) = re.findall(r"InterpolationMode\.(\w+)", text)
    return CropPreset(
        int(numbers["resize_size"][0]),
        int(numbers["crop_size"][0]),
        interpolation.lower(),
        tuple(numbers["mean"]),
        tuple(numbers["std"]),
    )


@pytest.mark.parametrize(("info", "entry"), ENTRIES)
def test_entries_are_valid(info, entry):
    validate(entry)
    if entry.url.startswith(HOST):
        assert entry.sha256
        assert entry.url.endswith(f"-{entry.sha256}.pth")


def test_names_are_unique():
    assert len(models.MODELS) == sum(len(module.MODELS) for module in models.MODULES)
    for info in models.MODELS.values():
        names = [e.name for e in info.entries]
        assert len(names) == len(set(names))
        assert info.paper


@pytest.mark.parametrize("name", models.MODELS)
def test_has_the_parameters_of_its_entries(name):
    info = models.MODELS[name]
    for entry in info.entries:
        with init.skip_init():
            model = info.build(info.categories_of(entry))
        if isinstance(model, VisionTransformerClassifier):
            side = entry.settings.get("crop", 224) // model.strides[0]
            state = {"encoder.pos_embedding": np.empty((1, side * side + 1, model.channels[0]), np.float32)}
            model.take_shapes(state)
        assert model.parameter_count() == entry.parameters
        assert any(key.startswith(model.class_layers) for key in dict(model.named_parameters()))


@pytest.mark.parametrize("name", FITTING)
def test_predicts_on_photos_of_any_size(name):
    model = models.load(name, weights=None)
    rng = np.random.default_rng(0)
    for height, width in ((64, 64), (37, 90), (150, 41)):
        photo = rng.integers(0, 256, (height, width, 3), np.uint8)
        found = model.predict(photo, score_threshold=None)
        if isinstance(model, Classifier):
            assert found.probabilities.shape == (len(model.categories.names),)
            assert np.isfinite(found.probabilities).all()
            background = model.categories.outputs - len(model.categories)
            assert found.probabilities.sum() == pytest.approx(1, abs=0.1 if background else 1e-4)
        elif hasattr(found, "scores"):
            assert np.isfinite(found.scores).all()
            assert np.isfinite(found.boxes).all()
        else:
            assert found.labels.shape == (height, width)


@pytest.mark.parametrize("name", FITTING)
def test_saves_and_loads_to_equality(name, tmp_path):
    model = models.load(name, weights=None)
    model.save(tmp_path / "model.safetensors")
    back = models.load(tmp_path / "model.safetensors")
    assert type(back) is type(model)
    assert back.name == name
    assert back.categories == model.categories
    own, other = model.state_dict(), back.state_dict()
    assert own.keys() == other.keys()
    for key, value in own.items():
        assert other[key].dtype == value.dtype
        np.testing.assert_array_equal(other[key], value)
    if isinstance(model, Classifier):
        assert back.preset == model.preset == CropPreset(**models.MODELS[name].entries[0].settings)


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("weights") / "own.safetensors"
    save_safetensors(path, models.load("mobilenet_v2", weights=None).state_dict())
    return path


class TestAFileIsPreprocessedForAsItsEntrySays:
    """MobileNetV2's second version is the recommended one and resizes to 232 pixels, the first to 256."""

    @staticmethod
    def loaded(weights):
        model = models.load("mobilenet_v2", weights=weights)
        assert model.preset == CropPreset(**model.entry.settings)
        return model.entry.name, model.preset.resize

    def test_of_the_recommended_one_when_nothing_is_known(self, file):
        assert self.loaded(file) == ("IMAGENET1K_V2", 232)

    def test_of_the_one_that_is_named(self, file):
        assert self.loaded(f"IMAGENET1K_V1={file}") == ("IMAGENET1K_V1", 256)
        assert self.loaded(f"IMAGENET1K_V2={file}") == ("IMAGENET1K_V2", 232)

    def test_of_the_published_file_of_that_name(self, file, tmp_path):
        same = tmp_path / "mobilenet_v2-b0353104.pth"
        same.write_bytes(file.read_bytes())
        assert self.loaded(same) == ("IMAGENET1K_V1", 256)

    def test_of_the_published_file_of_that_hash(self, file, monkeypatch):
        info = models.MODELS["mobilenet_v2"]
        start = hashlib.sha256(file.read_bytes()).hexdigest()[:8]
        first = replace(info.entries[1], sha256=start)
        monkeypatch.setitem(models.MODELS, info.name, replace(info, entries=(info.entries[0], first)))
        assert self.loaded(file) == ("IMAGENET1K_V1", 256)

    def test_a_name_with_an_equals_sign_is_a_file(self, file, tmp_path):
        same = tmp_path / "lr=0.1.safetensors"
        same.write_bytes(file.read_bytes())
        assert self.loaded(same) == ("IMAGENET1K_V2", 232)
        assert self.loaded(f"IMAGENET1K_V1={same}") == ("IMAGENET1K_V1", 256)

    @pytest.mark.parametrize("weights", ["IMAGENET1K_V1=", "IMAGENET1K_V1=no.pth", "IMAGENET1K_V9={}", "={}"])
    def test_what_is_neither(self, file, weights):
        with pytest.raises(ValueError, match=r"\(IMAGENET1K_V2, IMAGENET1K_V1\), a file, ENTRY=FILE.*no file"):
            self.loaded(weights.format(file))
