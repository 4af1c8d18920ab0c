"""Make the goldens of ChainerCV 0.13.1 (on Chainer 7.8.1, NumPy below 1.24).

    python make.py [NAME ...]        # writes NAME.npz beside this script

Every model has the weights of `filling.py`, with gains that bring the output of each layer to a standard deviation of 1
on the first picture, and is run on pictures of `seeded.py`. A file has "about", JSON with the names and shapes of all
parameters, the gains and the sizes of the pictures, and for picture i: "raw_i_k", evenly spaced values of the k-th
output of the network, "boxes_i" (n, 4) y, x, y, x, "labels_i" and "scores_i" of `predict` at the threshold in "about".
"""

import json
import sys
from pathlib import Path

import chainer
import numpy as np
from chainer.serializers import DictionarySerializer, NpzDeserializer
from chainercv.experimental.links import YOLOv2Tiny
from chainercv.links import SSD300, SSD512, YOLOv2, YOLOv3
from filling import filled, seeded

FOLDER = Path(__file__).resolve().parent
SIZES = [(240, 430), (500, 331)]
VALUES = 3000  # of each output in a golden

# how to make a model, and the least score of a detection; None for that of the 600th best before suppression
DETECTORS = {
    "yolo_v2": (lambda: YOLOv2(20), None),
    "yolo_v2_tiny": (lambda: YOLOv2Tiny(20), None),
    "yolo_v3": (lambda: YOLOv3(20), None),
    "ssd300": (lambda: SSD300(20), None),
    "ssd512": (lambda: SSD512(20), None),
}


class Calibrate(chainer.LinkHook):
    """Brings the output of every convolution and linear layer to a standard deviation of 1."""

    def __init__(self, names):
        self.names, self.gains = names, {}

    def forward_postprocess(self, args):
        link, name = args.link, self.names.get(id(args.link))
        if name is None or name in self.gains or not hasattr(link, "W") or link.W.array is None:
            return
        gain = np.float32(1 / max(float(args.out.array.std()), 1e-6))
        self.gains[name] = float(gain)
        link.W.array *= gain
        if getattr(link, "b", None) is not None:
            link.b.array *= gain
        args.out.array *= gain


def state(model):
    serializer = DictionarySerializer()
    serializer.save(model)
    return serializer.target


def load(model, arrays):
    NpzDeserializer(arrays).load(model)


def detections(model, image, threshold):
    model.score_thresh = threshold
    (boxes,), (labels,), (scores,) = model.predict([image.transpose(2, 0, 1).astype(np.float32)])
    return {"boxes": boxes, "labels": labels.astype(np.int16), "scores": scores}


def network_input(model, image):
    """What `predict` gives the network, taken from where it goes in."""
    taken = []
    forward = model.forward
    model.forward = lambda x: taken.append(x) or forward(x)
    model.score_thresh = 2.0
    model.predict([image.transpose(2, 0, 1).astype(np.float32)])
    del model.forward
    return taken[0]


def make(name):
    build, threshold = DETECTORS[name]
    images = [seeded.synthetic_image(*size) for size in SIZES]
    model = build()
    inputs = [network_input(model, image) for image in images]
    names = {key: np.shape(value) for key, value in state(model).items()}
    paths = {id(link): path.lstrip("/") for path, link in model.namedlinks()}
    load(model, filled(names, dict.fromkeys(paths.values(), 1.0)))
    with chainer.using_config("train", False), chainer.no_backprop_mode(), Calibrate(paths) as hook:
        model(inputs[0])
    load(model, filled(names, hook.gains))
    stored = {}
    for i, image in enumerate(images):
        with chainer.using_config("train", False), chainer.no_backprop_mode():
            raw = model(inputs[i])
        if threshold is None:
            activate = chainer.functions.sigmoid if name == "yolo_v3" else chainer.functions.softmax
            probabilities = activate(raw[-1][0]).array
            if name.startswith("yolo"):
                probabilities *= chainer.functions.sigmoid(raw[1][0]).array[:, None]
            else:
                probabilities = probabilities[:, 1:]
            threshold = round(float(np.sort(probabilities, axis=None)[-600]), 3)
        for k, output in enumerate(raw):
            flat = output.array.ravel()
            stored[f"raw_{i}_{k}"] = flat[:: max(1, flat.size // VALUES)]
        found = detections(model, image, threshold)
        stored |= {f"{key}_{i}": value for key, value in found.items()}
        print(name, i, [float(np.std(r.array)) for r in raw], len(found["scores"]), found["scores"].max(initial=0))
    about = {
        "names": {k: list(v) for k, v in names.items()},
        "gains": hook.gains,
        "sizes": SIZES,
        "threshold": threshold,
        "values": VALUES,
    }
    path = FOLDER / f"{name}.npz"
    np.savez_compressed(path, about=np.array(json.dumps(about)), **stored)
    print(f"{name}: {path.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    for requested in sys.argv[1:] or DETECTORS:
        make(requested)
