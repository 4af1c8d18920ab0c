"""Properties every transform has, on random samples, and what each one is for, on samples made by hand."""

import copy
from dataclasses import replace
from itertools import count

import cv2
import numpy as np
import pytest
from chainsight.vision.sample import Sample
from chainsight.vision.transforms import (
    COCO_KEYPOINT_PAIRS,
    AreaCrop,
    Blur,
    Compose,
    CopyPaste,
    Crop,
    Cutout,
    HorizontalFlip,
    HSVJitter,
    IoUCrop,
    JPEGNoise,
    Letterbox,
    MixUp,
    Mosaic,
    Pad,
    PhotometricDistort,
    RandomAffine,
    RandomApply,
    Resize,
    ResizeLongSide,
    ResizeShortSide,
    ScaleJitter,
    ZoomOut,
    contact_sheet,
)
from chainsight.vision.transforms.geometry import MIN_SIDE, mask_areas, mask_boxes, warp
from hypothesis import given, settings
from hypothesis import strategies as st

EVERY = {
    "flip": HorizontalFlip(1, ((0, 1),)),
    "resize": Resize((40, 70)),
    "resize_antialias": Resize((17, 23), antialias=True),
    "short_side": ResizeShortSide((30, 40), longest=64),
    "long_side": ResizeLongSide(50),
    "letterbox": Letterbox((48, 80)),
    "letterbox_corner": Letterbox((80, 48), centre=False),
    "pad": Pad((20, 90), divisor=32),
    "crop": Crop((30, 30)),
    "area_crop": AreaCrop((0.2, 0.8)),
    "scale_jitter": ScaleJitter((60, 50), (0.3, 2)),
    "iou_crop": IoUCrop(),
    "zoom_out": ZoomOut((1, 2.5)),
    "affine": RandomAffine(degrees=30, translate=0.2, scale=(0.5, 1.5), shear=10),
    "affine_size": RandomAffine(size=(50, 50)),
    "mosaic": Mosaic((70, 90)),
    "mixup": MixUp(),
    "copy_paste": CopyPaste(),
    "hsv": HSVJitter(),
    "photometric": PhotometricDistort(),
    "blur": Blur(),
    "jpeg": JPEGNoise(),
    "cutout": Cutout(3, (0.2, 0.6)),
}
PIXELS_ONLY = ("hsv", "photometric", "blur", "jpeg")
SHRINKING = (
    "resize",
    "resize_antialias",
    "short_side",
    "long_side",
    "letterbox",
    "letterbox_corner",
    "scale_jitter",
    "mosaic",
    "mixup",
    "copy_paste",
    "pipeline",
)
PIPELINE = Compose([Mosaic((120, 120)), RandomAffine(size=(60, 60)), MixUp(), RandomApply(HSVJitter(), 0.7)])

IDENTITIES = {
    "flip": HorizontalFlip(0),
    "crop": Crop((1000, 1000)),
    "area_crop": AreaCrop((1, 1), (1e3, 1e3)),
    "pad": Pad(),
    "iou_crop": IoUCrop(min_ious=()),
    "zoom_out": ZoomOut((1, 1)),
    "affine": RandomAffine(0, 0, (1, 1), 0),
    "mixup": MixUp(weight=1),
    "hsv": HSVJitter(0, 0, 0),
    "photometric": PhotometricDistort(0, (1, 1), (1, 1), 0),
    "blur": Blur((0, 0)),
    "cutout": Cutout(0),
    "never": RandomApply(Cutout(), 0),
    "nothing": Compose([]),
}


def make_sample(seed, n=3, size=(45, 60), masks=True, semantic=np.uint8, least=6):
    """Ellipses as objects, boxes exactly around their masks, keypoints at the left and right tip and the centre."""
    rng = np.random.default_rng(seed)
    height, width = size
    image = cv2.resize(rng.integers(0, 256, (5, 5, 3), np.uint8), (width, height))
    shapes = np.zeros((n, height, width), np.uint8)
    points = np.zeros((n, 3, 3), np.float32)
    for shape, point in zip(shapes, points):
        half = rng.uniform(least / 2, [width / 3, height / 3])
        centre = rng.uniform(half, np.maximum([width - half[0], height - half[1]], half))
        y, x = np.mgrid[:height, :width] + 0.5
        shape[:] = ((x - centre[0]) / half[0]) ** 2 + ((y - centre[1]) / half[1]) ** 2 <= 1
        point[:] = [(centre[0] - half[0], centre[1], 2), (centre[0] + half[0], centre[1], 1), (0, 0, 0)]
    shapes = shapes.astype(bool)
    label_map = None
    if semantic is not None:
        label_map = np.zeros(size, semantic)
        for i, shape in enumerate(shapes):
            label_map[shape] = i + 1
    return Sample(
        image,
        mask_boxes(shapes),
        rng.integers(0, 5, n),
        rng.random(n) < 0.2,
        shapes if masks else None,
        points,
        label_map,
        image_id=seed,
        source=f"made {seed}",
    )


def drawing(seed, **kwargs):
    numbers = count(seed)
    return lambda: make_sample(next(numbers), **kwargs)


def arrays(sample):
    return {name: value for name, value in vars(sample).items() if isinstance(value, np.ndarray)}


def assert_same(a, b):
    assert arrays(a).keys() == arrays(b).keys()
    for name, value in arrays(a).items():
        assert value.dtype == getattr(b, name).dtype, name
        np.testing.assert_array_equal(value, getattr(b, name), err_msg=name)
    assert (a.label, a.image_id, a.source) == (b.label, b.image_id, b.source)


def assert_valid(sample):
    height, width = sample.size
    assert sample.image.dtype == np.uint8
    assert sample.image.shape == (height, width, 3)
    n = len(sample)
    if sample.boxes is not None:
        assert (sample.boxes.dtype, sample.labels.dtype, sample.ignore.dtype) == (np.float32, np.int64, bool)
        assert sample.boxes.shape == (n, 4)
        assert len(sample.labels) == len(sample.ignore) == n
        assert (sample.boxes >= 0).all()
        assert (sample.boxes[:, [0, 2]] <= width).all()
        assert (sample.boxes[:, [1, 3]] <= height).all()
        assert (sample.boxes[:, 2:] - sample.boxes[:, :2] >= MIN_SIDE).all()
    if sample.masks is not None:
        assert sample.masks.dtype == bool
        assert sample.masks.shape == (n, height, width)
        assert (mask_areas(sample.masks) > 0).all()
    if sample.keypoints is not None:
        assert sample.keypoints.dtype == np.float32
        assert sample.keypoints.shape[0] == n
        seen = sample.keypoints[..., 2] > 0
        assert (sample.keypoints[seen][:, :2] >= 0).all()
        assert (sample.keypoints[seen][:, :2] <= [width, height]).all()
        assert (sample.keypoints[~seen] == 0).all()
    if sample.semantic is not None:
        assert sample.semantic.shape == (height, width)


@pytest.mark.parametrize("name", [*EVERY, "pipeline"])
@settings(max_examples=12, deadline=None, derandomize=True)
@given(seed=st.integers(0, 10**6), n=st.integers(0, 5), masks=st.booleans(), wide=st.booleans())
def test_every_transform(name, seed, n, masks, wide):
    """Valid output, the input untouched, the same generator the same result, boxes on the masks within a pixel."""
    transform = EVERY.get(name, PIPELINE)
    # Copy-paste needs masks, and says so (below).
    masks = masks or name == "copy_paste"
    size = (45, 60) if wide else (61, 37)
    sample = make_sample(seed, n, size, masks, np.int32 if wide else np.uint8)
    before = copy.deepcopy(sample)
    result = transform(sample, np.random.default_rng(seed), drawing(seed, masks=masks, n=n))
    assert_valid(result)
    assert_same(sample, before)
    again = transform(sample, np.random.default_rng(seed), drawing(seed, masks=masks, n=n))
    assert_same(result, again)
    assert result.source == sample.source
    if name in PIXELS_ONLY:
        assert_same(replace(result, image=sample.image), sample)
    if masks and name != "cutout":
        # Inside the box up to rounding, and short of it by at most a pixel; where a side shrinks, sampling may step
        # over a tip one row thin and two columns long.
        inset = (mask_boxes(result.masks) - result.boxes) * [1, 1, -1, -1]
        assert (inset > -0.501).all()
        assert (inset < (2 * max(1, *np.divide(result.size, size)) if name in SHRINKING else 1)).all()


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("kind", ["no objects", "no objects at all", "image only", "tiny image"])
def test_samples_without_objects_pass(name, kind):
    sample = make_sample(1, 0)
    if kind == "no objects at all":
        sample = replace(sample, masks=None, keypoints=None, semantic=None)
    elif kind == "image only":
        sample = Sample(sample.image, label=2)
    elif kind == "tiny image":
        sample = Sample(np.zeros((1, 2, 3), np.uint8), np.zeros((0, 4)), semantic=np.zeros((1, 2), np.uint8))
    for seed in range(5):
        result = EVERY[name](sample, np.random.default_rng(seed), lambda: sample)
        assert_valid(result)
        assert len(result) == 0
        assert (result.boxes is None) == (sample.boxes is None)
        assert (result.semantic is None) == (sample.semantic is None)


@pytest.mark.parametrize("name", EVERY)
def test_empty_and_full_samples_mix(name):
    for seed in range(4):
        full, empty = make_sample(seed), replace(make_sample(seed, 0), masks=None, keypoints=None)
        for sample, other in ((full, empty), (empty, full)):
            assert_valid(EVERY[name](sample, np.random.default_rng(seed), lambda other=other: other))


@pytest.mark.parametrize("name", IDENTITIES)
@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 10**6), n=st.integers(0, 4))
def test_identity_parameters_change_nothing(name, seed, n):
    sample = make_sample(seed, n)
    if n:
        sample.boxes[0] += np.float32(0.3)  # finer than the mask, as COCO's are
    assert_same(IDENTITIES[name](sample, np.random.default_rng(seed), drawing(seed)), sample)


@pytest.mark.parametrize("make", [Resize, Letterbox, lambda size: ScaleJitter(size, (1, 1)), lambda size: Pad(size)])
def test_the_samples_own_size_changes_nothing(make):
    sample = make_sample(5)
    assert_same(make(sample.size)(sample, np.random.default_rng(0)), sample)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10**6), n=st.integers(0, 4))
def test_flip_of_flip_is_the_identity(seed, n):
    sample, flip, rng = make_sample(seed, n), HorizontalFlip(1, ((0, 1),)), np.random.default_rng(seed)
    once = flip(sample, rng)
    twice = flip(once, rng)
    np.testing.assert_allclose(twice.keypoints, sample.keypoints, atol=1e-5)
    assert_same(replace(twice, keypoints=sample.keypoints), sample)
    np.testing.assert_array_equal(mask_boxes(once.masks), once.boxes)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    degrees=st.floats(-180, 180),
    scale=st.floats(0.5, 2),
    shift=st.tuples(st.floats(-30, 30), st.floats(-30, 30)),
)
def test_a_warped_mask_lies_in_the_warped_box_and_keypoints_on_the_mask(seed, degrees, scale, shift):
    sample = make_sample(seed, 3, least=10)
    turn = cv2.getRotationMatrix2D((30.0, 22.0), degrees, scale)
    turn[:, 2] += shift
    with_masks = warp(sample, turn, (64, 64))
    # A third label, so that the two results can be matched after drops.
    number = {id_: i for i, id_ in enumerate(range(3))}
    loose = warp(replace(sample, labels=np.arange(3), masks=None), turn, (64, 64))
    tight = warp(replace(sample, labels=np.arange(3)), turn, (64, 64))
    assert len(with_masks) == len(tight)
    both = [i for i in number if i in loose.labels and i in tight.labels]
    for i in both:
        outer, inner = loose.boxes[loose.labels == i][0], tight.boxes[tight.labels == i][0]
        assert (outer[:2] - 1.01 <= inner[:2]).all()
        assert (inner[2:] <= outer[2:] + 1.01).all()
        for x, y, visible in tight.keypoints[tight.labels == i][0]:
            if visible:
                assert (np.array([x, y]) >= inner[:2] - 1.5 * max(scale, 1)).all()
                assert (np.array([x, y]) <= inner[2:] + 1.5 * max(scale, 1)).all()


def test_a_warp_moves_image_masks_boxes_and_label_map_by_the_same_amount():
    image = np.zeros((20, 20, 3), np.uint8)
    image[5:10, 4:8] = 255
    mask = image[..., 0] > 0
    sample = Sample(image, [[4, 5, 8, 10]], masks=mask[None], semantic=mask.astype(np.uint8))
    moved = warp(sample, np.array([[2.0, 0, 3], [0, 2, 1]]), (40, 40), fill=(0, 0, 0))
    assert moved.boxes.tolist() == [[11, 11, 19, 21]]
    assert mask_boxes(moved.masks).tolist() == [[11, 11, 19, 21]]
    np.testing.assert_array_equal(moved.image[..., 0] > 127, moved.masks[0])
    np.testing.assert_array_equal(moved.semantic == 1, moved.masks[0])
    assert (moved.semantic[0] == 255).all()
    # A quarter turn about the centre is exact, with the corners' boxes too.
    quarter = np.array([[0.0, -1, 20], [1, 0, 0]])
    for each in (sample, replace(sample, masks=None)):
        turned = warp(each, quarter, (20, 20))
        assert turned.boxes.tolist() == [[10, 4, 15, 8]]
        np.testing.assert_array_equal(turned.image, np.rot90(image, -1))


def test_resizing_keeps_edges_where_the_boxes_say():
    image = np.zeros((20, 30, 3), np.uint8)
    image[4:12, 9:18] = 255
    mask = image[..., 0] > 0
    sample = Sample(
        image, [[9, 4, 18, 12]], masks=mask[None], keypoints=np.float32([[[9, 4, 2]]]), semantic=mask.astype(np.int32)
    )
    for size in ((40, 60), (10, 10), (5, 10)):
        small = Resize(size, antialias=True)(sample, np.random.default_rng(0))
        np.testing.assert_array_equal(small.boxes, mask_boxes(small.masks))
        np.testing.assert_array_equal(small.boxes[0, :2], small.keypoints[0, 0, :2])
        np.testing.assert_array_equal(small.semantic == 1, small.masks[0])
        np.testing.assert_array_equal(small.image[..., 0] > 127, small.masks[0])


def test_sizes():
    rng = np.random.default_rng(0)

    def size(transform, height, width):
        return transform(Sample(np.zeros((height, width, 3), np.uint8)), rng).size

    assert size(ResizeShortSide((320,), 640), 100, 150) == (320, 480)
    assert size(ResizeShortSide((320,), 640), 100, 400) == (160, 640)
    assert {size(ResizeShortSide((10, 20), 90), 50, 50)[0] for _ in range(20)} == {10, 20}
    assert size(ResizeLongSide(320), 640, 427) == (320, 213)
    assert size(Pad(divisor=32), 33, 64) == (64, 64)
    assert size(Pad((100, 10)), 33, 64) == (100, 64)
    assert size(Crop((20, 100)), 30, 40) == (20, 40)
    assert size(ScaleJitter((33, 44)), 30, 40) == (33, 44)
    assert size(ZoomOut((2, 2)), 30, 40) == (60, 80)


def test_objects_cut_too_far_are_dropped_and_cut_boxes_follow_the_mask():
    masks = np.zeros((3, 20, 40), bool)
    masks[0, 5:15, 19:39] = True  # a twentieth of it lies in the left half
    masks[1, 0:5, 10:30] = True  # half of it: a bar above, and a block below that is cut away
    masks[1, 5:10, 25:30] = True
    masks[2, 15:18, 2:8] = True
    sample = Sample(
        np.zeros((20, 40, 3), np.uint8),
        mask_boxes(masks),
        [0, 1, 2],
        masks=masks,
        keypoints=np.float32([[[30, 5, 2], [19.5, 5, 2]]] * 3),
    )
    left = Crop((20, 20))
    for each in (sample, replace(sample, masks=None)):
        cropped = next(
            result
            for seed in range(200)
            if (result := left(each, np.random.default_rng(seed))).keypoints[-1].tolist() == [[0, 0, 0], [19.5, 5, 2]]
        )
        assert cropped.labels.tolist() == [1, 2]
        assert cropped.boxes.tolist() == [[10, 0, 20, 5 if each.masks is not None else 10], [2, 15, 8, 18]]


def test_iou_crop_keeps_its_promise():
    sample = make_sample(3, 4, (90, 120), masks=False)
    kinds = set()
    for seed in range(60):
        rng = np.random.default_rng(seed)
        cropped = IoUCrop(min_ious=(0.7,))(sample, rng)
        if cropped is sample:
            kinds.add("whole")
            continue
        kinds.add("cut")
        height, width = cropped.size
        assert 0.5 <= width / height <= 2
        areas = (cropped.boxes[:, 2] - cropped.boxes[:, 0]) * (cropped.boxes[:, 3] - cropped.boxes[:, 1])
        assert (areas / (height * width)).max() >= 0.69
    assert kinds <= {"whole", "cut"}
    assert "whole" in kinds
    kept = [len(IoUCrop(min_ious=(0.0,))(sample, np.random.default_rng(s))) for s in range(60)]
    assert 1 <= min(kept) < max(kept) == 4


def test_area_crops_have_the_area_and_shape_asked_for():
    sample = make_sample(0, size=(300, 400))
    for seed in range(40):
        h, w = AreaCrop((0.2, 0.5), (0.5, 2))(sample, np.random.default_rng(seed)).size
        assert 0.195 <= h * w / 120_000 <= 0.505
        assert 0.49 <= w / h <= 2.04
    assert AreaCrop((0.9, 1), (3, 4))(sample, np.random.default_rng(0)).size == (300, 400)  # no such part fits


def test_mosaic_shows_four_pictures_with_their_objects():
    colours = iter([(0, 255, 0), (0, 0, 255), (255, 255, 0)])

    def plain(colour):
        image = np.full((40, 40, 3), colour, np.uint8)
        mask = np.zeros((1, 40, 40), bool)
        mask[0, 10:30, 10:30] = True
        image[mask[0]] //= 2
        return Sample(image, [[10, 10, 30, 30]], [7], masks=mask, semantic=mask[0].astype(np.uint8), label=1)

    mosaic = Mosaic((80, 80))(plain((255, 0, 0)), np.random.default_rng(2), lambda: plain(next(colours)))
    assert len(mosaic) == 4
    assert mosaic.labels.tolist() == [7] * 4
    assert mosaic.label is None
    # Each mask lies on the darkened patch of another colour, and the label map marks the same pixels.
    seen = {tuple(int(v) for v in np.unique(mosaic.image[mask], axis=0)[0]) for mask in mosaic.masks}
    assert seen == {(127, 0, 0), (0, 127, 0), (0, 0, 127), (127, 127, 0)}
    np.testing.assert_array_equal(mosaic.semantic == 1, mosaic.masks.any(axis=0))
    assert ((mosaic.semantic == 255) == (mosaic.image == 114).all(axis=2)).all()


def test_mixup_blends_and_keeps_both_pictures_objects():
    sample, other = make_sample(1, 2), make_sample(2, 3)
    mixed = MixUp(scale=(1, 1))(sample, np.random.default_rng(0), lambda: other)
    assert len(mixed) == 5
    assert_same(replace(mixed.select(np.arange(2)), image=sample.image, semantic=sample.semantic), sample)
    assert (mixed.semantic == 255).all()
    alone = MixUp(scale=(1, 1), weight=0)(sample, np.random.default_rng(0), lambda: other)
    flipped = HorizontalFlip(1)(other, np.random.default_rng(0))
    assert any(np.array_equal(alone.image, each.image) for each in (other, flipped))


def test_copy_paste_covers_what_lies_below():
    base = np.zeros((1, 20, 30), bool)
    base[0, 5:15, 5:15] = True
    new = np.zeros((1, 20, 30), bool)
    new[0, 5:15, 12:20] = True
    points = np.float32([[[13, 8, 2], [6, 8, 2]]])
    white = np.full((20, 30, 3), 255, np.uint8)

    def take(base_mask, new_mask):
        below = Sample(np.zeros_like(white), mask_boxes(base_mask), [0], masks=base_mask, keypoints=points,
                       semantic=base_mask[0].astype(np.uint8))  # fmt: skip
        above = Sample(white, mask_boxes(new_mask), [1], masks=new_mask, keypoints=points,
                       semantic=2 * new_mask[0].astype(np.uint8))  # fmt: skip
        results = (CopyPaste((1, 1))(below, np.random.default_rng(s), lambda: above) for s in range(100))
        return next(r for r in results if 1 in r.labels and (r.masks[-1] == new_mask[0]).all())

    pasted = take(base, new)
    assert pasted.labels.tolist() == [0, 1]
    assert pasted.boxes.tolist() == [[5, 5, 12, 15], [12, 5, 20, 15]]
    assert not (pasted.masks[0] & pasted.masks[1]).any()
    np.testing.assert_array_equal(pasted.image[..., 0] == 255, new[0])
    np.testing.assert_array_equal(pasted.semantic, np.where(new[0], 2, base[0]))
    assert pasted.keypoints[0, :, 2].tolist() == [1, 2]
    hidden = new | base
    assert take(base, hidden).labels.tolist() == [1]


def test_mixing_needs_further_samples_and_copy_paste_masks():
    sample, rng = make_sample(4), np.random.default_rng(0)
    for transform in (Mosaic((20, 20)), MixUp(), CopyPaste()):
        with pytest.raises(ValueError, match=f"{type(transform).__name__} mixes samples"):
            transform(sample, rng)
    with pytest.raises(ValueError, match="expected objects with masks, got none in made 4"):
        CopyPaste()(replace(sample, masks=None), rng, drawing(9))


def test_cutout_drops_hidden_objects_and_marks_hidden_keypoints():
    sample = Sample(
        np.zeros((40, 40, 3), np.uint8),
        [[0, 0, 40, 40], [18, 18, 22, 22]],
        [0, 1],
        keypoints=np.float32([[[20, 20, 2]]] * 2),
    )
    results = [Cutout(1, (0.5, 0.5))(sample, np.random.default_rng(s)) for s in range(50)]
    dropped = [r for r in results if r.labels.tolist() == [0]]
    assert dropped
    assert {int(r.keypoints[0, 0, 2]) for r in dropped} == {1}
    assert any(r.keypoints[0, 0, 2] == 2 for r in results)
    assert all((r.image[r.image.any(axis=2)] == 114).all() for r in results)


def test_flip_exchanges_coco_keypoints():
    points = np.zeros((1, 17, 3), np.float32)
    points[0, :, 0], points[0, :, 2] = np.arange(17), 2
    sample = Sample(np.zeros((20, 20, 3), np.uint8), [[0, 0, 18, 18]], keypoints=points)
    flipped = HorizontalFlip(1, COCO_KEYPOINT_PAIRS)(sample, np.random.default_rng(0)).keypoints[0, :, 0]
    assert flipped[:5].tolist() == [20, 18, 19, 16, 17]
    assert flipped[16] == 20 - 15


def test_colour_transforms_change_every_kind_of_colour():
    sample = make_sample(0, size=(64, 64))
    for name in PIXELS_ONLY:
        results = [EVERY[name](sample, np.random.default_rng(s)).image.astype(int) for s in range(20)]
        assert len({r.tobytes() for r in results}) > 10
        change = np.mean([np.abs(r - sample.image).mean() for r in results])
        assert 0.2 < change < 40
    grey = Sample(np.full((8, 8, 3), 100, np.uint8))
    lifted = HSVJitter(0, 0, 30)(grey, np.random.default_rng(1)).image
    assert (lifted == lifted[0, 0, 0]).all()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: HorizontalFlip(1.5), "HorizontalFlip: expected a probability"),
        (lambda: RandomApply(Blur(), -1), "RandomApply: expected a probability"),
        (lambda: Resize((0, 5)), "Resize: expected size"),
        (lambda: ScaleJitter((5, 5), (2, 1)), r"ScaleJitter: expected scale as \(low, high\).*got \(2, 1\)"),
        (lambda: ZoomOut((0.5, 2)), "ZoomOut: expected side"),
        (lambda: IoUCrop(scale=(0.3, 1.2)), "IoUCrop: expected scale of at most 1"),
        (lambda: AreaCrop((0.3, 1.2)), "AreaCrop: expected an area of at most 1"),
        (lambda: AreaCrop((0, 1)), "AreaCrop: expected area"),
        (lambda: JPEGNoise((50, 101)), "JPEGNoise"),
        (lambda: ResizeShortSide((900,), 800), "ResizeShortSide"),
        (lambda: RandomAffine(shear=90), "RandomAffine"),
        (lambda: HSVJitter(-1), "HSVJitter"),
        (lambda: PhotometricDistort(-1), "PhotometricDistort"),
        (lambda: MixUp(weight=2), "MixUp: expected weight"),
        (lambda: Cutout(-1), "Cutout: expected holes"),
        (lambda: Pad(divisor=0), "Pad: expected divisor"),
    ],
)
def test_bad_parameters_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_contact_sheet_of_a_real_photo(shared, tmp_path):
    photo = sorted((shared / "data/coco128/images").rglob("*.jpg"))[0]
    image = cv2.cvtColor(cv2.imread(str(photo)), cv2.COLOR_BGR2RGB)
    made = make_sample(0, 3, image.shape[:2])
    sample = replace(made, image=image)
    contact_sheet(sample, EVERY, tmp_path / "sheet.png", drawing(3))
    sheet = cv2.imread(str(tmp_path / "sheet.png"))
    rows = -(-len(EVERY) // 4)
    assert sheet.shape == (rows * 348, 4 * 326, 3)
    assert [p.name for p in tmp_path.iterdir()] == ["sheet.png"]
    # Every tile holds a picture.
    for i in range(len(EVERY)):
        tile = sheet[i // 4 * 348 + 22 : i // 4 * 348 + 180, i % 4 * 326 : i % 4 * 326 + 120]
        assert tile.std() > 5 or "jitter" in list(EVERY)[i]
