"""Every Function's gradients, of first and second order, in every memory layout, on NumPy and on the strict device."""

import sys

import chainsight.core.functions
import fake_cupy
import numpy as np
import pytest
from chainsight.core import Function, Tensor, grad
from chainsight.core.functions import elementwise
from function_cases import CASES
from gradients import GradientError, check_gradients, outputs_of, tensors_of

fake_cupy.install()

BASES = (elementwise.Pointwise, elementwise.Activation)


def all_functions():
    """Every Function class defined below chainsight.core.functions."""
    found, stack = set(), [Function]
    while stack:
        for kind in stack.pop().__subclasses__():
            stack.append(kind)
            if kind.__module__.startswith(chainsight.core.functions.__name__) and kind not in BASES:
                found.add(kind)
    return found


FUNCTIONS = sorted(all_functions(), key=lambda kind: kind.__name__)


def strided(a):
    """The same values, spread out and backwards in memory."""
    wide = np.full(tuple(2 * n for n in a.shape), np.nan)
    view = wide[tuple(slice(None, None, -2) for _ in a.shape)]
    view[...] = a
    return view


def channels_last(a):
    """The second axis innermost, as images are kept; two axes in column order."""
    axes = (0, *range(2, a.ndim), 1)
    return np.ascontiguousarray(a.transpose(axes)).transpose(np.argsort(axes)) if a.ndim > 1 else a


LAYOUTS = {"contiguous": lambda a: a, "strided": strided, "channels_last": channels_last}


def test_every_function_has_a_case():
    assert set(FUNCTIONS) == {case.of for case in CASES}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_on_numpy(case, layout):
    check_gradients(case.call, [LAYOUTS[layout](a) for a in case.arrays()])


@pytest.fixture
def device(monkeypatch):
    """fake_cupy in cupy's place, also for moves between devices."""
    monkeypatch.setitem(sys.modules, "cupy", fake_cupy)


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.usefixtures("device")
def test_on_the_strict_device(case):
    arrays = [fake_cupy.asarray(a) for a in case.arrays()]
    check_gradients(case.call, arrays)
    here = outputs_of(case.call, tensors_of(case.arrays()))
    there = outputs_of(case.call, tensors_of(arrays))
    for a, b in zip(here, there, strict=True):
        assert b.device == "cuda:0"
        np.testing.assert_allclose(b.numpy(), a.numpy(), rtol=1e-12, atol=1e-12)


def test_moving_between_devices_has_a_gradient(device):
    x = Tensor(np.array([1.0, 2.0]), requires_grad=True)
    y = (x.to("cuda") * 3).to("cpu")
    assert (y.device, (x.to("cuda")).device) == ("cpu", "cuda:0")
    (g,) = grad([y], [x], [Tensor(np.array([1.0, 10.0]))])
    np.testing.assert_array_equal(g.numpy(), [3, 30])


SEVERAL_INPUTS = {
    **dict.fromkeys(
        ("Add", "AddReLU", "Sub", "Mul", "Div", "Maximum", "Where", "MatMul", "Conv2dInputGrad", "Conv2dWeightGrad"), 2
    ),
    **dict.fromkeys(("Concatenate", "Linear", "Conv2d", "BatchNorm"), 3),
}


@pytest.mark.parametrize(
    ("kind", "place"),
    [(kind, place) for kind in FUNCTIONS for place in range(SEVERAL_INPUTS.get(kind.__name__, 1))],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_a_wrong_sign_is_noticed(kind, place, monkeypatch):
    """With the gradient of one input negated, a check of the class's own cases fails."""
    right = kind.backward
    lengths = set()

    def wrong(self, *grads):
        found = list(right(self, *grads))
        lengths.add(len(found))
        if place < len(found) and found[place] is not None:
            found[place] = -found[place]
        return tuple(found)

    def notices(case):
        try:
            check_gradients(case.call, case.arrays())
        except GradientError:
            return True
        return False

    monkeypatch.setattr(kind, "backward", wrong)
    assert sum(notices(case) for case in CASES if case.of is kind) > 0
    assert max(lengths) == SEVERAL_INPUTS.get(kind.__name__, 1)


@pytest.mark.parametrize("case", [c for c in CASES if not c.what and c.of is not elementwise.AsType], ids=str)
def test_float32_stays_float32(case):
    tensors = tensors_of([a.astype(np.float32) for a in case.arrays()])
    outputs = outputs_of(case.call, tensors)
    assert {y.dtype for y in outputs} == {np.dtype(np.float32)}
    ones = [Tensor(np.ones(y.shape, np.float32)) for y in outputs]
    for create_graph in (True, False):
        gradients = grad(outputs, tensors, ones, retain_graph=True, create_graph=create_graph)
        assert {g.dtype for g in gradients} == {np.dtype(np.float32)}
