"""The first stage of a detector runs from a plan and gives what its modules give."""

import numpy as np
import pytest
from chainsight.core import kernels, no_grad
from chainsight.core import plan as plans
from chainsight.vision.categories import Categories
from chainsight.vision.detection import faster_rcnn
from chainsight.vision.detection.resizing import ShortSideResize

pytestmark = pytest.mark.skipif(kernels.backend_name() != "onednn", reason="plans are made of oneDNN's kernel calls")


@pytest.fixture(scope="module")
def model():
    found = faster_rcnn.fasterrcnn_mobilenet_v3_large_320_fpn(Categories.with_background(["boat", "car"]))
    found.resize, found.rpn.score_threshold = ShortSideResize(64, 128), 0.0
    return found.eval()


def photo(seed, height=60):
    return np.random.default_rng(seed).integers(0, 256, (height, 80, 3), np.uint8)


def check(model, image, monkeypatch):
    """The features of a photo, and its proposals, from a plan if there is one."""
    with no_grad():
        got = model.propose(image)
        with monkeypatch.context() as eager:
            eager.setattr(faster_rcnn, "planned", lambda module, x, method: getattr(module, method)(x))
            expected = model.propose(image)
    assert len(got.boxes) > 0
    for a, b in zip([*(t.data for t in got.levels), got.boxes], [*(t.data for t in expected.levels), expected.boxes]):
        np.testing.assert_array_equal(a, b)
    return got


def test_proposals_are_those_of_the_modules(model, monkeypatch):
    for seed in range(4):
        check(model, photo(seed), monkeypatch)
    (plan,) = plans._plans.of[model].values()
    assert plan.good
    before = check(model, photo(9), monkeypatch)
    weight = model.backbone.fpn.inner_blocks[0][0].weight
    weight.data = weight.data * 2
    after = check(model, photo(9), monkeypatch)
    assert not np.array_equal(before.levels[0].data, after.levels[0].data)
    for seed in range(3):
        check(model, photo(seed, 130), monkeypatch)
    assert [p.good for p in plans._plans.of[model].values()] == [True, True]


def test_predict_runs_the_plan(model):
    for seed in range(3):
        assert len(model.predict(photo(seed, 90), score_threshold=0.0)) > 0
    assert [key[0] for key in plans._plans.of[model]][-1][2:] == (96, 64)
