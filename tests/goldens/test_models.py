"""Every model of the zoo that torchvision has too gives torchvision's outputs with the same, name-seeded weights."""

import importlib.util
import sys
from pathlib import Path

import chainsight
import numpy as np
import pytest
from chainsight.core import Tensor, no_grad
from chainsight.core.layers import init

FOLDER = Path(__file__).resolve().parent
SPEC = importlib.util.spec_from_file_location("goldens_seeded", FOLDER / "seeded.py")
assert SPEC is not None
assert SPEC.loader is not None
seeded = importlib.util.module_from_spec(SPEC)
sys.modules[SPEC.name] = seeded
SPEC.loader.exec_module(seeded)

STORED = {path.stem for path in FOLDER.glob("*.npz")}
SLOW = ("fasterrcnn", "maskrcnn", "keypointrcnn", "retinanet", "fcos", "vit_h_14", "regnet_y_128gf")


def names(task: str) -> list:
    """The models of a task whose golden is here, those marked slow that enlarge photos to 800 pixels or are huge."""
    found = [name for name in chainsight.list_models(task) if name in STORED]
    return [pytest.param(n, marks=pytest.mark.slow if n.startswith(SLOW) else ()) for n in found]


def seeded_model(name: str):
    """A model with the weights of its golden, and the golden."""
    golden = seeded.read_golden(FOLDER / f"{name}.npz")
    with init.skip_init():
        model = chainsight.load(name, weights=None)
    own = model.state_dict()  # what seeded weights leave out, tables of positions, stays as the model made it
    shapes = {k: (v.shape, str(v.dtype)) for k, v in own.items()}
    model.load_state_dict(own | seeded.seeded_state(shapes, golden))
    return model, golden


@pytest.mark.parametrize("name", names("classification"))
def test_logits_equal_torchvision(name: str) -> None:
    model, golden = seeded_model(name)
    for i, image in enumerate(golden.images()):
        with no_grad():
            logits = model(Tensor(seeded.imagenet_input(image))).numpy()[0]
        expected = golden.outputs[f"logits_{i}"]
        assert np.abs(logits - expected).max() <= 2e-5 * np.abs(expected).max()


Objects = tuple[np.ndarray, np.ndarray, np.ndarray]  # boxes (n, 4), scores (n,), the published category ids (n,)


def matched(wanted: Objects, found: Objects) -> float:
    """The share of the wanted detections with a found one: same category, IoU >= 0.99, score within 1e-3."""
    a, b = wanted[0][:, None].astype(np.float64), found[0][None].astype(np.float64)
    sides = np.minimum(a[..., 2:], b[..., 2:]) - np.maximum(a[..., :2], b[..., :2])
    common = np.clip(sides, 0, None).prod(2)
    union = (a[..., 2:] - a[..., :2]).prod(2) + (b[..., 2:] - b[..., :2]).prod(2) - common
    near = np.abs(a - b).max(2) < 0.01  # some models keep boxes that clipping left without area
    same = (near | (common >= 0.99 * np.maximum(union, 1e-9))) & (wanted[2][:, None] == found[2][None])
    same &= np.abs(wanted[1][:, None] - found[1][None]) <= 1e-3
    return float(same.any(1).mean())


@pytest.mark.parametrize("name", names("detection"))
def test_detections_equal_torchvision(name: str) -> None:
    """The original's detections are found and no others, save where rounding decides whether the threshold is passed.

    Scores agree to about 1e-6 and one lies 4e-7 above its model's threshold: 1e-5 around it proves nothing either way.
    """
    model, golden = seeded_model(name)
    for i, image in enumerate(golden.images()):
        result = model.predict(image, score_threshold=None)
        ours = result.boxes, result.scores, np.array(result.category_ids)[result.labels]
        boxes, scores, ids = (golden.outputs[f"{k}_{i}"] for k in ("boxes", "scores", "labels"))
        used = np.isin(ids, result.category_ids)  # the others COCO has no category for; they are dropped at the end
        original = boxes[used], scores[used], ids[used]
        for wanted, found in ((original, ours), (ours, original)):
            certain = wanted[1] > model.score_threshold + 1e-5
            assert certain.sum() >= max(5, 0.9 * len(certain))
            assert matched((wanted[0][certain], wanted[1][certain], wanted[2][certain]), found) >= 0.99
