"""oneDNN against the reference on random configurations, from several threads, and without the library."""

import logging
import os
import subprocess
import sys
import threading
from contextvars import ContextVar

import numpy as np
import pytest
from chainsight.core import Tensor, grad, kernels, no_grad
from chainsight.core import functions as F
from chainsight.core.kernels import ConvSpec, FusedConv2d, FusedLinear, PoolSpec, onednn, reference

HAVE_ONEDNN = kernels.backend_name() == "onednn"
needs_onednn = pytest.mark.skipif(not HAVE_ONEDNN, reason="switched off, or no wheel for this platform")
BATCHES = 25  # of configurations; each batch draws the same ones in every run
PER_BATCH = 16


def test_the_library_is_found_where_its_wheel_is_installed():
    if os.environ.get("CHAINSIGHT_ONEDNN") == "0":
        assert not HAVE_ONEDNN
    elif sys.platform == "linux" and os.uname().machine == "x86_64":
        assert HAVE_ONEDNN
        assert kernels.library_version().startswith("3.")


def assert_close(found, expected, scale=1e-3):
    """Equal to 1e-5 of the largest value (or of ``scale``: the size of terms that may cancel)."""
    assert found.shape == expected.shape
    assert found.dtype == np.float32
    if expected.size:
        assert np.abs(found - expected).max() <= 1e-5 * max(np.abs(expected).max(), scale)


def arrange(rng, x):
    """The same values in another memory layout, or as a view of something larger."""
    kind = rng.integers(5)
    if kind == 0 or x.ndim != 4:
        return x
    if kind == 1:
        return np.ascontiguousarray(x.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)
    if kind == 2:
        wide = np.zeros((x.shape[0], x.shape[2], x.shape[3], x.shape[1] + 3), np.float32).transpose(0, 3, 1, 2)
        wide[:, 2 : x.shape[1] + 2] = x
        return wide[:, 2 : x.shape[1] + 2]
    if kind == 3:
        return np.ascontiguousarray(x[:, :, ::-1, ::-1])[:, :, ::-1, ::-1]
    return np.ascontiguousarray(x.transpose(3, 1, 0, 2)).transpose(2, 1, 3, 0)


def normal(rng, *shape):
    return rng.standard_normal(shape, dtype=np.float32)


def pick(rng, *choices):
    return choices[rng.integers(len(choices))]


def random_conv(rng):
    kind = pick(rng, "plain", "plain", "pointwise", "grouped", "depthwise")
    groups = {"plain": 1, "pointwise": 1, "grouped": pick(rng, 2, 3, 4), "depthwise": pick(rng, 3, 8, 16, 17)}[kind]
    group_in = 1 if kind == "depthwise" else pick(rng, 1, 3, 4, 7, 16)
    group_out = pick(rng, 1, 1, 2) if kind == "depthwise" else pick(rng, 1, 2, 5, 16)
    kernel = (1, 1) if kind == "pointwise" else (pick(rng, 1, 2, 3, 5), pick(rng, 1, 3, 4, 7))
    dilation = (pick(rng, 1, 1, 2, 3), pick(rng, 1, 1, 2))
    padding = tuple(int(p) for p in rng.integers(0, 4, 4)) if rng.integers(2) else (1, 1, 1, 1)
    spec = ConvSpec((pick(rng, 1, 2, 3), pick(rng, 1, 1, 2)), padding, dilation, groups)
    size = tuple(int(s) for s in rng.integers(1, 20, 2))
    x_shape = (pick(rng, 0, 1, 1, 2, 3), group_in * groups, *size)
    return x_shape, (group_out * groups, group_in, *kernel), spec


@needs_onednn
@pytest.mark.parametrize("seed", range(BATCHES))
def test_convolution_and_its_gradients(seed):
    rng = np.random.default_rng(seed)
    for _ in range(PER_BATCH):
        x_shape, w_shape, spec = random_conv(rng)
        x, w, b = arrange(rng, normal(rng, *x_shape)), arrange(rng, normal(rng, *w_shape)), normal(rng, w_shape[0])
        bias = pick(rng, b, None)
        y = kernels.conv2d(x, w, bias, spec)
        assert_close(y, reference.conv2d(x, w, bias, spec))
        assert y.transpose(0, 2, 3, 1).flags.c_contiguous
        gy = arrange(rng, normal(rng, *y.shape))
        assert_close(kernels.conv2d_input_grad(gy, w, x_shape, spec), reference.conv2d_input_grad(gy, w, x_shape, spec))
        assert_close(
            kernels.conv2d_weight_grad(x, gy, w_shape, spec), reference.conv2d_weight_grad(x, gy, w_shape, spec)
        )


ACTIVATIONS = [
    None,
    ("relu", 0.0, 0.0),
    ("relu6", 0.0, 0.0),
    ("clip", -0.5, 1.5),
    ("leaky_relu", 0.1, 0.0),
    ("silu", 0.0, 0.0),
    ("hard_swish", 0.0, 0.0),
    ("hard_sigmoid", 0.0, 0.0),
    ("sigmoid", 0.0, 0.0),
    ("tanh", 0.0, 0.0),
    ("gelu", 0.0, 0.0),
    ("mish", 0.0, 0.0),
]


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_fused_convolution(activation):
    rng = np.random.default_rng(0)
    for _ in range(12):
        x_shape, w_shape, spec = random_conv(rng)
        w, bias = arrange(rng, normal(rng, *w_shape)), pick(rng, normal(rng, w_shape[0]), None)
        conv = FusedConv2d(w, bias, spec, activation)
        for _ in range(2):  # the second run takes the cached program
            x = arrange(rng, normal(rng, *x_shape))
            plain = reference.conv2d(x, w, bias, spec)
            residual = pick(rng, None, arrange(rng, normal(rng, *plain.shape)))
            before = None if residual is None else residual.copy()
            expected = plain if residual is None else plain + residual
            if activation is not None:
                expected = reference.activate(expected, activation)
            assert_close(conv(x, residual), expected)
            if residual is not None:
                assert np.array_equal(residual, before)


def test_fused_convolution_on_changing_sizes():
    rng = np.random.default_rng(0)
    w, spec = normal(rng, 8, 16, 3, 3), ConvSpec((1, 1), (1, 1, 1, 1))
    conv = FusedConv2d(w, None, spec)
    for size in (5, 40, 5, 300, 1, 40):
        x = normal(rng, 1, 16, size, 7)
        assert_close(conv(x), reference.conv2d(x, w, None, spec))
    wide = x.astype(np.float64)  # takes the reference, which needs the plain weights again
    np.testing.assert_allclose(conv(wide), reference.conv2d(wide, w, None, spec), rtol=1e-12, atol=1e-12)


def test_fused_grouped_convolution_gives_its_weights_back():
    rng = np.random.default_rng(0)
    w, spec = normal(rng, 24, 2, 3, 3), ConvSpec(groups=12)
    conv = FusedConv2d(w, None, spec)
    x = normal(rng, 1, 24, 9, 9)
    expected = conv(x)
    with kernels.use_reference():
        assert_close(conv(x), expected)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_fused_linear(activation):
    rng = np.random.default_rng(0)
    w, b = normal(rng, 30, 50), normal(rng, 30)
    for shape in ((7, 50), (2, 3, 50), (0, 50), (50,)):
        x = normal(rng, *shape)
        for bias, residual in ((b, None), (None, normal(rng, *shape[:-1], 30))):
            expected = reference.linear(x, w, bias)
            expected = expected if residual is None else expected + residual
            if activation is not None:
                expected = reference.activate(expected, activation)
            assert_close(FusedLinear(w, bias, activation)(x, residual), expected)


@pytest.mark.parametrize("activation", ACTIVATIONS[1:])
def test_activations(activation):
    rng = np.random.default_rng(0)
    for shape in ((3, 17, 20, 30), (30000,), (200, 150)):
        x = normal(rng, *shape) * 4
        layouts = [x, np.flip(x)]
        if x.ndim == 4:
            layouts.append(np.ascontiguousarray(x.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2))
        for array in layouts:
            assert_close(kernels.activate(array, activation), reference.activate(array, activation))
    with pytest.raises(ValueError, match="'softsign'"):
        kernels.activate(x, ("softsign", 0.0, 0.0))


def random_pool(rng):
    kernel = (pick(rng, 1, 2, 3, 5), pick(rng, 2, 3, 4))
    padding = (0, 0, 0, 0) if rng.integers(2) else tuple(int(rng.integers(0, k // 2 + 1)) for k in np.repeat(kernel, 2))
    stride = (pick(rng, 1, 2, 3), pick(rng, 1, 2, kernel[1]))
    spec = PoolSpec(kernel, stride, padding, (pick(rng, 1, 1, 2), 1), bool(rng.integers(2)))
    return (pick(rng, 0, 1, 2), pick(rng, 1, 3, 8, 16, 19), *(int(s) for s in rng.integers(5, 20, 2))), spec


@needs_onednn
@pytest.mark.parametrize("seed", range(BATCHES))
def test_pooling_and_its_gradients(seed):
    rng = np.random.default_rng(seed)
    for _ in range(PER_BATCH):
        x_shape, spec = random_pool(rng)
        x = arrange(rng, normal(rng, *x_shape))
        y, state = kernels.max_pool2d(x, spec)
        expected, taps = reference.max_pool2d(x, spec)
        assert np.array_equal(y, expected)
        assert np.array_equal(kernels.max_pool2d(x, spec, need_state=False)[0], expected)
        gy = arrange(rng, normal(rng, *y.shape))
        assert_close(kernels.max_pool2d_grad(gy, x_shape, state), reference.max_pool2d_grad(gy, x_shape, taps, spec))
        for count_include_pad in (True, False):
            arguments = spec, count_include_pad
            assert_close(kernels.avg_pool2d(x, *arguments), reference.avg_pool2d(x, *arguments))
            assert_close(
                kernels.avg_pool2d_grad(gy, x_shape, *arguments), reference.avg_pool2d_grad(gy, x_shape, *arguments)
            )


@needs_onednn
@pytest.mark.parametrize("seed", range(5))
def test_batch_norm_and_its_gradients(seed):
    rng = np.random.default_rng(seed)
    for _ in range(10):
        shape = pick(rng, 0, 1, 2, 5), pick(rng, 1, 3, 16, 24, 33), *(int(s) for s in rng.integers(1, 12, 2))
        x, gy = arrange(rng, normal(rng, *shape) * 2 + 1), arrange(rng, normal(rng, *shape))
        gamma, beta = normal(rng, shape[1]), normal(rng, shape[1])
        wide = [a.astype(np.float64) for a in (x, gy, gamma, beta)]
        _, mean, var = expected = reference.batch_norm(wide[0], *wide[2:], 1e-3)
        found = kernels.batch_norm(x, gamma, beta, 1e-3)
        for f, e in zip(found, expected):
            assert_close(f, e)
        rectified = kernels.batch_norm(x, gamma, beta, 1e-3, relu=True)
        assert_close(rectified[0], np.maximum(expected[0], 0))
        passed = wide[1] * (rectified[0] > 0)
        expected = reference.batch_norm_grad(*wide[:3], mean, var, 1e-3)
        for f, e in zip(kernels.batch_norm_grad(x, gy, gamma, *found[1:3], 1e-3), expected):
            assert_close(f, e, scale=1)
        _, mean, var, notes = rectified
        if notes is not None:
            expected = reference.batch_norm_grad(wide[0], passed, wide[2], mean, var, 1e-3)
            for f, e in zip(kernels.batch_norm_grad(x, gy, gamma, mean, var, 1e-3, notes), expected):
                assert_close(f, e, scale=1)
        assert (notes is None) == (x.size == 0)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_fused_relu_does_not_hide_divergence(bad):
    rng = np.random.default_rng(0)
    x, gamma, beta = normal(rng, 2, 16, 30, 40), normal(rng, 16), normal(rng, 16)
    x[0, 3, 1, 1] = bad
    gamma[5] = np.nan
    with np.errstate(invalid="ignore"):  # the reference's
        y = kernels.batch_norm(x, gamma, beta, 1e-3, relu=True)[0]
    assert np.flatnonzero(np.isnan(y).any((0, 2, 3))).tolist() == [3, 5]
    for name in ("relu", "relu6", "hard_sigmoid", "leaky_relu", "silu", "hard_swish"):
        assert np.isnan(kernels.activate(np.full((200, 200), np.nan, np.float32), (name, 0.5, 0.0))).all(), name
    assert np.isnan(kernels.add(x, x * np.nan, relu=True)).all()


@needs_onednn
@pytest.mark.parametrize("function", [F.relu, F.relu6, F.leaky_relu, F.sigmoid, F.tanh, F.silu, F.hard_sigmoid,
                                      F.hard_swish, F.gelu, F.mish])  # fmt: skip
def test_gradients_of_activations(function):
    """The kernel's equal those of the formula, which is taken where a graph of the gradient is asked for."""
    rng = np.random.default_rng(0)
    for shape in ((2, 17, 20, 30), (30000,), (0, 3)):
        x = Tensor(arrange(rng, normal(rng, *shape) * 4), requires_grad=True)
        gy = Tensor(arrange(rng, normal(rng, *shape)))
        expected, found = (grad([function(x)], [x], [gy], create_graph=c)[0].data for c in (True, False))
        assert_close(found, expected, scale=1)


@pytest.mark.parametrize("relu", [False, True])
def test_sums(relu):
    rng = np.random.default_rng(0)
    for shape in ((2, 17, 20, 30), (3, 40, 500), (5,)):
        a, b = (arrange(rng, normal(rng, *shape)) for _ in range(2))
        expected = np.maximum(a + b, 0) if relu else a + b
        assert np.array_equal(kernels.add(a, b, relu), expected)


@needs_onednn
@pytest.mark.parametrize(
    ("a_shape", "b_shape"),
    [
        ((40, 50), (50, 60)),
        ((2, 40, 50), (50, 60)),
        ((3, 40, 50), (3, 50, 60)),
        ((2, 3, 40, 50), (2, 3, 50, 60)),
        ((2, 1, 40, 50), (3, 50, 60)),
        ((40, 50), (3, 50, 60)),
        ((1, 5000), (5000, 40)),
        ((5000, 1), (1, 40)),
        ((300, 500), (500, 1)),
        ((0, 50), (50, 60)),
        ((4, 0), (0, 60)),
    ],
)
def test_matrix_products(a_shape, b_shape, monkeypatch):
    monkeypatch.setattr(kernels, "_SMALL_PRODUCT", 1)
    rng = np.random.default_rng(0)
    for transposed in (False, True):
        a, b = normal(rng, *a_shape), normal(rng, *b_shape)
        if transposed:
            a, b = (np.ascontiguousarray(m.swapaxes(-1, -2)).swapaxes(-1, -2) for m in (a, b))
        assert_close(kernels.matmul(a, b), np.matmul(a, b))
        assert_close(kernels.matmul(np.flip(a, -1), b[..., ::-1]), np.matmul(np.flip(a, -1), b[..., ::-1]))
        if b.ndim == 2:
            bias = normal(rng, b.shape[1])
            assert_close(kernels.linear(a, b.T, bias), reference.linear(a, b.T, bias))
            assert_close(kernels.linear(a, b.T, None), reference.linear(a, b.T, None))


def test_wrong_matrix_shapes_raise():
    with pytest.raises(ValueError):
        kernels.matmul(np.ones((300, 400), np.float32), np.ones((300, 400), np.float32))
    with pytest.raises(ValueError):
        kernels.linear(np.ones((300, 400), np.float32), np.ones((300, 300), np.float32), None)
    with pytest.raises(ValueError, match="input channels"):
        kernels.conv2d(np.ones((1, 5, 8, 8), np.float32), np.ones((4, 3, 3, 3), np.float32), None, ConvSpec())


def test_other_dtypes_take_the_reference():
    x, w = np.ones((1, 2, 4, 4)), np.ones((3, 2, 3, 3))
    for dtype in (np.float64, np.float16):
        y = kernels.conv2d(x.astype(dtype), w.astype(dtype), None, ConvSpec())
        assert y.dtype == dtype
        assert (y == 18).all()


def test_threads_run_the_same_convolution_at_once():
    rng = np.random.default_rng(0)
    w, spec = normal(rng, 32, 32, 3, 3), ConvSpec((1, 1), (1, 1, 1, 1))
    conv = FusedConv2d(w, None, spec)
    xs = [normal(rng, 1, 32, 20, 20) for _ in range(4)]
    expected = [reference.conv2d(x, w, None, spec) for x in xs]
    failures = []

    def work(index):
        try:
            for _ in range(30):
                assert_close(conv(xs[index]), expected[index])
                assert_close(kernels.conv2d(xs[index], w, None, spec), expected[index])
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


@needs_onednn
def test_changing_the_number_of_threads():
    rng = np.random.default_rng(0)
    x, w, spec = normal(rng, 1, 16, 30, 30), normal(rng, 16, 16, 3, 3), ConvSpec()
    expected, before = reference.conv2d(x, w, None, spec), kernels.get_num_threads()
    try:
        for count in (1, 3, 2):
            kernels.set_num_threads(count)
            assert kernels.get_num_threads() == count
            assert_close(kernels.conv2d(x, w, None, spec), expected)
        with pytest.raises(ValueError, match="got 0"):
            kernels.set_num_threads(0)
    finally:
        kernels.set_num_threads(before)


@needs_onednn
def test_the_cache_of_programs_is_bounded(monkeypatch):
    monkeypatch.setattr(onednn, "_CACHED_PROGRAMS", 4)
    rng = np.random.default_rng(0)
    w, spec = normal(rng, 4, 4, 3, 3), ConvSpec()
    for size in (*range(3, 12), *range(3, 12)):
        x = normal(rng, 1, 4, size, size)
        assert_close(kernels.conv2d(x, w, None, spec), reference.conv2d(x, w, None, spec))
    assert len(onednn._thread.programs) <= 5


def test_use_reference_and_the_names_of_the_backend():
    assert kernels.backend_name() == ("onednn" if HAVE_ONEDNN else "reference")
    x, w = np.ones((1, 2, 8, 8), np.float32), np.ones((3, 2, 3, 3), np.float32)
    conv = FusedConv2d(w, None, ConvSpec())
    with kernels.use_reference():
        assert kernels.backend_name() == "reference"
        assert kernels.library_version() is None
        assert (conv(x) == 18).all()
        _, state = kernels.max_pool2d(x, PoolSpec((2, 2), (2, 2)))
    assert kernels.max_pool2d_grad(np.ones((1, 2, 4, 4), np.float32), x.shape, state).sum() == 32
    assert kernels.backend_name() == ("onednn" if HAVE_ONEDNN else "reference")


def test_a_missing_library_is_one_warning(monkeypatch, caplog):
    monkeypatch.setattr(kernels, "_reference_only", ContextVar("reference_only", default=False))
    monkeypatch.setattr(onednn, "_library", None)
    monkeypatch.setattr(onednn, "_searched", False)
    monkeypatch.setattr(onednn, "_candidates", lambda: ["/nowhere/libdnnl.so.3"])
    x, w = np.ones((1, 2, 8, 8), np.float32), np.ones((3, 2, 3, 3), np.float32)
    with caplog.at_level(logging.WARNING, "chainsight"):
        for _ in range(3):
            assert (kernels.conv2d(x, w, None, ConvSpec()) == 18).all()
    (record,) = caplog.records
    assert "/nowhere/libdnnl.so.3" in record.getMessage()


PROGRAM = """
import logging, os, sys
logging.basicConfig(stream=sys.stdout)
import numpy as np
from chainsight.core import Tensor, grad, kernels, no_grad
from chainsight.core import functions as F
from chainsight.core.kernels import ConvSpec
x, w = np.ones((1, 2, 8, 8), np.float32), np.ones((3, 2, 3, 3), np.float32)
assert (kernels.conv2d(x, w, None, ConvSpec()) == 18).all()
assert "GOMP_SPINCOUNT" not in os.environ
if sys.argv[1] == "fork":
    child = os.fork()
    if child == 0:
        big = np.ones((8, 64, 64, 64), np.float32)  # enough for two threads
        kernels.conv2d(big, np.ones((64, 64, 3, 3), np.float32), None, ConvSpec())
        kernels.set_num_threads(2)
        os._exit(0 if kernels.get_num_threads() == 1 else 1)
    assert os.waitpid(child, 0)[1] == 0
print(kernels.backend_name())
"""


def run(argument, **variables):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, argument],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert not done.stderr
    return done.stdout.splitlines()


def test_the_environment_variable_selects_the_reference():
    assert run("plain", CHAINSIGHT_ONEDNN="0") == ["reference"]


@needs_onednn
def test_a_forked_child_computes_on_one_thread():
    assert run("fork", OMP_NUM_THREADS="2", CHAINSIGHT_ONEDNN="1") == ["onednn"]


def channels_last(*shape):
    y = kernels.empty(shape)
    y[...] = np.random.default_rng(0).standard_normal(shape)
    return y


@needs_onednn
@pytest.mark.parametrize("shape", [(1, 72, 28, 28), (3, 7, 41, 40), (2, 130, 1, 90)])
def test_multiplying_by_channel(shape):
    scale = channels_last(*shape[:2], 1, 1)
    for x in (channels_last(*shape), np.ascontiguousarray(channels_last(*shape)), channels_last(*shape)[::-1, ::-1]):
        y = onednn.multiply(x, scale)
        assert np.array_equal(y, x * scale)
        assert np.array_equal(kernels.multiply(x, scale), y)


@needs_onednn
def test_joining_channels():
    whole = channels_last(2, 6, 60, 70)
    parts = [[whole, channels_last(2, 3, 60, 70)], [whole[..., ::2, ::2], whole[..., 1::2, ::2]], [whole[:, 2:], whole]]
    for arrays in (*parts, [np.ascontiguousarray(a) for a in parts[0]], [parts[0][1], np.ascontiguousarray(whole)]):
        assert np.array_equal(kernels.concatenate(arrays, 1), np.concatenate(arrays, 1))
    assert onednn.concatenate(parts[0]) is not None
    assert kernels.concatenate([whole[:, :0], whole], 1).shape == whole.shape


@needs_onednn
@pytest.mark.parametrize("mode", ["nearest", "bilinear"])
@pytest.mark.parametrize("size", [(28, 32), (14, 64), (7, 16), (7, 2)])
def test_resizing_by_powers_of_two(mode, size):
    x = channels_last(2, 5, 14, 16)
    y = kernels.resize(x, size, mode)
    if mode == "nearest" and size < (14, 16):
        assert y is None
        return
    expected = F.resize(Tensor(x, requires_grad=True), size, mode).numpy()  # recorded: by the tables of weights
    assert np.abs(y - expected).max() <= (0 if mode == "nearest" else 2e-6)
    with no_grad():
        assert np.array_equal(F.resize(Tensor(x), size, mode).numpy(), y)


def test_resizing_to_other_sizes_is_left_to_exact_weights():
    assert all(kernels.resize(channels_last(1, 2, 13, 17), size, "bilinear") is None for size in ((20, 17), (13, 51)))
