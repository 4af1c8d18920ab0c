"""Curves and confusion matrices as pictures, drawn with Pillow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from .metrics import CocoMetrics, ScoreCurves, VocMetrics
from .metrics.matching import Floats, Ints

# Okabe and Ito's colours, told apart by colour-blind readers too.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7F7F7F", "#8C564B", "#B8860B", "#4B0082")
INK, GREY, GRID = "#222222", "#B0B0B0", "#E6E6E6"
SCALE = 2  # drawn larger and shrunk, so that lines and text are smooth


@dataclass(frozen=True)
class Line:
    """One curve: ``x`` and ``y`` in 0..1; ``name`` in the legend, none if empty."""

    x: Floats
    y: Floats
    name: str = ""
    colour: str = GREY
    width: int = 1


def precision_recall_plot(metrics: CocoMetrics | VocMetrics, iou: float = 0.5) -> Image.Image:
    """Precision over recall at one IoU threshold: each category, and their mean in bold.

    The precision is the highest at that recall or more; VOC's metric has one threshold, whatever ``iou`` says.
    """
    if isinstance(metrics, VocMetrics):
        recall, iou = np.linspace(0, 1, 101), metrics.iou_threshold
        precision = np.full((len(metrics.categories), len(recall)), np.nan)
        for k in np.flatnonzero(~np.isnan(metrics.average_precision)):
            envelope = np.append(np.maximum.accumulate(metrics.precision[k][::-1])[::-1], 0)
            precision[k] = envelope[np.searchsorted(metrics.recall[k], recall)]
        values = metrics.average_precision
    else:
        at = int(np.abs(metrics.iou_thresholds - iou).argmin())
        recall, iou = metrics.recall_thresholds, float(metrics.iou_thresholds[at])
        precision = metrics.precision[at, :, :, 0].T
        values, precision = precision.mean(1), np.where(precision < 0, np.nan, precision)
    overlap = "OKS" if isinstance(metrics, CocoMetrics) and metrics.iou_type == "keypoints" else "IoU"
    title = f"Precision and recall at {overlap} {iou:.2f}"
    return _curves(list(metrics.categories), recall, precision, values, title, ("recall", "precision"))


def f1_plot(curves: ScoreCurves) -> Image.Image:
    """F1 over the score threshold: each category, and their mean in bold."""
    best = f", best at score {curves.best_score:.2f}" if np.isfinite(curves.best_score) else ""
    return _curves(
        list(curves.categories),
        curves.scores,
        curves.f1,
        curves.f1[:, int(np.argmin(np.abs(curves.scores - curves.best_score)))],
        f"F1 by score threshold{best}",
        ("score threshold", "F1"),
    )


def confusion_plot(counts: Ints, names: Sequence[str]) -> Image.Image:
    """Shares of each true class (row) by predicted class (column), (K, K) or (K + 1, K + 1).

    In the larger one the last row is background found as something, the last column objects missed. Classes that
    neither occur nor are predicted are left out.
    """
    extra = len(counts) - len(names)
    used = np.append((counts.sum(1) + counts.sum(0))[: len(names)] > 0, np.ones(extra, bool))
    shown = counts[used][:, used]
    labels = [name for name, use in zip(names, used) if use]
    rows, columns = [*labels, *["background"] * extra], [*labels, *["missed"] * extra]
    n = len(rows)
    cell = 46 if n <= 8 else 34 if n <= 20 else 16 if n <= 40 else 9 if n <= 120 else max(1, 900 // n)
    size = 13 if n <= 20 else 10 if n <= 40 else 8
    named = cell >= 9  # names of lower rows would lie on each other
    left = int(max((_width(row, size) for row in rows), default=0) if named else 0) + 34
    top = int(max((_width(column, size) for column in columns), default=0) if named else 0) + 46
    title = "True class (rows) by predicted class (columns), % of the row"
    canvas = _Canvas(max(left + n * cell, int(_width(title, 15))) + 24, top + n * cell + 16)
    canvas.text((12, 10), title, 15)
    share = shown / np.maximum(shown.sum(1, keepdims=True), 1)
    for i in range(n):
        if named:
            canvas.text((left - 6, top + (i + 0.5) * cell), rows[i], size, anchor="rm")
            canvas.upright((left + (i + 0.5) * cell, top - 6), columns[i], size)
        for j in range(n):
            x, y = left + j * cell, top + i * cell
            canvas.rectangle((x, y, x + cell - (cell > 2), y + cell - (cell > 2)), _shade(float(share[i, j])))
            if cell >= 30 and shown[i, j]:
                colour = "white" if share[i, j] > 0.55 else INK
                percent = round(100 * share[i, j])
                canvas.text((x + cell / 2, y + cell / 2), str(percent), size - 1, colour=colour, anchor="mm")
    return canvas.image()


def _curves(names: list[str], x: Floats, y: Floats, values: Floats, title: str, axes: tuple[str, str]) -> Image.Image:
    """Lines (K, n), each in its own colour if they are few; nan rows are categories without objects."""
    some = np.flatnonzero(~np.isnan(y).any(1))
    lines = [Line(x, y[k], "", GREY) for k in some]
    if len(some) <= len(COLOURS):
        by_value = some[np.argsort(-values[some], kind="stable")]
        lines = [Line(x, y[k], f"{names[k]}: {values[k]:.2f}", COLOURS[c], 2) for c, k in enumerate(by_value)]
    if len(some):
        lines.append(Line(x, y[some].mean(0), f"mean of {len(some)}: {values[some].mean():.2f}", INK, 4))
    return line_plot(lines, title, axes)


def line_plot(lines: Sequence[Line], title: str, axes: tuple[str, str]) -> Image.Image:
    """Curves over the unit square, with a legend of those that have a name."""
    named = [line for line in lines if line.name]
    legend = max((_width(line.name, 13) for line in named), default=0) + 56 if named else 0
    left, top, side = 64, 48, 380
    canvas = _Canvas(int(left + side * 1.25 + 24 + legend), top + side + 56)
    width = side * 1.25
    canvas.text((left, 16), title, 16)
    for tick in np.linspace(0, 1, 6):
        x, y = left + tick * width, top + side - tick * side
        canvas.line([(x, top), (x, top + side)], GRID)
        canvas.line([(left, y), (left + width, y)], GRID)
        canvas.text((x, top + side + 8), f"{tick:.1f}", 12, anchor="ma")
        canvas.text((left - 8, y), f"{tick:.1f}", 12, anchor="rm")
    canvas.text((left + width / 2, top + side + 30), axes[0], 13, anchor="ma")
    canvas.upright((16, top + side / 2), axes[1], 13, centre=True)
    for line in lines:
        points = [(left + x * width, top + side - y * side) for x, y in zip(line.x.tolist(), line.y.tolist())]
        canvas.line(points, line.colour, line.width)
    canvas.line([(left, top), (left, top + side), (left + width, top + side)], INK)
    for i, line in enumerate(named):
        y = top + 12 + 22 * i
        canvas.line([(left + width + 16, y), (left + width + 40, y)], line.colour, line.width + 1)
        canvas.text((left + width + 48, y), line.name, 13, anchor="lm")
    return canvas.image()


def _shade(share: float) -> str:
    """White to blue."""
    low, high = np.array([255, 255, 255]), np.array([0, 84, 148])
    red, green, blue = (low + (high - low) * share**0.6).astype(int)
    return f"#{red:02x}{green:02x}{blue:02x}" if share else "#F7F7F7"


def _width(text: str, size: int) -> float:
    return float(_font(size).getlength(text))


def _font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(size)


class _Canvas:
    """A white picture in units of final pixels."""

    def __init__(self, width: int, height: int) -> None:
        self._size = width, height
        self._image = Image.new("RGB", (width * SCALE, height * SCALE), "white")
        self._draw = ImageDraw.Draw(self._image)

    def line(self, points: Sequence[tuple[float, float]], colour: str, width: int = 1) -> None:
        scaled = [(x * SCALE, y * SCALE) for x, y in points]
        self._draw.line(scaled, fill=colour, width=width * SCALE, joint="curve")

    def rectangle(self, box: tuple[float, float, float, float], colour: str) -> None:
        self._draw.rectangle([value * SCALE for value in box], fill=colour)

    def text(self, at: tuple[float, float], text: str, size: int, *, colour: str = INK, anchor: str = "la") -> None:
        self._draw.text((at[0] * SCALE, at[1] * SCALE), text, fill=colour, font=_font(size * SCALE), anchor=anchor)

    def upright(self, at: tuple[float, float], text: str, size: int, *, centre: bool = False) -> None:
        """Text turned to the left: ending (or centred) at ``at``."""
        font = _font(size * SCALE)
        width, height = int(font.getlength(text)) + 2, int(size * SCALE * 1.4)
        strip = Image.new("L", (width, height), 0)
        ImageDraw.Draw(strip).text((0, height / 2), text, fill=255, font=font, anchor="lm")
        strip = strip.rotate(90, expand=True)
        y = at[1] * SCALE - (width / 2 if centre else width)
        self._image.paste(INK, (int(at[0] * SCALE - height / 2), int(y)), strip)

    def image(self) -> Image.Image:
        return self._image.resize(self._size, Image.Resampling.LANCZOS)
