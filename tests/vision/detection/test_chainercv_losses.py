"""Training losses of ChainerCV's R-CNNs against its own, on given outputs of the networks."""

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest
from chainsight.core import Tensor
from chainsight.core.layers import init
from chainsight.vision.categories import Categories
from chainsight.vision.detection import chainercv_rcnn, fcis, light_head_rcnn, mask_rcnn
from chainsight.vision.detection.faster_rcnn import Objects
from chainsight.vision.detection.targets import Truth
from chainsight.vision.sample import Sample

FOLDER = Path(__file__).resolve().parents[2] / "goldens" / "chainercv" / "two_stage"
SPEC = importlib.util.spec_from_file_location("chainercv_loss_inputs", FOLDER / "loss_inputs.py")
assert SPEC is not None
assert SPEC.loader is not None
inputs = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(inputs)
GOLDEN = json.loads((FOLDER / "losses.json").read_text())
CATEGORIES = Categories.with_background(["a", "b", "c"])
TRUTH = Truth(inputs.BOXES, inputs.LABELS + 1, np.zeros((0, 4), np.float32))


class FirstOnes:
    """A generator whose permutations are no permutations: the first are sampled, as in the goldens."""

    def permutation(self, values):
        return values


def check(losses, golden):
    assert {name: loss.item() for name, loss in losses.items()} == pytest.approx(golden, rel=1e-5)
    for loss in losses.values():
        loss.backward()


def built(build):
    with init.skip_init():
        return build(CATEGORIES)


def head_losses(heads, monkeypatch):
    """The losses of the heads for outputs that depend on the region alone."""
    every = np.concatenate([inputs.proposals(), inputs.BOXES])
    outputs = [Tensor(array, requires_grad=True) for array in inputs.outputs(len(every))]

    def forward(levels, boxes, size):
        place = np.abs(every[None] - boxes[0][:, None]).max(2).argmin(1)
        return outputs[0][place], outputs[1][place].reshape(len(place), -1)

    monkeypatch.setattr(heads, "forward", forward)
    regions = heads.sample(inputs.proposals(), TRUTH, FirstOnes())
    return heads.losses([], [regions], [TRUTH], inputs.SIZE)


def test_pyramid(monkeypatch):
    model = built(chainercv_rcnn.faster_rcnn_fpn_resnet50)
    anchors = model.rpn.anchors([(80, 104), (40, 52), (20, 26), (10, 13), (5, 7)], (320, 416))
    logits = [Tensor(inputs.normal(10 + i, 1, len(a)), requires_grad=True) for i, a in enumerate(anchors)]
    codes = [Tensor(inputs.normal(20 + i, 1, len(a), 4), requires_grad=True) for i, a in enumerate(anchors)]
    losses = model.rpn.losses(logits, codes, anchors, [TRUTH], [inputs.SIZE], FirstOnes())
    check(losses | head_losses(model.roi_heads, monkeypatch), GOLDEN["pyramid"])


def test_plane(monkeypatch):
    model = built(chainercv_rcnn.faster_rcnn_vgg16)
    anchors = model.rpn.anchors([(19, 25)], inputs.SIZE)
    codes = Tensor(inputs.normal(30, len(anchors[0]), 4)[None], requires_grad=True)
    logits = Tensor(inputs.normal(31, len(anchors[0]), 2).reshape(1, -1), requires_grad=True)
    losses = model.rpn.losses([logits], [codes], anchors, [TRUTH], [inputs.SIZE], FirstOnes())
    check(losses | head_losses(model.roi_heads, monkeypatch), GOLDEN["plane"])


def test_light_head(monkeypatch):
    heads = built(light_head_rcnn.light_head_rcnn_resnet101).roi_heads
    heads.hardest = inputs.HARDEST
    check(head_losses(heads, monkeypatch), GOLDEN["light_head"])


def test_fcis(monkeypatch):
    model = built(fcis.fcis_resnet101)
    every = np.concatenate([inputs.proposals(), inputs.BOXES])
    arrays = [*inputs.outputs(len(every)), inputs.normal(6, len(every), 441)]
    logits, codes, inside = (Tensor(array, requires_grad=True) for array in arrays)

    def forward(levels, boxes, slots):
        place = np.abs(every[None] - boxes[0][:, None]).max(2).argmin(1)
        return fcis.Judged(logits[place], inside[place], codes[place])

    monkeypatch.setattr(model.roi_heads, "forward", forward)
    monkeypatch.setattr(type(model.resize), "size", lambda self, size: size)
    regions = model.roi_heads.sample(inputs.proposals(), TRUTH, FirstOnes())
    losses = model.roi_heads.losses([], [regions], [TRUTH], inputs.SIZE)
    photo = np.zeros((*inputs.SIZE, 3), np.uint8)
    sample = Sample(photo, boxes=inputs.BOXES, labels=inputs.LABELS, masks=inputs.masks())
    k = len(regions.matched)
    objects = Objects(sample, inputs.SIZE, regions.matched, regions.boxes[:k], regions.slots[:k], len(regions.boxes))
    check(losses | model.instance_losses([], [objects], inputs.SIZE), GOLDEN["fcis"])


def test_fcis_needs_masks():
    sample = Sample(np.zeros((8, 8, 3), np.uint8), boxes=np.array([[1, 1, 5, 5.0]]), source="photo.jpg")
    objects = Objects(sample, (8, 8), np.array([0]), sample.boxes, np.array([1]), 4)
    with pytest.raises(ValueError, match=r"photo\.jpg: training masks needs masks"):
        fcis.mask_targets(objects, (8, 8))


def test_masks_of_regions_are_those_of_chainercv():
    boxes = inputs.regions_of_masks()
    corners = np.maximum(boxes[:, None, :2], inputs.BOXES[:, :2])
    sides = np.clip(np.minimum(boxes[:, None, 2:], inputs.BOXES[:, 2:]) - corners, 0, None)
    area = [np.prod(b[:, 2:] - b[:, :2], 1) for b in (boxes, inputs.BOXES)]
    inter = sides.prod(2)
    rows = (inter / (area[0][:, None] + area[1] - inter)).argmax(1)
    image = np.zeros((*inputs.SIZE, 3), np.uint8)
    sample = Sample(image, boxes=inputs.BOXES, masks=inputs.masks())
    objects = Objects(sample, inputs.SIZE, rows, boxes, np.ones(len(boxes), np.int64))
    found = chainercv_rcnn.whole_mask_targets(objects, 28)
    stored = GOLDEN["mask targets"]
    expected = [np.unpackbits(np.frombuffer(bytes.fromhex(text), np.uint8), count=784) for text in stored]
    assert np.array_equal(found.reshape(len(found), -1), expected)
    assert [bool(e.any()) for e in expected] == [True] * 8 + [False, False]
    for build, targets in (
        (chainercv_rcnn.mask_rcnn_fpn_resnet50, chainercv_rcnn.whole_mask_targets),
        (mask_rcnn.maskrcnn_resnet50_fpn, mask_rcnn.mask_targets),
    ):
        assert built(build).targets_of is targets


def test_masks_of_regions_of_a_larger_photo_are_read_at_the_size_of_the_input():
    mask = np.zeros((1, 200, 300), bool)
    mask[:, 40:120, 60:200] = True
    sample = Sample(np.zeros((200, 300, 3), np.uint8), boxes=np.array([[60, 40, 200, 120.0]], np.float32), masks=mask)
    whole = np.array([[30, 20, 100, 60]], np.float32)  # the object's own box at half of the size
    objects = Objects(sample, (100, 150), np.array([0]), np.concatenate([whole, whole + 20]), np.ones(2, np.int64))
    objects = objects._replace(rows=np.array([0, 0]))
    inside, moved = chainercv_rcnn.whole_mask_targets(objects, 28)
    assert inside.mean() > 0.9
    assert moved[:8, :8].all()
    assert not moved[-8:].any()
    with pytest.raises(ValueError, match="training masks needs masks"):
        chainercv_rcnn.whole_mask_targets(objects._replace(sample=Sample(sample.image, boxes=sample.boxes)), 28)
