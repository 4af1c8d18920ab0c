"""ChainerCV's two-stage detectors: models that load their files compute and find what ChainerCV does."""

import importlib.util
import json
from pathlib import Path

import chainsight
import numpy as np
import pytest
from chainsight.core import no_grad
from chainsight.vision.detection.fcis import FCIS

FOLDER = Path(__file__).resolve().parent / "chainercv"
SPEC = importlib.util.spec_from_file_location("chainercv_filling", FOLDER / "filling.py")
assert SPEC is not None
assert SPEC.loader is not None
filling = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(filling)

pytestmark = pytest.mark.slow  # files of hundreds of megabytes
SWAPPED = [1, 0, 3, 2]


@pytest.fixture(scope="module", params=sorted(path.stem for path in (FOLDER / "two_stage").glob("*.npz")))
def case(request, tmp_path_factory):
    """A golden, what is written about it, and the model with its weights, loaded from such a file as Chainer writes."""
    path = tmp_path_factory.mktemp("weights") / "weights.npz"
    with np.load(FOLDER / "two_stage" / f"{request.param}.npz") as file:
        golden = dict(file)
    about = json.loads(str(golden["about"]))
    np.savez(path, **filling.filled({k: tuple(v) for k, v in about["names"].items()}, about["gains"]))
    model = chainsight.load(request.param, weights=path)
    model.rpn.total = about["proposals"]
    yield golden, about, model
    path.unlink()


def raw_outputs(model, image, golden, i):
    """The outputs in the order and layout of ChainerCV's, the heads' for its own regions."""
    x, size = model.resize(image)
    levels, logits, codes, _ = model.first_stage(x)
    proposals = golden[f"rois_{i}"][:, SWAPPED]
    found = [np.concatenate([t.numpy()[0] for t in logits])]
    found += [np.concatenate([t.numpy()[0] for t in codes])[:, SWAPPED]]
    if isinstance(model, FCIS):
        classes, inside, deltas = model.roi_heads(levels, [proposals])
        return [*found, classes.numpy(), deltas.numpy()[..., SWAPPED], inside.numpy()]
    classes, deltas = model.roi_heads(levels, [proposals], size)
    found += [classes.numpy(), deltas.numpy().reshape(len(proposals), -1, 4)[..., SWAPPED]]
    if f"mask_rois_{i}" in golden:
        found.append(model.roi_heads.masks(levels, [golden[f"mask_rois_{i}"][:, SWAPPED]], size).numpy())
    return found


def images(about):
    return [filling.seeded.synthetic_image(*size) for size in about["sizes"]]


def check_outputs(golden, about, model, images):
    for i, image in enumerate(images):
        with no_grad():
            outputs = raw_outputs(model, image, golden, i)
        for k, output in enumerate(outputs):
            expected = golden[f"raw_{i}_{k}"]
            flat = output.ravel()
            found = flat[:: max(1, flat.size // about["values"])]
            assert np.abs(found - expected).max() <= 1e-4 * np.abs(expected).max(), (i, k)


def check_detections(golden, about, model, images):
    for i, image in enumerate(images):
        found = model.predict(image, score_threshold=about["threshold"])
        labels, scores = golden[f"labels_{i}"], golden[f"scores_{i}"]
        assert len(scores) >= 10
        assert abs(len(found) - len(scores)) <= 0.01 * len(scores)
        same = (np.abs(scores[:, None] - found.scores) <= 1e-3) & (labels[:, None] == found.labels)
        if f"boxes_{i}" in golden:
            boxes = golden[f"boxes_{i}"][:, SWAPPED]
            same &= np.abs(boxes[:, None] - found.boxes).max(2) <= 0.01 * max(image.shape)
        if f"areas_{i}" in golden:
            pixels = np.stack([mask.ravel()[:: about["step"]] for mask in found.masks])
            theirs = np.unpackbits(golden[f"pixels_{i}"], axis=1, count=pixels.shape[1]).astype(bool)
            differing = np.count_nonzero(pixels[None] != theirs[:, None], axis=2)
            same &= differing <= 0.002 * pixels.shape[1]
            same &= np.abs(golden[f"areas_{i}"][:, None] - found.masks.areas()) <= 2 + 0.01 * found.masks.areas()
        assert same.any(1).mean() >= 0.99


def test_outputs_equal_chainercv(case):
    golden, about, model = case
    check_outputs(golden, about, model, images(about))


def test_detections_equal_chainercv(case):
    golden, about, model = case
    check_detections(golden, about, model, images(about))
