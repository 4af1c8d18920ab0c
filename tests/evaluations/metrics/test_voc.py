import numpy as np
import pytest
from chainsight.evaluations.metrics import BoxesFound, BoxTruth, MasksFound, MaskTruth, voc_detection, voc_instance

NAMES = ["a", "b", "c"]


def plain_average_precision(truths, detections, label, threshold, eleven, offset):
    """VOC's development kit written out object by object: the oracle."""
    found = [(s, i, box) for i, d in enumerate(detections) for box, s, k in zip(*d) if k == label]
    found.sort(key=lambda item: -item[0])
    used, positives = set(), 0
    for truth in truths:
        positives += sum(k == label and not ignored for k, ignored in zip(truth.labels, truth.ignore))
    tp, fp, points = 0, 0, []
    for _, i, box in found:
        best, best_iou = None, 0.0
        for j, (other, k) in enumerate(zip(truths[i].boxes, truths[i].labels)):
            if k != label:
                continue
            width = min(box[2], other[2]) - max(box[0], other[0]) + offset
            height = min(box[3], other[3]) - max(box[1], other[1]) + offset
            if width <= 0 or height <= 0:
                continue
            areas = [(b[2] - b[0] + offset) * (b[3] - b[1] + offset) for b in (box, other)]
            iou = width * height / (sum(areas) - width * height)
            if iou > best_iou:
                best, best_iou = j, iou
        if best is not None and best_iou >= threshold:
            if truths[i].ignore[best]:
                pass
            elif (i, best) in used:
                fp += 1
            else:
                used.add((i, best))
                tp += 1
        else:
            fp += 1
        if tp + fp:
            points.append((tp / positives if positives else np.nan, tp / (tp + fp)))
    if not positives:
        return np.nan
    if eleven:
        return np.mean([max((p for r, p in points if r >= t), default=0) for t in np.arange(0, 1.1, 0.1)])
    area, last = 0.0, 0.0
    for n, (recall, _) in enumerate(points):
        area += (recall - last) * max(p for _, p in points[n:])
        last = recall
    return area


def random_images(seed):
    rng = np.random.default_rng(seed)
    truths, detections = [], []
    for _ in range(12):
        n = rng.integers(0, 6)
        corner = rng.integers(0, 50, (n, 2))
        boxes = np.concatenate([corner, corner + rng.integers(0, 20, (n, 2))], 1).astype(float)
        labels = rng.integers(0, 2, n)  # category c never occurs
        truths.append(BoxTruth(boxes, labels, rng.random(n) < 0.2))
        near = np.repeat(boxes, 3, 0)
        near[:, :2] -= rng.integers(0, 4, (3 * n, 2))
        near = np.concatenate([near, [[1, 1, 9, 9]]])
        found_labels = np.r_[np.repeat(labels, 3), 2]
        detections.append(BoxesFound(near, np.round(rng.random(3 * n + 1), 6), found_labels))
    return truths, detections


@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.parametrize("method", ["area", "11 points"])
@pytest.mark.parametrize("seed", range(8))
def test_random_images_score_as_the_plain_algorithm(seed, method, offset):
    truths, detections = random_images(seed)
    metrics = voc_detection(truths, detections, NAMES, method=method, offset=offset)
    expected = [
        plain_average_precision(truths, detections, k, 0.5, method == "11 points", offset) for k in range(len(NAMES))
    ]
    np.testing.assert_allclose(metrics.average_precision, expected, rtol=0, atol=1e-12)
    assert np.isnan(metrics.per_category["c"])
    assert metrics.mAP == pytest.approx(np.nanmean(expected), abs=1e-12)


def test_by_hand():
    # Right (0.9), the same object again (0.8), the second object (0.7): precision 1, 1/2, 2/3 at recall 1/2, 1/2, 1.
    truth = [BoxTruth([[0, 0, 10, 10], [20, 0, 30, 10]], [0, 0])]
    found = [BoxesFound([[0, 0, 10, 10], [0, 0, 10, 10], [20, 0, 30, 10]], [0.9, 0.8, 0.7], [0, 0, 0])]
    metrics = voc_detection(truth, found, ["a"])
    np.testing.assert_allclose(metrics.precision[0], [1, 1 / 2, 2 / 3])
    np.testing.assert_allclose(metrics.recall[0], [0.5, 0.5, 1])
    assert metrics.mAP == pytest.approx(0.5 * 1 + 0.5 * 2 / 3)
    assert voc_detection(truth, found, ["a"], method="11 points").mAP == pytest.approx((6 * 1 + 5 * 2 / 3) / 11)
    assert "VOC mAP 0.8333" in str(metrics)
    # A difficult object neither counts when missed nor when found.
    hard = [BoxTruth(truth[0].boxes, [0, 0], [False, True])]
    assert voc_detection(hard, found, ["a"]).mAP == 1


def test_the_pixel_convention_decides_at_the_threshold():
    # 4 x 9 of 5 x 9 continuous, 5 x 10 of 6 x 10 in whole pixels.
    truth, found = [BoxTruth([[0, 0, 5, 9]], [0])], [BoxesFound([[0, 0, 4, 9]], [1], [0])]
    assert voc_detection(truth, found, ["a"], iou_threshold=0.82).mAP == 0
    assert voc_detection(truth, found, ["a"], iou_threshold=0.82, offset=1).mAP == 1


def test_order_of_images_does_not_matter():
    truths, detections = random_images(3)
    order = np.random.default_rng(0).permutation(len(truths))
    one = voc_detection(truths, detections, NAMES)
    other = voc_detection([truths[i] for i in order], [detections[i] for i in order], NAMES)
    np.testing.assert_array_equal(one.average_precision, other.average_precision)


def test_nothing():
    assert np.isnan(voc_detection([], [], NAMES).mAP)
    assert voc_detection([BoxTruth([[0, 0, 1, 1]], [0])], [BoxesFound([], [], [])], NAMES).mAP == 0


@pytest.mark.parametrize(
    ("truth", "found", "message"),
    [
        (BoxTruth([[0, 0, 1]], [0]), BoxesFound([], [], []), r"truths\[0\].boxes: expected shape \(n, 4\)"),
        (BoxTruth([[0, 0, 1, 1]], [0, 1]), BoxesFound([], [], []), r"truths\[0\].labels: expected 1 values"),
        (BoxTruth([[0, 0, 1, 1]], [3]), BoxesFound([], [], []), "expected indices of 3 categories, got 3"),
        (BoxTruth([[5, 0, 1, 1]], [0]), BoxesFound([], [], []), r"boxes\[0\]: expected finite x0, y0, x1, y1"),
        (BoxTruth([], []), BoxesFound([[0, 0, 1, 1]], [np.nan], [0]), r"detections\[0\].scores: expected finite"),
        (BoxTruth([], []), BoxesFound([[0, 0, 1, 1]], [], [0]), r"detections\[0\].scores: expected 1 values"),
        (BoxTruth([], []), None, "as many images"),
    ],
)
def test_bad_arrays_are_named(truth, found, message):
    with pytest.raises(ValueError, match=message):
        voc_detection([truth], [] if found is None else [found], NAMES)


def test_masks_of_boxes_score_as_the_boxes():
    truths, detections = random_images(5)

    def masks(boxes):
        canvas = np.zeros((len(boxes), 80, 80), bool)
        for mask, (x0, y0, x1, y1) in zip(canvas, np.asarray(boxes, int) + 5):
            mask[y0 : y1 + 1, x0 : x1 + 1] = True
        return canvas

    mask_truths = [MaskTruth(masks(t.boxes), t.labels, t.ignore) for t in truths]
    mask_found = [MasksFound(masks(d.boxes), d.scores, d.labels) for d in detections]
    for threshold in (0.5, 0.7):
        by_box = voc_detection(truths, detections, NAMES, offset=1, iou_threshold=threshold)
        by_mask = voc_instance(mask_truths, mask_found, NAMES, iou_threshold=threshold)
        np.testing.assert_array_equal(by_box.average_precision, by_mask.average_precision)


def test_masks_that_do_not_fit_are_named():
    truth, found = MaskTruth(np.ones((1, 4, 4), bool), [0]), MasksFound(np.ones((1, 4, 5), bool), [1], [0])
    with pytest.raises(ValueError, match=r"image 0: expected masks of one size, got \(4, 5\) and \(4, 4\)"):
        voc_instance([truth], [found], NAMES)
    with pytest.raises(ValueError, match=r"detections\[0\].scores: expected 1 values"):
        voc_instance([truth], [found._replace(scores=[])], NAMES)
    with pytest.raises(ValueError, match="as many images"):
        voc_instance([truth], [], NAMES)
