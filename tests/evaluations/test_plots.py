import numpy as np
from chainsight.evaluations.metrics import BoxesFound, BoxTruth, box_metrics, confusion_matrix, score_curves
from chainsight.evaluations.plots import COLOURS, INK, Line, confusion_plot, f1_plot, line_plot, precision_recall_plot


def images(classes):
    rng = np.random.default_rng(0)
    truths, found = [], []
    for _ in range(15):
        corner = rng.uniform(0, 200, (classes, 2))
        boxes = np.concatenate([corner, corner + 20], 1)
        truths.append(BoxTruth(boxes, np.arange(classes)))
        found.append(BoxesFound(boxes + rng.normal(0, 2, (classes, 1)), rng.random(classes), np.arange(classes)))
    return truths, found, [f"class {k}" for k in range(classes)]


def share_of(picture, colour):
    rgb = [int(colour[i : i + 2], 16) for i in (1, 3, 5)]
    return (np.abs(np.asarray(picture, int) - rgb).sum(2) < 12).mean()


def test_a_line_is_where_its_values_are():
    half = Line(np.array([0.0, 1.0]), np.array([0.5, 0.5]), "half", "#FF0000", 3)
    picture = np.asarray(line_plot([half], "title", ("x", "y")), int)
    red = np.argwhere(np.abs(picture - [255, 0, 0]).sum(2) < 12)
    inside = red[(red[:, 1] > 70) & (red[:, 1] < 530)]
    assert inside[:, 0].min() >= 235
    assert inside[:, 0].max() <= 241  # 48 + 380 / 2
    assert len(red) > len(inside)  # the legend


def test_few_classes_have_their_own_colours():
    truths, found, names = images(3)
    for plot in (
        precision_recall_plot(box_metrics(truths, found, names)),
        f1_plot(score_curves(truths, found, names)),
    ):
        assert all(share_of(plot, colour) > 0.00005 for colour in (*COLOURS[:3], INK))
        assert share_of(plot, COLOURS[3]) == 0


def test_many_classes_are_grey():
    truths, found, names = images(40)
    plot = precision_recall_plot(box_metrics(truths, found, names))
    assert share_of(plot, COLOURS[0]) == 0
    assert share_of(plot, INK) > 0.001
    assert plot.height < 600


def test_confusion_shows_the_diagonal_and_leaves_unused_classes_out():
    truths, found, names = images(4)
    counts = confusion_matrix(truths, found, 6, score_threshold=0)
    small = confusion_plot(counts, [*names, "unused", "unused too"])
    large = confusion_plot(confusion_matrix(*images(60)[:2], 60), images(60)[2])
    assert small.width < large.width
    assert share_of(small, "#005494") > 0.01
    assert large.width < 1400


def test_nothing_to_show_is_still_a_picture():
    nothing = [BoxTruth([], [])], [BoxesFound([], [], [])], ["a"]
    assert precision_recall_plot(box_metrics(*nothing)).size[0] > 300
    assert f1_plot(score_curves(*nothing)).size[0] > 300
    assert confusion_plot(confusion_matrix(*nothing[:2], 1), ["a"]).size[0] > 100
