"""COCO: real files against the JSON itself and pycocotools; dirty files; the stream reader."""

import json

import numpy as np
import pytest
from chainsight import datasets
from chainsight.datasets import COCODataset
from chainsight.datasets.json_stream import iterate_arrays
from pycocotools.coco import COCO


@pytest.fixture(scope="module")
def instances(shared):
    return COCODataset(shared / "data" / "coco128" / "instances_val.json")


def test_boxes_labels_ids_and_crowds_equal_the_file(shared, instances):
    content = json.loads((shared / "data" / "coco128" / "instances_val.json").read_text())
    ids = sorted(c["id"] for c in content["categories"])
    assert instances.category_ids == tuple(ids)
    assert instances.categories[0] == "person"
    assert instances.categories[-1] == "toothbrush"
    assert len(instances) == 100
    assert instances.object_count() == 712
    assert sum(a.ignore.sum() for a in map(instances.annotations, range(100))) == 5
    by_image = {image["id"]: [] for image in content["images"]}
    for item in content["annotations"]:
        by_image[item["image_id"]].append(item)
    for index in range(100):
        found = instances.annotations(index)
        items = by_image[found.image_id]
        boxes = np.array([i["bbox"] for i in items], np.float64).reshape(-1, 4)
        boxes[:, 2:] += boxes[:, :2]
        np.testing.assert_allclose(found.boxes, boxes, atol=1e-4)
        assert found.labels.tolist() == [ids.index(i["category_id"]) for i in items]
        assert found.ids.tolist() == [i["id"] for i in items]
        np.testing.assert_allclose(found.areas, [i["area"] for i in items])


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # pycocotools' own, with NumPy 2
def test_masks_equal_pycocotools(shared, instances, capsys):
    oracle = COCO(shared / "data" / "coco128" / "instances_val.json")
    capsys.readouterr()
    crowds = [i for i in range(100) if instances.annotations(i).ignore.any()]
    for index in [0, 1, 2, *crowds]:
        sample = instances[index]
        for mask, number in zip(sample.masks, sample.extra["ids"].tolist()):
            np.testing.assert_array_equal(mask, oracle.annToMask(oracle.anns[number]).astype(bool))


def test_split_names_and_alternates(shared):
    root = shared / "data" / "coco128"
    assert len(datasets.open(root, "val")) == 128
    assert len(datasets.open(f"{root}@validation")) == 128
    assert datasets.open(root, "instances_train").tasks == ("detection", "instance")
    assert len(datasets.open(root / "instances_train.json")) == 100
    with pytest.raises(ValueError, match=r"no split 'test'.*it has: train, val \(also: .*instances_val"):
        datasets.open(root, "test")


def test_keypoints_and_names(trees):
    trees.image("images/a.jpg")
    points = [5, 6, 2, 7, 8, 1, 0, 0, 0]
    annotation = {"image_id": 10, "category_id": 3, "bbox": [1, 2, 20, 20], "area": 400, "keypoints": points}
    plain = {"image_id": 10, "category_id": 3, "bbox": [1, 2, 20, 20], "area": 400}
    categories = [{"id": 3, "name": "cat", "keypoints": ["nose", "tail", "ear"]}]
    path = trees.coco("annotations/train.json", [annotation, plain], ["a.jpg"], categories=categories)
    sample = COCODataset(path)[0]
    assert COCODataset(path).keypoint_names == ("nose", "tail", "ear")
    assert sample.keypoints.tolist() == [[[5, 6, 2], [7, 8, 1], [0, 0, 0]], [[0, 0, 0]] * 3]


DIRTY = [
    {"image_id": 10, "category_id": 3, "bbox": [-5, 0, 20, 10], "area": 1},
    {"image_id": 10, "category_id": 3, "bbox": [10, 10, 0, 5], "area": 1},
    {"image_id": 10, "category_id": 99, "bbox": [1, 1, 5, 5], "area": 1},
    {"image_id": 77, "category_id": 3, "bbox": [1, 1, 5, 5], "area": 1},
    {"image_id": 10, "category_id": 3, "bbox": [1, 1, "x", 5], "area": 1},
    {"image_id": 10, "category_id": 7, "bbox": [2, 2, 10, 10], "area": 1, "segmentation": [[1, 2, 3, 4]]},
    {"image_id": 11, "category_id": 7, "bbox": [2, 2, 10, 10], "area": 1},
    {"image_id": 10, "category_id": 7, "segmentation": [[2, 2, 12, 2, 12, 12], [20, 20, 30, 20, 30, 30]]},
    {"image_id": 10, "category_id": 7, "bbox": [0, 0, 9, 9], "segmentation": {"size": [40, 60], "counts": [5]}},
]


def test_dirty_objects_are_reported_with_file_and_object_and_handled(trees, caplog):
    trees.image("a.jpg")
    path = trees.coco("train.json", DIRTY, ["a.jpg", "missing.jpg"])
    found = COCODataset(path)
    kinds = [(p.kind, p.action, p.object) for p in found.problems]
    assert ("outside", "clipped", 0) in kinds
    assert ("degenerate", "dropped", 1) in kinds
    assert ("unknown class", "dropped", 2) in kinds
    assert ("unreadable", "dropped", 3) in kinds
    assert ("unreadable", "dropped", 4) in kinds
    assert ("unreadable", "dropped", 5) in kinds
    assert ("unreadable", "dropped", 8) in kinds
    assert ("missing image", "dropped", None) in kinds
    assert all("train.json" in p.source or "missing.jpg" in p.source for p in found.problems)
    assert len(caplog.records) == 1
    assert "1 outside, clipped" in caplog.text
    assert len(found) == 1
    sample = found[0]
    assert sample.boxes.tolist() == [[0, 0, 15, 10], [2, 2, 12, 12], [2, 2, 30, 30], [0, 0, 9, 9]]
    assert sample.masks[1].sum() == 100  # no usable outline: its box
    assert sample.masks[2][3, 11]
    assert sample.masks[2][22, 29]
    assert not sample.masks[2][15, 15]
    with pytest.raises(datasets.DirtyDataError, match=r"train\.json"):
        COCODataset(path, strict=True)


def test_annotations_alone_open_and_say_so(trees, caplog):
    path = trees.coco("a.json", [{"image_id": 10, "category_id": 3, "bbox": [0, 0, 5, 5]}], ["a.jpg"])
    found = datasets.open(path)
    assert found.annotations(0).size == (40, 60)
    assert "none of the 1 images" in caplog.text
    with pytest.raises(ValueError, match=r"a\.jpg"):
        found[0]


def test_roboflow_export_and_unusual_folders(trees):
    box = {"image_id": 10, "category_id": 3, "bbox": [0, 0, 5, 5]}
    for split in ("train", "valid"):
        trees.image(f"robo/{split}/a.jpg")
        trees.coco(f"robo/{split}/_annotations.coco.json", [box], ["a.jpg"])
    found = datasets.open(trees.root / "robo", "val")
    assert len(found) == 1
    assert found[0].size == (40, 60)
    trees.image("mine/Images/b.jpg")
    trees.coco("mine/result.json", [{**box, "image_id": 10}], ["some/folder/b.jpg"])
    assert datasets.open(trees.root / "mine")[0].boxes.tolist() == [[0, 0, 5, 5]]


def test_stream_equals_json_for_any_block_size(trees, monkeypatch):
    content = {
        "info": {"a": [1, {"b": "}, {"}]},
        "images": [{"id": i, "name": "ü},{" * (i % 3), "x": [{"y": 1}, {"y": 2}]} for i in range(50)],
        "empty": [],
        "annotations": [{"id": i, "segmentation": [[1.5, 2, i], [3]], "z": {}} for i in range(50)],
        "n": 12,
    }
    path = trees.json("a.json", content)
    for block in (7, 64, 1000, 1 << 20):
        monkeypatch.setattr("chainsight.datasets.json_stream._BLOCK", block)
        found = {"images": [], "annotations": []}
        for key, items in iterate_arrays(path, {"images", "annotations", "empty"}, "segmentation"):
            for item in items:
                if isinstance(item.get("segmentation"), str):
                    item["segmentation"] = json.loads(item["segmentation"])
            found[key] += items
        assert found == {k: content[k] for k in found}


@pytest.mark.parametrize(
    "text", ["", "[1]", '{"images": [{"id": 1}', '{"images": 3}', '{"images": [{"id" 1}]}', "\xff"]
)
def test_broken_json_names_the_file(trees, text):
    path = trees.root / "broken.json"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(ValueError, match=r"broken\.json"):
        list(iterate_arrays(path, {"images"}))
