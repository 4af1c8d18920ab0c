"""Defects of ChainerCV's models that its users met (the numbers are those of section 9 of the inventory)."""

import time
from dataclasses import replace
from functools import partial

import chainsight
import numpy as np
import pytest
from chainsight.core.layers import BatchNorm2d
from chainsight.datasets import open as open_dataset
from chainsight.vision import boxes
from chainsight.vision.backbones.mobilenet_v2 import MobileNetV2Classifier
from chainsight.vision.categories import Categories
from chainsight.vision.detection import chainercv_rcnn
from chainsight.vision.segmentation import deeplabv3_plus, pspnet
from PIL import Image

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("name", ["resnet50_fb", "se_resnet50"])
def test_a_model_with_weights_leaves_later_ones_their_random_values(name, tmp_path):
    """Defect 1: after one model with weights, those with random weights have zeros in their last layer."""
    chainsight.load(name, weights=None).save(tmp_path / "a.safetensors")
    chainsight.load(tmp_path / "a.safetensors")
    fresh = chainsight.load(name, weights=None).fc.weight.numpy()
    assert fresh.std() > 1e-3
    other = chainsight.load(name, weights=None, categories=["a", "b"]).fc.weight.numpy()
    assert other.shape[0] == 2
    assert other.std() > 1e-3


def test_models_of_one_class_share_no_settings():
    """Defect 1: making a PSPNet changes what all of them extract features with."""
    first = pspnet.pspnet_resnet50(Categories.plain(["a", "b"]))
    shapes = {k: v.shape for k, v in first.state_dict().items()}
    deeper = pspnet.pspnet_resnet101(Categories.plain(["a", "b", "c"]))
    again = pspnet.pspnet_resnet50(Categories.plain(["a", "b"]))
    assert {k: v.shape for k, v in again.state_dict().items()} == shapes
    assert deeper.parameter_count() > again.parameter_count() == first.parameter_count()


def test_mobilenets_with_a_background_are_evaluated_on_the_thousand_classes(tmp_path):
    """Defect 2: the evaluation of ImageNet raises ValueError for 1,001 outputs, and the wider model is never built."""
    for name in ("mobilenet_v2_tf", "mobilenet_v2_tf_1_4"):
        model = chainsight.load(name, weights=None)
        assert model.predict(RNG.integers(0, 256, (60, 80, 3), dtype=np.uint8)).probabilities.shape == (1000,)
    for category in model.categories.names[:2]:
        folder = tmp_path / category.replace("/", " ")
        folder.mkdir()
        Image.fromarray(RNG.integers(0, 256, (40, 40, 3), dtype=np.uint8)).save(folder / "a.png")
    evaluation = chainsight.evaluate(model, open_dataset(tmp_path))
    assert "top1" in str(evaluation)


@pytest.mark.parametrize("width", [0.35, 0.5, 0.75, 1.3])
def test_mobilenets_of_any_width_are_built(width):
    """Defect 2: any width other than 1.0 and 1.4 raises KeyError."""
    model = MobileNetV2Classifier(Categories.plain(["a", "b"]), width, partial(BatchNorm2d, eps=1e-3))
    assert model.eval()(chainsight.core.Tensor(np.zeros((1, 3, 64, 64), np.float32))).shape == (1, 2)


def test_the_norm_of_a_depthwise_convolution_has_its_channels():
    """Defect 6: with several processes it is made for those of the convolution after it."""
    layers = [m for _, m in deeplabv3_plus.separable(24, 40).named_modules()]
    depthwise = next(m for m in layers if hasattr(m, "spec") and m.spec.groups == 24)
    norms = [m.running_mean.shape[0] for m in layers if isinstance(m, BatchNorm2d)]
    assert depthwise.weight.shape[0] == 24
    assert norms == [24, 40]


def test_several_views_are_averaged_one_is_taken_as_it_is():
    """Defect 6: DeepLab divides by the number of views where there is one, and does not where there are several."""
    model = deeplabv3_plus.deeplabv3plus_xception65(Categories.plain(["a", "b"])).eval()
    model.preset = replace(model.preset, size=(65, 65))
    photo = RNG.integers(0, 256, (50, 60, 3), dtype=np.uint8)
    for flip in (False, True):
        model.preset = replace(model.preset, flip=flip)
        total = model.probabilities(photo).sum(0)
        np.testing.assert_allclose(total, 1, atol=1e-4)


def test_suppression_of_thousands_of_boxes_takes_no_seconds():
    """Defect 8: the loop is in Python: 3.2 s for 8,732 boxes, 17 s a photo for SSD300."""
    corner = RNG.uniform(0, 300, (8732, 2))
    some = np.concatenate([corner, corner + RNG.uniform(5, 80, (8732, 2))], 1).astype(np.float32)
    scores = RNG.permutation(8732).astype(np.float32)
    start = time.perf_counter()
    kept = boxes.nms(some, scores, 0.45)
    assert time.perf_counter() - start < 1.5  # 0.1 s on a quiet machine
    assert 100 < len(kept) < 8732
    rpn = chainercv_rcnn.faster_rcnn_vgg16(Categories.with_background(["a"])).rpn
    assert (rpn.per_level, rpn.total) == (6000, 300)
