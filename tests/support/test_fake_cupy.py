"""The strict device is strict."""

import operator

import fake_cupy
import numpy as np
import pytest


def test_nothing_leaves_on_its_own():
    a = fake_cupy.asarray([1.0, 2.0])
    for leak in (np.asarray, np.exp, lambda x: np.concatenate([x, x]), lambda x: np.array([x])):
        with pytest.raises(TypeError):
            leak(a)
    assert isinstance(fake_cupy.asnumpy(a), np.ndarray)


@pytest.mark.parametrize("operation", [operator.add, operator.sub, operator.mul, operator.truediv, operator.iadd])
def test_nothing_mixes(operation):
    a = fake_cupy.asarray([1.0, 2.0])
    for other in (np.ones(2), np.array(1.0)):
        with pytest.raises(TypeError):
            operation(a, other)
        with pytest.raises(TypeError):
            operation(other, a)
    with pytest.raises(TypeError):
        a[np.array([0])]
    with pytest.raises(TypeError):
        a[0] = np.ones(1)
    with pytest.raises(TypeError):
        fake_cupy.maximum(a, np.ones(2))
    assert operation(a, 1).get().shape == operation(a, np.float64(1)).get().shape == (2,)


def test_what_cupy_lacks_is_lacking():
    a = fake_cupy.asarray([1.0, 2.0])
    with pytest.raises(TypeError):
        fake_cupy.take(a, fake_cupy.asarray([0]), axis=0, mode="clip")
    with pytest.raises(TypeError):
        fake_cupy.add.at(fake_cupy.zeros(2, np.int64), fake_cupy.asarray([0]), 1)
    with pytest.raises(TypeError):
        fake_cupy.exp(np.ones(2))
    assert not hasattr(fake_cupy, "errstate")
    assert a.sum().shape == ()
