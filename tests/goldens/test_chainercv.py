"""ChainerCV's files: models that load them compute and find what ChainerCV does with the same weights."""

import importlib.util
import json
from pathlib import Path

import chainsight
import numpy as np
import pytest
from chainsight.core import Tensor, no_grad

FOLDER = Path(__file__).resolve().parent / "chainercv"
SPEC = importlib.util.spec_from_file_location("chainercv_filling", FOLDER / "filling.py")
assert SPEC is not None
assert SPEC.loader is not None
filling = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(filling)

pytestmark = pytest.mark.slow  # files of hundreds of megabytes
DETECTORS = sorted(path.stem for path in FOLDER.glob("*.npz"))


@pytest.fixture(scope="module", params=DETECTORS)
def case(request, tmp_path_factory):
    """A golden, what is written about it, and the model with its weights, loaded from such a file as Chainer writes."""
    path = tmp_path_factory.mktemp("weights") / "weights.npz"
    with np.load(FOLDER / f"{request.param}.npz") as file:
        golden = dict(file)
    about = json.loads(str(golden["about"]))
    np.savez(path, **filling.filled({k: tuple(v) for k, v in about["names"].items()}, about["gains"]))
    model = chainsight.load(request.param, weights=path)
    yield golden, about, model
    path.unlink()


def raw_outputs(model, image):
    """The network's outputs in the order and layout of ChainerCV's: boxes as y, x, height, width."""
    swapped = [1, 0, 3, 2]
    if model.name.startswith("yolo"):
        x = model.resize(image) / np.float32(255)
        maps = [y.numpy()[0] for y in model(Tensor(x[None].transpose(0, 3, 1, 2)))]
        anchors = [len(model.network.layers[i].anchors) for i in model.network.heads]
        cells = [y.transpose(1, 2, 0).reshape(-1, len(y) // k) for y, k in zip(maps, anchors)]
        rows = np.concatenate(cells)
        return rows[:, swapped], rows[:, 4], rows[:, 5:]
    logits, codes, _ = model(model.resize(image)[0])
    return codes.numpy()[0][:, swapped], logits.numpy()[0]


def test_outputs_equal_chainercv(case):
    golden, about, model = case
    for i, size in enumerate(about["sizes"]):
        with no_grad():
            outputs = raw_outputs(model, filling.seeded.synthetic_image(*size))
        for k, output in enumerate(outputs):
            expected = golden[f"raw_{i}_{k}"]
            flat = output.ravel()
            found = flat[:: max(1, flat.size // about["values"])]
            assert np.abs(found - expected).max() <= 1e-4 * np.abs(expected).max()


def test_detections_equal_chainercv(case):
    golden, about, model = case
    for i, size in enumerate(about["sizes"]):
        found = model.predict(filling.seeded.synthetic_image(*size), score_threshold=about["threshold"])
        boxes, labels, scores = (golden[f"{key}_{i}"] for key in ("boxes", "labels", "scores"))
        assert len(scores) >= 10
        assert abs(len(found) - len(scores)) <= 0.01 * len(scores)
        near = np.abs(boxes[:, None, [1, 0, 3, 2]] - found.boxes).max(2) <= 0.01 * max(size)
        same = near & (np.abs(scores[:, None] - found.scores) <= 1e-3) & (labels[:, None] == found.labels)
        assert same.any(1).mean() >= 0.99
