"""Plans repeat a module's computation bit by bit, and never an outdated one."""

import gc
import threading
import weakref

import numpy as np
import pytest
from chainsight.core import Tensor, compile, kernels, no_grad
from chainsight.core import functions as F
from chainsight.core import plan as plans
from chainsight.core.layers import (
    AdaptiveAvgPool2d,
    BatchNorm2d,
    Conv2d,
    Flatten,
    GroupNorm,
    HardSwish,
    Linear,
    MaxPool2d,
    Module,
    ReLU,
    Sequential,
)
from chainsight.core.plan import planned

pytestmark = pytest.mark.skipif(kernels.backend_name() != "onednn", reason="plans are made of oneDNN's kernel calls")


class Net(Module):
    def __init__(self) -> None:
        self.stem = Sequential(Conv2d(3, 16, 3, 2, 1, bias=False), BatchNorm2d(16), HardSwish(), MaxPool2d(2))
        self.wide = Conv2d(16, 16, 3, padding=1, groups=16)
        self.head = Sequential(AdaptiveAvgPool2d(1), Flatten(), Linear(32, 5), ReLU())

    def forward(self, x):
        y = self.stem(x)
        z = F.concatenate([y, self.wide(y) * F.sigmoid(y)], 1)
        up = F.resize(z, 20)
        return self.head(z), [up, F.softmax(F.transpose(z, (0, 2, 3, 1)))[:, :, :, 3:]], np.arange(x.shape[2])


def image(seed=0, size=40, dtype=np.float32):
    return Tensor(np.random.default_rng(seed).standard_normal((1, 3, size, size)).astype(dtype))


def flat(value):
    return list(plans._flat(value))


def check(net, x):
    with no_grad():
        got, expected = planned(net, x), net(x)
    for a, b in zip(flat(got), flat(expected), strict=True):
        np.testing.assert_array_equal(a, b)
    return got


def made(net):
    return list(plans._plans.of.get(net, {}).values())


def warm(net, size=40):
    for seed in range(3):
        check(net, image(seed, size))
    (plan,) = made(net)
    assert plan.good
    return plan


@pytest.fixture
def net():
    return Net().eval()


def test_bit_equal_on_new_inputs_and_results_are_their_own(net):
    warm(net)
    first = check(net, image(10))
    before = [a.copy() for a in flat(first)]
    check(net, image(11))
    for a, b in zip(flat(first), before):
        np.testing.assert_array_equal(a, b)


def test_nothing_is_planned_for_a_shape_seen_once_or_while_a_graph_is_recorded(net):
    check(net, image())
    assert made(net) == []
    planned(net, image(1))
    assert made(net) == []


@pytest.mark.parametrize("change", ["assign", "in place", "writable", "load", "statistics"])
def test_changed_parameters(net, change):
    warm(net)
    weight = net.stem[0].weight
    if change == "assign":
        weight.data = weight.data * 2
    elif change == "in place":
        weight.data = weight.data.copy()
        weight.data += 1
    elif change == "writable":
        weight.writable()[...] = 0.5
    elif change == "load":
        net.load_state_dict({k: v + np.float32(0.25) for k, v in net.state_dict().items()})
    else:
        net.stem[1].running_mean.data = np.ones(16, np.float32)
    (before,) = made(net)
    check(net, image(5))
    check(net, image(6))
    (after,) = made(net)
    assert len(after.notes.steps) == len(before.notes.steps)  # packing the new weights is no part of a run


def test_a_write_into_a_packed_array_is_an_error(net):
    warm(net)
    with pytest.raises(ValueError, match="read-only"):
        net.stem[0].weight.data[...] = 0


def test_changed_modules(net):
    warm(net)
    net.head = Sequential(AdaptiveAvgPool2d(1), Flatten(), Linear(32, 7))
    assert check(net, image(5))[0].shape == (1, 7)
    net.stem[1].eps = 0.5
    check(net, image(6))


def test_train_mode(net):
    warm(net)
    with no_grad():
        net.train()
        planned(net, image(4))
        planned(net, image(5))  # moves the running statistics, as the module does
        net.eval()
    check(net, image(7))


def test_dtype_and_shape(net):
    warm(net)
    for size in (41, 41, 64, 64, 40, 41, 64, 41):
        check(net, image(3, size))
    assert len(made(net)) == 3
    check(net, image(3, dtype=np.float64))
    for size in range(44, 44 + 2 * plans.SHAPES, 2):
        check(net, image(3, size))
        check(net, image(4, size))
    assert len(made(net)) == plans.SHAPES


def test_sizes_that_come_now_and_then_are_not_planned(net):
    for size in (40, 44, 48) * 4:
        check(net, image(size, size))
    assert made(net) == []
    for size in (40, 44, 44, 48, 40, 44):
        check(net, image(size, size))
    assert [p.input.shape[2] for p in made(net)] == [44]


def test_the_memory_of_all_plans_is_bounded(net, monkeypatch):
    plan = warm(net, 400)
    monkeypatch.setattr(plans, "LARGEST", plan.nbytes * 7 // 5)
    for size in (404, 408):
        for seed in range(2):
            check(net, image(seed, size))
    assert [p.input.shape[2] for p in made(net)] == [404, 408]
    assert all(p.good for p in made(net))


def test_threads_have_plans_of_their_own(net):
    warm(net)
    wrong = []

    def work(seed):
        for i in range(6):
            x = image(seed * 10 + i)
            with no_grad():
                got, expected = flat(planned(net, x)), flat(net(x))
            if not all((a == b).all() for a, b in zip(got, expected)):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert wrong == []


def test_number_of_threads(net):
    warm(net)
    before = kernels.get_num_threads()
    try:
        kernels.set_num_threads(1)
        check(net, image(5))
        check(net, image(6))
    finally:
        kernels.set_num_threads(before)


def test_what_cannot_be_noted_is_not_planned():
    class Sly(Module):
        def forward(self, x):
            return F.relu(Tensor(x.data * 2 - 1))  # an operation that no Function does

    net = Sly().eval()
    for seed in range(4):
        check(net, image(seed))
    assert [p.good for p in made(net)] == [False]


def test_large_networks_are_not_planned(net, monkeypatch):
    monkeypatch.setattr(plans, "LARGEST", 1000)
    for seed in range(4):
        check(net, image(seed, 400))
    assert [p.good for p in made(net)] == [False]


def test_memory_is_used_again_within_a_plan():
    net = Sequential(*(layer for _ in range(10) for layer in (Conv2d(16, 16, 3, padding=1), ReLU()))).eval()
    for seed in range(3):
        check(net, Tensor(np.random.default_rng(seed).standard_normal((1, 16, 64, 64)).astype(np.float32)))
    (plan,) = made(net)
    assert plan.good
    assert sum(plan.notes.pool.usage()) <= 3 * 16 * 64 * 64 * 4


def test_plans_go_with_their_module():
    net = Net().eval()
    warm(net)
    alive, count = weakref.ref(net), len(plans._plans.of)
    del net
    gc.collect()
    assert alive() is None
    assert len(plans._plans.of) == count - 1


def test_compile(net):
    x = image()
    fast = compile(net, x)
    (plan,) = made(net)
    assert plan.good
    net.stem[0].weight.data = net.stem[0].weight.data * 2
    for size in (40, 40, 44):
        x = image(size, size)
        with no_grad():
            expected = net(x)
        for a, b in zip(flat(fast(x)), flat(expected), strict=True):
            np.testing.assert_array_equal(a, b)
    assert not fast(x)[0].requires_grad
    with pytest.raises(TypeError, match="expected a Tensor as the example, got ndarray"):
        compile(net, x.data)


class Normed(Module):
    """Group norm and the mean of maps, whose values between kernels NumPy computes."""

    def __init__(self):
        self.conv, self.norm = Conv2d(3, 64, 3, padding=1), GroupNorm(8, 64)

    def forward(self, x):
        y = F.relu(self.norm(self.conv(x)))
        return y, F.mean(y, (2, 3))


def test_group_norm_and_means_of_maps_are_noted():
    net, rng = Normed().eval(), np.random.default_rng(0)
    with no_grad():
        for _ in range(5):
            x = Tensor(rng.standard_normal((1, 3, 24, 20)).astype(np.float32))
            for found, expected in zip(planned(net, x), net(x)):
                np.testing.assert_array_equal(found.numpy(), expected.numpy())
    assert [plan.good for plan in plans._plans.of[net].values()] == [True]
