"""What the golden losses are computed on: images by size, their objects, and outputs of a head."""

import hashlib

import numpy as np

IMAGES = ((200, 301), (161, 97))  # height, width
OBJECTS = (
    {
        "boxes": np.array([[20.3, 31.7, 120.9, 140.2], [150.4, 12.1, 290.6, 190.8], [200.7, 90.9, 231.3, 133.1]]),
        "labels": np.array([1, 3, 6]),
    },
    {"boxes": np.zeros((0, 4)), "labels": np.zeros(0, np.int64)},
)
for _objects in OBJECTS:
    _objects["boxes"] = _objects["boxes"].astype(np.float32)
CLASSES, BINS, CELLS = 7, 11, 52 * 52 + 26 * 26 + 13 * 13


def head_outputs(scale: float) -> np.ndarray:
    """Outputs (n, cells, classes + 4 * bins) float32 of NanoDet's head, uniform between -scale and scale."""
    seed = int.from_bytes(hashlib.sha256(b"nanodet head").digest()[:16], "little")
    count = len(OBJECTS) * CELLS * (CLASSES + 4 * BINS)
    raw = np.asarray(np.random.PCG64(seed).random_raw(-(-count // 4)), "<u8").view("<u2")[:count]
    values = (raw.astype(np.float64) - 32768) * (scale / 32768)
    return values.reshape(len(OBJECTS), CELLS, -1).astype(np.float32)


def network_boxes(image: int) -> tuple[np.ndarray, np.ndarray]:
    """The objects of an image in the 416 x 416 pixels of NanoDet's input, stretched; labels from 0."""
    height, width = IMAGES[image]
    factor = np.array([416 / width, 416 / height] * 2, np.float32)
    return OBJECTS[image]["boxes"] * factor, OBJECTS[image]["labels"]
