import numpy as np
import pytest
from chainsight.vision import draw
from chainsight.vision.draw import class_colour, draw_detections, draw_segmentation, text_colour
from chainsight.vision.image import read_image
from chainsight.vision.masks import InstanceMasks
from chainsight.vision.results import Detections

NAMES = ("person", "bicycle", "a category with quite a long name")


def found(boxes, size, labels=None, **fields):
    n = len(boxes)
    labels = np.arange(n) % 3 if labels is None else labels
    return Detections(boxes, np.linspace(0.9, 0.5, n), labels, NAMES, size, **fields)


def luminance(colour):
    values = np.array(colour) / 255
    linear = np.where(values > 0.04045, ((values + 0.055) / 1.055) ** 2.4, values / 12.92)
    return linear @ [0.2126, 0.7152, 0.0722]


def test_colours_are_stable_and_distinct():
    colours = np.array([class_colour(k) for k in range(100)])
    assert class_colour(0) == (255, 51, 75)
    assert len(np.unique(colours, axis=0)) == 100
    apart = np.linalg.norm(colours[:20, None] - colours[:20].astype(float), axis=2) + 1000 * np.eye(20)
    assert apart.min() > 60
    assert min(max(colour) for colour in colours) > 170


@pytest.mark.parametrize("label", range(100))
def test_text_is_readable_on_every_class(label):
    background, text = class_colour(label), text_colour(class_colour(label))
    light, dark = sorted((luminance(background), luminance(text)), reverse=True)
    assert (light + 0.05) / (dark + 0.05) >= 4.5  # WCAG 2.1, level AA


@pytest.mark.parametrize("size", [(1, 1), (1, 400), (400, 1), (7, 5), (48, 64), (480, 640), (300, 12_000)])
def test_any_image_size(size):
    height, width = size
    image = np.full((height, width, 3), 90, np.uint8)
    boxes = [[0, 0, width, height], [width / 4, height / 4, width / 2, height / 2], [-50, -9, width + 99, height / 3]]
    boxes += [[width, height, width + 5, height + 5], [width / 2, height / 2, width / 2, height / 2]]
    keypoints = np.tile(np.array([[width / 2, height / 2, 1], [-1e9, 1e9, 1]], np.float32), (5, 1, 1))
    masks = InstanceMasks(np.ones((5, 28, 28)), np.array(boxes), size)
    drawn = draw_detections(image, found(boxes, size, masks=masks, keypoints=keypoints), skeleton=[(0, 1)])
    assert drawn.shape == image.shape
    assert drawn.dtype == np.uint8
    assert (drawn != image).any()
    assert (image == 90).all()


def test_line_and_letters_follow_the_image_size():
    widths, heights = zip(*(draw._sizes(int(side * 0.75), side, 1) for side in (32, 640, 4000, 12_000)))
    assert list(widths) == sorted(widths)
    assert list(heights) == sorted(heights)
    assert (widths[0], heights[0]) == (1, 10)
    assert widths[3] > 20
    assert heights[3] > 200
    assert draw._sizes(480, 640, 50)[1] < draw._sizes(480, 640, 5)[1]


def test_an_edge_box_keeps_its_whole_line():
    image = np.zeros((200, 300, 3), np.uint8)
    drawn = draw_detections(image, found([[0, 0, 300, 200]], (200, 300), labels=[1]))
    line = draw._sizes(200, 300, 1)[0]
    for side in (drawn[:line, 150], drawn[-line:, 150], drawn[100, :line], drawn[100, -line:]):
        assert (side == class_colour(1)).all()


def test_labels_stay_inside_and_do_not_cover_one_another():
    rng = np.random.default_rng(0)
    height, width = 480, 640
    low = rng.random((12, 2)) * [600, 440]
    boxes = np.concatenate([low, low + rng.random((12, 2)) * 120], 1)
    boxes[:3] = [600, 0, 639, 30]  # Three at the same place in a corner.
    taken = []
    for box in boxes:
        rect = draw._place(box, (90, 18), taken, width, height, 2)
        assert 0 <= rect[0] <= rect[2] <= width
        assert 0 <= rect[1] <= rect[3] <= height
        assert (rect[2] - rect[0], rect[3] - rect[1]) == (90, 18)
        assert all(draw._overlap(rect, other) == 0 for other in taken)
        taken.append(rect)


def test_a_label_sits_on_top_of_its_box_where_there_is_room():
    assert draw._place(np.array([100, 100, 300, 300]), (80, 18), [], 640, 480, 2) == (99, 81, 179, 99)
    assert draw._place(np.array([100, 0, 300, 300]), (80, 18), [], 640, 480, 2)[1] == 2


def test_a_name_too_wide_for_the_image_is_left_out():
    image = np.zeros((40, 40, 3), np.uint8)
    drawn = draw_detections(image, found([[10, 25, 30, 35]], (40, 40), labels=[2]))
    assert (drawn[:20] == 0).all()
    assert (drawn[20:] != 0).any()


def test_masks_are_translucent_and_only_where_the_object_is():
    image = np.full((100, 100, 3), 100, np.uint8)
    crop = np.zeros((1, 28, 28), np.float32)
    crop[:, :, :14] = 1
    detections = found([[20, 20, 80, 80]], (100, 100), labels=[0])
    detections.masks = InstanceMasks(crop, detections.boxes, (100, 100))
    drawn = draw_detections(image, detections, mask_opacity=0.5)
    expected = np.round(0.5 * np.array(class_colour(0)) + 50)
    assert np.abs(drawn[50, 35] - expected).max() <= 1
    assert (drawn[50, 65] == 100).all()
    assert (drawn[5, 90] == 100).all()


def test_keypoints_and_skeleton():
    image = np.zeros((600, 600, 3), np.uint8)
    points = np.zeros((1, 17, 3), np.float32)
    points[0, 5] = 120, 300, 1
    points[0, 6] = 480, 300, 1
    points[0, 7] = 300, 540, 0  # Not visible: no dot and no joint.
    detections = found([[30, 30, 570, 570]], (600, 600), labels=[0], keypoints=points)
    drawn = draw_detections(image, detections)
    assert (drawn[300, 300] == class_colour(0)).all()
    assert (drawn[300, 120] == class_colour(0)).all()
    assert (drawn[480:552, 240:360] == 0).all()
    assert (draw_detections(image, detections, skeleton=[])[300, 300] == 0).all()


def test_scores_can_be_left_out_and_fonts_exchanged(tmp_path):
    image = np.zeros((200, 300, 3), np.uint8)
    detections = found([[50, 80, 250, 180]], (200, 300), labels=[0])
    with_score, without = draw_detections(image, detections), draw_detections(image, detections, scores=False)
    assert (with_score != without).any()
    with pytest.raises(OSError, match="cannot open resource"):
        draw_detections(image, detections, font=str(tmp_path / "none.ttf"))


def test_wrong_image_size():
    with pytest.raises(ValueError, match=r"expected an image of size \(20, 30\), got \(30, 20\)"):
        draw_detections(np.zeros((30, 20, 3), np.uint8), found([[0, 0, 1, 1]], (20, 30)))
    with pytest.raises(ValueError, match=r"expected a label map of the image's size \(30, 20\), got \(20, 30\)"):
        draw_segmentation(np.zeros((30, 20, 3), np.uint8), np.zeros((20, 30), int), NAMES)


def test_segmentation_overlay():
    image = np.full((120, 200, 3), 100, np.uint8)
    labels = np.zeros((120, 200), np.int64)
    labels[:, 100:] = 1
    labels[:, 190:] = 255
    labels[:5, :10] = -1
    drawn = draw_segmentation(image, labels, ("__background__", "cat"), opacity=0.5)
    assert (drawn[60:, :99] == 100).all()
    assert (drawn[:6, :12] == 100).all()
    assert (drawn[:, 192:] == 100).all()
    assert np.abs(drawn[110, 150] - np.round(0.5 * np.array(class_colour(1)) + 50)).max() <= 1
    assert (drawn[60:, 100] == 255).all()
    # The name stands in the middle of the region.
    plate = np.abs(drawn[25:95, 130:160].astype(int) - class_colour(1)).max(2) < 20
    assert plate.mean() > 0.05


@pytest.mark.parametrize("size", [(1, 1), (3, 200), (900, 1200)])
def test_segmentation_of_any_size(size):
    drawn = draw_segmentation(np.zeros((*size, 3), np.uint8), np.ones(size, np.uint8), NAMES)
    assert drawn.shape == (*size, 3)
    assert drawn.any()


def test_a_real_crowd_is_drawn_quickly_enough_and_changes_the_photo(shared):
    image = read_image(shared / "data/coco128/images/val/000000009590.jpg")
    rng = np.random.default_rng(0)
    low = rng.random((300, 2)) * [560, 360]
    detections = found(np.concatenate([low, low + rng.random((300, 2)) * 70], 1), image.shape[:2])
    drawn = draw_detections(image, detections)
    assert (drawn != image).any(2).mean() > 0.3
