"""Small networks in Darknet's own files, with weights that both sides can rebuild: for `outputs.npz`."""

import numpy as np
from numpy.typing import NDArray

# Every kind of section and option, in networks of a few kilobytes; anchors and classes are few.
CFGS = {
    "v2": """
[net]
width=64
height=32
channels=3
[convolutional]
batch_normalize=1
filters=8
size=3
stride=1
pad=1
activation=leaky
[maxpool]
size=2
stride=2
[convolutional]
batch_normalize=1
filters=12
size=3
stride=2
pad=1
activation=leaky
[maxpool]
size=2
stride=1
[convolutional]
batch_normalize=1
filters=8
size=1
activation=leaky
[reorg]
stride=2
[route]
layers=-3
[maxpool]
size=2
stride=2
[route]
layers=-1,5
[convolutional]
filters=24
size=1
activation=linear
[region]
anchors=1.2,1.1, 2.4,0.8, 0.5,3.0
classes=3
coords=4
num=3
softmax=1
thresh=.1
""",
    "v3": """
[net]
width=32
height=64
channels=3
[convolutional]
batch_normalize=1
filters=8
size=3
stride=2
pad=1
activation=leaky
[convolutional]
batch_normalize=1
filters=6
size=1
activation=relu
[convolutional]
batch_normalize=1
filters=8
size=3
pad=1
activation=leaky
[shortcut]
from=-3
activation=linear
[convolutional]
batch_normalize=1
filters=16
size=3
stride=2
pad=1
activation=swish
[maxpool]
stride=1
size=5
[route]
layers=-2
[maxpool]
stride=1
size=9
[route]
layers=-1,-3,4
[convolutional]
batch_normalize=1
filters=24
groups=4
size=3
pad=1
stride=2
activation=logistic
[dropout]
probability=.2
[convolutional]
filters=24
size=1
activation=linear
[yolo]
mask=3,4,5
anchors=4,5, 8,6, 10,20, 15,12, 30,40, 60,30
classes=3
num=6
ignore_thresh=.7
[route]
layers=10
[upsample]
stride=2
[route]
layers=-1,4
[convolutional]
filters=24
size=1
activation=linear
[yolo]
mask=0,1,2
anchors=4,5, 8,6, 10,20, 15,12, 30,40, 60,30
classes=3
num=6
""",
    "v4": """
[net]
width=64
height=48
channels=3
[convolutional]
batch_normalize=1
filters=8
size=3
stride=4
pad=1
activation=mish
[route]
layers=-1
groups=2
group_id=1
[convolutional]
batch_normalize=1
filters=6
size=3
pad=1
activation=mish
[route]
layers=-1,-3
[maxpool]
size=3
stride=2
[convolutional]
size=1
filters=24
activation=linear
[yolo]
mask=1,2,3
anchors=7,9, 12,10, 20,30, 50,40
classes=3
num=4
scale_x_y=1.2
nms_kind=greedynms
beta_nms=0.6
""",
    "csp": """
[net]
width=32
height=32
channels=3
[convolutional]
batch_normalize=1
filters=8
size=3
stride=4
pad=1
activation=leaky
[convolutional]
size=1
filters=14
activation=logistic
[yolo]
mask=0,1
anchors=7,9, 12,10
classes=2
num=2
scale_x_y=2.0
new_coords=1
""",
}


def weights_file(cfg: str) -> bytes:
    """A `.weights` file for a network of `CFGS`, filled by the rule of He from a generator that NumPy keeps stable."""
    random = np.random.RandomState(7)
    channels = [3]
    numbers: list[NDArray[np.float32]] = []
    for block in cfg.split("[")[2:]:
        kind, _, body = block.partition("]")
        options = dict(line.replace(" ", "").split("=") for line in body.strip().splitlines())
        before = channels[-1]
        count = before
        if kind == "convolutional":
            count, size = int(options["filters"]), int(options["size"])
            fan_in = before // int(options.get("groups", 1)) * size**2
            numbers.append(random.uniform(-0.5, 0.5, count))
            if "batch_normalize" in options:
                numbers += [random.uniform(0.7, 1.3, count), random.uniform(-0.3, 0.3, count)]
                numbers.append(random.uniform(0.7, 1.4, count))
            numbers.append(random.normal(0, 1.2 * (2 / fan_in) ** 0.5, count * fan_in))
        elif kind == "route":
            layers = [int(k) for k in options["layers"].split(",")]
            sources = [k + len(channels) if k < 0 else k + 1 for k in layers]
            count = sum(channels[k] for k in sources) // int(options.get("groups", 1))
        elif kind == "reorg":
            count *= 4
        channels.append(count)
    header = np.array([0, 2, 5, 0, 0], "<i4").tobytes()
    return header + np.concatenate(numbers).astype("<f4").tobytes()


def picture(cfg: str) -> NDArray[np.float32]:
    """An input (1, 3, height, width) from 0 to 1 for a network of `CFGS`."""
    sides = [int(line.partition("=")[2]) for line in cfg.splitlines() if line.startswith(("width=", "height="))]
    width, height = sides[:2]
    return np.random.RandomState(3).uniform(0, 1, (1, 3, height, width)).astype(np.float32)
