"""Weights, images and stored outputs of the golden tests: everything that both sides must agree on, in NumPy alone.

A golden is what a reference implementation computed with weights that need no checkpoint: every array is a function of
its parameter's *name*, so any implementation that uses the reference's names can rebuild them. The stored file adds one
gain per layer, without which the signal of a deep random network would vanish or explode, and a gain and a shift per
output channel of the last layers, so that scores and boxes are spread like those of a trained model.

    golden = read_golden("resnet18.npz")
    model.load_state_dict(seeded_state(model_shapes, golden))      # {name: (shape, dtype)} -> {name: array}
    for i, image in enumerate(golden.images()):                    # HWC uint8 RGB
        logits = model(imagenet_input(image))                      # golden.outputs[f"logits_{i}"]

All arithmetic that decides a weight or a pixel is exact (integers, or one rounding per element), so every platform and
every NumPy version gives the same bits.
"""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

IMAGENET_MEAN = np.array([0.485, 0.456, 0.406], np.float32)
IMAGENET_STD = np.array([0.229, 0.224, 0.225], np.float32)

# Buffers that hold geometry instead of learned values: the model computes them, nothing may overwrite them.
GEOMETRY = ("relative_position_index", "relative_coords_table")

# (end of the name, lowest, highest): uniform between the two, whatever the shape; then the plain vectors.
SPECIAL = (
    ("num_batches_tracked", 0.0, 0.0),
    ("running_mean", -0.3, 0.3),
    ("running_var", 0.7, 1.4),
    ("layer_scale", 0.2, 0.5),
    ("scale_weight", 16.0, 24.0),
    ("logit_scale", 1.0, 2.0),
    ("class_token", -0.5, 0.5),
    ("pos_embedding", -0.5, 0.5),
    ("relative_position_bias_table", -0.5, 0.5),
)
VECTORS = (("bias", -0.8, 0.8), ("weight", 0.7, 1.3))


@dataclass(frozen=True)
class Golden:
    """One stored golden: `sizes` (n, 2) heights and widths of the images, `gains` and `shifts` by parameter name,
    `outputs` by the key the script that made it documents."""

    sizes: NDArray[np.int64]
    gains: Mapping[str, NDArray[np.float32]] = field(default_factory=dict)
    shifts: Mapping[str, NDArray[np.float32]] = field(default_factory=dict)
    outputs: Mapping[str, NDArray[Any]] = field(default_factory=dict)

    def images(self) -> Iterator[NDArray[np.uint8]]:
        """The input images, each (height, width, 3) uint8 RGB."""
        for height, width in self.sizes.tolist():
            yield synthetic_image(height, width)


def noise(name: str, count: int) -> NDArray[np.uint16]:
    """`count` uniform 16-bit integers that depend on `name` only (PCG64's raw stream, stable by NumPy's promise)."""
    seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:16], "little")
    raw = np.asarray(np.random.PCG64(seed).random_raw(-(-count // 4)), "<u8")
    return raw.view("<u2")[:count]


def seeded_array(name: str, shape: tuple[int, ...], dtype: str) -> NDArray[Any]:
    """The array of the parameter `name`: by `SPECIAL`, else a vector by `VECTORS`, else the filters of a layer.

    Filters are uniform with He's standard deviation sqrt(2 / fan_in); each filter of a dense layer sums to zero, else
    the positive mean of ReLU outputs would swamp the picture after a few dozen layers.
    """
    values = noise(name, int(np.prod(shape, dtype=np.int64)))
    ranges = SPECIAL + VECTORS if len(shape) < 2 else SPECIAL
    for end, low, high in ranges:
        if name.endswith(end):
            array = values * np.float32((high - low) / 65535) + np.float32(low)
            break
    else:
        if len(shape) < 2:
            raise ValueError(f"no rule for the parameter {name!r} of shape {shape}")
        rows = values.reshape(shape[0], -1)
        fan_in = rows.shape[1]
        centre = rows.sum(1, dtype=np.int64) / fan_in if shape[1] > 1 else np.full(shape[0], 32767.5)
        array = (rows.astype(np.float32) - centre.astype(np.float32)[:, None]) * np.float32((6 / fan_in) ** 0.5 / 32768)
    return array.reshape(shape).astype(dtype)


def seeded_state(
    shapes: Mapping[str, tuple[tuple[int, ...], str]], golden: Golden | None = None
) -> dict[str, NDArray[Any]]:
    """The arrays of all parameters: `shapes` maps a name to (shape, dtype); names of geometry buffers are left out.

    With a `golden`, its gains multiply and its shifts are added, both along the first axis.
    """
    state = {
        n: seeded_array(n, tuple(shape), dtype) for n, (shape, dtype) in shapes.items() if not n.endswith(GEOMETRY)
    }
    for changes, operation in ((golden.gains, np.multiply), (golden.shifts, np.add)) if golden else ():
        for name, change in changes.items():
            if name in state:  # auxiliary heads of training are in the file but not in every model
                array = state[name]
                state[name] = operation(array, change.reshape(change.shape + (1,) * (array.ndim - change.ndim)))
    return state


def synthetic_image(height: int, width: int) -> NDArray[np.uint8]:
    """A picture (height, width, 3) uint8 of slanted colour waves with discs and rectangles of many sizes on it."""
    y, x = np.mgrid[0:height, 0:width]
    waves = [abs((x * a + y * b) % (2 * period) - period) * 255 // period for a, b, period in WAVES]
    image = np.stack(waves, 2).astype(np.uint8)
    values = noise(f"image {height}x{width}", 24 * 8).reshape(24, 8).astype(np.int64)
    for i, (cy, cx, size, shape, *colour, texture) in enumerate(values):
        radius = (4 + size * max(height, width) // 65536 // 4) * (24 - i) // 24 + 2  # large ones first
        dy, dx = y - cy * height // 65536, x - cx * width // 65536
        inside = (
            dy**2 + dx**2 < radius**2 if shape % 2 else (abs(dy) < radius) & (abs(dx) * (1 + shape % 3) < radius * 2)
        )
        stripes = (x * (texture % 3) + y * (texture % 5)) % (4 + texture % 7) < 2
        image[inside] = np.array(colour) // 257
        image[inside & stripes] //= 2
    return image


WAVES = ((3, 1, 170), (1, 4, 230), (5, -2, 410))


def imagenet_input(image: NDArray[np.uint8]) -> NDArray[np.float32]:
    """The picture (h, w, 3) uint8 as a network's input (1, 3, h, w) float32, minus the ImageNet mean, over its std."""
    scaled = (image.astype(np.float32) / np.float32(255) - IMAGENET_MEAN) / IMAGENET_STD
    return np.ascontiguousarray(scaled.transpose(2, 0, 1)[None])


def write_golden(path: Path, golden: Golden) -> None:
    """Store a golden as one compressed `.npz`; the gains are packed, for hundreds of small members would bloat it."""
    arrays: dict[str, NDArray[Any]] = {"sizes": golden.sizes, **golden.outputs}
    for kind, changes in (("gain", golden.gains), ("shift", golden.shifts)):
        arrays[f"{kind}_names"] = np.array("\n".join(changes))
        arrays[f"{kind}_lengths"] = np.array([v.size if v.ndim else 0 for v in changes.values()], np.int32)
        arrays[f"{kind}_values"] = np.concatenate([v.ravel() for v in changes.values()] or [np.zeros(0, np.float32)])
    np.savez_compressed(path, **arrays)  # type: ignore[arg-type]


def read_golden(path: str | Path) -> Golden:
    """Read what `write_golden` stored."""
    with np.load(path, allow_pickle=False) as file:
        arrays = dict(file)
    packed: list[dict[str, NDArray[np.float32]]] = []
    for kind in ("gain", "shift"):
        names = str(arrays.pop(f"{kind}_names")).splitlines()
        lengths, values = arrays.pop(f"{kind}_lengths").tolist(), arrays.pop(f"{kind}_values")
        changes, start = {}, 0
        for name, length in zip(names, lengths, strict=True):
            changes[name] = values[start : start + length] if length else values[start]
            start += max(length, 1)
        packed.append(changes)
    return Golden(arrays.pop("sizes"), packed[0], packed[1], arrays)
