"""Training losses of YOLOv2, v3 and v4: worked out by hand, and what must not change them. There is no original to
compare with in Python; the definition is Darknet's."""

import math

import numpy as np
import pytest
from chainsight.core import Parameter, Tensor
from chainsight.vision.detection.anchor_head import AnchorHead, RegionLoss, YoloLoss, cell_of
from chainsight.vision.detection.targets import Truth

SIZE = (64, 64)
NONE = np.zeros((0, 4), np.float32)
ANCHORS = np.array([[8, 8], [16, 24], [40, 32]], np.float32)
RNG = np.random.default_rng(0)


def truth(boxes, slots=None, ignored=NONE):
    boxes = np.array(boxes, np.float32).reshape(-1, 4)
    slots = np.zeros(len(boxes), np.int64) if slots is None else np.array(slots)
    return Truth(boxes, slots, np.array(ignored, np.float32).reshape(-1, 4))


def yolo(kind="mse", reach=1.0, plain=False, mask=(0, 1, 2), **settings):
    return AnchorHead(ANCHORS[list(mask)], YoloLoss(ANCHORS, mask, kind=kind, **settings), reach, plain)


def region(scales=(1, 5, 1, 1), thresh=0.6, rescore=True, bias_match=True, burning=False):
    loss = RegionLoss(scales, thresh, rescore, bias_match)
    if not burning:
        loss.num_batches_tracked.data = np.array(loss.burn_in)
    return AnchorHead(ANCHORS, loss, exclusive=True)


HEADS = {
    "region": region,
    "region burning in": lambda: region(burning=True).eval(),
    "region by predicted sizes": lambda: region(bias_match=False, rescore=False),
    "mse": yolo,
    "mse v4": lambda: yolo(reach=1.2, thresholds=(0.5, 1, 0.2), smoothing=0.1),
    "mse sure": lambda: yolo(thresholds=(0.3, 0.4, 1)),
    "ciou": lambda: yolo("ciou", 1.1, thresholds=(0.5, 1, 0.2), weights=(0.07, 1, 0.5)),
    "giou": lambda: yolo("giou"),
    "diou": lambda: yolo("diou"),
    "iou": lambda: yolo("iou"),
    "plain": lambda: yolo("ciou", 2.0, True),
    "plain mse": lambda: yolo("mse", 2.0, True),
}


def values(head, images=1, grid=(4, 4), classes=2, seed=0):
    """Numbers for a head: (images, anchors * (5 + classes), rows, columns)."""
    x = np.random.default_rng(seed).normal(0, 0.7, (images, len(head.anchors) * (5 + classes), *grid))
    return (1 / (1 + np.exp(-x)) if head.plain else x).astype(np.float32)


def losses(head, x, truths):
    return [part.item() for part in head.loss(head, Tensor(x), truths, SIZE)]


SCENE = truth([[3, 4, 22, 29], [30, 25, 62, 60], [40, 5, 49, 13], [34, 30, 60, 59]], [0, 1, 1, 0])


@pytest.mark.parametrize("name", HEADS)
def test_gradients(name):
    """By central differences. A rescored objectness is left out: its target follows the box without a gradient; so is
    the loss of a box by CIoU, whose factor has none either."""
    head = HEADS[name]()
    x = values(head, seed=3)
    kind = getattr(head.loss, "kind", "region")
    counted = [kind != "ciou", not getattr(head.loss, "rescore", False), True]

    def counted_sum(parts):
        return sum((part for part, wanted in zip(parts, counted) if wanted), Tensor(0.0))

    leaf = Parameter(x)
    counted_sum(head.loss(head, leaf, [SCENE], SIZE)).backward()
    gradient = leaf.grad.data.ravel()
    chosen = np.argsort(-np.abs(gradient))[: np.count_nonzero(gradient)]
    assert len(chosen) >= 18
    for k in chosen[:: -(-len(chosen) // 25)]:
        step = np.zeros(x.size, np.float32)
        step[k] = 1e-3
        up, down = (
            counted_sum(head.loss(head, Tensor(moved), [SCENE], SIZE)).item()
            for moved in (x + step.reshape(x.shape), x - step.reshape(x.shape))
        )
        assert (up - down) / 2e-3 == pytest.approx(float(gradient[k]), rel=0.02, abs=0.02)


# by hand: zeros predict the anchors in the middle of their cells, which are of 16 pixels

BIT = math.log(2)
SHIFTED = truth([[12, 0, 28, 24]])  # of anchor 1's size; its centre (20, 12) is at (1/4, 3/4) of the cell (1, 0)
CENTRED = truth([[16, 12, 32, 36]], [1])  # anchor 1 in the middle of the cell (1, 1)
LARGE = 2 - 16 * 24 / 64**2
IOU = 12 * 20 / (2 * 16 * 24 - 12 * 20)


def zeros(head, classes=2):
    return np.zeros((1, len(head.anchors) * (5 + classes), 4, 4), np.float32)


def test_squared_errors_by_hand():
    head = yolo(weights=(3, 1, 1))
    assert losses(head, zeros(head), [SHIFTED]) == pytest.approx([3 * LARGE * 2 * BIT, 48 * BIT, 2 * BIT])
    x = zeros(head).reshape(3, 7, 4, 4)
    x[1, :, 0, 1] = (1, 0, 0.5, -2, 3, 2, -1)
    soft = [math.log1p(math.exp(v)) for v in (1, 3, 2, -1)]
    box = soft[0] - 0.25 + BIT + (0.5**2 + 2**2) / 2
    found = losses(head, x.reshape(1, -1, 4, 4), [SHIFTED])
    assert found == pytest.approx([3 * LARGE * box, 47 * BIT + soft[1] - 3, soft[2] - 2 + soft[3]])


def test_the_best_anchor_is_that_of_all_heads():
    head = yolo(mask=(0, 2))
    assert losses(head, zeros(head), [CENTRED]) == pytest.approx([0, 32 * BIT, 0])


def test_predictions_that_overlap_objects_are_not_background():
    head = yolo(mask=(0, 2), thresholds=(0.29, 1, 1))  # anchor 2 has an IoU of 0.3
    assert losses(head, zeros(head), [CENTRED]) == pytest.approx([0, 31 * BIT, 0])
    head = yolo(mask=(0, 2), thresholds=(0.31, 1, 1))
    assert losses(head, zeros(head), [CENTRED]) == pytest.approx([0, 32 * BIT, 0])


@pytest.mark.parametrize("thresholds", [(0.2, 0.29, 1), (0.2, 1, 0.29)])
def test_predictions_and_anchors_that_overlap_well_belong_to_the_object(thresholds):
    head = yolo(mask=(0, 2), thresholds=thresholds)
    x = zeros(head)
    x[0, 7 + 4] = 1  # the objectness of anchor 2
    wrong = 2 * BIT + (math.log(16 / 40) ** 2 + math.log(24 / 32) ** 2) / 2
    soft = math.log1p(math.exp(1))
    ignored = int(np.sum(losses_of_objectness(yolo(mask=(0, 2), thresholds=(0.2, 1, 1)), x, [CENTRED]) == 0))
    expected = [LARGE * wrong, 16 * BIT + (16 - ignored) * soft + soft - 1, 2 * BIT]
    assert losses(head, x, [CENTRED]) == pytest.approx(expected)


def losses_of_objectness(head, x, truths):
    """The gradient of the objectness of each place."""
    leaf = Parameter(x)
    head.loss(head, leaf, truths, SIZE)[1].backward()
    return leaf.grad.data.reshape(len(x), len(head.anchors), -1, 4, 4)[:, :, 4]


def test_objects_at_one_place_share_it():
    head = yolo()
    both = truth([[12, 0, 28, 24], [13, 0, 29, 24]], [0, 1])
    one, other = (truth(both.boxes[k : k + 1], both.slots[k : k + 1]) for k in (0, 1))
    x = values(head)
    found, each = losses(head, x, [both]), [losses(head, x, [t]) for t in (one, other)]
    assert found[0] == pytest.approx((each[0][0] + each[1][0]) / 2)
    assert found[1] == pytest.approx(each[0][1])
    logits = x.reshape(3, 7, 4, 4)[1, 5:, 0, 1]
    assert found[2] == pytest.approx(np.log1p(np.exp(-logits)).sum(), rel=1e-5)  # of both classes
    head = region()
    found, each = losses(head, x, [both]), [losses(head, x, [t]) for t in (one, other)]
    assert found[0] == pytest.approx((each[0][0] + each[1][0]) / 2)
    assert found[2] == pytest.approx((each[0][2] + each[1][2]) / 2)  # of one or the other


def test_ciou_by_hand():
    head = yolo("ciou", weights=(0.07, 1, 1))
    distance = (4**2 + 4**2) / (20**2 + 28**2)
    box = 0.07 * (1 - IOU + distance) / math.sqrt(16 * 24 / 64**2)
    assert losses(head, zeros(head), [SHIFTED]) == pytest.approx([box, 48 * BIT, 2 * BIT], rel=1e-5)


def test_label_smoothing():
    head = yolo(smoothing=0.1)
    x = zeros(head).reshape(3, 7, 4, 4)
    x[1, 5:, 0, 1] = (2, -1)
    expected = sum(math.log1p(math.exp(v)) - v * t for v, t in ((2, 0.95), (-1, 0.05)))
    assert losses(head, x.reshape(1, -1, 4, 4), [SHIFTED])[2] == pytest.approx(expected)


@pytest.mark.parametrize("rescore", [True, False])
def test_region_by_hand(rescore):
    head = region((2, 5, 0.5, 3), rescore=rescore)
    present = 5 * ((IOU if rescore else 1) - 0.5) ** 2 / 2
    expected = [2 * LARGE * 2 * 0.25**2 / 2, 0.5 * 47 * 0.5**2 / 2 + present, 3 * BIT]
    assert losses(head, zeros(head), [SHIFTED]) == pytest.approx(expected)


def test_region_ignores_predictions_that_overlap_objects():
    gradients = [losses_of_objectness(region(thresh=t), zeros(region()), [CENTRED]) for t in (0.31, 0.29, 0.2)]
    assert [int((g == 0).sum()) for g in gradients] == [0, 1, 3]  # anchor 2 in the same cell, and in its neighbours


def test_region_may_choose_by_predicted_sizes():
    head = region(bias_match=False)
    x = zeros(head).reshape(3, 7, 4, 4)
    x[0, 2:4, 0, 1] = math.log(2), math.log(3)  # anchor 0 is as large as the object there, and now both fit: the first
    x[:, 5, 0, 1] = (3, 0, 0)
    assert losses(head, x.reshape(1, -1, 4, 4), [SHIFTED])[2] == pytest.approx(math.log1p(math.exp(-3)), rel=1e-5)
    assert losses(region(), x.reshape(1, -1, 4, 4), [SHIFTED])[2] == pytest.approx(BIT)


def test_boxes_are_drawn_to_their_anchors_in_the_first_batches():
    x = zeros(region()).reshape(3, 7, 4, 4)
    x[:, 2] = 1
    x = x.reshape(1, -1, 4, 4)
    head = region(burning=True)
    later = losses(region(), x, [SHIFTED])[0]
    head.loss.burn_in = 3
    for _ in range(3):
        assert losses(head, x, [SHIFTED])[0] == pytest.approx(later + 0.01 / 2 * 47)
    assert losses(head, x, [SHIFTED])[0] == pytest.approx(later)
    assert head.loss.num_batches_tracked.numpy() == 4
    head.eval()
    losses(head, x, [SHIFTED])
    assert head.loss.num_batches_tracked.numpy() == 4


# where the loss is least


@pytest.mark.parametrize("name", HEADS)
def test_no_box_is_better_than_the_objects(name):
    """Codes that decode to the object have no gradient, but that of other places."""
    head = HEADS[name]()
    scene = truth([[10, 3, 25, 26]], [1])
    offset = np.array([17.5, 14.5]) / 16 - (1, 0)
    inner = (offset + (head.reach - 1) / 2) / head.reach
    side = np.array([15, 23]) / ANCHORS[1]
    codes = np.concatenate([inner, np.sqrt(side) / 2] if head.plain else [np.log(inner / (1 - inner)), np.log(side)])
    x = np.full((3, 7, 4, 4), 0.1 if head.plain else -2.0, np.float32)
    x[1, :4, 0, 1] = codes
    x[1, 4:, 0, 1] = (0.9, 0.01, 0.9) if head.plain else (6, -6, 6)
    boxes, _, slots = head.decode(x.reshape(-1, 4, 4), SIZE, 0.5)
    assert slots.tolist() == [1]
    assert np.abs(boxes - scene.boxes).max() < 1e-3
    leaf = Parameter(x.reshape(1, -1, 4, 4))
    head.loss(head, leaf, [scene], SIZE)[0].backward()
    assert np.abs(leaf.grad.data.reshape(x.shape)[1, :4, 0, 1]).max() < (
        0.15 if "iou" in name or name == "plain" else 1e-5
    )


# what must not change anything


@pytest.mark.parametrize("name", HEADS)
def test_the_order_of_objects_and_other_images_do_not_matter(name):
    x = values(HEADS[name](), 2)
    other = truth([[1, 1, 30, 40]], [1])
    alone = np.array([losses(HEADS[name](), x[i : i + 1], [t]) for i, t in enumerate((SCENE, other))])
    order = [2, 0, 3, 1]
    turned = truth(SCENE.boxes[order], SCENE.slots[order])
    np.testing.assert_allclose(losses(HEADS[name](), x, [turned, other]), alone.sum(0), rtol=2e-5)


@pytest.mark.parametrize("name", HEADS)
def test_the_scene_may_move_by_whole_cells(name):
    x = values(HEADS[name](), grid=(6, 6), seed=5)
    head, size = HEADS[name](), (96, 96)
    scene = truth([[19, 20, 38, 45], [40, 41, 62, 66]], [0, 1])
    moved = truth(scene.boxes + [16, -16, 16, -16], scene.slots)
    first = [v.item() for v in head.loss(head, Tensor(x), [scene], size)]
    again = [v.item() for v in HEADS[name]().loss(head, Tensor(np.roll(x, (-1, 1), (2, 3))), [moved], size)]
    np.testing.assert_allclose(again, first, rtol=2e-5)


@pytest.mark.parametrize("name", HEADS)
def test_regions_to_be_ignored_are_no_background(name):
    x = values(HEADS[name]())
    plain = losses(HEADS[name](), x, [SCENE])
    crowded = losses(HEADS[name](), x, [truth(SCENE.boxes, SCENE.slots, [[0, 0, 64, 64]])])
    assert crowded[1] < 0.8 * plain[1]
    assert crowded[0] == plain[0]
    assert crowded[2] == plain[2]
    head = HEADS[name]()
    leaf = Parameter(x)
    head.loss(head, leaf, [truth([], ignored=[[0, 0, 64, 64]])], SIZE)[1].backward()
    rows = np.abs(leaf.grad.data.reshape(3, 7, 4, 4)[:, 4])
    assert (rows[:, 1:3, 1:3] == 0).all()


def test_an_object_at_the_very_edge():
    head = yolo()
    edge = truth([[63.98, 40, 64, 64]])
    assert np.isfinite(losses(head, zeros(head), [edge])).all()
    assert cell_of((4, 2), (64, 64)).tolist() == [32, 16]
