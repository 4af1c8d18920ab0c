"""Published data sets in small folders of exactly their layout; what is fixed is what their publishers document."""

import json
import struct
import zlib

import numpy as np
import pytest
from chainsight import datasets
from chainsight.datasets.matlab import read_mat
from chainsight.vision.label_sets import ADE20K, CAMVID, CITYSCAPES
from PIL import Image

SIZE = (40, 60)


def element(kind, content):
    return struct.pack("<II", kind, len(content)) + content + bytes(-len(content) % 8)


def matrix(kind, shape, name, body):
    head = element(6, struct.pack("<II", kind, 0)) + element(5, struct.pack(f"<{len(shape)}i", *shape))
    return element(14, head + element(1, name.encode()) + body)


def mat_file(path, variable, **fields):
    """A MAT-file as MATLAB 7 writes it: one structure of uint8 matrices and a cell array, compressed."""
    names = [*fields, "Boundaries"]
    body = element(5, struct.pack("<i", 32)) + element(1, b"".join(n.encode().ljust(32, b"\0") for n in names))
    for value in fields.values():
        body += matrix(9, value.shape, "", element(2, value.astype(np.uint8).tobytes(order="F")))
    body += matrix(1, (1, 1), "", matrix(6, (1, 1), "", element(9, struct.pack("<d", 1))))
    packed = zlib.compress(matrix(2, (1, 1), variable, body))
    path.parent.mkdir(parents=True, exist_ok=True)
    head = b"MATLAB 5.0 MAT-file, Platform: GLNXA64".ljust(124) + struct.pack("<H", 0x0100) + b"IM"
    path.write_bytes(head + struct.pack("<II", 15, len(packed)) + packed)
    return path


def values(*, seed=0, top=40):
    return np.random.default_rng(seed).integers(0, top, SIZE).astype(np.uint8)


def write_cityscapes(trees, split, city, number, ids, kind="gtFine"):
    stem = f"{city}_{number:06d}_000019"
    trees.image(f"leftImg8bit/{split}/{city}/{stem}_leftImg8bit.png", SIZE)
    for end in ("labelIds", "instanceIds", "color"):
        trees.label_map(f"{kind}/{split}/{city}/{stem}_{kind}_{end}.png", ids)
    trees.json(f"{kind}/{split}/{city}/{stem}_{kind}_polygons.json", {"imgHeight": 40, "imgWidth": 60, "objects": []})


def test_names_and_colours():
    assert [len(table) for table in (CITYSCAPES, ADE20K, CAMVID)] == [19, 150, 11]
    for table in (CITYSCAPES, ADE20K, CAMVID):
        assert len({c.name for c in table}) == len(table)
    assert CITYSCAPES[0] == (7, "road", (128, 64, 128))
    assert CITYSCAPES[-1] == (33, "bicycle", (119, 11, 32))
    assert (ADE20K[12].value, ADE20K[12].name, ADE20K[149].name) == (13, "person", "flag")
    assert CAMVID[10] == (10, "Bicyclist", (0, 128, 192))


def test_cityscapes(trees):
    """Section 9, defect 5 of ChainerCV: its files come in the order in which the file system lists them."""
    ids = values()
    for number in (7, 1, 4):
        write_cityscapes(trees, "train", "ulm", number, ids)
        write_cityscapes(trees, "train", "aachen", number, ids)
    write_cityscapes(trees, "val", "lindau", 0, ids)
    write_cityscapes(trees, "train", "ulm", 1, ids * 0, kind="gtCoarse")
    write_cityscapes(trees, "test", "berlin", 0, ids * 0)
    train = datasets.open(trees.root, "train")
    stems = [f"{city}_{number:06d}_000019_leftImg8bit" for city in ("aachen", "ulm") for number in (1, 4, 7)]
    assert [train.annotations(i).image_id for i in range(len(train))] == stems
    assert train.categories == tuple(c.name for c in CITYSCAPES)
    expected = np.full(SIZE, 255)
    for label, known in enumerate(CITYSCAPES):
        expected[ids == known.value] = label
    np.testing.assert_array_equal(train[0].semantic, expected)
    assert train.problems == []
    assert len(datasets.open(trees.root, "val")) == 1
    assert (datasets.open(trees.root, "coarse-train")[0].semantic == 255).all()
    test = datasets.open(trees.root, "test")
    assert (len(test), test.tasks, test[0].semantic) == (1, (), None)
    assert list(datasets.splits(trees.root)) == ["train", "val"]


def test_ade20k(trees):
    values_ = values(top=151)
    for word, count in (("training", 2), ("validation", 1)):
        for i in range(count):
            name = f"ADE_{'train' if word == 'training' else 'val'}_{i + 1:08d}"
            trees.image(f"ADEChallengeData2016/images/{word}/{name}.jpg", SIZE)
            trees.label_map(f"ADEChallengeData2016/annotations/{word}/{name}.png", values_)
    trees.text("ADEChallengeData2016/objectInfo150.txt", "Idx\tRatio\n")
    trees.text("ADEChallengeData2016/sceneCategories.txt", "ADE_train_00000001 airport_terminal\n")
    trees.image("release_test/testing/ADE_test_00000001.jpg", SIZE)
    for root in (trees.root, trees.root / "ADEChallengeData2016"):
        train = datasets.open(root, "train")
        assert (train.name, len(train), len(train.categories)) == ("ADE20K train", 2, 150)
        np.testing.assert_array_equal(train[0].semantic, np.where(values_ == 0, 255, values_.astype(int) - 1))
        assert train.problems == []
        assert len(datasets.open(root, "test")) == 1
    assert datasets.open(trees.root, "val").category_ids == tuple(range(1, 151))


def test_camvid(trees):
    """Section 9, defect 3 of ChainerCV: its label maps are called "iabel"; here they are a sample's ``semantic``."""
    maps = values(top=12)
    for split, names in {"train": ["0001TP_006690", "0001TP_006720"], "val": ["0016E5_07959"], "test": ["a_1"]}.items():
        lines = []
        for name in names:
            trees.image(f"CamVid/{split}/{name}.png", SIZE)
            trees.label_map(f"CamVid/{split}annot/{name}.png", maps)
            lines.append(f"/SegNet/CamVid/{split}/{name}.png /SegNet/CamVid/{split}annot/{name}.png")
        trees.text(f"CamVid/{split}.txt", "\n".join(lines) + "\n")
    assert list(datasets.splits(trees.root)) == ["train", "val", "test"]
    found = datasets.open(trees.root / "CamVid", "train")
    assert found.categories[:2] == ("Sky", "Building")
    np.testing.assert_array_equal(found[1].semantic, np.where(maps == 11, 255, maps))
    assert found.problems == []
    trees.text("CamVid/val.txt", "/SegNet/CamVid/val/0016E5_07959.png /SegNet/CamVid/valannot/0016E5_07959.png\nbad\n")
    with pytest.raises(ValueError, match=r"val\.txt, line 2: expected an image and a label map"):
        datasets.open(trees.root, "val")


def write_sbd(trees):
    objects, classes = np.zeros(SIZE, int), np.zeros(SIZE, int)
    objects[2:10, 3:20], classes[2:10, 3:20] = 1, 15
    objects[20:30, 30:50], classes[20:30, 30:50] = 2, 1
    root = "benchmark_RELEASE/dataset"
    for name in ("2008_000002", "2008_000008", "2011_003276"):
        trees.image(f"{root}/img/{name}.jpg", SIZE)
        mat_file(
            trees.root / f"{root}/inst/{name}.mat", "GTinst", Segmentation=objects, Categories=np.array([[15], [1]])
        )
        mat_file(trees.root / f"{root}/cls/{name}.mat", "GTcls", Segmentation=classes)
    trees.text(f"{root}/train.txt", "2008_000002\n2011_003276\n")
    trees.text(f"{root}/val.txt", "2008_000008\n")
    trees.text(f"{root}/train_noval.txt", "2008_000008\n")
    return trees.root / root


def test_sbd(trees):
    folder = write_sbd(trees)
    found = datasets.open(trees.root, "train")
    assert (found.name, len(found), found.tasks) == ("SBD train", 2, ("detection", "instance"))
    sample = found[0]
    assert sample.boxes.tolist() == [[3, 2, 20, 10], [30, 20, 50, 30]]
    assert [found.categories[k] for k in sample.labels] == ["person", "aeroplane"]
    assert sample.masks.sum((1, 2)).tolist() == [8 * 17, 10 * 20]
    names = {
        s: datasets.open(folder, s).names for s in ("train_voc2012", "val_voc2012", "trainval_voc2012", "trainval")
    }
    assert names["train_voc2012"] == ["2008_000008"]
    assert names["val_voc2012"] == ["2008_000002", "2011_003276"]
    assert names["trainval"] == names["trainval_voc2012"] == ["2008_000002", "2008_000008", "2011_003276"]
    (folder / "inst/2008_000002.mat").write_bytes(b"<html>not found</html>")
    with pytest.raises(ValueError, match=r"2008_000002\.mat: expected a MAT-file of level 5"):
        datasets.open(trees.root, "train")[0]


def test_damaged_mat_files(tmp_path):
    good = mat_file(tmp_path / "a.mat", "GTcls", Segmentation=values())
    content = good.read_bytes()
    assert np.array_equal(read_mat(good)["GTcls"][0]["Segmentation"], values())
    for at in range(129, len(content), 97):
        (tmp_path / "cut.mat").write_bytes(content[:at])
        told = outcome(tmp_path / "cut.mat")
        assert told == {} or "cut.mat: damaged MAT-file" in told
    rng = np.random.default_rng(0)
    for _ in range(200):
        noisy = bytearray(content)
        noisy[int(rng.integers(128, len(content)))] ^= int(rng.integers(1, 256))
        (tmp_path / "noisy.mat").write_bytes(noisy)
        told = outcome(tmp_path / "noisy.mat")
        assert isinstance(told, dict) or "noisy.mat" in told


def outcome(path):
    """What a file holds, or the message of its error."""
    try:
        return read_mat(path)
    except ValueError as error:
        return str(error)


def test_cub(trees):
    classes = ["001.Black_footed_Albatross", "002.Laysan_Albatross"]
    files = [f"{classes[0]}/Black_1.jpg", f"{classes[0]}/Black_2.jpg", f"{classes[1]}/Laysan_1.jpg"]
    root = "CUB_200_2011"
    for file in files:
        trees.image(f"{root}/images/{file}", SIZE)
        trees.label_map(f"segmentations/{file[:-4]}.png", np.full(SIZE, 51))
    for name, rows in {
        "images.txt": files,
        "classes.txt": classes,
        "image_class_labels.txt": [1, 1, 2],
        "bounding_boxes.txt": ["5.0 6.0 20.0 10.0", "0.0 0.0 60.0 40.0", "1.0 2.0 30.0 30.0"],
        "train_test_split.txt": [1, 0, 1],
    }.items():
        trees.text(f"{root}/{name}", "".join(f"{i + 1} {row}\n" for i, row in enumerate(rows)))
    trees.text(f"{root}/parts/parts.txt", "1 back\n2 left eye\n3 tail\n")
    points = ["1 1 10.0 12.0 1", "1 2 0.0 0.0 0", "1 3 61.0 3.0 1", "2 1 1.0 1.0 1", "2 2 2.0 2.0 1", "2 3 3.0 3.0 0"]
    trees.text(f"{root}/parts/part_locs.txt", "\n".join([*points, *(f"3 {k} 4.0 5.0 1" for k in (1, 2, 3))]))
    train = datasets.open(trees.root, "train")
    assert (len(train), train.categories) == (2, ("Black_footed_Albatross", "Laysan_Albatross"))
    assert train.keypoint_names == ("back", "left eye", "tail")
    sample = train[0]
    assert sample.boxes.tolist() == [[5, 6, 25, 16]]
    assert sample.keypoints.tolist() == [[[10, 12, 2], [0, 0, 0], [0, 0, 0]]]  # the tail lies outside the image
    assert (sample.label, train[1].label, train.image_labels().tolist()) == (0, 1, [0, 1])
    assert train.probability_map(0) == pytest.approx(np.full(SIZE, 0.2))
    assert [len(datasets.open(trees.root, s)) for s in ("test", "all")] == [1, 3]
    trees.text(f"{root}/bounding_boxes.txt", "1 5.0 6.0\n")
    with pytest.raises(ValueError, match=r"bounding_boxes\.txt, line 1: expected a number and 4 values"):
        datasets.open(trees.root, "train")


def test_online_products(trees):
    rows = {
        "train": [(1, 1, 1, "bicycle_final/111085122871_0.JPG"), (2, 2, 3, "chair_final/11_0.JPG")],
        "test": [(3, 11319, 12, "toaster_final/12_0.JPG"), (4, 11319, 12, "toaster_final/12_1.JPG")],
    }
    for split, lines in rows.items():
        for *_, path in lines:
            trees.image(f"Stanford_Online_Products/{path}", SIZE)
        text = "image_id class_id super_class_id path\n" + "\n".join(" ".join(map(str, line)) for line in lines)
        trees.text(f"Stanford_Online_Products/Ebay_{split}.txt", text)
    train, test = (datasets.open(trees.root, s) for s in ("train", "test"))
    assert train.categories == test.categories == ("1", "2", "11319")
    assert (train.image_labels().tolist(), test.image_labels().tolist()) == ([0, 1], [2, 2])
    assert [datasets.online_products.KINDS[s.extra["kind"]] for s in train] == ["bicycle", "chair"]
    assert test[1].label == 2
    both = train + test
    assert (len(both), both[3].label, len(both[1:3])) == (4, 2, 2)


def test_coco_panoptic(trees):
    """Segments of one category make one class; segment numbers use all three channels."""
    trees.image("val2017/000000000139.jpg", SIZE)
    numbers = np.zeros(SIZE, np.int64)
    numbers[:10], numbers[10:20], numbers[20:30] = 3226956, 6979964, 66
    colors = np.stack([numbers % 256, numbers // 256 % 256, numbers // 65536], 2).astype(np.uint8)
    path = trees.root / "annotations/panoptic_val2017/000000000139.png"
    path.parent.mkdir(parents=True)
    Image.fromarray(colors).save(path)
    segments = [(3226956, 1), (6979964, 200), (66, 1)]
    trees.json(
        "annotations/panoptic_val2017.json",
        {
            "images": [{"id": 139, "file_name": "000000000139.jpg", "height": 40, "width": 60}],
            "annotations": [
                {
                    "image_id": 139,
                    "file_name": "000000000139.png",
                    "segments_info": [{"id": i, "category_id": c, "area": 1, "iscrowd": 0} for i, c in segments],
                }
            ],
            "categories": [{"id": 1, "name": "person", "isthing": 1}, {"id": 200, "name": "rug-merged", "isthing": 0}],
        },
    )
    alone = datasets.open(trees.root, "val")
    labels = alone[0].semantic
    assert [np.unique(labels[a : a + 10]).tolist() for a in (0, 10, 20, 30)] == [[0], [1], [0], [255]]
    assert (alone.categories, alone.category_ids) == (("person", "rug-merged"), (1, 200))
    trees.coco("annotations/instances_val2017.json", [], ["000000000139.jpg"])
    assert datasets.open(trees.root, "val").format == "COCO"
    assert datasets.open(trees.root, "semantic-val").format == "COCO panoptic"


def test_coco_minival_and_objects_without_area(trees):
    """Section 9, defect 4 of ChainerCV: a zero-area object is left out of the boxes but not of the masks.

    Some masks of minival have another size than their image.
    """
    for name in ("COCO_val2014_000000000042.jpg", "COCO_val2014_000000000073.jpg"):
        trees.image(f"val2014/{name}", SIZE)
    square = {"segmentation": [[5, 5, 20, 5, 20, 20, 5, 20]], "bbox": [5, 5, 15, 15], "area": 225}
    flat = {"segmentation": [[5, 5, 5, 5, 20, 5]], "bbox": [5, 5, 15, 0], "area": 0}
    odd = {"segmentation": {"size": [60, 40], "counts": [0, 2400]}, "bbox": [0, 0, 40, 40], "area": 2400}
    objects = [{"image_id": 10, "category_id": 3, **shape} for shape in (flat, square, odd)]
    for name in ("minival", "valminusminival"):
        trees.coco(f"annotations/instances_{name}2014.json", objects, ["COCO_val2014_000000000042.jpg"])
    trees.coco("annotations/instances_val2014.json", objects[:2], ["COCO_val2014_000000000042.jpg"])
    sample = datasets.open(trees.root, "val")[0]
    assert len(sample.boxes) == len(sample.labels) == len(sample.masks) == 1
    assert sample.masks[0].sum() == pytest.approx(225, abs=31)
    found = datasets.open(trees.root, "minival")
    assert (len(found), found.annotations(0).path) == (1, str(trees.root / "val2014/COCO_val2014_000000000042.jpg"))
    assert len(found.annotations(0)) == 2
    assert len(datasets.open(trees.root, "valminusminival")) == 1


def test_voc_image_with_difficult_objects_only(trees):
    """Section 9, defect 3 of ChainerCV: such an image raises ValueError there; here its objects are ``ignore``."""
    trees.image("VOCdevkit/VOC2007/JPEGImages/000001.jpg", SIZE)
    trees.voc("VOCdevkit/VOC2007/Annotations/000001.xml", [("dog", 1, 1, 10, 10, 1), ("cat", 5, 5, 20, 20, 1)])
    trees.text("VOCdevkit/VOC2007/ImageSets/Main/test.txt", "000001\n")
    sample = datasets.open(trees.root, "test")[0]
    assert sample.ignore.tolist() == [True, True]
    assert sample.boxes.tolist() == [[0, 0, 10, 10], [4, 4, 20, 20]]


def test_voc_splits(trees):
    root = "VOCdevkit/VOC2012"
    objects, classes = np.zeros(SIZE, int), np.zeros(SIZE, int)
    objects[5:15, 5:25], classes[5:15, 5:25], objects[4, 5:25], classes[4, 5:25] = 1, 20, 255, 255
    for name in ("2007_000032", "2007_000039"):
        trees.image(f"{root}/JPEGImages/{name}.jpg", SIZE)
        trees.voc(f"{root}/Annotations/{name}.xml", [("tvmonitor", 6, 6, 25, 15)])
        trees.label_map(f"{root}/SegmentationClass/{name}.png", classes, palette=True)
        trees.label_map(f"{root}/SegmentationObject/{name}.png", objects, palette=True)
    lists = {"train": ["2007_000032"], "val": ["2007_000039"], "trainval": ["2007_000032", "2007_000039"]}
    for folder in ("Main", "Segmentation"):
        for split, names in lists.items():
            trees.text(f"{root}/ImageSets/{folder}/{split}.txt", "\n".join(names))
    for split, names in lists.items():
        boxes, semantic, instances = (datasets.open(trees.root, p + split) for p in ("", "semantic-", "instance-"))
        assert [len(d) for d in (boxes, semantic, instances)] == [len(names)] * 3
        assert (len(semantic.categories), len(instances.categories)) == (21, 20)
        assert semantic[0].semantic[4:6, 5].tolist() == [255, 20]
        assert instances[0].boxes.tolist() == boxes[0].boxes.tolist() == [[5, 5, 25, 15]]
        assert (instances[0].labels.tolist(), int(instances[0].masks.sum())) == ([19], 200)


def test_slices_and_sums_read_nothing(trees, monkeypatch):
    write_sbd(trees)
    found = datasets.open(trees.root, "trainval")

    def refuse(*args):
        raise AssertionError("an image was read")

    with monkeypatch.context() as patch:
        patch.setattr("chainsight.datasets.voc.read_image", refuse)
        view = (found + found[::2])[1:4]
        assert len(view) == 3
        assert [view.annotations(i).image_id for i in range(3)] == ["2008_000008", "2011_003276", "2008_000002"]
    assert view[0].size == SIZE


@pytest.fixture
def animals(trees):
    for name, count in {"cat": 3, "cow": 2, "dog": 4}.items():
        for i in range(count):
            trees.image(f"{name}/{i}.png", SIZE)
    return datasets.open(trees.root)


@pytest.mark.parametrize("positive", [0.0, 0.3, 1.0])
def test_siamese_pairs(animals, positive):
    pairs = datasets.Siamese(animals, positive=positive, length=400)
    labels = animals.image_labels()
    same = np.mean([labels[a] == labels[b] for a, b in map(pairs.draw, range(400))])
    assert same == pytest.approx(positive, abs=0.08)
    again = datasets.Siamese(animals, positive=positive, length=400)
    assert [pairs.draw(i) for i in range(9)] == [again.draw(i) for i in range(9)]
    other = datasets.Siamese(animals, positive=positive, length=400, seed=1)
    assert [pairs.draw(i) for i in range(9)] != [other.draw(i) for i in range(9)]
    view = pairs[10:20:3]
    assert len(view) == 4
    assert (view[1][0].source, view[1][1].source) == (pairs[13][0].source, pairs[13][1].source)


def test_impossible_pairs(animals):
    with pytest.raises(ValueError, match="no class is in both"):
        datasets.Siamese(animals[:3], animals[3:], positive=0.5)
    with pytest.raises(ValueError, match="one class only"):
        datasets.Siamese(animals[:3], positive=0.5)
    with pytest.raises(ValueError, match="expected images in both"):
        datasets.Siamese(animals[:0])
    with pytest.raises(ValueError, match="from 0 to 1"):
        datasets.Siamese(animals, positive=2)
    assert len(datasets.Siamese(animals[:3], animals[3:])) == 3


def test_mixup(animals):
    mixed = datasets.MixUp(datasets.Siamese(animals, length=300), 3, alpha=0.4)
    weights = np.array([mixed[i][1] for i in range(300)])
    assert weights.sum(1) == pytest.approx(np.ones(300), abs=1e-6)
    largest = weights.max(1)
    assert np.mean((largest > 0.9) & (largest < 1)) > 0.2  # Beta(0.4, 0.4) prefers the ends
    image, weight = mixed[5]
    one, other = mixed.pairs[5]
    assert one.label != other.label
    expected = weight[one.label] * one.image + weight[other.label] * other.image
    assert image == pytest.approx(expected, abs=1e-3)
    assert np.array_equal(mixed[2:8][3][0], image)
    assert (image.dtype, weight.dtype) == (np.float32, np.float32)
    with pytest.raises(ValueError, match="positive alpha"):
        datasets.MixUp(mixed.pairs, 3, alpha=0)


def test_mixup_of_two_sizes(trees):
    trees.image("cat/0.png", (40, 60))
    trees.image("dog/0.png", (30, 60))
    mixed = datasets.MixUp(datasets.Siamese(datasets.open(trees.root), positive=0.0), 2)
    with pytest.raises(ValueError, match="expected"):
        mixed[0]


def test_class_files_still_win_over_names(trees):
    """A set that only looks a little like Cityscapes opens by its own class file."""
    trees.image("leftImg8bit/a.png", SIZE)
    trees.label_map("gtFine/a.png", values(top=2))
    (trees.root / "classes.json").write_text(json.dumps(["sky", "ground"]))
    assert datasets.open(trees.root).categories == ("sky", "ground")
