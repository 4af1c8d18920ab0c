import json
import tracemalloc

import numpy as np
import pytest
from chainsight.vision.masks import InstanceMasks, decode_rle, encode_rle, polygons_to_mask, rle_area, rle_box
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from pycocotools import mask as oracle

# pycocotools 2.0.11 itself is behind NumPy's protocol.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy:DeprecationWarning")

masks = hnp.arrays(np.uint8, hnp.array_shapes(min_dims=2, max_dims=2, max_side=40), elements=st.integers(0, 1))


def blobs(seed, height=70, width=90):
    """A mask of long runs, so counts need several characters and negative differences."""
    rng = np.random.default_rng(seed)
    mask = np.zeros((height, width), np.uint8)
    for _ in range(rng.integers(0, 5)):
        y, x = rng.integers(0, height), rng.integers(0, width)
        mask[y : y + rng.integers(1, height), x : x + rng.integers(1, width)] ^= 1
    return mask


def check_against_pycocotools(mask):
    theirs = oracle.encode(np.asfortranarray(mask))
    ours = encode_rle(mask)
    assert json.loads(json.dumps(ours)) == {"size": list(mask.shape), "counts": theirs["counts"].decode()}
    runs = encode_rle(mask, compressed=False)
    assert oracle.frPyObjects(runs, *mask.shape)["counts"] == theirs["counts"]
    for rle in (ours, theirs, runs):
        np.testing.assert_array_equal(decode_rle(rle), mask)
        assert rle_area(rle) == oracle.area(theirs)
        x1, y1, x2, y2 = rle_box(rle)
        assert [x1, y1, x2 - x1, y2 - y1] == oracle.toBbox(theirs).tolist()


@given(masks)
@settings(max_examples=60, deadline=None)
def test_rle_of_any_mask_equals_pycocotools(mask):
    check_against_pycocotools(mask)


@pytest.mark.parametrize("seed", range(20))
def test_rle_of_blobs_equals_pycocotools(seed):
    check_against_pycocotools(blobs(seed))
    check_against_pycocotools(blobs(seed, 700, 900))


def test_rle_of_the_real_crowds(shared):
    data = json.loads((shared / "data/coco128/instances_val.json").read_text())
    crowds = [a for a in data["annotations"] if a["iscrowd"]]
    assert len(crowds) == 5
    for annotation in crowds:
        rle = annotation["segmentation"]
        assert rle_area(rle) == annotation["area"]
        x1, y1, x2, y2 = rle_box(rle)
        assert [x1, y1, x2 - x1, y2 - y1] == annotation["bbox"]
        assert encode_rle(decode_rle(rle), compressed=False)["counts"] == rle["counts"]


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        ([3, 3], r"fill 2 x 2 = 4 pixels, got 2 runs of 6"),
        ([5, -1], "fill 2 x 2"),
        ("04P", "expected COCO's compressed run lengths, got '04P'"),
        ("0\x01", "expected COCO's"),
        ("é", "expected COCO's"),
        ("P" * 20 + "0", "21 characters"),
        ("", "got 0 runs"),
    ],
)
def test_broken_run_lengths(counts, message):
    with pytest.raises(ValueError, match=message):
        decode_rle({"size": [2, 2], "counts": counts})


def test_encode_wants_two_axes():
    with pytest.raises(ValueError, match=r"expected a mask \(height, width\), got shape \(1, 2, 2\)"):
        encode_rle(np.zeros((1, 2, 2)))


@pytest.mark.parametrize("seed", range(0, 150, 10))
def test_polygons_equal_pycocotools_pixel_for_pixel(seed):
    for case in range(seed, seed + 10):
        check_random_polygons(case)


def check_random_polygons(seed):
    rng = np.random.default_rng(seed)
    height, width = rng.integers(1, 80, 2).tolist()
    polygons = [rng.uniform(-15, 95, 2 * rng.integers(3, 9)) for _ in range(rng.integers(1, 4))]
    if seed % 2:
        polygons = [np.round(polygon * 2) / 2 for polygon in polygons]
    rles = oracle.frPyObjects([polygon.tolist() for polygon in polygons], height, width)
    expected = oracle.decode(oracle.merge(rles))
    np.testing.assert_array_equal(polygons_to_mask(polygons, (height, width)), expected)


def test_real_polygons_equal_pycocotools(shared):
    data = json.loads((shared / "data/coco128/instances_val.json").read_text())
    sizes = {image["id"]: (image["height"], image["width"]) for image in data["images"]}
    annotations = [a for a in data["annotations"] if not a["iscrowd"]][::6]
    assert len(annotations) > 100
    for annotation in annotations:
        mask = polygons_to_mask(annotation["segmentation"], sizes[annotation["image_id"]])
        rles = oracle.frPyObjects(annotation["segmentation"], *mask.shape)
        np.testing.assert_array_equal(mask, oracle.decode(oracle.merge(rles)))
        assert mask.sum() == annotation["area"]


@pytest.mark.parametrize(
    ("polygon", "message"),
    [
        ([0, 0, 1, 1], "polygon 1: expected at least 3 points as x, y pairs, got 4 numbers"),
        ([0, 0, 1, 1, 2, 2, 3], "got 7 numbers"),
        ([0, 0, 1, 1, 2, np.nan], "polygon 1: expected coordinates within 1e"),
        ([0, 0, 1, 1, 2, 1e12], "polygon 1: expected coordinates within 1e"),
    ],
)
def test_bad_polygons(polygon, message):
    with pytest.raises(ValueError, match=message):
        polygons_to_mask([[0, 0, 5, 0, 5, 5], polygon], (9, 9))


def paste(crop, box, height, width):
    """torchvision's rule, written out pixel by pixel in double precision."""
    m = len(crop)
    padded = np.pad(crop.astype(np.float64), 1)
    x, y = (box[0] + box[2]) / 2, (box[1] + box[3]) / 2
    w, h = (box[2] - box[0]) / 2 * (m + 2) / m, (box[3] - box[1]) / 2 * (m + 2) / m
    x1, y1, x2, y2 = int(x - w), int(y - h), int(x + w), int(y + h)
    full = np.zeros((height, width))

    def between(pixel, first, last):
        position = max((pixel - first + 0.5) * (m + 2) / max(last - first + 1, 1) - 0.5, 0)
        low = min(int(position), m + 1)
        return low, min(low + 1, m + 1), position - low

    for row in range(max(y1, 0), min(y2 + 1, height)):
        a, b, t = between(row, y1, y2)
        line = padded[a] * (1 - t) + padded[b] * t
        for column in range(max(x1, 0), min(x2 + 1, width)):
            a, b, t = between(column, x1, x2)
            full[row, column] = line[a] * (1 - t) + line[b] * t
    return full


def some_masks(n=14, height=60, width=80, m=28, seed=0):
    rng = np.random.default_rng(seed)
    low = rng.uniform(-25, 70, (n, 2))
    boxes = np.concatenate([low, low + rng.exponential(25, (n, 2))], 1).astype(np.float32)
    fixed = [[10, 10, 10, 10], [-30, -30, -5, -5], [0, 0, 80, 60], [50, 40, 30, 20], [-300, -200, 500, 400]]
    boxes[: len(fixed)] = fixed
    crops = rng.random((n, m // 4, m // 4)).repeat(4, 1).repeat(4, 2).astype(np.float32)
    return InstanceMasks(crops, boxes, (height, width))


@pytest.mark.parametrize("m", [28, 4])
def test_pasting_follows_the_rule(m):
    found = some_masks(m=m)
    filled = 0
    for i in range(len(found)):
        expected = paste(found.crops[i], found.boxes[i].astype(np.float64), 60, 80)
        probabilities = found.probabilities(i)
        assert probabilities.dtype == np.float32
        np.testing.assert_allclose(probabilities, expected, atol=2e-5)
        np.testing.assert_array_equal(found.binary(i), probabilities > 0.5)
        np.testing.assert_array_equal(found.binary(i, 0.2), probabilities > 0.2)
        filled += expected.any()
    assert filled >= 8


def test_pasting_equals_torchvision_on_a_small_case():
    # From torchvision 0.29.1: paste_masks_in_image(arange(9).reshape(1, 1, 3, 3) / 8, [[1.2, 0.6, 5.9, 4.4]], (6, 8)).
    crop = (np.arange(9).reshape(1, 3, 3) / 8).astype(np.float32)
    found = InstanceMasks(crop, np.array([[1.2, 0.6, 5.9, 4.4]]), (6, 8)).probabilities(0)
    expected = np.zeros((6, 8))
    expected[1:5, 1:7] = [
        [0.0, 0.00586, 0.06445, 0.12305, 0.18164, 0.08203],
        [0.0957, 0.22656, 0.30469, 0.38281, 0.46094, 0.20508],
        [0.23242, 0.53906, 0.61719, 0.69531, 0.77344, 0.3418],
        [0.24609, 0.56836, 0.62695, 0.68555, 0.74414, 0.32812],
    ]
    np.testing.assert_allclose(found, expected, atol=6e-6)


def test_run_lengths_of_pasted_masks():
    found = some_masks(40, seed=3)
    full = list(found)
    assert [mask.shape for mask in full] == [(60, 80)] * 40
    assert found.to_rle() == [encode_rle(mask) for mask in full]
    assert found.areas().tolist() == [mask.sum() for mask in full]
    everything = InstanceMasks(np.ones((1, 28, 28)), np.array([[-50, -50, 150, 150]]), (60, 80))
    assert everything.to_rle() == [encode_rle(np.ones((60, 80)))]


def test_selection_and_no_masks():
    found = some_masks()
    chosen = found[np.arange(14) % 2 == 0]
    assert len(chosen) == 7
    np.testing.assert_array_equal(chosen.probabilities(1), found.probabilities(2))
    np.testing.assert_array_equal(found[3:5].boxes, found.boxes[3:5])
    empty = found[:0]
    assert (len(empty), list(empty), empty.to_rle(), empty.areas().tolist()) == (0, [], [], [])


def test_wrong_shapes():
    with pytest.raises(
        ValueError, match=r"expected crops \(n, m, m\) and boxes \(n, 4\), got \(2, 28, 28\) and \(3, 4\)"
    ):
        InstanceMasks(np.zeros((2, 28, 28)), np.zeros((3, 4)), (9, 9))


def test_memory_stays_small_on_a_big_photo():
    rng = np.random.default_rng(0)
    low = rng.random((100, 2)) * 500
    boxes = np.concatenate([low, [[4000, 3000]] - low], 1)
    found = InstanceMasks(rng.random((100, 28, 28)), boxes, (3000, 4000))
    tracemalloc.start()
    try:
        assert len(found[:6].to_rle()) == 6
        assert sum(mask.any() for mask in found[:6]) == 6
        assert found.probabilities(0).shape == (3000, 4000)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 200e6
