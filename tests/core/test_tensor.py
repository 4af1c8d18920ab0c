"""The Tensor: construction, operators, printing, and errors that say what was expected."""

import copy
import pickle

import fake_cupy
import numpy as np
import pytest
from chainsight.core import Buffer, Parameter, Tensor
from chainsight.core import functions as F
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

fake_cupy.install()


def test_what_a_tensor_is_made_of():
    assert Tensor([1.0, 2.0]).dtype == np.float32
    assert Tensor(1.5).dtype == np.float32
    assert Tensor([1, 2]).dtype.kind == "i"
    assert Tensor(np.float64(2)).dtype == np.float64
    array = np.zeros((2, 3))
    assert Tensor(array).data is array
    assert Tensor(Tensor(array)).data is array
    assert Tensor(True).dtype == bool
    for wrong in ("text", None, {}, object()):
        with pytest.raises(TypeError, match="expected"):
            Tensor(wrong)
    with pytest.raises(TypeError, match="expected numbers, got an array of dtype"):
        Tensor(np.array(["a"]))
    with pytest.raises(TypeError, match="only floating-point tensors have gradients, got int64"):
        Tensor(np.array([1]), requires_grad=True)


def test_parameters_and_buffers():
    assert Parameter(np.zeros(2)).requires_grad
    assert not Parameter(np.zeros(2), requires_grad=False).requires_grad
    assert not Buffer(np.zeros(2)).requires_grad
    assert isinstance(Parameter(np.zeros(2)), Tensor)


def test_data_takes_arrays_only():
    x = Tensor([1.0])
    with pytest.raises(TypeError, match=r"expected a NumPy or CuPy array, got builtins\.list"):
        x.data = [1.0]
    x.data = np.array([2.0])
    assert (x.item(), x.version) == (2, 1)


# Sequence behaviour


def test_iteration_length_and_truth():
    x = Tensor(np.arange(6.0).reshape(3, 2), requires_grad=True)
    assert len(x) == 3
    rows = list(x)
    assert [r.shape for r in rows] == [(2,)] * 3
    rows[1].sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), [[0, 0], [1, 1], [0, 0]])
    a, b, _ = x
    assert (a.shape, b.shape) == ((2,), (2,))
    scalar = Tensor(2.0)
    with pytest.raises(TypeError, match="no length"):
        len(scalar)
    with pytest.raises(TypeError, match="no length"):
        iter(scalar)
    assert bool(scalar)
    assert not Tensor([0.0])
    with pytest.raises(ValueError, match=r"shape \(3, 2\) has no single truth value"):
        bool(x)
    with pytest.raises(ValueError, match=r"shape \(0,\) has no single truth value"):
        bool(Tensor(np.zeros(0)))
    assert (float(scalar), int(scalar), scalar.item()) == (2.0, 2, 2.0)


def test_tensors_are_keys_by_identity():
    a, b = Tensor([1.0]), Tensor([1.0])
    assert len({a, b}) == 2
    assert {a: 1}[a] == 1


def test_comparisons_give_bool_tensors_without_a_graph():
    x = Tensor(np.array([1.0, 2.0, 3.0]), requires_grad=True)
    for result, expected in (
        (x < 2, [True, False, False]),
        (x <= 2, [True, True, False]),
        (x > Tensor(np.array([2.0])), [False, False, True]),
        (x >= np.array([2.0, 2, 2]), [False, True, True]),
        (x == 2, [False, True, False]),
        (x != 2, [True, False, True]),
        (np.array([2.0, 2, 2]) > x, [True, False, False]),
    ):
        assert isinstance(result, Tensor)
        assert (result.dtype, result.requires_grad, result.creator) == (bool, False, None)
        np.testing.assert_array_equal(result.numpy(), expected)
    assert (Tensor(1.0) < 2).data.shape == ()


# Operators


@pytest.mark.parametrize("other", [2, 2.0, np.float64(2), np.int64(2), np.array([2.0, 4.0, 8.0]), Tensor([2.0, 4, 8])])
def test_operators_on_both_sides(other):
    x = Tensor(np.array([1.0, 2.0, 4.0]))
    if isinstance(other, Tensor):
        other = other.astype(np.float64)
    values = other.numpy() if isinstance(other, Tensor) else other
    for name in ("add", "sub", "mul", "truediv"):
        for result, expected in (
            (getattr(x, f"__{name}__")(other), getattr(x.numpy(), f"__{name}__")(values)),
            (getattr(x, f"__r{name}__")(other), getattr(x.numpy(), f"__r{name}__")(values)),
        ):
            assert result.dtype == np.float64
            np.testing.assert_array_equal(result.numpy(), expected)
    np.testing.assert_allclose((x**other).numpy(), x.numpy() ** values)
    np.testing.assert_allclose((other**x).numpy(), values ** x.numpy())


def test_an_array_on_the_left_defers_to_the_tensor():
    x = Tensor(np.ones((3, 2)), requires_grad=True)
    for result in (
        np.ones((3, 2)) + x,
        np.ones((3, 2)) - x,
        np.ones((3, 2)) * x,
        np.ones((3, 2)) / x,
        np.float64(2) * x,
        np.ones((2, 3)) @ x,
        fake_cupy.ones((3, 2)) * Tensor(fake_cupy.ones((3, 2))),
    ):
        assert isinstance(result, Tensor)
        assert result.data.dtype == np.float64
    with pytest.raises(TypeError):
        np.exp(x)


@pytest.mark.parametrize("convert", [np.asarray, np.array, lambda t: np.stack([t, t])])
def test_numpy_takes_no_tensor_for_a_sequence(convert):
    with pytest.raises(TypeError, match=r"tensor\.numpy\(\)"):
        convert(Tensor([1.0, 2.0]))


def test_in_place_operators_make_new_tensors():
    x = Tensor(np.ones(2), requires_grad=True)
    y = x
    y += 1
    assert y is not x
    np.testing.assert_array_equal(x.numpy(), [1, 1])


def test_numbers_take_the_dtype_of_the_tensor():
    half = Tensor(np.ones(2, np.float16))
    for result in (half + 1, half * 1.5, 2 - half, half / np.float64(3), half**2, 1 / half, F.maximum(half, 0)):
        assert result.dtype == np.float16
    assert (Tensor(np.array([1, 2])) * 2).dtype == np.int64
    assert (Tensor(np.array([1, 2])) / 2).dtype == np.float32
    assert (Tensor(np.ones(2, np.float32)) * Tensor(np.array([True, False]))).dtype == np.float32
    assert (Tensor(np.ones(2, np.float32)) + np.array([1, 2])).dtype == np.float32


def test_errors_of_dtype_device_and_shape():
    x = Tensor(np.ones(2, np.float32))
    with pytest.raises(TypeError, match="Mul: expected operands of one dtype, got float32 and float64"):
        x * np.ones(2)
    with pytest.raises(TypeError, match="Add: operands on different devices, cpu and cuda:0"):
        x + Tensor(fake_cupy.ones(2, np.float32))
    with pytest.raises(TypeError, match=r"Add: an integer tensor meets the number 0\.5"):
        Tensor(np.array([1])) + 0.5
    with pytest.raises(ValueError, match=r"Add: shapes \(2,\) and \(3,\) do not broadcast"):
        x + Tensor(np.ones(3, np.float32))
    with pytest.raises(ValueError, match=r"MatMul: shapes \(2, 3\) and \(2, 3\) do not match: 3 != 2"):
        Tensor(np.ones((2, 3))) @ np.ones((2, 3))
    with pytest.raises(IndexError, match=r"GetItem: .*out of bounds.*\(shape \(2,\)\)"):
        x[5]
    with pytest.raises(ValueError, match=r'expected a device "cpu", "cuda" or "cuda:N", got .gpu.'):
        x.to("gpu")


def test_methods_and_devices():
    x = Tensor(np.arange(6.0).reshape(2, 3))
    assert x.T.shape == x.transpose().shape == x.transpose(1, 0).shape == (3, 2)
    assert x.reshape(3, 2).shape == x.reshape((3, 2)).shape == x.reshape(-1, 2).shape == (3, 2)
    assert (x.sum().item(), x.mean().item(), x.max().item(), x.min().item()) == (15, 2.5, 5, 0)
    assert x.sum(0).shape == (3,)
    assert x.to("cpu") is x
    assert x.astype(np.float64) is x
    assert x.detach().data is x.data
    assert (x.ndim, x.size, x.device, x.xp) == (2, 6, "cpu", np)
    assert abs(-x).data.min() == 0
    there = Tensor(fake_cupy.ones(2))
    assert (there.device, there.xp) == ("cuda:0", fake_cupy)
    assert isinstance(there.numpy(), np.ndarray)


# Printing


@pytest.mark.parametrize(
    ("tensor", "text"),
    [
        (Tensor(1.5), "Tensor(1.5, shape (), float32)"),
        (Tensor([1, 2]), "Tensor([1, 2], shape (2,), int64)"),
        (Tensor(np.zeros((0, 3))), "Tensor([], shape (0, 3), float64)"),
        (Parameter(np.zeros(2, np.float32)), "Tensor([0., 0.], shape (2,), float32, requires_grad)"),
        (Parameter(np.zeros(2)) * 2, "Tensor([0., 0.], shape (2,), float64, by Mul)"),
        (Tensor(fake_cupy.zeros(1)), "Tensor([0.], shape (1,), float64, cuda:0)"),
        (Tensor(np.arange(30)), "Tensor(0 .. 29, shape (30,), int64)"),
        (
            Tensor(np.repeat([0.0, 1.0], 50)),
            "Tensor(mean 0.5, std 0.5, 0 .. 1, shape (100,), float64)",
        ),
        (
            Tensor(np.array([0.0, 1.0] * 20 + [np.nan, np.inf])),
            "Tensor(mean 0.5, std 0.5, 0 .. 1, 2 not finite, shape (42,), float64)",
        ),
        (Tensor(np.full(30, np.nan)), "Tensor(30 not finite, shape (30,), float64)"),
        (Tensor(np.ones((2, 2))), "Tensor([[1., 1.],\n        [1., 1.]], shape (2, 2), float64)"),
    ],
)
def test_repr(tensor, text):
    assert repr(tensor) == text


def test_repr_of_large_float16_does_not_overflow():
    assert "mean 6e+04, std 0" in repr(Tensor(np.full(100_000, 60_000, np.float16)))


# Copies


def test_copy_and_pickle_of_leaves():
    x = Parameter(np.arange(3.0))
    for twin in (copy.deepcopy(x), pickle.loads(pickle.dumps(x))):
        assert type(twin) is Parameter
        assert twin.requires_grad
        assert not np.shares_memory(twin.data, x.data)
        np.testing.assert_array_equal(twin.numpy(), x.numpy())


# Properties


@settings(deadline=None, max_examples=60)
@given(hnp.mutually_broadcastable_shapes(num_shapes=2, max_dims=4, max_side=4))
def test_broadcasting_and_the_shapes_of_gradients(shapes):
    (first, second), result = shapes.input_shapes, shapes.result_shape
    a = Tensor(np.ones(first), requires_grad=True)
    b = Tensor(np.full(second, 2.0), requires_grad=True)
    for operation in (F.add, F.sub, F.mul, F.div, F.maximum):
        a.grad = b.grad = None
        y = operation(a, b)
        assert y.shape == result
        y.sum().backward()
        assert a.grad.shape == first
        assert b.grad.shape == second
        if operation is F.mul and a.size and b.size:
            np.testing.assert_array_equal(a.grad.numpy(), np.full(first, 2.0 * y.size / a.size))


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_indexing_and_its_gradient(data):
    array = data.draw(
        hnp.arrays(np.float64, hnp.array_shapes(max_dims=4, max_side=4, min_side=0), elements=st.just(1.0))
    )
    array = np.arange(array.size, dtype=float).reshape(array.shape)
    basic = hnp.basic_indices(array.shape, allow_newaxis=True)
    index = data.draw(st.one_of(basic, hnp.arrays(bool, array.shape)))
    x = Tensor(array, requires_grad=True)
    y = x[index]
    np.testing.assert_array_equal(y.numpy(), array[index])
    y.backward(Tensor(np.ones(y.shape)))
    expected = np.zeros(array.shape)
    expected[index] += 1
    np.testing.assert_array_equal(x.grad.numpy(), expected)


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_integer_array_indexing_and_its_gradient(data):
    array = np.arange(24.0).reshape(2, 3, 4)
    index = data.draw(hnp.integer_array_indices(array.shape, result_shape=hnp.array_shapes(max_dims=2, max_side=3)))
    x = Tensor(array, requires_grad=True)
    y = x[index]
    np.testing.assert_array_equal(y.numpy(), array[index])
    y.backward(Tensor(np.ones(y.shape)))
    expected = np.zeros(array.shape)
    np.add.at(expected, index, 1)
    np.testing.assert_array_equal(x.grad.numpy(), expected)
