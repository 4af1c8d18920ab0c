"""Networks as ONNX operators: their arithmetic, carried out here operator by operator, is that of the model."""

import json

import numpy as np
import pytest
from chainsight.core import Tensor, no_grad
from chainsight.core import functions as F
from chainsight.core.layers import BatchNorm2d, Conv2d, HardSwish, LeakyReLU, MaxPool2d, Module, ReLU, Sequential, SiLU
from chainsight.evaluations.graph import Graph, method_of, tensors
from chainsight.vision.categories import Categories
from chainsight.vision.segmentation.lraspp import lraspp_mobilenet_v3_large


def conv(a, x, w, *b):
    top, left, bottom, right = a["pads"]
    padding = top, bottom, left, right
    b = Tensor(b[0]) if b else None
    return F.conv2d(Tensor(x), Tensor(w), b, tuple(a["strides"]), padding, tuple(a["dilations"]), a["group"]).numpy()


def pool(a, x):
    assert a["dilations"] == [1, 1]
    assert a["ceil_mode"] == 0
    top, left, bottom, right = a["pads"]
    x = np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)), constant_values=-np.inf)
    windows = np.lib.stride_tricks.sliding_window_view(x, a["kernel_shape"], (2, 3))
    down, across = a["strides"]
    return windows[:, :, ::down, ::across].max((4, 5))


def slices(a, x, starts, stops, axes, steps):
    index = [slice(None)] * x.ndim
    for start, stop, axis, step in zip(starts, stops, axes, steps):
        index[axis] = slice(start, stop, step)
    return x[tuple(index)]


def resize(a, x, size):
    if a["mode"] == "nearest":
        assert (a["nearest_mode"], a["coordinate_transformation_mode"]) == ("floor", "asymmetric")
        for axis in (2, 3):
            x = x.take(np.arange(size[axis]) * x.shape[axis] // size[axis], axis)
        return x
    return F.resize(Tensor(x), tuple(map(int, size[2:]))).numpy()


# As the operators are defined in ONNX, with NumPy where that is short.
OPERATORS = {
    "Conv": conv,
    "MaxPool": pool,
    "Slice": slices,
    "Resize": resize,
    "Add": lambda a, x, y: x + y,
    "Sub": lambda a, x, y: x - y,
    "Mul": lambda a, x, y: x * y,
    "Div": lambda a, x, y: x / y,
    "Sqrt": lambda a, x: np.sqrt(x),
    "Relu": lambda a, x: np.maximum(x, 0),
    "LeakyRelu": lambda a, x: np.where(x < 0, np.float32(a["alpha"]) * x, x),
    "Sigmoid": lambda a, x: 1 / (1 + np.exp(-x)),
    "HardSigmoid": lambda a, x: np.clip(np.float32(a["alpha"]) * x + np.float32(a["beta"]), 0, 1),
    "HardSwish": lambda a, x: x * np.clip(x / 6 + np.float32(0.5), 0, 1),
    "Clip": lambda a, x, low, high: np.clip(x, low, high),
    "Concat": lambda a, *x: np.concatenate(x, a["axis"]),
    "Gemm": lambda a, x, w, b: x @ w.T + b if a["transB"] else None,
    "Reshape": lambda a, x, shape: x.reshape(shape),
    "Expand": lambda a, x, shape: np.broadcast_to(x, shape),
    "Transpose": lambda a, x: x.transpose(a["perm"]),
    "ReduceSum": lambda a, x, axes: x.sum(tuple(axes), keepdims=bool(a["keepdims"])),
}


def evaluate(path, x):
    values = dict(np.load(path))
    graph = json.loads(str(values.pop("graph")))
    used = {name for _, inputs, _, _ in graph["nodes"] for name in inputs}
    assert set(values) <= used
    values["input"] = x
    for kind, inputs, name, attributes in graph["nodes"]:
        assert name not in values
        values[name] = OPERATORS[kind](attributes, *(values[i] for i in inputs if i))
    return [values[name] for name in graph["outputs"]]


class Net(Module):
    def __init__(self):
        self.stem = Sequential(
            Conv2d(12, 16, 3, 2, (1, 0, 2, 1), bias=False), BatchNorm2d(16), SiLU(), MaxPool2d(3, 2, 1)
        )
        self.wide = Sequential(Conv2d(16, 16, 3, padding=2, dilation=2, groups=8), LeakyReLU(0.1))
        self.scale = Conv2d(16, 32, 1)
        self.act = HardSwish()

    def forward(self, x):
        y = self.stem(F.concatenate([x[:, :, i::2, j::2] for j in (0, 1) for i in (0, 1)], 1))
        z = F.concatenate([y, self.wide(y)], 1)
        up = F.resize(z, (2 * z.shape[2], 2 * z.shape[3]), mode="nearest")
        gate = F.hard_sigmoid(self.scale(y).mean((2, 3), keepdims=True))
        norm = z / F.sqrt(F.clip((z * z).sum(1, keepdims=True), 1e-6, np.inf))
        wide = F.resize(self.act(z * gate), (11, 9))
        flat = norm.transpose(0, 2, 3, 1).reshape(1, -1, 4)
        return [flat, np.arange(3)], (up, wide, F.add_relu(z, F.sigmoid(-1.0 * z)))


def check(model, x, tmp_path, tolerance=2e-5):
    graph = Graph(model, Tensor(x), method_of(model))
    graph.save(tmp_path / "net.graph.npz")
    other = x[:, :, ::-1] * np.float32(0.7)
    for image in (x, other):
        with no_grad():
            expected = list(tensors(getattr(model, method_of(model))(Tensor(image))))
        found = evaluate(tmp_path / "net.graph.npz", image)
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_allclose(a, b.numpy(), atol=tolerance * np.abs(b.numpy()).max())
    return graph


def image(size):
    return np.random.default_rng(0).standard_normal((1, 3, size, size)).astype(np.float32)


def test_all_outputs_of_a_network(tmp_path):
    graph = check(Net().eval(), image(32), tmp_path)
    kinds = [kind for kind, *_ in graph.nodes]
    assert kinds.count("Resize") == 2  # both axes at once
    assert kinds.count("Sqrt") == 1  # that of the norm is in the weights


def test_a_segmenter(tmp_path):
    check(lraspp_mobilenet_v3_large(Categories.plain(["sky", "sea"])).eval(), image(64), tmp_path)


def test_what_is_not_known_is_an_error():
    class Odd(Module):
        def forward(self, x):
            return F.erf(x)

    class Loose(Module):
        def forward(self, x):
            return x * 2, Tensor(np.ones(1, np.float32))

    class Backwards(Module):
        def forward(self, x):
            return F.relu(x)[:, [0, 2]]

    with pytest.raises(ValueError, match="no ONNX operator is known here for Erf"):
        Graph(Odd(), Tensor(image(4)))
    with pytest.raises(ValueError, match=r"Loose: outputs \[1\] do not depend on the input"):
        Graph(Loose(), Tensor(image(4)))
    with pytest.raises(ValueError, match="GetItem: expected slices"):
        Graph(Backwards(), Tensor(image(4)))


def test_operations_are_as_before_afterwards():
    x = Tensor(image(4))
    Graph(Sequential(ReLU()), x)
    assert F.relu(x).creator is None
