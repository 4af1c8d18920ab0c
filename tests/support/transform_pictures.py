"""Makes vision/transforms/transforms.jpg: what every transform does to one drawn scene."""

from pathlib import Path

import numpy as np
from chainsight.datasets import ShapeScenes
from chainsight.vision import transforms as T

SCENES = ShapeScenes(40, size=(240, 320), seed=7)
PAIRS = SCENES.keypoint_pairs
EVERY = {
    "original": T.Compose([]),
    "HorizontalFlip": T.HorizontalFlip(1, PAIRS),
    "Resize((240, 240))": T.Resize((240, 240)),
    "ResizeShortSide((180,))": T.ResizeShortSide((180,), 400),
    "ResizeLongSide(200)": T.ResizeLongSide(200),
    "Letterbox((320, 320))": T.Letterbox((320, 320)),
    "Pad(divisor=256)": T.Pad(divisor=256),
    "Crop((160, 200))": T.Crop((160, 200)),
    "AreaCrop()": T.AreaCrop(),
    "ScaleJitter((240, 320))": T.ScaleJitter((240, 320), (0.5, 2.0)),
    "IoUCrop()": T.IoUCrop(),
    "ZoomOut()": T.ZoomOut(),
    "RandomAffine(20)": T.RandomAffine(20, 0.1, (0.8, 1.2), 10),
    "Mosaic((320, 320))": T.Mosaic((320, 320)),
    "MixUp()": T.MixUp(),
    "CopyPaste()": T.CopyPaste(),
    "HSVJitter()": T.HSVJitter(),
    "PhotometricDistort()": T.PhotometricDistort(),
    "Blur((2, 3))": T.Blur((2, 3)),
    "JPEGNoise((5, 10))": T.JPEGNoise((5, 10)),
    "Cutout(2)": T.Cutout(2),
}


def main(path: Path) -> None:
    rng = np.random.default_rng(0)
    scene = next(SCENES[i] for i in range(len(SCENES)) if len(SCENES[i]) >= 4)
    T.contact_sheet(scene, EVERY, path, lambda: SCENES[int(rng.integers(len(SCENES)))], seed=1)


if __name__ == "__main__":
    main(Path(T.__file__).parent / "transforms.jpg")
