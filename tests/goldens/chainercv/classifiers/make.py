"""Make the goldens of ChainerCV 0.13.1's classifiers (on Chainer 7.8.1, NumPy below 1.24).

    python make.py [NAME ...]        # writes NAME.npz beside this script

Weights and gains are as in `../make.py`. A file has "about", JSON with the names and shapes of all parameters, the
gains and the sizes of the pictures; and for picture i: "logits_i" of the square in its middle, "ten_i", the mean
probabilities of ten squares.
"""

import json
import sys
from functools import partial
from pathlib import Path

import chainer
import numpy as np

FOLDER = Path(__file__).resolve().parent
sys.path.insert(0, str(FOLDER.parent))
from chainercv import links  # noqa: E402
from make import Calibrate, filled, load, seeded, state  # noqa: E402

SIZES = [(240, 430), (331, 290)]
MEAN = np.full((3, 1, 1), 128, np.float32)

# how to make a model, the name of its last layer before the probabilities, and theirs
MODELS = {
    "vgg16": (partial(links.VGG16, 1000), "fc8", "prob"),
    "resnet50_fb": (partial(links.ResNet50, 1000), "fc6", "prob"),
    "resnet50_he": (partial(links.ResNet50, 1000, arch="he"), "fc6", "prob"),
    "se_resnet50": (partial(links.SEResNet50, 1000), "fc6", "prob"),
    "se_resnext50": (partial(links.SEResNeXt50, 1000), "fc6", "prob"),
    "mobilenet_v2_tf": (partial(links.MobileNetV2, 1001, mean=MEAN), "squeeze", "softmax"),
    "mobilenet_v2_tf_1_4": (partial(links.MobileNetV2, 1001, mean=MEAN, depth_multiplier=1.4), "squeeze", "softmax"),
}


def make(name):
    build, last, probabilities = MODELS[name]
    images = [seeded.synthetic_image(*size).transpose(2, 0, 1).astype(np.float32) for size in SIZES]
    model = build()
    one, ten = (links.FeaturePredictor(model, 224, 256, crop=crop) for crop in ("center", "10"))
    one.predict(images[:1])  # gives all parameters their shapes
    names = {key: np.shape(value) for key, value in state(model).items()}
    paths = {id(link): path.lstrip("/") for path, link in model.namedlinks()}
    load(model, filled(names, dict.fromkeys(paths.values(), 1.0)))
    with Calibrate(paths) as hook:
        one.predict(images[:1])
    load(model, filled(names, hook.gains))
    stored = {}
    for i, image in enumerate(images):
        model.pick = last
        stored[f"logits_{i}"] = one.predict([image])[0]
        model.pick = probabilities
        stored[f"ten_{i}"] = ten.predict([image])[0]
        print(name, i, stored[f"logits_{i}"].std(), stored[f"ten_{i}"].max(), flush=True)
    about = {"names": {k: list(v) for k, v in names.items()}, "gains": hook.gains, "sizes": SIZES}
    path = FOLDER / f"{name}.npz"
    np.savez_compressed(path, about=np.array(json.dumps(about)), **stored)
    print(f"{name}: {path.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    chainer.config.train = False
    for requested in sys.argv[1:] or MODELS:
        make(requested)
