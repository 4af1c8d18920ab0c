"""Convolutions of bytes: close to the plain ones, saved and loaded like any model, the cost in accuracy."""

import json

import chainsight
import numpy as np
import pytest
from chainsight.cli import main
from chainsight.core import Tensor, kernels, no_grad
from chainsight.core.kernels import ConvSpec, FusedConv2d, Quantization, reference, use_reference
from chainsight.core.layers import BatchNorm2d, Conv2d, ReLU, Sequential
from chainsight.vision.quantization import QuantizedConv2d, _Observed, quantize
from PIL import Image

RNG = np.random.default_rng(0)


def photo(height=90, width=120):
    return RNG.integers(0, 256, (height, width, 3), dtype=np.uint8)


@pytest.mark.parametrize("low", [0, -128])
@pytest.mark.parametrize("groups", [1, 4])
@pytest.mark.parametrize("added", [False, True])
def test_the_kernel_multiplies_exactly_the_rounded_numbers(low, groups, added):
    x = RNG.standard_normal((2, 32, 9, 11), np.float32) * 2
    w = RNG.integers(-127, 128, (24, 32 // groups, 3, 3)).astype(np.float32)
    b, steps = RNG.standard_normal(24, np.float32), RNG.uniform(-0.01, 0.01, 24).astype(np.float32)
    steps[3] = 0
    spec = ConvSpec(padding=(1, 1, 1, 1), groups=groups)
    residual = RNG.standard_normal((2, 24, 9, 11), np.float32) if added else None
    whole = np.clip(np.rint(x / np.float32(0.0125)), low, low + 255) * 0.0125
    expected = reference.conv2d(whole.astype(np.float64), w * steps.reshape(-1, 1, 1, 1).astype(np.float64), b, spec)
    expected = np.maximum(expected if residual is None else expected + residual, 0)
    conv = FusedConv2d(w, b, spec, kernels.RELU, False, Quantization(0.0125, low, steps))
    found = [
        conv(given, residual) for given in (x, np.ascontiguousarray(x.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2))
    ]
    with use_reference():
        found.append(FusedConv2d(w, b, spec, kernels.RELU, False, Quantization(0.0125, low, steps))(x, residual))
    for y in found:
        assert y.dtype == np.float32
        assert np.abs(y - expected).max() <= 2e-3 * np.abs(expected).max()  # a number in the middle rounds either way


def test_a_layer_with_its_norm_is_close_to_the_plain_one():
    layers = Sequential(Conv2d(32, 16, 3, padding=1, bias=False), BatchNorm2d(16), ReLU())
    layers[1].running_mean.data = RNG.standard_normal(16, np.float32)
    layers[1].weight.data = RNG.standard_normal(16).astype(np.float32)  # negative ones, too
    layers.eval()
    x = Tensor(np.abs(RNG.standard_normal((1, 32, 20, 20), np.float32)))
    with no_grad():
        expected = layers(x).numpy()
        observer = _Observed(layers[0], np.random.default_rng(0))
        observer.fused(x)
        setattr(layers, "0", observer.quantized(layers[0]))
        assert isinstance(layers[0], QuantizedConv2d)
        found = layers(x).numpy()
    assert np.array_equal(layers(x).numpy(), found)  # where a graph could be recorded, too
    assert 0 < np.abs(found - expected).max() < 0.03 * expected.max()
    with pytest.raises(ValueError, match="cannot be trained"):
        layers.train()(x)


@pytest.mark.parametrize("name", ["resnet18", "nanodet_g", "lraspp_mobilenet_v3_large"])
def test_saved_and_loaded_like_any_model(name, tmp_path):
    model = chainsight.load(name, weights=None)
    photos = [photo(), photo(60, 60)]
    plain = model.state_dict()
    assert quantize(model, photos) is model
    assert any(a.dtype == np.int8 for a in model.state_dict().values())
    model.save(tmp_path / "a.safetensors")
    assert (tmp_path / "a.safetensors").stat().st_size < 0.75 * sum(a.nbytes for a in plain.values())
    again = chainsight.load(tmp_path / "a.safetensors")
    for key, value in model.state_dict().items():
        assert np.array_equal(again.state_dict()[key], value), key
    for model_input in photos:
        results = [m.predict(model_input, score_threshold=0.0) for m in (model, again)]
        for field in ("boxes", "scores", "labels", "probabilities"):
            if hasattr(results[0], field):
                assert np.array_equal(*(getattr(r, field) for r in results)), field
    with pytest.raises(chainsight.WeightsError, match="cannot be trained"):
        chainsight.load(tmp_path / "a.safetensors", categories=["boat"])
    with pytest.raises(ValueError, match="quantized already"):
        quantize(again, photos)


def test_what_cannot_be_done_is_said_and_changes_nothing():
    model = chainsight.load("resnet18", weights=None)
    before = model.state_dict()
    with pytest.raises(ValueError, match="at least one photo"):
        quantize(model, [])
    with pytest.raises(chainsight.ImageError):
        quantize(model, [photo(), "no-such.jpg"])
    after = model.state_dict()
    assert before.keys() == after.keys()
    assert all(np.array_equal(before[k], after[k]) for k in before)
    assert all(type(m).__name__ != "_Observed" for _, m in model.named_modules())
    assert all(p.requires_grad for p in model.parameters())


def test_training_a_quantized_model_is_refused(tmp_path):
    model = quantize(chainsight.load("nanodet_g", weights=None), [photo()])
    data = [chainsight.Sample(photo(), boxes=np.array([[5, 5, 40, 40.0]], np.float32), labels=np.array([0]))]
    with pytest.raises(ValueError, match="cannot be trained"):
        model.train().losses(data, np.random.default_rng(0))


def test_the_command(tmp_path, capsys):
    Image.fromarray(photo()).save(tmp_path / "a.png")
    plain, out = str(tmp_path / "plain.safetensors"), str(tmp_path / "small.safetensors")
    chainsight.load("resnet18", weights=None).save(plain)
    assert main(["quantize", "--model", plain, "--calibrate", str(tmp_path / "a.png"), "--out", out]) == 0
    text = capsys.readouterr()
    assert "MB, now" in text.out, text.err
    assert main(["predict", str(tmp_path / "a.png"), "--model", out, "--json", str(tmp_path / "found.json")]) == 0
    assert len(json.loads((tmp_path / "found.json").read_text())) == 1
