"""YOLOX's first layer: cells of pixels, and the same as one convolution of the pixels."""

import numpy as np
import pytest
from chainsight.core import Tensor, no_grad, planned
from chainsight.vision.detection.yolox import Focus
from chainsight.vision.models import load

RNG = np.random.default_rng(0)


def images(*shape):
    return Tensor(RNG.standard_normal(shape, np.float32))


def focus():
    layer = Focus(3, 16)
    layer.conv.bn.running_mean.data = RNG.standard_normal(16, np.float32)
    layer.conv.bn.weight.data = RNG.uniform(0.5, 2, 16).astype(np.float32)
    return layer.eval()


@pytest.mark.parametrize("shape", [(1, 3, 32, 48), (2, 3, 2, 6), (1, 3, 64, 64)])
def test_one_convolution_of_pixels_is_that_of_cells(shape):
    layer, x = focus(), images(*shape)
    expected = layer(x).numpy()  # a graph is recorded: cell by cell
    with no_grad():
        found = layer(x).numpy()
    assert found.shape == (shape[0], 16, shape[2] // 2, shape[3] // 2)
    assert np.abs(found - expected).max() <= 2e-6 * np.abs(expected).max()


def test_cells_come_left_column_first_as_in_the_original():
    layer = focus()
    layer.conv.conv.weight.data = np.zeros((16, 12, 3, 3), np.float32)
    layer.conv.conv.weight.data[0, 3, 1, 1] = 1  # red of the lower left pixel of a cell
    layer.conv.bn.weight.data[:] = 1
    layer.conv.bn.running_mean.data = np.zeros(16, np.float32)
    x = images(1, 3, 8, 8)
    value = x.numpy()[0, 0, 1::2, ::2] / np.sqrt(1 + 1e-3)
    with no_grad():
        found = layer(x).numpy()[0, 0]
    np.testing.assert_allclose(found, value / (1 + np.exp(-value)), atol=1e-6)


def test_changed_weights_and_new_ones_count_at_once():
    layer, x = focus(), images(1, 3, 16, 16)
    with no_grad():
        for _ in range(4):
            planned(layer, x)
        layer.conv.conv.weight.data = layer.conv.conv.weight.data * 2
        for _ in range(3):
            found = planned(layer, x).numpy()
    np.testing.assert_allclose(found, layer(x).numpy(), atol=1e-5)


def test_the_parameters_keep_their_names():
    names = {k for k in load("yolox_nano", weights=None).state_dict() if "stem" in k}
    assert "backbone.backbone.stem.conv.conv.weight" in names
    assert not any("pixels" in k for k in names)
