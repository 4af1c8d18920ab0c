import json

import numpy as np
import pytest
from chainsight.evaluations.metrics import SemanticMetrics
from PIL import Image


@pytest.mark.parametrize("classes", [1, 2, 21, 300])
def test_random_maps_score_as_sets_of_pixels(classes):
    rng = np.random.default_rng(classes)
    truth = rng.integers(0, classes, (4, 9, 13))
    predicted = np.where(rng.random(truth.shape) < 0.5, truth, rng.integers(0, classes, truth.shape))
    truth[rng.random(truth.shape) < 0.1] = 999
    metrics = SemanticMetrics([str(k) for k in range(classes)], ignore_index=999)
    for p, t in zip(predicted, truth):
        metrics.update(p, t)
    seen = truth != 999
    iou, accuracy = [], []
    for k in range(classes):
        p, t = (predicted == k) & seen, truth == k
        iou.append((p & t).sum() / (p | t).sum() if (p | t).any() else np.nan)
        accuracy.append((p & t).sum() / t.sum() if t.any() else np.nan)
    np.testing.assert_allclose(metrics.iou, iou, atol=1e-15)
    np.testing.assert_allclose(metrics.class_accuracies, accuracy, atol=1e-15)
    assert metrics.mean_iou == pytest.approx(np.nanmean(iou))
    assert metrics.class_accuracy == pytest.approx(np.nanmean(accuracy))
    assert metrics.pixel_accuracy == pytest.approx((predicted == truth)[seen].mean())
    assert metrics.images == 4
    together = SemanticMetrics([str(k) for k in range(classes)], ignore_index=999)
    together.update(predicted, truth)
    np.testing.assert_array_equal(together.confusion, metrics.confusion)


def test_nothing_counted_is_undefined():
    metrics = SemanticMetrics(["a", "b"])
    assert np.isnan(list(metrics.to_dict().values())).all()
    metrics.update(np.zeros((2, 2), int), np.full((2, 2), 255))
    assert np.isnan(metrics.mean_iou)


def test_unknown_labels_are_named():
    metrics = SemanticMetrics(["a", "b"])
    zeros = np.zeros((2, 2), np.uint8)
    with pytest.raises(ValueError, match=r"7\.png: truth: expected labels 0\.\.1 or ignore_index=255, got \[9\]"):
        metrics.update(zeros, zeros + 9, where="7.png")
    with pytest.raises(ValueError, match=r"predicted: expected labels 0\.\.1"):
        metrics.update(zeros.astype(int) - 1, zeros)
    with pytest.raises(ValueError, match=r"one shape, got \(2, 2\) and \(1, 2\)"):
        metrics.update(zeros, zeros[:1])
    with pytest.raises(ValueError, match="expected integer labels, got float64"):
        metrics.update(zeros.astype(float), zeros)
    assert metrics.images == 0
    assert metrics.confusion.sum() == 0


def test_real_label_maps(shared):
    """A map against itself is perfect; against the same map shifted by a few pixels it is good but not perfect."""
    classes = json.loads((shared / "data/coco128/semantic/classes.json").read_text())
    names = [str(k) for k in range(256)]
    same, shifted = SemanticMetrics(names, None), SemanticMetrics(names, None)
    for path in sorted((shared / "data/coco128/semantic/val").glob("*.png"))[:5]:
        labels = np.asarray(Image.open(path))
        same.update(labels, labels, where=path.name)
        shifted.update(np.roll(labels, 3, 1), labels, where=path.name)
    assert classes
    assert same.to_dict() == {"mIoU": 1, "pixel_accuracy": 1, "class_accuracy": 1}
    assert 0.5 < shifted.mean_iou < shifted.pixel_accuracy < 1
    assert "5 images" in str(shifted)
