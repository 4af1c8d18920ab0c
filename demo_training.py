"""How the demo's detector was trained, from random values: `python -m chainsight.demo_training RUNS`.

Leaves a run of each stage in the folder RUNS, to be stopped and gone on with at any time, and what the package holds
in RUNS/data: the weights, matrices in half precision, with the settings and the log of every stage beside them.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import numpy as np

from .core import seed
from .datasets import ShapeScenes
from .training import fit
from .vision.models import load
from .vision.sample import Sample
from .vision.transforms import HorizontalFlip
from .weights.readers import read
from .weights.writer import read_metadata, save_safetensors

VALID_SEED = 1  # the demo and the tests use others
# Pixels of the input, scenes, epochs, batch size, learning rate, seed of the scenes: small pictures first, as they cost
# least.
STAGES = (
    (128, 4000, 4, 8, 2e-3, 100),
    (192, 4000, 3, 8, 1.5e-3, 101),
    (320, 6000, 6, 8, 1.5e-3, 102),
    (320, 9000, 2, 8, 1.2e-3, 103),
)


class KeptScenes(ShapeScenes):
    """Scenes that are drawn once and stay in memory, without their masks and keypoints."""

    def __init__(self, n: int, size: int, seed: int) -> None:
        super().__init__(n, size, seed)
        self.kept: dict[int, Sample] = {}

    def load(self, index: int) -> Sample:
        if index not in self.kept:
            s = super().load(index)
            self.kept[index] = Sample(s.image, s.boxes, s.labels, s.ignore, image_id=index, source=s.source)
        return self.kept[index]


def train(folder: Path) -> None:
    """Train through all stages, each from the best weights of the one before."""
    seed(0)
    model = load("nanodet_shapes", weights=None)
    for number, (size, scenes, epochs, batch_size, lr, scene_seed) in enumerate(STAGES, 1):
        out = folder / f"stage-{number}"
        model.size = (size, size)
        run = fit(
            model,
            KeptScenes(scenes, size, scene_seed),
            KeptScenes(50, size, VALID_SEED),
            epochs=epochs,
            out=out,
            batch_size=batch_size,
            lr=lr,
            augmentation=HorizontalFlip(0.5),
            resume=(out / "checkpoint.safetensors").exists(),
        )
        print(run, flush=True)
        pack(out, folder / "data")


def pack(run: Path, target: Path) -> None:
    """Write a run's best weights, its settings and its log as the package holds them."""
    target.mkdir(exist_ok=True)
    best = run / "best.safetensors"
    halves = {k: np.asarray(v, np.float16 if v.ndim > 1 else v.dtype) for k, v in read(best).items()}
    save_safetensors(target / "nanodet_shapes.safetensors", halves, read_metadata(best))
    shutil.copy(run / "epochs.csv", target / f"nanodet_shapes.{run.name}.csv")
    shutil.copy(run / "settings.json", target / f"nanodet_shapes.{run.name}.json")


if __name__ == "__main__":
    train(Path(sys.argv[1]))
