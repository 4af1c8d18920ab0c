"""How long a network should take on this machine, from its arithmetic, the bytes it moves and what the machine can do.

    python -m chainsight.evaluations.estimate resnet50 yolox_s:640

prints for each model (at 224 x 224, or the size behind the colon, batch 1) the arithmetic, the predicted and measured
milliseconds of the network alone, and the share of the highest measured rate of arithmetic that it reached.

A kernel's time is the longer of two: its arithmetic at the highest rate measured for its kind, its bytes at the highest
rate of memory (Williams et al. 2009, "Roofline"), plus what a call costs.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from math import prod
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np

from ..core import Tensor, kernels, no_grad, planned
from ..core.function import Function
from ..core.kernels import ConvSpec, FusedConv2d, FusedLinear, threads, winograd
from .graph import method_of

REPEATS, PASSES = 8, 4
LAYERS = 12  # of a kind, with data of their own: caches hold what they hold within a network
MEASURED_SECONDS = 0.4  # of each model
THIN = 128  # channels: products of fewer are bound by memory more than by arithmetic
CURVED = ("sigmoid", "silu", "tanh", "gelu", "mish")  # activations that cost some arithmetic themselves
CURVES = ("Sigmoid", "SiLU", "Tanh", "GELU", "Mish", "Exp", "Erf", "Softmax")  # the functions that do
SAME_SIZE = ConvSpec(padding=(1, 1, 1, 1))
SHAPES: dict[str, tuple[tuple[int, ...], tuple[int, ...], ConvSpec]] = {  # typical layers: input, weights, settings
    "dense": ((1, 128, 28, 28), (128, 128, 3, 3), SAME_SIZE),
    "thin": ((1, 64, 52, 52), (64, 64, 1, 1), ConvSpec()),
    "winograd": ((1, 256, 56, 56), (256, 256, 3, 3), SAME_SIZE),
    "few inputs": ((1, 3, 224, 224), (32, 3, 3, 3), ConvSpec((2, 2), (1, 1, 1, 1))),
    "grouped": ((1, 240, 28, 28), (240, 1, 3, 3), ConvSpec(padding=(1, 1, 1, 1), groups=240)),
}


class Work(NamedTuple):
    """One kernel: its kind, multiplications and additions, bytes read and written, values of exp and the like."""

    kind: str
    flops: int
    nbytes: int
    curved: int = 0


class Ceilings(NamedTuple):
    """Of this machine and its threads: arithmetic by kind (1/s), memory (bytes/s), curves (1/s), a call (s)."""

    flops: dict[str, float]
    bandwidth: float
    curves: float
    call: float


def _kind(x_shape: tuple[int, ...], w_shape: tuple[int, ...], spec: ConvSpec, residual: bool) -> str:
    if w_shape[1] < 16:
        return "grouped" if spec.groups > 1 else "few inputs"
    if winograd.pays(x_shape, w_shape, spec) and not residual:
        return "winograd"
    return "thin" if prod(w_shape[2:]) == 1 and min(w_shape[:2]) < THIN else "dense"


def _taps(x_shape: tuple[int, ...], w_shape: tuple[int, ...], spec: ConvSpec) -> int:
    """Pairs of an output and a weight of one channel that meet inside of the input, not in its padding."""
    pairs = 1
    for axis, before in enumerate(spec.padding[::2]):
        size, outputs = x_shape[2 + axis], spec.output_size((x_shape[2], x_shape[3]), (w_shape[2], w_shape[3]))[axis]
        at = (
            np.arange(outputs)[:, None] * spec.stride[axis]
            - before
            + np.arange(w_shape[2 + axis]) * spec.dilation[axis]
        )
        pairs *= int(((at >= 0) & (at < size)).sum())
    return x_shape[0] * pairs


@contextmanager
def _counting(work: list[Work]) -> Iterator[None]:
    convolve, multiply, call = FusedConv2d.__call__, FusedLinear.__call__, Function.__call__

    def conv(self: FusedConv2d, x: Any, residual: Any = None) -> Any:
        y, w = convolve(self, x, residual), self.w.shape
        nbytes = x.nbytes + 4 * prod(w) + y.nbytes + (0 if residual is None else residual.nbytes)
        flops = 2 * _taps(x.shape, w, self.spec) * w[0] * w[1]
        curved = y.size if self.activation and self.activation[0] in CURVED else 0
        work.append(Work(_kind(x.shape, w, self.spec, residual is not None), flops, nbytes, curved))
        return y

    def linear(self: FusedLinear, x: Any, residual: Any = None) -> Any:
        y, w = multiply(self, x, residual), self.w.shape
        curved = y.size if self.activation and self.activation[0] in CURVED else 0
        work.append(Work("linear", 2 * y.size * x.shape[-1], x.nbytes + 4 * prod(w) + y.nbytes, curved))
        return y

    def other(function: Function, *inputs: Any) -> Any:
        outputs = call(function, *inputs)
        arrays = [t.data for t in (*inputs, *(outputs if isinstance(outputs, tuple) else (outputs,))) if _is(t)]
        made = arrays[len([t for t in inputs if _is(t)]) :]
        if not any(np.may_share_memory(m, a) for m in made for a in arrays[: len(arrays) - len(made)]):
            flops = 2 * made[0].size * arrays[0].shape[-1] if function.name == "MatMul" else 0
            curved = made[0].size if function.name in CURVES else 0
            work.append(Work("linear" if flops else "moved", flops, sum(a.nbytes for a in arrays), curved))
        return outputs

    with (
        patch.object(FusedConv2d, "__call__", conv),
        patch.object(FusedLinear, "__call__", linear),
        patch.object(Function, "__call__", other),
    ):
        yield


def _is(value: Any) -> bool:
    return isinstance(value, Tensor)


def count(model: Any, x: Tensor, method: str = "forward") -> list[Work]:
    """The kernels that ``model.method(x)`` runs in inference.

    >>> from ..core.layers import Conv2d
    >>> count(Conv2d(16, 8, 1, bias=False).eval(), Tensor(np.ones((1, 16, 5, 5), np.float32)))
    [Work(kind='thin', flops=6400, nbytes=2912, curved=0)]
    """
    work: list[Work] = []
    with no_grad():
        getattr(model, method)(x)  # what is computed once, of the parameters, does not count
        with _counting(work):
            getattr(model, method)(x)
    return work


def _seconds(runs: Sequence[Callable[[], Any]]) -> float:
    """What one of these runs takes in a quiet moment, one after the other, as layers of a network are."""
    found = []
    with threads.settled():
        for i in range(REPEATS + 1):
            start = time.perf_counter()
            for run in runs:
                run()
            if i:
                found.append((time.perf_counter() - start) / len(runs))
    return min(found)


def measure_ceilings() -> Ceilings:
    """What this machine can do now; it takes about a second."""
    rng = np.random.default_rng(0)

    def normal(*shape: int) -> Any:
        y = kernels.empty(shape)
        y[...] = rng.standard_normal(shape, np.float32)
        return y

    def convolution(x_shape: tuple[int, ...], w_shape: tuple[int, ...], spec: ConvSpec) -> Callable[[], Any]:
        return partial(FusedConv2d(normal(*w_shape), None, spec, kernels.RELU), normal(*x_shape))

    units = {kind: 2 * _taps(x, w, spec) * prod(w[:2]) for kind, (x, w, spec) in SHAPES.items()}
    runs = {kind: [convolution(*shapes) for _ in range(LAYERS)] for kind, shapes in SHAPES.items()}
    units["linear"] = 2 * 196 * 768**2
    runs["linear"] = [partial(FusedLinear(normal(768, 768), None), normal(196, 768)) for _ in range(LAYERS)]
    units["memory"] = 3 * 4 * 64**3
    runs["memory"] = [partial(kernels.add, normal(1, 64, 64, 64), normal(1, 64, 64, 64)) for _ in range(LAYERS)]
    units["curves"] = 64**3
    runs["curves"] = [partial(kernels.activate, normal(1, 64, 64, 64), ("silu", 0.0, 0.0)) for _ in range(LAYERS)]
    tiny = [convolution((1, 16, 1, 1), (16, 16, 1, 1), ConvSpec())] * LAYERS
    rates = dict.fromkeys(units, 0.0)
    for _ in range(PASSES):
        call = _seconds(tiny)
        rates = {kind: max(rate, units[kind] / max(_seconds(runs[kind]) - call, 1e-9)) for kind, rate in rates.items()}
    return Ceilings(rates, rates.pop("memory"), rates.pop("curves"), call)


def predict_seconds(work: Sequence[Work], ceilings: Ceilings) -> float:
    """The predicted time of some kernels, one after the other.

    >>> predict_seconds([Work("dense", 10**9, 10**6)], Ceilings({"dense": 1e11}, 1e10, 1e9, 5e-6))
    0.010005
    """
    total = 0.0
    for kind, flops, nbytes, curved in work:
        total += max(flops / ceilings.flops[kind] if flops else 0.0, nbytes / ceilings.bandwidth)
        total += curved / ceilings.curves + ceilings.call
    return total


def measured_seconds(model: Any, x: Tensor, method: str) -> float:
    """The median time of the network, from a plan where it has one."""
    with no_grad():
        for _ in range(3):
            planned(model, x, method)
        found: list[float] = []
        while len(found) < 5 or sum(found) < MEASURED_SECONDS:
            start = time.perf_counter()
            planned(model, x, method)
            found.append(time.perf_counter() - start)
    return statistics.median(found)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the machine, then predict and measure each model."""
    from ..vision.models import load

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", metavar="MODEL[:SIZE]")
    options = parser.parse_args(arguments)
    ceilings = measure_ceilings()
    rates = ", ".join(f"{kind} {rate / 1e9:.0f}" for kind, rate in ceilings.flops.items())
    print(f"GFLOP/s: {rates}; memory {ceilings.bandwidth / 1e9:.1f} GB/s; a call {ceilings.call * 1e6:.0f} us")
    print(f"{'model':<34}{'GFLOP':>8}{'predicted ms':>14}{'measured ms':>13}{'ratio':>7}{'of peak':>9}")
    peak = max(rate for kind, rate in ceilings.flops.items() if kind != "winograd")
    for item in options.models:
        name, _, size = item.partition(":")
        if size and not size.isdecimal():
            parser.error(f"expected MODEL or MODEL:SIZE, got {item!r}")
        side = int(size or 224)
        model = load(name, weights=None)
        x = Tensor(np.random.default_rng(0).standard_normal((1, 3, side, side), np.float32))
        work = count(model, x, method_of(model))
        predicted, measured = predict_seconds(work, ceilings), measured_seconds(model, x, method_of(model))
        flops = sum(w.flops for w in work)
        row = f"{item:<34}{flops / 1e9:>8.2f}{predicted * 1e3:>14.1f}{measured * 1e3:>13.1f}"
        print(f"{row}{predicted / measured:>7.2f}{flops / measured / peak:>9.0%}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
