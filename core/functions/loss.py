"""Losses; every one returns a scalar, or with ``reduction="none"`` one value for each element."""

from __future__ import annotations

from typing import Any

from ..device import Array
from ..tensor import Tensor, wrap
from .elementwise import abs, operands, softplus, where
from .reduce import log_softmax, sum
from .shape import getitem, transpose


def reduced(loss: Tensor, reduction: str, weight: Any = None) -> Tensor:
    """The values of a loss, their sum, or their mean (the sum by ``weight`` where there is one)."""
    if reduction == "none":
        return loss
    if reduction == "sum":
        return sum(loss)
    if reduction == "mean":
        return sum(loss) / (max(loss.size, 1) if weight is None else weight)
    raise ValueError(f'expected a reduction "mean", "sum" or "none", got {reduction!r}')


def need_same_shape(name: str, x: Tensor, target: Tensor) -> None:
    """Raise ValueError for a target of another shape than x."""
    if x.shape != target.shape:
        raise ValueError(f"{name}: expected a target of shape {x.shape}, got {target.shape}")


def softmax_cross_entropy(
    x: Tensor,
    target: Array | Tensor,
    weight: Array | None = None,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    reduction: str = "mean",
) -> Tensor:
    """The cross entropy of logits x (n, classes, ...) and class indices ``target`` (n, ...).

    Elements whose target is ``ignore_index`` count nothing; ``weight`` (classes,) scales classes and, with "mean", the
    divisor; a share ``label_smoothing`` of the target goes to all classes evenly (Szegedy et al. 2016, section 7). The
    mean over no element is 0. Raises ValueError for a target out of range.

    >>> import numpy as np
    >>> round(softmax_cross_entropy(Tensor([[0.0, 0.0]]), np.array([1])).item(), 4)
    0.6931
    """
    labels = target.data if isinstance(target, Tensor) else target
    if not hasattr(labels, "dtype"):
        raise TypeError(f"softmax_cross_entropy: expected targets in an array, got a {type(labels).__name__}")
    if x.ndim < 2 or labels.shape != (x.shape[0], *x.shape[2:]) or labels.dtype.kind not in "iu":
        raise ValueError(
            "softmax_cross_entropy: expected x (n, classes, ...) and integer targets (n, ...), "
            f"got {x.shape} and {labels.dtype} {labels.shape}"
        )
    xp, classes = x.xp, x.shape[1]
    log_p = log_softmax(transpose(x, (0, *range(2, x.ndim), 1)).reshape(-1, classes), 1)
    flat = xp.asarray(labels).reshape(-1)
    valid = flat != ignore_index
    outside = valid & ((flat < 0) | (flat >= classes))
    if bool(outside.any()):
        raise ValueError(
            f"softmax_cross_entropy: targets must be 0 to {classes - 1} or {ignore_index}, got {int(flat[outside][0])}"
        )
    index = xp.where(valid, flat, 0)
    scale = valid.astype(x.dtype)
    by_class = None if weight is None else xp.asarray(weight, x.dtype)
    picked = scale if by_class is None else scale * by_class[index]
    loss = -getitem(log_p.reshape(-1), xp.arange(len(index)) * classes + index) * wrap(picked)
    if label_smoothing:
        spread = log_p if by_class is None else log_p * wrap(by_class)
        even = -sum(spread, 1) * wrap(scale) * (label_smoothing / classes)
        loss = loss * (1 - label_smoothing) + even
    if reduction == "none":
        return loss.reshape(labels.shape)
    total = float(picked.sum())
    return reduced(loss, reduction, total if total else 1.0)


def sigmoid_cross_entropy(x: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """The cross entropy of logits x and probabilities ``target`` of the same shape.

    >>> round(sigmoid_cross_entropy(Tensor([0.0]), Tensor([1.0])).item(), 4)
    0.6931
    """
    x, target = operands("sigmoid_cross_entropy", x, target)
    need_same_shape("sigmoid_cross_entropy", x, target)
    return reduced(softplus(x) - x * target, reduction)


def l1_loss(x: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """The absolute difference.

    >>> l1_loss(Tensor([1.0, 2.0]), Tensor([0.0, 0.0])).item()
    1.5
    """
    need_same_shape("l1_loss", x, target)
    return reduced(abs(x - target), reduction)


def smooth_l1_loss(x: Tensor, target: Tensor, beta: float = 1.0, reduction: str = "mean") -> Tensor:
    """d^2 / (2 beta) where the difference d is below beta, else d - beta / 2 (Girshick 2015, equation 3).

    >>> smooth_l1_loss(Tensor([0.5]), Tensor([0.0])).item()
    0.125
    """
    need_same_shape("smooth_l1_loss", x, target)
    d = abs(x - target)
    return reduced(where(d < beta, d * d * (0.5 / beta), d - 0.5 * beta) if beta > 0 else d, reduction)
