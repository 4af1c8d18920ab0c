import copy
import json
import time

import numpy as np
import pytest
import time_coco_metrics
from chainsight.evaluations.metrics.coco import coco_metrics
from chainsight.evaluations.metrics.coco_masks import read_runs
from chainsight.vision.masks import decode_rle, encode_rle, polygons_to_mask


def assert_equal_to_pycocotools(metrics, evaluation):
    np.testing.assert_allclose(metrics.precision, evaluation["precision"][..., -1], rtol=0, atol=1e-12)
    np.testing.assert_allclose(metrics.scores, evaluation["scores"][..., -1], rtol=0, atol=1e-12)
    np.testing.assert_allclose(metrics.recall, evaluation["recall"], rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", ["bbox", "segm", "keypoints"])
@pytest.mark.parametrize("seed", range(25))
def test_random_data_sets_score_as_with_pycocotools(seed, kind, random_coco, pycocotools):
    truth, found = random_coco(seed, kind)
    evaluation, stats = pycocotools(truth, found, kind)
    metrics = coco_metrics(truth, found, iou_type=kind)
    assert_equal_to_pycocotools(metrics, evaluation)
    np.testing.assert_allclose(list(metrics.to_dict().values()), stats, rtol=0, atol=1e-12)
    names = {"keypoints": "AP AP50 AP75 APm APl AR AR50 AR75 ARm ARl"}
    default = "AP AP50 AP75 APs APm APl AR1 AR10 AR100 ARs ARm ARl"
    assert list(metrics.to_dict()) == names.get(kind, default).split()
    assert metrics["AP"] > 0
    for k, (name, value) in enumerate(metrics.per_category.items()):
        one = evaluation["precision"][:, :, k, 0, -1]
        assert name == f"c{sorted(c['id'] for c in truth['categories'])[k]}"
        assert value == pytest.approx(one[one > -1].mean() if (one > -1).any() else -1, abs=1e-12)


@pytest.mark.parametrize("limits", [(1, 10, 300), (2,), (5, 150)])
def test_other_limits_of_detections(limits, random_coco, pycocotools):
    truth, found = random_coco(1, images=2)
    rng = np.random.default_rng(0)
    crowded = truth["annotations"][0]
    for _ in range(250):  # one image and category with far more than 100 detections
        box = (np.array(crowded["bbox"]) * rng.uniform(0.7, 1.4, 4)).tolist()
        found.append({key: crowded[key] for key in ("image_id", "category_id")} | {"bbox": box, "score": rng.random()})
    evaluation, _ = pycocotools(truth, found, max_detections=limits)
    metrics = coco_metrics(truth, found, max_detections=limits)
    assert_equal_to_pycocotools(metrics, evaluation)
    assert f"AR{limits[-1]}" in metrics.to_dict()
    assert metrics["AP"] >= 0  # pycocotools' summary gives -1 unless 100 is among the limits


@pytest.mark.parametrize("empty", ["truth", "found", "both"])
def test_nothing_annotated_or_nothing_found(empty, random_coco, pycocotools):
    truth, found = random_coco(2)
    if empty != "found":
        truth["annotations"] = []
    if empty != "truth":
        found = []
    evaluation, stats = pycocotools(truth, found)
    metrics = coco_metrics(truth, found)
    assert_equal_to_pycocotools(metrics, evaluation)
    np.testing.assert_array_equal(list(metrics.to_dict().values()), stats)
    assert metrics["AP"] == (0 if empty == "found" else -1)
    assert (" - " in str(metrics) or "-\n" in str(metrics)) or empty == "found"


def test_a_subset_of_the_images(random_coco, pycocotools):
    truth, found = random_coco(4)
    ids = [image["id"] for image in truth["images"]][::3]
    evaluation, _ = pycocotools(truth, found, image_ids=ids)
    metrics = coco_metrics(truth, found, image_ids=ids)
    assert_equal_to_pycocotools(metrics, evaluation)
    assert metrics.images == len(ids)


def test_real_detections_score_as_published(shared, pycocotools):
    """The figures of the weights' README for ten photos."""
    path = shared / "weights/nanodet_g_val_detections.json"
    found = json.loads(path.read_text())
    ids = {detection["image_id"] for detection in found}
    metrics = coco_metrics(shared / "data/coco128/val.json", path, image_ids=ids)
    assert [round(metrics[name], 4) for name in ("AP", "AP50", "AP75")] == [0.3735, 0.5708, 0.3375]
    truth = json.loads((shared / "data/coco128/val.json").read_text())
    evaluation, stats = pycocotools(truth, found, image_ids=ids)
    assert_equal_to_pycocotools(metrics, evaluation)
    np.testing.assert_allclose(list(metrics.to_dict().values()), stats, rtol=0, atol=1e-12)
    for name in ("AP", "AP50", "AR100", "80 objects", "900 detections", "10 images"):
        assert name in str(metrics)


def test_order_of_images_and_entries_does_not_matter(random_coco):
    truth, found = random_coco(6)  # scores differ: equal ones keep the given order
    rng = np.random.default_rng(0)
    shuffled = copy.deepcopy(truth)
    for key in shuffled:
        rng.shuffle(shuffled[key])
    rng.shuffle(found)
    assert coco_metrics(shuffled, found).to_dict() == coco_metrics(truth, found).to_dict()


def test_relabelling_permutes_the_categories(random_coco):
    truth, found = random_coco(7)
    ids = sorted(category["id"] for category in truth["categories"])
    renamed = dict(zip(ids, ids[1:] + ids[:1]))
    before = coco_metrics(truth, found)
    for entry in truth["annotations"] + found:
        entry["category_id"] = renamed[entry["category_id"]]
    after = coco_metrics(truth, found)
    for old, new in renamed.items():
        assert after.per_category[f"c{new}"] == before.per_category[f"c{old}"]
    assert after["AP"] == pytest.approx(before.AP, abs=1e-15)


def test_worse_detections_never_help(random_coco):
    truth, found = random_coco(8)
    false = [dict(d, bbox=[2000, 2000, 30, 30], score=-1.0) for d in found]
    assert coco_metrics(truth, found + false)["AP"] <= coco_metrics(truth, found).AP
    early = [dict(d, score=2.0) for d in false]
    assert coco_metrics(truth, found + early)["AP"] < coco_metrics(truth, found).AP


def test_perfect_detections_score_one(random_coco):
    truth, _ = random_coco(10)
    found = [
        {key: annotation[key] for key in ("image_id", "category_id", "bbox")} | {"score": 1.0}
        for annotation in truth["annotations"]
    ]
    values = coco_metrics(truth, found).to_dict()
    assert values["AP"] == values["AP75"] == values["AR100"] == pytest.approx(1)


def hand_case():
    truth = {
        "images": [{"id": 1}],
        "categories": [{"id": 5, "name": "cat"}],
        "annotations": [{"id": 0, "image_id": 1, "category_id": 5, "bbox": [0, 0, 100, 100]}],
    }
    return truth, [{"image_id": 1, "category_id": 5, "bbox": [0, 0, 100, 100], "score": 0.5}]


def test_an_annotation_id_of_zero_is_an_id():
    """pycocotools takes a match with annotation 0 for none."""
    truth, found = hand_case()
    assert coco_metrics(truth, found)["AP"] == pytest.approx(1)


def test_by_hand():
    truth, found = hand_case()
    # IoU 0.72 passes thresholds .50 to .70: five of ten; a false positive above it halves the precision.
    found[0]["bbox"] = [0, 0, 100, 72]
    assert coco_metrics(truth, found)["AP"] == pytest.approx(0.5)
    found.append({"image_id": 1, "category_id": 5, "bbox": [200, 0, 50, 50], "score": 0.9})
    metrics = coco_metrics(truth, found)
    assert metrics["AP"] == pytest.approx(0.25)
    assert metrics["AR1"] == 0
    assert metrics["AR10"] == pytest.approx(0.5)
    # Inside a crowd region a detection is neither right nor wrong.
    truth["annotations"].append(dict(truth["annotations"][0], id=9, bbox=[190, 0, 300, 300], iscrowd=1))
    assert coco_metrics(truth, found)["AP"] == pytest.approx(0.5)
    assert coco_metrics(truth, found).objects == 1


def edit(**changes):
    return lambda truth, found: truth["annotations"][0].update(changes)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t, f: t.pop("annotations"), "ground truth: missing key 'annotations'"),
        (lambda t, f: t.pop("images"), "missing key 'images'"),
        (lambda t, f: t.pop("categories"), "missing key 'categories'"),
        (lambda t, f: t["annotations"][0].pop("image_id"), r"annotations\[0\]: missing key 'image_id'"),
        (lambda t, f: t["annotations"][0].pop("bbox"), "annotation 0 of image 1: missing key 'bbox'"),
        (lambda t, f: t["images"][0].pop("id"), r"images\[0\]: missing key 'id'"),
        (lambda t, f: t["categories"].append({"id": 6, "name": "cat"}), "name cat again"),
        (lambda t, f: t["images"].append({"id": 1}), "id 1 again"),
        (lambda t, f: t["annotations"].append(dict(t["annotations"][0])), "id 0 again"),
        (edit(image_id=77), "image_id 77 is none of the 1 ids"),
        (edit(category_id=77), "category_id 77 is none of the 1 ids"),
        (edit(bbox=[0, 0, -3, 4]), "annotation 0 of image 1: .* not negative, got"),
        (edit(bbox=[0, 0, float("nan"), 4]), "finite"),
        (edit(bbox=[0, 0, 4]), r"annotations\[0\]: expected 'bbox' to hold 4 numbers"),
        (edit(bbox="box"), "to hold 4 numbers, got box"),
        (lambda t, f: t.update(images={"1": {}}), "images: expected a list, got dict"),
        (lambda t, f: f[0].update(image_id=8), r"detections\[0\]: image_id 8 is none"),
        (lambda t, f: f[0].update(category_id=8), r"detections\[0\]: category_id 8 is none"),
        (lambda t, f: f[0].update(score=float("nan")), "finite score"),
        (lambda t, f: f[0].update(score=None), "expected a finite score, got None"),
        (lambda t, f: f[0].pop("score"), r"detections\[0\]: missing key 'score'"),
        (lambda t, f: f[0].pop("bbox"), "a detection of image 1: missing key 'bbox'"),
        (lambda t, f: f[0].update(bbox=[0, 0, 1, -1]), r"detections: \[0\], image 1: expected a box"),
        (lambda t, f: f.append(5), r"detections\[1\]: expected an object, got 5"),
    ],
)
def test_bad_input_is_named(change, message):
    truth, found = hand_case()
    change(truth, found)
    with pytest.raises(ValueError, match=message):
        coco_metrics(truth, found)


def test_bad_arguments_are_named(tmp_path):
    truth, found = hand_case()
    with pytest.raises(ValueError, match="iou_type: expected 'bbox', 'segm' or 'keypoints', got 'box'"):
        coco_metrics(truth, found, iou_type="box")
    with pytest.raises(ValueError, match="at least 1"):
        coco_metrics(truth, found, max_detections=(0, 10))
    with pytest.raises(ValueError, match="ground truth has no image 99"):
        coco_metrics(truth, found, image_ids=[1, 99])
    with pytest.raises(ValueError, match="no file"):
        coco_metrics(tmp_path / "absent.json", found)
    with pytest.raises(ValueError, match="expected a list of detections, got dict"):
        coco_metrics(truth, {})
    with pytest.raises(ValueError, match="expected a JSON object with COCO annotations, got list"):
        coco_metrics([], found)
    (tmp_path / "broken.json").write_text("{'images'")
    with pytest.raises(ValueError, match=r"broken\.json: expected JSON"):
        coco_metrics(tmp_path / "broken.json", found)
    with pytest.raises(KeyError, match="no metric 'mAP'; there are AP, AP50"):
        coco_metrics(truth, found)["mAP"]


def test_boxes_without_area_count_as_missed_and_are_reported(caplog):
    truth, found = hand_case()
    truth["annotations"].append(dict(truth["annotations"][0], id=4, bbox=[5, 5, 0, 3]))
    assert coco_metrics(truth, found)["AR100"] == 0.5
    assert "1 boxes have no area and cannot be found: annotation 4 of image 1" in caplog.text


def test_images_without_objects_and_gaps_in_ids_are_fine():
    truth, found = hand_case()
    truth["images"] += [{"id": 10**9}, {"id": 3}]
    assert coco_metrics(truth, found)["AP"] == pytest.approx(1)
    found.append(dict(found[0], image_id=3, score=0.9))
    assert coco_metrics(truth, found)["AP"] == pytest.approx(0.5)


def test_real_polygons_and_crowds_score_as_with_pycocotools(shared, pycocotools):
    """Real polygons and crowd regions; the detections are the objects of each photo, distorted, as run lengths."""
    truth = json.loads((shared / "data/coco128/instances_val.json").read_text())
    truth["images"] = truth["images"][:25]
    sizes = {image["id"]: (image["height"], image["width"]) for image in truth["images"]}
    truth["annotations"] = [entry for entry in truth["annotations"] if entry["image_id"] in sizes]
    rng = np.random.default_rng(0)
    found = []
    for entry in truth["annotations"]:
        if entry["iscrowd"]:
            size = sizes[entry["image_id"]]
            mask = np.zeros(size, bool)
            mask[10:60, 20:70] = True
        else:
            mask = polygons_to_mask(entry["segmentation"], sizes[entry["image_id"]])
        mask = np.roll(mask, rng.integers(-6, 7, 2), (0, 1))
        one = {key: entry[key] for key in ("image_id", "category_id")} | {"score": round(rng.random(), 2)}
        found.append(one | {"segmentation": encode_rle(mask)})
    evaluation, stats = pycocotools(truth, found, "segm")
    metrics = coco_metrics(truth, found, iou_type="segm")
    assert sum(entry["iscrowd"] for entry in truth["annotations"]) > 0
    assert_equal_to_pycocotools(metrics, evaluation)
    np.testing.assert_allclose(list(metrics.to_dict().values()), stats, rtol=0, atol=1e-12)
    assert metrics["AP"] > 0.3


def test_the_forms_of_a_segmentation_are_the_same(random_coco):
    truth, found = random_coco(1, "segm")
    expected = coco_metrics(truth, found, iou_type="segm").to_dict()
    for form in (bytes, list):
        for entry in truth["annotations"] + found:
            rle = entry["segmentation"]
            counts = encode_rle(decode_rle(rle), compressed=False)["counts"] if form is list else None
            entry["segmentation"] = dict(rle, counts=counts or str(rle["counts"]).encode())
        assert coco_metrics(truth, found, iou_type="segm").to_dict() == expected


@pytest.mark.parametrize(
    ("segmentation", "message"),
    [
        ({"size": [4, 6], "counts": "0"}, r"image 1: expected a mask of the image's size .* \(4, 5\), got \(4, 6\)"),
        ({"size": [4, 5], "counts": [3, 4]}, r"expected run lengths that fill 4 x 5 = 20 pixels, got 2 runs of 7"),
        ({"size": [4, 5], "counts": [30, -10]}, "expected run lengths that fill"),
        ({"size": [4, 5], "counts": "P"}, "expected COCO's compressed run lengths, got b'P'"),
        ({"size": [4, 5], "counts": "\n"}, "expected COCO's compressed run lengths"),
        ({"size": [4, 5], "counts": ""}, "got 0 pixels"),
        ({"size": [4, 5], "counts": "o" * 40 + "0"}, "expected COCO's compressed run lengths"),
        ([[1, 2, 3, 4]], "segmentation: polygon 0: expected at least 3 points"),
        ("mask", "expected polygons or run lengths, got mask"),
        ({"counts": [20]}, "expected polygons or run lengths"),
    ],
)
def test_bad_masks_are_named(segmentation, message):
    truth, found = hand_case()
    truth["images"][0] |= {"height": 4, "width": 5}
    truth["annotations"][0]["segmentation"] = {"size": [4, 5], "counts": [10, 10]}
    found[0]["segmentation"] = segmentation
    with pytest.raises(ValueError, match=message):
        coco_metrics(truth, found, iou_type="segm")
    del truth["images"][0]["height"]
    with pytest.raises(ValueError, match="image 1: missing key 'height', which masks need"):
        coco_metrics(truth, found, iou_type="segm")


def test_many_texts_decode_as_one_by_one():
    """Run lengths from 0 to millions, up and down, texts of one and of many numbers."""
    rng = np.random.default_rng(0)
    masks, height = [], 1000
    for _ in range(300):
        counts = np.abs(rng.normal(0, 10 ** rng.uniform(0, 5, rng.integers(1, 40)))).astype(int)
        counts = np.append(counts, (-counts.sum()) % height or height)
        values = np.repeat(np.arange(len(counts)) % 2, counts)
        masks.append(values.reshape(-1, height).T)
    rles = [encode_rle(mask) for mask in masks]
    runs = read_runs(rles, [mask.shape for mask in masks], [""] * len(masks))
    np.testing.assert_array_equal(runs.area, [mask.sum() for mask in masks])
    for k in range(0, 300, 7):
        part = slice(runs.first[k], runs.first[k + 1])
        flat = np.zeros(masks[k].size, int)
        for start, stop in zip(runs.start[part], runs.stop[part]):
            flat[start:stop] = 1
        np.testing.assert_array_equal(flat.reshape(-1, height).T, masks[k])


@pytest.mark.parametrize(
    ("kind", "seconds"), [("bbox", 1), pytest.param("segm", 2, marks=pytest.mark.slow), ("keypoints", 2)]
)
def test_an_input_like_val2017_is_scored_in_seconds(kind, seconds):
    """A twentieth of it, in the processor's time, with room for a slow one; whole, masks take 11 s (tests/support)."""
    truth, found = time_coco_metrics.make(kind, images=250, pool=1000)
    start = time.process_time()
    metrics = coco_metrics(truth, found, iou_type=kind)
    assert time.process_time() - start < seconds
    assert metrics.detections == 25_000
    assert 0.05 < metrics["AP50"] < 0.5
