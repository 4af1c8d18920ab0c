"""Masks and keypoints equal torchvision's, and what the detectors do with nothing to find."""

import cv2
import numpy as np
import pytest
import stored_goldens
from chainsight.vision import models
from chainsight.vision.categories import Categories
from chainsight.vision.detection import dense, faster_rcnn, keypoint_rcnn, mask_rcnn
from chainsight.vision.detection.keypoint_rcnn import peaks

IMAGE = np.zeros((120, 160, 3), np.uint8)


@pytest.mark.slow
@pytest.mark.parametrize("name", stored_goldens.stored("instance segmentation"))
def test_masks_equal_torchvision(name):
    model, golden = stored_goldens.seeded_model(name)
    for i, image in enumerate(golden.images()):
        found = model.predict(image, score_threshold=None)
        boxes, scores, ids, masks = (golden.outputs[f"{k}_{i}"] for k in ("boxes", "scores", "labels", "masks"))
        used = np.isin(ids, found.category_ids)
        assert len(found) == used.sum() >= 5
        ours = stored_goldens.matches(found, boxes, scores, ids)
        assert (ours[used] >= 0).mean() >= 0.99
        compared = [k for k in range(len(masks)) if ours[k] >= 0]
        assert len(compared) >= 3
        for k in compared:
            difference = np.abs(found.masks.probabilities(ours[k])[::4, ::4] - masks[k].astype(np.float32))
            assert difference.mean() < 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("name", stored_goldens.stored("keypoint detection"))
def test_keypoints_equal_torchvision(name):
    model, golden = stored_goldens.seeded_model(name)
    for i, image in enumerate(golden.images()):
        found = model.predict(image, score_threshold=None)
        boxes, scores, ids = (golden.outputs[f"{k}_{i}"] for k in ("boxes", "scores", "labels"))
        ours = stored_goldens.matches(found, boxes, scores, ids)
        assert len(found) == len(boxes) >= 5
        assert (ours >= 0).mean() >= 0.99
        hit = ours >= 0
        points = found.keypoints[ours[hit]]
        assert np.abs(points[..., :2] - golden.outputs[f"keypoints_{i}"][hit][..., :2]).max() < 0.5
        expected = golden.outputs[f"keypoint_scores_{i}"]  # logits
        assert np.median(np.abs(points[..., 2] - expected[hit])) < 1e-5 * np.abs(expected).max()
        # Of all keypoints on the original's own boxes: these maps are noise, which a box 0.001 pixels off changes.
        features = model.find(image, None)
        ratio = np.tile(np.array(features.size[::-1]) / np.array(image.shape[1::-1]), 2)
        boxes = (boxes * ratio).astype(np.float32)
        heatmaps = model.roi_heads.heatmaps(features.levels, [boxes], features.size).numpy()
        values = np.stack([peaks(maps, box)[:, 2] for maps, box in zip(heatmaps, boxes)])
        assert np.abs(values - expected).max() < 1e-4 * np.abs(expected).max()


def test_peak_lies_where_a_smooth_bump_has_its_centre():
    y, x = np.mgrid[:56, :56] + 0.5
    bump = np.exp(-((x - 20) ** 2 + (y - 40) ** 2) / 30).astype(np.float32)
    ((found_x, found_y, value),) = peaks(bump[None], np.array([100, 50, 212, 330], np.float32))
    assert found_x == pytest.approx(100 + 20 * 112 / 56, abs=1)
    assert found_y == pytest.approx(50 + 40 * 280 / 56, abs=1)
    assert value == pytest.approx(1, abs=0.01)


def test_peak_of_a_box_thinner_than_a_pixel():
    maps = np.random.default_rng(0).random((17, 56, 56), np.float32)
    found = peaks(maps, np.array([10, 10, 10.2, 90], np.float32))
    assert found.shape == (17, 3)
    assert np.isfinite(found).all()
    np.testing.assert_allclose(found[:, 0], 10.5)


@pytest.mark.parametrize("kind", ["noise", "smooth", "flat", "negative", "edges", "mixed"])
@pytest.mark.parametrize("size", [(1, 1), (7, 300), (56, 56), (400, 230)])
def test_peaks_are_those_of_the_whole_resized_map(kind, size):
    rng = np.random.default_rng(len(kind))
    maps = rng.standard_normal((17, 56, 56)).astype(np.float32)
    if kind == "smooth":
        maps = np.stack([cv2.GaussianBlur(part, (0, 0), 5) for part in maps])
    elif kind == "flat":
        maps = np.full_like(maps, 3)
    elif kind == "negative":
        maps = -50 - np.abs(maps)
    elif kind == "edges":
        maps[:, ::55, ::55] += 10
    elif kind == "mixed":
        maps *= (10.0 ** np.arange(-8, 9, dtype=np.float32))[:, None, None]
    width, height = size
    found = peaks(maps, np.array([5, 9, 5 + width, 9 + height], np.float32))
    x, y = np.floor(found[:, :2] - [5, 9]).astype(int).T
    for k, part in enumerate(maps):
        fine = cv2.resize(part, (width, height), interpolation=cv2.INTER_CUBIC)
        span = float(np.abs(fine).max())
        assert found[k, 2] == pytest.approx(fine.max(), abs=2e-4 * span)
        assert fine[y[k], x[k]] >= fine.max() - 2e-4 * span


def test_peaks_keep_nan():
    maps = np.zeros((2, 56, 56), np.float32)
    maps[1, 20, 30] = np.nan
    found = peaks(maps, np.array([0, 0, 100, 100], np.float32))
    np.testing.assert_array_equal(np.isnan(found[:, 2]), [False, True])


@pytest.mark.parametrize("name", ["fasterrcnn_mobilenet_v3_large_320_fpn", "yolox_nano"])
def test_a_threshold_that_nothing_reaches_finds_nothing(name):
    found = models.load(name, weights=None).predict(IMAGE, score_threshold=1.0)
    assert found.boxes.shape == (0, 4)


def small(model):
    """The model with an input of 128 pixels."""
    model.resize = type(model.resize)(128, 160)
    return model.eval()


def test_without_proposals_nothing_is_found():
    model = small(faster_rcnn.fasterrcnn_mobilenet_v3_large_fpn(Categories.with_background(["boat"])))
    model.rpn.score_threshold = 1.0
    assert len(model.predict(IMAGE, score_threshold=0)) == 0


@pytest.mark.parametrize("build", [mask_rcnn.maskrcnn_resnet50_fpn, keypoint_rcnn.keypointrcnn_resnet50_fpn])
def test_instances_without_objects(build):
    model = small(build(Categories.with_background(["person"])))
    found = model.predict(IMAGE, score_threshold=1.0)
    assert len(found) == 0
    extra = found.masks if found.masks is not None else found.keypoints
    assert len(extra) == 0


def test_likely_leaves_out_only_what_is_below():
    logits = np.random.default_rng(0).normal(0, 3, (50, 7)).astype(np.float32)
    for threshold in (0.0, 0.05, 0.5, 0.99):
        row, column = dense.likely(logits, threshold)
        chosen = np.zeros(logits.shape, bool)
        chosen[row, column] = True
        assert (chosen | (1 / (1 + np.exp(-logits)) <= threshold)).all()
        assert (1 / (1 + np.exp(-logits[chosen])) > threshold - 1e-3).all()
    assert len(dense.likely(logits, 1.0)[0]) == 0


def test_best_scores_are_the_best_in_order():
    rng = np.random.default_rng(1)
    logits, quality = rng.normal(0, 2, (40, 5)).astype(np.float32), rng.random(40).astype(np.float32)
    row, column, score = dense.best_scores(logits, 0.3, 12, quality)
    everything = np.sqrt(1 / (1 + np.exp(-logits)) * quality[:, None])
    np.testing.assert_allclose(score, np.sort(everything, None)[::-1][:12], rtol=1e-5)
    np.testing.assert_allclose(everything[row, column], score, rtol=1e-5)
