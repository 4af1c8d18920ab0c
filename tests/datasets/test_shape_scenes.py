"""ShapeScenes: exact annotations, the same for everyone, and fast enough to train on."""

import time

import cv2
import numpy as np
import pytest
from chainsight.datasets.dataset import SEMANTIC, Dataset
from chainsight.datasets.shape_scenes import SHAPES, ShapeScenes


@pytest.fixture(scope="module")
def samples():
    scenes = ShapeScenes(40, size=160, seed=3, background=True)
    return [scenes[i] for i in range(40)]


def test_it_is_a_data_set():
    scenes = ShapeScenes(5, size=(64, 96))
    assert isinstance(scenes, Dataset)
    assert len(scenes) == 5
    assert scenes.categories == SHAPES
    assert scenes.category_ids == (1, 2, 3, 4, 5, 6, 7, 8)
    assert [s.size for s in scenes] == [(64, 96)] * 5
    assert scenes[-1].image_id == 4
    assert scenes[1:3][1].image_id == 2
    assert scenes.histogram().sum() == sum(map(len, scenes))
    assert scenes[4].source == "ShapeScenes(5, size=(64, 96), seed=0)[4]"
    with pytest.raises(IndexError):
        scenes[5]


def test_boxes_are_those_of_the_masks_and_masks_do_not_overlap(samples):
    for sample in samples:
        assert 1 <= len(sample) <= 8
        assert sample.masks.sum(axis=0).max() == 1
        for box, mask in zip(sample.boxes, sample.masks):
            y, x = np.nonzero(mask)
            assert box.tolist() == [x.min(), y.min(), x.max() + 1, y.max() + 1]
    assert len({len(s) for s in samples}) > 4


def test_the_label_map_is_the_masks_with_their_labels(samples):
    plain = ShapeScenes(40, size=160, seed=3)
    for i, sample in enumerate(samples):
        expected = np.zeros((160, 160), np.uint8)
        for label, mask in zip(sample.labels, sample.masks):
            expected[mask] = label
        np.testing.assert_array_equal(sample.semantic, expected)
        assert sample.labels.min() >= 1
        if i < 5:
            np.testing.assert_array_equal(plain[i].semantic, np.where(expected == 0, 255, expected - 1))
            np.testing.assert_array_equal(plain[i].labels, sample.labels - 1)
            np.testing.assert_array_equal(plain[i].image, sample.image)
    assert {int(label) for s in samples for label in s.labels} == set(range(1, 9))


def test_background_is_a_class_of_its_own_and_ids_stay():
    scenes, plain = ShapeScenes(1, background=True), ShapeScenes(1)
    assert scenes.categories == ("background", *SHAPES)
    assert scenes.category_ids == (0, *plain.category_ids)
    assert SEMANTIC in scenes.tasks
    assert SEMANTIC not in plain.tasks


def test_keypoints_lie_on_their_shape(samples):
    kinds = set()
    for sample in samples:
        # Within two pixels: the sharp tip of a star covers no pixel by half.
        covered = np.cumsum(sample.masks[::-1], axis=0)[::-1] > 0  # by this shape or one in front of it
        for i, (box, points) in enumerate(zip(sample.boxes, sample.keypoints)):
            for name, (x, y, visibility) in zip(ShapeScenes.keypoint_names, points):
                kinds.add(visibility)
                if visibility == 0:
                    assert (x, y) == (0, 0)
                    continue
                assert 0 <= x < 160
                assert 0 <= y < 160
                near = covered[i, max(int(y) - 2, 0) : int(y) + 3, max(int(x) - 2, 0) : int(x) + 3]
                own = sample.masks[i, max(int(y) - 2, 0) : int(y) + 3, max(int(x) - 2, 0) : int(x) + 3]
                hole = SHAPES[sample.labels[i] - 1] == "ring" and name == "centre"
                if not hole:
                    assert (own if visibility == 2 else near).any()
                if visibility == 2:
                    assert (np.array([x, y]) >= box[:2] - 2).all()
                    assert (np.array([x, y]) <= box[2:] + 2).all()
            if (points[:, 2] > 0).all():
                assert points[1, 1] < points[3, 1]  # top above bottom
                assert points[4, 0] < points[2, 0]  # left of right
    assert kinds == {0, 1, 2}


def test_annotations_are_those_of_the_sample_without_drawing_it(samples):
    scenes = ShapeScenes(40, size=160, seed=3, background=True)
    for i in range(10):
        found, sample = scenes.annotations(i), samples[i]
        np.testing.assert_array_equal(found.boxes, sample.boxes)
        np.testing.assert_array_equal(found.labels, sample.labels)
        np.testing.assert_array_equal(found.keypoints, sample.keypoints)
        np.testing.assert_array_equal(found.areas, sample.masks.sum(axis=(1, 2)))
        assert found.size == sample.size
        assert found.image_id == sample.image_id == i


def test_a_scene_depends_on_seed_and_index_alone(samples):
    again = ShapeScenes(10_000, size=160, seed=3, background=True)[7]
    np.testing.assert_array_equal(again.image, samples[7].image)
    np.testing.assert_array_equal(again.masks, samples[7].masks)
    assert not np.array_equal(samples[7].image, samples[8].image)
    other = ShapeScenes(1, size=160, seed=4)[0]
    assert not np.array_equal(other.image, samples[0].image)


def test_objects_of_all_sizes_stay_visible(samples):
    areas = np.concatenate([s.masks.sum(axis=(1, 2)) for s in samples])
    assert areas.min() > 10
    sides = np.concatenate([(s.boxes[:, 2:] - s.boxes[:, :2]).max(axis=1) for s in samples]) / 160
    assert sides.min() < 0.12
    assert sides.max() > 0.35
    assert sides.max() <= 0.46


def test_pictures_are_varied_and_show_the_objects(samples):
    means = [s.image.mean() for s in samples]
    assert np.std(means) > 10
    contrasts = []
    for sample in samples:
        for mask in sample.masks:
            around = cv2.dilate(mask.view(np.uint8), np.ones((9, 9))).astype(bool) & (sample.semantic == 0)
            if around.sum() > 20:
                contrasts.append(np.abs(sample.image[mask].mean(axis=0) - sample.image[around].mean(axis=0)).max())
    assert np.median(contrasts) > 30
    assert np.mean(np.array(contrasts) < 5) < 0.05


def test_edges_are_smooth():
    """Along a shape's border there are pixels between its colour and the background's, not only the two."""
    from chainsight.datasets import shape_scenes

    shape, area = shape_scenes._place((600, 600), np.random.default_rng(2))
    grey = np.count_nonzero((shape.coverage > 0) & (shape.coverage < 255))
    assert grey > 2 * shape.radius
    assert area == pytest.approx(shape.coverage.astype(float).sum() / 255, rel=0.01)


@pytest.mark.parametrize(("label", "area"), [("circle", np.pi), ("square", 1.7**2), ("ring", np.pi * (1 - 0.55**2))])
def test_areas_are_those_of_geometry(label, area):
    found = []
    scenes = ShapeScenes(150, size=200)
    for i in range(150):
        sample = scenes.annotations(i)
        for box, points, own, kind in zip(sample.boxes, sample.keypoints, sample.areas, sample.labels):
            whole = (points[:, 2] == 2).all() and box.min() > 0 and box.max() < 200
            if SHAPES[kind] == label and whole and sample.boxes.shape[0] == 1:
                radius = np.hypot(*(points[2, :2] - points[4, :2])) / 2
                found.append(own / (radius / (0.85 if label == "square" else 1)) ** 2)
    assert found
    np.testing.assert_allclose(found, area, rtol=0.015)


def test_the_same_pictures_on_every_machine():
    """Annotations to the number; of the picture, whose last bits may differ with the OpenCV build, the means."""
    scene = ShapeScenes(3, size=96, seed=11)[2]
    assert scene.labels.tolist() == LABELS
    assert scene.boxes.tolist() == BOXES
    thumbnail = scene.image.reshape(4, 24, 4, 24, 3).mean(axis=(1, 3, 4))
    np.testing.assert_allclose(thumbnail, THUMBNAIL, atol=0.5)


@pytest.mark.parametrize(("n", "size", "seed"), [(-1, 64, 0), (3, 20, 0), (3, (64, 31), 0), (3, 64, -2)])
def test_bad_arguments(n, size, seed):
    with pytest.raises(ValueError, match="ShapeScenes: expected n >= 0"):
        ShapeScenes(n, size, seed)


def test_a_scene_costs_little():
    """The bound is generous, for busy machines; a quiet core draws over a hundred a second."""
    scenes = ShapeScenes(20)
    scenes[0]
    start = time.process_time()
    for i in range(20):
        scenes[i]
    assert (time.process_time() - start) / 20 < 0.03


LABELS = [2, 4, 6]
BOXES = [[18, 86, 25, 94], [65, 9, 81, 25], [34, 78, 48, 90]]
THUMBNAIL = [
    [154.1, 134.9, 104.6, 105.1],
    [130.8, 124.9, 132.3, 132.7],
    [135.1, 119.2, 119.4, 122.4],
    [136.6, 152.3, 145.5, 131.8],
]
