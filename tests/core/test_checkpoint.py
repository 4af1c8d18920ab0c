"""checkpoint: the same gradients, computed with less memory."""

import gc

import numpy as np
import pytest
from chainsight.core import Parameter, Tensor, checkpoint, grad, no_grad
from chainsight.core import functions as F
from chainsight.core.kernels import memory
from chainsight.core.layers import Conv2d, ReLU, Sequential


def blocks():
    rng = np.random.default_rng(0)
    made = [
        Sequential(*(f() for _ in range(5) for f in (lambda: Conv2d(16, 16, 3, padding=1), ReLU))) for _ in range(4)
    ]
    for block in made:
        for p in block.parameters():
            p.data = (rng.standard_normal(p.shape) * 0.1).astype(np.float32)
    return made


def image(requires_grad):
    x = np.random.default_rng(1).standard_normal((2, 16, 64, 64)).astype(np.float32)
    return Tensor(x, requires_grad=requires_grad)


def step(parts, x, call):
    for part in parts:
        x = call(part, x)
    loss = (x * x).mean()
    loss.backward()
    return loss.item(), [p.grad.numpy().copy() for part in parts for p in part.parameters()]


@pytest.mark.parametrize("requires_grad", [False, True])
def test_gradients_are_the_same(requires_grad):
    plain, again = image(requires_grad), image(requires_grad)
    loss, expected = step(blocks(), plain, lambda part, x: part(x))
    other, found = step(blocks(), again, checkpoint)
    assert other == loss
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_array_equal(a, b)
    if requires_grad:
        np.testing.assert_array_equal(again.grad.numpy(), plain.grad.numpy())


def peak(call):
    parts, most = blocks(), 0
    x = image(False)
    gc.collect()
    before = memory.usage()[0]

    class Watch(ReLU):
        def forward(self, y):
            nonlocal most
            most = max(most, memory.usage()[0] - before)
            return y

    step([Sequential(part, Watch()) for part in parts], x, call)
    return most


def test_memory_is_that_of_one_part():
    kept, recomputed = peak(lambda part, x: part(x)), peak(checkpoint)
    assert recomputed <= 0.6 * kept


def test_several_inputs_and_gradients_by_some_of_them():
    a, b = Tensor([2.0, 3.0], requires_grad=True), Tensor([5.0, 7.0])
    w = Parameter(np.array([1.0, 10.0], np.float32))
    checkpoint(lambda a, b: a * b * w, a, b).sum().backward()
    np.testing.assert_array_equal(a.grad.numpy(), [5, 70])
    np.testing.assert_array_equal(w.grad.numpy(), [10, 21])
    assert b.grad is None
    (ga,) = grad([checkpoint(F.exp, a).sum()], [a])
    np.testing.assert_allclose(ga.numpy(), np.exp([2, 3]), rtol=1e-6)


def test_where_nothing_needs_a_gradient():
    x = Tensor([1.0])
    with no_grad():
        assert not checkpoint(F.exp, x).requires_grad
    y = Tensor([1.0], requires_grad=True)
    (checkpoint(F.exp, x) * y).backward()
    assert x.grad is None
    np.testing.assert_allclose(y.grad.numpy(), np.exp([1]), rtol=1e-6)


def test_second_derivatives_are_an_error():
    x = Tensor([1.0], requires_grad=True)
    with pytest.raises(RuntimeError, match="no second derivatives"):
        grad([checkpoint(F.exp, x)], [x], create_graph=True)


def test_an_input_changed_in_between_is_an_error():
    x = Tensor([1.0], requires_grad=True)
    y = checkpoint(F.exp, x)
    x.data += 1
    with pytest.raises(RuntimeError, match="changed in place"):
        y.backward()
