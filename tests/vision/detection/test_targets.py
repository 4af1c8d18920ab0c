"""Matching, sampling and ignored regions, on cases worked out by hand."""

import numpy as np
import pytest
from chainsight.vision.detection.targets import (
    BACKGROUND,
    NEITHER,
    Truth,
    adaptive_match,
    hardest,
    match,
    match_and_claim_best,
    match_and_claim_in_turn,
    match_and_claim_ties,
    sample_balanced,
)

NONE = np.zeros((0, 4), np.float32)


def truth(boxes, ignored=NONE):
    boxes = np.array(boxes, np.float32).reshape(-1, 4)
    return Truth(boxes, np.arange(len(boxes)), np.array(ignored, np.float32).reshape(-1, 4))


ANCHORS = np.array([[0, 0, 10, 10], [0, 0, 10, 5], [0, 0, 10, 2], [50, 50, 60, 60]], np.float32)


def test_thresholds():
    assert match(ANCHORS, truth([[0, 0, 10, 10]]), 0.7, 0.3).tolist() == [0, NEITHER, BACKGROUND, BACKGROUND]
    assert match(ANCHORS, truth([[0, 0, 10, 10]]), 0.5, 0.5).tolist() == [0, 0, BACKGROUND, BACKGROUND]
    assert match(ANCHORS, truth([]), 0.7, 0.3).tolist() == [BACKGROUND] * 4


def test_ties_for_the_best_overlap_are_all_claimed():
    anchors = np.array([[0, 0, 4, 4], [4, 0, 8, 4], [0, 8, 4, 12]], np.float32)
    assert match_and_claim_ties(anchors, truth([[2, 0, 6, 4]]), 0.7, 0.3).tolist() == [0, 0, BACKGROUND]


def test_an_object_far_from_all_anchors_claims_none():
    assert match_and_claim_ties(ANCHORS, truth([[200, 200, 210, 210]]), 0.7, 0.3).tolist() == [BACKGROUND] * 4


def test_every_object_claims_its_best_anchor():
    objects = truth([[0, 0, 10, 10], [50, 50, 90, 90]])
    assert match_and_claim_best(ANCHORS, objects, 0.5).tolist() == [0, 0, BACKGROUND, 1]


def test_objects_claim_anchors_in_turn():
    objects = truth([[0, 0, 10, 9], [0, 0, 10, 10], [50, 50, 60, 60], [80, 80, 90, 90]])
    # The second fits the first anchor best of all; the first one is left the next, the last overlaps none.
    assert match_and_claim_in_turn(ANCHORS, objects, 0.5).tolist() == [1, 0, BACKGROUND, 2]
    assert match_and_claim_in_turn(ANCHORS[:1], objects, 0.5).tolist() == [1]
    assert match_and_claim_in_turn(ANCHORS, truth([]), 0.5).tolist() == [BACKGROUND] * 4


def test_ignored_regions_take_background_but_no_object():
    objects = truth([[0, 0, 10, 10]], ignored=[[0, 0, 10, 10], [50, 50, 60, 54]])
    assert match(ANCHORS, objects, 0.7, 0.3).tolist() == [0, NEITHER, NEITHER, BACKGROUND]  # 40 % is too little
    only_crowd = truth([], ignored=[[0, 0, 10, 10]])
    for found in (
        match(ANCHORS, only_crowd, 0.7, 0.3),
        match_and_claim_best(ANCHORS, only_crowd, 0.5),
        match_and_claim_in_turn(ANCHORS, only_crowd, 0.5),
        match_and_claim_ties(ANCHORS, only_crowd, 0.7, 0.3),
        adaptive_match([ANCHORS], only_crowd, 9),
    ):
        assert found.tolist() == [NEITHER, NEITHER, NEITHER, BACKGROUND]


def test_atss_takes_centred_candidates_above_mean_plus_deviation():
    y, x = np.mgrid[0:4, 0:4] * 8.0 + 4
    fine = np.stack([x - 8, y - 8, x + 8, y + 8], -1).reshape(-1, 4).astype(np.float32)
    coarse = np.array([[-8, -8, 40, 40]], np.float32)
    matches = adaptive_match([fine, coarse], truth([[4, 4, 20, 20]]), 4)
    assert np.flatnonzero(matches == 0).tolist() == [5]
    assert (np.delete(matches, 5) == BACKGROUND).all()


@pytest.mark.parametrize("count", [0, 1, 7, 100])
def test_balanced_samples(count):
    matches = np.array([0, 1, 2, 3, NEITHER] + [BACKGROUND] * 20)
    objects, background = sample_balanced(matches, count, 0.25, np.random.default_rng(0))
    assert len(objects) == min(int(count * 0.25), 4)
    assert len(background) == min(count - len(objects), 20)
    assert set(objects) <= {0, 1, 2, 3}
    assert not set(background) & set(range(5))


def test_hardest_prefers_great_losses_then_low_indices():
    assert hardest(np.array([1.0, 5.0, 5.0, 9.0]), np.array([True, True, True, False]), 2).tolist() == [1, 2]
    assert hardest(np.array([1.0]), np.array([True]), 0).tolist() == []
