"""Matrix products."""

from __future__ import annotations

from .. import kernels
from ..device import Array
from ..function import Function
from ..tensor import Tensor
from .elementwise import check_broadcast, operands
from .reduce import softmax
from .shape import reshape, sum_to, transpose


def _swap(x: Tensor) -> Tensor:
    """The last two axes exchanged."""
    return transpose(x, (*range(x.ndim - 2), x.ndim - 1, x.ndim - 2))


class MatMul(Function):
    """(..., m, k) @ (..., k, n), leading axes broadcast."""

    def forward(self, a: Array, b: Array) -> Array:
        if a.shape[-1] != b.shape[-2]:
            raise ValueError(f"MatMul: shapes {a.shape} and {b.shape} do not match: {a.shape[-1]} != {b.shape[-2]}")
        check_broadcast("MatMul", a.shape[:-2], b.shape[:-2])
        self.shapes = a.shape, b.shape
        self.save_inputs(*(i for i in (0, 1) if self.needs_grad[1 - i]))
        return kernels.matmul(a, b)

    def backward(self, gy: Tensor) -> tuple[Tensor | None, Tensor | None]:
        a, b = self.inputs
        ga = sum_to(matmul(gy, _swap(b)), self.shapes[0]) if self.needs_grad[0] else None
        return ga, sum_to(matmul(_swap(a), gy), self.shapes[1]) if self.needs_grad[1] else None


class Linear(Function):
    """x @ w.T + b."""

    def forward(self, x: Array, w: Array, *b: Array) -> Array:
        if w.ndim != 2 or x.shape[-1:] != w.shape[1:]:
            raise ValueError(f"Linear: expected weight (out, in) and x (..., in), got weight {w.shape} and x {x.shape}")
        if b and b[0].shape != w.shape[:1]:
            raise ValueError(f"Linear: expected a bias of shape {w.shape[:1]} for weight {w.shape}, got {b[0].shape}")
        self.save_inputs(*(i for i in (0, 1) if self.needs_grad[1 - i]))
        return kernels.linear(x, w, b[0] if b else None)

    def backward(self, gy: Tensor) -> tuple[Tensor | None, ...]:
        x, w = self.inputs[:2]
        rows = reshape(gy, (-1, gy.shape[-1]))
        gx = matmul(gy, w) if self.needs_grad[0] else None
        gw = matmul(transpose(rows), reshape(x, (-1, x.shape[-1]))) if self.needs_grad[1] else None
        gb = rows.sum(0) if self.needs_grad[2:] == (True,) else None
        return (gx, gw, gb)[: len(self.needs_grad)]


def matmul(a: Tensor, b: Tensor) -> Tensor:
    """The matrix product of (..., m, k) and (..., k, n); vectors are taken as one row (left) or column (right).

    Raises ValueError where the inner sizes differ or the leading axes do not broadcast.

    >>> matmul(Tensor([[1.0, 2.0]]), Tensor([[3.0], [4.0]])).item()
    11.0
    """
    a, b = operands("MatMul", a, b)
    if not (a.ndim and b.ndim):
        raise ValueError(f"MatMul: expected vectors or matrices, got shapes {a.shape} and {b.shape}")
    left = reshape(a, (1, a.shape[0])) if a.ndim == 1 else a
    right = reshape(b, (b.shape[0], 1)) if b.ndim == 1 else b
    y = MatMul()(left, right)
    if a.ndim == 1:
        y = reshape(y, (*y.shape[:-2], y.shape[-1]))
    return reshape(y, y.shape[:-1]) if b.ndim == 1 else y


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x (..., in) times weight (out, in) transposed, plus bias (out,). Raises ValueError for sizes that do not match.

    >>> linear(Tensor([[1.0, 2.0]]), Tensor([[3.0, 4.0]]), Tensor([0.5])).numpy()
    array([[11.5]], dtype=float32)
    """
    return Linear()(*operands("Linear", x, weight, *(() if bias is None else (bias,))))


def attention(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None, scale: float | Tensor | None = None
) -> Tensor:
    """softmax(q k^T * scale + bias) v for q (..., m, d), k (..., n, d), v (..., n, e) (Vaswani et al. 2017).

    ``scale`` is 1 / sqrt(d) if None; ``bias`` broadcasts to (..., m, n).

    >>> x = Tensor([[1.0, 0.0], [0.0, 1.0]])
    >>> attention(x, x, x).shape
    (2, 2)
    """
    weights = matmul(q * (q.shape[-1] ** -0.5 if scale is None else scale), _swap(k))
    return matmul(softmax(weights if bias is None else weights + bias), v)
