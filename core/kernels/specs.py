"""The numbers that describe a convolution or a pooling, and the sizes that follow from them."""

from __future__ import annotations

from typing import Any, NamedTuple

from ..device import Array, get_namespace


class ConvSpec(NamedTuple):
    """How a 2-D convolution slides: pairs are (vertical, horizontal), padding is (top, bottom, left, right).

    >>> ConvSpec(stride=(2, 2), padding=(1, 1, 1, 1)).output_size((224, 224), (3, 3))
    (112, 112)
    """

    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int, int, int] = (0, 0, 0, 0)
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1

    def output_size(self, size: tuple[int, int], kernel: tuple[int, int]) -> tuple[int, int]:
        """Height and width of the result for an input of this height and width (0 where no window fits)."""
        (top, bottom, left, right), (sy, sx), (dy, dx) = self.padding, self.stride, self.dilation
        height = (size[0] + top + bottom - dy * (kernel[0] - 1) - 1) // sy + 1
        width = (size[1] + left + right - dx * (kernel[1] - 1) - 1) // sx + 1
        return max(height, 0), max(width, 0)


class PoolSpec(NamedTuple):
    """How a pooling window slides; with ``ceil_mode`` the last window may hang over the end but starts inside.

    >>> PoolSpec(kernel=(3, 3), stride=(2, 2), ceil_mode=True).output_size((112, 112))
    (56, 56)
    """

    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int, int, int] = (0, 0, 0, 0)
    dilation: tuple[int, int] = (1, 1)
    ceil_mode: bool = False

    def output_size(self, size: tuple[int, int]) -> tuple[int, int]:
        """Height and width of the result for an input of this height and width (0 where no window fits)."""
        (top, bottom, left, right) = self.padding
        ends = ((size[0], top, bottom, 0), (size[1], left, right, 1))
        height, width = (self._windows(length, before, after, axis) for length, before, after, axis in ends)
        return height, width

    def _windows(self, length: int, before: int, after: int, axis: int) -> int:
        stride = self.stride[axis]
        room = length + before + after - self.dilation[axis] * (self.kernel[axis] - 1) - 1
        if not self.ceil_mode:
            return max(room // stride + 1, 0)
        count = -(-room // stride) + 1
        if (count - 1) * stride >= length + before:
            count -= 1
        return max(count, 0)

    def full_padding(self, size: tuple[int, int]) -> tuple[int, int, int, int]:
        """The padding with which every window lies inside the padded input (more than asked for with ``ceil_mode``)."""
        top, bottom, left, right = self.padding
        height, width = self.output_size(size)
        (sy, sx), (dy, dx), (ky, kx) = self.stride, self.dilation, self.kernel
        bottom = max(bottom, (height - 1) * sy + dy * (ky - 1) + 1 - size[0] - top)
        right = max(right, (width - 1) * sx + dx * (kx - 1) + 1 - size[1] - left)
        return top, bottom, left, right


class Quantization(NamedTuple):
    """How a convolution's inputs and weights are whole numbers of a byte, times steps.

    Inputs are multiples of ``step``, from ``low`` (0 or -128) times it to that and 255 times it. ``steps`` (out,) are
    those of the weights.
    """

    step: float
    low: int
    steps: Any

    def rounded(self, x: Array, w: Array) -> tuple[Array, Array]:
        """The inputs and weights that are multiplied, given the inputs and the whole numbers of the weights."""
        xp = get_namespace(x)
        whole = xp.clip(xp.rint(x / self.step), self.low, self.low + 255)
        return (whole * self.step).astype(x.dtype), w * xp.asarray(self.steps).reshape(-1, 1, 1, 1)
