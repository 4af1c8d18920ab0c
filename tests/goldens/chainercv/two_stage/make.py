"""Make the goldens of ChainerCV 0.13.1's two-stage detectors (on Chainer 7.8.1, NumPy below 1.24).

    python make.py [NAME ...]        # writes NAME.npz beside this script
    python make.py --seed 5 --photos A.jpg B.jpg --to FOLDER [NAME ...]     # random weights, in FOLDER with the weights

Weights and gains are as in `../make.py`. A file has "about", JSON with the names and shapes of all parameters, the
gains, the sizes of the pictures, the number of proposals and the least score; and for picture i: "rois_i" (r, 4), the
proposals, y, x, y, x in the network's input, in the order of the head's outputs; "raw_i_k", evenly spaced values of the
k-th output (objectness, codes of proposals, classes and codes of regions); "boxes_i" (n, 4), "labels_i" and "scores_i"
of `predict`. With masks also "mask_rois_i" and their raw output, and of `predict` "areas_i" (n,) and "pixels_i", packed
bits of every `STEP`-th pixel of each mask. FCIS returns no boxes, and its last output is that of the masks.
"""

import argparse
import json
import sys
from pathlib import Path

import chainer
import cv2
import numpy as np

FOLDER = Path(__file__).resolve().parent
sys.path.insert(0, str(FOLDER.parent))
from chainercv import links  # noqa: E402
from chainercv.experimental.links import FCISResNet101  # noqa: E402
from make import Calibrate, filled, load, seeded, state  # noqa: E402

SIZES = [(240, 430)]
VALUES = 2000  # of each output in a golden
STEP = 101


class Tap:
    """Keeps what a link was called with and what it returned, of the last call."""

    def __init__(self, link):
        tap = self

        class Tapped(type(link)):
            def __call__(self, *args, **kwargs):
                tap.given, tap.returned = args, super().__call__(*args, **kwargs)
                return tap.returned

        link.__class__ = Tapped


class Pyramid:
    """FasterRCNNFPNResNet and MaskRCNNFPNResNet; ``candidates`` pass the least score before suppression."""

    def __init__(self, link, masks, candidates):
        self.smaller = {}
        self.returns = ["boxes", "labels", "scores", *(["masks"] if masks else [])]
        values = ["bboxes", *self.returns[1:]]
        self.build = lambda: getattr(links, link)(80, return_values=values)
        self.masks, self.candidates = masks, candidates

    def limit(self, model, proposals):
        model.rpn._test_nms_limit_post = proposals

    def tap(self, model):
        self.rpn, self.head = Tap(model.rpn), Tap(model.bbox_head)
        if self.masks:
            self.mask_head = Tap(model.mask_head)

    def run(self, model, image):
        """All links once, the mask head on a region of each map: nothing reaches a score of 2."""
        head = model.bbox_head
        for link, width in (head.fc1, 256 * 7 * 7), (head.fc2, 1024), (head.conf, 1024), (head.loc, 1024):
            if link.W.array is None:  # in a network that has not been filled there may be no proposals
                link.W.initialize((link.out_size, width))
        model.score_thresh = 2.0
        predict(model, image)
        if self.masks:
            rois = [np.array([[100, 100, 400, 500]], np.float32)] * 4
            with chainer.using_config("train", False), chainer.no_backprop_mode():
                model.mask_head(self.head.given[0][:4], rois, [np.zeros(1, np.int32)] * 4)

    def scores(self):
        return chainer.functions.softmax(self.head.returned[1]).array[:, 1:]

    def raw(self):
        codes, logits = self.rpn.returned
        locs, confs = self.head.returned
        outputs = [np.concatenate([v.array[0] for v in logits]), np.concatenate([v.array[0] for v in codes])]
        outputs += [confs.array, locs.array]
        rois = {"rois": np.concatenate(self.head.given[1])}
        if self.masks:
            rois["mask_rois"] = np.concatenate(self.mask_head.given[1])
            outputs.append(self.mask_head.returned.array)
        return rois, outputs


class Plane:
    """FasterRCNNVGG16 and LightHeadRCNNResNet101."""

    returns = "boxes", "labels", "scores"

    def __init__(self, link, classes, candidates):
        self.smaller = {"rpn/loc": 0.3}  # as trained: corners are rounded, so that rounding errors must stay small
        self.build = lambda: getattr(links, link)(classes)
        self.candidates = candidates

    def limit(self, model, proposals):
        model.rpn.proposal_layer.n_test_post_nms = proposals

    def tap(self, model):
        self.rpn, self.head = Tap(model.rpn), Tap(model.head)

    def run(self, model, image):
        model.score_thresh = 2.0
        predict(model, image)

    def scores(self):
        return chainer.functions.softmax(self.head.returned[1]).array[:, 1:]

    def raw(self):
        codes, logits = self.rpn.returned[:2]
        locs, scores = self.head.returned
        return {"rois": self.head.given[1]}, [logits.array[0], codes.array[0], scores.array, locs.array]


class Instances:
    """FCISResNet101."""

    returns = "masks", "labels", "scores"

    def __init__(self, classes, candidates, **settings):
        self.smaller = {"rpn/loc": 0.3, "head/cls_seg": 6.0}  # the classes' scores are means of hundreds of values
        self.build = lambda: FCISResNet101(classes, **settings)
        self.candidates = candidates

    limit, tap, run = Plane.limit, Plane.tap, Plane.run

    def scores(self):
        return chainer.functions.softmax(self.head.returned[2]).array[:, 1:]

    def raw(self):
        codes, logits = self.rpn.returned[:2]
        segments, locs, scores, rois, _ = self.head.returned
        inside = segments.array[:, 1] - segments.array[:, 0]
        return {"rois": rois}, [logits.array[0], codes.array[0], scores.array, locs.array, inside]


MODELS = {
    "fcis_resnet101": Instances(20, 150),
    "fcis_resnet101_coco": Instances(
        80,
        60,
        anchor_scales=(4, 8, 16, 32),
        proposal_creator_params=FCISResNet101.proposal_creator_params | {"min_size": 2},
    ),
    "faster_rcnn_vgg16": Plane("FasterRCNNVGG16", 20, 300),
    "light_head_rcnn_resnet101": Plane("LightHeadRCNNResNet101", 80, 300),
    "faster_rcnn_fpn_resnet50": Pyramid("FasterRCNNFPNResNet50", False, 200),
    "faster_rcnn_fpn_resnet101": Pyramid("FasterRCNNFPNResNet101", False, 200),
    "mask_rcnn_fpn_resnet50": Pyramid("MaskRCNNFPNResNet50", True, 20),
    "mask_rcnn_fpn_resnet101": Pyramid("MaskRCNNFPNResNet101", True, 20),
}


def predict(model, image):
    with chainer.using_config("train", False), chainer.no_backprop_mode():
        return [values[0] for values in model.predict([image.transpose(2, 0, 1).astype(np.float32)])]


def random_weights(seed):
    """Normal with the deviation that keeps the signal's size through ReLU; norms near the identity."""

    def fill(names, gains):
        rng = np.random.default_rng(seed)
        arrays = {}
        for name, shape in names.items():
            path, _, leaf = name.rpartition("/")
            if leaf == "N":
                arrays[name] = np.int64(3)
            elif leaf == "W":
                gain = gains[path] * np.sqrt(2 / np.prod(shape[1:]))
                arrays[name] = (rng.standard_normal(shape, np.float32) * gain).astype(np.float32)
            elif leaf == "b":
                arrays[name] = (rng.normal(0, 0.1, shape) * gains[path]).astype(np.float32)
            elif leaf in ("gamma", "avg_var"):
                arrays[name] = rng.uniform(0.8, 1.2, shape).astype(np.float32)
            else:
                arrays[name] = rng.normal(0, 0.1, shape).astype(np.float32)
        return arrays

    return fill


def make(name, images, proposals, fill, folder, keep_weights):
    case = MODELS[name]
    model = case.build()
    case.tap(model)
    case.limit(model, 5)  # Chainer's RoI pooling is a loop in Python
    if any(parameter.array is None for parameter in model.params()):
        case.run(model, images[0])  # gives every parameter its shape
    names = {key: np.shape(value) for key, value in state(model).items()}
    paths = {id(link): path.lstrip("/") for path, link in model.namedlinks()}
    gains = dict.fromkeys(paths.values(), 1.0)
    load(model, fill(names, gains))
    with Calibrate(paths) as hook:
        case.run(model, images[0])
    case.limit(model, proposals)
    for path, share in case.smaller.items():
        hook.gains[path] *= share
    load(model, fill(names, hook.gains))
    if keep_weights:
        chainer.serializers.save_npz(folder / f"{name}.weights.npz", model, compression=False)
    stored, threshold = {}, None
    for i, image in enumerate(images):
        if threshold is None:
            case.run(model, image)
            threshold = round(float(np.sort(case.scores(), axis=None)[-case.candidates]), 3)
        model.score_thresh = threshold
        found = dict(zip(case.returns, predict(model, image)))
        masks = found.pop("masks", None)
        stored |= {f"{key}_{i}": value for key, value in found.items()}
        if masks is not None:
            flat = masks.reshape(len(masks), -1)
            stored[f"areas_{i}"] = flat.sum(1).astype(np.int32)
            stored[f"pixels_{i}"] = np.packbits(flat[:, ::STEP], axis=1)
        rois, outputs = case.raw()
        stored |= {f"{key}_{i}": value.astype(np.float32) for key, value in rois.items()}
        for k, output in enumerate(outputs):
            flat = output.ravel()
            stored[f"raw_{i}_{k}"] = flat[:: max(1, flat.size // VALUES)]
        print(
            name,
            i,
            [float(np.std(o)) for o in outputs],
            len(found["scores"]),
            found["scores"].max(initial=0),
            flush=True,
        )
    about = {
        "names": {k: list(v) for k, v in names.items()},
        "gains": hook.gains,
        "sizes": [image.shape[:2] for image in images],
        "proposals": proposals,
        "threshold": threshold,
        "values": VALUES,
        "step": STEP,
    }
    path = folder / f"{name}.npz"
    np.savez_compressed(path, about=np.array(json.dumps(about)), **stored)
    print(f"{name}: {path.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--photos", nargs="*")
    parser.add_argument("--proposals", type=int, default=80)
    parser.add_argument("--to", type=Path, default=FOLDER)
    options = parser.parse_args()
    pictures = [cv2.imread(p)[..., ::-1] for p in options.photos or ()]
    pictures = pictures or [seeded.synthetic_image(*size) for size in SIZES]
    fill = filled if options.seed is None else random_weights(options.seed)
    for requested in options.names or MODELS:
        make(requested, pictures, options.proposals, fill, options.to, options.seed is not None)
