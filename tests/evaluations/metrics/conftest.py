"""Random COCO data sets with everything that makes scoring hard, and pycocotools' answer to them."""

import contextlib
import io
import warnings

import numpy as np
import pytest
from pycocotools import mask as coco_mask
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

HEIGHT, WIDTH = 48, 64


@contextlib.contextmanager
def quiet():
    """pycocotools 2.0.11 uses what NumPy deprecates."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        yield


def make_random_coco(seed, kind="bbox", images=12, categories=4, scale=2.5):
    """Ground truth and detections: crowds, images without objects or detections, equal scores, all areas."""
    rng = np.random.default_rng(seed)
    category_ids = sorted(rng.choice(np.arange(1, 91), categories, replace=False).tolist())
    image_ids = rng.choice(np.arange(1, 10**6), images, replace=False).tolist()
    annotations, detections = [], []
    for image in image_ids:
        truths = rng.integers(0, 7) if rng.random() < 0.8 else 0
        for _ in range(truths):
            entry = {
                "id": len(annotations) + 1,
                "image_id": image,
                "category_id": int(rng.choice(category_ids[:-1])),  # the last category never occurs
                "iscrowd": int(rng.random() < 0.15),
            }
            shape = _shape(rng, kind, scale)
            if kind == "keypoints" and rng.random() < 0.15:
                shape["keypoints"] = [0] * 51
            annotations.append(entry | shape)
            if kind == "keypoints":
                annotations[-1]["num_keypoints"] = int(sum(v > 0 for v in shape["keypoints"][2::3]))
            for _ in range(rng.integers(0, 4)):
                other = int(rng.choice(category_ids)) if rng.random() < 0.1 else entry["category_id"]
                detections.append({"image_id": image, "category_id": other} | _near(rng, kind, shape))
        if rng.random() < 0.8:
            for _ in range(rng.integers(0, 6)):
                found = _near(rng, kind, _shape(rng, kind, scale))
                detections.append({"image_id": image, "category_id": int(rng.choice(category_ids))} | found)
    order = rng.permutation(len(detections))
    detections = [detections[i] for i in order]
    for detection in detections:
        detection["score"] = round(float(rng.random()), 1 if seed % 2 else 6)  # odd seeds: many equal scores
    return {
        "images": [{"id": image, "height": HEIGHT, "width": WIDTH} for image in image_ids],
        "categories": [{"id": category, "name": f"c{category}"} for category in category_ids[::-1]],
        "annotations": annotations,
    }, detections


def _shape(rng, kind, scale):
    if kind == "segm":
        mask = _mask(rng)
        return {"segmentation": _rle(mask), "area": float(mask.sum()) * scale, "bbox": [0, 0, 1, 1]}
    x, y = rng.uniform(0, 400, 2)
    width, height = np.exp(rng.uniform(1.5, 5.5, 2))
    shape = {"bbox": [x, y, width, height], "area": width * height * rng.uniform(0.4, 1)}
    if kind == "keypoints":
        points = np.column_stack(
            [rng.uniform(x, x + width, 17), rng.uniform(y, y + height, 17), rng.integers(0, 3, 17)]
        )
        shape["keypoints"] = points.reshape(-1).tolist()
    return shape


def _near(rng, kind, shape):
    wobble = rng.choice([0, 0.02, 0.1, 0.3])
    if kind == "segm":
        with quiet():
            mask = coco_mask.decode(shape["segmentation"])
        shift = np.roll(mask, rng.integers(-3, 4, 2), (0, 1)) if wobble else mask
        return {"segmentation": _rle(shift)}
    x, y, width, height = shape["bbox"]
    if kind == "keypoints":
        points = np.array(shape["keypoints"], float).reshape(17, 3)
        points[:, :2] += rng.normal(0, wobble / 3 * np.sqrt(width * height), (17, 2))
        return {"keypoints": points.reshape(-1).tolist()}
    dx, dy, dw, dh = rng.normal(0, wobble, 4)
    return {"bbox": [x + dx * width, y + dy * height, width * np.exp(dw), height * np.exp(dh)]}


def _mask(rng):
    mask = np.zeros((HEIGHT, WIDTH), np.uint8)
    x, y = rng.integers(0, WIDTH - 4), rng.integers(0, HEIGHT - 4)
    mask[y : y + rng.integers(2, 40), x : x + rng.integers(2, 40)] = 1
    return mask & (rng.random(mask.shape) < rng.choice([0.7, 1.0])).astype(np.uint8)


def _rle(mask):
    rle = coco_mask.encode(np.asfortranarray(mask))
    return {"size": rle["size"], "counts": rle["counts"].decode()}


def run_pycocotools(ground_truth, detections, kind="bbox", max_detections=None, image_ids=None):
    """pycocotools' ``eval`` dictionary and its summary figures."""
    with contextlib.redirect_stdout(io.StringIO()), quiet():
        truth = COCO()
        truth.dataset = ground_truth
        truth.createIndex()
        if detections:
            found = truth.loadRes([dict(detection) for detection in detections])
        else:  # loadRes looks at the first detection
            found = COCO()
            found.dataset = {"images": ground_truth["images"], "annotations": []}
            found.createIndex()
        evaluation = COCOeval(truth, found, kind)
        if max_detections:
            evaluation.params.maxDets = list(max_detections)
        if image_ids is not None:
            evaluation.params.imgIds = list(image_ids)
        evaluation.evaluate()
        evaluation.accumulate()
        if max_detections is None:
            evaluation.summarize()
    return evaluation.eval, np.asarray(evaluation.stats)


@pytest.fixture
def random_coco():
    return make_random_coco


@pytest.fixture
def pycocotools():
    return run_pycocotools
