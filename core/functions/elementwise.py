"""Arithmetic with broadcasting, and functions of one value."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .. import kernels
from ..device import Array, get_namespace, to_device
from ..function import Function, is_recording
from ..tensor import Tensor, wrap
from .shape import sum_to


def operands(name: str, *values: Any) -> tuple[Tensor, ...]:
    """The operands as Tensors of one floating-point dtype and device; Python numbers and integers take that dtype.

    Raises TypeError where two floating-point dtypes or devices meet.
    """
    tensors = [v for v in values if isinstance(v, Tensor)]
    first = next((t for t in tensors if t.dtype.kind == "f"), tensors[0])
    xp, dtype = first.xp, np.dtype(np.float32) if first.dtype.kind == "V" else first.dtype
    made = []
    for v in values:
        if isinstance(v, Tensor) and v.dtype.kind == "V":
            v = wrap(kernels.widen(v._data))
        if isinstance(v, (int, float, np.generic)):
            if dtype.kind != "f" and isinstance(v, float):
                raise TypeError(f"{name}: an integer tensor meets the number {v}: convert it with astype first")
            v = wrap(xp.asarray(v, dtype if dtype.kind != "b" else None))
        elif not isinstance(v, Tensor):
            v = Tensor(v)
        if v.xp is not xp:
            raise TypeError(f"{name}: operands on different devices, {first.device} and {v.device}: move one with to")
        if v.dtype != dtype and v.dtype.kind != "b":
            if v.dtype.kind == "f":
                raise TypeError(f"{name}: expected operands of one dtype, got {dtype} and {v.dtype}")
            if dtype.kind == "f":
                v = wrap(v._data.astype(dtype))
        made.append(v)
    return tuple(made)


def check_broadcast(name: str, *shapes: tuple[int, ...]) -> None:
    """Raise ValueError unless the shapes broadcast."""
    try:
        if len({s for s in shapes if s}) > 1:
            np.broadcast_shapes(*shapes)
    except ValueError:
        raise ValueError(f"{name}: shapes {' and '.join(map(str, shapes))} do not broadcast") from None


class Add(Function):
    def forward(self, a: Array, b: Array) -> Array:
        check_broadcast("Add", a.shape, b.shape)
        self.shapes = a.shape, b.shape
        return kernels.add(a, b) if a.shape == b.shape and a.dtype == b.dtype else a + b

    def backward(self, gy: Tensor) -> tuple[Tensor | None, ...]:
        return tuple(sum_to(gy, s) if n else None for s, n in zip(self.shapes, self.needs_grad))


class Sub(Function):
    def forward(self, a: Array, b: Array) -> Array:
        check_broadcast("Sub", a.shape, b.shape)
        self.shapes = a.shape, b.shape
        return a - b

    def backward(self, gy: Tensor) -> tuple[Tensor | None, ...]:
        ga = sum_to(gy, self.shapes[0]) if self.needs_grad[0] else None
        return ga, sum_to(-gy, self.shapes[1]) if self.needs_grad[1] else None


class Mul(Function):
    def forward(self, a: Array, b: Array) -> Array:
        check_broadcast("Mul", a.shape, b.shape)
        self.shapes = a.shape, b.shape
        self.save_inputs(*(i for i in (0, 1) if self.needs_grad[1 - i]))
        return kernels.multiply(a, b)

    def backward(self, gy: Tensor) -> tuple[Tensor | None, ...]:
        a, b = self.inputs
        ga = sum_to(gy * b, self.shapes[0]) if self.needs_grad[0] else None
        return ga, sum_to(gy * a, self.shapes[1]) if self.needs_grad[1] else None


class Div(Function):
    def forward(self, a: Array, b: Array) -> Array:
        check_broadcast("Div", a.shape, b.shape)
        self.save_inputs(0, 1)
        return a / b

    def backward(self, gy: Tensor) -> tuple[Tensor | None, ...]:
        a, b = self.inputs
        ga = sum_to(gy / b, a.shape) if self.needs_grad[0] else None
        return ga, sum_to(-gy * a / (b * b), b.shape) if self.needs_grad[1] else None


class Pow(Function):
    """x ** exponent for a constant exponent."""

    def __init__(self, exponent: float) -> None:
        self.exponent = exponent

    def forward(self, x: Array) -> Array:
        self.save_inputs(0)
        return x * x if self.exponent == 2 else x**self.exponent

    def backward(self, gy: Tensor) -> tuple[Tensor]:
        (x,) = self.inputs
        if self.exponent == 0:
            return (gy * 0,)
        return (gy * self.exponent * pow(x, self.exponent - 1),)


class Maximum(Function):
    """The greater operand; where they are equal, each gets half of the gradient."""

    def forward(self, a: Array, b: Array) -> Array:
        check_broadcast("Maximum", a.shape, b.shape)
        self.save_inputs(0, 1)
        return get_namespace(a).maximum(a, b)

    def backward(self, gy: Tensor) -> tuple[Tensor | None, ...]:
        a, b = self.inputs
        ga = gy * wrap(((a.data > b.data).astype(gy.dtype) + (a.data >= b.data)) * 0.5)
        gb = sum_to(gy - ga, b.shape) if self.needs_grad[1] else None
        return sum_to(ga, a.shape) if self.needs_grad[0] else None, gb


class Where(Function):
    def __init__(self, condition: Array) -> None:
        self.condition = condition

    def forward(self, a: Array, b: Array) -> Array:
        check_broadcast("Where", self.condition.shape, a.shape, b.shape)
        self.shapes = a.shape, b.shape
        return get_namespace(a).where(self.condition, a, b)

    def backward(self, gy: Tensor) -> tuple[Tensor | None, ...]:
        ga = sum_to(gy * wrap(self.condition), self.shapes[0]) if self.needs_grad[0] else None
        return ga, sum_to(gy * wrap(~self.condition), self.shapes[1]) if self.needs_grad[1] else None


class Neg(Function):
    def forward(self, x: Array) -> Array:
        return -x

    def backward(self, gy: Tensor) -> tuple[Tensor]:
        return (-gy,)


class Pointwise(Function):
    """A function of one value and its derivative ``slope``, by the chain rule; NumPy has most as ``ufunc``."""

    ufunc = ""
    from_output = False  # whether ``slope`` takes the output instead of the input

    def value(self, x: Array) -> Array:
        return getattr(get_namespace(x), self.ufunc)(x)

    def slope(self, v: Tensor) -> Tensor:
        raise NotImplementedError(f"{self.name} has no slope")

    def forward(self, x: Array) -> Array:
        if self.from_output:
            self.save_outputs()
        else:
            self.save_inputs(0)
        return self.value(x)

    def backward(self, gy: Tensor) -> tuple[Tensor]:
        (v,) = self.outputs if self.from_output else self.inputs
        return (gy * self.slope(v),)


class Abs(Pointwise):
    ufunc = "abs"

    def slope(self, v: Tensor) -> Tensor:
        return wrap(v.xp.sign(v.data))


class Exp(Pointwise):
    ufunc = "exp"
    from_output = True

    def slope(self, v: Tensor) -> Tensor:
        return v


class Log(Pointwise):
    ufunc = "log"

    def slope(self, v: Tensor) -> Tensor:
        return 1 / v


class Sqrt(Pointwise):
    ufunc = "sqrt"
    from_output = True

    def slope(self, v: Tensor) -> Tensor:
        return 0.5 / v


class Atan(Pointwise):
    ufunc = "arctan"

    def slope(self, v: Tensor) -> Tensor:
        return 1 / (v * v + 1)


class Softplus(Pointwise):
    """log(1 + exp(x)), without overflow."""

    def value(self, x: Array) -> Array:
        xp = get_namespace(x)
        return xp.maximum(x, 0) + xp.log1p(xp.exp(-xp.abs(x)))

    def slope(self, v: Tensor) -> Tensor:
        return sigmoid(v)


class Clip(Function):
    """x limited to [low, high]; no gradient outside."""

    def __init__(self, low: float, high: float) -> None:
        self.low, self.high = low, high

    def forward(self, x: Array) -> Array:
        if self.recording:
            self.inside = (x >= self.low) & (x <= self.high)
        return get_namespace(x).clip(x, self.low, self.high)

    def backward(self, gy: Tensor) -> tuple[Tensor]:
        return (gy * wrap(self.inside),)


class Activation(Pointwise):
    """A function of one value that ``kernels`` knows."""

    kernel: kernels.Activation

    def value(self, x: Array) -> Array:
        return kernels.activate(x, self.kernel)

    def backward(self, gy: Tensor) -> tuple[Tensor]:
        (v,) = self.outputs if self.from_output else self.inputs
        gx = None if is_recording() else kernels.activate_grad(v.data, gy.data, self.kernel)
        return super().backward(gy) if gx is None else (wrap(gx),)


class Sigmoid(Activation):
    kernel = ("sigmoid", 0.0, 0.0)
    from_output = True

    def slope(self, v: Tensor) -> Tensor:
        return v * (1 - v)


class Tanh(Activation):
    kernel = ("tanh", 0.0, 0.0)
    from_output = True

    def slope(self, v: Tensor) -> Tensor:
        return 1 - v * v


class ReLU(Activation):
    """max(x, 0) (Nair and Hinton 2010)."""

    kernel = kernels.RELU
    from_output = True

    def slope(self, v: Tensor) -> Tensor:
        return wrap(v.data > 0)


class AddReLU(Function):
    """max(a + b, 0) for operands of one shape: the end of a residual block in one pass."""

    def forward(self, a: Array, b: Array) -> Array:
        self.save_outputs()
        return kernels.add(a, b, relu=True)

    def backward(self, gy: Tensor) -> tuple[Tensor, Tensor]:
        (y,) = self.outputs
        gx = None if is_recording() else kernels.activate_grad(y.data, gy.data, kernels.RELU)
        g = gy * wrap(y.data > 0) if gx is None else wrap(gx)
        return g, g


class ReLU6(Activation):
    """x limited to [0, 6]; no gradient at the limits (Howard et al. 2017)."""

    kernel = ("relu6", 0.0, 6.0)
    from_output = True

    def slope(self, v: Tensor) -> Tensor:
        return wrap((v.data > 0) & (v.data < 6))


class LeakyReLU(Activation):
    """x, or slope * x where x is negative (Maas et al. 2013)."""

    def __init__(self, slope: float) -> None:
        self.kernel = ("leaky_relu", slope, 0.0)

    def slope(self, v: Tensor) -> Tensor:
        return wrap(v.xp.where(v.data > 0, 1, self.kernel[1]).astype(v.dtype))


class SiLU(Activation):
    """x * sigmoid(x) (Elfwing et al. 2017, Ramachandran et al. 2017)."""

    kernel = ("silu", 0.0, 0.0)

    def slope(self, v: Tensor) -> Tensor:
        s = sigmoid(v)
        return s * (v * (1 - s) + 1)


class HardSigmoid(Activation):
    """clip(x / 6 + 1 / 2, 0, 1) (Howard et al. 2019, section 5.2)."""

    kernel = ("hard_sigmoid", 0.0, 0.0)

    def slope(self, v: Tensor) -> Tensor:
        return wrap(((v.data > -3) & (v.data < 3)).astype(v.dtype)) * (1 / 6)


class HardSwish(Activation):
    """x * hard_sigmoid(x) (Howard et al. 2019, section 5.2)."""

    kernel = ("hard_swish", 0.0, 0.0)

    def slope(self, v: Tensor) -> Tensor:
        inside = wrap((v.data > -3) & (v.data < 3))
        return (v * (1 / 3) + 0.5) * inside + wrap(v.data >= 3)


class GELU(Activation):
    """x times the normal distribution function of x (Hendrycks and Gimpel 2016)."""

    kernel = ("gelu", 0.0, 0.0)

    def slope(self, v: Tensor) -> Tensor:
        return (erf(v * math.sqrt(0.5)) + 1) * 0.5 + v * exp(v * v * -0.5) / math.sqrt(2 * math.pi)


class Mish(Activation):
    """x * tanh(softplus(x)) (Misra 2019)."""

    kernel = ("mish", 0.0, 0.0)

    def slope(self, v: Tensor) -> Tensor:
        t = tanh(softplus(v))
        return t + v * sigmoid(v) * (1 - t * t)


class Erf(Pointwise):
    """2 / sqrt(pi) times the integral of exp(-t^2) from 0 to x."""

    def value(self, x: Array) -> Array:
        return kernels.erf(x)

    def slope(self, v: Tensor) -> Tensor:
        return exp(-(v * v)) * (2 / math.sqrt(math.pi))


class AsType(Function):
    def __init__(self, dtype: Any) -> None:
        self.dtype = np.dtype(dtype)

    def forward(self, x: Array) -> Array:
        self.source = x.dtype
        return x.astype(self.dtype)

    def backward(self, gy: Tensor) -> tuple[Tensor]:
        return (astype(gy, self.source),)


class To(Function):
    def __init__(self, device: str) -> None:
        self.device = device

    def forward(self, x: Array) -> Array:
        self.source = Tensor(x).device
        return to_device(x, self.device)

    def backward(self, gy: Tensor) -> tuple[Tensor]:
        return (to(gy, self.source),)


def add(a: Any, b: Any) -> Tensor:
    """a + b, broadcast.

    >>> add(Tensor([1.0, 2.0]), 1)
    Tensor([2., 3.], shape (2,), float32)
    """
    return Add()(*operands("Add", a, b))


def sub(a: Any, b: Any) -> Tensor:
    """a - b, broadcast.

    >>> sub(Tensor([3.0]), 1).item()
    2.0
    """
    return Sub()(*operands("Sub", a, b))


def mul(a: Any, b: Any) -> Tensor:
    """a * b, broadcast.

    >>> mul(Tensor([3.0]), 2).item()
    6.0
    """
    return Mul()(*operands("Mul", a, b))


def div(a: Any, b: Any) -> Tensor:
    """a / b, broadcast; integers give float32.

    >>> div(Tensor([3.0]), 2).item()
    1.5
    """
    a, b = operands("Div", a, b)
    if a.dtype.kind != "f" and b.dtype.kind != "f":
        a, b = astype(a, np.float32), astype(b, np.float32)
    return Div()(a, b)


def pow(x: Any, exponent: Any) -> Tensor:
    """x ** exponent, broadcast; the base must be positive where the exponent is a Tensor.

    >>> pow(Tensor([3.0]), 2).item()
    9.0
    """
    if isinstance(x, Tensor) and isinstance(exponent, (int, float, np.generic)):
        return Pow(exponent.item() if isinstance(exponent, np.generic) else exponent)(x)
    x, exponent = operands("Pow", x, exponent)
    return exp(exponent * log(x))


def neg(x: Tensor) -> Tensor:
    """-x.

    >>> neg(Tensor([1.0])).item()
    -1.0
    """
    return Neg()(x)


def abs(x: Tensor) -> Tensor:
    """The absolute value; its gradient at 0 is 0.

    >>> abs(Tensor([-1.0])).item()
    1.0
    """
    return Abs()(x)


def exp(x: Tensor) -> Tensor:
    """e ** x.

    >>> exp(Tensor([0.0])).item()
    1.0
    """
    return Exp()(x)


def log(x: Tensor) -> Tensor:
    """The natural logarithm.

    >>> log(Tensor([1.0])).item()
    0.0
    """
    return Log()(x)


def sqrt(x: Tensor) -> Tensor:
    """The square root.

    >>> sqrt(Tensor([4.0])).item()
    2.0
    """
    return Sqrt()(x)


def atan(x: Tensor) -> Tensor:
    """The arc tangent, in radians.

    >>> round(atan(Tensor([1.0])).item(), 4)
    0.7854
    """
    return Atan()(x)


def erf(x: Tensor) -> Tensor:
    """The error function.

    >>> round(erf(Tensor([1.0])).item(), 4)
    0.8427
    """
    return Erf()(x)


def maximum(a: Any, b: Any) -> Tensor:
    """The greater of a and b, broadcast; where they are equal, each gets half of the gradient.

    >>> maximum(Tensor([1.0, 5.0]), 3).numpy()
    array([3., 5.], dtype=float32)
    """
    return Maximum()(*operands("Maximum", a, b))


def minimum(a: Any, b: Any) -> Tensor:
    """The smaller of a and b, broadcast; where they are equal, each gets half of the gradient.

    >>> minimum(Tensor([1.0, 5.0]), 3).numpy()
    array([1., 3.], dtype=float32)
    """
    a, b = operands("Minimum", a, b)
    return -maximum(-a, -b)


def where(condition: Any, a: Any, b: Any) -> Tensor:
    """a where the (bool, constant) condition holds, else b, broadcast.

    >>> where(np.array([True, False]), Tensor([1.0, 2.0]), 0.0).numpy()
    array([1., 0.], dtype=float32)
    """
    mask = condition.data if isinstance(condition, Tensor) else condition
    if mask.dtype != bool:
        raise TypeError(f"where: expected a condition of dtype bool, got {mask.dtype}")
    a, b = operands("Where", a, b)
    if get_namespace(mask) is not a.xp:
        raise TypeError(f"where: the condition is not on the operands' device, {a.device}: move it with to")
    return Where(mask)(a, b)


def clip(x: Tensor, low: float, high: float) -> Tensor:
    """x limited to [low, high].

    >>> clip(Tensor([-1.0, 0.5, 3.0]), 0, 1).numpy()
    array([0. , 0.5, 1. ], dtype=float32)
    """
    return Clip(low, high)(x)


def sigmoid(x: Tensor) -> Tensor:
    """1 / (1 + exp(-x)).

    >>> sigmoid(Tensor([0.0])).item()
    0.5
    """
    return Sigmoid()(x)


def tanh(x: Tensor) -> Tensor:
    """The hyperbolic tangent.

    >>> tanh(Tensor([0.0])).item()
    0.0
    """
    return Tanh()(x)


def softplus(x: Tensor) -> Tensor:
    """log(1 + exp(x)), without overflow.

    >>> round(softplus(Tensor([0.0])).item(), 4)
    0.6931
    """
    return Softplus()(x)


def relu(x: Tensor) -> Tensor:
    """max(x, 0).

    >>> relu(Tensor([-1.0, 2.0])).numpy()
    array([0., 2.], dtype=float32)
    """
    return ReLU()(x)


def add_relu(a: Any, b: Any) -> Tensor:
    """max(a + b, 0), broadcast.

    >>> add_relu(Tensor([-3.0, 2.0]), Tensor([1.0, 1.0])).numpy()
    array([0., 3.], dtype=float32)
    """
    a, b = operands("Add", a, b)
    return AddReLU()(a, b) if a.shape == b.shape and a.dtype == b.dtype else relu(add(a, b))


def relu6(x: Tensor) -> Tensor:
    """x limited to [0, 6]; no gradient at the limits (Howard et al. 2017).

    >>> relu6(Tensor([-1.0, 2.0, 9.0])).numpy()
    array([0., 2., 6.], dtype=float32)
    """
    return ReLU6()(x)


def leaky_relu(x: Tensor, slope: float = 0.01) -> Tensor:
    """x, or slope * x where x is negative.

    >>> leaky_relu(Tensor([-1.0, 2.0]), 0.5).numpy()
    array([-0.5,  2. ], dtype=float32)
    """
    return LeakyReLU(slope)(x)


def silu(x: Tensor) -> Tensor:
    """x * sigmoid(x), also called swish.

    >>> round(silu(Tensor([1.0])).item(), 4)
    0.7311
    """
    return SiLU()(x)


def hard_sigmoid(x: Tensor) -> Tensor:
    """clip(x / 6 + 1 / 2, 0, 1).

    >>> hard_sigmoid(Tensor([-4.0, 0.0, 4.0])).numpy()
    array([0. , 0.5, 1. ], dtype=float32)
    """
    return HardSigmoid()(x)


def hard_swish(x: Tensor) -> Tensor:
    """x * hard_sigmoid(x).

    >>> hard_swish(Tensor([-4.0, 0.0, 4.0])).numpy()
    array([-0.,  0.,  4.], dtype=float32)
    """
    return HardSwish()(x)


def gelu(x: Tensor) -> Tensor:
    """x times the normal distribution function of x, by erf (Hendrycks and Gimpel 2016).

    >>> round(gelu(Tensor([1.0])).item(), 4)
    0.8413
    """
    return GELU()(x)


def mish(x: Tensor) -> Tensor:
    """x * tanh(softplus(x)) (Misra 2019).

    >>> round(mish(Tensor([1.0])).item(), 4)
    0.8651
    """
    return Mish()(x)


def astype(x: Tensor, dtype: Any) -> Tensor:
    """x in another dtype.

    >>> astype(Tensor([1.5]), "int64").numpy()
    array([1])
    """
    return AsType(dtype)(x)


def to(x: Tensor, device: str) -> Tensor:
    """x on another device: "cpu", "cuda" or "cuda:N".

    >>> to(Tensor([1.0]), "cpu").device
    'cpu'
    """
    return To(device)(x)
