"""Layers that leave parts of their input out in training."""

from __future__ import annotations

from .. import functions as F
from ..tensor import Tensor, wrap
from .module import Module


class Dropout(Module):
    """In training, zeros with probability ``ratio`` and the rest scaled up.

    >>> Dropout(0.5).eval()(Tensor([1.0])).item()
    1.0
    """

    def __init__(self, ratio: float = 0.5) -> None:
        self.ratio = ratio

    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.ratio) if self.training else x

    def describe(self) -> str:
        return f"{self.ratio}"


class StochasticDepth(Module):
    """In training, whole samples of x (n, ...) zeroed with probability ``ratio`` and the rest scaled up.

    It goes on the branch of a residual block, which is skipped so for some samples (Huang et al. 2016).

    >>> StochasticDepth(0.5).eval()(Tensor([1.0])).item()
    1.0
    """

    def __init__(self, ratio: float) -> None:
        self.ratio = ratio

    @property
    def active(self) -> bool:
        """Whether anything can be dropped now."""
        return self.training and self.ratio > 0

    def forward(self, x: Tensor) -> Tensor:
        if not self.active:
            return x
        return x * F.dropout(wrap(x.xp.ones((x.shape[0],) + (1,) * (x.ndim - 1), x.dtype)), self.ratio)

    def describe(self) -> str:
        return f"{self.ratio:g}"
