"""VOC, YOLO, CSV, LabelMe, semantic and class folders: real data, small trees, and dirty variants of each."""

import numpy as np
import pytest
from chainsight import datasets
from chainsight.datasets.semantic import read_label_map
from chainsight.datasets.yolo import read_yaml
from PIL import Image


def kinds(dataset):
    return [(p.kind, p.action) for p in dataset.problems]


# VOC


def test_bccd_counts_equal_its_readme(shared):
    root = shared / "data" / "bccd"
    expected = {
        "train": (205, 2804, [209, 2381, 214]),
        "val": (87, 1137, [83, 967, 87]),
        "test": (72, 945, [69, 805, 71]),
    }
    for split, (images, objects, histogram) in expected.items():
        found = datasets.open(root, split)
        assert (len(found), found.object_count()) == (images, objects)
        assert found.categories == ("Platelets", "RBC", "WBC")
        assert found.histogram().tolist() == histogram
    val = datasets.open(f"{root}@val")
    (problem,) = val.problems
    assert problem.source.endswith("BloodImage_00338.xml")
    assert (problem.kind, problem.action, problem.object) == ("degenerate", "dropped", 12)
    assert "205 images, 2804 objects, 3 classes, 1 problems" in repr(datasets.open(root, "train"))


def test_voc_coordinates_are_one_based_and_inclusive(shared):
    found = datasets.open(shared / "data" / "bccd", "val")
    index = [found.annotations(i).image_id for i in range(len(found))].index("BloodImage_00338")
    assert found[index].boxes[0].tolist() == [452, 80, 555, 182]  # 453 81 555 182 in the XML


def test_voc_difficult_splits_and_dirt(trees, caplog):
    for name in "abcd":
        trees.image(f"voc/JPEGImages/{name}.jpg")
    trees.voc("voc/Annotations/a.xml", [("dog", 1, 1, 60, 40), ("cat", 5, 5, 9, 9, 1)])
    trees.voc("voc/Annotations/b.xml", [("dog", 50, 5, 90, 9), ("dog", 20, 20, 10, 10), ("dog", "x", 1, 2, 3)])
    trees.text("voc/Annotations/c.xml", "<annotation><object>")
    trees.voc("voc/Annotations/lost.xml", [("bird", 1, 1, 9, 9)])
    trees.text("voc/ImageSets/Main/train.txt", "a\nb\n")
    trees.text("voc/ImageSets/Main/val.txt", "c\nd\nlost\n")
    trees.text("voc/ImageSets/Main/cat_train.txt", "a 1\nb -1\n")
    train, val = datasets.open(trees.root / "voc", "train"), datasets.open(trees.root / "voc", "val")
    assert train.categories == val.categories == ("bird", "cat", "dog")
    assert train[0].boxes.tolist() == [[0, 0, 60, 40], [4, 4, 9, 9]]
    assert train[0].ignore.tolist() == [False, True]
    assert train[1].boxes.tolist() == [[49, 4, 60, 9], [9, 9, 20, 20]]
    assert kinds(train) == [("swapped", "sorted"), ("unreadable", "dropped"), ("outside", "clipped")]
    assert kinds(val) == [("missing annotation", "kept"), ("missing image", "dropped"), ("unreadable", "dropped")]
    assert len(val) == 1  # d, without objects
    assert val[0].boxes.shape == (0, 4)
    with pytest.raises(ValueError, match="it has: train, val"):
        datasets.open(trees.root / "voc", "test")


def test_voc_beside_the_images_per_split(trees):
    for split in ("train", "valid"):
        trees.image(f"{split}/a.jpg")
        trees.voc(f"{split}/a.xml", [(f"only_{split}", 1, 1, 9, 9)])
    for split in ("train", "val"):
        found = datasets.open(trees.root, split)
        assert found.format == "VOC"
        assert found.categories == ("only_train", "only_valid")


def test_voc_instance_and_semantic_masks(trees):
    objects, classes = np.zeros((40, 60)), np.zeros((40, 60))
    objects[5:10, 10:20], classes[5:10, 10:20] = 1, 15
    objects[20:30, 30:50], classes[20:30, 30:50] = 2, 8
    objects[4, 10:20] = classes[4, 10:20] = 255
    trees.image("VOC2012/JPEGImages/a.jpg")
    trees.label_map("VOC2012/SegmentationObject/a.png", objects, palette=True)
    trees.label_map("VOC2012/SegmentationClass/a.png", classes, palette=True)
    trees.text("VOC2012/ImageSets/Segmentation/train.txt", "a\n")
    sample = datasets.open(trees.root / "VOC2012", "instance-train")[0]
    assert sample.boxes.tolist() == [[10, 5, 20, 10], [30, 20, 50, 30]]
    assert [datasets.VOC_CATEGORIES[k] for k in sample.labels] == ["person", "cat"]
    assert sample.masks.sum((1, 2)).tolist() == [50, 200]
    semantic = datasets.open(trees.root / "VOC2012", "semantic-train")
    assert semantic.categories[0] == "background"
    assert np.unique(semantic[0].semantic).tolist() == [0, 8, 15, 255]


# YOLO


def test_coco128_labels_equal_the_coco_boxes(shared):
    root = shared / "data" / "coco128"
    yolo, coco = datasets.open(root / "labels", "val"), datasets.open(root, "val")
    assert len(yolo) == 128
    for i in range(128):
        a, b = yolo.annotations(i), coco.annotations(i)
        np.testing.assert_allclose(a.boxes, b.boxes, atol=0.02)
        assert a.labels.tolist() == b.labels.tolist()
    train = datasets.open(root / "labels", "train")
    assert kinds(train).count(("missing image", "dropped")) == 2
    assert kinds(train).count(("missing annotation", "kept")) == 2


def yolo_tree(trees, yaml):
    for split in ("train", "valid"):
        trees.image(f"{split}/images/a.jpg", (50, 100))
        trees.text(f"{split}/labels/a.txt", "1 0.5 0.5 0.2 0.4\n")
    trees.text("data.yaml", yaml)


@pytest.mark.parametrize(
    "yaml",
    [
        "train: ../train/images\nval: ../valid/images\ntest: ../test/images\n\nnc: 2\nnames: ['cat', 'a dog']\n",
        "path: /nowhere/else\ntrain: train/images\nval: valid/images # comment\nnames:\n  0: cat\n  1: a dog\n",
        "train: [train/images]\nval:\n  - valid/images\nnames:\n- cat\n- 'a dog'\nroboflow:\n  a:\n    b: 1\n",
        'train: train\nval: valid\nnames: {0: cat,\n  1: "a dog"}\ndownload: |\n  import os\n  print("names: x")\n',
    ],
)
def test_yolo_yaml_variants(trees, yaml):
    yolo_tree(trees, yaml)
    for target in (trees.root, trees.root / "data.yaml"):
        found = datasets.open(target, "val")
        assert found.categories == ("cat", "a dog")
        np.testing.assert_allclose(found[0].boxes, [[40, 15, 60, 35]], atol=1e-4)
        assert found[0].labels.tolist() == [1]
    with pytest.raises(ValueError, match="it has: train, val"):
        datasets.open(trees.root, "test")


@pytest.mark.parametrize(
    ("yaml", "message"),
    [
        ("train: train/images\nnames: [a\n", "not closed"),
        ("train: train/images\nnames:\n  0: a\n  2: b\n", "class numbers 0..1"),
        ("train: train/images\nnc: 3\nnames: [a, b]\n", "nc is 3"),
        ("train: nowhere\nnames: [a, b]\n", "no folder or file 'nowhere'"),
        ("train: train/images\nnames\n", "line 2: expected 'key: value'"),
    ],
)
def test_yolo_yaml_errors_name_file_and_place(trees, yaml, message):
    yolo_tree(trees, yaml)
    with pytest.raises(ValueError, match=message) as error:
        datasets.open(trees.root)
    assert "data.yaml" in str(error.value)


def test_yaml_values_stay_text(trees):
    path = trees.text("a.yaml", "a: 'it''s # no comment'\nb: http://x.org/y # yes\nc:\nd: [1, 'x, y', z]\n'e f': yes\n")
    assert read_yaml(path) == {
        "a": "it's # no comment",
        "b": "http://x.org/y",
        "c": "",
        "d": ["1", "x, y", "z"],
        "e f": "yes",
    }


def test_yolo_polygons_keypoints_and_dirt(trees):
    trees.image("images/a.jpg", (50, 100))
    trees.image("images/b.jpg", (50, 100))
    trees.text("classes.txt", "cat\ndog\n")
    good = ["0 0.1 0.2 0.5 0.2 0.5 0.8 0.1 0.8", "1 0.9 0.5 0.4 0.2"]
    bad = ["5 0.5 0.5 0.1 0.1", "0 0.5 0.5 0.1", "cat 1 2 3 4", "1 0.5 0.5 0 0.2", "1 nan 0.5 0.1 0.1"]
    lines = [*good, *bad]
    trees.text("labels/a.txt", "\n".join(lines))
    found = datasets.open(trees.root)
    assert found.tasks == ("detection", "instance")
    np.testing.assert_allclose(found[0].boxes, [[10, 10, 50, 40], [70, 20, 100, 30]], atol=1e-4)
    assert found[0].masks[0].sum() == pytest.approx(40 * 30, abs=80)
    assert found[0].masks[1].sum() == 300  # its box
    numbered = {(p.kind, p.object) for p in found.problems if p.source.endswith("a.txt")}
    expected = {("outside", 1), ("no mask", 1), ("unknown class", 2), ("unreadable", 3), ("unreadable", 4)}
    assert numbered == expected | {("degenerate", 5), ("not finite", 6)}
    assert len(found[1]) == 0
    with pytest.raises(datasets.DirtyDataError, match=r"a\.txt, object 2"):
        datasets.open(trees.root, strict=True)

    trees.image("pose/images/train/a.jpg", (50, 100))
    trees.text("pose/labels/train/a.txt", "0 0.5 0.5 0.2 0.4 0.5 0.5 2 0 0 0")
    trees.text("pose/data.yaml", "train: images/train\nkpt_shape: [2, 3]\nnames: [cat]\n")
    assert datasets.open(trees.root / "pose")[0].keypoints.tolist() == [[[50, 25, 2], [0, 0, 0]]]


def test_yolo_label_numbers_mean_the_same_in_every_split(trees):
    for split, number in (("train", 4), ("val", 0)):
        trees.image(f"images/{split}/a.jpg")
        trees.text(f"labels/{split}/a.txt", f"{number} 0.5 0.5 0.2 0.2")
    assert datasets.open(trees.root, "val").categories == datasets.open(trees.root, "train").categories
    assert len(datasets.open(trees.root, "val").categories) == 5


# CSV


@pytest.mark.parametrize(
    "content",
    [
        "path,xmin,ymin,xmax,ymax,label\na.jpg,1,2,30,20,cat\na.jpg,5,5,10,10,dog\nb.jpg,,,,,\n",
        "filename,width,height,class,xmin,ymin,xmax,ymax\na.jpg,60,40,cat,1,2,30,20\na.jpg,60,40,dog,5,5,10,10\nb.jpg,60,40,,,,,\n",
        "label;Image Path;x;y;width;height\ncat;imgs/a.jpg;1;2;29;18\ndog;imgs/a.jpg;5;5;5;5\n;b.jpg;;;;\n",
        "a.jpg,1,2,30,20,cat\na.jpg,5,5,10,10,dog\nb.jpg,,,,,\n",
    ],
)
def test_csv_columns(trees, content):
    trees.image("images/a.jpg")
    trees.image("images/b.jpg")
    trees.text("annotations.csv", content)
    found = datasets.open(trees.root)
    assert found.format == "CSV"
    assert found.categories == ("cat", "dog")
    assert found[0].boxes.tolist() == [[1, 2, 30, 20], [5, 5, 10, 10]]
    assert found[0].labels.tolist() == [0, 1]
    assert len(found[1]) == 0
    assert not found.problems


def test_csv_splits_share_their_classes_and_dirt_is_reported(trees):
    trees.image("train/a.jpg")
    trees.image("test/b.jpg")
    trees.text(
        "train_labels.csv",
        "filename,xmin,ymin,xmax,ymax,class\na.jpg,1,1,9,9,zebra\na.jpg,1,1,1,9,zebra\nnone.jpg,1,1,9,9,zebra\na.jpg,1,x,9,9,zebra\n",
    )
    trees.text("test_labels.csv", "filename,xmin,ymin,xmax,ymax,class\nb.jpg,1,1,90,9,ant\n")
    train, test = datasets.open(trees.root, "train"), datasets.open(trees.root, "test")
    assert train.categories == test.categories == ("ant", "zebra")
    assert {(p.kind, p.object) for p in train.problems} == {("degenerate", 1), ("missing image", 2), ("unreadable", 3)}
    assert kinds(test) == [("outside", "clipped")]
    split = trees.text(
        "one.csv", "split,path,xmin,ymin,xmax,ymax,label\ntrain,train/a.jpg,1,1,9,9,a\nvalid,test/b.jpg,1,1,9,9,b\n"
    )
    assert datasets.open(split, "val").annotations(0).path.endswith("b.jpg")
    with pytest.raises(ValueError, match="expected a header naming path"):
        datasets.open(trees.text("other.csv", "name,age\nx,1\n"))


# LabelMe


def labelme(shapes, image="a.jpg", size=(40, 60)):
    return {"version": "5", "flags": {}, "shapes": shapes, "imagePath": image, "imageData": None,
            "imageHeight": size[0], "imageWidth": size[1]}  # fmt: skip


def test_labelme_shapes_groups_and_dirt(trees):
    trees.image("a.jpg")
    shapes = [
        {"label": "cat", "points": [[10, 10], [20, 10], [20, 20], [10, 20]], "shape_type": "polygon"},
        {"label": "dog", "points": [[50, 30], [40, 20]], "shape_type": "rectangle"},
        {"label": "ball", "points": [[30, 20], [35, 20]], "shape_type": "circle"},
        {"label": "cat", "points": [[1, 1], [5, 1], [5, 5]], "group_id": 3},
        {"label": "cat", "points": [[1, 31], [5, 31], [5, 35]], "group_id": 3},
        {"label": "cat", "points": [[1, 1], [5, 1]], "shape_type": "line"},
        {"label": "cat", "points": [[50, 1], [80, 1], [80, 20]], "shape_type": "polygon"},
        {"points": [[0, 0]]},
    ]
    trees.json("a.json", labelme(shapes, image="C:\\photos\\a.jpg"))
    trees.json("b.json", labelme([], image="b.jpg"))
    trees.text("c.json", '{"shapes": [')
    found = datasets.open(trees.root)
    assert found.format == "LabelMe"
    assert found.categories == ("ball", "cat", "dog")
    sample = found[0]
    np.testing.assert_allclose(
        sample.boxes, [[10, 10, 20, 20], [40, 20, 50, 30], [25, 15, 35, 25], [1, 1, 5, 35], [50, 1, 60, 20]], atol=1e-5
    )
    assert sample.masks[2].sum() == pytest.approx(np.pi * 25, rel=0.1)
    assert not sample.masks[3][15, 3]
    reported = {(p.kind, p.object) for p in found.problems}
    assert reported == {
        ("unreadable", 5),
        ("outside", 6),
        ("unreadable", 7),
        ("missing image", None),
        ("unreadable", None),
    }


# semantic


def test_coco128_semantic(shared):
    found = datasets.open(shared / "data" / "coco128" / "semantic", "val")
    assert (len(found), len(found.categories)) == (100, 133)
    assert found.categories[0] == "person"
    assert found.category_ids[:13] == (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 13, 14)
    sample = found[0]
    raw = read_label_map(found.pairs[0][1])
    assert sample.semantic.dtype == np.uint8
    values = np.array([*found.category_ids])
    covered = sample.semantic != 255
    np.testing.assert_array_equal(values[sample.semantic[covered]], raw[covered])
    assert (raw[~covered] == 0).all()


MAP = np.tile(np.repeat([0, 1, 2, 255], 15), (40, 1))


@pytest.mark.parametrize("palette", [False, True])
@pytest.mark.parametrize(
    ("image", "mask"),
    [
        ("images/train/a.jpg", "masks/train/a.png"),
        ("train/images/a.jpg", "train/masks/a.png"),
        ("train/a.jpg", "train/a_mask.png"),
        ("train/a.png", "trainannot/a.png"),
        ("img_dir/train/a.jpg", "ann_dir/train/a_labelTrainIds.png"),
        ("Images/training/a_leftImg8bit.png", "annotations/training/a_gtFine_labelIds.png"),
    ],
)
def test_semantic_layouts(trees, image, mask, palette):
    trees.image(image)
    trees.label_map(mask, MAP, palette)
    trees.text("labels.txt", "road\ncar\nsky\n")
    found = datasets.open(trees.root, "train")
    assert found.tasks == ("semantic",)
    assert found.categories == ("road", "car", "sky")
    np.testing.assert_array_equal(found[0].semantic, MAP)
    assert found.histogram().tolist() == [600, 600, 600]


def test_semantic_class_files_colours_binary_and_dirt(trees, caplog):
    trees.image("a/images/x.jpg")
    trees.label_map("a/masks/x.png", MAP)
    trees.image("a/images/alone.jpg")
    trees.json("a/classes.json", [{"id": 1, "name": "car"}, {"id": 0, "name": "void"}])
    found = datasets.open(trees.root / "a")
    assert found.categories == ("car",)
    assert np.unique(found[0].semantic).tolist() == [0, 255]
    assert kinds(found) == [("missing annotation", "dropped"), ("unknown class", "ignored")]  # value 2
    trees.image("b/images/x.jpg")
    trees.label_map("b/masks/x.png", np.where(MAP == 1, 255, 0))
    binary = datasets.open(trees.root / "b")
    assert binary.categories == ("background", "foreground")
    np.testing.assert_array_equal(binary[0].semantic, MAP == 1)
    trees.image("c/images/x.jpg")
    colored = np.zeros((40, 60, 3), np.uint8)
    colored[:, 30:] = 200, 10, 20
    (trees.root / "c" / "masks").mkdir()
    Image.fromarray(colored).save(trees.root / "c" / "masks" / "x.png")
    with pytest.raises(ValueError, match="lists no colours"):
        datasets.open(trees.root / "c")
    trees.text("c/class_dict.csv", "name,r,g,b\nsky,0,0,0\nroof,200,10,20\n")
    np.testing.assert_array_equal(datasets.open(trees.root / "c")[0].semantic, np.arange(60) >= 30 + np.zeros((40, 1)))
    trees.label_map("b/masks/x.png", MAP[:30])
    with pytest.raises(ValueError, match=r"x\.jpg.*label map of the image's size"):
        binary[0]


# class folders


def test_class_folders(trees):
    for name in ("train/dog/a.jpg", "train/cat/b.jpg", "train/cat/deep/c.jpg", "val/dog/d.jpg"):
        trees.image(name)
    train, val = datasets.open(trees.root, "train"), datasets.open(trees.root, "val")
    assert train.categories == val.categories == ("cat", "dog")
    assert [train[i].label for i in range(3)] == [0, 0, 1]
    assert val[0].label == 1
    assert val.histogram().tolist() == [0, 1]
    flat = datasets.open(trees.root / "train")
    assert (flat.tasks, len(flat)) == (("classification",), 3)


def test_layouts_of_well_known_downloads(trees):
    """Darknet's lists in a folder of a folder, Kaggle's VOC, Oxford pets, FiftyOne, TensorFlow CSV, keras-retinanet."""
    trees.image("darknet/data/obj_train_data/a.jpg")
    trees.text("darknet/data/obj_train_data/a.txt", "0 .5 .5 .2 .2\n")
    trees.text("darknet/data/obj.names", "cat\n")
    trees.text("darknet/data/train.txt", "data/obj_train_data/a.jpg\n")
    for name in "ab":
        trees.image(f"pets/images/{name}.jpg")
    trees.voc("pets/annotations/xmls/a.xml", [("cat", 1, 1, 9, 9)])
    trees.label_map("pets/annotations/trimaps/a.png", MAP)
    trees.image("fiftyone/data/a.jpg")
    box = {"image_id": 10, "category_id": 3, "bbox": [1, 2, 3, 4], "area": 1}
    trees.coco("fiftyone/labels.json", [box], ["a.jpg"])
    for split in ("train", "valid"):
        trees.image(f"tensorflow/{split}/a.jpg")
        header = "filename,width,height,class,xmin,ymin,xmax,ymax"
        trees.text(f"tensorflow/{split}/_annotations.csv", f"{header}\na.jpg,60,40,cat,1,2,30,20\n")
    trees.image("retinanet/images/a.jpg")
    trees.text("retinanet/train.csv", "images/a.jpg,1,2,30,20,cat\n")
    trees.text("retinanet/val.csv", "images/a.jpg,1,2,30,20,dog\n")
    trees.text("retinanet/classes.csv", "dog,0\ncat,1\n")
    expected = {
        "darknet": (None, "YOLO", [24, 16, 36, 24], ("cat",)),
        "pets": (None, "VOC", [0, 0, 9, 9], ("cat",)),
        "fiftyone": (None, "COCO", [1, 2, 4, 6], ("cat", "dog")),
        "tensorflow": ("val", "CSV", [1, 2, 30, 20], ("cat",)),
        "retinanet": ("val", "CSV", [1, 2, 30, 20], ("dog", "cat")),
    }
    for name, (split, kind, box, classes) in expected.items():
        found = datasets.open(trees.root / name, split)
        assert (found.format, found.categories, len(found)) == (kind, classes, 1)
        np.testing.assert_allclose(found[0].boxes, [box], atol=1e-4)


@pytest.mark.parametrize("word", ["train", "val", "Testing"])
def test_a_class_with_a_splits_name_is_never_taken_for_a_split_silently(trees, caplog, word):
    for name in (word, "bus", "car"):
        trees.image(f"flat/{name}/a.png")
        trees.image(f"nested/{name}/steam/a.png" if name == word else f"nested/{name}/a.png")
    with pytest.raises(ValueError, match=rf"{word} could be a class like bus, car, or a split without classes"):
        datasets.open(trees.root / "flat")
    datasets.open(trees.root / "nested")
    assert f"{word} taken for splits, images of bus, car left out" in caplog.text
    for split in ("train", "val"):  # below splits every name is a class
        for name in (word, "bus"):
            trees.image(f"split/{split}/{name}/a.png")
    assert datasets.open(trees.root / "split", "val").categories == tuple(sorted((word, "bus")))
