"""What is put together from other functions and layers: residuals, outputs on the way, attention, stochastic depth."""

import numpy as np
import pytest
from chainsight.core import Tensor, no_grad, seed
from chainsight.core import functions as F
from chainsight.core.layers import (
    BatchNorm2d,
    Conv2d,
    Dropout,
    Linear,
    ReLU,
    Sequential,
    StochasticDepth,
)
from chainsight.vision.backbones.attention import MultiheadAttention
from gradients import check_gradients


def images(*shape):
    return Tensor(np.random.default_rng(0).standard_normal(shape, np.float32))


def blocks():
    yield Sequential(Conv2d(3, 4, 1), BatchNorm2d(4), ReLU(), Conv2d(4, 3, 3, padding=1), BatchNorm2d(3))
    yield Sequential(Sequential(Conv2d(3, 4, 1), ReLU()), Sequential(Conv2d(4, 3, 1)))
    yield Sequential(Conv2d(3, 3, 1), ReLU())
    yield Sequential(Conv2d(3, 3, 1), Dropout(0.5))


@pytest.mark.parametrize("block", list(blocks()), ids=range(4))
@pytest.mark.parametrize("recorded", [True, False])
def test_a_residual_is_added_to_the_result(block, recorded):
    block.eval()
    x = images(2, 3, 5, 4)
    parts = x
    for _, module in block.named_modules():
        if not isinstance(module, Sequential):
            parts = module(parts)
    expected = (parts + x).numpy()
    if recorded:
        y = block(x, x)
    else:
        with no_grad():
            y = block(x, x)
    np.testing.assert_allclose(y.numpy(), expected, rtol=1e-5, atol=1e-5)


def test_a_linear_layer_adds_a_residual_before_its_activation():
    layer, x, residual = Linear(3, 4), images(2, 5, 3), images(2, 5, 4)
    expected = F.relu(layer(x) + residual).numpy()
    np.testing.assert_allclose(layer.fused(x, ReLU(), residual).numpy(), expected, rtol=1e-5, atol=1e-6)
    with no_grad():
        np.testing.assert_allclose(layer.fused(x, ReLU(), residual).numpy(), expected, rtol=1e-5, atol=1e-6)


def test_outputs_on_the_way():
    block = Sequential(Conv2d(3, 4, 1), ReLU(), Conv2d(4, 5, 1), ReLU(), Conv2d(5, 2, 1)).eval()
    x = images(1, 3, 4, 4)
    with no_grad():
        first, second = block.outputs(x, (1, 3))
    expected = F.relu(block[0](x))
    np.testing.assert_allclose(first.numpy(), expected.numpy(), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(second.numpy(), F.relu(block[2](expected)).numpy(), rtol=1e-5, atol=1e-6)


def test_stochastic_depth_drops_whole_samples_and_keeps_the_mean():
    seed(3)
    drop, x = StochasticDepth(0.25), Tensor(np.ones((4000, 2, 3), np.float32))
    y = drop(x).numpy()
    assert (y == y[:, :1, :1]).all()
    assert set(np.unique(y)) == {np.float32(0), np.float32(1) / np.float32(0.75)}
    assert y.mean() == pytest.approx(1, abs=0.05)
    assert drop.eval()(x) is x
    assert StochasticDepth(0.0)(x) is x


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("shift", [0, 1, -2, 7])
def test_roll(axis, shift):
    x = np.arange(12.0).reshape(3, 4)
    np.testing.assert_array_equal(F.roll(Tensor(x), shift, axis).numpy(), np.roll(x, shift, axis))
    check_gradients(lambda t: F.roll(t, shift, axis), [x])


def test_attention_is_its_formula_and_has_gradients():
    rng = np.random.default_rng(1)
    q, k, v, bias = (rng.standard_normal(s) for s in ((2, 3, 4), (2, 5, 4), (2, 5, 6), (3, 5)))
    weights = np.exp(q @ k.transpose(0, 2, 1) / 2 + bias)
    expected = weights / weights.sum(-1, keepdims=True) @ v
    np.testing.assert_allclose(F.attention(*map(Tensor, (q, k, v, bias))).numpy(), expected, rtol=1e-12)
    check_gradients(F.attention, [q, k, v, bias])


def test_multihead_attention_takes_each_head_alone():
    layer, x = MultiheadAttention(6, 3), images(2, 5, 6)
    q, k, v = np.split(x.numpy() @ layer.in_proj_weight.numpy().T + layer.in_proj_bias.numpy(), 3, axis=2)
    heads = [
        F.attention(Tensor(q[..., i : i + 2]), Tensor(k[..., i : i + 2]), Tensor(v[..., i : i + 2])) for i in (0, 2, 4)
    ]
    expected = layer.out_proj(F.concatenate(heads, 2)) + x
    np.testing.assert_allclose(layer(x, x).numpy(), expected.numpy(), rtol=1e-5, atol=1e-5)
    with pytest.raises(ValueError, match="4 heads do not divide 6"):
        MultiheadAttention(6, 4)
