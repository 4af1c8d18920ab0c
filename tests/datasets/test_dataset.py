"""Views, opening paths, the cleaning rule, EXIF rotation, `check`, conversion."""

import json
import logging
import pickle

import numpy as np
import pytest
from chainsight import datasets
from chainsight.datasets import COCODataset, check, clean_boxes, convert, run_check
from PIL import Image


@pytest.fixture(scope="module")
def val(shared):
    return datasets.open(shared / "data" / "coco128", "val")


# views


def test_subsets_and_concatenations_are_views(shared, val):
    part = val[10:20:2]
    assert [part.annotations(i).image_id for i in range(5)] == [val.annotations(i).image_id for i in range(10, 20, 2)]
    assert part[-1].image_id == val[18].image_id
    few = val.subset(np.array([5, 3, 3]))
    assert [s.image_id for s in few] == [val[5].image_id, val[3].image_id, val[3].image_id]
    both = few + val[:2] + val.subset(np.arange(128) == 7)
    assert len(both) == 6
    assert both[5].image_id == val[7].image_id
    assert both.category_ids == val.category_ids
    assert both.object_count() == sum(len(both.annotations(i)) for i in range(6))
    assert both.histogram().sum() == both.object_count()
    with pytest.raises(IndexError, match="128 images"):
        val.subset([128])
    with pytest.raises(IndexError, match="image 6 of 6"):
        both[6]


def test_concatenation_unites_classes_by_name(shared, val):
    bccd = datasets.open(shared / "data" / "bccd", "test")
    both = val[:2] + bccd[:2]
    assert both.categories == (*val.categories, "Platelets", "RBC", "WBC")
    assert both.category_ids is None
    assert {both.categories[k] for k in both[2].labels} <= {"Platelets", "RBC", "WBC"}
    assert both.histogram()[80:].sum() == len(bccd.annotations(0)) + len(bccd.annotations(1))


def test_datasets_pickle_for_other_processes(val):
    copy = pickle.loads(pickle.dumps(val))
    np.testing.assert_array_equal(copy.annotations(3).boxes, val.annotations(3).boxes)


# opening


def test_paths_with_at_signs_and_missing_paths(trees):
    for split in ("train", "val"):
        trees.image(f"my@data/{split}/cat/a.jpg")
    assert len(datasets.open(f"{trees.root}/my@data@train")) == 1
    assert len(datasets.open(f"{trees.root}/my@data")) == 2
    with pytest.raises(FileNotFoundError, match=r"my@dat: no such file or folder.*my@data/"):
        datasets.open(f"{trees.root}/my@dat@train")
    with pytest.raises(ValueError, match="it has: train, val"):
        datasets.open(trees.root / "my@data", "test")


def test_all_splits_together_is_logged(shared, caplog):
    found = datasets.open(shared / "data" / "bccd")
    assert len(found) == 364
    assert "no split named: all of train (205), val (87), test (72)" in caplog.text


def test_unknown_layout_says_what_was_looked_for_and_found(trees):
    trees.text("notes/readme.md", "hello")
    trees.text("notes/more.pdf", "")
    with pytest.raises(ValueError, match=r"(?s)looked for.*COCO.*YOLO.*found: more\.pdf, readme\.md"):
        datasets.open(trees.root / "notes")
    (trees.root / "empty").mkdir()
    with pytest.raises(ValueError, match="found: nothing"):
        datasets.open(trees.root / "empty")
    with pytest.raises(ValueError, match="an archive; extract it"):
        datasets.open(trees.text("a.zip", ""))


def test_a_folder_in_a_folder_opens(trees):
    trees.image("outer/inner/cat/a.jpg")
    trees.image("outer/inner/dog/a.jpg")
    assert datasets.open(trees.root / "outer").categories == ("cat", "dog")


# cleaning


def test_cleaning_rule():
    boxes = np.array([[-0.4, 0, 5, 5], [-3, 2, 5, 12], [20, 20, 30, 30], [5, 5, 5, 9], [9, 8, 1, 2], [np.nan, 0, 1, 1]])
    cleaned = clean_boxes(boxes, np.full((6, 2), 10))
    assert cleaned.keep.tolist() == [True, True, False, False, True, False]
    assert cleaned.boxes[[0, 1, 4]].tolist() == [[0, 0, 5, 5], [0, 2, 5, 10], [1, 2, 9, 8]]
    assert [(k, i) for k, i, _ in cleaned.findings] == [
        ("outside", 1), ("degenerate", 2), ("degenerate", 3), ("swapped", 4), ("not finite", 5),
    ]  # fmt: skip
    unknown = clean_boxes(np.array([[-3.0, 2, 500, 12]]), np.zeros((1, 2)))
    assert unknown.boxes.tolist() == [[-3, 2, 500, 12]]
    assert not unknown.findings
    assert clean_boxes(np.zeros((0, 4)), np.zeros((0, 2))).boxes.shape == (0, 4)


@pytest.mark.parametrize("orientation", [1, 3, 6, 8])
def test_exif_rotated_photo_annotated_as_stored_or_as_shown(trees, orientation):
    pixels = np.zeros((40, 60, 3), np.uint8)
    pixels[5:15, 10:40] = 250  # where the annotator, who saw the pixels as stored, drew the box
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.fromarray(pixels).save(trees.root / "a.png", exif=exif)
    box = {"image_id": 10, "category_id": 3, "bbox": [10, 5, 30, 10], "area": 300}
    sample = COCODataset(trees.coco("a.json", [box], ["a.png"]))[0]
    if orientation in (1, 6, 8):  # of a half turn the size says nothing: the photo is shown upright
        assert sample.size == (40, 60)
        assert sample.image[5:15, 10:40].min() == 250
        assert int(sample.image.astype(int).sum()) == 250 * 3 * 300
    report = check(trees.root / "a.json")
    assert report.counts().get("size", 0) == (orientation in (6, 8))


def test_wrong_size_is_reported_once_and_boxes_are_clipped(trees, caplog):
    trees.image("a.jpg", (20, 30))
    box = {"image_id": 10, "category_id": 3, "bbox": [10, 5, 40, 10], "area": 400}
    found = COCODataset(trees.coco("a.json", [box], ["a.jpg"]))
    for _ in range(2):
        assert found[0].boxes.tolist() == [[10, 5, 30, 15]]
    assert [p.kind for p in found.problems] == ["size"]
    assert "the image is 30x20, annotated as 60x40" in caplog.text


# check


def test_check_finds_what_the_readme_of_bccd_lists(shared):
    report = check(shared / "data" / "bccd")
    assert report.counts() == {"degenerate": 2, "duplicate box": 8}
    assert not report.ok
    text = str(report)
    pairs = {"00013": "6 and 14", "00020": "13 and 14", "00100": "1 and 2", "00104": "12 and 13"}
    pairs |= {"00251": "6 and 7", "00284": "0 and 1", "00331": "1 and 2", "00403": "2 and 3"}
    for image, pair in pairs.items():
        assert f"BloodImage_{image}: objects {pair} (RBC)" in text
    assert "BloodImage_00338.xml, object 12" in text
    assert {s: h.tolist() for s, h in report.histograms.items()} == {
        "train": [209, 2381, 214], "val": [83, 967, 87], "test": [69, 805, 71],
    }  # fmt: skip
    assert check(datasets.open(shared / "data" / "bccd", "test")[:20]).ok


def test_check_finds_broken_images_leakage_copies_and_odd_classes(trees, capsys):
    first = trees.image("images/train/a.jpg")
    (trees.root / "images/train/broken.jpg").write_bytes(first.read_bytes()[:300])
    for name in ("images/train/copy.jpg", "images/val/leak.jpg"):
        (trees.root / name).parent.mkdir(exist_ok=True)
        (trees.root / name).write_bytes(first.read_bytes())
    box = {"category_id": 3, "bbox": [1, 1, 9, 9], "area": 81}
    images = ["a.jpg", "broken.jpg", "copy.jpg"]
    trees.coco("annotations/train.json", [{**box, "image_id": 10 + i} for i in range(3)], images)
    trees.coco("annotations/val.json", [{**box, "image_id": 10}], ["leak.jpg"], categories=[{"id": 3, "name": "cat"}])
    report = check(trees.root)
    assert report.counts() == {
        "image": 1, "duplicate image": 1, "leakage": 1, "different classes": 1, "class without objects": 1,
    }  # fmt: skip
    (leak,) = [f for f in report.findings if f.kind == "leakage"]
    assert leak.where.endswith("leak.jpg")
    assert "a.jpg (train)" in leak.message
    assert run_check([str(trees.root)]) == 1
    assert "NOT OK: 3 errors, 2 warnings" in capsys.readouterr().out
    assert run_check([str(trees.root / "nowhere")]) == 2
    assert run_check([f"{trees.root}@val", f"{trees.root}@val"]) == 1  # the same images twice are leakage
    assert "leakage" in capsys.readouterr().out


def test_check_of_a_clean_set_is_ok(trees, capsys):
    for split in ("train", "val"):
        trees.image(f"{split}/cat/{split}.jpg")
    assert run_check([str(trees.root)]) == 0
    assert "OK: 0 errors, 0 warnings" in capsys.readouterr().out


# conversion


def same_objects(a, b, atol=1e-3):
    assert len(a) == len(b)
    assert a.categories == b.categories
    for i in range(len(a)):
        x, y = a.annotations(i), b.annotations(i)
        np.testing.assert_allclose(x.boxes, y.boxes, atol=atol)
        assert x.labels.tolist() == y.labels.tolist()
        assert x.size == y.size


def test_boxes_survive_coco_voc_yolo_coco(shared, val, tmp_path, caplog):
    caplog.set_level(logging.ERROR)
    few = val[:12]
    assert convert({"val": few}, tmp_path / "voc", "VOC", link=True) == {}
    voc = datasets.open(tmp_path / "voc", "val")
    assert voc.format == "VOC"
    same_objects(few, voc)
    convert(tmp_path / "voc", tmp_path / "yolo", "yolo")
    yolo = datasets.open(tmp_path / "yolo", "val")
    assert yolo.format == "YOLO"
    same_objects(few, yolo)
    convert(tmp_path / "yolo", tmp_path / "coco", "coco")
    coco = datasets.open(tmp_path / "coco", "val")
    same_objects(few, coco)
    assert [coco.annotations(i).image_id for i in range(12)] == [few.annotations(i).image_id for i in range(12)]
    np.testing.assert_array_equal(coco[3].image, few[3].image)
    assert [p for p in tmp_path.iterdir() if p.name.startswith(".")] == []


def test_masks_crowds_and_ids_survive_coco_to_coco(shared, tmp_path):
    source = datasets.open(shared / "data" / "coco128" / "instances_val.json")
    crowd = next(i for i in range(100) if source.annotations(i).ignore.any())
    part = source.subset([crowd, 0, 1])
    assert convert({"val": part}, tmp_path / "out", "coco") == {}
    back = datasets.open(tmp_path / "out", "val")
    same_objects(part, back)
    assert back.category_ids == source.category_ids
    for a, b in zip(part, back):
        assert a.ignore.tolist() == b.ignore.tolist()
        assert a.extra["ids"].tolist() == b.extra["ids"].tolist()
        assert a.image_id == b.image_id
        np.testing.assert_array_equal(a.masks, b.masks)


def test_polygons_survive_yolo_and_losses_are_told(shared, tmp_path, caplog):
    source = datasets.open(shared / "data" / "coco128" / "instances_val.json")
    part = source[:15]
    notes = convert({"train": part}, tmp_path / "yolo", "yolo")
    assert notes["objects of several polygons (joined into one)"] > 0
    assert "not kept in yolo" in caplog.text
    back = datasets.open(tmp_path / "yolo", "train")
    for i in range(15):
        a, b = part[i], back[i]
        counted = ~a.ignore
        np.testing.assert_allclose(a.boxes[counted], b.boxes, atol=0.05)
        intersection = (a.masks[counted] & b.masks).sum((1, 2))
        union = (a.masks[counted] | b.masks).sum((1, 2))
        assert (intersection >= 0.9 * union - 4).all()
    assert convert({"train": part}, tmp_path / "voc", "voc")["masks"] == part.object_count()


def test_difficult_class_order_and_equal_names_survive(trees, tmp_path):
    trees.image("a/x.jpg")
    trees.image("b/x.png")
    boxes = [
        {"image_id": 10, "category_id": 7, "bbox": [1.25, 2.5, 9.125, 3.75], "area": 1, "iscrowd": 1},
        {"image_id": 11, "category_id": 3, "bbox": [5, 5, 0.5, 0.5], "area": 0.25},
        {"image_id": 11, "category_id": 3, "bbox": [0, 0, 60, 40], "area": 1},
    ]
    path = trees.coco("a.json", boxes, ["a/x.jpg", "b/x.png"])
    assert convert(path, tmp_path / "voc", "voc") == {"boxes with a side of at most 1 pixel": 1}
    back = datasets.open(tmp_path / "voc")
    assert back.categories == ("cat", "dog")
    assert [back[i].boxes.tolist() for i in (0, 1)] == [[[1.25, 2.5, 10.375, 6.25]], [[0, 0, 60, 40]]]
    assert back[0].ignore.tolist() == [True]
    assert {p.name for p in (tmp_path / "voc" / "JPEGImages").iterdir()} == {"x.jpg", "x_2.png"}


def test_keypoints_survive_yolo(trees, tmp_path):
    trees.image("a.jpg")
    box = {"image_id": 10, "category_id": 3, "bbox": [1, 2, 20, 20], "area": 1, "keypoints": [5, 6, 2, 7.5, 8, 1]}
    convert(trees.coco("train.json", [box], ["a.jpg"]), tmp_path / "yolo", "yolo")
    back = datasets.open(tmp_path / "yolo")
    np.testing.assert_allclose(back[0].keypoints, [[[5, 6, 2], [7.5, 8, 1]]], atol=1e-4)


def test_conversion_is_all_or_nothing(trees, tmp_path):
    trees.image("a.jpg")
    box = {"image_id": 10, "category_id": 3, "bbox": [1, 2, 20, 20], "area": 1}
    path = trees.coco("a.json", [box, {**box, "image_id": 11}], ["a.jpg", "b.jpg"])
    trees.image("b.jpg")
    source = COCODataset(path)
    (trees.root / "b.jpg").unlink()
    with pytest.raises(FileNotFoundError, match=r"b\.jpg"):
        convert(source, tmp_path / "out", "yolo")
    assert not (tmp_path / "out").exists()
    assert [p for p in tmp_path.iterdir() if p.name.startswith(".out")] == []
    with pytest.raises(FileExistsError, match="expected a folder that is empty"):
        convert(source, tmp_path, "yolo")
    with pytest.raises(ValueError, match="coco, voc, yolo"):
        convert(source, tmp_path / "out", "kitti")


def test_written_coco_is_what_others_read(shared, val, tmp_path):
    convert({"val": val[:3]}, tmp_path / "out", "coco")
    content = json.loads((tmp_path / "out" / "annotations" / "instances_val.json").read_text())
    original = json.loads((shared / "data" / "coco128" / "val.json").read_text())
    wanted = {i["id"] for i in content["images"]}
    expected = [a for a in original["annotations"] if a["image_id"] in wanted]
    assert [a["category_id"] for a in content["annotations"]] == [a["category_id"] for a in expected]
    np.testing.assert_allclose(
        [a["bbox"] for a in content["annotations"]], [a["bbox"] for a in expected], atol=2e-5 * 640
    )


def test_check_names_a_broken_image_once(trees, capsys):
    trees.image("cat/a.png")
    trees.image("dog/b.png")
    broken = trees.root / "dog/b.png"
    broken.write_bytes(broken.read_bytes()[:60])
    assert run_check([str(trees.root)]) == 1
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "b.png" in line]
    assert line.count("b.png") == 1
