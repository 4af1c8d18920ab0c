"""ChainerCV's evaluation functions and ours on the same random inputs (``tests/goldens/chainercv/evaluations``)."""

from pathlib import Path

import numpy as np
import pytest
from chainsight.evaluations.metrics import (
    BoxesFound,
    BoxTruth,
    MasksFound,
    MaskTruth,
    SemanticMetrics,
    TopKAccuracy,
    box_metrics,
    coco_metrics,
    voc_detection,
    voc_instance,
)
from chainsight.evaluations.runner import Evaluation
from chainsight.vision.masks import encode_rle

COCO_NAMES = ("AP", "AP50", "AP75", "APs", "APm", "APl", "AR1", "AR10", "AR100", "ARs", "ARm", "ARl")
TRUTH_ORDER = ("truth", "labels", "ignore", "found", "guess", "scores")


@pytest.fixture(scope="module")
def stored():
    path = Path(__file__).parents[2] / "goldens/chainercv/evaluations/metrics.npz"
    with np.load(path, allow_pickle=False) as file:
        return dict(file)


def unpack(stored, prefix):
    """Truths and detections, image by image."""
    counts = stored[f"{prefix}/counts"]
    parts = []
    for column, name in enumerate(TRUTH_ORDER):
        array = stored[f"{prefix}/{name}"]
        if prefix == "masks" and name in ("truth", "found"):
            shape = (counts[:, column // 3].sum(), *stored["size"])
            array = np.unpackbits(array, count=np.prod(shape)).reshape(shape).astype(bool)
        parts.append(np.split(array, np.cumsum(counts[:, column // 3])[:-1]))
    return [list(zip(*parts[:3])), [(found, scores, guess) for found, guess, scores in zip(*parts[3:])]]


CLASSES = [f"c{k}" for k in range(5)]


@pytest.mark.parametrize("iou", [0.5, 0.7])
@pytest.mark.parametrize("method", ["area", "11 points"])
@pytest.mark.parametrize("counted", ["all", "easy"])
def test_voc_boxes(stored, method, iou, counted):
    truths, found = unpack(stored, "boxes")
    ours = voc_detection(
        [BoxTruth(b, k, ignore if counted == "easy" else None) for b, k, ignore in truths],
        [BoxesFound(*columns) for columns in found],
        CLASSES,
        iou_threshold=iou,
        method=method,
        offset=1,
    )
    theirs = stored[f"boxes/voc/{method}/{iou}/{counted}"]
    assert np.nanmax(theirs) > 0.1
    np.testing.assert_allclose(ours.average_precision, theirs, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize("iou", [0.5, 0.7])
@pytest.mark.parametrize("method", ["area", "11 points"])
def test_voc_masks(stored, method, iou):
    truths, found = unpack(stored, "masks")
    ours = voc_instance(
        [MaskTruth(m, k) for m, k, _ in truths],
        [MasksFound(*columns) for columns in found],
        CLASSES,
        iou_threshold=iou,
        method=method,
    )
    theirs = stored[f"masks/voc/{method}/{iou}/all"]
    assert np.nanmax(theirs) > 0.1
    np.testing.assert_allclose(ours.average_precision, theirs, atol=1e-6, equal_nan=True)


def coco_json(truths, found, size, masks=False):
    """Arrays as COCO's annotations and results."""

    def shape(item):
        if masks:
            return {"segmentation": encode_rle(item)}
        x0, y0, x1, y1 = map(float, item)
        return {"bbox": [x0, y0, x1 - x0, y1 - y0]}

    annotations, results = [], []
    for i, (items, labels, crowds) in enumerate(truths):
        for item, label, crowd in zip(items, labels, crowds):
            area = 3.0 * (item.sum() if masks else np.prod(item[2:] - item[:2]))
            entry = {"id": len(annotations) + 1, "image_id": i, "category_id": int(label), "iscrowd": int(crowd)}
            annotations.append(entry | shape(item) | {"area": float(area)})
    for i, (items, scores, labels) in enumerate(found):
        for item, score, label in zip(items, scores, labels):
            results.append({"image_id": i, "category_id": int(label), "score": float(score)} | shape(item))
    images = [{"id": i, "height": int(size[0]), "width": int(size[1])} for i in range(len(truths))]
    categories = [{"id": k, "name": name} for k, name in enumerate(CLASSES)]
    return {"images": images, "annotations": annotations, "categories": categories}, results


@pytest.mark.parametrize("kind", ["boxes", "masks"])
def test_coco(stored, kind):
    truths, found = unpack(stored, kind)
    truth, results = coco_json(truths, found, stored["size"], masks=kind == "masks")
    ours = coco_metrics(truth, results, iou_type="segm" if kind == "masks" else "bbox").to_dict()
    theirs = dict(zip(COCO_NAMES, stored[f"{kind}/coco"]))
    assert theirs["AP"] > 0.1
    for name, value in theirs.items():
        expected = -1 if np.isnan(value) else value  # COCO's own mark of what is not defined
        assert ours[name] == pytest.approx(expected, abs=1e-6), name


def test_semantic(stored):
    ours = SemanticMetrics(CLASSES, ignore_index=-1)
    for found, truth in zip(stored["semantic/found"], stored["semantic/truth"]):
        ours.update(found, truth)
    np.testing.assert_allclose(ours.iou, stored["semantic/iou"], atol=1e-12)
    np.testing.assert_allclose(ours.class_accuracies, stored["semantic/class_accuracy"], atol=1e-12)
    assert ours.mean_iou == pytest.approx(float(stored["semantic/miou"]))
    assert ours.pixel_accuracy == pytest.approx(float(stored["semantic/pixel_accuracy"]))
    assert ours.class_accuracy == pytest.approx(float(stored["semantic/mean_class_accuracy"]))


NO_BOXES = np.zeros((0, 4), np.float32)
NO_MASKS = np.zeros((0, 8, 8), bool)
NOTHING = np.zeros(0)


@pytest.mark.parametrize("images", [0, 1, 3])
@pytest.mark.parametrize("method", ["area", "11 points"])
def test_nothing_at_all(images, method):
    """Section 9, defect 3 of ChainerCV: its VOC and COCO metrics raise ValueError when there is not one box."""
    truths = [BoxTruth(NO_BOXES, NOTHING.astype(int))] * images
    found = [BoxesFound(NO_BOXES, NOTHING, NOTHING.astype(int))] * images
    assert np.isnan(voc_detection(truths, found, CLASSES, method=method).mAP)
    assert box_metrics(truths, found, CLASSES).to_dict().keys() >= {"AP", "AP50"}
    masks = [MaskTruth(NO_MASKS, NOTHING)] * images, [MasksFound(NO_MASKS, NOTHING, NOTHING)] * images
    assert np.isnan(voc_instance(*masks, CLASSES, method=method).mAP)
    truth, results = coco_json([(NO_BOXES, NOTHING, NOTHING)] * images, [(NO_BOXES, NOTHING, NOTHING)] * images, (8, 8))
    for kind in ("bbox", "segm"):
        assert not coco_metrics(truth, results, iou_type=kind)["AP"] > 0
    semantic = SemanticMetrics(CLASSES)
    for _ in range(images):
        semantic.update(np.zeros((0, 0), int), np.zeros((0, 0), int))
    assert np.isnan(semantic.mean_iou)
    assert np.isnan(semantic.pixel_accuracy)
    assert TopKAccuracy((1, 5)).to_dict().keys() == {"top1", "top5"}


@pytest.mark.parametrize("method", ["area", "11 points"])
def test_one_side_is_empty(method):
    box, label = np.array([[1, 1, 5, 5]], np.float32), np.array([0])
    missed = voc_detection([BoxTruth(box, label)], [BoxesFound(NO_BOXES, NOTHING, label[:0])], CLASSES, method=method)
    assert missed.average_precision[0] == 0
    extra = voc_detection([BoxTruth(NO_BOXES, label[:0])], [BoxesFound(box, [0.5], label)], CLASSES, method=method)
    assert np.isnan(extra.mAP)
    hard = voc_detection([BoxTruth(box, label, [True])], [BoxesFound(box, [0.5], label)], CLASSES, method=method)
    assert np.isnan(hard.mAP)


def test_an_average_precision_of_zero_is_printed_as_such():
    """Section 9, defect 7 of ChainerCV: its script prints "-" for a class that was never found."""
    box, label = np.array([[1, 1, 5, 5]], np.float32), np.array([0])
    metrics = voc_detection([BoxTruth(box, label)], [BoxesFound(NO_BOXES, NOTHING, label[:0])], ["cat", "dog"])
    text = str(Evaluation("detection", metrics, "m", {}, {}, [0], None, published={"mAP": 0.5}, published_on="X"))
    assert "cat  0.0000" in text
    assert "dog  nan" in text
    assert "mAP 0.5000  measured here 0.0000" in text
