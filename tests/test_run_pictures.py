"""The pictures of a run show what the model learns from."""

from dataclasses import replace

import cv2
import numpy as np
import pytest
from chainsight import run_pictures
from chainsight.datasets import ShapeScenes
from chainsight.vision.image import read_image

SIDE = run_pictures.TILE  # drawn scenes of this size are not resized


@pytest.mark.parametrize("kind", ["masks", "keypoints"])
def test_masks_and_keypoints_are_drawn_where_they_are(kind, tmp_path):
    scenes = ShapeScenes(1, size=SIDE, seed=3)
    bare = replace(scenes[0], masks=None, keypoints=None)
    pictures = []
    for name, sample in (("bare", bare), (kind, replace(bare, **{kind: getattr(scenes[0], kind)}))):
        run_pictures.write_samples(tmp_path / f"{name}.png", [sample], scenes.categories)
        pictures.append(read_image(tmp_path / f"{name}.png"))
    changed = (pictures[0] != pictures[1]).any(2)
    if kind == "masks":
        where = scenes[0].masks.any(0)
        outside = ~cv2.dilate(where.astype(np.uint8), np.ones((7, 7), np.uint8)).astype(bool)
        assert changed[where].mean() > 0.8
        assert not changed[outside].any()
    else:
        x, y = np.rint(scenes[0].keypoints[..., :2][scenes[0].keypoints[..., 2] > 0]).astype(int).T
        inside = (x >= 0) & (x < SIDE) & (y >= 0) & (y < SIDE)
        assert changed[y[inside], x[inside]].mean() > 0.8
