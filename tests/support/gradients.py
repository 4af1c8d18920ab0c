"""The gradient check: analytic gradients against differences of values, in float64 along a random direction."""

import numpy as np
from chainsight.core import Tensor, get_namespace, grad, to_numpy

STEP = 1e-5


class GradientError(AssertionError):
    """A gradient that differs from the numerical one."""


def tensors_of(arrays):
    return [Tensor(a, requires_grad=a.dtype.kind == "f") for a in arrays]


def outputs_of(function, tensors):
    """The outputs of a call that depend on an input, always as a list."""
    found = function(*tensors)
    return [y for y in ([found] if isinstance(found, Tensor) else found) if y is not None and y.requires_grad]


def like(array, values):
    """NumPy values as an array of the same type as ``array``."""
    return get_namespace(array).asarray(values) if not isinstance(array, np.ndarray) else values


def dot(a, b):
    return float((to_numpy(a) * to_numpy(b)).sum())


def check_first_order(function, arrays, seed=0, what="gradient"):
    """Each input's gradient of a random combination of the outputs equals the central difference along a direction."""
    rng = np.random.default_rng(seed)
    tensors = tensors_of(arrays)
    outputs = outputs_of(function, tensors)
    if not outputs:
        raise GradientError(f"{what}: no output depends on an input")
    cotangents = [like(y.data, rng.standard_normal(y.shape)) for y in outputs]
    inputs = [t for t in tensors if t.requires_grad]
    gradients = grad(outputs, inputs, [Tensor(c) for c in cotangents])
    for i, (t, g) in enumerate(zip(inputs, gradients)):
        if g is not None and (g.shape != t.shape or g.dtype != t.dtype):
            raise GradientError(f"{what} {i}: expected {t.shape} {t.dtype}, got {g.shape} {g.dtype}")
        direction = rng.standard_normal(t.shape)
        place = next(k for k, other in enumerate(tensors) if other is t)
        ends = []
        for sign in (1, -1):
            moved = list(arrays)
            moved[place] = like(arrays[place], to_numpy(arrays[place]) + sign * STEP * direction)
            ends.append(sum(dot(y.data, c) for y, c in zip(outputs_of(function, tensors_of(moved)), cotangents)))
        numeric = (ends[0] - ends[1]) / (2 * STEP)
        analytic = 0.0 if g is None else dot(g.data, direction)
        scale = 1.0 if g is None else max(1.0, float(np.linalg.norm(to_numpy(g.data))))
        if not abs(numeric - analytic) <= 2e-6 * scale:
            raise GradientError(f"{what} {i} of shape {t.shape}: analytic {analytic}, numeric {numeric}")


def gradient_function(function, count):
    """The gradients of ``function`` as a function of its ``count`` inputs and of the outputs' gradients."""

    def call(*tensors):
        inputs, cotangents = tensors[:count], tensors[count:]
        outputs = outputs_of(function, inputs)
        wanted = [t for t in inputs if t.requires_grad]
        return [g for g in grad(outputs, wanted, list(cotangents), create_graph=True) if g is not None]

    return call


def check_gradients(function, arrays, seed=0):
    """First order, second order, and that both ways of computing the first order agree."""
    check_first_order(function, arrays, seed)
    rng = np.random.default_rng(seed + 1)
    tensors = tensors_of(arrays)
    outputs = outputs_of(function, tensors)
    cotangents = [like(y.data, rng.standard_normal(y.shape)) for y in outputs]
    inputs = [t for t in tensors if t.requires_grad]
    recorded = gradient_function(function, len(arrays))(*tensors, *map(Tensor, cotangents))
    plain = [g for g in grad(outputs, inputs, [Tensor(c) for c in cotangents]) if g is not None]
    for a, b in zip(recorded, plain, strict=True):
        if not np.allclose(to_numpy(a.data), to_numpy(b.data), rtol=1e-9, atol=1e-9):
            raise GradientError(f"the gradient of shape {a.shape} changes with create_graph")
    check_first_order(gradient_function(function, len(arrays)), [*arrays, *cotangents], seed + 2, "second gradient")
