"""Normalisation."""

from __future__ import annotations

import math

from .. import kernels
from ..device import Array, generator
from ..function import Function, is_recording
from ..tensor import Tensor, wrap
from .elementwise import clip, operands, sqrt
from .reduce import mean, sum
from .shape import reshape


class BatchNorm(Function):
    """Normalisation by the batch's statistics (Ioffe and Szegedy 2015, algorithm 1), with or without a ReLU behind."""

    def __init__(self, eps: float, relu: bool = False) -> None:
        self.eps, self.relu = eps, relu

    def forward(self, x: Array, gamma: Array, beta: Array) -> Array:
        if x.ndim != 4 or not gamma.shape == beta.shape == x.shape[1:2]:
            raise ValueError(
                "BatchNorm: expected x (n, channels, height, width) with weight and bias (channels,), "
                f"got {x.shape}, {gamma.shape} and {beta.shape}"
            )
        if x.size == 0:
            raise ValueError(f"BatchNorm: no values to take statistics of in shape {x.shape}")
        self.save_inputs(0, 1)
        if self.relu:
            self.save_outputs()
        y, self.mean, self.var, self.notes = kernels.batch_norm(x, gamma, beta, self.eps, self.relu)
        return y

    def backward(self, gy: Tensor) -> tuple[Tensor | None, ...]:
        x, gamma, _ = self.inputs
        notes = None if is_recording() else self.notes
        if self.relu and notes is None:
            gy = gy * wrap(self.outputs[0].data > 0)
        if not is_recording():
            grads = kernels.batch_norm_grad(x.data, gy.data, gamma.data, self.mean, self.var, self.eps, notes)
            return tuple(wrap(g) for g in grads)
        axes, count = (0, 2, 3), x.size // x.shape[1]
        centred = x - mean(x, axes, True)
        inverse = 1 / sqrt(mean(centred * centred, axes, True) + self.eps)
        normal = centred * inverse
        g_gamma, g_beta = sum(gy * normal, axes, True), sum(gy, axes, True)
        scale = reshape(gamma, (1, -1, 1, 1)) * inverse
        gx = scale * (gy - (g_beta + normal * g_gamma) * (1 / count))
        return gx, reshape(g_gamma, gamma.shape), reshape(g_beta, gamma.shape)


def batch_norm(
    x: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-5, relu: bool = False
) -> tuple[Tensor, Array, Array]:
    """x (n, channels, height, width) normalised by its own statistics, and those: mean and biased variance (channels,).

    With ``relu`` its negative values become zeros in the same pass. Raises ValueError for shapes that do not match and
    for an empty x.

    >>> import numpy as np
    >>> x = Tensor(np.arange(4, dtype=np.float32).reshape(4, 1, 1, 1))
    >>> y, mean, var = batch_norm(x, Tensor([1.0]), Tensor([0.0]))
    >>> mean, var
    (array([1.5], dtype=float32), array([1.25], dtype=float32))
    """
    function = BatchNorm(eps, relu)
    y = function(*operands("BatchNorm", x, weight, bias))
    return y, function.mean, function.var


def _standardise(x: Tensor, axes: tuple[int, ...], eps: float) -> Tensor:
    centred = x - mean(x, axes, True)
    return centred / sqrt(mean(centred * centred, axes, True) + eps)


def group_norm(x: Tensor, groups: int, weight: Tensor, bias: Tensor, eps: float = 1e-5) -> Tensor:
    """x (n, channels, height, width) normalised within groups of channels of each image (Wu and He 2018).

    >>> import numpy as np
    >>> x, ones, zeros = np.ones((1, 4, 2, 2), np.float32), np.ones(4, np.float32), np.zeros(4, np.float32)
    >>> group_norm(Tensor(x), 2, Tensor(ones), Tensor(zeros)).shape
    (1, 4, 2, 2)
    """
    if x.ndim != 4 or x.shape[1] % groups or not weight.shape == bias.shape == x.shape[1:2]:
        expected = f"x (n, channels, height, width), {groups} equal groups of channels, weight and bias (channels,)"
        raise ValueError(f"group_norm: expected {expected}, got {x.shape}, {weight.shape} and {bias.shape}")
    n, c, h, w = x.shape
    y = None if is_recording() else kernels.group_norm(x.data, groups, weight.data, bias.data, eps)
    if y is not None:
        return wrap(y)
    y = reshape(_standardise(reshape(x, (n, groups, c // groups, h, w)), (2, 3, 4), eps), x.shape)
    return y * reshape(weight, (1, c, 1, 1)) + reshape(bias, (1, c, 1, 1))


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-5) -> Tensor:
    """x normalised over its last axes, those of ``weight`` (Ba et al. 2016).

    >>> layer_norm(Tensor([[1.0, 3.0]]), Tensor([1.0, 1.0]), Tensor([0.0, 0.0])).shape
    (1, 2)
    """
    if x.shape[x.ndim - weight.ndim :] != weight.shape:
        raise ValueError(f"layer_norm: expected x to end in axes of {weight.shape}, got {x.shape}")
    row = weight.shape == bias.shape == x.shape[-1:] and not is_recording()
    y = kernels.layer_norm(x.data, weight.data, bias.data, eps) if row else None
    return _standardise(x, tuple(range(x.ndim - weight.ndim, x.ndim)), eps) * weight + bias if y is None else wrap(y)


def normalize(x: Tensor, axis: int = 1, eps: float = 1e-12) -> Tensor:
    """x divided by its Euclidean norm over ``axis``, which counts as at least ``eps`` (and is then constant).

    >>> normalize(Tensor([[3.0, 4.0]])).numpy()
    array([[0.6, 0.8]], dtype=float32)
    """
    return x / sqrt(clip(sum(x * x, axis, True), eps * eps, math.inf))


class Dropout(Function):
    """Zeros with probability ``ratio``, the rest scaled up (Srivastava et al. 2014)."""

    def __init__(self, ratio: float) -> None:
        self.ratio = ratio

    def forward(self, x: Array) -> Array:
        keep = generator().random(x.shape, "float32") >= self.ratio
        self.mask = wrap(Tensor(x).xp.asarray(keep)).data.astype(x.dtype) * (1 / (1 - self.ratio))
        return x * self.mask

    def backward(self, gy: Tensor) -> tuple[Tensor]:
        return (gy * wrap(self.mask),)


def dropout(x: Tensor, ratio: float = 0.5) -> Tensor:
    """x with a share ``ratio`` of its values set to zero and the rest scaled to keep the mean; see ``seed``.

    >>> dropout(Tensor([1.0, 2.0]), 0.0).numpy()
    array([1., 2.], dtype=float32)
    """
    if not 0 <= ratio < 1:
        raise ValueError(f"dropout: expected a ratio from 0 to below 1, got {ratio}")
    return Dropout(ratio)(x) if ratio else x
