"""Training losses of RetinaNet, FCOS and YOLOX against the original implementations', and their rules worked out."""

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from chainsight.core import Tensor
from chainsight.core.layers import BatchNorm2d, GroupNorm
from chainsight.vision.backbones.resnet import BasicBlock, ResNet
from chainsight.vision.categories import Categories
from chainsight.vision.detection import fcos, retinanet, yolox
from chainsight.vision.detection.anchors import AnchorGenerator
from chainsight.vision.detection.dense import ClassificationHead, DenseHead
from chainsight.vision.detection.fpn import LastLevelP6P7, PyramidBackbone
from chainsight.vision.detection.resizing import ShortSideResize
from chainsight.vision.detection.targets import BACKGROUND, NEITHER, Truth, dynamic_match, match_centres
from chainsight.vision.detection.towers import tower
from chainsight.vision.sample import Sample
from stored_goldens import seeded, seeded_model

GOLDENS = json.loads((Path(__file__).resolve().parents[2] / "goldens" / "training" / "dense_losses.json").read_text())
SIZES = ((200, 301), (161, 97))  # of the goldens' images
RNG = np.random.default_rng(0)
NONE = np.zeros((0, 4), np.float32)
NAMES = {
    "retinanet_resnet50_fpn": {"class": "classification", "box": "bbox_regression"},
    "retinanet_resnet50_fpn_v2": {"class": "classification", "box": "bbox_regression"},
    "fcos_resnet50_fpn": {"class": "classification", "box": "bbox_regression", "centreness": "bbox_ctrness"},
    "yolox_nano": {"box": "iou_loss", "objectness": "conf_loss", "class": "cls_loss"},
    "yolox_s": {"box": "iou_loss", "objectness": "conf_loss", "class": "cls_loss"},
}


def golden_model(name):
    """The seeded model in training, its batch norms with the stored statistics, as in the goldens."""
    model, _ = seeded_model(name)
    model.frozen_norms = True
    if not isinstance(model, yolox.YOLOX):
        model.resize = replace(model.resize, short=160, long=256)
    return model.train()


def golden_samples(kind):
    return [
        Sample(
            seeded.synthetic_image(*size),
            boxes=np.array(objects["boxes"], np.float32).reshape(-1, 4),
            labels=np.array(objects["labels"], np.int64),
        )
        for size, objects in zip(SIZES, GOLDENS["batches"][kind])
    ]


def with_region(sample, box):
    """The sample with one more object, a crowd."""
    return Sample(
        sample.image,
        boxes=np.concatenate([sample.boxes, [box]]),
        labels=np.append(sample.labels, 0),
        ignore=np.arange(len(sample) + 1) == len(sample),
    )


def total(losses):
    result = Tensor(0.0)
    for loss in losses.values():
        result = result + loss
    return result


def values(losses):
    return {name: loss.item() for name, loss in losses.items()}


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_losses_and_gradients_equal_the_originals(name):
    model = golden_model(name)
    found = {}
    for kind in ("sparse", "crowded"):
        golden = GOLDENS["cases"][f"{name} {kind}"]
        losses = model.losses(golden_samples(kind), RNG)
        expected = {ours: golden["losses"][theirs] for ours, theirs in NAMES[name].items()}
        assert values(losses) == pytest.approx(expected, rel=1e-4)
        found[kind] = values(losses)

        model.zero_grad()
        total(losses).backward()
        norms = {n: float(np.linalg.norm(p.grad.data)) for n, p in model.named_parameters() if n in golden["gradients"]}
        largest = max(golden["gradients"].values())
        assert norms == pytest.approx(golden["gradients"], rel=2e-3, abs=1e-5 * largest)
    assert len(norms) > 10

    # A crowd: the original drops it, so that what it covers is background; here it teaches nothing.
    height, width = SIZES[1]
    empty = golden_samples("sparse")
    losses = values(model.losses([empty[0], with_region(empty[1], [0, 0, width, height])], RNG))
    background = "objectness" if name.startswith("yolox") else "class"
    assert losses.pop(background) < 0.999 * found["sparse"].pop(background)
    assert losses == found["sparse"]


def pyramid():
    return PyramidBackbone(ResNet(BasicBlock, (1, 1, 1, 1), norm=BatchNorm2d), (1, 2, 3), 64, LastLevelP6P7(64, 64))


def small_retinanet():
    anchors = AnchorGenerator([[16, 24], [32, 48], [64, 96], [128], [128]][:3] + [[128, 192], [256, 384]], (0.5, 1, 2))
    heads = ClassificationHead(tower(64, 1), 64, 6, 3), retinanet.RegressionHead(tower(64, 1), 64, 6)
    categories = Categories.with_background(["a", "b"])
    return retinanet.RetinaNet(pyramid(), anchors, DenseHead(*heads), categories, ShortSideResize(64, 64)).train()


def small_fcos():
    anchors = AnchorGenerator([[8], [16], [32], [64], [128]], (1.0,))
    heads = [tower(64, 1, lambda channels: GroupNorm(8, channels)) for _ in range(2)]
    head = DenseHead(ClassificationHead(heads[0], 64, 1, 3), fcos.RegressionHead(heads[1], 64))
    return fcos.FCOS(pyramid(), anchors, head, Categories.with_background(["a", "b"]), ShortSideResize(64, 64)).train()


def small_yolox():
    model = yolox.yolox_nano(Categories.plain(["a", "b"]))
    model.size = (64, 64)
    return model.train()


FAMILIES = [small_retinanet, small_fcos, small_yolox]


def sample(boxes, ignore=None, labels=None):
    boxes = np.array(boxes, np.float32).reshape(-1, 4)
    labels = np.zeros(len(boxes), np.int64) if labels is None else np.array(labels)
    image = np.random.default_rng(5).integers(0, 255, (64, 64, 3), np.uint8)
    return Sample(image, boxes=boxes, labels=labels, ignore=ignore, source="photo.jpg")


@pytest.mark.parametrize("make", FAMILIES)
def test_every_parameter_learns(make):
    model = make()
    batch = [sample([[4, 6, 40, 30], [10, 20, 30, 60], [2, 2, 12, 14]], labels=[0, 1, 1]), sample([[0, 0, 64, 64]])]
    total(model.losses(batch, RNG)).backward()
    learned = {n: p.grad is not None and bool(np.any(p.grad.data)) for n, p in model.named_parameters()}
    # YOLOX has box and class layers for each level, which learn only where an object chose a cell of it.
    parts = {re.sub(r"^(head\.(?:cls|reg)_\w+)\.\d", r"\1", n) for n, found in learned.items() if found}
    assert [n for n in learned if re.sub(r"^(head\.(?:cls|reg)_\w+)\.\d", r"\1", n) not in parts] == []


@pytest.mark.parametrize("make", FAMILIES)
def test_images_without_objects_and_degenerate_boxes_give_finite_losses(make):
    model = make()
    for batch in ([sample([]), sample([])], [sample([]), sample([[5, 5, 5, 30], [10, 20, 30, 20]])]):
        model.zero_grad()
        losses = model.losses(batch, RNG)
        assert all(np.isfinite(v.item()) for v in losses.values())
        total(losses).backward()
        assert all(p.grad is None or np.isfinite(p.grad.data).all() for p in model.parameters())
        assert losses["box"].item() == 0


@pytest.mark.parametrize("make", FAMILIES)
def test_wrong_annotations_are_named(make):
    model = make()
    with pytest.raises(ValueError, match=r"photo\.jpg: expected labels 0 to 1, got \[2\]"):
        model.losses([sample([[5, 5, 30, 30]], labels=[2])], RNG)
    with pytest.raises(ValueError, match=r"photo\.jpg: box 0 is not finite"):
        model.losses([sample([[5, 5, np.nan, 30]])], RNG)
    with pytest.raises(ValueError, match=r"photo\.jpg: training a detector needs boxes"):
        model.losses([Sample(np.zeros((64, 64, 3), np.uint8), source="photo.jpg")], RNG)


# how cells find their objects


def squares(stride, side=64):
    """The cells of a map, row by row."""
    y, x = np.mgrid[: side // stride, : side // stride] * float(stride)
    return np.stack([x, y, x + stride, y + stride], -1).reshape(-1, 4).astype(np.float32)


def truth(boxes, ignored=NONE):
    boxes = np.array(boxes, np.float32).reshape(-1, 4)
    return Truth(boxes, np.arange(len(boxes)), np.array(ignored, np.float32).reshape(-1, 4))


def test_centre_sampling_takes_the_cells_around_the_middle():
    levels = [squares(8), squares(16), squares(32)]
    matches = match_centres(levels, truth([[0, 0, 40, 24]]), 1.5)
    # The middle is (20, 12), and no side is as far as 64 pixels: it is of the first level.
    around = [1, 2, 3, 9, 10, 11, 17, 18, 19]
    assert np.flatnonzero(matches == 0).tolist() == around
    assert (np.delete(matches, around) == BACKGROUND).all()


def test_large_objects_go_to_coarse_levels_and_ties_to_the_smallest():
    levels = [squares(4), squares(8), squares(16)]
    matches = match_centres(levels, truth([[0, 0, 64, 64]]), 1.5)
    fine, middle, coarse = np.split(matches, np.cumsum([len(level) for level in levels])[:2])
    # From the centres near the middle the farthest side is 32 to 44 pixels away: between 4 and 8 strides of 8.
    assert not (fine == 0).any()
    assert np.flatnonzero(middle == 0).tolist() == [27, 28, 35, 36]
    assert not (coarse == 0).any()
    both = match_centres([squares(8)], truth([[0, 0, 40, 40], [8, 8, 32, 32]]), 1.5)
    assert both[18] == 1
    assert both[9] == 1


def test_ignored_regions_take_background_cells_only():
    cells = squares(8)
    region = [[0, 0, 64, 20]]
    matches = match_centres([cells], truth([[0, 0, 24, 24]], region), 1.5)
    assert matches[9] == 0
    assert matches[15] == NEITHER
    assert matches[16:24].tolist()[3:] == [NEITHER] * 5  # half of them
    assert matches[24] == BACKGROUND
    dynamic, _ = dynamic_match(cells, truth([], region), cells, np.full((64, 2), 0.1, np.float32), 1.5, 10)
    assert dynamic.tolist() == [NEITHER] * 24 + [BACKGROUND] * 40


def test_as_many_cells_as_the_overlaps_add_up_to():
    cells, scores = squares(8), np.full((64, 1), 0.5, np.float32)
    boxes = np.tile(np.array([0, 0, 1, 1], np.float32), (64, 1))
    boxes[[9, 10, 17]] = [[8, 8, 24, 24], [8, 8, 24, 22], [8, 8, 24, 20]]
    matches, quality = dynamic_match(cells, truth([[8, 8, 24, 24]]), boxes, scores, 1.5, 10)
    assert np.flatnonzero(matches == 0).tolist() == [9, 10]  # IoUs 1 + 0.875 + 0.75 = 2.625
    assert quality[[9, 10]].tolist() == [1, 0.875]
    assert quality.sum() == 1.875


def test_a_wanted_cell_goes_to_the_object_that_it_costs_least():
    cells = squares(8)
    boxes = np.tile(np.array([0, 0, 1, 1], np.float32), (64, 1))
    boxes[9] = [8, 8, 24, 24]
    objects = Truth(np.array([[8, 8, 24, 24], [8, 8, 24, 26]], np.float32), np.array([0, 1]), NONE)
    scores = np.full((64, 2), 0.1, np.float32)
    assert dynamic_match(cells, objects, boxes, scores, 1.5, 10)[0][9] == 0
    scores[9] = [0.1, 0.99]  # the class decides against the somewhat smaller IoU
    assert dynamic_match(cells, objects, boxes, scores, 1.5, 10)[0][9] == 1


def test_an_object_without_cells_and_certain_scores():
    cells = squares(8)
    boxes, certain = cells.copy(), np.zeros((64, 2), np.float32)
    certain[:, 0] = 1
    far = truth([[200, 200, 220, 220], [0, 0, 16, 16]])
    matches, quality = dynamic_match(cells, far, boxes, certain, 1.5, 10)
    assert set(matches.tolist()) == {BACKGROUND, 0, 1} or set(matches.tolist()) == {BACKGROUND, 1}
    assert np.isfinite(quality).all()
    nothing, _ = dynamic_match(cells, truth([[200, 200, 220, 220]]), boxes, certain, 1.5, 10)
    assert (nothing == BACKGROUND).all()
