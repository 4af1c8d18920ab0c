"""Array namespaces, moves between devices, the seed."""

import sys

import fake_cupy
import numpy as np
import pytest
from chainsight.core import generator, get_namespace, seed, to_device, to_numpy
from chainsight.core.device import device_of

fake_cupy.install()


def test_namespaces_by_type_alone():
    assert get_namespace(np.zeros(1)) is np
    assert get_namespace(np.float32(1)) is np
    assert get_namespace(fake_cupy.zeros(1)) is fake_cupy
    for wrong in ([1.0], 1.0, None):
        with pytest.raises(TypeError, match=r"expected a NumPy or CuPy array, got builtins\."):
            get_namespace(wrong)


def test_moves(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", fake_cupy)
    array = np.arange(3.0)
    assert to_device(array, "cpu") is array
    assert to_numpy(array) is array
    there = to_device(array, "cuda:0")
    assert device_of(there) == "cuda:0"
    assert device_of(array) == "cpu"
    np.testing.assert_array_equal(to_device(there, "cpu"), array)


@pytest.mark.parametrize("name", ["gpu", "cuda:x", "cpu:0", ""])
def test_names_of_devices(name):
    with pytest.raises(ValueError, match="expected a device"):
        to_device(np.ones(1), name)


def test_without_cupy_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(RuntimeError, match=r"'cuda' needs CuPy: install chainsight\[cuda12x\]"):
        to_device(np.ones(1), "cuda")


def test_seed():
    seed(3)
    first = generator().random(4)
    seed(3)
    np.testing.assert_array_equal(generator().random(4), first)
