"""Files as torchvision wrote them over the years: older names, auxiliary heads, positions for other images."""

from functools import partial

import numpy as np
import pytest
from chainsight.core import Tensor, no_grad
from chainsight.vision import models
from chainsight.vision.backbones.blocks import classifier_info
from chainsight.vision.backbones.vit import VisionTransformerClassifier
from chainsight.vision.categories import Categories
from chainsight.vision.model import CropPreset
from chainsight.weights.errors import WeightsError
from chainsight.weights.loading import match_state
from chainsight.weights.torchvision import swag_entry
from chainsight.weights.writer import save_safetensors

NAMES = ("boat", "buoy", "gull")


@pytest.mark.parametrize(
    ("name", "renamed"),
    [
        ("densenet121", {"features.denseblock3.denselayer24.norm.1.running_var": "norm1", "conv.2.weight": "conv2"}),
        ("vit_b_16", {"encoder.layers.encoder_layer_11.mlp.linear_1.bias": "mlp.0.", "linear_2.weight": "mlp.3."}),
    ],
)
def test_older_names(name, renamed):
    info = models.MODELS[name]
    new = {
        "features.denseblock3.denselayer24.norm1.running_var": "features.denseblock3.denselayer24.norm.1.running_var",
        "features.denseblock1.denselayer1.conv2.weight": "features.denseblock1.denselayer1.conv.2.weight",
        "encoder.layers.encoder_layer_11.mlp.0.bias": "encoder.layers.encoder_layer_11.mlp.linear_1.bias",
        "encoder.layers.encoder_layer_0.mlp.3.weight": "encoder.layers.encoder_layer_0.mlp.linear_2.weight",
    }
    expected = {k: np.zeros(2, np.float32) for k in new if k.startswith("features" if "dense" in name else "encoder")}
    found = {new[k]: np.full(2, i, np.float32) for i, k in enumerate(expected)}
    assert all(any(part in key for key in found) for part in renamed)
    report = match_state(expected, found, renames=info.renames)
    assert {k: int(v[0]) for k, v in report.arrays.items()} == {k: i for i, k in enumerate(expected)}


@pytest.mark.parametrize(("name", "head"), [("googlenet", "aux"), ("inception_v3", "AuxLogits")])
def test_auxiliary_heads_in_a_file_are_left(name, head, tmp_path):
    model = models.load(name, weights=None, categories=NAMES)
    heads = [key for key in model.ignored_keys if key.startswith(head)]
    assert len(heads) == {"googlenet": 20, "inception_v3": 14}[name]
    state = model.state_dict() | {key: np.ones(3, np.float32) for key in heads}
    save_safetensors(tmp_path / "file.safetensors", state)
    models.fill(model, models.MODELS[name], tmp_path / "file.safetensors", keep_classes=True)
    save_safetensors(tmp_path / "odd.safetensors", state | {"aux3.fc.weight": np.ones(3, np.float32)})
    with pytest.raises(WeightsError, match=r"aux3\.fc\.weight"):
        models.fill(model, models.MODELS[name], tmp_path / "odd.safetensors", keep_classes=True)


def tiny_vit(categories: Categories, size: int = 64) -> VisionTransformerClassifier:
    return VisionTransformerClassifier(16, size, 1, 8, 2, 16, categories)


def test_a_file_decides_the_positions_of_a_transformer(tmp_path, monkeypatch):
    info = classifier_info("", tiny_vit, 0.0, swag_entry("E2E", "tiny-01234567", 1, 1.0, 1.0, resize=64, crop=64))
    monkeypatch.setitem(models.MODELS, "tiny_vit", info)
    categories = Categories.plain(NAMES)
    large = partial(tiny_vit, size=96)(categories).eval()
    save_safetensors(tmp_path / "large.safetensors", large.state_dict())

    model = models.build(info, info.entries[0], NAMES)
    assert model.preset == CropPreset(64, 64, "bicubic")
    models.fill(model, info, tmp_path / "large.safetensors", keep_classes=True)
    model.eval()
    assert model.encoder.pos_embedding.shape == (1, 37, 8)
    assert model.preset == CropPreset(96, 96, "bicubic")
    x = Tensor(np.random.default_rng(0).standard_normal((1, 3, 96, 96), np.float32))
    with no_grad():
        np.testing.assert_array_equal(model(x).numpy(), large(x).numpy())

    model.save(tmp_path / "saved.safetensors")
    back = models.load(tmp_path / "saved.safetensors")
    assert back.preset == model.preset
    np.testing.assert_array_equal(back.encoder.pos_embedding.numpy(), model.encoder.pos_embedding.numpy())

    wrong = large.state_dict() | {"encoder.pos_embedding": np.zeros((1, 37, 9), np.float32)}
    save_safetensors(tmp_path / "wrong.safetensors", wrong)
    with pytest.raises(WeightsError, match=r"pos_embedding"):
        models.fill(model, info, tmp_path / "wrong.safetensors", keep_classes=True)
