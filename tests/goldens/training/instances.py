"""What the golden losses of masks and keypoints are computed on: the images and boxes of `objects.py`, and more.

The first two objects of the first image are not for the original: one is ignored (so small that no region lies half in
it), one has no width. The last one has no annotated keypoint, and of the others some lie outside of the
box. The second image has no object.
"""

import numpy as np
from objects import IMAGES, OBJECTS

KEYPOINTS = 17
LEFT_OUT = 2  # of the objects of the first image, from the front


def _first() -> dict[str, np.ndarray]:
    height, width = IMAGES[0]
    left_out = np.array([[250, 100, 253, 103], [40, 50, 40, 90]], np.float32)
    boxes = np.concatenate([left_out, OBJECTS[0]["boxes"]])
    y, x = np.mgrid[:height, :width]
    masks = np.zeros((len(boxes), height, width), bool)
    keypoints = np.zeros((len(boxes), KEYPOINTS, 3), np.float32)
    for i, (x0, y0, x1, y1) in enumerate(boxes.astype(np.float64)):
        middle, half = ((x0 + x1) / 2, (y0 + y1) / 2), (max(x1 - x0, 1) / 2, (y1 - y0) / 2)
        inside = ((x + 0.5 - middle[0]) / half[0]) ** 2 + ((y + 0.5 - middle[1]) / half[1]) ** 2 < 1.2
        masks[i] = inside & ((3 * x + (2 + i) * y) % (40 + 20 * i) < 25 + 10 * i)
        along = np.arange(KEYPOINTS) / 8.13 - 0.47  # from before the left edge to behind the right one
        keypoints[i, :, 0] = x0 + along * (x1 - x0)
        keypoints[i, :, 1] = y0 + along[::-1] * (y1 - y0) * 0.7
        keypoints[i, :, 2] = (np.arange(KEYPOINTS) + i) % 3
    keypoints[-1, :, 2] = 0
    return {
        "boxes": boxes,
        "labels": np.array([2, 3, *OBJECTS[0]["labels"]]),
        "ignore": np.arange(len(boxes)) == 0,
        "masks": masks,
        "keypoints": keypoints,
    }


def _second() -> dict[str, np.ndarray]:
    return {
        **OBJECTS[1],
        "ignore": np.zeros(0, bool),
        "masks": np.zeros((0, *IMAGES[1]), bool),
        "keypoints": np.zeros((0, KEYPOINTS, 3), np.float32),
    }


INSTANCES = (_first(), _second())
