"""Values against definitions written out in NumPy, and the errors of bad input."""

import itertools
import math

import chainsight.core.functions as F
import fake_cupy
import numpy as np
import pytest
from chainsight.core import Tensor, grad, no_grad, seed
from chainsight.core.functions import interpolate
from chainsight.core.functions.interpolate import Taps
from chainsight.core.kernels import onednn, reference
from chainsight.vision.detection.losses import focal_loss, iou_loss
from chainsight.vision.detection.roi_align import roi_align
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

fake_cupy.install()
RNG = np.random.default_rng(0)
X = np.linspace(-8, 8, 161)
LOGISTIC = 1 / (1 + np.exp(-X))
RAMP = np.clip(X + 3, 0, 6) / 6

ONE_VALUE = {
    "neg": -X,
    "abs": np.where(X < 0, -X, X),
    "exp": np.array([math.exp(v) for v in X]),
    "atan": np.array([math.atan(v) for v in X]),
    "erf": np.array([math.erf(v) for v in X]),
    "sigmoid": LOGISTIC,
    "tanh": np.array([math.tanh(v) for v in X]),
    "softplus": np.log1p(np.exp(X)),
    "relu": np.where(X > 0, X, 0),
    "relu6": np.clip(X, 0, 6),
    "leaky_relu": np.where(X > 0, X, 0.01 * X),
    "silu": X * LOGISTIC,
    "hard_sigmoid": RAMP,
    "hard_swish": X * RAMP,
    "gelu": X * np.array([0.5 * math.erfc(-v / math.sqrt(2)) for v in X]),
    "mish": X * np.tanh(np.log1p(np.exp(X))),
}


@pytest.mark.parametrize("name", ONE_VALUE)
def test_functions_of_one_value(name):
    np.testing.assert_allclose(getattr(F, name)(Tensor(X)).numpy(), ONE_VALUE[name], rtol=1e-12, atol=1e-12)
    single = getattr(F, name)(Tensor(X.astype(np.float32)))
    assert single.dtype == np.float32
    np.testing.assert_allclose(single.numpy(), ONE_VALUE[name], rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("name", ["sigmoid", "softplus", "silu", "mish", "gelu", "tanh", "hard_swish"])
def test_extremes_neither_overflow_nor_give_nan(name):
    x = Tensor(np.array([-1e4, -100, 0, 100, 1e4], np.float32), requires_grad=True)
    y = getattr(F, name)(x)
    y.sum().backward()
    assert np.isfinite(y.numpy()).all()
    assert np.isfinite(x.grad.numpy()).all()


def test_logarithm_square_root_and_powers():
    x = Tensor(np.array([0.25, 1.0, 4.0]))
    np.testing.assert_allclose(F.log(x).numpy(), [math.log(0.25), 0, math.log(4)])
    np.testing.assert_array_equal(F.sqrt(x).numpy(), [0.5, 1, 2])
    np.testing.assert_array_equal((x**-1).numpy(), [4, 1, 0.25])
    np.testing.assert_array_equal((x ** np.int64(2)).numpy(), [0.0625, 1, 16])
    np.testing.assert_array_equal((Tensor(np.array([-2.0])) ** np.float32(3)).numpy(), [-8])
    np.testing.assert_allclose((x**x).numpy(), np.array([0.25, 1.0, 4.0]) ** np.array([0.25, 1.0, 4.0]))


def test_powers_at_zero_have_finite_derivatives():
    x = Tensor(np.zeros(2), requires_grad=True)
    for exponent, expected in ((0, [0, 0, 0]), (1, [1, 0, 0]), (2, [0, 2, 0]), (3, [0, 0, 6])):
        y, found = x**exponent, []
        for _ in range(3):
            y = grad([y.sum()], [x], create_graph=True)[0] if y.requires_grad else Tensor(np.zeros(2))
            found.append(y.numpy()[0])
        assert found == expected


def test_ties_share_the_gradient():
    a, b = (Tensor(np.array([1.0, 2.0]), requires_grad=True) for _ in range(2))
    for function in (F.maximum, F.minimum):
        ga, gb = grad([function(a, b).sum()], [a, b])
        np.testing.assert_array_equal(ga.numpy(), [0.5, 0.5])
        np.testing.assert_array_equal(gb.numpy(), [0.5, 0.5])
    x = Tensor(np.array([[3.0, 1.0, 3.0]]), requires_grad=True)
    np.testing.assert_array_equal(grad([x.max()], [x])[0].numpy(), [[0.5, 0, 0.5]])


def test_gradients_at_the_limits():
    x = Tensor(np.array([-1.0, 0.0, 6.0, 7.0]), requires_grad=True)
    np.testing.assert_array_equal(grad([F.relu6(x).sum()], [x])[0].numpy(), [0, 0, 0, 0])
    np.testing.assert_array_equal(grad([F.clip(x, 0, 6).sum()], [x])[0].numpy(), [0, 1, 1, 0])
    np.testing.assert_array_equal(grad([F.relu(x).sum()], [x])[0].numpy(), [0, 0, 1, 1])
    np.testing.assert_array_equal(grad([abs(x).sum()], [x])[0].numpy(), [-1, 0, 1, 1])


def test_where_needs_a_bool_condition():
    a = Tensor(np.ones(2))
    np.testing.assert_array_equal(F.where(Tensor(np.array([True, False])), a, 0.0).numpy(), [1, 0])
    with pytest.raises(TypeError, match="expected a condition of dtype bool, got int64"):
        F.where(np.array([1, 0]), a, 0.0)
    with pytest.raises(ValueError, match="do not broadcast"):
        F.where(np.array([True, False, True]), a, 0.0)
    with pytest.raises(TypeError, match="the condition is not on the operands' device, cuda:0"):
        F.where(np.array([True, False]), Tensor(fake_cupy.ones(2)), 0.0)


# Reductions


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_reductions_over_any_axes(data):
    array = data.draw(
        hnp.arrays(np.float64, hnp.array_shapes(min_dims=0, max_dims=4, max_side=3), elements=st.floats(-3, 3))
    )
    subsets = st.one_of(
        st.none(), st.lists(st.integers(-array.ndim, array.ndim - 1), unique_by=lambda a: a % array.ndim)
    )
    axis = data.draw(subsets) if array.ndim else None
    axis = tuple(axis) if isinstance(axis, list) else axis
    keepdims = data.draw(st.booleans())
    x = Tensor(array, requires_grad=True)
    for name in ("sum", "mean", "max", "min"):
        y = getattr(F, name)(x, axis, keepdims)
        expected = getattr(np, name)(array, axis=axis, keepdims=keepdims)
        assert y.shape == np.shape(expected)
        np.testing.assert_allclose(y.numpy(), expected, rtol=1e-12, atol=1e-12)
        (g,) = grad([y.sum()], [x])
        assert g.shape == array.shape
        assert g.numpy().sum() == pytest.approx(y.size * (array.size / max(y.size, 1) if name == "sum" else 1))
    y = F.logsumexp(x, axis, keepdims)
    np.testing.assert_allclose(y.numpy(), np.log(np.exp(array).sum(axis=axis, keepdims=keepdims)), atol=1e-12)


def test_reductions_of_nothing():
    empty = Tensor(np.zeros((0, 3)))
    assert F.sum(empty).item() == 0
    assert math.isnan(F.mean(empty).item())
    with pytest.raises(ValueError, match=r"Max: no values along axis 0 of shape \(0, 3\)"):
        F.max(empty, 0)
    with pytest.raises(ValueError, match="Sum: axis 2 is out of range for 2 axes"):
        F.sum(empty, 2)
    assert F.softmax(empty, 1).shape == (0, 3)


def test_the_softmax_family():
    x = RNG.standard_normal((2, 5, 3)) * 4
    e = np.exp(x)
    for axis in (0, 1, -1):
        p = e / e.sum(axis, keepdims=True)
        np.testing.assert_allclose(F.softmax(Tensor(x), axis).numpy(), p)
        np.testing.assert_allclose(F.log_softmax(Tensor(x), axis).numpy(), np.log(p))
    large = Tensor(np.array([1e4, 0.0, -1e4]))
    np.testing.assert_array_equal(F.softmax(large).numpy(), [1, 0, 0])
    np.testing.assert_array_equal(F.log_softmax(large).numpy(), [0, -1e4, -2e4])
    with pytest.raises(ValueError, match="softmax: axis 3 is out of range for 3 axes"):
        F.softmax(Tensor(x), 3)


# Shapes


@settings(deadline=None, max_examples=40)
@given(st.data())
def test_shape_functions_against_numpy(data):
    shape = data.draw(hnp.array_shapes(max_dims=4, max_side=4))
    array = np.arange(math.prod(shape), dtype=float).reshape(shape)
    x, axis = Tensor(array), data.draw(st.integers(-len(shape), len(shape) - 1))
    order = data.draw(st.permutations(range(len(shape))))
    widths = data.draw(
        st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), min_size=len(shape), max_size=len(shape))
    )
    np.testing.assert_array_equal(F.transpose(x, order).numpy(), array.transpose(order))
    np.testing.assert_array_equal(F.flip(x, axis).numpy(), np.flip(array, axis))
    np.testing.assert_array_equal(F.expand_dims(x, axis).numpy(), np.expand_dims(array, axis))
    np.testing.assert_array_equal(F.squeeze(F.expand_dims(x, axis), axis).numpy(), array)
    np.testing.assert_array_equal(F.pad(x, widths, 7).numpy(), np.pad(array, widths, constant_values=7))
    np.testing.assert_array_equal(F.stack([x, x + 1], axis).numpy(), np.stack([array, array + 1], axis))
    np.testing.assert_array_equal(F.concatenate([x, x], axis).numpy(), np.concatenate([array, array], axis))
    for parts in [d for d in range(1, 5) if shape[axis] % d == 0]:
        for a, b in zip(F.split(x, parts, axis), np.split(array, parts, axis), strict=True):
            np.testing.assert_array_equal(a.numpy(), b)


@settings(deadline=None, max_examples=40)
@given(hnp.mutually_broadcastable_shapes(num_shapes=1, base_shape=(2, 3, 2), max_dims=3))
def test_sum_to_is_the_adjoint_of_broadcast_to(shapes):
    (shape,) = shapes.input_shapes
    if np.broadcast_shapes(shape, (2, 3, 2)) != (2, 3, 2):
        return
    a, b = RNG.standard_normal(shape), RNG.standard_normal((2, 3, 2))
    wide, narrow = F.broadcast_to(Tensor(a), (2, 3, 2)), F.sum_to(Tensor(b), shape)
    assert (wide.numpy() * b).sum() == pytest.approx((narrow.numpy() * a).sum())


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda x: F.reshape(x, (4, 2)), ValueError, r"Reshape: 6 values of shape \(2, 3\) do not fill shape \(4, 2\)"),
        (lambda x: F.transpose(x, (0, 0)), ValueError, r"Transpose: \(0, 0\) is no order of the 2 axes"),
        (
            lambda x: F.broadcast_to(x, (2, 4)),
            ValueError,
            r"BroadcastTo: shape \(2, 3\) does not broadcast to \(2, 4\)",
        ),
        (lambda x: F.sum_to(x, (2, 2)), ValueError, r"SumTo: shape \(2, 2\) does not broadcast to \(2, 3\)"),
        (lambda x: F.sum_to(x, (1, 2, 3)), ValueError, "does not broadcast"),
        (lambda x: F.squeeze(x, 1), ValueError, "axis 1 of shape .* has size 3, not 1"),
        (lambda x: F.squeeze(x, 2), ValueError, "axis 2 is out of range"),
        (lambda x: F.expand_dims(x, 5), ValueError, "axis 5 is out of range for 3 axes"),
        (lambda x: F.concatenate([]), ValueError, "expected at least one tensor"),
        (lambda x: F.concatenate([x, x], 2), ValueError, "Concatenate: axis 2 is out of range for 2 axes"),
        (lambda x: F.concatenate([x, x[:1]], 1), ValueError, r"shapes \(2, 3\), \(1, 3\) differ outside of axis 1"),
        (lambda x: F.concatenate([x, x[0]]), ValueError, r"shapes \(2, 3\), \(3,\) differ"),
        (lambda x: F.concatenate([x, x.astype("float32")]), TypeError, "one dtype, got float64, float32"),
        (lambda x: F.split(x, (1, 1), 1), ValueError, r"sizes \[1, 1\] do not add up to 3, axis 1"),
        (lambda x: F.split(x, 2, 1), ValueError, "cannot be cut into 2 equal parts"),
        (lambda x: F.split(x, 0), ValueError, "cannot be cut into 0 equal parts"),
        (lambda x: F.pad(x, [(1, 1)]), ValueError, "expected 2 pairs of widths of at least 0"),
        (lambda x: F.pad(x, [(1, -1), (0, 0)]), ValueError, "expected 2 pairs of widths of at least 0"),
        (lambda x: F.scatter_add(x, [0], (4, 3)), ValueError, r"expected values of shape \(1, 3\)"),
        (lambda x: F.flip(x, 2), ValueError, "flip: axis 2"),
    ],
)
def test_errors_of_shape(call, error, message):
    with pytest.raises(error, match=message):
        call(Tensor(np.ones((2, 3))))


def test_indices_of_every_kind():
    array = np.arange(12.0).reshape(3, 4)
    x = Tensor(array)
    rows = np.array([2, 0])
    for index in (
        rows,
        [2, 0],
        Tensor(rows),
        (rows, rows),
        (slice(None), [1, 1]),
        array > 5,
        np.int64(1),
        [],
        (None, 1, ...),
    ):
        plain = index.numpy() if isinstance(index, Tensor) else index
        np.testing.assert_array_equal(x[index].numpy(), array[plain])


# Products


@settings(deadline=None, max_examples=40)
@given(hnp.mutually_broadcastable_shapes(signature=np.matmul.signature, max_side=3, max_dims=3))
def test_matrix_products_of_any_shapes(shapes):
    a, b = (RNG.standard_normal(s) for s in shapes.input_shapes)
    x, y = Tensor(a, requires_grad=True), Tensor(b, requires_grad=True)
    z = x @ y
    assert z.shape == shapes.result_shape
    np.testing.assert_allclose(z.numpy(), a @ b, atol=1e-12)
    z.backward(Tensor(np.ones(z.shape)))
    assert (x.grad.shape, y.grad.shape) == (a.shape, b.shape)


def test_linear():
    x, w, b = RNG.standard_normal((2, 5, 3)), RNG.standard_normal((4, 3)), RNG.standard_normal(4)
    np.testing.assert_allclose(F.linear(Tensor(x), Tensor(w), Tensor(b)).numpy(), np.einsum("abi,oi->abo", x, w) + b)
    with pytest.raises(
        ValueError, match=r"Linear: expected weight \(out, in\) and x \(\.\.\., in\), got weight \(4, 3\)"
    ):
        F.linear(Tensor(x[..., :2]), Tensor(w))
    with pytest.raises(ValueError, match=r"Linear: expected a bias of shape \(4,\)"):
        F.linear(Tensor(x), Tensor(w), Tensor(b[:3]))
    with pytest.raises(TypeError, match="Linear: expected operands of one dtype"):
        F.linear(Tensor(x), Tensor(w.astype(np.float32)))


# Convolution and pooling: values are the goldens'; here are the errors


def images(*shape):
    return Tensor(np.ones(shape))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: F.conv2d(images(1, 3, 5, 5), images(2, 4, 3, 3)), r"expected x \(n, 4, height, width\) for weight"),
        (lambda: F.conv2d(images(3, 5, 5), images(2, 3, 3, 3)), r"got \(3, 5, 5\)"),
        (lambda: F.conv2d(images(1, 3, 5, 5), images(2, 3, 3)), r"expected weight \(out, in / groups, kh, kw\)"),
        (lambda: F.conv2d(images(1, 4, 5, 5), images(3, 2, 3, 3), groups=2), "for 2 groups"),
        (lambda: F.conv2d(images(1, 3, 5, 5), images(2, 3, 3, 3), images(3)), r"a bias of shape \(2,\)"),
        (
            lambda: F.conv2d(images(1, 3, 5, 5), images(2, 3, 3, 3), stride=0),
            "stride, dilation and groups of at least 1",
        ),
        (lambda: F.conv2d(images(1, 3, 5, 5), images(2, 3, 3, 3), padding=-1), "padding of at least 0"),
        (lambda: F.conv_transpose2d(images(1, 3, 5, 5), images(2, 3, 3, 3)), r"weight \(in, out / groups, kh, kw\)"),
        (lambda: F.conv_transpose2d(images(1, 2, 1, 1), images(2, 3, 1, 1), padding=2), "leaves an output of size"),
        (lambda: F.max_pool2d(images(3, 5, 5), 2), r"MaxPool2d: expected x \(n, channels, height, width\)"),
        (lambda: F.avg_pool2d(images(3, 5, 5), 2), r"AvgPool2d: expected x \(n, channels, height, width\)"),
        (lambda: F.max_pool2d(images(1, 3, 5, 5), 2, padding=2), "padding from 0 to half of the kernel"),
        (lambda: F.max_pool2d(images(1, 3, 5, 5), 0), "kernel, stride and dilation of at least 1"),
        (
            lambda: F.batch_norm(images(1, 3, 5, 5), images(2), images(2)),
            r"BatchNorm: expected x .* got \(1, 3, 5, 5\)",
        ),
        (lambda: F.batch_norm(images(1, 3), images(3), images(3)), "BatchNorm: expected x"),
        (lambda: F.batch_norm(images(0, 3, 5, 5), images(3), images(3)), "no values to take statistics of"),
        (lambda: F.group_norm(images(1, 3, 5, 5), 2, images(3), images(3)), "2 equal groups"),
        (lambda: F.layer_norm(images(2, 3), images(2), images(2)), r"end in axes of \(2,\), got \(2, 3\)"),
        (lambda: F.dropout(images(2), 1.0), "ratio from 0 to below 1, got 1"),
        (lambda: F.resize(images(1, 3, 5, 5), 0), "a size of at least 1"),
        (lambda: F.resize(images(3, 5, 5), 2), r"expected x \(n, channels, height, width\)"),
        (lambda: F.resize(images(1, 3, 5, 5), 2, "cubic"), "got 'cubic'"),
        (lambda: F.resize(images(1, 3, 5, 5), 2, "nearest", antialias=True), "without antialias"),
        (lambda: F.adaptive_avg_pool2d(images(1, 3, 0, 5), 2), r"adaptive_avg_pool2d: .* got \(1, 3, 0, 5\)"),
    ],
)
def test_errors_of_images(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_asymmetric_padding():
    x, w = RNG.standard_normal((1, 2, 4, 4)), RNG.standard_normal((3, 2, 3, 3))
    padded = np.pad(x, ((0, 0), (0, 0), (0, 1), (2, 3)))
    np.testing.assert_allclose(
        F.conv2d(Tensor(x), Tensor(w), padding=(0, 1, 2, 3)).numpy(), F.conv2d(Tensor(padded), Tensor(w)).numpy()
    )


@pytest.mark.parametrize("batch", [0, 1])
def test_empty_batches_go_through_forward_and_backward(batch):
    x = Tensor(np.ones((batch, 4, 6, 6), np.float32), requires_grad=True)
    w = Tensor(np.ones((2, 4, 3, 3), np.float32), requires_grad=True)
    calls = [
        lambda: F.conv2d(x, w, padding=1),
        lambda: F.conv_transpose2d(x, Tensor(np.ones((4, 2, 2, 2), np.float32)), stride=2),
        lambda: F.max_pool2d(x, 3, 2, 1),
        lambda: F.avg_pool2d(x, 2),
        lambda: F.adaptive_avg_pool2d(x, (2, 3)),
        lambda: F.resize(x, (9, 3)),
        lambda: F.resize(x, 12, "nearest"),
        lambda: roi_align(x, np.zeros((0, 4)), np.zeros(0), 7),
        lambda: F.group_norm(x, 2, Tensor(np.ones(4, np.float32)), Tensor(np.ones(4, np.float32))),
        lambda: F.silu(F.softmax(x, 1)),
    ]
    for call in calls:
        x.grad = None
        y = call()
        assert y.shape[0] in (batch, 0)
        assert y.dtype == np.float32
        y.sum().backward()
        assert x.grad.shape == x.shape


# Resizing and regions


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 9), st.integers(1, 9), st.booleans())
def test_bilinear_resize_of_a_line(before, after, align_corners):
    """Against NumPy's own linear interpolation, which also holds the value beyond the ends."""
    line = RNG.standard_normal(before)
    if align_corners:
        places = np.linspace(0, before - 1, after) if after > 1 else np.zeros(1)
    else:
        places = (np.arange(after) + 0.5) * before / after - 0.5
    expected = np.interp(places, np.arange(before), line)
    x = Tensor(np.broadcast_to(line, (1, 2, 3, before)))
    y = F.resize(x, (3, after), align_corners=align_corners)
    np.testing.assert_allclose(y.numpy()[0, 1, 2], expected, atol=1e-12)
    tall = F.resize(
        Tensor(np.ascontiguousarray(x.numpy().transpose(0, 1, 3, 2))), (after, 3), align_corners=align_corners
    )
    np.testing.assert_allclose(tall.numpy()[0, 1, :, 2], expected, atol=1e-12)


@pytest.mark.parametrize(("before", "after"), [((4, 6), (8, 12)), ((3, 5), (7, 2))])
def test_nearest_resize(before, after):
    x = RNG.standard_normal((2, 3, *before))
    rows = np.arange(after[0]) * before[0] // after[0]
    columns = np.arange(after[1]) * before[1] // after[1]
    np.testing.assert_array_equal(F.resize(Tensor(x), after, "nearest").numpy(), x[:, :, rows][:, :, :, columns])


def test_results_of_resizing_are_channels_last():
    for size in ((8, 12), (2, 3)):
        y = F.resize(Tensor(np.ones((2, 5, 4, 6))), size)
        assert y.data.transpose(0, 2, 3, 1).flags.c_contiguous


def test_adaptive_pooling():
    x = RNG.standard_normal((2, 3, 7, 5))
    y = F.adaptive_avg_pool2d(Tensor(x), (3, 4)).numpy()
    for i, j in itertools.product(range(3), range(4)):
        cell = x[:, :, i * 7 // 3 : -(-(i + 1) * 7 // 3), j * 5 // 4 : -(-(j + 1) * 5 // 4)]
        np.testing.assert_allclose(y[:, :, i, j], cell.mean((2, 3)))


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_a_table_and_its_transpose(data):
    """Against the dense matrix, in pieces of every size."""
    size, rows, taps = (data.draw(st.integers(1, 6)) for _ in range(3))
    outer, inner = data.draw(st.integers(0, 3)), data.draw(st.sampled_from([0, 1, 3, 16, 40]))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    weight = rng.standard_normal((rows, taps)) * (rng.random((rows, taps)) > 0.3)
    table = Taps(rng.integers(0, size, (rows, taps)), weight, size)
    dense = np.zeros((rows, size))
    np.add.at(dense, (np.arange(rows)[:, None], table.index), table.weight)
    x, y = rng.standard_normal((outer, size, inner)), rng.standard_normal((outer, rows, inner))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(interpolate, "CHUNK_BYTES", data.draw(st.sampled_from([1, 300, 1 << 19])))
        np.testing.assert_allclose(table.apply(x), np.einsum("rs,osi->ori", dense, x), atol=1e-12)
        np.testing.assert_allclose(table.apply_transposed(y), np.einsum("rs,ori->osi", dense, y), atol=1e-12)


def test_an_infinity_stays_where_it_is_read():
    x = np.zeros((1, 1, 4, 6))
    x[0, 0, 0, 0] = np.inf
    with np.errstate(invalid="ignore"):
        assert np.isfinite(F.adaptive_avg_pool2d(Tensor(x), (2, 4)).numpy()[0, 0, 1:, 1:]).all()


def test_roi_align_of_a_plane_gives_its_value_at_the_centres():
    """Bilinear sampling of a plane is exact, so each cell holds the plane's value at its centre."""
    rows, columns = np.mgrid[0:20, 0:30].astype(float)
    x = Tensor(np.stack([rows, columns, 2 * rows - columns])[None])
    box = np.array([[8.0, 4.0, 40.0, 30.0]])
    for aligned, shift in ((False, 0.0), (True, -0.5)):
        y = roi_align(x, box, np.array([0]), (3, 4), 0.5, 2, aligned).numpy()[0]
        centre_y = 2 + shift + (np.arange(3) + 0.5) * 13 / 3
        centre_x = 4 + shift + (np.arange(4) + 0.5) * 16 / 4
        np.testing.assert_allclose(y[0], np.broadcast_to(centre_y[:, None], (3, 4)))
        np.testing.assert_allclose(y[1], np.broadcast_to(centre_x, (3, 4)))
        np.testing.assert_allclose(y[2], 2 * y[0] - y[1])


def test_roi_align_keeps_the_order_of_boxes_of_unlike_size():
    x = Tensor(RNG.standard_normal((2, 3, 16, 16)))
    boxes = np.array([[0, 0, 3, 3], [0, 0, 15, 12], [2, 3, 4, 9], [1, 1, 14, 15.0]])
    image = np.array([1, 0, 0, 1])
    together = roi_align(x, boxes, image, 3, 1.0, 0).numpy()
    for i in range(4):
        alone = roi_align(x, boxes[i : i + 1], image[i : i + 1], 3, 1.0, 0).numpy()
        np.testing.assert_allclose(together[i], alone[0])


@pytest.mark.parametrize(
    ("boxes", "image", "message"),
    [
        (np.zeros((2, 4)), [0], r"expected 1 boxes \(r, 4\), got shape \(2, 4\)"),
        (np.zeros((1, 5)), [0], "got shape"),
        (np.zeros((2, 4)), [0, 2], "batch_index from 0 to 1, got 0 to 2"),
        (np.zeros((2, 4)), [-1, 0], "batch_index from 0 to 1, got -1 to 0"),
        (np.array([[0, 0, 1, 1], [0, np.nan, 1, 1]]), [0, 0], "finite boxes, got .* as box 1"),
    ],
)
def test_errors_of_regions(boxes, image, message):
    with pytest.raises(ValueError, match=message):
        roi_align(Tensor(np.ones((2, 3, 4, 4))), boxes, np.array(image), 2)


# Norms and dropout


def test_norms():
    x = RNG.standard_normal((3, 4, 5, 2)) * 3 + 1
    weight, bias = RNG.standard_normal(4), RNG.standard_normal(4)
    per_channel = (1, 4, 1, 1)

    def standard(values, axes):
        return (values - values.mean(axes, keepdims=True)) / np.sqrt(values.var(axes, keepdims=True) + 1e-3)

    def affine(values):
        return values * weight.reshape(per_channel) + bias.reshape(per_channel)

    y, mean, var = F.batch_norm(Tensor(x), Tensor(weight), Tensor(bias), 1e-3)
    np.testing.assert_allclose(y.numpy(), affine(standard(x, (0, 2, 3))))
    np.testing.assert_allclose(mean, x.mean((0, 2, 3)))
    np.testing.assert_allclose(var, x.var((0, 2, 3)))
    grouped = standard(x.reshape(3, 2, 2, 5, 2), (2, 3, 4)).reshape(x.shape)
    np.testing.assert_allclose(F.group_norm(Tensor(x), 2, Tensor(weight), Tensor(bias), 1e-3).numpy(), affine(grouped))
    w, b = RNG.standard_normal((5, 2)), RNG.standard_normal((5, 2))
    np.testing.assert_allclose(F.layer_norm(Tensor(x), Tensor(w), Tensor(b), 1e-3).numpy(), standard(x, (2, 3)) * w + b)
    np.testing.assert_allclose(F.normalize(Tensor(x)).numpy(), x / np.sqrt((x * x).sum(1, keepdims=True)))


def test_normalize_of_zeros_is_zero_with_a_finite_gradient():
    x = Tensor(np.zeros((1, 3), np.float32), requires_grad=True)
    y = F.normalize(x)
    y.sum().backward()
    np.testing.assert_array_equal(y.numpy(), [[0, 0, 0]])
    assert np.isfinite(x.grad.numpy()).all()


def test_dropout():
    x = Tensor(np.ones(10_000), requires_grad=True)
    seed(1)
    y = F.dropout(x, 0.25)
    values, counts = np.unique(y.numpy(), return_counts=True)
    np.testing.assert_allclose(values, [0, 1 / 0.75])
    assert 2_300 < counts[0] < 2_700
    y.sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), y.numpy())
    seed(1)
    np.testing.assert_array_equal(F.dropout(x, 0.25).numpy(), y.numpy())
    assert F.dropout(x, 0) is x


# Losses: values are the goldens'; here are the rest


def test_cross_entropy_of_nothing_is_zero():
    x = Tensor(np.zeros((2, 3)), requires_grad=True)
    loss = F.softmax_cross_entropy(x, np.array([-100, -100]))
    loss.backward()
    assert loss.item() == 0
    assert not x.grad.numpy().any()
    assert F.softmax_cross_entropy(Tensor(np.zeros((0, 3))), np.zeros(0, int)).item() == 0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: F.softmax_cross_entropy(x, np.array([0, 3])), "targets must be 0 to 2 or -100, got 3"),
        (lambda x: F.softmax_cross_entropy(x, np.array([0, -1])), "got -1"),
        (lambda x: F.softmax_cross_entropy(x, np.array([0])), r"integer targets .* got \(2, 3\) and int64 \(1,\)"),
        (lambda x: F.softmax_cross_entropy(x, np.array([0.0, 1])), "integer targets .* float64"),
        (lambda x: F.softmax_cross_entropy(x, np.array([0, 1]), reduction="avg"), "got 'avg'"),
        (lambda x: F.sigmoid_cross_entropy(x, x[:1]), r"expected a target of shape \(2, 3\), got \(1, 3\)"),
        (lambda x: focal_loss(x, x[:1]), "focal_loss: expected a target"),
        (lambda x: F.l1_loss(x, x[:1]), "l1_loss: expected a target"),
        (lambda x: F.smooth_l1_loss(x, x[:1]), "smooth_l1_loss: expected a target"),
        (lambda x: iou_loss(x, x), r"expected boxes \(n, 4\), got \(2, 3\)"),
        (lambda x: iou_loss(x, x, "siou"), "got 'siou'"),
    ],
)
def test_errors_of_losses(call, message):
    with pytest.raises(ValueError, match=message):
        call(Tensor(np.ones((2, 3))))


def test_losses_take_arrays_as_targets():
    x = Tensor(np.ones((2, 4), np.float32))
    target = np.zeros((2, 4), np.float32)
    assert F.l1_loss(x, target).item() == 1
    assert F.smooth_l1_loss(x, target).item() == 0.5
    assert F.sigmoid_cross_entropy(x, target).dtype == np.float32


def test_nothing_is_recorded_or_kept_in_no_grad():
    x = Tensor(np.ones((1, 2, 4, 4)), requires_grad=True)
    with no_grad():
        for y in (F.max_pool2d(x, 2), F.relu(x), F.clip(x, 0, 1), F.max(x), F.resize(x, 2)):
            assert y.creator is None


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_threads_change_no_bit(threads, monkeypatch):
    monkeypatch.setattr(interpolate, "CHUNK_BYTES", 2048)
    monkeypatch.setattr(onednn, "get_num_threads", lambda: threads)
    rng = np.random.default_rng(0)
    x, gy = rng.standard_normal((2, 20, 16, 17)), rng.standard_normal((2, 20, 40, 35))
    x, gy = Tensor(x.astype(np.float32), requires_grad=True), Tensor(gy.astype(np.float32))
    y = F.resize(x, (40, 35))
    (g,) = grad([y], [x], [gy], retain_graph=True)
    monkeypatch.setattr(onednn, "get_num_threads", lambda: 1)
    np.testing.assert_array_equal(F.resize(x, (40, 35)).numpy(), y.numpy())
    np.testing.assert_array_equal(grad([y], [x], [gy])[0].numpy(), g.numpy())


@pytest.mark.parametrize(
    "shape", [(1, 32, 100, 151), (8, 64, 56, 56), (1, 2, 300, 400), (4, 960, 7, 7), (2, 130, 64, 9)]
)
@pytest.mark.parametrize("order", [(0, 1, 2, 3), (0, 2, 3, 1), (2, 3, 0, 1)])
def test_sums_over_large_maps_are_accurate_in_every_memory_order(shape, order):
    # NumPy alone adds up rounding over an image's area (5e-6 to 1e-5 here) where channels are the fastest axis.
    drawn = np.random.default_rng(7).gamma(2, size=[shape[i] for i in order]).astype(np.float32)
    x = drawn.transpose(np.argsort(order))
    assert x.shape == shape
    wide = x.astype(np.float64)
    bias = Tensor(np.zeros((shape[1], 1, 1), np.float32), requires_grad=True)
    F.mul(F.broadcast_to(bias, shape), Tensor(x)).sum().backward()
    _, mean, var = reference.batch_norm(x, *np.ones((2, shape[1]), np.float32), 1e-5)
    sums = {
        "sum": (F.sum(Tensor(x), (2, 3)).numpy(), wide.sum((2, 3))),
        "sum, batch too": (F.sum(Tensor(x), (0, 2, 3)).numpy(), wide.sum((0, 2, 3))),
        "sum of all": (F.sum(Tensor(x)).numpy(), wide.sum()),
        "mean": (F.mean(Tensor(x), (2, 3), keepdims=True).numpy(), wide.mean((2, 3), keepdims=True)),
        "adaptive_avg_pool2d": (F.adaptive_avg_pool2d(Tensor(x), 1).numpy(), wide.mean((2, 3), keepdims=True)),
        "gradient of a bias": (bias.grad.numpy()[:, 0, 0], wide.sum((0, 2, 3))),
        "reference batch_norm's mean": (mean, wide.mean((0, 2, 3))),
        "reference batch_norm's variance": (var, wide.var((0, 2, 3))),
    }
    worst = {name: np.abs(found / expected - 1).max() for name, (found, expected) in sums.items()}
    assert {name: error for name, error in worst.items() if error > 1e-6} == {}


@pytest.mark.parametrize("shape", [(64, 300), (3, 40, 200), (2, 9, 11, 96), (1, 7, 5, 1000), (5, 8)])
def test_layer_norm_without_a_graph_is_that_with_one(shape):
    rng = np.random.default_rng(0)
    x, w, b = (rng.standard_normal(s).astype(np.float32) + 2 for s in (shape, shape[-1:], shape[-1:]))
    wide = x.astype(np.float64)
    centred = wide - wide.mean(-1, keepdims=True)
    expected = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * w + b
    with no_grad():
        found = F.layer_norm(Tensor(x), Tensor(w), Tensor(b)).numpy()
        turned = F.layer_norm(Tensor(x[::-1]), Tensor(w), Tensor(b)).numpy()  # no dense rows: another way
    recorded = F.layer_norm(Tensor(x, requires_grad=True), Tensor(w), Tensor(b))
    for y in (found, turned[::-1], recorded.numpy()):
        np.testing.assert_allclose(y, expected, rtol=0, atol=3e-6)
    assert recorded.creator is not None


def test_layer_norm_of_a_bias_that_is_broadcast():
    x, w, b = np.random.default_rng(0).standard_normal((64, 300)).astype(np.float32), np.ones(300), np.full(1, 2.0)
    w, b = w.astype(np.float32), b.astype(np.float32)
    with no_grad():
        found = F.layer_norm(Tensor(x), Tensor(w), Tensor(b)).numpy()
    np.testing.assert_allclose(found.mean(-1), 2, atol=1e-6)
    with no_grad(), pytest.raises(ValueError, match="do not broadcast"):
        F.layer_norm(Tensor(x), Tensor(w), Tensor(np.ones(299, np.float32)))


@pytest.mark.parametrize("shape", [(1, 3, 1, 1), (2, 72, 28, 28), (1, 5, 7, 200), (1, 64, 300, 200), (3, 17, 1, 9)])
@pytest.mark.parametrize("last", [False, True], ids=["channels first", "channels last"])
def test_means_of_maps_round_little_with_and_without_a_graph(shape, last):
    """In inference they have a kernel of their own: the same values in all shapes and orders."""
    x = np.random.default_rng(0).uniform(1, 2, shape).astype(np.float32)
    x = np.ascontiguousarray(x.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2) if last else x
    expected = x.astype(np.float64).mean((2, 3))
    for kept in (False, True):
        recorded = F.mean(Tensor(x, requires_grad=True), (2, 3), kept)
        with no_grad():
            inferred = F.mean(Tensor(x), (2, 3), kept)
        for y in (recorded, inferred):
            assert y.shape == (shape[:2] + (1, 1) if kept else shape[:2])
            np.testing.assert_allclose(y.numpy().reshape(expected.shape), expected, rtol=1e-6)


def test_means_of_maps_keep_nan_and_refuse_nothing():
    x = np.ones((1, 2, 3, 3), np.float32)
    x[0, 1, 2, 2] = np.nan
    with no_grad():
        assert np.isnan(F.mean(Tensor(x), (2, 3)).numpy()).tolist() == [[False, True]]
        assert F.mean(Tensor(x[:0]), (2, 3)).shape == (0, 2)
        assert np.isnan(F.mean(Tensor(x[:, :, :0]), (2, 3)).numpy()).all()
        assert F.mean(Tensor(x.astype(np.float64)), (2, 3)).dtype == np.float64


@pytest.mark.parametrize(
    ("shape", "groups"), [((1, 256, 13, 17), 32), ((1, 64, 40, 7), 1), ((1, 32, 30, 60), 32), ((3, 64, 20, 20), 8)]
)
@pytest.mark.parametrize("shift", [0.0, 100.0], ids=["centred", "far from 0"])
def test_group_norm_of_large_maps_with_and_without_a_graph(shape, groups, shift):
    """One image has a kernel in inference, from the channels' moments."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal(shape).astype(np.float32) * rng.uniform(0.1, 3, (1, shape[1], 1, 1)).astype(np.float32)
    x += np.float32(shift) + rng.standard_normal((1, shape[1], 1, 1)).astype(np.float32)
    weight, bias = (rng.standard_normal(shape[1]).astype(np.float32) for _ in range(2))
    wide = x.astype(np.float64).reshape(shape[0], groups, -1)
    expected = (wide - wide.mean(2, keepdims=True)) / np.sqrt(wide.var(2, keepdims=True) + 1e-5)
    expected = expected.reshape(shape) * weight[:, None, None] + bias[:, None, None]
    recorded = F.group_norm(Tensor(x, requires_grad=True), groups, Tensor(weight), Tensor(bias))
    with no_grad():
        inferred = F.group_norm(Tensor(x), groups, Tensor(weight), Tensor(bias))
    tolerance = 5e-5 if shift else 1e-5  # 100 has steps of 8e-6 in float32, enlarged by weight / std
    np.testing.assert_allclose(inferred.numpy(), expected, atol=tolerance)
    np.testing.assert_allclose(recorded.numpy(), expected, atol=tolerance)


def test_group_norm_refuses_weights_of_another_size_in_inference_too():
    x, right = Tensor(np.ones((1, 32, 40, 40), np.float32)), Tensor(np.ones(32, np.float32))
    for wrong in (np.ones(4, np.float32), np.ones(64, np.float32), np.ones((1, 32), np.float32)):
        for parts in ((Tensor(wrong), right), (right, Tensor(wrong))):
            with no_grad(), pytest.raises(ValueError, match="group_norm: expected"):
                F.group_norm(x, 4, *parts)
            with pytest.raises(ValueError, match="group_norm: expected"):
                F.group_norm(x, 4, *parts)
