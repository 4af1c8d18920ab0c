"""SegNet and PSPNet: what is unpooled, what is learned, and what their files and presets say."""

import numpy as np
import pytest
from chainsight.core import Tensor
from chainsight.core import functions as F
from chainsight.core.function import no_grad
from chainsight.vision import models
from chainsight.vision.categories import Categories
from chainsight.vision.sample import Sample
from chainsight.vision.segmentation.pspnet import PSPNet
from chainsight.vision.segmentation.segnet import SegNet, Unpool

NAMES = ["sky", "sea", "boat"]
RNG = np.random.default_rng(0)


def scene(height, width):
    image = RNG.integers(0, 256, (height, width, 3), np.uint8)
    semantic = RNG.integers(0, 3, (height, width)).astype(np.uint8)
    semantic[:4] = 255
    return Sample(image, semantic=semantic)


def test_gradient_of_unpooling():
    x = Tensor(RNG.integers(0, 3, (1, 2, 5, 7)).astype(float))  # with many equal values
    pooled = F.max_pool2d(x, 2, ceil_mode=True)
    weight = RNG.standard_normal((1, 2, 6, 8))
    y = Tensor(RNG.standard_normal(pooled.shape), requires_grad=True)
    F.sum(Unpool()(y, x, pooled) * Tensor(weight)).backward()
    for place in np.ndindex(pooled.shape):
        one = np.zeros(pooled.shape)
        one[place] = 1
        spread = Unpool()(Tensor(one), x, pooled).numpy()
        assert spread.sum() == 1
        assert y.grad.numpy()[place] == pytest.approx((spread * weight).sum())


def test_segnet_weighs_classes_and_divides_by_pixels():
    model = SegNet(Categories.plain(NAMES), width=4)
    logits, target = RNG.standard_normal((2, 3, 4, 5)), RNG.integers(0, 3, (2, 4, 5))
    target[0, 0] = 255
    model.class_weight = np.array([0.5, 1.0, 3.0])
    log_p = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    known = target != 255
    picked = np.take_along_axis(log_p, np.where(known, target, 0)[:, None], 1)[:, 0]
    expected = -(picked * model.class_weight[np.where(known, target, 0)] * known).sum() / known.sum()
    assert model.cross_entropy(Tensor(logits), target).item() == pytest.approx(expected)


@pytest.mark.parametrize("build", [lambda c: SegNet(c, width=8), lambda c: PSPNet((1, 1, 1, 1), c)])
def test_losses_reach_every_parameter(build):
    model = build(Categories.plain(NAMES)).train()
    losses = model.losses([scene(48, 64), scene(64, 64)], RNG)
    sum(losses.values(), start=Tensor(np.float32(0))).backward()
    assert [n for n, p in model.named_parameters() if p.grad is None or not np.any(p.grad.numpy())] == []


def test_a_file_without_the_auxiliary_head_leaves_it_fresh():
    model = PSPNet((1, 1, 1, 1), Categories.plain(NAMES))
    before = model.auxiliary
    model.take_shapes({"auxiliary.0.weight": np.zeros(1)})
    assert model.auxiliary is before
    model.take_shapes({"head.0.weight": np.zeros(1)})
    assert model.auxiliary is not before
    assert 0 < model.auxiliary[0].weight.numpy().std() < 0.1


def test_tiles_cover_photos_of_any_size():
    model = PSPNet((1, 1, 1, 1), Categories.plain(NAMES)).eval()
    model.preset = type(model.preset)(size=(64, 64), scales=(0.5, 1.0))
    for size in ((40, 150), (64, 64), (10, 7)):
        with no_grad():
            found = model.predict(RNG.integers(0, 256, (*size, 3), np.uint8))
        assert found.labels.shape == size
        np.testing.assert_allclose(found.class_probabilities.sum(0), 1, atol=1e-4)


def test_segmenters_are_saved_with_their_preset(tmp_path):
    model = models.load("segnet", weights=None, categories=NAMES)
    model.preset = type(model.preset)(mean=(0.5, 0.5, 0.5))
    model.save(tmp_path / "model.safetensors")
    assert models.load(tmp_path / "model.safetensors").preset == model.preset
