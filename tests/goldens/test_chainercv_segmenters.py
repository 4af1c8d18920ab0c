"""ChainerCV's segmentation models: what loads their files computes what ChainerCV does and names the same pixels."""

import importlib.util
import json
from dataclasses import replace
from pathlib import Path

import chainsight
import numpy as np
import pytest
from chainsight.core import Tensor, no_grad
from chainsight.vision.segmentation.pspnet import tiles

FOLDER = Path(__file__).resolve().parent / "chainercv"
SPEC = importlib.util.spec_from_file_location("chainercv_filling", FOLDER / "filling.py")
assert SPEC is not None
assert SPEC.loader is not None
filling = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(filling)

STORED = sorted(path.stem for path in (FOLDER / "segmenters").glob("*.npz"))
NAMES = [pytest.param(n, marks=() if n == "segnet" else pytest.mark.slow) for n in STORED]


def first_output(model, image):
    """What ChainerCV's network gives for the first input that it sees of a picture."""
    if not model.name.startswith("pspnet"):
        return model.logits(model.preset(image))
    size = model.preset.size
    pixels = image - np.asarray(model.preset.mean, np.float32) * 255
    tile = np.zeros((*size, 3), np.float32)
    if max(image.shape[:2]) > max(size):
        rows, columns, inner = next(tiles(image.shape[:2], size))
        tile[inner] = pixels[rows, columns]
    else:
        top, left = ((a - b) // 2 for a, b in zip(size, image.shape))
        tile[top : top + image.shape[0], left : left + image.shape[1]] = pixels
    return model(Tensor(tile[None].transpose(0, 3, 1, 2)))


def check(model, golden, about, images):
    """Raw outputs, label maps, and those of several scales."""
    if model.name != "segnet":
        model.preset = replace(model.preset, size=tuple(about["input"]))
    once = model.preset
    for i, image in enumerate(images):
        with no_grad():
            raw = first_output(model, image).numpy().ravel()
        expected = golden[f"raw_{i}"]
        found = raw[:: max(1, raw.size // about["values"])]
        assert found.shape == expected.shape
        near = np.abs(found - expected) <= 1e-4 * np.abs(expected).max()
        # SegNet remembers in which of four places the greatest value was; where two are equal, rounding decides
        assert near.mean() >= (0.995 if model.name == "segnet" else 1)
        for key in ("labels", "several"):
            if f"{key}_{i}" in golden:
                if key == "several":
                    model.preset = replace(once, scales=tuple(about["scales"]), flip=True)
                labels = model.predict(image).labels[:: about["step"], :: about["step"]]
                assert len(np.unique(golden[f"{key}_{i}"])) >= 2
                assert (labels == golden[f"{key}_{i}"]).mean() >= 0.999
        model.preset = once


@pytest.mark.parametrize("name", NAMES)
def test_outputs_equal_chainercv(name, tmp_path):
    with np.load(FOLDER / "segmenters" / f"{name}.npz") as file:
        golden = dict(file)
    about = json.loads(str(golden["about"]))
    arrays = filling.filled({k: tuple(v) for k, v in about["names"].items()}, about["gains"])
    np.savez(tmp_path / "weights.npz", **arrays)
    model = chainsight.load(name, weights=tmp_path / "weights.npz")
    check(model, golden, about, [filling.seeded.synthetic_image(*size) for size in about["sizes"]])
