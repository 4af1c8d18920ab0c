"""Models whose convolutions multiply bytes: a quarter of the arithmetic and of the file, a little accuracy.

Weights get 255 levels for each output channel, inputs 256 levels for each layer, between bounds measured on photos
(Krishnamoorthi 2018, "Quantizing deep convolutional networks for efficient inference", section 3).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np

from ..core import Buffer, Tensor, kernels, no_grad
from ..core.layers import Activation, BatchNorm, Conv2d, Module
from .image import Source, read_image
from .model import Model

M = TypeVar("M", bound=Model[Any])

FEWEST_INPUTS = 16  # of a sum: shorter ones, as in the first layer and in depthwise ones, gain nothing
SAMPLES = 4096  # values of a layer's input that are kept of each photo
CLIPS = np.linspace(0.3, 1, 71)  # the upper bounds tried, as shares of the greatest value


class QuantizedConv2d(Conv2d):
    """A convolution of whole numbers, for inference only.

    ``weight`` (out, in / groups, kh, kw) int8 counts ``steps`` (out,); inputs are taken as multiples of ``step`` from
    ``low`` (0 or -128) times it on.

    >>> conv = Conv2d(16, 4, 1, bias=False)
    >>> bytes_ = QuantizedConv2d(conv, np.ones((4, 16, 1, 1), np.int8), np.full(4, 0.5), step=0.25, low=0).eval()
    >>> bytes_(Tensor(np.full((1, 16, 1, 1), 0.3, np.float32))).numpy().ravel()  # 16 times 0.25, times 0.5
    array([2., 2., 2., 2.], dtype=float32)
    """

    def __init__(self, conv: Conv2d, weight: np.ndarray, steps: np.ndarray, step: float, low: int) -> None:
        vars(self).update({name: value for name, value in vars(conv).items() if name != "weight"})
        self.packed = type(conv.packed)()
        self.weight = Buffer(weight)  # type: ignore[assignment]
        self.weight_steps = Buffer(steps.astype(np.float32))
        self.input_range = Buffer(np.array([low, step], np.float32))

    def fused(
        self,
        x: Tensor,
        norm: BatchNorm | None = None,
        activation: Activation | None = None,
        residual: Tensor | None = None,
    ) -> Tensor:
        if self.training:
            raise ValueError("a quantized model cannot be trained: quantize after the training")
        with no_grad():
            return super().fused(x, norm, activation, residual)

    def kernel(self, scale: Any, bias: Any, activation: kernels.Activation | None) -> kernels.FusedConv2d:
        low, step = self.input_range.numpy().tolist()
        steps = self.weight_steps.numpy() if scale is None else self.weight_steps.numpy() * scale
        quantization = kernels.Quantization(step, int(low), steps)
        return kernels.FusedConv2d(self.weight.numpy(), bias, self.spec, activation, False, quantization)

    def describe(self) -> str:
        return f"{super().describe()}, bytes"


class _Observed(Conv2d):
    """A convolution that keeps some values of its inputs."""

    def __init__(self, conv: Conv2d, rng: np.random.Generator) -> None:
        vars(self).update(vars(conv))
        self.values: list[np.ndarray] = []
        self.greatest = self.least = 0.0
        self.rng = rng

    def fused(
        self,
        x: Tensor,
        norm: BatchNorm | None = None,
        activation: Activation | None = None,
        residual: Tensor | None = None,
    ) -> Tensor:
        values = kernels.widen(x.data).reshape(-1)
        if values.size:
            self.least, self.greatest = min(self.least, values.min()), max(self.greatest, values.max())
            self.values.append(values[self.rng.integers(0, values.size, min(SAMPLES, values.size))])
        return super().fused(x, norm, activation, residual)

    def quantized(self, conv: Conv2d) -> QuantizedConv2d:
        """The convolution of bytes, with the inputs' levels of the least mean squared error of the kept values."""
        weight, values = self.weight.numpy(), np.concatenate(self.values)
        greatest = np.abs(weight).max((1, 2, 3))
        steps = np.where(greatest > 0, greatest, 1) / 127
        whole = np.rint(weight / steps.reshape(-1, 1, 1, 1)).astype(np.int8)
        low = -128 if self.least < 0 else 0
        tried = CLIPS * max(self.greatest, -self.least) / (low + 255)
        errors = [np.square(np.clip(np.rint(values / s), low, low + 255) * s - values).mean() for s in tried]
        return QuantizedConv2d(conv, whole, steps, float(tried[int(np.argmin(errors))]), low)


def _convolutions(model: Module, kind: type[Conv2d] = Conv2d) -> list[tuple[str, Any]]:
    return [(name, m) for name, m in model.named_modules() if isinstance(m, kind)]


def _replace(model: Module, name: str, module: Module) -> None:
    *path, last = name.split(".")
    for part in path:
        model = getattr(model, part)
    setattr(model, last, module)


@contextmanager
def _observing(model: Module) -> Iterator[dict[str, _Observed]]:
    rng = np.random.default_rng(0)
    plain = {n: m for n, m in _convolutions(model) if m.weight.shape[1] >= FEWEST_INPUTS}
    observed = {name: _Observed(conv, rng) for name, conv in plain.items()}
    for name, observer in observed.items():
        _replace(model, name, observer)
    try:
        yield observed
    finally:
        for name, conv in plain.items():
            _replace(model, name, conv)


def quantize(model: M, photos: Iterable[Source]) -> M:
    """The model itself, with convolutions that multiply bytes, their bounds measured on ``photos``.

    A hundred photos like those of the task do. The first layer and depthwise convolutions stay as they are. The result
    predicts and is saved and loaded like any model, but cannot be trained. Raises ValueError for no photo, a model that
    is quantized already, and one without a convolution to quantize; ImageError for what is no image.

    >>> from .models import load
    >>> photo = np.zeros((64, 64, 3), np.uint8)
    >>> model = quantize(load("resnet18", weights=None), [photo])
    >>> model.predict(photo).probabilities.shape
    (1000,)
    """
    if _convolutions(model, QuantizedConv2d):
        raise ValueError(f"{model.describe()}: it is quantized already")
    model.eval()
    count = 0
    with _observing(model) as observed:
        if not observed:
            raise ValueError(f"{model.describe()}: it has no convolution of at least {FEWEST_INPUTS} inputs")
        frozen = [p for p in model.parameters() if p.requires_grad]
        for p in frozen:
            p.requires_grad = False  # the modules themselves run, not plans of them, but leave no graph
        try:
            for photo in photos:
                model.predict_image(read_image(photo), None)
                count += 1
        finally:
            for p in frozen:
                p.requires_grad = True
    if not count:
        raise ValueError("quantize: expected at least one photo to measure on, got none")
    for name, observer in observed.items():
        if observer.values and observer.greatest - observer.least > 0:  # else on the way of no photo: it stays
            conv = dict(_convolutions(model))[name]
            _replace(model, name, observer.quantized(conv))
    return model


def take_quantized(model: Module, state: Mapping[str, np.ndarray]) -> bool:
    """Make those convolutions quantized whose weights are bytes in ``state``, and say whether there are such."""
    stored = {name: array for name, array in state.items() if getattr(array, "dtype", None) == np.int8}
    chosen = [(name, conv) for name, conv in _convolutions(model) if f"{name}.weight" in stored]
    for name, conv in chosen:
        if not isinstance(conv, QuantizedConv2d):
            ones = np.ones(len(conv.weight.data))
            _replace(model, name, QuantizedConv2d(conv, stored[f"{name}.weight"], ones, 1.0, 0).train(conv.training))
    return bool(chosen)
