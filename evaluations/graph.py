"""A network as a list of ONNX operators, for the engines it is timed against.

The model runs once, each operation that depends on the input is written down, and what depends on parameters alone
becomes a constant: batch norms are folded into the convolutions, as every engine would do.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

from ..core import Tensor
from ..core.function import Function
from ..core.layers import Module

SAME = {
    "Add": "Add",
    "Sub": "Sub",
    "Mul": "Mul",
    "Div": "Div",
    "Sqrt": "Sqrt",
    "ReLU": "Relu",
    "Sigmoid": "Sigmoid",
    "HardSwish": "HardSwish",
}


def tensors(value: Any) -> Iterator[Tensor]:
    """The Tensors of a model's output, in order; arrays in it depend on the input's shape alone."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for part in value:
            yield from tensors(part)


def method_of(model: Module) -> str:
    """What computes the network's outputs: of segmenters the logits before they are resized."""
    return "logits" if hasattr(model, "logits") else "forward"


class Graph:
    """``nodes`` of (operator, inputs, output, attributes) in order; ``constants`` and values are known by name.

    >>> from ..core.layers import Linear, ReLU, Sequential
    >>> graph = Graph(Sequential(Linear(2, 3), ReLU()).eval(), Tensor(np.ones((1, 2), np.float32)))
    >>> [(kind, inputs, output) for kind, inputs, output, _ in graph.nodes]
    [('Gemm', ['input', 'c0', 'c1'], 'v0'), ('Relu', ['v0'], 'v1')]
    >>> graph.outputs
    ['v1']

    Raises ValueError for an operation that is not described here, and for outputs that do not depend on the input.
    """

    def __init__(self, model: Module, x: Tensor, method: str = "forward") -> None:
        self.nodes: list[tuple[str, list[str], str, dict[str, Any]]] = []
        self.constants: dict[str, NDArray[Any]] = {}
        self._names: dict[int, str] = {}
        self._kept: list[Any] = [x]  # an id is a name only while its object lives
        source = Tensor(x.data, requires_grad=True)  # a graph is recorded: nothing is fused then
        self._names[id(source)] = "input"
        call = Function.__call__

        def noted(function: Function, *inputs: Any) -> Any:
            outputs = call(function, *inputs)
            if any(self._depends(value) for value in inputs):
                self._add(function, list(inputs), outputs)
            self._kept.append((inputs, outputs))
            return outputs

        with patch.object(Function, "__call__", noted):
            results = list(tensors(getattr(model, method)(source)))
        loose = [i for i, result in enumerate(results) if not self._depends(result)]
        if loose:
            raise ValueError(f"{type(model).__name__}: outputs {loose} do not depend on the input")
        self.outputs = [self._names[id(result)] for result in results]

    def save(self, path: Path) -> None:
        """Write an .npz file: the constants by name, nodes and outputs as JSON in "graph"."""
        text = json.dumps({"nodes": self.nodes, "outputs": self.outputs})
        used = {name for _, inputs, _, _ in self.nodes for name in inputs}
        arrays: dict[str, Any] = {name: value for name, value in self.constants.items() if name in used}
        arrays["graph"] = np.array(text)
        np.savez(path, **arrays)

    def _depends(self, value: Any) -> bool:
        return self._names.get(id(value), "c")[0] != "c"

    def _constant(self, value: Any) -> str:
        name = f"c{len(self.constants)}"
        self.constants[name] = np.asarray(value, order="C")
        return name

    def _name(self, value: Any) -> str:
        if id(value) not in self._names:
            array = value.numpy() if isinstance(value, Tensor) else np.asarray(value, np.float32)
            self._names[id(value)] = self._constant(array)
        return self._names[id(value)]

    def _emit(self, kind: str, inputs: Sequence[str], **attributes: Any) -> str:
        self.nodes.append((kind, list(inputs), f"v{len(self.nodes)}", attributes))
        return self.nodes[-1][2]

    def _add(self, f: Function, inputs: list[Any], output: Any) -> None:
        names = [self._name(value) for value in inputs]
        rule: Callable[..., str] | None = getattr(self, "_" + f.name.lower(), None)
        if f.name in SAME:
            self._names[id(output)] = self._emit(SAME[f.name], names)
        elif rule is None or isinstance(output, tuple):
            raise ValueError(f"no ONNX operator is known here for {f.name}")
        else:
            self._names[id(output)] = rule(f, names, inputs, output)

    def _indices(self, values: Sequence[int]) -> str:
        return self._constant(np.array(values, np.int64))

    def _conv2d(self, f: Any, names: list[str], inputs: list[Tensor], output: Tensor) -> str:
        return self._emit("Conv", names, **_window(f.spec, inputs[1].shape[2:]), group=f.spec.groups)

    def _maxpool2d(self, f: Any, names: list[str], inputs: list[Tensor], output: Tensor) -> str:
        return self._emit("MaxPool", names, **_window(f.spec, f.spec.kernel), ceil_mode=int(f.spec.ceil_mode))

    def _linear(self, f: Any, names: list[str], inputs: list[Tensor], output: Tensor) -> str:
        if output.ndim != 2:
            raise ValueError(f"Linear: expected a matrix, got {inputs[0].shape}")
        return self._emit("Gemm", names, transB=1)

    def _addrelu(self, f: Any, names: list[str], inputs: list[Tensor], output: Tensor) -> str:
        return self._emit("Relu", [self._emit("Add", names)])

    def _silu(self, f: Any, names: list[str], inputs: list[Tensor], output: Tensor) -> str:
        return self._emit("Mul", [names[0], self._emit("Sigmoid", names)])

    def _leakyrelu(self, f: Any, names: list[str], inputs: list[Tensor], output: Tensor) -> str:
        return self._emit("LeakyRelu", names, alpha=float(f.kernel[1]))

    def _hardsigmoid(self, f: Any, names: list[str], inputs: list[Tensor], output: Tensor) -> str:
        return self._emit("HardSigmoid", names, alpha=1 / 6, beta=0.5)

    def _clip(self, f: Any, names: list[str], inputs: list[Tensor], output: Tensor) -> str:
        return self._emit("Clip", names + [self._constant(np.float32(end)) for end in (f.low, f.high)])

    def _sum(self, f: Any, names: list[str], inputs: list[Tensor], output: Tensor) -> str:
        return self._emit("ReduceSum", [*names, self._indices(f.axes)], keepdims=int(f.keepdims))

    def _reshape(self, f: Any, names: list[str], inputs: list[Tensor], output: Tensor) -> str:
        return self._emit("Reshape", [*names, self._indices(output.shape)])

    def _broadcastto(self, f: Any, names: list[str], inputs: list[Tensor], output: Tensor) -> str:
        return self._emit("Expand", [*names, self._indices(output.shape)])

    def _transpose(self, f: Any, names: list[str], inputs: list[Tensor], output: Tensor) -> str:
        return self._emit("Transpose", names, perm=[int(axis) for axis in f.axes])

    def _concatenate(self, f: Any, names: list[str], inputs: list[Tensor], output: Tensor) -> str:
        return self._emit("Concat", names, axis=int(f.axis))

    def _getitem(self, f: Any, names: list[str], inputs: list[Tensor], output: Tensor) -> str:
        parts = f.index if isinstance(f.index, tuple) else (f.index,)
        if not all(isinstance(part, slice) for part in parts):
            raise ValueError(f"GetItem: expected slices, got {f.index}")
        ends = [part.indices(size) for part, size in zip(parts, inputs[0].shape)]
        if any(step < 1 for _, _, step in ends):
            raise ValueError(f"GetItem: expected steps forward, got {f.index}")
        starts, stops, steps = zip(*ends)
        return self._emit("Slice", names + [self._indices(v) for v in (starts, stops, range(len(parts)), steps)])

    def _interpolate(self, f: Any, names: list[str], inputs: list[Tensor], output: Tensor) -> str:
        """Both axes in one operator, where they follow one another."""
        size, places = inputs[0].shape[f.axis], np.arange(output.shape[f.axis])
        ratio = size / len(places)
        nearest = f.taps.index.shape[1] == 1
        centres = np.clip((places + 0.5) * ratio - 0.5, 0, size - 1)
        expected = np.floor(places * ratio) if nearest else centres
        if not np.allclose((f.taps.index * f.taps.weight).sum(1), expected, atol=1e-3):
            raise ValueError("Interpolate: expected the nearest or a linear mixture of two")
        mode = "nearest" if nearest else "linear"
        if self.nodes[-1][0] == "Resize" and [self.nodes[-1][2]] == names and self.nodes[-1][3]["mode"] == mode:
            names = [self.nodes.pop()[1][0]]
        place = {"nearest_mode": "floor", "coordinate_transformation_mode": "asymmetric"} if nearest else {}
        ends = [*names, "", "", self._indices(output.shape)]
        return self._emit("Resize", ends, mode=mode, **place)


def _window(spec: Any, kernel: Sequence[int]) -> dict[str, Any]:
    top, bottom, left, right = spec.padding
    return {
        "kernel_shape": [int(k) for k in kernel],
        "strides": list(spec.stride),
        "pads": [top, left, bottom, right],
        "dilations": list(spec.dilation),
    }
