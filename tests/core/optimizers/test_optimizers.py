"""Optimizers against torch's steps, and what they promise about gradients, groups, states and read-only arrays."""

import sys
from pathlib import Path

import numpy as np
import pytest
from chainsight.core import Parameter, Tensor, optimizers
from chainsight.core.layers import BatchNorm2d, Conv2d, Linear, Sequential
from chainsight.core.optimizers import SGD, Adam, AdamW, Cosine, Polynomial, StepDecay, Warmup, WeightAverage

GOLDENS = Path(__file__).resolve().parents[2] / "goldens"
sys.path.insert(0, str(GOLDENS))
from cases import read_cases  # noqa: E402

CASES = read_cases(GOLDENS / "functions.npz")
STEPS = [key for key, case in CASES.items() if case.function.startswith("torch.optim.") and "step_1" in case.outputs]


@pytest.mark.parametrize("key", STEPS)
@pytest.mark.parametrize("order", ["C", "F"])
def test_steps_equal_torch(key, order):
    case = CASES[key]
    options = {k: tuple(v) if isinstance(v, list) else v for k, v in case.options.items()}
    p = Parameter(np.array(case.inputs["parameter"], order=order))
    optimizer = getattr(optimizers, case.function.rsplit(".", 1)[1])([p], **options)
    for i in range(1, 6):
        p.grad = Tensor(case.inputs[f"gradient_{i}"])
        optimizer.step()
        np.testing.assert_allclose(p.numpy(), case.outputs[f"step_{i}"], rtol=2e-6, atol=1e-7)


def test_there_are_golden_steps():
    assert len(STEPS) == 8


@pytest.mark.parametrize("key", ["clip_grad_norm_/1.0", "clip_grad_norm_/100.0"])
def test_clipping_equals_torch(key):
    case = CASES[key]
    params = [Parameter(np.zeros((3, 2))) for _ in range(2)]
    for i, p in enumerate(params, 1):
        p.grad = Tensor(case.inputs[f"gradient_{i}"])
    before = [p.grad.data for p in params]
    kept = [g.copy() for g in before]
    norm = optimizers.clip_gradients(params, case.options["max_norm"])
    np.testing.assert_allclose(norm, case.outputs["out"], rtol=1e-6)
    for i, p in enumerate(params, 1):
        np.testing.assert_allclose(p.grad.numpy(), case.outputs[f"gradient_{i}"], rtol=1e-5)
    for array, copy in zip(before, kept):
        np.testing.assert_array_equal(array, copy)  # replaced, not written


SCHEDULES = {
    "StepLR": lambda o: StepDecay(tuple(range(o["step_size"], 100, o["step_size"])), o["gamma"]),
    "MultiStepLR": lambda o: StepDecay(tuple(o["milestones"]), o["gamma"]),
    "CosineAnnealingLR": lambda o: Cosine(o["T_max"], o["eta_min"] / 0.1),
    "PolynomialLR": lambda o: Polynomial(o["total_iters"], o["power"]),
    "LinearLR": lambda o: Warmup(lambda step: 1.0, o["total_iters"], o["start_factor"]),
    "warmup_cosine": lambda o: Warmup(
        Cosine(o["cosine"]["T_max"]), o["linear"]["total_iters"], o["linear"]["start_factor"]
    ),
}


@pytest.mark.parametrize("key", SCHEDULES)
def test_schedules_equal_torch(key):
    case = CASES[key]
    schedule = SCHEDULES[key](case.options)
    rates = [0.1 * schedule(i) for i in range(len(case.outputs["out"]))]
    np.testing.assert_allclose(rates, case.outputs["out"], rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("make", [lambda p: SGD(p, lr=0.1, momentum=0.9, nesterov=True), AdamW, Adam])
def test_a_resumed_optimizer_goes_on_bit_equal(make):
    rng = np.random.default_rng(0)
    gradients = [rng.standard_normal((5, 3)).astype(np.float32) for _ in range(6)]

    def run(p, optimizer, part):
        for g in part:
            p.grad = Tensor(g)
            optimizer.step(0.5)

    whole = Parameter(np.ones((5, 3), np.float32))
    optimizer = make([whole])
    run(whole, optimizer, gradients)
    first = Parameter(np.ones((5, 3), np.float32))
    optimizer = make([first])
    run(first, optimizer, gradients[:3])
    state = {k: v.copy() for k, v in optimizer.state_dict().items()}
    second = Parameter(first.numpy().copy())
    optimizer = make([second])
    optimizer.load_state_dict(state)
    run(second, optimizer, gradients[3:])
    np.testing.assert_array_equal(whole.numpy(), second.numpy())


def test_groups_have_settings_of_their_own():
    a, b = Parameter([1.0]), Parameter([1.0])
    optimizer = SGD([{"params": [a], "lr": 1.0}, {"params": [b]}], lr=0.1)
    a.grad = b.grad = Tensor([1.0])  # one gradient for two leaves
    optimizer.step()
    np.testing.assert_allclose([a.item(), b.item()], [0.0, 0.9], rtol=1e-6)
    assert a.grad.item() == 1.0


def test_a_step_writes_into_the_array_and_counts_as_a_change():
    p = Parameter([1.0, 2.0])
    array, version = p.data, p.version
    p.grad = Tensor([1.0, 1.0])
    SGD([p], lr=0.5).step()
    assert p.data is array
    assert p.version > version
    y = p * p
    p.grad = Tensor([1.0, 1.0])
    SGD([p], lr=0.5).step()
    with pytest.raises(RuntimeError, match="changed in place"):
        y.sum().backward()


def test_a_step_on_a_read_only_array_leaves_it_alone():
    frozen = np.ones(2, np.float32)
    frozen.flags.writeable = False
    p = Parameter(frozen)
    p.grad = Tensor([1.0, 1.0])
    AdamW([p], lr=0.5).step()
    assert frozen.tolist() == [1, 1]
    assert p.numpy().tolist() != [1, 1]


def test_parameters_without_gradient_stay():
    a, b = Parameter([1.0]), Parameter([1.0])
    a.grad = Tensor([1.0])
    AdamW([a, b], lr=0.1, weight_decay=0.5).step()
    assert b.item() == 1.0


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda p: SGD([], lr=0.1), "at least one parameter"),
        (lambda p: SGD([p, p], lr=0.1), "every parameter once"),
        (lambda p: SGD([p], lr=-0.1), "lr >= 0, got -0.1"),
        (lambda p: SGD([{"params": [p], "rate": 1}], lr=0.1), "got rate"),
        (lambda p: SGD([p], lr=0.1, nesterov=True), "needs a momentum"),
        (lambda p: WeightAverage(Linear(1, 1), 1.0), "expected a decay"),
    ],
)
def test_wrong_settings(make, message):
    with pytest.raises(ValueError, match=message):
        make(Parameter([1.0]))


def test_a_state_of_other_parameters_is_refused():
    p = Parameter([1.0])
    optimizer = SGD([p], lr=0.1, momentum=0.9)
    with pytest.raises(ValueError, match=r"expected shape \(1,\), got \(2,\)"):
        optimizer.load_state_dict({"steps": np.array(1), "0.momentum": np.zeros(2, np.float32)})
    with pytest.raises(ValueError, match=r"unexpected '1\.momentum'"):
        optimizer.load_state_dict({"steps": np.array(1), "1.momentum": np.zeros(1, np.float32)})


def test_the_average_follows_weights_and_statistics():
    rng = np.random.default_rng(0)
    net = Sequential(Conv2d(3, 4, 3), BatchNorm2d(4))
    average = WeightAverage(net, decay=0.5)
    x = Tensor(rng.standard_normal((1, 3, 8, 8)).astype(np.float32))
    expected = {k: v.copy() for k, v in net.state_dict().items()}
    for i in range(1, 4):
        for t in (*net.parameters(), *(b for _, b in net.named_buffers())):
            t.data = t.data + 1
        average.update()
        share = 1 - min(0.5, (1 + i) / (10 + i))
        expected = {k: v + (net.state_dict()[k] - v) * share for k, v in expected.items()}
        average.module(x)  # kernels made from the average must not stop it
    for key, value in average.module.state_dict().items():
        np.testing.assert_allclose(value, expected[key], rtol=1e-5, atol=1e-6)
    other = WeightAverage(Sequential(Conv2d(3, 4, 3), BatchNorm2d(4)), decay=0.5)
    other.load_state_dict(average.state_dict())
    assert other.updates == 3
    np.testing.assert_array_equal(other.module.state_dict()["0.weight"], average.module.state_dict()["0.weight"])
