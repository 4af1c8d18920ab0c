import time

import numpy as np
import pytest
from chainsight.vision import boxes as B
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp


def naive_nms(boxes, scores, threshold):
    """The definition: all pairs in float32, compared in double precision, then one box after the other."""
    boxes = np.asarray(boxes, np.float32)
    sides = np.minimum(boxes[:, None, 2:], boxes[:, 2:]) - np.maximum(boxes[:, None, :2], boxes[:, :2])
    inter = np.maximum(sides, 0).prod(2, dtype=np.float32)
    areas = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    union = areas[:, None] + areas - inter
    over = (np.divide(inter, union, out=np.zeros_like(inter), where=union != 0).astype(np.float64) > threshold).tolist()
    kept = []
    for j in sorted(range(len(boxes)), key=lambda i: (-float(scores[i]), i)):
        if not any(over[i][j] for i in kept):
            kept.append(j)
    return np.array(kept, np.int64)


def naive_batched(boxes, scores, classes, threshold):
    kept = []
    for c in np.unique(classes):
        (members,) = np.nonzero(classes == c)
        kept.extend(members[naive_nms(boxes[members], scores[members], threshold)].tolist())
    return np.array(sorted(kept, key=lambda i: (-float(scores[i]), i)), np.int64)


def row_nms(boxes, scores, threshold):
    """The definition with one vectorised row per kept box: quick enough for 10,000 boxes."""
    order = np.argsort(-scores, kind="stable")
    areas = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    lost, kept = np.zeros(len(boxes), bool), []
    for place, i in enumerate(order):
        if not lost[i]:
            kept.append(i)
            rest = order[place + 1 :]
            low, high = np.maximum(boxes[i, :2], boxes[rest, :2]), np.minimum(boxes[i, 2:], boxes[rest, 2:])
            inter = np.maximum(high - low, 0).prod(1)
            lost[rest[(inter / (areas[i] + areas[rest] - inter)).astype(np.float64) > threshold]] = True
    return np.array(kept)


def some_boxes(kind, n, seed=0):
    rng = np.random.default_rng(seed)
    if kind == "uniform":
        centre, side = rng.random((n, 2)) * 1000, rng.random((n, 2)) * 90 + 10
    elif kind == "large":
        centre, side = rng.random((n, 2)) * 1000, rng.random((n, 2)) * 500 + 10
    elif kind == "crowded":
        group = rng.integers(0, 60, n)
        centre = (rng.random((60, 2)) * 900)[group] + rng.normal(0, 4, (n, 2))
        side = (rng.random((60, 2)) * 200 + 30)[group] * rng.uniform(0.8, 1.25, (n, 2))
    elif kind == "one place":
        centre, side = 500 + rng.normal(0, 5, (n, 2)), 200 * rng.uniform(0.7, 1.4, (n, 2))
    elif kind == "grid, all kept":
        centre, side = np.stack(np.divmod(np.arange(n), 100), 1) * 10.0, np.full((n, 2), 9.0)
    elif kind == "column, all kept":
        centre, side = np.stack([np.full(n, 50.0), np.arange(n) * 10.0], 1), np.full((n, 2), 9.0)
    elif kind == "chain":
        centre, side = np.stack([np.arange(n) * 3.0, np.full(n, 50.0)], 1), np.full((n, 2), 9.0)
    scores = -np.arange(n).astype(np.float32) if kind == "chain" else rng.random(n).astype(np.float32)
    return np.concatenate([centre - side / 2, centre + side / 2], 1).astype(np.float32), scores


KINDS = ["uniform", "large", "crowded", "one place", "grid, all kept", "column, all kept", "chain"]

# Few distinct numbers, so ties, equal boxes, touching edges and degenerate boxes are the rule.
coordinates = st.sampled_from([-7.0, -1.5, 0.0, 1.0, 2.0, 3.0, 3.25, 5.0, 10.0, 64.0])
box_sets = st.integers(0, 30).flatmap(lambda n: hnp.arrays(np.float32, (n, 4), elements=coordinates))
thresholds = st.sampled_from([0.0, 0.1, 0.3, 0.5, 0.6, 0.7, 1.0])


@given(box_sets, thresholds, st.data())
@settings(max_examples=120, deadline=None)
def test_nms_equals_the_definition(boxes, threshold, data):
    scores = data.draw(hnp.arrays(np.float32, len(boxes), elements=st.sampled_from([-1.0, 0.0, 0.25, 0.5, 1.0])))
    np.testing.assert_array_equal(B.nms(boxes, scores, threshold), naive_nms(boxes, scores, threshold))


@given(box_sets, thresholds, st.data())
@settings(max_examples=80, deadline=None)
def test_batched_nms_equals_the_definition_per_class(boxes, threshold, data):
    n = len(boxes)
    scores = data.draw(hnp.arrays(np.float32, n, elements=st.sampled_from([0.25, 0.5, 1.0])))
    classes = data.draw(hnp.arrays(np.int64, n, elements=st.integers(-2, 3)))
    found = B.batched_nms(boxes, scores, classes, threshold)
    np.testing.assert_array_equal(found, naive_batched(boxes, scores, classes, threshold))


@given(st.integers(0, 2**32 - 1), st.sampled_from([0.2, 0.45, 0.5, 0.7, 0.9]), st.sampled_from([1.0, 1e-3, 1e4]))
@settings(max_examples=25, deadline=None)
def test_nms_of_random_boxes_at_any_scale(seed, threshold, factor):
    rng = np.random.default_rng(seed)
    low = rng.random((120, 2)) * 40 - 20
    boxes = (np.concatenate([low, low + rng.exponential(12, (120, 2))], 1) * factor).astype(np.float32)
    scores = rng.random(120)
    np.testing.assert_array_equal(B.nms(boxes, scores, threshold), naive_nms(boxes, scores, threshold))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("threshold", [0.5, 0.75])
def test_nms_of_thousands_of_boxes(kind, threshold):
    boxes, scores = some_boxes(kind, 2000)
    boxes *= np.float32(0.45)
    np.testing.assert_array_equal(B.nms(boxes, scores, threshold), row_nms(boxes, scores, threshold))


@pytest.mark.parametrize(("kind", "most"), [("one place", 2_000_000), ("large", 100_000)])
def test_every_way_through_the_suppression_agrees(kind, most, monkeypatch):
    boxes, scores = some_boxes(kind, 3000)
    expected = row_nms(boxes, scores, 0.6)
    np.testing.assert_array_equal(B.nms(boxes, scores, 0.6), expected)
    monkeypatch.setattr(B, "_MOST_PAIRS", most)
    np.testing.assert_array_equal(B.nms(boxes, scores, 0.6), expected)
    classes = np.arange(3000) % 3
    expected = np.concatenate([c + 3 * row_nms(boxes[c::3], scores[c::3], 0.6) for c in range(3)])
    expected = expected[np.argsort(-scores[expected], kind="stable")]
    np.testing.assert_array_equal(B.batched_nms(boxes, scores, classes, 0.6), expected)


@pytest.mark.parametrize("kind", KINDS)
def test_suppression_is_quick(kind):
    boxes, scores = some_boxes(kind, 10_000)
    classes = np.random.default_rng(1).integers(0, 80, 10_000)
    for run in (lambda: B.nms(boxes, scores, 0.5), lambda: B.batched_nms(boxes, scores, classes, 0.5)):
        # The processor's time, and a few tries: other processes may share the machine.
        seconds = []
        while len(seconds) < 20 and min(seconds, default=1) >= 0.1:
            start = time.process_time()
            run()
            seconds.append(time.process_time() - start)
        assert min(seconds) < 0.1


def test_equal_scores_keep_their_order():
    boxes = np.array([[0, 0, 2, 2], [9, 9, 11, 11], [0, 0, 2, 2], [5, 5, 6, 6]], np.float32)
    assert B.nms(boxes, np.full(4, 0.5), 0.5).tolist() == [0, 1, 3]
    assert B.batched_nms(boxes, np.full(4, 0.5), np.array([3, 2, 1, 0]), 0.5).tolist() == [0, 1, 2, 3]


def test_suppression_is_strict_and_compares_in_double_precision():
    # 1/10: the nearest float32 exceeds the double 0.1, so torchvision suppresses here; a float32 threshold would not.
    boxes = np.array([[0, 0, 10, 1], [0, 0, 1, 1]], np.float32)
    assert B.nms(boxes, np.array([0.9, 0.8]), 0.1).tolist() == [0]
    half = np.array([[0, 0, 2, 1], [0, 0, 1, 1]], np.float32)
    assert B.nms(half, np.array([0.9, 0.8]), 0.5).tolist() == [0, 1]
    assert B.nms(half, np.array([0.9, 0.8]), 0.4999).tolist() == [0]


def test_no_boxes():
    assert B.nms(np.zeros((0, 4)), np.zeros(0), 0.5).shape == (0,)
    assert B.batched_nms(np.zeros((0, 4)), np.zeros(0), np.zeros(0, int), 0.5).shape == (0,)
    assert B.iou(np.zeros((0, 4), np.float32), np.ones((3, 4), np.float32)).shape == (0, 3)
    assert B.clip(np.zeros((0, 4), np.float32), (3, 3)).shape == (0, 4)


def test_degenerate_boxes_neither_suppress_nor_vanish():
    boxes = np.array([[1, 1, 1, 1], [1, 1, 1, 1], [5, 5, 2, 2], [0, 0, 9, 9], [5, 2, 2, 5]], np.float32)
    assert B.nms(boxes, np.array([0.9, 0.8, 0.7, 0.6, 0.5]), 0.0).tolist() == [0, 1, 2, 3, 4]
    assert B.iou(boxes, boxes).tolist() == np.diag([0, 0, 0, 1, 0]).tolist()


def test_huge_coordinates_raise_no_warning():
    boxes = np.array([[-3e38, -3e38, 3e38, 3e38], [0, 0, 1e20, 1e20], [0, 0, 1, 1]], np.float32)
    assert B.nms(boxes, np.array([0.9, 0.8, 0.7]), 0.5).tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("boxes", "scores", "threshold", "message"),
    [
        (np.array([[0, 0, 1, 1], [0, np.nan, 1, 1]]), np.ones(2), 0.5, r"box 1 = \[0.0, nan, 1.0, 1.0\]"),
        (np.array([[0, 0, 1, np.inf]]), np.ones(1), 0.5, "box 0"),
        (np.zeros((2, 4)), np.array([1, np.nan]), 0.5, r"score 1 = \[nan\]"),
        (np.zeros((2, 5)), np.ones(2), 0.5, r"got \(2, 5\) and \(2,\)"),
        (np.zeros((2, 4)), np.ones(3), 0.5, r"got \(2, 4\) and \(3,\)"),
        (np.zeros((2, 4)), np.ones(2), 1.5, "threshold in"),
        (np.zeros((2, 4)), np.ones(2), float("nan"), "threshold in"),
    ],
)
def test_bad_input_is_one_clear_error(boxes, scores, threshold, message):
    with pytest.raises(ValueError, match=message):
        B.nms(boxes, scores, threshold)
    with pytest.raises(ValueError, match=message):
        B.batched_nms(boxes, scores, np.zeros(len(scores), int), threshold)


def test_batched_nms_wants_one_class_per_box():
    with pytest.raises(ValueError, match="one class for each of the 2 boxes"):
        B.batched_nms(np.zeros((2, 4)), np.ones(2), np.zeros(3, int), 0.5)


finite = st.floats(-1000, 1000, width=32)
xyxy = hnp.arrays(
    np.float32, hnp.array_shapes(min_dims=1, max_dims=3, max_side=4).map(lambda s: (*s, 4)), elements=finite
)


@given(xyxy)
def test_conversions_are_inverse(boxes):
    np.testing.assert_allclose(B.xywh_to_xyxy(B.xyxy_to_xywh(boxes)), boxes, atol=1e-3)
    np.testing.assert_allclose(B.cxcywh_to_xyxy(B.xyxy_to_cxcywh(boxes)), boxes, atol=1e-3)
    assert B.xyxy_to_xywh(boxes).dtype == np.float32


@given(xyxy)
def test_clipped_boxes_lie_inside(boxes):
    inside = B.clip(boxes, (60, 80))
    assert (inside >= 0).all()
    assert (inside[..., 0::2] <= 80).all()
    assert (inside[..., 1::2] <= 60).all()


def test_iou_and_giou_of_known_boxes():
    a = np.array([[0, 0, 2, 2]], np.float32)
    b = np.array([[0, 0, 2, 2], [1, 1, 3, 3], [4, 0, 6, 2], [0, 0, 0, 0]], np.float32)
    np.testing.assert_allclose(B.iou(a, b), [[1, 1 / 7, 0, 0]], rtol=1e-6)
    np.testing.assert_allclose(B.giou(a, b), [[1, 1 / 7 - 2 / 9, -1 / 3, 0]], rtol=1e-6)


def test_scale_uses_one_ratio_per_axis_and_at_least_counts_both_sides():
    boxes = np.array([[10, 20, 30, 40]], np.float32)
    scaled = B.scale(boxes, (100, 200), (50, 600))
    assert scaled.dtype == np.float32
    assert scaled.tolist() == [[30, 10, 90, 20]]
    assert B.at_least(np.array([[0, 0, 5, 1], [0, 0, 1, 5], [0, 0, 1, 1]], np.float32), 1).tolist() == [True] * 3
    assert B.at_least(np.array([[0, 0, 5, 0.9], [3, 3, 2, 9]], np.float32), 1).tolist() == [False, False]


@pytest.mark.parametrize("weights", [(1.0, 1.0, 1.0, 1.0), (10.0, 10.0, 5.0, 5.0)])
def test_box_coder_round_trip_and_formula(weights):
    rng = np.random.default_rng(0)
    low = rng.random((50, 2)) * 100
    anchors = np.concatenate([low, low + 5 + rng.random((50, 2)) * 90], 1).astype(np.float32)
    low = rng.random((50, 2)) * 100
    boxes = np.concatenate([low, low + 5 + rng.random((50, 2)) * 90], 1).astype(np.float32)
    coder = B.BoxCoder(weights)
    codes = coder.encode(anchors, boxes)
    assert codes.dtype == np.float32
    width = anchors[:, 2] - anchors[:, 0]
    shift = (boxes[:, 0] + boxes[:, 2] - anchors[:, 0] - anchors[:, 2]) / 2 / width
    np.testing.assert_allclose(codes[:, 0], weights[0] * shift, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(
        codes[:, 2], weights[2] * np.log((boxes[:, 2] - boxes[:, 0]) / width), rtol=1e-4, atol=1e-5
    )
    np.testing.assert_allclose(coder.decode(anchors, codes), boxes, atol=1e-3)
    per_class = coder.decode(anchors[:, None], np.stack([codes, codes * 0], 1))
    assert per_class.shape == (50, 2, 4)
    np.testing.assert_allclose(per_class[:, 1], anchors, atol=1e-4)


def test_box_coder_cuts_wild_sizes():
    anchors = np.array([[0, 0, 16, 16]], np.float32)
    box = B.BoxCoder().decode(anchors, np.array([[0, 0, 1e9, 100]], np.float32))
    np.testing.assert_allclose(box, [[-492, -492, 508, 508]], rtol=1e-5)


@given(xyxy, st.integers(0, 1000))
def test_distance_coding_is_inverse(boxes, seed):
    points = np.random.default_rng(seed).uniform(-100, 100, (*boxes.shape[:-1], 2)).astype(np.float32)
    decoded = B.decode_distances(points, B.encode_distances(points, boxes))
    np.testing.assert_allclose(decoded, boxes, atol=1e-3)
