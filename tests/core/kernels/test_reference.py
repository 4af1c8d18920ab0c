"""The reference kernels against naive loops in float64."""

import itertools
import math

import numpy as np
import pytest
from chainsight.core.kernels import ConvSpec, PoolSpec, reference


def naive_conv2d(x, w, spec):
    """Seven nested loops, as the definition says."""
    n, _, h, w_ = x.shape
    out, group_in, ky, kx = w.shape
    height, width = spec.output_size((h, w_), (ky, kx))
    y = np.zeros((n, out, height, width))
    per_group = out // spec.groups
    for b, o, i, j in itertools.product(range(n), range(out), range(height), range(width)):
        for c, u, v in itertools.product(range(group_in), range(ky), range(kx)):
            row = i * spec.stride[0] - spec.padding[0] + u * spec.dilation[0]
            column = j * spec.stride[1] - spec.padding[2] + v * spec.dilation[1]
            if 0 <= row < h and 0 <= column < w_:
                y[b, o, i, j] += x[b, o // per_group * group_in + c, row, column] * w[o, c, u, v]
    return y


def naive_windows(x, spec):
    """The elements of every pooling window with their rows and columns."""
    h, w = x.shape[2:]
    height, width = spec.output_size((h, w))
    for b, c, i, j in itertools.product(*map(range, x.shape[:2]), range(height), range(width)):
        rows = [i * spec.stride[0] - spec.padding[0] + u * spec.dilation[0] for u in range(spec.kernel[0])]
        columns = [j * spec.stride[1] - spec.padding[2] + v * spec.dilation[1] for v in range(spec.kernel[1])]
        inside = [(r, s) for r in rows for s in columns if 0 <= r < h and 0 <= s < w]
        padded = [
            (r, s)
            for r in rows
            for s in columns
            if -spec.padding[0] <= r < h + spec.padding[1] and -spec.padding[2] <= s < w + spec.padding[3]
        ]
        yield (b, c, i, j), inside, len(padded)


CONVS = [
    ((2, 3, 6, 7), (4, 3, 3, 3), ConvSpec((1, 1), (1, 1, 1, 1))),
    ((1, 4, 7, 6), (6, 2, 3, 2), ConvSpec((2, 1), (0, 2, 1, 0), (2, 1), 2)),
    ((2, 4, 5, 5), (4, 1, 3, 3), ConvSpec((2, 2), (1, 0, 0, 1), (1, 1), 4)),
    ((1, 3, 6, 5), (6, 1, 2, 3), ConvSpec((1, 2), (0, 0, 2, 2), (1, 2), 3)),
    ((2, 5, 4, 3), (2, 5, 1, 1), ConvSpec()),
    ((1, 1, 5, 5), (1, 1, 5, 5), ConvSpec()),
]


@pytest.mark.parametrize(("x_shape", "w_shape", "spec"), CONVS)
@pytest.mark.parametrize("chunk_bytes", [64, 32 * 1024 * 1024])
def test_convolution_and_its_gradients(x_shape, w_shape, spec, chunk_bytes, monkeypatch):
    monkeypatch.setattr(reference, "_CHUNK_BYTES", chunk_bytes)
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal(x_shape), rng.standard_normal(w_shape)
    b = rng.standard_normal(w_shape[0])
    y = naive_conv2d(x, w, spec)
    np.testing.assert_allclose(reference.conv2d(x, w, b, spec), y + b[:, None, None], rtol=1e-12, atol=1e-12)
    # The gradients are the transposes of a bilinear map, so one scalar product tests each in full.
    gy, dx, dw = rng.standard_normal(y.shape), rng.standard_normal(x_shape), rng.standard_normal(w_shape)
    gx = reference.conv2d_input_grad(gy, w, x_shape, spec)
    gw = reference.conv2d_weight_grad(x, gy, w_shape, spec)
    assert gx.shape == x_shape
    assert gw.shape == w_shape
    assert np.sum(gx * dx) == pytest.approx(np.sum(gy * naive_conv2d(dx, w, spec)), rel=1e-10)
    assert np.sum(gw * dw) == pytest.approx(np.sum(gy * naive_conv2d(x, dw, spec)), rel=1e-10)


def test_results_are_channels_last():
    x, w = np.ones((2, 3, 8, 8)), np.ones((4, 3, 3, 3))
    y = reference.conv2d(x, w, None, ConvSpec())
    assert y.transpose(0, 2, 3, 1).flags.c_contiguous
    assert reference.conv2d_input_grad(y, w, x.shape, ConvSpec()).transpose(0, 2, 3, 1).flags.c_contiguous


@pytest.mark.parametrize("x_shape", [(0, 3, 8, 8), (2, 3, 2, 8)])
def test_empty_convolutions(x_shape):
    x, w, spec = np.ones(x_shape), np.ones((4, 3, 3, 3)), ConvSpec()
    y = reference.conv2d(x, w, np.ones(4), spec)
    assert y.shape == (x_shape[0], 4, max(x_shape[2] - 2, 0), 6)
    assert reference.conv2d_input_grad(y, w, x_shape, spec).shape == x_shape
    assert not reference.conv2d_input_grad(y, w, x_shape, spec).any()
    assert not reference.conv2d_weight_grad(x, y, w.shape, spec).any()


def test_weights_that_do_not_fit_are_named():
    with pytest.raises(ValueError, match=r"5 input channels in 1 groups, got weights \(4, 3, 3, 3\)"):
        reference.conv2d(np.ones((1, 5, 8, 8)), np.ones((4, 3, 3, 3)), None, ConvSpec())


POOLS = [
    PoolSpec((2, 2), (2, 2)),
    PoolSpec((3, 3), (2, 2), (1, 1, 1, 1)),
    PoolSpec((3, 2), (2, 2), (1, 0, 0, 1), ceil_mode=True),
    PoolSpec((3, 3), (3, 3), (1, 1, 1, 1), ceil_mode=True),
    PoolSpec((2, 3), (1, 2), (0, 0, 1, 1), (2, 1)),
]


@pytest.mark.parametrize("spec", POOLS)
def test_max_pool(spec):
    rng = np.random.default_rng(0)
    x = rng.integers(0, 6, (2, 3, 7, 8)).astype(float)  # with ties: the first wins
    y, taps = reference.max_pool2d(x, spec)
    indices = reference.max_pool2d_indices(x, spec)
    gy = rng.standard_normal(y.shape)
    gx = np.zeros(x.shape)
    for (b, c, i, j), inside, _ in naive_windows(x, spec):
        best = max(inside, key=lambda place: x[b, c, place[0], place[1]])
        assert y[b, c, i, j] == x[b, c, best[0], best[1]]
        assert indices[b, c, i, j] == best[0] * 8 + best[1]
        gx[b, c, best[0], best[1]] += gy[b, c, i, j]
    np.testing.assert_allclose(reference.max_pool2d_grad(gy, x.shape, taps, spec), gx, rtol=1e-12, atol=1e-12)


def test_max_pool_of_nan_and_minus_infinity():
    x = np.full((1, 1, 4, 4), -np.inf)
    x[0, 0, 1, 1] = np.nan
    spec = PoolSpec((2, 2), (2, 2))
    y, _ = reference.max_pool2d(x, spec)
    assert np.isnan(y[0, 0, 0, 0])
    assert y[0, 0, 1, 1] == -np.inf
    assert reference.max_pool2d_indices(x, PoolSpec((3, 3), (2, 2), (1, 1, 1, 1))).min() >= 0


@pytest.mark.parametrize("spec", POOLS)
@pytest.mark.parametrize("count_include_pad", [True, False])
def test_average_pool(spec, count_include_pad):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2, 3, 7, 8))
    y = reference.avg_pool2d(x, spec, count_include_pad)
    gy, gx = rng.standard_normal(y.shape), np.zeros(x.shape)
    for (b, c, i, j), inside, padded in naive_windows(x, spec):
        count = padded if count_include_pad else len(inside)
        assert y[b, c, i, j] == pytest.approx(sum(x[b, c, r, s] for r, s in inside) / count, abs=1e-12)
        for r, s in inside:
            gx[b, c, r, s] += gy[b, c, i, j] / count
    np.testing.assert_allclose(
        reference.avg_pool2d_grad(gy, x.shape, spec, count_include_pad), gx, rtol=1e-12, atol=1e-12
    )


@pytest.mark.parametrize("spec", POOLS)
def test_pools_of_an_empty_batch(spec):
    x = np.ones((0, 3, 7, 8))
    y, taps = reference.max_pool2d(x, spec)
    assert y.shape == (0, 3, *spec.output_size((7, 8)))
    assert reference.max_pool2d_grad(y, x.shape, taps, spec).shape == x.shape
    assert reference.avg_pool2d(x, spec, True).shape == y.shape
    assert reference.avg_pool2d_grad(y, x.shape, spec, True).shape == x.shape


def test_batch_norm_and_its_gradients():
    rng = np.random.default_rng(0)
    x, gamma, beta = rng.standard_normal((3, 4, 5, 2)) + 2, rng.standard_normal(4), rng.standard_normal(4)
    gy = rng.standard_normal(x.shape)
    y, mean, var = reference.batch_norm(x, gamma, beta, 1e-3)
    np.testing.assert_allclose(mean, x.mean((0, 2, 3)))
    np.testing.assert_allclose(var, x.var((0, 2, 3)))
    normal = (x - mean[:, None, None]) / np.sqrt(var + 1e-3)[:, None, None]
    np.testing.assert_allclose(y, normal * gamma[:, None, None] + beta[:, None, None])
    gx, ggamma, gbeta = reference.batch_norm_grad(x, gy, gamma, mean, var, 1e-3)
    np.testing.assert_allclose(ggamma, (gy * normal).sum((0, 2, 3)))
    np.testing.assert_allclose(gbeta, gy.sum((0, 2, 3)))
    step, direction = 1e-6, rng.standard_normal(x.shape)
    ahead = reference.batch_norm(x + step * direction, gamma, beta, 1e-3)[0]
    behind = reference.batch_norm(x - step * direction, gamma, beta, 1e-3)[0]
    assert np.sum(gx * direction) == pytest.approx(np.sum(gy * (ahead - behind)) / (2 * step), rel=1e-6)


def test_batch_norm_of_half_precision_sums_in_single():
    x = np.full((4, 1, 64, 64), 100, np.float16)
    y, mean, var = reference.batch_norm(x, np.ones(1, np.float32), np.zeros(1, np.float32), 1e-5)
    assert (y.dtype, mean[0], var[0]) == (np.float16, 100, 0)


@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, 4e-16), (np.float32, 3e-7)])
def test_erf_is_accurate_to_its_dtype(dtype, tolerance):
    x = np.concatenate([np.linspace(-8, 8, 4001), [0, 1, -1, 30, -30, np.inf, -np.inf]]).astype(dtype)
    expected = np.array([math.erf(v) for v in x.tolist()])
    np.testing.assert_allclose(reference.erf(x), expected, rtol=0, atol=tolerance)
    assert np.isnan(reference.erf(np.array([np.nan], dtype)))[0]


def test_activations_against_their_definitions():
    x = np.linspace(-9, 9, 181)
    logistic = 1 / (1 + np.exp(-x))
    expected = {
        ("relu", 0.0, 0.0): np.where(x > 0, x, 0),
        ("relu6", 0.0, 0.0): np.clip(x, 0, 6),
        ("clip", -1.0, 2.0): np.clip(x, -1, 2),
        ("leaky_relu", 0.1, 0.0): np.where(x > 0, x, 0.1 * x),
        ("sigmoid", 0.0, 0.0): logistic,
        ("silu", 0.0, 0.0): x * logistic,
        ("hard_sigmoid", 0.0, 0.0): np.clip(x + 3, 0, 6) / 6,
        ("hard_swish", 0.0, 0.0): x * np.clip(x + 3, 0, 6) / 6,
        ("tanh", 0.0, 0.0): np.tanh(x),
        ("gelu", 0.0, 0.0): x * np.array([0.5 + 0.5 * math.erf(v / math.sqrt(2)) for v in x]),
        ("mish", 0.0, 0.0): x * np.tanh(np.log1p(np.exp(x))),
    }
    for activation, values in expected.items():
        np.testing.assert_allclose(reference.activate(x, activation), values, rtol=1e-12, atol=1e-12)
    with pytest.raises(ValueError, match="'softsign'"):
        reference.activate(x, ("softsign", 0.0, 0.0))
