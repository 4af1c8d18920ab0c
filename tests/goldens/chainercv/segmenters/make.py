"""Make the goldens of ChainerCV 0.13.1's segmentation models (on Chainer 7.8.1, NumPy below 1.24).

    python make.py [NAME ...]        # writes NAME.npz beside this script
    python make.py --seed 5 --photos A.jpg B.jpg --to FOLDER [NAME ...]     # random weights, in FOLDER with the weights

Weights and gains are as in `../make.py`; the models see smaller pictures than in use. A file has "about", JSON with the
names and shapes of all parameters, the gains, the sizes of the pictures and of the network's input; and for picture i:
"raw_i", evenly spaced values of the network's output for its first input, and "labels_i", every `STEP`-th pixel of what
`predict` returns, with "several_i" the same at several scales.
"""

import argparse
import json
import sys
import time
from pathlib import Path

import chainer
import cv2
import numpy as np
from chainer.serializers import save_npz

FOLDER = Path(__file__).resolve().parent
sys.path.insert(0, str(FOLDER.parent))
from chainercv.experimental.links import PSPNetResNet50, PSPNetResNet101  # noqa: E402
from chainercv.links import DeepLabV3plusXception65, SegNetBasic  # noqa: E402
from make import VALUES, Calibrate, filled, load, seeded, state  # noqa: E402

SIZES = [(101, 150), (67, 90)]
STEP, INPUT, SCALES = 3, (97, 97), (0.75, 1.25)


def deeplab(classes):
    norms = {"aspp_kwargs": 1e-5, "decoder_kwargs": 1e-5, "extractor_kwargs": 1e-3}
    settings = {key: {"bn_kwargs": {"decay": 0.9997, "eps": eps}} for key, eps in norms.items()}
    return DeepLabV3plusXception65(classes, min_input_size=INPUT, **settings)


MODELS = {
    "segnet": lambda: SegNetBasic(11),
    "pspnet_resnet50": lambda: PSPNetResNet50(19, input_size=INPUT),
    "pspnet_resnet101": lambda: PSPNetResNet101(19, input_size=INPUT),
    "deeplabv3plus_xception65": lambda: deeplab(21),
}
GOLDEN = ("segnet", "pspnet_resnet50", "deeplabv3plus_xception65")


def randomise(seed, names, gains):
    """Random weights of the kind that `filling.py` makes."""
    rng = np.random.default_rng(seed)
    arrays = {}
    for name, shape in names.items():
        path, _, leaf = name.rpartition("/")
        if leaf == "N":
            arrays[name] = np.int64(3)
        elif leaf in "Wb":
            arrays[name] = (rng.normal(0, 1, shape) * gains[path]).astype(np.float32)
        else:
            low, high = (0.5, 1.5) if leaf in ("gamma", "avg_var") else (-0.3, 0.3)
            arrays[name] = rng.uniform(low, high, shape).astype(np.float32)
    return arrays


def make(name, images, fill, folder, keep):
    model = MODELS[name]()
    inputs = []
    forward = model.forward
    model.forward = lambda x: inputs.append(x) or forward(x)
    model.predict(images[:1])  # gives all parameters their shapes
    names = {key: np.shape(value) for key, value in state(model).items()}
    paths = {id(link): path.lstrip("/") for path, link in model.namedlinks()}
    load(model, fill(names, dict.fromkeys(paths.values(), 1.0)))
    with Calibrate(paths) as hook, chainer.no_backprop_mode():
        forward(inputs[0])
    load(model, fill(names, hook.gains))
    stored = {}
    for i, image in enumerate(images):
        inputs.clear()
        stored[f"labels_{i}"] = model.predict([image])[0][::STEP, ::STEP].astype(np.uint8)
        with chainer.no_backprop_mode():
            start = time.perf_counter()
            raw = forward(inputs[0]).array.ravel()
            seconds = time.perf_counter() - start
        stored[f"raw_{i}"] = raw[:: max(1, raw.size // VALUES)]
        if name != "segnet":
            model.scales = SCALES
            if name.startswith("deeplab"):
                model.flip = True
            stored[f"several_{i}"] = model.predict([image])[0][::STEP, ::STEP].astype(np.uint8)
            model.scales = (1.0,)
            model.flip = False
        counts = np.bincount(stored[f"labels_{i}"].ravel())
        print(name, i, image.shape, raw.std(), counts.tolist(), f"{seconds:.2f} s", flush=True)
    about = {
        "names": {k: list(v) for k, v in names.items()},
        "gains": hook.gains,
        "sizes": [image.shape[1:] for image in images],
        "input": INPUT,
        "scales": SCALES,
        "values": VALUES,
        "step": STEP,
    }
    del model.forward
    if keep:
        save_npz(folder / f"{name}.weights.npz", model)
    path = folder / f"{name}.npz"
    np.savez_compressed(path, about=np.array(json.dumps(about)), **stored)
    print(f"{name}: {path.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--photos", nargs="*")
    parser.add_argument("--to", type=Path, default=FOLDER)
    options = parser.parse_args()
    chainer.config.train = False
    pictures = [cv2.imread(p)[..., ::-1] for p in options.photos or ()]
    pictures = pictures or [seeded.synthetic_image(*size) for size in SIZES]
    for requested in options.names or GOLDEN:
        make(
            requested,
            [picture.transpose(2, 0, 1).astype(np.float32) for picture in pictures],
            filled if options.seed is None else lambda *args: randomise(options.seed, *args),
            options.to,
            options.seed is not None,
        )
