"""What the losses of ChainerCV's R-CNNs and ours are compared on: objects, outputs of the networks and proposals."""

import numpy as np

SIZE = (300, 400)  # height and width of the image in the network's input
CLASSES = 4  # with the background
BOXES = np.array([[20, 30, 140, 200], [200, 50, 380, 280], [150, 120, 190, 150]], np.float32)  # x, y, x, y
LABELS = np.array([0, 2, 1])
HARDEST = 20


def normal(seed, *shape):
    """Normally distributed numbers, float32."""
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def masks():
    """The masks (3, height, width) of the objects: ellipses that fill their boxes."""
    y, x = np.mgrid[: SIZE[0], : SIZE[1]] + 0.5
    drawn = []
    for x1, y1, x2, y2 in BOXES:
        drawn.append(((2 * x - x1 - x2) / (x2 - x1)) ** 2 + ((2 * y - y1 - y2) / (y2 - y1)) ** 2 <= 1)
    return np.array(drawn)


def proposals():
    """57 boxes xyxy, some of them near objects."""
    near = np.repeat(BOXES, 7, 0) + 12 * normal(1, 21, 4)
    corner = np.abs(normal(2, 36, 2)) * (120, 90)
    apart = np.concatenate([corner, corner + 20 + 60 * np.abs(normal(3, 36, 2))], 1)
    return np.clip(np.concatenate([near, apart]), 0, (400, 300, 400, 300)).astype(np.float32)


def outputs(count):
    """Class logits (count, CLASSES) and codes (count, CLASSES, 4) x, y, width, height of regions."""
    return normal(4, count, CLASSES), normal(5, count, CLASSES, 4)


def regions_of_masks():
    """Boxes near the objects, one beyond the border, one in a corner, one without extent."""
    more = np.array([[-15, -10, 150, 190], [390, 290, 430, 330], [50, 60, 50.3, 60.2]], np.float32)
    return np.concatenate([proposals()[:21:3], more])
