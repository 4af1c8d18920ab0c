"""Training losses of the detectors against the original implementations', and the rules for hard cases."""

import importlib.util
import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from chainsight.core import Parameter, Tensor
from chainsight.core.layers import init
from chainsight.vision import models
from chainsight.vision.categories import Categories
from chainsight.vision.detection import faster_rcnn, nanodet, ssd
from chainsight.vision.detection.resizing import ShortSideResize
from chainsight.vision.detection.targets import Truth
from chainsight.vision.sample import Sample

GOLDENS = Path(__file__).resolve().parents[2] / "goldens"
RNG = np.random.default_rng(0)


def module(path):
    spec = importlib.util.spec_from_file_location(f"golden_{path.stem}", path)
    loaded = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = loaded
    spec.loader.exec_module(loaded)
    return loaded


seeded, objects = module(GOLDENS / "seeded.py"), module(GOLDENS / "training" / "objects.py")
scenes = module(GOLDENS / "chainercv" / "ssd_scenes.py")
LOSSES = json.loads((GOLDENS / "training" / "losses.json").read_text())


class FirstOnes:
    """A generator whose permutations are no permutations: the first anchors are sampled, as in the goldens."""

    def permutation(self, values):
        return values


def seeded_model(name):
    model = models.load(name, weights=None)
    shapes = {k: (v.shape, str(v.dtype)) for k, v in model.state_dict().items()}
    model.load_state_dict(seeded.seeded_state(shapes, seeded.read_golden(GOLDENS / f"{name}.npz")))
    return model.train()


def samples(model):
    return [
        Sample(
            seeded.synthetic_image(*size),
            boxes=truth["boxes"],
            labels=model.categories.labels_of(truth["labels"]),
        )
        for size, truth in zip(objects.IMAGES, objects.OBJECTS)
    ]


def total(losses):
    result = Tensor(0.0)
    for loss in losses.values():
        result = result + loss
    return result


def check(model, losses, golden, names, body=1e-3):
    assert list(losses) == list(names)
    for ours, theirs in names.items():
        assert losses[ours].item() == pytest.approx(golden["losses"][theirs], rel=1e-4), ours
    total(losses).backward()
    gradients = {n: float(np.linalg.norm(p.grad.data)) for n, p in model.named_parameters() if n in golden["gradients"]}
    largest = max(golden["gradients"].values())
    for name, norm in gradients.items():
        rel = 1e-3 if "head" in name else body
        assert norm == pytest.approx(golden["gradients"][name], rel=rel, abs=1e-5 * largest), name
    assert len(gradients) > 20


@pytest.mark.slow
def test_faster_rcnn_equals_torchvision():
    golden = LOSSES["fasterrcnn_resnet50_fpn"]
    model = seeded_model("fasterrcnn_resnet50_fpn")
    model.resize = replace(model.resize, short=160, long=256)
    losses = model.losses(samples(model), FirstOnes())
    names = {
        "objectness": "loss_objectness",
        "proposal box": "loss_rpn_box_reg",
        "class": "loss_classifier",
        "box": "loss_box_reg",
    }
    check(model, losses, golden, names)


@pytest.mark.slow
def test_ssdlite_equals_torchvision():
    golden = LOSSES["ssdlite320_mobilenet_v3_large"]
    model = seeded_model("ssdlite320_mobilenet_v3_large").eval()
    losses = model.losses(samples(model), RNG)
    # A hard-swish or ReLU6 at its kink decides by rounding: torch's own gradients move by 0.6 % in float64.
    check(model, losses, golden, {"class": "classification", "box": "bbox_regression"}, body=0.03)


@pytest.mark.parametrize(("name", "seed"), scenes.CASES)
def test_multibox_loss_equals_chainercv(name, seed):
    """Crowded objects too, of which no two claim one default box."""
    golden = json.loads((GOLDENS / "chainercv" / "ssd_losses.json").read_text())[f"{name} {seed}"]
    size, maps = int(name[3:]), {"ssd300": (38, 19, 10, 5, 3, 1), "ssd512": (64, 32, 16, 8, 4, 2, 1)}[name]
    with init.skip_init():
        model = getattr(ssd, name)(Categories.with_background([str(k) for k in range(20)]))
    anchors = model.default_boxes([(side, side) for side in maps], (size, size))
    none = np.zeros((0, 4), np.float32)
    truths = [Truth(boxes, labels + 1, none) for boxes, labels in zip(*scenes.scene(size, seed))]
    assert [int((model.match(anchors, truth, 0.5) >= 0).sum()) for truth in truths] == golden["claimed"]
    codes, logits = scenes.outputs(len(anchors), seed)
    codes, logits = Parameter(codes[..., [1, 0, 3, 2]]), Parameter(logits)
    losses = model.losses_of(logits, codes, anchors, truths)
    assert {k: v.item() for k, v in losses.items()} == pytest.approx({k: golden[k] for k in losses}, rel=1e-5)
    total(losses).backward()
    assert [float(np.linalg.norm(p.grad.data)) for p in (codes, logits)] == pytest.approx(golden["norms"], rel=1e-5)


@pytest.mark.parametrize("scale", [0.5, 3.0])
def test_nanodet_equals_the_official_head(scale):
    golden = LOSSES[f"nanodet_g {scale}"]
    model = nanodet.nanodet_g(Categories.plain([str(i) for i in range(objects.CLASSES)]))
    outputs = objects.head_outputs(scale)
    logits = Tensor(outputs[..., : objects.CLASSES].copy(), requires_grad=True)
    bins = outputs[..., objects.CLASSES :].reshape(2, -1, 4, objects.BINS)
    bins = Tensor(bins.copy(), requires_grad=True)
    truths = [Truth(*objects.network_boxes(i), np.zeros((0, 4), np.float32)) for i in range(2)]
    losses = model.losses_of(logits, bins, truths)
    for ours, theirs in {"quality": "loss_qfl", "box": "loss_bbox", "distribution": "loss_dfl"}.items():
        assert losses[ours].item() == pytest.approx(golden["losses"][theirs], rel=1e-4), ours
    total(losses).backward()
    assert np.linalg.norm(logits.grad.data) == pytest.approx(golden["gradients"]["classes"], rel=1e-3)
    assert np.linalg.norm(bins.grad.data) == pytest.approx(golden["gradients"]["bins"], rel=1e-3)


def small_nanodet():
    return nanodet.NanoDet(nanodet.CspNet(), 128, Categories.plain(["a", "b"]), (96, 96)).train()


def small_ssd():
    return ssd.ssdlite320_mobilenet_v3_large(Categories.with_background(["a", "b"])).train()


def small_faster_rcnn():
    model = faster_rcnn.fasterrcnn_resnet50_fpn(Categories.with_background(["a", "b"])).train()
    model.resize = ShortSideResize(64, 64)
    return model


def sample(boxes, ignore=None, labels=None):
    boxes = np.array(boxes, np.float32).reshape(-1, 4)
    labels = np.zeros(len(boxes), np.int64) if labels is None else np.array(labels)
    image = np.random.default_rng(5).integers(0, 255, (64, 64, 3), np.uint8)
    return Sample(image, boxes=boxes, labels=labels, ignore=ignore, source="photo.jpg")


FAMILIES = [small_nanodet, small_ssd, pytest.param(small_faster_rcnn, marks=pytest.mark.slow)]


@pytest.mark.parametrize("make", FAMILIES)
def test_images_without_objects_and_degenerate_boxes_give_finite_losses(make):
    model = make()
    batch = [sample([]), sample([[5, 5, 5, 30], [10, 20, 30, 20]])]
    losses = model.losses(batch, np.random.default_rng(0))
    assert all(np.isfinite(v.item()) for v in losses.values())
    total(losses).backward()
    assert all(p.grad is None or np.isfinite(p.grad.data).all() for p in model.parameters())


@pytest.mark.parametrize("make", FAMILIES)
def test_wrong_annotations_are_named(make):
    model, rng = make(), np.random.default_rng(0)
    with pytest.raises(ValueError, match=r"photo\.jpg: expected labels 0 to 1, got \[2\]"):
        model.losses([sample([[5, 5, 30, 30]], labels=[2])], rng)
    with pytest.raises(ValueError, match=r"photo\.jpg: box 0 is not finite"):
        model.losses([sample([[5, 5, np.nan, 30]])], rng)
    with pytest.raises(ValueError, match=r"photo\.jpg: training a detector needs boxes"):
        model.losses([Sample(np.zeros((64, 64, 3), np.uint8), source="photo.jpg")], rng)


def test_an_ignored_region_teaches_nothing():
    """The whole image is a crowd: no cell is background."""
    model = small_nanodet()
    crowd = sample([[0, 0, 64, 64]], ignore=np.array([True]))
    inside = model.losses([crowd], np.random.default_rng(0))["quality"].item()
    nothing = model.losses([sample([])], np.random.default_rng(0))["quality"].item()
    assert inside < 0.9 * nothing  # the cells that reach out of the image remain
