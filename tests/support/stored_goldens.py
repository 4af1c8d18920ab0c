"""Models with the name-seeded weights of the stored goldens, and how to compare their detections."""

import importlib.util
import sys
from pathlib import Path

import chainsight
import numpy as np

FOLDER = Path(__file__).resolve().parent.parent / "goldens"
SPEC = importlib.util.spec_from_file_location("stored_seeded", FOLDER / "seeded.py")
seeded = importlib.util.module_from_spec(SPEC)
sys.modules[SPEC.name] = seeded
SPEC.loader.exec_module(seeded)


def stored(task):
    """The models of a task that have a golden."""
    return [name for name in chainsight.list_models(task) if (FOLDER / f"{name}.npz").exists()]


def seeded_model(name):
    """A model with the weights of its golden, and the golden."""
    golden = seeded.read_golden(FOLDER / f"{name}.npz")
    model = chainsight.load(name, weights=None)
    shapes = {k: (v.shape, str(v.dtype)) for k, v in model.state_dict().items()}
    model.load_state_dict(seeded.seeded_state(shapes, golden))
    return model, golden


def matches(found, boxes, scores, ids):
    """For each given detection the index of ours with its category, IoU >= 0.99 and score within 1e-3; or -1."""
    a, b = boxes[:, None].astype(np.float64), found.boxes[None].astype(np.float64)
    common = np.clip(np.minimum(a[..., 2:], b[..., 2:]) - np.maximum(a[..., :2], b[..., :2]), 0, None).prod(2)
    union = (a[..., 2:] - a[..., :2]).prod(2) + (b[..., 2:] - b[..., :2]).prod(2) - common
    same = (common >= 0.99 * union) & (np.abs(scores[:, None] - found.scores[None]) <= 1e-3)
    same &= ids[:, None] == np.array(found.category_ids)[found.labels][None]
    return np.where(same.any(1), same.argmax(1), -1)
