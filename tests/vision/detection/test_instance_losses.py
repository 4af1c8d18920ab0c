"""Training losses of masks and keypoints against torchvision's, and the rules for hard cases."""

import importlib.util
import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import stored_goldens
from chainsight.core import Tensor
from chainsight.core.layers import BatchNorm2d, init
from chainsight.vision.categories import Categories
from chainsight.vision.detection import keypoint_rcnn, mask_rcnn
from chainsight.vision.detection.faster_rcnn import Objects
from chainsight.vision.detection.resizing import ShortSideResize
from chainsight.vision.detection.roi_align import roi_align
from chainsight.vision.sample import Sample

FOLDER = Path(__file__).resolve().parents[2] / "goldens" / "training"
BUILDERS = [
    mask_rcnn.maskrcnn_resnet50_fpn,
    mask_rcnn.maskrcnn_resnet50_fpn_v2,
    keypoint_rcnn.keypointrcnn_resnet50_fpn,
]
NAMES = {
    "objectness": "loss_objectness",
    "proposal box": "loss_rpn_box_reg",
    "class": "loss_classifier",
    "box": "loss_box_reg",
    "mask": "loss_mask",
    "keypoint": "loss_keypoint",
}


def module(name):
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


objects, instances = module("objects"), module("instances")


class FirstOnes:
    """A generator whose permutations are no permutations: the first anchors are sampled, as in the goldens."""

    def permutation(self, values):
        return values


def total(losses):
    result = Tensor(np.float32(0))
    for loss in losses.values():
        result = result + loss
    return result


def golden_samples(model):
    samples = []
    for size, truth in zip(objects.IMAGES, instances.INSTANCES):
        slots = truth["labels"] if len(model.categories.names) > 1 else np.ones(len(truth["labels"]), np.int64)
        labels = model.categories.labels_of(slots)
        samples.append(Sample(stored_goldens.seeded.synthetic_image(*size), **(truth | {"labels": labels})))
    return samples


@pytest.mark.slow
@pytest.mark.parametrize("name", [build.__name__ for build in BUILDERS])
def test_losses_and_gradients_equal_torchvision(name):
    golden = json.loads((FOLDER / "instance_losses.json").read_text())[name]
    model, _ = stored_goldens.seeded_model(name)
    model.eval()  # the norms of the original used their stored statistics
    model.resize = replace(model.resize, short=160, long=256)
    losses = model.losses(golden_samples(model), FirstOnes())
    assert {NAMES[k] for k in losses} == set(golden["losses"])
    for key, loss in losses.items():
        assert loss.item() == pytest.approx(golden["losses"][NAMES[key]], rel=1e-4), key
    total(losses).backward()
    gradients = {n: float(np.linalg.norm(p.grad.data)) for n, p in model.named_parameters() if n.endswith("weight")}
    largest = max(golden["gradients"].values())
    # ReLUs at their kink decide by rounding: torch's own gradients of keypoints move by 0.6 % in float64.
    rel = 5e-3 if "keypoint" in losses else 1e-3
    for key, norm in golden["gradients"].items():
        assert gradients[key] == pytest.approx(norm, rel=rel, abs=1e-5 * largest), key
    branch = [n for n, _ in model.named_parameters() if ".mask_" in n or ".keypoint_" in n]
    assert len(branch) >= 12
    assert all(np.any(p.grad.data) for n, p in model.named_parameters() if n in branch)


def ellipse(size, box):
    y, x = np.mgrid[: size[0], : size[1]] + 0.5
    x0, y0, x1, y1 = box
    return ((x - (x0 + x1) / 2) / (x1 - x0)) ** 2 + ((y - (y0 + y1) / 2) / (y1 - y0)) ** 2 < 0.25


@pytest.mark.parametrize("scale", [1.0, 0.6, 2.5])
def test_mask_targets_are_roi_align_of_the_resized_mask(scale):
    size, rng = (90, 130), np.random.default_rng(0)
    masks = np.stack([ellipse(size, (10, 5, 70, 80)), ellipse(size, (60, 20, 130, 90)), rng.random(size) < 0.5])
    to_size = int(size[0] * scale), int(size[1] * scale)
    boxes = rng.uniform(-0.05, 1.05, (40, 2, 2)) * to_size[::-1]
    boxes = np.concatenate([boxes.min(1), boxes.max(1)], 1).astype(np.float32)
    boxes[0] = [*boxes[0, :2], *(boxes[0, :2] + 0.3)]
    boxes[1] = [0, 0, *to_size[::-1]]
    rows = rng.integers(0, 3, 40)
    sample = Sample(np.zeros((*size, 3), np.uint8), np.zeros((3, 4)), masks=masks)
    found = mask_rcnn.mask_targets(Objects(sample, to_size, rows, boxes, np.ones(40, np.int64)), 28)
    steps = (np.arange(n, dtype=np.float32) * np.float32(m / n) for n, m in zip(to_size, size))
    row, column = (np.minimum(s.astype(int), m - 1) for s, m in zip(steps, size))
    resized = Tensor(masks[:, row][:, :, column][:, None].astype(np.float32))
    expected = roi_align(resized, boxes, rows, 28, sampling_ratio=0).numpy()[:, 0]
    np.testing.assert_allclose(found, expected, atol=2e-5)
    assert 0.2 < found.mean() < 0.8


def test_keypoints_lie_in_the_cell_they_are_in_or_nowhere():
    points = [[10, 20, 2], [29.9, 39.9, 1], [30, 40, 2], [30.1, 30, 2], [9.9, 30, 2], [15, 25, 0]]
    sample = Sample(np.zeros((50, 50, 3), np.uint8), np.zeros((1, 4)), keypoints=np.array([points], np.float32))
    box = np.array([[20, 40, 60, 80]], np.float32)
    found = keypoint_rcnn.heatmap_cells(Objects(sample, (100, 100), np.array([0]), box, np.ones(1, int)), 6, 4)
    assert found.tolist() == [[0, 15, 15, -1, -1, -1]]


def small(build, classes=("a", "b")):
    model = build(Categories.with_background(list(classes))).train()
    model.resize = ShortSideResize(64, 64)
    model.rpn.in_training = (50, 20)
    return model


def sample(boxes, ignore=None, visible=2, **fields):
    boxes = np.array(boxes, np.float32).reshape(-1, 4)
    image = np.random.default_rng(5).integers(0, 255, (64, 64, 3), np.uint8)
    given = {
        "masks": np.stack([ellipse((64, 64), b + [0, 0, 0.1, 0.1]) for b in boxes] or [np.zeros((64, 64), bool)]),
        "keypoints": np.concatenate(
            [np.repeat(boxes[:, None, :2], 17, 1) + 3, np.full((len(boxes), 17, 1), visible)], 2
        ),
    }
    given["masks"] = given["masks"][: len(boxes)]
    labels = np.zeros(len(boxes), np.int64)
    return Sample(image, boxes, labels, ignore, source="photo.jpg", **(given | fields))


@pytest.mark.slow
@pytest.mark.parametrize("build", BUILDERS)
def test_without_objects_the_branch_loses_nothing_and_its_gradient_is_zero(build):
    model = small(build)
    crowd = sample([[0, 0, 64, 64], [5, 5, 5, 30]], ignore=np.array([True, False]))
    for batch in ([sample([]), sample([])], [crowd], [sample([[8, 8, 50, 50]], visible=0)]):
        losses = model.losses(batch, np.random.default_rng(0))
        assert all(np.isfinite(v.item()) for v in losses.values())
        model.zero_grad()
        total(losses).backward()
        assert all(p.grad is None or np.isfinite(p.grad.data).all() for p in model.parameters())
        name = "keypoint" if "keypoint" in losses else "mask"
        if name == "mask" and len(batch[0]) == 1:
            continue  # this object has a mask
        assert losses[name].item() == 0
        branch = [p for n, p in model.named_parameters() if f".{name}_" in n]
        assert not any(p.grad.data.any() for p in branch)
    norms = [m for _, m in model.named_modules() if isinstance(m, BatchNorm2d)]
    assert all(np.isfinite(m.running_var.data).all() for m in norms)


def test_what_is_missing_is_named():
    rng = np.random.default_rng(0)
    model = small(mask_rcnn.maskrcnn_resnet50_fpn)
    with pytest.raises(ValueError, match=r"photo\.jpg: training masks needs masks, got a sample without"):
        model.losses([sample([[5, 5, 30, 30]], masks=None)], rng)
    model = small(keypoint_rcnn.keypointrcnn_resnet50_fpn)
    with pytest.raises(ValueError, match=r"photo\.jpg: expected 17 keypoints of each object, got a sample without"):
        model.losses([sample([[5, 5, 30, 30]], keypoints=None)], rng)
    with pytest.raises(ValueError, match=r"photo\.jpg: expected 17 keypoints of each object, got 5"):
        model.losses([sample([[5, 5, 30, 30]], keypoints=np.ones((1, 5, 3), np.float32))], rng)


def test_weights_of_another_number_of_keypoints_bring_it_along():
    with init.skip_init():
        model, again = (keypoint_rcnn.keypointrcnn_resnet50_fpn(Categories.with_background(["boat"])) for _ in "ab")
    model.renew_keypoints(5)
    again.take_shapes(model.state_dict())
    assert again.keypoints == 5
    predictor = again.roi_heads.keypoint_predictor
    predictor.load_state_dict({k: np.zeros_like(v) for k, v in predictor.state_dict().items()})
    assert predictor(Tensor(np.zeros((2, 512, 14, 14), np.float32))).shape == (2, 5, 56, 56)
