"""Pooling over windows."""

from __future__ import annotations

from .. import kernels
from ..device import Array, get_namespace
from ..function import Function, is_recording
from ..kernels import PoolSpec
from ..tensor import Tensor, wrap
from .conv import Pair, pair


def pool_spec(kernel: Pair, stride: Pair | None, padding: Pair, dilation: Pair, ceil_mode: bool) -> PoolSpec:
    """The settings of a pooling in one hashable value. Raises ValueError for padding over half of the kernel."""
    k, d, (vertical, horizontal) = pair(kernel), pair(dilation), pair(padding)
    s = k if stride is None else pair(stride)
    if min(*k, *d, *s) < 1:
        raise ValueError(f"expected kernel, stride and dilation of at least 1, got {k}, {s} and {d}")
    if not (0 <= vertical <= k[0] * d[0] // 2 and 0 <= horizontal <= k[1] * d[1] // 2):
        raise ValueError(f"expected a padding from 0 to half of the kernel {k}, got {(vertical, horizontal)}")
    return PoolSpec(k, s, (vertical, vertical, horizontal, horizontal), d, ceil_mode)


def _check_images(name: str, x: Array) -> None:
    if x.ndim != 4:
        raise ValueError(f"{name}: expected x (n, channels, height, width), got {x.shape}")


class MaxPool2d(Function):
    moves = True

    def __init__(self, spec: PoolSpec) -> None:
        self.spec = spec

    def forward(self, x: Array) -> Array:
        _check_images("MaxPool2d", x)
        self.save_inputs(0)
        y, self.state = kernels.max_pool2d(x, self.spec, need_state=self.recording)
        return y

    def backward(self, gy: Tensor) -> tuple[Tensor]:
        (x,) = self.inputs
        if self.state is not None and not is_recording():
            return (wrap(kernels.max_pool2d_grad(gy.data, x.shape, self.state)),)
        index = kernels.max_pool2d_indices(x.data, self.spec)
        return (PlaneScatter(index, x.shape)(gy),)


class PlaneScatter(Function):
    """Values added to zero planes of ``shape`` (n, channels, height, width) at flat places of each plane."""

    def __init__(self, index: Array, shape: tuple[int, ...]) -> None:
        self.index, self.shape = index, shape

    def forward(self, values: Array) -> Array:
        xp = get_namespace(values)
        n, c, h, w = self.shape
        plane = xp.arange(n * c).reshape(n, c, 1, 1) * (h * w)
        out = xp.zeros(n * c * h * w, values.dtype)
        xp.add.at(out, (plane + self.index).ravel(), values.ravel())
        return out.reshape(self.shape)

    def backward(self, gy: Tensor) -> tuple[Tensor]:
        return (PlaneGather(self.index, self.shape)(gy),)


class PlaneGather(Function):
    """The values at flat places of each plane of x (n, channels, height, width)."""

    def __init__(self, index: Array, shape: tuple[int, ...]) -> None:
        self.index, self.shape = index, shape

    def forward(self, x: Array) -> Array:
        n, c = x.shape[:2]
        flat = self.index.reshape(n, c, -1)
        return get_namespace(x).take_along_axis(x.reshape(n, c, -1), flat, axis=2).reshape(self.index.shape)

    def backward(self, gy: Tensor) -> tuple[Tensor]:
        return (PlaneScatter(self.index, self.shape)(gy),)


class AvgPool2d(Function):
    def __init__(self, spec: PoolSpec, count_include_pad: bool) -> None:
        self.spec, self.count_include_pad = spec, count_include_pad

    def forward(self, x: Array) -> Array:
        _check_images("AvgPool2d", x)
        self.x_shape = x.shape
        return kernels.avg_pool2d(x, self.spec, self.count_include_pad)

    def backward(self, gy: Tensor) -> tuple[Tensor]:
        return (AvgPool2dGrad(self.spec, self.count_include_pad, self.x_shape)(gy),)


class AvgPool2dGrad(Function):
    def __init__(self, spec: PoolSpec, count_include_pad: bool, x_shape: tuple[int, ...]) -> None:
        self.spec, self.count_include_pad, self.x_shape = spec, count_include_pad, x_shape

    def forward(self, gy: Array) -> Array:
        return kernels.avg_pool2d_grad(gy, self.x_shape, self.spec, self.count_include_pad)

    def backward(self, ggx: Tensor) -> tuple[Tensor]:
        return (AvgPool2d(self.spec, self.count_include_pad)(ggx),)


def max_pool2d(
    x: Tensor, kernel: Pair, stride: Pair | None = None, padding: Pair = 0, dilation: Pair = 1, ceil_mode: bool = False
) -> Tensor:
    """The greatest value of each window of x (n, channels, height, width); padding never wins.

    ``stride`` is the kernel's size if None. With ``ceil_mode`` a last window may reach over the edge, as long as it
    starts inside.

    >>> import numpy as np
    >>> max_pool2d(Tensor(np.arange(16, dtype=np.float32).reshape(1, 1, 4, 4)), 2).numpy().ravel()
    array([ 5.,  7., 13., 15.], dtype=float32)
    """
    return MaxPool2d(pool_spec(kernel, stride, padding, dilation, ceil_mode))(x)


def avg_pool2d(
    x: Tensor,
    kernel: Pair,
    stride: Pair | None = None,
    padding: Pair = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Tensor:
    """The mean of each window of x (n, channels, height, width); padding counts as zeros unless told otherwise.

    >>> import numpy as np
    >>> avg_pool2d(Tensor(np.arange(4, dtype=np.float32).reshape(1, 1, 2, 2)), 2).item()
    1.5
    """
    return AvgPool2d(pool_spec(kernel, stride, padding, 1, ceil_mode), count_include_pad)(x)
