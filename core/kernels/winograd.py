"""3x3 convolutions with a quarter of the multiplications (Lavin and Gray 2016, "Fast algorithms for convolutional
neural networks", section 4), for float32 NumPy arrays, by oneDNN's matrix products.

Tiles of 6x6 inputs are transformed, multiplied with the transformed weights place by place, 36 products of (tiles x
channels) matrices, and transformed to 4x4 outputs. A few rows of tiles at a time stay in a core's cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np

from . import memory, onednn, threads
from .onednn import Activation, Floats
from .specs import ConvSpec
from .tape import noting, tape

_TILE, _OUT = 6, 4
# With these points of interpolation (and infinity) the error is a quarter of that with 0, 1, -1, 2, -2: 2.4e-6 of the
# largest output for 256 channels of rectified normal inputs.
_POINTS = (0.0, 0.75, -0.75, 1.5, -1.5)
# With fewer channels, tiles, tiles * channels ** 3, or pixels in a tile, transforms and weights cost what is saved.
_CHANNELS, _TILES, _WORK, _USED = 64, 25, 200_000_000, 8
_BLOCK = 64  # tiles at a time; 8192 / channels where that is more
_WHOLE = 96  # tiles of layers that are one block, with all threads at each step: they share the weights


def _matrices() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The transforms of outputs, weights and inputs (Toom and Cook's construction)."""
    out, weight, into = np.zeros((_OUT, _TILE)), np.zeros((_TILE, 3)), np.zeros((_TILE, _TILE))
    for i, a in enumerate(_POINTS):
        others = [b for b in _POINTS if b != a]
        out[:, i] = a ** np.arange(_OUT)
        weight[i] = a ** np.arange(3) / np.prod([a - b for b in others])
        into[i, :-1] = np.poly(others)[::-1]
    out[-1, -1] = weight[-1, -1] = 1
    into[-1] = np.poly(_POINTS)[::-1]
    return out, weight, into


_A, _G, _B = _matrices()
_OUTPUTS, _INPUTS = (np.ascontiguousarray(np.kron(m, m), np.float32) for m in (_A, _B))


def pays(x_shape: tuple[int, ...], w_shape: tuple[int, ...], spec: ConvSpec) -> bool:
    """Whether this convolution is one that the transforms make faster (measured on two cores with AVX-512)."""
    n, _, height, width = x_shape
    d = spec.dilation[0]
    plain = spec == ConvSpec((1, 1), (d, d, d, d), (d, d), 1) and w_shape[2:] == (3, 3)
    channels, tiles = min(w_shape[:2]), n * d * d * prod(-(-size // d // _OUT) for size in (height, width))
    enough = tiles >= max(_TILES, _WORK / channels**3) and n * height * width >= _USED * tiles
    return plain and channels >= _CHANNELS and enough


class Winograd:
    """activation(conv(x) + b) for a 3x3 convolution with stride 1 and a padding that keeps the size.

    The weights are transformed once. With ``dilation`` it is the convolution of as many interleaved grids, squared.
    """

    def __init__(self, w: Floats, b: Floats | None, activation: Activation | None, dilation: int = 1) -> None:
        self.shape = (_TILE**2, w.shape[1], w.shape[0])
        wide = np.empty(self.shape, np.float32)
        for k in range(0, len(w), 32):  # in double precision a few at a time, not all at once
            part = np.einsum("ai,kcij,bj->abck", _G, w[k : k + 32].astype(np.float64), _G, optimize=True)
            wide[:, :, k : k + 32] = part.reshape(*self.shape[:2], -1)
        self.w = onednn.PackedStack(wide)
        self.b = np.zeros(len(w), np.float32) if b is None else b
        self.activation, self.dilation = activation, dilation

    def __call__(self, x: Floats, out: Floats | None = None) -> Floats:
        n, _, height, width = x.shape
        y = memory.empty((n, self.shape[2], height, width)) if out is None else out
        if tape.notes is not None:
            tape.notes.add(self, x, y)
        d, both = self.dilation, [a.transpose(0, 2, 3, 1) for a in (x, y)]
        grids = [[a[k, i::d, j::d] for a in both] for k in range(n) for i in range(min(d, height)) for j in range(d)]
        across, down = -(-width // d // _OUT), -(-height // d // _OUT)
        if len(grids) * down * across <= _WHOLE:
            with noting(None):
                self._block(grids, 0, _Buffers(len(grids), down, across, *self.shape[1:]))
            return y
        several, rows = _cut(len(grids), down, across, max(self.shape[1:]), onednn.get_num_threads())

        def work(blocks: Sequence[tuple[int, int]]) -> None:
            with onednn.one_thread():
                buffers = _Buffers(several, rows, across, *self.shape[1:])
                for first, row in blocks:
                    self._block(grids[first : first + several], row * _OUT, buffers)

        with noting(None):
            with onednn.one_thread():
                self.w.prepare((self.shape[0], several * rows * across, self.shape[1]))  # once, not in each thread
            threads.share(work, [(i, row) for i in range(0, len(grids), several) for row in range(0, down, rows)])
        return y

    def _block(self, grids: Sequence[list[Floats]], top: int, t: _Buffers) -> None:
        """Rows ``top`` and on of inputs and outputs (height, width, channels): as many as the buffers hold."""
        space = t.padded.shape[1]
        for padded, (x, _) in zip(t.padded, grids):
            first, last = max(top - 1, 0), min(top - 1 + space, x.shape[0])
            start, stop, right = first - top + 1, max(last - top, -1) + 1, 1 + x.shape[1]
            padded[start:stop, 1:right] = x[first:last]
            padded[:start] = padded[stop:] = padded[:, :1] = padded[:, right:] = 0
        np.copyto(t.gathered.reshape(t.tiles.shape), t.tiles)
        onednn.matmul(_INPUTS, t.gathered, out=t.inputs)
        inputs = t.inputs.reshape(self.shape[0], -1, self.shape[1])
        multiply, w = self.w.prepare(inputs.shape)
        multiply.run(inputs, w, t.products)
        products = t.products.reshape(self.shape[0], -1)
        onednn.matmul(_OUTPUTS, products, np.tile(self.b, inputs.shape[1]), t.outputs, self.activation)
        np.copyto(t.rows, t.outputs.reshape(t.scattered).transpose(2, 3, 0, 4, 1, 5))
        block = t.rows.reshape(len(t.rows), space - 2, -1, self.shape[2])
        for done, (_, y) in zip(block, grids):
            y[top : top + space - 2] = done[: max(y.shape[0] - top, 0), : y.shape[1]]


@lru_cache(maxsize=1024)
def _cut(maps: int, down: int, across: int, channels: int, workers: int) -> tuple[int, int]:
    """How many maps, or how many rows of tiles of one map, a block has, so that no thread ends late.

    The heads of regions have many small maps. A block's calls cost as much as some tiles do, and so do weights that the
    last cache is too small for.
    """
    most = max(_BLOCK, 8192 // channels)
    cuts = [(1, rows) for rows in range(1, down + 1) if rows * across <= most or rows == 1]
    cuts += [(several, down) for several in range(2, min(maps, most // (down * across)) + 1)]

    def cost(cut: tuple[int, int]) -> int:
        blocks, tiles = -(-maps // cut[0]) * -(-down // cut[1]), cut[0] * cut[1] * across
        return -(-blocks // workers) * (tiles + 512 // channels + (channels // 256) ** 2)

    return min(cuts, key=cost)


class _Buffers:
    """What one thread computes a block in: ``down`` by ``across`` tiles of some images."""

    def __init__(self, images: int, down: int, across: int, inputs: int, outputs: int) -> None:
        count = images * down * across
        self.padded = memory.empty((images, inputs, down * _OUT + 2, across * _OUT + 2)).transpose(0, 2, 3, 1)
        s = self.padded.strides
        self.tiles: Any = np.lib.stride_tricks.as_strided(
            self.padded,
            (_TILE, _TILE, images, down, across, inputs),
            (s[1], s[2], s[0], _OUT * s[1], _OUT * s[2], s[3]),
        )
        one, other = (memory.empty((_TILE**2 * count * max(inputs, outputs),)) for _ in range(2))  # both fit a cache
        self.gathered, self.inputs = (a[: _TILE**2 * count * inputs].reshape(_TILE**2, -1) for a in (one, other))
        self.products = one[: _TILE**2 * count * outputs].reshape(_TILE**2, count, outputs)
        self.outputs = other[: _OUT**2 * count * outputs].reshape(_OUT**2, -1)
        self.scattered = (_OUT, _OUT, images, down, across, outputs)
        self.rows = one[: self.outputs.size].reshape(images, down, _OUT, across, _OUT, outputs)
