"""The loop: resumed runs are bit-equal, accumulation equals a larger batch, a loss that is not finite stops it."""

import numpy as np
import pytest
from chainsight.core import Tensor
from chainsight.core import functions as F
from chainsight.core.layers import BatchNorm2d, Conv2d, Dropout, Flatten, Linear, ReLU, Sequential
from chainsight.core.optimizers import SGD, AdamW, Cosine, Warmup, WeightAverage
from chainsight.core.training import Loader, NotFiniteError, Training, train

DATA = np.random.default_rng(0).standard_normal((22, 3, 6, 6)).astype(np.float32)


def make(norm=True, accumulate=1, seed=3, **options):
    import chainsight.core as core

    core.seed(1)
    net = Sequential(
        Conv2d(3, 4, 3), *([BatchNorm2d(4), ReLU(), Dropout(0.3)] if norm else [ReLU()]), Flatten(), Linear(64, 2)
    )

    def losses(batch, rng):
        x = Tensor(np.stack(batch) + (rng.standard_normal((1, 3, 6, 6)).astype(np.float32) if norm else 0))
        y = net(x)
        return {"first": (y[:, 0] ** 2).mean(), "second": F.abs(y[:, 1] - 1).mean()}

    optimizer = options.pop("optimizer", None) or AdamW(net.parameters(), lr=0.01)
    training = Training(
        net,
        losses,
        optimizer if not callable(optimizer) else optimizer(net.parameters()),
        schedule=Warmup(Cosine(20), 3),
        average=WeightAverage(net, 0.9),
        clip=1.0,
        accumulate=accumulate,
        seed=seed,
    )
    return training, Loader(DATA, 4, shuffle=True, seed=seed, **options)


def final(training):
    return {k: v.copy() for k, v in training.state_dict().items()}


def test_two_runs_with_one_seed_are_bit_equal_for_any_workers():
    states = []
    for workers in (0, 3):
        training, loader = make(workers=workers)
        losses = [step.losses for step in train(training, loader, 3)]
        states.append((losses, final(training)))
    assert states[0][0] == states[1][0]
    for key, value in states[0][1].items():
        np.testing.assert_array_equal(value, states[1][1][key])
    other, loader = make(seed=4)
    list(train(other, loader, 3))
    assert not np.array_equal(other.state_dict()["model.0.weight"], states[0][1]["model.0.weight"])


@pytest.mark.parametrize(("accumulate", "stop"), [(1, 1), (1, 5), (1, 6), (1, 7), (1, 11), (4, 1), (4, 2), (4, 3)])
def test_a_run_stopped_anywhere_and_resumed_is_bit_equal(accumulate, stop):
    whole, loader = make(accumulate=accumulate)
    steps = list(train(whole, loader, 2))
    first, loader = make(accumulate=accumulate)
    for step in train(first, loader, 2):
        if step.number == stop:
            state = final(first)
            break
    second, loader = make(accumulate=accumulate)
    second.load_state_dict(state)
    rest = list(train(second, loader, 2))
    assert [s.number for s in rest] == [s.number for s in steps[stop:]]
    assert [s.losses for s in rest] == [s.losses for s in steps[stop:]]
    for key, value in whole.state_dict().items():
        np.testing.assert_array_equal(value, second.state_dict()[key], err_msg=key)


def test_accumulation_equals_a_larger_batch():
    results = []
    for batch_size, accumulate in ((4, 2), (8, 1)):
        training, _ = make(norm=False, accumulate=accumulate, optimizer=lambda p: SGD(p, lr=0.1))
        loader = Loader(DATA[:16], batch_size)
        steps = list(train(training, loader, 2))
        assert len(steps) == 4
        results.append((steps[-1].loss, final(training)["model.0.weight"]))
    assert results[0][0] == pytest.approx(results[1][0], rel=1e-5)
    np.testing.assert_allclose(results[0][1], results[1][1], rtol=1e-4, atol=1e-6)


def test_every_batch_counts_once_and_steps_say_where_they_are():
    training, loader = make(accumulate=4)  # 6 batches an epoch: groups of 4 and 2
    steps = list(train(training, loader, 2))
    assert [(s.number, s.epoch, s.batch) for s in steps] == [(1, 0, 3), (2, 0, 5), (3, 1, 3), (4, 1, 5)]
    assert (training.epoch, training.batch) == (2, 0)
    assert steps[0].rate == pytest.approx(0.01 * 0.001)
    assert all(s.gradient_norm > 0 and s.loss == pytest.approx(sum(s.losses.values())) for s in steps)
    assert list(train(training, loader, 2)) == []


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_loss_that_is_not_finite_names_its_batch_and_leaves_the_weights(value):
    training, _ = make(norm=False)
    data = [*DATA[:8], np.full((3, 6, 6), value, np.float32)]
    steps = train(training, Loader(data, 3), 1)
    next(steps)
    next(steps)
    before = final(training)
    with pytest.raises(NotFiniteError, match="epoch 0, batch 2: the loss is not finite") as error:
        next(steps)
    assert not np.isfinite(error.value.batch[2]).any()
    for key, array in training.state_dict().items():
        np.testing.assert_array_equal(array, before[key])


def test_a_state_of_another_run_is_refused():
    training, _ = make()
    with pytest.raises(ValueError, match="got the array 'weights'"):
        training.load_state_dict({"weights": np.zeros(1)})
    state = {k: v for k, v in training.state_dict().items() if not k.startswith("average.")}
    with pytest.raises(ValueError, match="averaged weights"):
        training.load_state_dict(state)


def test_no_batches():
    training, _ = make()
    with pytest.raises(ValueError, match="at least one batch"):
        next(train(training, Loader(DATA[:3], 4, drop_last=True), 1))
