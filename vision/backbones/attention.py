"""Attention layers."""

from __future__ import annotations

from ...core import Parameter, Tensor
from ...core import functions as F
from ...core.layers import Linear, Module, init


class MultiheadAttention(Module):
    """Self-attention of x (n, length, features) by several heads (Vaswani et al. 2017, section 3.2.2).

    >>> import numpy as np
    >>> MultiheadAttention(8, 2)(Tensor(np.zeros((1, 5, 8), np.float32))).shape
    (1, 5, 8)
    """

    def __init__(self, features: int, heads: int) -> None:
        if features % heads:
            raise ValueError(f"MultiheadAttention: {heads} heads do not divide {features} features")
        self.heads = heads
        self.in_proj_weight = Parameter(init.uniform((3 * features, features), (1.5 / features) ** 0.5))
        self.in_proj_bias = Parameter(init.constant((3 * features,), 0))
        self.out_proj = Linear(features, features)

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """The attention's output, plus ``residual`` if there is one."""
        q, k, v = split_heads(F.linear(x, self.in_proj_weight, self.in_proj_bias), self.heads)
        return self.out_proj.fused(join_heads(F.attention(q, k, v)), None, residual)

    def describe(self) -> str:
        return f"{self.heads} heads"


def split_heads(qkv: Tensor, heads: int) -> tuple[Tensor, ...]:
    """Queries, keys and values (n, heads, length, size) from (n, length, 3 * heads * size).

    >>> import numpy as np
    >>> [t.shape for t in split_heads(Tensor(np.zeros((1, 5, 12), np.float32)), 2)]
    [(1, 2, 5, 2), (1, 2, 5, 2), (1, 2, 5, 2)]
    """
    n, length, features = qkv.shape
    parts = F.reshape(qkv, (n, length, 3, heads, features // (3 * heads)))
    return tuple(F.transpose(parts[:, :, i], (0, 2, 1, 3)) for i in range(3))


def join_heads(x: Tensor) -> Tensor:
    """(n, length, heads * size) from (n, heads, length, size).

    >>> import numpy as np
    >>> join_heads(Tensor(np.zeros((1, 2, 5, 2), np.float32))).shape
    (1, 5, 4)
    """
    n, heads, length, size = x.shape
    return F.reshape(F.transpose(x, (0, 2, 1, 3)), (n, length, heads * size))
