import numpy as np
import pytest
from chainsight.evaluations.metrics import (
    BoxesFound,
    BoxTruth,
    box_metrics,
    coco_metrics,
    confusion_matrix,
    image_errors,
    score_curves,
)
from chainsight.evaluations.metrics.coco_format import to_images


def test_arrays_score_as_coco_json(random_coco):
    for seed in range(6):
        truth, found = random_coco(seed)
        for entry in truth["annotations"]:
            # Corners that are whole numbers lose nothing on the way through xyxy.
            entry["bbox"] = np.round(entry["bbox"]).tolist()
        for entry in found:
            entry["bbox"] = np.round(entry["bbox"]).tolist()
        metrics = coco_metrics(truth, found)
        images = to_images(truth, found)
        by_array = box_metrics(images.truths, images.detections, images.categories)
        assert by_array.to_dict() == pytest.approx(metrics.to_dict(), abs=1e-12)
        assert by_array.per_category == pytest.approx(metrics.per_category, abs=1e-12)


def test_curves_agree_with_counting(random_coco):
    truth, found = random_coco(3)
    images = to_images(truth, found)
    curves = score_curves(images.truths, images.detections, images.categories)
    for step in (0, 30, 60, 100):
        kept = [BoxesFound(*(column[d.scores >= curves.scores[step]] for column in d)) for d in images.detections]
        right, wrong, missed = image_errors(images.truths, kept, len(images.categories), score_threshold=0).T
        one = score_curves(images.truths, kept, images.categories)
        np.testing.assert_array_equal(one.recall[:, 0], curves.recall[:, step])
        objects = sum(np.count_nonzero(~t.ignore) for t in images.truths)
        assert right.sum() + missed.sum() == objects
        assert (right + wrong <= [len(k.scores) for k in kept]).all()
    defined = ~np.isnan(curves.recall[:, 0])
    assert (np.diff(curves.recall[defined]) <= 0).all()
    assert 0 <= curves.best_score <= 1
    assert np.isnan(curves.f1[~defined]).all()


def test_confusion_by_hand():
    truth = [
        BoxTruth([[0, 0, 10, 10], [20, 0, 30, 10], [40, 0, 50, 10]], [0, 1, 1], [False, False, True]),
        BoxTruth([], []),
    ]
    found = [
        BoxesFound(
            # right; the same once more; the second object by a wrong class; on the ignored one; too unsure
            [[0, 0, 10, 10], [0, 0, 10, 9], [20, 0, 30, 9], [40, 0, 50, 10], [60, 0, 70, 10]],
            [0.9, 0.8, 0.7, 0.6, 0.1],
            [0, 0, 0, 1, 1],
        ),
        BoxesFound([[0, 0, 5, 5]], [0.5], [1]),
    ]
    expected = [[1, 0, 0], [1, 0, 0], [1, 1, 0]]
    np.testing.assert_array_equal(confusion_matrix(truth, found, 2), expected)
    np.testing.assert_array_equal(image_errors(truth, found, 2), [[1, 2, 1], [0, 1, 0]])
    np.testing.assert_array_equal(confusion_matrix(truth, found[1:] * 2, 2, score_threshold=0.6).sum(0), [0, 0, 2])


def test_confusion_counts_everything_once(random_coco):
    truth, found = random_coco(9)
    images = to_images(truth, found)
    counts = confusion_matrix(images.truths, images.detections, len(images.categories), score_threshold=0)
    objects = np.zeros(len(images.categories), int)
    for image in images.truths:
        np.add.at(objects, image.labels[~image.ignore], 1)
    np.testing.assert_array_equal(counts[:-1].sum(1), objects)
    assert counts[:, :-1].sum() <= len(found)
    assert np.trace(counts[:-1, :-1]) > 0
