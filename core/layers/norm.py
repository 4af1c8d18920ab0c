"""Normalisation layers."""

from __future__ import annotations

from .. import functions as F
from ..tensor import Buffer, Parameter, Tensor
from . import init
from .module import Module


class BatchNorm(Module):
    """What the two batch norms share: (x - mean) / sqrt(var + eps) * weight + bias for each channel."""

    ignored_keys = ("num_batches_tracked",)

    def __init__(self, channels: int, eps: float, kind: type[Tensor]) -> None:
        self.weight = kind(init.constant((channels,), 1))
        self.bias = kind(init.constant((channels,), 0))
        self.running_mean = Buffer(init.constant((channels,), 0))
        self.running_var = Buffer(init.constant((channels,), 1))
        self.eps = eps

    @property
    def fixed(self) -> bool:
        """Whether the statistics are the stored ones, so that the layer is a scale and a shift."""
        return not self.training

    @property
    def sources(self) -> list[Tensor]:
        return [self.weight, self.bias, self.running_mean, self.running_var]

    def scale_shift(self) -> tuple[Tensor, Tensor]:
        """The scale and the shift (channels,) that the stored statistics amount to."""
        scale = self.weight / F.sqrt(self.running_var + self.eps)
        return scale, self.bias - self.running_mean * scale

    def forward(self, x: Tensor) -> Tensor:
        scale, shift = self.scale_shift()
        return x * scale.reshape(1, -1, 1, 1) + shift.reshape(1, -1, 1, 1)

    def describe(self) -> str:
        return f"{self.running_mean.shape[0]}" + ("" if self.eps == 1e-5 else f", eps {self.eps:g}")


class BatchNorm2d(BatchNorm):
    """Batch normalisation of (n, channels, height, width) (Ioffe and Szegedy 2015).

    In training it uses the batch's statistics and moves the stored ones towards them by ``momentum``.

    >>> import numpy as np
    >>> BatchNorm2d(2)(Tensor(np.ones((1, 2, 2, 2), np.float32))).numpy().max()
    np.float32(0.0)
    """

    def __init__(self, channels: int, eps: float = 1e-5, momentum: float = 0.1) -> None:
        super().__init__(channels, eps, Parameter)
        self.momentum = momentum

    def forward(self, x: Tensor, relu: bool = False) -> Tensor:
        """The normalised x, with ``relu`` followed by a ReLU."""
        if not self.training:
            y = super().forward(x)
            return F.relu(y) if relu else y
        y, mean, var = F.batch_norm(x, self.weight, self.bias, self.eps, relu)
        count = x.size // x.shape[1]
        unbiased = var * (count / max(count - 1, 1))
        for running, new in ((self.running_mean, mean), (self.running_var, unbiased)):
            running.data = running.data * (1 - self.momentum) + new.astype(running.dtype) * self.momentum
        return y


class FrozenBatchNorm2d(BatchNorm):
    """Batch normalisation whose statistics, scale and shift never change: for fine-tuning with small batches.

    >>> FrozenBatchNorm2d(4).parameters()
    []
    """

    def __init__(self, channels: int, eps: float = 1e-5) -> None:
        super().__init__(channels, eps, Buffer)

    @property
    def fixed(self) -> bool:
        return True


class GroupNorm(Module):
    """Normalisation within groups of channels of each image (Wu and He 2018).

    >>> import numpy as np
    >>> GroupNorm(2, 4)(Tensor(np.ones((1, 4, 2, 2), np.float32))).shape
    (1, 4, 2, 2)
    """

    def __init__(self, groups: int, channels: int, eps: float = 1e-5) -> None:
        self.weight = Parameter(init.constant((channels,), 1))
        self.bias = Parameter(init.constant((channels,), 0))
        self.groups, self.eps = groups, eps

    def forward(self, x: Tensor) -> Tensor:
        return F.group_norm(x, self.groups, self.weight, self.bias, self.eps)

    def describe(self) -> str:
        return f"{self.groups} groups, {self.weight.shape[0]}"


class LayerNorm(Module):
    """Normalisation over the last axis (Ba et al. 2016).

    >>> LayerNorm(2)(Tensor([[1.0, 3.0]])).shape
    (1, 2)
    """

    def __init__(self, features: int, eps: float = 1e-5) -> None:
        self.weight = Parameter(init.constant((features,), 1))
        self.bias = Parameter(init.constant((features,), 0))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, self.weight, self.bias, self.eps)

    def describe(self) -> str:
        return f"{self.weight.shape[0]}"
