"""Objects and outputs of SSD that both sides can rebuild, from a generator that NumPy keeps stable."""

import numpy as np

CASES = [(name, seed) for name in ("ssd300", "ssd512") for seed in (1, 2, 3)]


def scene(size, seed):
    """Boxes (n, 4) xyxy in pixels and labels (n,) of three images: a crowded one, a usual one, an empty one."""
    random = np.random.RandomState(seed)
    boxes, labels = [], []
    for count in (14, 3, 0):
        middle, side = random.uniform(0, size, (count, 2)), size * random.uniform(0.03, 0.7, (count, 2))
        box = np.concatenate([middle - side / 2, middle + side / 2], 1)
        if count > 3:  # objects that want the same default boxes
            box[1:4] = box[0] + np.array([[2.0], [-1.5], [0.5]])
        boxes.append(np.clip(box, 0, size).astype(np.float32))
        labels.append(random.randint(0, 20, count))
    return boxes, labels


def outputs(count, seed):
    """Codes (3, count, 4), in ChainerCV's order y, x, height, width, and logits (3, count, 21)."""
    random = np.random.RandomState(1000 + seed)
    return random.randn(3, count, 4).astype(np.float32) / 2, random.randn(3, count, 21).astype(np.float32) * 2
