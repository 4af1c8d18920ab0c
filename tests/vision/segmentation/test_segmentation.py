"""Segmenters: logits equal torchvision's, results have the size of the photo, training sees every head."""

import numpy as np
import pytest
import stored_goldens
from chainsight.core import Tensor, kernels, no_grad, plan
from chainsight.core import functions as F
from chainsight.vision import models
from chainsight.vision.categories import Categories
from chainsight.vision.model import ShortSidePreset, most_probable
from chainsight.vision.sample import Sample
from chainsight.vision.segmentation.deeplabv3 import deeplabv3_mobilenet_v3_large
from chainsight.vision.segmentation.lraspp import lraspp_mobilenet_v3_large

NAMES = [
    pytest.param(n, marks=() if "mobilenet" in n else pytest.mark.slow)
    for n in stored_goldens.stored("semantic segmentation")
]
RNG = np.random.default_rng(0)


@pytest.mark.parametrize("name", NAMES)
def test_logits_equal_torchvision(name):
    model, golden = stored_goldens.seeded_model(name)
    for i, image in enumerate(golden.images()):
        with no_grad():
            logits = model(Tensor(stored_goldens.seeded.imagenet_input(image))).numpy()[0]
        expected = golden.outputs[f"logits_{i}"]
        assert logits.shape[1:] == image.shape[:2]
        assert np.abs(logits[:, ::16, ::16] - expected).max() <= 3e-5 * np.abs(expected).max()


@pytest.fixture(scope="module")
def model():
    model = lraspp_mobilenet_v3_large(Categories.plain(["sky", "sea", "boat"]))
    model.preset = ShortSidePreset(64)
    return model.eval()


@pytest.mark.parametrize("size", [(50, 80), (200, 130), (64, 64), (1, 30)])
def test_result_has_the_size_of_the_photo(model, size):
    found = model.predict(RNG.integers(0, 256, (*size, 3), np.uint8))
    assert found.labels.shape == size
    assert found.categories == ("sky", "sea", "boat")
    assert sum(found.areas().values()) == size[0] * size[1]
    total = sum(found.probability(name) for name in found.categories)
    assert total.shape == size
    np.testing.assert_allclose(total, 1, atol=1e-5)


def test_most_probable_equals_resizing_everything():
    logits = RNG.standard_normal((5, 13, 17)).astype(np.float32)
    for size in ((13, 17), (40, 31), (7, 50), (600, 900)):
        whole = F.resize(Tensor(logits[None]), size).numpy()[0].argmax(0)
        found = most_probable(logits, size)
        assert found.dtype == np.uint8
        assert (found == whole).mean() > 0.9999


def test_label_maps_of_many_classes_are_wider():
    assert most_probable(np.zeros((300, 2, 2), np.float32), (2, 2)).dtype == np.int32


def scene(size):
    image = RNG.integers(0, 256, (*size, 3), np.uint8)
    semantic = RNG.integers(0, 3, size).astype(np.uint8)
    semantic[:4] = 255
    return Sample(image, semantic=semantic)


def test_losses_reach_every_parameter():
    model = deeplabv3_mobilenet_v3_large(Categories.plain(["sky", "sea", "boat"]))
    losses = model.train().losses([scene((64, 48)), scene((64, 64))], RNG)
    assert list(losses) == ["class", "auxiliary"]
    assert losses["class"].item() == pytest.approx(np.log(3), rel=0.5)
    (losses["class"] + losses["auxiliary"]).backward()
    assert [n for n, p in model.named_parameters() if p.grad is None or not np.any(p.grad.numpy())] == []


def test_padding_and_unlabelled_pixels_do_not_count(model):
    sample = scene((64, 64))
    nothing = Sample(sample.image, semantic=np.full((64, 64), 255, np.uint8))
    with no_grad():
        alone = model.losses([sample], RNG)["class"].item()
        beside = model.losses([sample, nothing], RNG)["class"].item()
    assert beside == pytest.approx(alone, rel=1e-5)


def test_a_sample_without_a_label_map_is_named(model):
    with pytest.raises(ValueError, match=r"boat\.jpg: training a segmenter needs a label map"):
        model.losses([Sample(np.zeros((8, 8, 3), np.uint8), source="boat.jpg")], RNG)


def test_other_classes_start_fresh():
    model = models.load("lraspp_mobilenet_v3_large", weights=None, categories=["sky", "sea"])
    assert model.classifier.low_classifier.weight.shape[0] == 2
    assert model.categories.names == ("sky", "sea")


@pytest.mark.skipif(kernels.backend_name() != "onednn", reason="plans are made of oneDNN's kernel calls")
def test_plans_repeat_a_segmenter(model):
    image = RNG.integers(0, 256, (50, 80, 3), np.uint8)
    found = [model.predict(image) for _ in range(4)]  # as it is, while the plan is made, and twice from the plan
    assert [p.good for p in plan._plans.of[model].values() if p is not None] == [True]
    for other in found[1:]:
        np.testing.assert_array_equal(other.labels, found[0].labels)
        np.testing.assert_array_equal(other.class_probabilities, found[0].class_probabilities)
