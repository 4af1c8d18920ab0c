"""Gradient clipping."""

from __future__ import annotations

import math
from collections.abc import Iterable

from ..tensor import Parameter, wrap


def clip_gradients(parameters: Iterable[Parameter], max_norm: float) -> float:
    """Scale all gradients together so that their joint norm is at most ``max_norm``; returns the norm before.

    Gradients are replaced, not written. A norm that is not finite is returned and nothing scaled.

    >>> p = Parameter([3.0, 4.0])
    >>> (p * p).sum().backward()
    >>> clip_gradients([p], 1.0), p.grad
    (10.0, Tensor([0.6, 0.8], shape (2,), float32))
    """
    params = [p for p in parameters if p.grad is not None]
    total = 0.0
    for p in params:
        flat = p.grad.data.ravel(order="K")  # type: ignore[union-attr]  # any order will do, and this copies nothing
        total += float(flat @ flat)
    norm = math.sqrt(total) if total >= 0 else math.nan
    if math.isfinite(norm) and norm > max_norm:
        scale = max_norm / (norm + 1e-6)
        for p in params:
            p.grad = wrap(p.grad.data * scale)  # type: ignore[union-attr]
    return norm
