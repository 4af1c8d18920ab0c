"""The walk: depth, memory, errors, second derivatives, safety against changes in place."""

import gc
import threading
import weakref

import numpy as np
import pytest
from chainsight.core import Function, Parameter, Tensor, backward, debug_mode, grad, is_recording, no_grad
from chainsight.core import functions as F


def leaf(*values, dtype=np.float64):
    return Tensor(np.array(values, dtype), requires_grad=True)


# Depth and order


def test_a_graph_20000_deep():
    x = leaf(1.0)
    y = x
    for _ in range(20_000):
        y = y + 1
    y.backward()
    assert x.grad.item() == 1


def test_a_deep_graph_that_is_never_walked_dies_quietly():
    x = leaf(1.0)
    y = x
    for _ in range(20_000):
        y = y * 1
    del y
    gc.collect()
    assert x.grad is None


def test_a_deep_second_derivative():
    x = leaf(1.0)
    y = x
    for _ in range(500):
        y = y * x
    (g,) = grad([y], [x], create_graph=True)
    (h,) = grad([g], [x])
    assert (g.item(), h.item()) == (501, 501 * 500)


def test_each_function_is_walked_once_however_many_paths_lead_to_it():
    calls = []

    class Twice(Function):
        def forward(self, x):
            return x * 2

        def backward(self, gy):
            calls.append(1)
            return (gy * 2,)

    x = leaf(1.0)
    y = x
    for _ in range(30):  # 2 ** 30 paths
        y = Twice()(y)
        y = y + y * 0.5
    y.backward()
    assert len(calls) == 30
    assert x.grad.item() == pytest.approx(3.0**30)


def test_several_outputs_and_roots():
    x = leaf(1.0, 2.0, 3.0, 4.0)
    a, b = F.split(x, 2)
    backward([a.sum(), (b * b).sum()])
    np.testing.assert_array_equal(x.grad.numpy(), [1, 1, 6, 8])


# Memory


def walk_memory(create_graph):
    """How many of the gradients made during a walk of a chain are alive at once."""
    alive, most = weakref.WeakSet(), 0

    class Chain(Function):
        def forward(self, x):
            return x + 0

        def backward(self, gy):
            nonlocal most
            g = Tensor(gy.data * 1) if not create_graph else gy * 1
            alive.add(g)
            most = max(most, len(alive))
            return (g,)

    x = leaf(*range(10))
    y = x
    for _ in range(50):
        y = Chain()(y)
    y.sum().backward(create_graph=create_graph)
    return most


def test_gradients_are_freed_as_soon_as_used():
    assert walk_memory(create_graph=False) <= 3


def test_graph_memory_is_freed_after_backward():
    x = leaf(1.0, 2.0)
    hidden = F.exp(x)
    saved, function = weakref.ref(hidden), weakref.ref(hidden.creator)
    y = (hidden * hidden).sum()
    del hidden
    gc.collect()
    assert saved() is not None  # Mul saved it
    y.backward()
    assert saved() is None
    assert function() is None
    assert x.grad is not None


def test_graph_memory_is_freed_while_the_walk_goes_on():
    seen = []

    class Look(Function):
        def forward(self, x):
            return x + 0

        def backward(self, gy):
            seen.append(big() is None)
            return (gy,)

    x = leaf(1.0)
    y = Look()(x)
    middle = F.exp(y)
    big = weakref.ref(middle)
    z = middle * middle
    del middle
    z.backward()
    assert seen == [True]


def test_without_a_backward_pass_the_graph_dies_with_its_output():
    x = leaf(1.0)
    y = F.exp(x) * 2
    function = weakref.ref(y.creator)
    del y
    assert function() is None


def test_no_graph_is_kept_where_nothing_needs_a_gradient():
    y = Tensor([1.0]) * 2
    assert y.creator is None
    with no_grad():
        z = leaf(1.0) * 2
    assert z.creator is None
    assert not z.requires_grad


# Repeated walks


def test_backward_twice_says_what_to_do():
    x = leaf(1.0, 2.0)
    y = (x * x).sum()
    y.backward()
    with pytest.raises(RuntimeError, match=r"Sum: its graph was freed .* retain_graph=True"):
        y.backward()


def test_a_part_of_the_graph_that_was_freed_is_no_silent_none():
    x = leaf(1.0, 2.0)
    trunk = x * x
    trunk.sum().backward()
    with pytest.raises(RuntimeError, match="Mul: its graph was freed"):
        grad([(trunk * 3).sum()], [x])
    with pytest.raises(RuntimeError, match="Mul: its graph was freed"):
        (trunk * 3).sum().backward()


def test_retain_graph():
    x = leaf(3.0)
    y = x * x
    y.backward(retain_graph=True)
    y.backward()
    assert x.grad.item() == 12


# grad()


def test_grad_by_a_value_inside_and_by_unused_ones():
    x, unused = leaf(2.0), leaf(1.0)
    inside = x * x
    y = inside * 3
    g_inside, g_unused, g_x = grad([y], [inside, unused, x])
    assert (g_inside.item(), g_unused, g_x.item()) == (3, None, 12)
    assert x.grad is None


def test_grad_by_the_output_itself_and_by_one_input_twice():
    x = leaf(2.0)
    y = x * 5
    assert [g.item() for g in grad([y], [y, x, x])] == [1, 5, 5]
    assert [g.item() for g in grad([x], [x])] == [1]


def test_grad_by_one_output_of_several():
    x = leaf(1.0, 2.0)
    a, b = F.split(x, 2)
    g_a, g_b = grad([(a * a * 7).sum()], [a, b])
    assert g_a.item() == 14
    assert g_b is None


def test_grad_walks_only_what_leads_to_the_inputs():
    class Untouched(Function):
        def forward(self, x):
            return x + 0

        def backward(self, gy):
            raise AssertionError("walked")

    x, w = leaf(2.0), leaf(3.0)
    y = Untouched()(x) * w
    assert grad([y], [w])[0].item() == 2


def test_needs_grad_tells_backward_what_is_wanted():
    asked = []

    class Both(Function):
        def forward(self, a, b):
            return a + b

        def backward(self, gy):
            asked.append(self.needs_grad)
            return gy, gy

    a, b = leaf(1.0), leaf(1.0)
    y = Both()(a, b)
    grad([y], [b], retain_graph=True)
    grad([y], [a, b])
    Both()(a, Tensor(np.ones(1))).backward()
    assert asked == [(False, True), (True, True), (True, False)]


def test_grad_outputs():
    x = leaf(1.0, 2.0)
    (g,) = grad([x * x, x * 3], [x], [Tensor(np.array([1.0, 10.0])), Tensor(np.array([1.0, 1.0]))])
    np.testing.assert_array_equal(g.numpy(), [5, 43])
    with pytest.raises(ValueError, match="expected 1 grad_outputs, one for each output, got 2"):
        grad([x * x], [x], [None, None])
    with pytest.raises(ValueError, match=r"expected a gradient of shape \(2,\), got \(3,\)"):
        (x * x).backward(Tensor(np.ones(3)))
    with pytest.raises(TypeError, match="expected a gradient of dtype float64, the value's own, got float32"):
        (x * x).backward(Tensor(np.ones(2, np.float32)))
    with pytest.raises(ValueError, match=r"shape \(2,\) is no scalar"):
        (x * x).backward()
    with pytest.raises(ValueError, match="depends on nothing"):
        Tensor([1.0]).backward()


def test_one_tensor_is_no_list():
    x = Tensor([1.0], requires_grad=True)
    with pytest.raises(TypeError, match=r"expected a list of Tensors as outputs, got one Tensor: pass \[y\]"):
        grad(x * x, [x])
    with pytest.raises(TypeError, match=r"expected a list of Tensors as inputs, got one Tensor: pass \[x\]"):
        grad([x * x], x)


def test_third_derivative():
    x = leaf(2.0)
    y = F.exp(x * x)
    for _ in range(3):
        (y,) = grad([y], [x], create_graph=True)
    assert y.item() == pytest.approx((8 * 8 + 12 * 2) * np.exp(4))


def test_backward_with_create_graph_leaves_gradients_that_are_differentiable():
    x = leaf(2.0)
    (x**3).backward(create_graph=True)
    (g,) = grad([x.grad], [x])
    assert (x.grad.item(), g.item()) == (12, 12)


def test_gradients_are_plain_without_create_graph():
    x = leaf(2.0)
    (x**3).backward()
    assert x.grad.creator is None
    assert not x.grad.requires_grad


# Recording by thread


def test_no_grad_is_of_this_thread_and_ends():
    states = []
    with no_grad():
        thread = threading.Thread(target=lambda: states.append(is_recording()))
        thread.start()
        thread.join()
        states.append(is_recording())
        with no_grad():
            pass
        states.append(is_recording())
    assert states == [True, False, False]
    with pytest.raises(KeyError), no_grad():
        raise KeyError
    assert is_recording()


def test_recording_is_restored_when_a_backward_fails():
    class Broken(Function):
        def forward(self, x):
            return x + 0

        def backward(self, gy):
            raise OSError("broken")

    with pytest.raises(OSError, match="broken"):
        Broken()(leaf(1.0)).backward()
    assert is_recording()


def test_threads_walk_their_own_graphs():
    w = Parameter(np.array([2.0]))
    results = []

    def run(value):
        for _ in range(50):
            (g,) = grad([w * w * value], [w])
            results.append(g.item() == 4 * value)

    threads = [threading.Thread(target=run, args=(v,)) for v in (1.0, 2.0, 3.0)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(results) == 150
    assert all(results)


# Changes in place


def test_a_saved_input_that_changed_is_found():
    x = leaf(1.0, 2.0)
    y = x * x
    x.data += 1
    with pytest.raises(RuntimeError, match=r"Mul: input 0 of shape \(2,\) was changed in place"):
        y.backward(Tensor(np.ones(2)))


def test_a_saved_output_that_changed_is_found_even_if_its_tensor_is_gone():
    x = leaf(1.0, 2.0)
    y = F.exp(x)
    z = y + 1
    y.data *= 2
    del y
    with pytest.raises(RuntimeError, match="Exp: output 0"):
        z.backward(Tensor(np.ones(2)))


def test_a_change_of_what_was_not_saved_is_harmless():
    x = leaf(1.0, 2.0)
    y = x + 1
    x.data += 1
    y.backward(Tensor(np.ones(2)))
    np.testing.assert_array_equal(x.grad.numpy(), [1, 1])


@pytest.mark.parametrize("function", [lambda x: x * x, F.exp, lambda x: F.silu(x + 0)])
def test_debug_mode_finds_writes_into_the_array(function):
    with debug_mode():
        x = leaf(1.0, 2.0)
        y = function(x)
        array = x.data if y.creator.name == "Mul" else y.data
        if y.creator.name == "SiLU":
            array = y.creator.inputs[0].data
        array[0] = 7
        with pytest.raises(RuntimeError, match="was changed in place"):
            y.backward(Tensor(np.ones(2)))


def test_debug_mode_passes_clean_code():
    with debug_mode():
        x = leaf(1.0, 2.0)
        F.softmax(F.exp(x) * x).sum().backward()
    assert x.grad is not None


# Shared gradients


def test_leaves_that_get_the_same_gradient_do_not_share_its_memory():
    a, b, c = leaf(1.0, 2.0), leaf(3.0, 4.0), leaf(0.0, 0.0)
    seed = Tensor(np.array([1.0, 10.0]))
    (a + b + c.reshape(1, 2).reshape(2)).backward(seed)
    arrays = [t.grad.data for t in (a, b, c)] + [seed.data]
    for i, x in enumerate(arrays):
        for other in arrays[:i]:
            assert not np.shares_memory(x, other)
    a.grad.data *= 0
    np.testing.assert_array_equal(b.grad.numpy(), [1, 10])


def test_a_gradient_that_was_broadcast_can_be_written_to():
    x = leaf(1.0, 2.0)
    x.sum().backward()
    x.grad.data[0] = 5
    np.testing.assert_array_equal(x.grad.numpy(), [5, 1])


def test_accumulation_adds_in_place_only_to_its_own_sums():
    """x gets the same array three times, y once: the sum for x must not show in y's gradient nor in the seed."""
    x, y = leaf(1.0, 2.0), leaf(1.0, 2.0)
    seed = Tensor(np.array([1.0, 10.0]))
    backward([x + y, x + 0, x + 1], [seed, seed, seed])
    np.testing.assert_array_equal(x.grad.numpy(), [3, 30])
    np.testing.assert_array_equal(y.grad.numpy(), [1, 10])
    np.testing.assert_array_equal(seed.numpy(), [1, 10])


def test_accumulation_inside_the_graph_is_safe_too():
    x = leaf(1.0, 2.0)
    a, b = x * 1, x * 1
    total = a + b + a + a
    ga, gb = grad([total], [a, b], [Tensor(np.array([1.0, 10.0]))])
    np.testing.assert_array_equal(ga.numpy(), [3, 30])
    np.testing.assert_array_equal(gb.numpy(), [1, 10])


def test_a_second_backward_adds_without_touching_the_first_array():
    x = leaf(1.0, 2.0)
    (x * 2).sum().backward()
    first = x.grad
    kept = first.numpy().copy()
    (x * 3).sum().backward()
    np.testing.assert_array_equal(first.numpy(), kept)
    np.testing.assert_array_equal(x.grad.numpy(), [5, 5])


# Functions with faults


def faulty(result):
    class Faulty(Function):
        def forward(self, x):
            return x * 2

        def backward(self, gy):
            return result(gy)

    return Faulty()


def test_a_gradient_of_the_wrong_shape_names_the_function():
    with pytest.raises(ValueError, match=r"Faulty: expected a gradient of shape \(2,\), the value's own, got \(1,\)"):
        faulty(lambda gy: (gy[:1],))(leaf(1.0, 2.0)).sum().backward()


def test_a_gradient_of_the_wrong_dtype_names_the_function():
    with pytest.raises(TypeError, match="Faulty: expected a gradient of dtype float64, the value's own, got float32"):
        faulty(lambda gy: (gy.astype(np.float32),))(leaf(1.0, 2.0)).sum().backward()


@pytest.mark.parametrize("result", [lambda gy: gy, lambda gy: (gy, gy), lambda gy: None])
def test_the_wrong_number_of_gradients_names_the_function(result):
    with pytest.raises(TypeError, match="Faulty: expected backward to return a tuple of 1"):
        faulty(result)(leaf(1.0, 2.0)).sum().backward()


def test_a_function_object_is_called_once():
    function = faulty(lambda gy: (gy,))
    function(leaf(1.0))
    with pytest.raises(RuntimeError, match="Faulty: expected a new object for each call"):
        function(leaf(1.0))


def test_a_function_without_methods_says_so():
    with pytest.raises(NotImplementedError, match="Function has no forward"):
        Function()(leaf(1.0))

    class OneWay(Function):
        def forward(self, x):
            return x + 0

    with pytest.raises(NotImplementedError, match="OneWay has no backward"):
        OneWay()(leaf(1.0)).backward()


def test_integer_outputs_have_no_gradient():
    class Order(Function):
        def forward(self, x):
            return x.argsort(), x + 0

        def backward(self, g_order, gy):
            assert g_order is None
            return (gy,)

    x = leaf(2.0, 1.0)
    order, y = Order()(x)
    assert not order.requires_grad
    y.sum().backward()
    assert x.grad is not None
