"""ChainerCV's classifiers: models that load their files compute what ChainerCV does, of one square and of ten."""

import importlib.util
import json
from dataclasses import replace
from pathlib import Path

import chainsight
import numpy as np
import pytest
from chainsight.core import no_grad
from chainsight.vision import models

FOLDER = Path(__file__).resolve().parent / "chainercv"
SPEC = importlib.util.spec_from_file_location("chainercv_filling", FOLDER / "filling.py")
assert SPEC is not None
assert SPEC.loader is not None
filling = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(filling)

STORED = sorted(path.stem for path in (FOLDER / "classifiers").glob("*.npz"))
NAMES = [pytest.param(n, marks=() if n.startswith("mobilenet") else pytest.mark.slow) for n in STORED]


@pytest.mark.parametrize("name", NAMES)
def test_outputs_equal_chainercv(name, tmp_path):
    with np.load(FOLDER / "classifiers" / f"{name}.npz") as file:
        golden = dict(file)
    about = json.loads(str(golden["about"]))
    file = tmp_path / models.MODELS[name].entries[-1].file  # its preprocessing goes by its name
    np.savez(file, **filling.filled({k: tuple(v) for k, v in about["names"].items()}, about["gains"]))
    model = chainsight.load(name, weights=file)
    file.unlink()
    outputs = list(model.categories.slots)
    for i, size in enumerate(about["sizes"]):
        image = filling.seeded.synthetic_image(*size)
        with no_grad():
            logits = model(model.preset(image)).numpy()[0]
        expected = golden[f"logits_{i}"]
        assert np.abs(logits - expected).max() <= 1e-4 * np.abs(expected).max()
        one = np.exp(expected - expected.max()) / np.exp(expected - expected.max()).sum()
        np.testing.assert_allclose(model.predict(image).probabilities, one[outputs], rtol=1e-3)
    # ten squares of the last picture
    model.preset = replace(model.preset, ten_crops=True)
    found = model.predict(image).probabilities
    np.testing.assert_allclose(found, golden[f"ten_{i}"][outputs], rtol=1e-3)
