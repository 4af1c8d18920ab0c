"""Drawing results on images: boxes with labels, masks, keypoints and label maps.

Line widths and letters follow the size of the image, every class keeps one colour, labels stay inside the image and
give way to one another. All functions return a new (height, width, 3) uint8 RGB array and leave their input alone.
"""

from __future__ import annotations

import colorsys
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, TypeAlias

import cv2
import numpy as np
from PIL import Image, ImageDraw, ImageFont

if TYPE_CHECKING:
    from .results import Detections

Colour: TypeAlias = "tuple[int, int, int]"
_Rect: TypeAlias = "tuple[int, int, int, int]"
_Font: TypeAlias = "ImageFont.FreeTypeFont | ImageFont.ImageFont"

# The joints of COCO's person, pairs of keypoint indices: arms, legs, trunk, face.
COCO_SKELETON = (
    ((5, 7), (7, 9), (6, 8), (8, 10), (11, 13), (13, 15), (12, 14), (14, 16))
    + ((5, 6), (11, 12), (5, 11), (6, 12))
    + ((0, 1), (0, 2), (1, 3), (2, 4), (3, 5), (4, 6))
)
_TONES = ((0.8, 1.0), (0.95, 0.7), (0.45, 1.0))
_STRIP = 512


def class_colour(label: int) -> Colour:
    """The colour of class ``label`` as 8-bit (red, green, blue): always the same, and far from its neighbours'.

    Hues follow the golden angle, so any number of classes spreads evenly over the circle; three tones take turns, so
    classes whose hues come close (8, 13 or 21 apart) differ in tone.

    >>> class_colour(0) == class_colour(0) != class_colour(1)
    True
    """
    saturation, value = _TONES[(label + label // 21) % len(_TONES)]
    red, green, blue = colorsys.hsv_to_rgb((0.98 + 0.618034 * label) % 1.0, saturation, value)
    return round(255 * red), round(255 * green), round(255 * blue)


def text_colour(background: Colour) -> Colour:
    """Black or white, whichever reads better on ``background`` (contrast of WCAG 2.1, relative luminance).

    >>> text_colour((255, 255, 0)), text_colour((40, 0, 90))
    ((0, 0, 0), (255, 255, 255))
    """
    red, green, blue = (((c / 255 + 0.055) / 1.055) ** 2.4 if c > 10 else c / 255 / 12.92 for c in background)
    luminance = 0.2126 * red + 0.7152 * green + 0.0722 * blue
    return (0, 0, 0) if luminance > 0.179 else (255, 255, 255)


def draw_detections(
    image: np.ndarray,
    detections: Detections,
    *,
    scores: bool = True,
    mask_opacity: float = 0.45,
    skeleton: Sequence[tuple[int, int]] | None = None,
    font: str | None = None,
) -> np.ndarray:
    """``image`` with boxes, labels, masks and keypoints on it, in a colour for each class, or for each object where
    there are keypoints.

    - ``image``: (height, width, 3) uint8 RGB, of the size the detections are in.
    - ``scores``: whether labels show the score.
    - ``skeleton``: pairs of keypoint indices to join; COCO's person for 17 keypoints, otherwise none.
    - ``font``: path of a TrueType font, for names in scripts that Pillow's own font lacks (it has Latin letters).

    A label that is wider than the image loses its score, then is left out. Raises ValueError when the image has
    another size than the detections.
    """
    if image.shape[:2] != tuple(detections.image_size):
        raise ValueError(f"expected an image of size {tuple(detections.image_size)}, got {image.shape[:2]}")
    canvas = np.array(image)
    height, width = canvas.shape[:2]
    line, letters = _sizes(height, width, len(detections))
    rising = np.argsort(detections.scores, kind="stable")
    # Skeletons of people side by side would be one tangle in one colour.
    kinds = detections.labels.tolist() if detections.keypoints is None else range(len(detections))
    colours = [class_colour(kind) for kind in kinds]
    if detections.masks is not None:
        for i in rising:
            _mask(canvas, detections.masks.place(i), detections.masks.window(i), colours[i], mask_opacity, line)
    for i in rising:
        _frame(canvas, detections.boxes[i], line, colours[i])
    if detections.keypoints is not None:
        joints = skeleton if skeleton is not None else COCO_SKELETON if detections.keypoints.shape[1] == 17 else ()
        for i in rising:
            _keypoints(canvas, detections.keypoints[i], joints, colours[i], line)

    face = _font(font, letters)
    tags: list[tuple[_Rect, str, Colour, np.ndarray]] = []
    for i in rising[::-1]:
        name = detections.categories[int(detections.labels[i])]
        fits = (text for text in ([f"{name} {detections.scores[i]:.2f}"] if scores else []) + [name])
        for text in fits:
            size = _tag_size(text, face)
            if size[0] <= width and size[1] <= height:
                place = _place(detections.boxes[i], size, [tag[0] for tag in tags], width, height, line)
                tags.append((place, text, colours[i], detections.boxes[i]))
                break
    for rect, _, colour, box in tags:
        _leader(canvas, rect, box, colour, line)
    for rect, text, colour, _ in reversed(tags):
        _tag(canvas, rect, text, colour, face)
    return canvas


def draw_segmentation(
    image: np.ndarray, labels: np.ndarray, categories: Sequence[str], *, opacity: float = 0.55, font: str | None = None
) -> np.ndarray:
    """``image`` with a label map over it, an outline around every region and a name on every larger class.

    - ``image``: (height, width, 3) uint8 RGB; ``labels``: (height, width) integers, indices into ``categories``.

    A class called background and values that are no index (255, say) stay unpainted. Raises ValueError when the sizes
    differ.
    """
    if image.shape[:2] != labels.shape:
        raise ValueError(f"expected a label map of the image's size {image.shape[:2]}, got {labels.shape}")
    height, width = labels.shape
    line, letters = _sizes(height, width, 0)
    none = len(categories)
    painted = np.array([name.strip("_").lower() != "background" for name in categories] + [False])
    table = np.array([class_colour(k) for k in range(none)] + [(0, 0, 0)], np.float32)
    # Everything unpainted becomes one class, so that no outline is drawn inside it.
    index = np.where((labels >= 0) & (labels < none), labels, none).astype(np.int32)
    index = np.where(painted, np.arange(none + 1), none).astype(np.int32)[index]
    canvas = np.array(image)
    for top in range(0, height, _STRIP):
        rows = slice(top, top + _STRIP)
        weight = opacity * painted[index[rows]][..., None].astype(np.float32)
        canvas[rows] = (canvas[rows] * (1 - weight) + table[index[rows]] * weight + 0.5).astype(np.uint8)
    edge = np.zeros((height, width), np.uint8)
    edge[:, 1:] |= index[:, 1:] != index[:, :-1]
    edge[1:] |= index[1:] != index[:-1]
    if line > 2:
        cv2.dilate(edge, np.ones((line // 2, line // 2), np.uint8), dst=edge)
    canvas[edge > 0] = 255
    face = _font(font, letters)
    taken: list[_Rect] = []
    for k, (x, y) in _label_points(index, painted):
        size = _tag_size(categories[k], face)
        if size[0] <= width and size[1] <= height:
            left, top = x - size[0] // 2, y - size[1] // 2
            left, top = min(max(left, 0), width - size[0]), min(max(top, 0), height - size[1])
            rect = (left, top, left + size[0], top + size[1])
            if all(_overlap(rect, other) == 0 for other in taken):
                taken.append(rect)
                _tag(canvas, rect, categories[k], class_colour(k), face)
    return canvas


def _label_points(labels: np.ndarray, painted: np.ndarray) -> list[tuple[int, tuple[int, int]]]:
    """Class and innermost point (x, y) of every class that fills at least half a percent, the largest first."""
    height, width = labels.shape
    step = max(1, max(height, width) // 400)
    small = labels[step // 2 :: step, step // 2 :: step]
    found = []
    for k in np.unique(small):
        inside = small == k
        area = np.count_nonzero(inside)
        if painted[k] and area * 200 >= inside.size:
            # The border of zeros keeps the point away from the edge of the image as well.
            depth = cv2.distanceTransform(np.pad(inside.astype(np.uint8), 1), cv2.DIST_L2, 3)[1:-1, 1:-1]
            y, x = np.unravel_index(int(depth.argmax()), depth.shape)
            found.append((area, int(k), (int(x) * step + step // 2, int(y) * step + step // 2)))
    return [(k, point) for _, k, point in sorted(found, reverse=True)]


def _sizes(height: int, width: int, objects: int) -> tuple[int, int]:
    """Line width and letter size in pixels; letters shrink a little in a crowd."""
    side = float(np.sqrt(height * width))
    side = min(side, 3.0 * min(height, width))  # A panorama is judged by its height too.
    crowd = 0.8 if objects > 25 else 1.0
    return max(1, round(side / 270)), max(10, round(crowd * side / 38))


@lru_cache(maxsize=32)
def _font(path: str | None, size: int) -> _Font:
    return ImageFont.truetype(path, size) if path is not None else ImageFont.load_default(size)


def _padding(font: _Font) -> tuple[int, int]:
    size = int(getattr(font, "size", 10))
    return max(2, round(0.32 * size)), max(1, round(0.14 * size))


def _line_height(font: _Font) -> int:
    # The same for every text: from the top of a capital to the bottom of a descender.
    top, bottom = font.getbbox("Ég")[1::2]
    return int(np.ceil(bottom - top))


def _tag_size(text: str, font: _Font) -> tuple[int, int]:
    x, y = _padding(font)
    return int(np.ceil(font.getlength(text))) + 2 * x, _line_height(font) + 2 * y


def _tag(canvas: np.ndarray, rect: _Rect, text: str, colour: Colour, font: _Font) -> None:
    """A rounded plate of the class's colour with the text on it."""
    left, top, right, bottom = rect
    size = right - left, bottom - top
    x, y = _padding(font)
    plate = Image.new("RGB", size, colour)
    offset = y - font.getbbox("Ég")[1]
    ImageDraw.Draw(plate).text((x, offset), text, font=font, fill=text_colour(colour))
    # Drawn three times as large and reduced: the corners come out smooth.
    shape = Image.new("L", (3 * size[0], 3 * size[1]), 0)
    ImageDraw.Draw(shape).rounded_rectangle((0, 0, 3 * size[0] - 1, 3 * size[1] - 1), 3 * size[1] // 6, fill=240)
    opacity = np.asarray(shape.reduce(3), np.float32)[..., None] / 255
    region = canvas[top:bottom, left:right]
    region[:] = (region * (1 - opacity) + np.asarray(plate, np.float32) * opacity + 0.5).astype(np.uint8)


def _place(box: np.ndarray, size: tuple[int, int], taken: list[_Rect], width: int, height: int, line: int) -> _Rect:
    """Where the tag of ``box`` goes: of the places near the box and inside the image, the one that covers least."""
    x1, y1, x2, y2 = (round(float(v)) for v in box)
    w, h = size
    half = line // 2
    left, right = x1 - half, x2 + half + 1 - w
    above, below = y1 - half - h, y2 + half + 1
    rows = [above, y1 + half + 1, below, y2 - half - h]
    if x2 - x1 < w + 2 * line or y2 - y1 < 2 * h:
        rows = [above, below, y1 + half + 1, y2 - half - h]  # Inside a small box the tag would hide the object.
    # In a crowd tags stack up away from their boxes.
    rows += [row for k in range(1, 7) for row in (above - k * (h + 1), below + k * (h + 1))]
    starts = np.repeat([left, right, (left + right) // 2], len(rows))
    tops = np.tile(rows, 3)
    order = np.where(starts == left, 0, 1) + 4 * (np.tile(np.maximum(np.arange(len(rows)) - 2, 0), 3) // 2)
    rects = np.stack([np.clip(starts, 0, width - w), np.clip(tops, 0, height - h)], 1)
    # Covered letters count most, then being pushed away from the place, then the order of preference.
    pushed = np.abs(rects[:, 0] - starts) + np.abs(rects[:, 1] - tops)
    rects = np.concatenate([rects, rects + size], 1)
    cost = pushed / (4 * h) + 0.02 * order + 0.001 * np.arange(len(order))
    if taken:
        others = np.array(taken)
        shared = np.minimum(rects[:, None, 2:], others[:, 2:]) - np.maximum(rects[:, None, :2], others[:, :2])
        covered = np.maximum(shared, 0).prod(2).sum(1) / (w * h)
        cost = cost + 3 * covered + 0.3 * (covered > 0)
    x, y, right, bottom = rects[cost.argmin()].tolist()
    return x, y, right, bottom


def _leader(canvas: np.ndarray, rect: _Rect, box: np.ndarray, colour: Colour, line: int) -> None:
    """A thin line from a tag to its box, when the two lie apart."""
    x1, y1, x2, y2 = (round(float(v)) for v in box)
    x = min(max((max(x1, rect[0]) + min(x2, rect[2])) // 2, rect[0]), rect[2])
    if rect[3] < y1 - line - 1:
        cv2.line(canvas, (x, rect[3]), (min(max(x, x1), x2), y1), colour, max(1, line // 2), cv2.LINE_AA)
    elif rect[1] > y2 + line + 1:
        cv2.line(canvas, (x, rect[1]), (min(max(x, x1), x2), y2), colour, max(1, line // 2), cv2.LINE_AA)


def _overlap(a: _Rect, b: _Rect) -> int:
    return max(0, min(a[2], b[2]) - max(a[0], b[0])) * max(0, min(a[3], b[3]) - max(a[1], b[1]))


def _frame(canvas: np.ndarray, box: np.ndarray, line: int, colour: Colour) -> None:
    """The outline of a box, with a faint dark rim that keeps it visible on its own colour."""
    rim = max(1, line // 3)
    for thickness, shade, opacity in ((line + 2 * rim, (0, 0, 0), 0.35), (line, colour, 1.0)):
        height, width = canvas.shape[:2]
        half = thickness // 2
        x1, y1, x2, y2 = (round(float(v)) for v in box)
        # Moved inside the image, so that the line of a box at the edge keeps its full width.
        left, top = min(max(x1 - half, 0), width - 1), min(max(y1 - half, 0), height - 1)
        right = max(min(x2 - half + thickness, width), left + 1)
        bottom = max(min(y2 - half + thickness, height), top + 1)
        inner_top, inner_bottom = min(top + thickness, bottom), max(bottom - thickness, min(top + thickness, bottom))
        inner_left, inner_right = min(left + thickness, right), max(right - thickness, min(left + thickness, right))
        for rows, columns in (
            (slice(top, inner_top), slice(left, right)),
            (slice(inner_bottom, bottom), slice(left, right)),
            (slice(inner_top, inner_bottom), slice(left, inner_left)),
            (slice(inner_top, inner_bottom), slice(inner_right, right)),
        ):
            _blend(canvas, rows, columns, None, shade, opacity)


def _mask(
    canvas: np.ndarray, place: tuple[slice, slice], inside: np.ndarray, colour: Colour, opacity: float, line: int
) -> None:
    rows, columns = place
    if not inside.any():
        return
    for start in range(rows.start, rows.stop, _STRIP):
        part = slice(start, min(start + _STRIP, rows.stop))
        _blend(canvas, part, columns, inside[part.start - rows.start : part.stop - rows.start], colour, opacity)
    contours, _ = cv2.findContours(inside.astype(np.uint8), cv2.RETR_CCOMP, cv2.CHAIN_APPROX_NONE)
    region = np.ascontiguousarray(canvas[place])
    cv2.drawContours(region, contours, -1, colour, max(1, line // 2 + 1), cv2.LINE_AA)
    canvas[place] = region


def _blend(
    canvas: np.ndarray, rows: slice, columns: slice, inside: np.ndarray | None, colour: Colour, opacity: float
) -> None:
    region = canvas[rows, columns]
    if region.size == 0:
        return
    # The mixture as a table of 256 entries a channel.
    levels = np.arange(256, dtype=np.float32)[:, None]
    table = (levels * (1 - opacity) + opacity * np.array(colour, np.float32) + 0.5).astype(np.uint8)
    mixed = cv2.LUT(region, table[:, None])
    if inside is None:
        region[:] = mixed
    else:
        cv2.copyTo(mixed, inside.view(np.uint8), region)


def _keypoints(
    canvas: np.ndarray, points: np.ndarray, joints: Sequence[tuple[int, int]], colour: Colour, line: int
) -> None:
    """Joints as lines and visible points (third value above 0) as dots with a dark rim."""
    height, width = canvas.shape[:2]
    places = [
        (round(float(np.clip(x, -width, 2 * width))), round(float(np.clip(y, -height, 2 * height))))
        for x, y, _ in points
    ]
    for a, b in joints:
        if points[a, 2] > 0 and points[b, 2] > 0:
            cv2.line(canvas, places[a], places[b], (0, 0, 0), line + 2, cv2.LINE_AA)
            cv2.line(canvas, places[a], places[b], colour, line, cv2.LINE_AA)
    for place, (_, _, visible) in zip(places, points):
        if visible > 0:
            cv2.circle(canvas, place, line + 2, (0, 0, 0), -1, cv2.LINE_AA)
            cv2.circle(canvas, place, line + 1, (255, 255, 255), -1, cv2.LINE_AA)
            cv2.circle(canvas, place, max(line, 1), colour, -1, cv2.LINE_AA)
