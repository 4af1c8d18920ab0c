"""`ShapeScenes`: drawn pictures with exact annotations, for tutorials, tests and the demo; nothing to download."""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np

from ..vision.sample import Sample
from .dataset import DETECTION, INSTANCE, KEYPOINTS, SEMANTIC, Annotations, Dataset

SHAPES = ("circle", "square", "triangle", "star", "ring", "cross", "heart", "arrow")
UNANNOTATED = 255

# Outlines are drawn this many times larger and averaged: smooth edges from whole numbers, the same everywhere.
FINE = 4
SUBPIXEL = 4  # bits of the drawing's fixed-point coordinates


class ShapeScenes(Dataset):
    """``n`` drawn scenes of one to eight shapes on textured backgrounds, with shading, shadows, blur and noise.

    - ``size``: side of the square pictures, or (height, width), in pixels; at least 32.
    - Scene i depends on ``seed``, ``size`` and i alone and is drawn when it is asked for, in a few milliseconds.
    - ``background``: adds the class "background" as number 0, as semantic segmentation needs it. Without it the label
      map is 255 (not annotated) around the shapes.

    Boxes and masks show the visible part of an object, as in COCO: a box is the bounding box of its mask, and the mask
    holds the pixels of which the object covers at least half and nothing lies above. At least four tenths of every
    object are visible. Keypoints are the centre and the outline's top, right, bottom and left in the shape's own frame
    (turned by up to 25 degrees): visibility 2, 1 under another object, 0 outside the picture. Flips exchange
    ``keypoint_pairs``.

    Raises ValueError for a negative ``n`` or ``seed`` or a smaller ``size``.

    >>> scenes = ShapeScenes(100, size=128)
    >>> sample = scenes[0]
    >>> sample.image.shape, len(sample) == len(scenes.annotations(0))
    ((128, 128, 3), True)
    """

    name = "shape_scenes"
    format = "drawn"
    keypoint_names = ("centre", "top", "right", "bottom", "left")
    keypoint_pairs = ((2, 4),)

    def __init__(self, n: int, size: int | tuple[int, int] = 320, seed: int = 0, background: bool = False) -> None:
        self.size = (size, size) if isinstance(size, int) else (int(size[0]), int(size[1]))
        if n < 0 or seed < 0 or min(self.size) < 32:
            raise ValueError(f"ShapeScenes: expected n >= 0, seed >= 0 and size >= 32, got {n}, {seed} and {size}")
        self.n, self.seed, self.background = n, seed, background
        self.source = f"ShapeScenes({n}, size={size}, seed={seed})"
        self.tasks = (DETECTION, INSTANCE, KEYPOINTS, SEMANTIC) if background else (DETECTION, INSTANCE, KEYPOINTS)
        self.categories = ("background", *SHAPES) if background else SHAPES
        self.category_ids = tuple(range(not background, len(SHAPES) + 1))

    def __len__(self) -> int:
        return self.n

    def load(self, index: int) -> Sample:
        scene = self._scene(index)
        found = self.annotations(index, scene)
        names = np.array([shape.label for shape in scene.shapes] + [UNANNOTATED], np.int64)
        names[:-1] += self.background
        names[-1] = 0 if self.background else UNANNOTATED
        return Sample(
            _render(scene, self._rng(index, 1)),
            found.boxes,
            found.labels,
            found.ignore,
            scene.owner == np.arange(len(scene.shapes), dtype=np.int16)[:, None, None],
            found.keypoints,
            names.astype(np.uint8)[scene.owner],
            image_id=index,
            source=found.source,
        )

    def annotations(self, index: int, scene: _Scene | None = None) -> Annotations:
        scene = scene or self._scene(index)
        n = len(scene.shapes)
        boxes, areas, points = np.zeros((n, 4), np.float32), np.zeros(n, np.float32), np.zeros((n, 5, 3), np.float32)
        for i, shape in enumerate(scene.shapes):
            x0, y0, x1, y1 = shape.span
            visible = (scene.owner[y0:y1, x0:x1] == i).view(np.uint8)
            x, y, width, height = cv2.boundingRect(visible)
            boxes[i] = x0 + x, y0 + y, x0 + x + width, y0 + y + height
            areas[i] = cv2.countNonZero(visible)
            points[i] = _visibility(shape.points, scene.owner, i)
        return Annotations(
            boxes=boxes,
            labels=np.array([shape.label for shape in scene.shapes], np.int64) + self.background,
            ignore=np.zeros(n, bool),
            size=self.size,
            image_id=index,
            path="",
            source=f"{self.source}[{index}]",
            areas=areas,
            keypoints=points,
        )

    def _rng(self, index: int, stage: int) -> np.random.Generator:
        return np.random.default_rng(np.random.SeedSequence(self.seed, spawn_key=(index, stage)))

    def _scene(self, index: int) -> _Scene:
        return _arrange(self.size, self._rng(index, 0))


@dataclass
class _Shape:
    """One object: its class, place and the pixels it covers (nothing above it considered)."""

    label: int
    centre: np.ndarray  # (2,) x, y
    radius: float
    angle: float
    points: np.ndarray  # (5, 2) keypoints in pixels
    span: tuple[int, int, int, int]  # x0, y0, x1, y1 of the part of the picture that ``coverage`` describes
    coverage: np.ndarray  # (y1 - y0, x1 - x0) uint8, 255 where the shape covers the whole pixel


@dataclass
class _Scene:
    """Shapes from back to front, and which of them is on top at each pixel (-1: none)."""

    shapes: list[_Shape]
    owner: np.ndarray  # (height, width) int16


def _arc(radius: float, count: int = 64) -> np.ndarray:
    angles = np.arange(count) * (2 * np.pi / count)
    return radius * np.stack([np.sin(angles), -np.cos(angles)], axis=1)


def _heart() -> np.ndarray:
    t = np.arange(64) * (2 * np.pi / 64)
    y = 13 * np.cos(t) - 5 * np.cos(2 * t) - 2 * np.cos(3 * t) - np.cos(4 * t)
    return np.stack([16 * np.sin(t) ** 3, -y - 2.5], axis=1) / 16


def _plus(arm: float) -> np.ndarray:
    quarter = np.array([[-arm, -1], [arm, -1], [arm, -arm]])
    turn = np.array([[0, 1], [-1, 0]])  # of row vectors, a quarter clockwise as y points down
    return np.concatenate([quarter @ np.linalg.matrix_power(turn, k) for k in range(4)])


_STAR = _arc(1, 10) * np.where(np.arange(10) % 2, 0.45, 1)[:, None]

# Outlines (one contour, or two for a hole) and keypoints, centred, in units of the radius, y downward.
_OUTLINES: dict[str, list[np.ndarray]] = {
    "circle": [_arc(1)],
    "square": [np.array([[-0.85, -0.85], [0.85, -0.85], [0.85, 0.85], [-0.85, 0.85]])],
    "triangle": [np.array([[0, -1], [0.95, 0.75], [-0.95, 0.75]])],
    "star": [_STAR],
    "ring": [_arc(1), _arc(0.55)],
    "cross": [_plus(0.33)],
    "heart": [_heart()],
    "arrow": [np.array([[0, -1], [0.85, 0], [0.35, 0], [0.35, 1], [-0.35, 1], [-0.35, 0], [-0.85, 0]])],
}
_AXES = np.array([[0, 0], [0, -1], [1, 0], [0, 1], [-1, 0]], np.float64)
_POINTS: dict[str, np.ndarray] = {
    "circle": _AXES,
    "square": 0.85 * _AXES,
    "triangle": np.array([[0, 0], [0, -1], [0.95, 0.75], [0, 0.75], [-0.95, 0.75]]),
    "star": np.concatenate([[[0, 0]], _STAR[[0, 2, 5, 8]]]),
    "ring": _AXES,
    "cross": _AXES,
    "heart": np.concatenate([[[0, 0]], _heart()[[0, 16, 32, 48]]]),
    "arrow": np.array([[0, 0], [0, -1], [0.85, 0], [0, 1], [-0.85, 0]]),
}


def _arrange(size: tuple[int, int], rng: np.random.Generator) -> _Scene:
    """Lays out shapes from back to front so that enough of each stays visible."""
    scene = _Scene([], np.full(size, -1, np.int16))
    areas: list[float] = []
    visible: list[int] = []
    wanted = int(rng.integers(1, 9))
    for _ in range(3 * wanted):
        shape, area = _place(size, rng)
        x0, y0, x1, y1 = shape.span
        mask = shape.coverage >= 128
        inside = int(np.count_nonzero(mask))
        below = scene.owner[y0:y1, x0:x1]
        lost = np.bincount(below[mask & (below >= 0)], minlength=len(areas))
        if inside < 0.6 * area or any(v - cut < 0.4 * a for v, cut, a in zip(visible, lost, areas)):
            continue
        visible = [v - int(cut) for v, cut in zip(visible, lost)] + [inside]
        areas.append(area)
        below[mask] = len(scene.shapes)
        scene.shapes.append(shape)
        if len(scene.shapes) == wanted:
            break
    return scene


def _place(size: tuple[int, int], rng: np.random.Generator) -> tuple[_Shape, float]:
    """A shape at random, and its whole area in pixels, the part outside the picture included."""
    height, width = size
    label = int(rng.integers(len(SHAPES)))
    # Sizes uniform on a logarithmic scale, from 8 to 45 percent of the short side across.
    radius = 0.04 * min(size) * (0.225 / 0.04) ** rng.random()
    centre = rng.random(2) * [width, height]
    angle = 0.0 if SHAPES[label] in ("circle", "ring") else np.deg2rad(rng.uniform(-25, 25))
    turn = radius * np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
    x0, y0 = (int(v) for v in np.floor(centre - 1.2 * radius))
    side = int(2.4 * radius) + 2
    contours = [
        np.rint(((points @ turn + centre - [x0, y0]) * FINE - 0.5) * (1 << SUBPIXEL)).astype(np.int32)
        for points in _OUTLINES[SHAPES[label]]
    ]
    fine = np.zeros((side * FINE, side * FINE), np.uint8)
    cv2.fillPoly(fine, contours, 255, shift=SUBPIXEL)
    # The fill includes every pixel that the outline touches; counting those half makes areas right.
    cv2.polylines(fine, contours, True, 128, shift=SUBPIXEL)
    whole = cv2.resize(fine, (side, side), interpolation=cv2.INTER_AREA)
    left, top = max(x0, 0), max(y0, 0)
    right, bottom = min(x0 + side, width), min(y0 + side, height)
    coverage = whole[top - y0 : bottom - y0, left - x0 : right - x0]
    points = _POINTS[SHAPES[label]] @ turn + centre
    shape = _Shape(label, centre, radius, float(angle), points, (left, top, right, bottom), coverage)
    return shape, float(np.count_nonzero(whole >= 128))


def _visibility(points: np.ndarray, owner: np.ndarray, i: int) -> np.ndarray:
    """(5, 3) float32 keypoints with visibility: 1 where a shape in front of shape ``i`` lies over the point."""
    height, width = owner.shape
    inside = np.logical_and.reduce((points >= 0) & (points < [width, height]), axis=1)
    x, y = np.where(inside[:, None], points, 0).astype(int).T
    flag = np.where(owner[y, x] > i, 1, 2)
    return np.where(inside[:, None], np.column_stack([points, flag]), 0).astype(np.float32)


def _render(scene: _Scene, rng: np.random.Generator) -> np.ndarray:
    """Paints the scene: background, then each shape's shadow and body, then the camera's blur and noise."""
    light = _direction(rng)
    picture = _background(scene.owner.shape, rng)
    for shape in scene.shapes:
        _cast_shadow(picture, shape, light)
        x0, y0, x1, y1 = shape.span
        below = picture[:, y0:y1, x0:x1]
        below += (_surface(shape, light, rng) - below) * (shape.coverage.astype(np.float32) / 255)
    picture *= np.float32(rng.uniform(0.65, 1.15))
    image = np.asarray(cv2.merge(list(np.clip(picture, 0, 255, out=picture).astype(np.uint8))))
    if rng.random() < 0.3:
        image = cv2.GaussianBlur(image, (0, 0), rng.uniform(0.5, 1.2))
    # Uniform noise, from whole numbers only.
    noisy = rng.integers(0, 256, image.shape, np.uint8).astype(np.int16)
    noisy -= 128
    noisy *= np.int16(rng.integers(0, 24))
    noisy >>= 8
    noisy += image
    np.clip(noisy, 0, 255, out=noisy)
    return np.asarray(noisy, np.uint8)


def _direction(rng: np.random.Generator) -> np.ndarray:
    angle = 2 * np.pi * rng.random()
    return np.array([np.cos(angle), np.sin(angle)], np.float32)


def _colour(rng: np.random.Generator, saturation: tuple[int, int], value: tuple[int, int]) -> np.ndarray:
    """(3, 1, 1) float32 colour of any hue."""
    hsv = np.array([[[rng.integers(180), rng.integers(*saturation), rng.integers(*value)]]], np.uint8)
    return np.asarray(cv2.cvtColor(hsv, cv2.COLOR_HSV2RGB), np.float32).reshape(3, 1, 1)


def _clouds(size: tuple[int, int], cells: int, rng: np.random.Generator) -> np.ndarray:
    """(height, width) float32 in 0..1: random values on a coarse grid, smoothly in between."""
    grid = rng.integers(0, 256, (cells, cells), np.uint8)
    return np.asarray(cv2.resize(grid, size[::-1], interpolation=cv2.INTER_CUBIC), np.float32) / np.float32(255)


def _saw(values: np.ndarray) -> np.ndarray:
    saw: np.ndarray = values - np.floor(values)
    return saw


def _wave(values: np.ndarray) -> np.ndarray:
    """1 at even numbers, 0 at odd ones, straight in between."""
    wave: np.ndarray = np.abs(2 * _saw(values / 2) - 1)
    return wave


def _background(size: tuple[int, int], rng: np.random.Generator) -> np.ndarray:
    """(3, height, width) float32: one of four textures between two muted colours, unevenly lit, with stray lines."""
    height, width = size
    kind = rng.integers(4)
    along, pitch = _direction(rng), np.float32(1 / (min(size) * rng.uniform(0.06, 0.3)))
    x, y = pitch * np.arange(width, dtype=np.float32), pitch * np.arange(height, dtype=np.float32)[:, None]
    way = along[0] * x + along[1] * y
    if kind == 0:  # gradient
        blend = (way - way.min()) / (way.max() - way.min())
    elif kind == 1:  # stripes with soft edges
        blend = np.clip(_wave(way) * 4 - 1.5, 0, 1)
    elif kind == 2:  # weave
        blend = np.clip(_wave(way) * 3 - 1, 0, 1) * 0.6 + _wave(along[0] * y - along[1] * x) * 0.4
    else:  # clouds and grain
        blend = 0.5 * _clouds(size, 5, rng) + 0.3 * _clouds(size, 12, rng) + 0.2 * _clouds(size, 60, rng)
    first, second = _colour(rng, (10, 120), (60, 240)), _colour(rng, (10, 120), (60, 240))
    picture: np.ndarray = blend * (second - first)
    picture += first
    picture *= 0.65 + 0.5 * _clouds(size, 3, rng)
    image = np.asarray(cv2.merge(list(picture.astype(np.uint8))))
    for _ in range(rng.integers(0, 7)):
        ax, ay, bx, by = (int(v) for v in rng.integers(-20, max(size) + 20, 4))
        colour, thickness = _colour(rng, (0, 200), (30, 255)).ravel().tolist(), int(rng.integers(1, 4))
        cv2.line(image, (ax, ay), (bx, by), colour, thickness, cv2.LINE_AA)
    return np.stack(cv2.split(image)).astype(np.float32)


def _cast_shadow(picture: np.ndarray, shape: _Shape, light: np.ndarray) -> None:
    height, width = picture.shape[1:]
    x0, y0, x1, y1 = shape.span
    dx, dy = (int(v) for v in np.rint(-0.18 * shape.radius * light))
    x0, x1, y0, y1 = max(x0 + dx, 0), min(x1 + dx, width), max(y0 + dy, 0), min(y1 + dy, height)
    left, top = x0 - dx - shape.span[0], y0 - dy - shape.span[1]
    # Two box filters, near enough to a Gaussian and of the same cost for every radius.
    box = (1 + 2 * int(0.5 + 0.1 * shape.radius),) * 2
    shadow = np.asarray(cv2.blur(cv2.blur(shape.coverage, box), box))
    shadow = shadow[top : top + y1 - y0, left : left + x1 - x0]
    picture[:, y0:y1, x0:x1] *= 1 - shadow.astype(np.float32) * np.float32(0.45 / 255)


def _surface(shape: _Shape, light: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """(3, height, width) float32 colours of a shape over its span: a pattern of two colours, shaded like a pillow."""
    x0, y0, x1, y1 = shape.span
    x = ((np.arange(x0, x1) + 0.5 - shape.centre[0]) / shape.radius).astype(np.float32)
    y = ((np.arange(y0, y1) + 0.5 - shape.centre[1]) / shape.radius).astype(np.float32)[:, None]
    first, second = _colour(rng, (130, 256), (110, 256)), _colour(rng, (60, 256), (60, 256))
    pitch, shine = np.float32(rng.uniform(1.5, 3.5)), np.float32(rng.uniform(0, 90))
    cosine, sine = pitch * np.float32(np.cos(shape.angle)), pitch * np.float32(np.sin(shape.angle))
    u, v = cosine * x + sine * y, cosine * y - sine * x
    pattern = rng.integers(5)
    if pattern == 2:  # stripes
        colours = first + np.clip(_wave(u) * 6 - 2.5, 0, 1) * (second - first)
    elif pattern == 3:  # dots
        distance = (_saw(u) - 0.5) ** 2 + (_saw(v) - 0.5) ** 2
        colours = first + np.clip(6 - 48 * distance, 0, 1) * (second - first)
    elif pattern == 4:  # clouds
        colours = first + np.clip(_clouds((y1 - y0, x1 - x0), 6, rng) * 1.5 - 0.25, 0, 1) * (second - first)
    else:  # plain
        colours = first
    gloss = np.clip(1 - 3 * ((x - 0.4 * light[0]) ** 2 + (y - 0.4 * light[1]) ** 2), 0, 1)
    lit: np.ndarray = colours * (0.85 + 0.3 * (light[0] * x + light[1] * y))
    lit += shine * gloss * gloss
    return lit
