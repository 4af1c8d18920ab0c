"""Inference in bfloat16: close to float32, where the processor has it, and only there."""

import subprocess
import sys

import numpy as np
import pytest
from chainsight.core import Tensor, kernels, no_grad, planned
from chainsight.core import functions as F
from chainsight.core.kernels import ConvSpec, onednn, use_precision
from chainsight.core.layers import BatchNorm2d, Conv2d, Linear, MaxPool2d, Module, ReLU, Sequential
from chainsight.vision.models import load

RNG = np.random.default_rng(0)
HAS = kernels.backend_name() == "onednn" and onednn.load().has_bfloat16
needs_bfloat16 = pytest.mark.skipif(not HAS, reason="the processor or the library has no bfloat16")


def normal(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def assert_close(found, expected):
    assert np.abs(found - expected).max() <= 0.015 * np.abs(expected).max()


@needs_bfloat16
@pytest.mark.parametrize("groups", [1, 32])
@pytest.mark.parametrize("activation", [None, ("relu", 0.0, 0.0), ("hard_swish", 0.0, 0.0)])
@pytest.mark.parametrize("added", [None, "f32", "bf16"])
def test_convolution(groups, activation, added):
    x, w, b = normal(2, 32, 9, 11), normal(32, 32 // groups, 3, 3), normal(32)
    residual = None if added is None else normal(2, 32, 9, 11)
    spec = ConvSpec(padding=(1, 1, 1, 1), groups=groups)
    expected = kernels.FusedConv2d(w, b, spec, activation)(x, residual)
    with use_precision("bf16"):
        conv = kernels.FusedConv2d(w, b, spec, activation)
    residual = onednn.arrange(residual, onednn.BFLOAT16) if added == "bf16" else residual
    for given in (x, np.ascontiguousarray(x), onednn.arrange(x, onednn.BFLOAT16), x[::-1][::-1]):
        found = conv(given, residual)
        assert found.dtype == (np.float32 if activation is None else onednn.BFLOAT16)
        assert_close(kernels.widen(found), expected)


@needs_bfloat16
def test_linear():
    x, w, b = normal(5, 7, 64), normal(32, 64), normal(32)
    expected = kernels.FusedLinear(w, b, kernels.RELU)(x)
    with use_precision("bf16"):
        found = kernels.FusedLinear(w, b, kernels.RELU)(x)
    assert found.dtype == onednn.BFLOAT16
    assert_close(kernels.widen(found), expected)


@needs_bfloat16
def test_conversion_there_and_back():
    x = normal(2, 3, 4, 5)
    x[0, 0, 0] = 0, -0.0, np.inf, -np.inf, 1e-30
    narrow = onednn.arrange(x, onednn.BFLOAT16)
    assert narrow.itemsize == 2
    back = kernels.widen(narrow)
    np.testing.assert_allclose(back, x, rtol=2**-8)
    np.testing.assert_array_equal(kernels.widen(onednn.arrange(back, onednn.BFLOAT16)), back)
    assert kernels.widen(x) is x
    assert onednn.arrange(x[:0], onednn.BFLOAT16).shape == (0, 3, 4, 5)


class Net(Module):
    def __init__(self):
        self.stem = Sequential(Conv2d(3, 32, 3, padding=1), BatchNorm2d(32), ReLU(), MaxPool2d(2))
        self.side = Sequential(Conv2d(32, 32, 1, bias=False), BatchNorm2d(32))
        self.head = Linear(64, 6)

    def forward(self, x):
        y = self.stem(x)
        z = F.concatenate([y[:, 16:], self.side(y) * 0.5 + y[:, ::-1], y[:, :16]], 1)
        return self.head(z.mean((2, 3))), y


@needs_bfloat16
def test_a_network_and_its_plans():
    net = Net().eval()
    with no_grad():
        for seed in range(4):
            x = Tensor(np.random.default_rng(seed).standard_normal((1, 3, 20, 20)).astype(np.float32))
            wide, _ = planned(net, x)
            with use_precision("bf16"):
                narrow, between = planned(net, x)
                np.testing.assert_array_equal(narrow.data, net(x)[0].data)
            assert wide.dtype == narrow.dtype == np.float32
            assert_close(narrow.data, wide.data)
            assert np.any(narrow.data != wide.data)
            assert between.data.dtype == onednn.BFLOAT16
            assert between.numpy().dtype == (between + 1).dtype == np.float32
            assert "shape (1, 32, 10, 10)" in repr(between)


@needs_bfloat16
def test_training_stays_in_single_precision():
    net, x = Net().eval(), Tensor(normal(1, 3, 20, 20))
    with use_precision("bf16"):
        y, _ = net(x)
        y.sum().backward()
    assert y.dtype == net.stem[0].weight.grad.dtype == np.float32


@needs_bfloat16
def test_a_model_predicts_so():
    image = RNG.integers(0, 256, (64, 64, 3), np.uint8)
    model = load("squeezenet1_1", weights=None)
    wide = model.predict(image).probabilities
    model.precision = "bf16"
    narrow = model.predict(image).probabilities
    assert load("squeezenet1_1", weights=None, precision="bf16").precision == "bf16"
    assert kernels.precision() == "f32"
    assert_close(narrow, wide)
    assert np.any(narrow != wide)


def test_unknown_precision():
    with pytest.raises(ValueError, match=r"expected a precision of .*, got 'half'"):
        load("squeezenet1_1", weights=None, precision="half")


@pytest.mark.skipif(kernels.backend_name() != "onednn", reason="the reference says the same for another reason")
@pytest.mark.parametrize(
    ("variable", "lack"),
    [("ONEDNN_MAX_CPU_ISA=AVX512_CORE", "a processor with avx512_bf16"), ("CHAINSIGHT_ONEDNN=0", "oneDNN")],
)
def test_without_the_instructions_the_error_says_so(variable, lack):
    code = "from chainsight.core.kernels import use_precision\nwith use_precision('bf16'): pass"
    name, value = variable.split("=")
    done = subprocess.run(
        [sys.executable, "-c", code], env={name: value}, capture_output=True, text=True, timeout=60, check=False
    )
    assert f"ValueError: bf16 needs {lack}" in done.stderr
