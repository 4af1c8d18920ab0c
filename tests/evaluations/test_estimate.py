"""What a network should take: the arithmetic is counted right, and a prediction is the sum of its kernels."""

import numpy as np
import pytest
from chainsight.core import Tensor
from chainsight.core.kernels import ConvSpec
from chainsight.core.layers import BatchNorm2d, Conv2d, Linear, Module, ReLU, Sequential, SiLU
from chainsight.evaluations import estimate
from chainsight.evaluations.estimate import Ceilings, Work, count, measure_ceilings, predict_seconds
from chainsight.vision.models import load, model_info


def images(*shape):
    return Tensor(np.random.default_rng(0).standard_normal(shape, np.float32))


def test_kinds_and_arithmetic_of_layers():
    net = Sequential(
        Conv2d(3, 32, 3, stride=2, padding=1, bias=False),
        BatchNorm2d(32),
        ReLU(),
        Conv2d(32, 32, 3, groups=32, bias=False),
        Conv2d(32, 256, 1, bias=False),
        SiLU(),
        Conv2d(256, 256, 1, bias=False),
    ).eval()
    work = count(net, images(1, 3, 16, 16))
    assert [w.kind for w in work] == ["few inputs", "grouped", "thin", "dense"]
    assert [w.flops for w in work[1:]] == [2 * 6 * 6 * 32 * 9, 2 * 36 * 32 * 256, 2 * 36 * 256 * 256]
    assert work[0].flops == 2 * (8 * 3 - 1) ** 2 * 3 * 32  # of 8 x 3 rows one lies in the padding
    assert [w.curved for w in work] == [0, 0, 36 * 256, 0]
    assert work[3].nbytes == 4 * (2 * 36 * 256 + 256 * 256)


@pytest.mark.parametrize("dilation", [1, 3, 20])
def test_taps_in_the_padding_do_not_count(dilation):
    spec = ConvSpec(padding=(dilation,) * 4, dilation=(dilation, dilation))
    inside = sum(0 <= i + k * dilation < 9 for i in range(9) for k in (-1, 0, 1))
    assert estimate._taps((2, 4, 9, 9), (8, 4, 3, 3), spec) == 2 * inside**2


def test_linear_layers_and_functions_that_move_values():
    class Net(Module):
        def __init__(self):
            self.fc = Linear(64, 32)

        def forward(self, x):
            return self.fc(x.reshape(-1, 64)) + 1

    work = count(Net().eval(), images(10, 8, 8))
    assert [w.kind for w in work] == ["linear", "moved"]
    assert work[0].flops == 2 * 10 * 64 * 32


@pytest.mark.parametrize("name", ["resnet50", "mobilenet_v3_large"])
def test_the_arithmetic_is_that_of_the_card(name):
    flops = sum(w.flops for w in count(load(name, weights=None), images(1, 3, 224, 224)))
    published = 2 * model_info(name).gflops * 1e9  # multiplications with additions, padding included
    assert 0.93 * published < flops <= 1.01 * published


def test_a_prediction_is_the_sum_of_its_kernels():
    ceilings = Ceilings({"dense": 1e9}, 1e9, 1e9, 0.5)
    work = [Work("dense", 3 * 10**9, 10**9), Work("moved", 0, 2 * 10**9), Work("dense", 10**9, 0, 10**9)]
    assert predict_seconds(work, ceilings) == pytest.approx(3 + 2 + 1 + 1 + 3 * 0.5)


@pytest.mark.slow
def test_the_command_measures_and_predicts(capsys, monkeypatch):
    monkeypatch.setattr(estimate, "PASSES", 1)
    assert estimate.main(["mobilenet_v3_small:96"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("GFLOP/s: dense ")
    predicted, measured, ratio = map(float, lines[2].split()[2:5])
    assert predicted > 0
    assert measured > 0
    assert abs(ratio - predicted / measured) < 0.5
    ceilings = measure_ceilings()
    assert min(*ceilings.flops.values(), ceilings.bandwidth, ceilings.curves) > 1e7
    with pytest.raises(SystemExit):
        estimate.main(["mobilenet_v3_small:wide"])
