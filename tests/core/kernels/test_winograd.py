"""Winograd's convolution against the direct one in float64."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from chainsight.core import kernels
from chainsight.core.kernels import onednn, reference, winograd
from chainsight.core.kernels.specs import ConvSpec

SPEC = ConvSpec((1, 1), (1, 1, 1, 1), (1, 1), 1)
pytestmark = pytest.mark.skipif(kernels.backend_name() != "onednn", reason="uses oneDNN's matrix products")


def dilated(d):
    return ConvSpec((1, 1), (d, d, d, d), (d, d), 1)


def direct(x, w, b, activation, d):
    x, w, b = (a if a is None else a.astype(np.float64) for a in (x, w, b))
    y = reference.conv2d(x, w, b, dilated(d))
    return y if activation is None else reference.activate(y, activation)


def error(x, w, b, activation=None, d=1):
    expected = direct(x, w, b, activation, d)
    got = winograd.Winograd(w, b, activation, d)(x)
    assert got.shape == expected.shape
    assert got.transpose(0, 2, 3, 1).flags.c_contiguous
    return np.abs(got - expected).max() / np.abs(expected).max()


@pytest.mark.parametrize(
    ("n", "c", "k", "h", "w"),
    [
        (1, 8, 5, 4, 4),
        (2, 3, 7, 9, 13),
        (1, 16, 16, 1, 1),
        (1, 4, 4, 2, 70),
        (3, 5, 6, 31, 3),
        (9, 4, 8, 14, 14),
        (70, 3, 2, 3, 4),
        (1, 130, 128, 17, 300),
    ],
)
@pytest.mark.parametrize("activation", [None, ("relu", 0.0, 0.0), ("silu", 0.0, 0.0)])
def test_any_size(n, c, k, h, w, activation):
    rng = np.random.default_rng(h * w)
    x = rng.standard_normal((n, c, h, w), np.float32)
    weight = rng.standard_normal((k, c, 3, 3), np.float32) * np.float32((2 / (9 * c)) ** 0.5)
    bias = rng.standard_normal(k, np.float32) if activation else None
    assert error(x, weight, bias, activation) < 1e-5


@pytest.mark.parametrize("d", [2, 3, 5])
@pytest.mark.parametrize(("n", "h", "w"), [(1, 4, 4), (2, 9, 13), (1, 17, 2), (3, 33, 65), (40, 5, 7)])
def test_dilation_at_any_size(n, h, w, d):
    rng = np.random.default_rng(h * w)
    x = rng.standard_normal((n, 6, h, w), np.float32)
    weight = rng.standard_normal((5, 6, 3, 3), np.float32) * np.float32((2 / (9 * 6)) ** 0.5)
    assert error(x, weight, rng.standard_normal(5, np.float32), ("relu", 0.0, 0.0), d) < 1e-5


def test_dilated_layers_take_it_where_their_grids_are_large_enough():
    assert winograd.pays((1, 256, 65, 65), (256, 256, 3, 3), dilated(2))
    assert winograd.pays((1, 512, 65, 65), (512, 512, 3, 3), dilated(4))
    assert not winograd.pays((1, 256, 65, 65), (256, 256, 3, 3), dilated(24))
    assert not winograd.pays((1, 256, 65, 65), (256, 256, 3, 3), ConvSpec((1, 1), (2, 2, 2, 2), (1, 1), 1))
    x = np.random.default_rng(0).standard_normal((1, 256, 65, 65), np.float32)
    w = np.random.default_rng(1).standard_normal((256, 256, 3, 3), np.float32)
    conv = kernels.FusedConv2d(w, None, dilated(2), kernels.RELU)
    found, expected = conv(x), kernels.activate(kernels.conv2d(x, w, None, dilated(2)), kernels.RELU)
    assert conv._winograd is not None
    assert np.abs(found - expected).max() < 2e-5 * np.abs(expected).max()


@pytest.mark.parametrize("kind", ["rectified", "constant", "checkers", "one pixel", "wide range", "blocks"])
def test_error_stays_below_the_bound_on_hard_inputs(kind):
    rng = np.random.default_rng(1)
    c, size = 256, 40
    x = rng.standard_normal((1, c, size, size)).astype(np.float32)
    if kind == "rectified":
        x = np.maximum(x, 0)
    elif kind == "constant":
        x = np.ones_like(x)
    elif kind == "checkers":
        x = np.abs(x) * (-1) ** np.add.outer(np.arange(size), np.arange(size)).astype(np.float32)
    elif kind == "one pixel":
        x *= 0
        x[:, :, 7, 9] = 100
    elif kind == "wide range":
        x *= 10 ** rng.uniform(-3, 1, (1, c, 1, 1)).astype(np.float32)
    else:
        x = np.repeat(np.repeat(rng.standard_normal((1, c, 5, 5)), 8, 2), 8, 3).astype(np.float32)
    w = (rng.standard_normal((128, c, 3, 3)) * (2 / (9 * c)) ** 0.5).astype(np.float32)
    assert error(x, w, None) < 2e-5


@pytest.mark.parametrize(
    ("n", "h", "w"), [(1, 14, 14), (32, 14, 14), (9, 7, 7), (5, 38, 38), (2, 50, 68), (1, 100, 136), (1, 75, 75)]
)
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_few_tiles_are_computed_in_vain(n, h, w, workers, monkeypatch):
    """Blocks of many small maps hold several of them, and the last rows of a map do not cost a whole block."""
    counts, matmul = [], onednn.matmul

    def counted(a, b, *rest, **named):
        if a is winograd._OUTPUTS:
            counts.append(b.shape[1] // 256)
        return matmul(a, b, *rest, **named)

    monkeypatch.setattr(onednn, "matmul", counted)
    monkeypatch.setattr(onednn, "get_num_threads", lambda: workers)
    winograd.Winograd(np.ones((256, 256, 3, 3), np.float32), None, None)(np.ones((n, 256, h, w), np.float32))
    tiles = n * -(-h // 4) * -(-w // 4)
    assert tiles <= sum(counts) <= 1.2 * tiles
    assert len(counts) <= max(4, sum(counts) / 16)


@pytest.mark.parametrize("maps", [1, 2, 36, 1000])
@pytest.mark.parametrize("side", [1, 2, 5, 13, 25, 75])
@pytest.mark.parametrize("workers", [1, 2, 8])
def test_no_thread_ends_late(maps, side, workers):
    """The longest thread computes at most a fifth more than its share, where there is enough for all."""
    several, rows = winograd._cut(maps, side, side, 256, workers)
    assert several == 1 or rows == side
    blocks = -(-maps // several) * -(-side // rows)
    longest = -(-blocks // workers) * several * rows * side
    if blocks >= 4 * workers:
        assert longest <= 1.25 * maps * side * side / workers + side


def test_the_heads_of_regions_and_the_last_stages_of_detectors_take_it():
    assert winograd.pays((1000, 256, 7, 7), (256, 256, 3, 3), SPEC)
    assert winograd.pays((100, 256, 14, 14), (256, 256, 3, 3), SPEC)
    assert winograd.pays((1, 512, 19, 19), (512, 512, 3, 3), SPEC)
    assert winograd.pays((1, 512, 19, 19), (1024, 512, 3, 3), dilated(6))
    assert winograd.pays((1, 64, 300, 300), (64, 64, 3, 3), SPEC)
    assert not winograd.pays((1, 256, 14, 14), (256, 256, 3, 3), SPEC)  # weights four times as large, few products
    assert not winograd.pays((100, 256, 5, 5), (256, 256, 3, 3), SPEC)  # more than half of a tile is padding
    assert not winograd.pays((1, 64, 56, 56), (64, 64, 3, 3), SPEC)


def test_fused_convolution_takes_it_where_it_pays():
    rng = np.random.default_rng(2)
    x = rng.standard_normal((1, 128, 80, 80)).astype(np.float32)
    w = (rng.standard_normal((128, 128, 3, 3)) / 34).astype(np.float32)
    assert winograd.pays(x.shape, w.shape, SPEC)
    conv = kernels.FusedConv2d(w, None, SPEC, ("relu", 0.0, 0.0))
    y = conv(x)
    assert conv._winograd is not None
    expected = direct(x, w, None, ("relu", 0.0, 0.0), 1)
    assert np.abs(y - expected).max() < 1e-5 * np.abs(expected).max()
    residual = rng.standard_normal(y.shape).astype(np.float32)
    np.testing.assert_allclose(conv(x, residual), np.maximum(direct(x, w, None, None, 1) + residual, 0), atol=1e-4)


@pytest.mark.parametrize(
    ("x_shape", "w_shape", "spec"),
    [
        ((1, 128, 80, 80), (128, 128, 3, 3), SPEC._replace(stride=(2, 2))),
        ((1, 128, 80, 80), (128, 128, 3, 3), SPEC._replace(padding=(0, 0, 0, 0))),
        ((1, 128, 80, 80), (128, 128, 1, 1), SPEC),
        ((1, 64, 80, 80), (128, 64, 3, 3), SPEC),
        ((1, 128, 16, 16), (128, 128, 3, 3), SPEC),
    ],
)
def test_others_stay_direct(x_shape, w_shape, spec):
    assert not winograd.pays(x_shape, w_shape, spec)


def test_threads_do_not_disturb_one_another_and_the_number_comes_back():
    rng = np.random.default_rng(3)
    w = (rng.standard_normal((128, 128, 3, 3)) / 34).astype(np.float32)
    conv = winograd.Winograd(w, None, None)
    inputs = [rng.standard_normal((1, 128, 40 + i, 50)).astype(np.float32) for i in range(4)]
    alone = [conv(x).copy() for x in inputs]
    before = onednn.get_num_threads()
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(conv, inputs))
    assert all((a == b).all() for a, b in zip(alone, together))
    assert onednn.get_num_threads() == before
