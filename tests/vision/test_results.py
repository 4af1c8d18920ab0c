import io
import json

import numpy as np
import pytest
from chainsight.vision.image import read_image
from chainsight.vision.masks import InstanceMasks, decode_rle
from chainsight.vision.results import Classification, Detection, Detections, SegmentationMap
from PIL import Image

NAMES, IDS = ("person", "traffic light", "dog"), (1, 10, 18)


@pytest.fixture
def image():
    return np.random.default_rng(0).integers(0, 256, (60, 80, 3), dtype=np.uint8)


@pytest.fixture
def detections(image):
    boxes = np.array([[1, 2, 31, 42], [5, 5, 10, 10], [40, 20, 79.5, 59]], np.float32)
    masks = InstanceMasks(np.ones((3, 28, 28)) * [[[0.9]], [[0.8]], [[0.7]]], boxes, (60, 80))
    keypoints = np.arange(3 * 2 * 3).reshape(3, 2, 3)
    return Detections(boxes, [0.9, 0.8, 0.3], [2, 0, 1], NAMES, (60, 80), IDS, masks, keypoints, image)


def test_fields_become_plain_arrays(detections):
    assert (detections.boxes.dtype, detections.scores.dtype, detections.labels.dtype) == (
        np.float32,
        np.float32,
        np.int64,
    )
    assert detections.names == ["dog", "person", "traffic light"]
    assert detections.keypoints.dtype == np.float32


def test_one_object(detections):
    views = list(detections)
    assert len(views) == len(detections) == 3
    first = views[0]
    assert isinstance(first, Detection)
    assert first.box.tolist() == [1, 2, 31, 42]
    assert (first.score, first.label, first.name, first.category_id) == (pytest.approx(0.9), 2, "dog", 18)
    np.testing.assert_array_equal(first.mask, detections.masks.binary(0))
    np.testing.assert_array_equal(first.keypoints, detections.keypoints[0])
    assert detections[-1].name == "traffic light"
    assert repr(first) == "Detection('dog', score=0.900, box=[1.0, 2.0, 31.0, 42.0])"
    with pytest.raises(IndexError, match="no object 3 among 3"):
        detections[3]


@pytest.mark.parametrize(
    ("index", "expected"),
    [
        (slice(1, None), [1, 2]),
        (np.array([True, False, True]), [0, 2]),
        ([True, False, True], [0, 2]),
        (np.array([2, 0]), [2, 0]),
        ([1], [1]),
        ([], []),
        (np.zeros(3, bool), []),
    ],
)
def test_selection_filters_every_field(detections, index, expected):
    chosen = detections[index]
    assert isinstance(chosen, Detections)
    for name in ("boxes", "scores", "labels", "keypoints"):
        np.testing.assert_array_equal(getattr(chosen, name), getattr(detections, name)[expected])
    np.testing.assert_array_equal(chosen.masks.crops, detections.masks.crops[expected])
    assert chosen.image is detections.image
    assert chosen.category_ids == IDS


def test_selection_by_name_and_score(detections):
    assert detections["dog"].names == ["dog"]
    with pytest.raises(ValueError, match="there is no class 'dgo': did you mean dog"):
        detections["dgo"]
    assert detections[detections.scores > 0.5].names == ["dog", "person"]
    with pytest.raises(IndexError):
        detections[np.array([True, False])]


def test_no_objects(image, tmp_path):
    none = Detections(np.zeros((0, 4)), [], [], NAMES, (60, 80), image=image)
    assert (len(none), list(none), none.to_coco(1)) == (0, [], [])
    assert none.boxes.shape == (0, 4)
    assert repr(none) == "Detections: 0 objects in an image of 80 x 60 pixels"
    np.testing.assert_array_equal(none.draw(), image)
    assert none.to_dict() == {"image_size": [60, 80], "objects": []}
    assert len(Detections([], [], [], (), (1, 1))) == 0


def test_repr_is_a_short_table(detections):
    assert repr(detections).splitlines() == [
        "Detections: 3 objects in an image of 80 x 60 pixels",
        "  dog            0.900  x1 1.0, y1 2.0, x2 31.0, y2 42.0",
        "  person         0.800  x1 5.0, y1 5.0, x2 10.0, y2 10.0",
        "  traffic light  0.300  x1 40.0, y1 20.0, x2 79.5, y2 59.0",
    ]
    many = detections[np.zeros(40, int)]
    assert repr(many).splitlines()[-1] == "  and 28 more"
    assert len(repr(many).splitlines()) == 14


def test_to_coco_writes_the_data_sets_ids(detections):
    records = json.loads(json.dumps(detections.to_coco(42)))
    assert [record["category_id"] for record in records] == [18, 1, 10]
    assert records[2]["bbox"] == [40, 20, 39.5, 39]
    assert records[0]["image_id"] == 42
    assert records[0]["score"] == pytest.approx(0.9)
    assert records[1]["keypoints"] == [6, 7, 8, 9, 10, 11]
    np.testing.assert_array_equal(decode_rle(records[0]["segmentation"]), detections.masks.binary(0))
    plain = Detections([[0, 0, 1, 1]], [0.5], [2], NAMES, (2, 2))
    assert plain.to_coco("a")[0] == {"image_id": "a", "category_id": 2, "bbox": [0, 0, 1, 1], "score": 0.5}


def test_to_dict_is_json(detections):
    data = json.loads(json.dumps(detections.to_dict()))
    assert data["image_size"] == [60, 80]
    first = data["objects"][0]
    assert (first["name"], first["label"], first["category_id"], first["box"]) == ("dog", 2, 18, [1, 2, 31, 42])
    assert set(first) == {"name", "label", "category_id", "score", "box", "mask", "keypoints"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"scores": [0.5]}, r"expected 2 scores, labels and masks, one for each box, got scores \(1,\)"),
        ({"labels": [0, 0, 0]}, r"labels \(3,\)"),
        ({"labels": [0, 3]}, "expected labels from 0 to 2, got 0 to 3"),
        ({"labels": [-1, 0]}, "got -1 to 0"),
        ({"boxes": [[0, 0, 1, np.nan], [0, 0, 1, 1]]}, "expected finite boxes and scores"),
        ({"scores": [np.inf, 0]}, "expected finite boxes and scores"),
        ({"category_ids": (1, 2)}, "one category id for each of 3 categories, got 2"),
        ({"keypoints": np.zeros((2, 5))}, r"expected keypoints \(2, k, 3\), got \(2, 5\)"),
        ({"masks": InstanceMasks(np.zeros((1, 2, 2)), np.zeros((1, 4)), (9, 9))}, "1 masks"),
    ],
)
def test_fields_that_disagree(change, message):
    fields = {
        "boxes": np.ones((2, 4)),
        "scores": [0.9, 0.8],
        "labels": [0, 1],
        "categories": NAMES,
        "image_size": (9, 9),
    }
    with pytest.raises(ValueError, match=message):
        Detections(**{**fields, **change})


def test_drawing_uses_the_image_of_predict_or_the_one_given(detections, image, tmp_path):
    drawn = detections.draw()
    assert drawn.shape == image.shape
    np.testing.assert_array_equal(detections.draw(image), drawn)
    path = tmp_path / "photo.png"
    Image.fromarray(image).save(path)
    detections.image = str(path)
    np.testing.assert_array_equal(detections.draw(), drawn)
    with pytest.raises(ValueError, match=r"expected an image of \(height, width\) = \(60, 80\)"):
        detections.draw(image[:50])
    detections.image = None
    with pytest.raises(ValueError, match="no image: pass the image to draw on"):
        detections.draw()


def test_save_image_enlarges_a_tiny_image_so_that_labels_can_be_read(detections, tmp_path):
    path = tmp_path / "out.png"
    detections.save_image(path)
    assert read_image(path).shape == (240, 320, 3)
    assert [entry.name for entry in tmp_path.iterdir()] == ["out.png"]
    large = Detections([[10, 10, 90, 90]], [0.9], [0], NAMES, (400, 500))
    large.save_image(tmp_path / "out.jpg", np.zeros((400, 500, 3), np.uint8))
    assert read_image(tmp_path / "out.jpg").shape == (400, 500, 3)


def test_the_picture_in_a_notebook(detections, tmp_path):
    def shown(result):
        return read_image(result._repr_png_())

    assert shown(detections).shape == (240, 320, 3)
    big = Detections([[10, 10, 900, 900]], [0.9], [0], NAMES, (1500, 4000), image=np.zeros((1500, 4000, 3), np.uint8))
    picture = shown(big)
    assert picture.shape == (384, 1024, 3)
    assert picture[:235, :240].any()
    assert not picture[260:, 300:].any()
    assert Detections([], [], [], NAMES, (9, 9))._repr_png_() is None
    detections.image = tmp_path / "moved away.png"
    assert detections._repr_png_() is None


def test_segmentation_map(image, tmp_path):
    labels = np.zeros((60, 80), np.uint8)
    labels[10:30, 10:60] = 2
    labels[0] = 255
    probabilities = np.zeros((3, 6, 8), np.float32)
    probabilities[2, 2, 3] = 1
    found = SegmentationMap(labels, NAMES, probabilities, image)
    assert found.image_size == (60, 80)
    assert found.areas() == {"person": 4800 - 1000 - 80, "dog": 1000}
    np.testing.assert_array_equal(found.mask("dog"), labels == 2)
    np.testing.assert_array_equal(found.mask(2), labels == 2)
    dog = found.probability("dog")
    assert (dog.shape, dog.dtype) == ((60, 80), np.float32)
    assert np.unravel_index(dog.argmax(), dog.shape)[0] // 10 == 2
    assert found.probability(0).max() == 0
    assert repr(found).splitlines()[:2] == ["SegmentationMap: 80 x 60 pixels", "  person  77.5%"]
    assert found.draw().shape == image.shape
    found.save_image(tmp_path / "map.png")
    assert read_image(tmp_path / "map.png").shape == (240, 320, 3)
    assert found._repr_png_().startswith(b"\x89PNG")
    regions = json.loads(json.dumps(found.to_dict()))["regions"]
    assert [(region["name"], region["area"]) for region in regions] == [("person", 3720), ("dog", 1000)]
    np.testing.assert_array_equal(decode_rle(regions[1]["mask"]), labels == 2)


def test_segmentation_map_errors():
    with pytest.raises(ValueError, match=r"label map \(height, width\) of integers, got \(2, 2\) float64"):
        SegmentationMap(np.zeros((2, 2)), NAMES)
    with pytest.raises(ValueError, match=r"expected probabilities \(3, h, w\), got \(2, 4, 4\)"):
        SegmentationMap(np.zeros((2, 2), int), NAMES, np.zeros((2, 4, 4)))
    found = SegmentationMap(np.zeros((2, 2), int), NAMES)
    with pytest.raises(ValueError, match="there is no class 'cat': known are person, traffic light, dog"):
        found.mask("cat")
    with pytest.raises(ValueError, match="expected a label from 0 to 2, got 3"):
        found.mask(3)
    with pytest.raises(ValueError, match="without class probabilities"):
        found.probability("dog")


def test_classification():
    found = Classification(np.array([0.1, 0.6, 0.3]), NAMES)
    assert (found.label, found.name, found.score) == (1, "traffic light", pytest.approx(0.6))
    assert [name for name, _ in found.top()] == ["traffic light", "dog", "person"]
    assert json.loads(json.dumps(found.to_dict(1)))["classes"][0]["name"] == "traffic light"
    assert repr(found).splitlines()[1] == "  traffic light  60.0%"
    with pytest.raises(ValueError, match=r"one probability for each of 3 categories, got \(2,\)"):
        Classification(np.array([0.5, 0.5]), NAMES)
    with pytest.raises(ValueError, match="finite"):
        Classification(np.array([0.5, np.nan, 0.5]), NAMES)


def test_a_real_photo_is_drawn_and_read_back(shared, tmp_path):
    photo = shared / "data/coco128/images/val/000000009590.jpg"
    annotations = json.loads((shared / "data/coco128/val.json").read_text())
    categories = sorted(annotations["categories"], key=lambda category: category["id"])
    ids = tuple(category["id"] for category in categories)
    objects = [a for a in annotations["annotations"] if a["image_id"] == 9590]
    corners = np.array([[x, y, x + w, y + h] for x, y, w, h in (a["bbox"] for a in objects)], np.float32)
    labels = [ids.index(a["category_id"]) for a in objects]
    names = tuple(category["name"] for category in categories)
    found = Detections(corners, np.full(len(objects), 0.9), labels, names, (427, 640), ids, image=photo)
    for record, annotation in zip(found.to_coco(9590), objects):
        assert record["category_id"] == annotation["category_id"]
        np.testing.assert_allclose(record["bbox"], annotation["bbox"], atol=1e-4)
    found.save_image(tmp_path / "out.png")
    changed = (read_image(tmp_path / "out.png") != read_image(photo)).any(2)
    assert 0.05 < changed.mean() < 0.6
    assert Image.open(io.BytesIO(found._repr_png_())).size == (640, 427)
