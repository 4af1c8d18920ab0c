"""One self-contained HTML page about an evaluation: figures, curves, confusion, classes and the worst images."""

from __future__ import annotations

import base64
import io
import json
import os
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ..vision.draw import draw_detections
from ..vision.image import read_image, write_image
from ..vision.results import Detections
from .metrics import CocoMetrics, ScoreCurves, confusion_matrix, image_errors, score_curves
from .metrics.coco_format import Images, read_json, to_images
from .metrics.matching import Floats, Ints
from .plots import confusion_plot, f1_plot, precision_recall_plot
from .runner import Evaluation, write_text

Pixels = NDArray[np.uint8]

STYLE = """
body{font:15px/1.5 system-ui,sans-serif;color:#222;max-width:1180px;margin:32px auto;padding:0 20px}
h1{font-size:26px;margin:0}h2{font-size:19px;margin:36px 0 10px;border-bottom:1px solid #ddd}
table{border-collapse:collapse;font-variant-numeric:tabular-nums}
td,th{padding:3px 14px 3px 0;text-align:right;border-bottom:1px solid #eee}
td:first-child,th:first-child{text-align:left}
th{font-weight:600;color:#555}.figures{display:flex;flex-wrap:wrap;gap:10px;margin:16px 0}
.figure{background:#f4f6f8;border-radius:6px;padding:8px 16px;min-width:76px}.figure b{display:block;font-size:20px}
.figure span{color:#555}.muted{color:#666}.warning{background:#fff4e0;padding:8px 14px;border-radius:6px}
img{max-width:100%;height:auto}.bar{display:inline-block;height:9px;background:#0072B2;vertical-align:middle}
.plots{display:grid;grid-template-columns:repeat(auto-fit,minmax(480px,1fr));gap:10px;align-items:start}
.plots img:last-child{grid-column:1/-1}
.pair{display:grid;grid-template-columns:1fr 1fr;gap:10px;margin:4px 0 20px}figure{margin:0}pre{overflow-x:auto}
"""


def write_report(
    folder: str | os.PathLike[str],
    evaluation: Evaluation,
    annotations: Mapping[str, Any] | str | os.PathLike[str],
    images: str | os.PathLike[str],
    *,
    score_threshold: float | None = None,
    worst: int = 12,
) -> Path:
    """Write ``index.html``, the plots as PNG and ``evaluation.json`` into ``folder``; returns the page's path.

    ``evaluation``: of `evaluate_detector` on ``annotations`` (COCO's JSON or a path to it) and the folder ``images``.
    ``score_threshold``: from which score detections are counted and drawn; None: where the mean F1 is best. ``worst``:
    how many images with the most errors are drawn.
    """
    _, data = read_json(annotations, "annotations")
    scored = set(evaluation.image_ids)
    kept = {image["id"]: image for image in data["images"] if image["id"] in scored}
    data = {
        "images": list(kept.values()),
        "categories": data["categories"],
        "annotations": [entry for entry in data["annotations"] if entry["image_id"] in kept],
    }
    by_image = to_images(data, evaluation.predictions)
    curves = score_curves(by_image.truths, by_image.detections, by_image.categories)
    if score_threshold is None:
        score_threshold = curves.best_score if np.isfinite(curves.best_score) else 0.5
    confusion = confusion_matrix(
        by_image.truths, by_image.detections, len(by_image.categories), score_threshold=score_threshold
    )
    plots = {"f1": f1_plot(curves), "confusion": confusion_plot(confusion, by_image.categories)}
    if isinstance(evaluation.metrics, CocoMetrics):
        plots = {"precision_recall": precision_recall_plot(evaluation.metrics), **plots}
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    for name, plot in plots.items():
        write_image(target / f"{name}.png", np.asarray(plot.convert("RGB")))
    evaluation.save(target / "evaluation.json")
    sections = [
        _head(evaluation),
        '<div class="plots">',
        *(f'<img alt="{name}" src="{data_url(plot, "PNG")}">' for name, plot in plots.items()),
        "</div>",
        _table(evaluation, by_image, curves, score_threshold),
        _worst(by_image, kept, Path(images), score_threshold, worst),
        "<h2>Settings</h2><pre>" + escape(json.dumps(_context(evaluation), indent=2)) + "</pre>",
    ]
    title = escape(f"{evaluation.model}: {evaluation.task}")
    page = (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f"<style>{STYLE}</style></head>\n<body>" + "\n".join(sections) + "</body></html>\n"
    )
    path = target / "index.html"
    write_text(path, page)
    return path


def _head(evaluation: Evaluation) -> str:
    weights = evaluation.weights
    speed = "" if evaluation.images_per_second is None else f", {evaluation.images_per_second:.2f} images per second"
    lines = [
        f"<h1>{escape(evaluation.model)}: {escape(evaluation.task)}</h1>",
        f'<p class="muted">weights {escape(str(weights.get("name")))}, sha256 {escape(str(weights.get("sha256")))[:16]}'
        f"<br>data {escape(str(evaluation.settings.get('data')))}<br>{evaluation.images} images scored{speed}</p>",
        '<div class="figures">',
    ]
    for name, value in evaluation.metrics.to_dict().items():
        known = evaluation.published.get(name)
        beside = "" if known is None else f"<span>published {known:.3f}</span>"
        lines.append(f'<div class="figure"><span>{escape(name)}</span><b>{_figure(value)}</b>{beside}</div>')
    lines.append("</div>")
    if evaluation.published:
        lines.append(f'<p class="muted">published figures: {escape(evaluation.published_on)}</p>')
    if evaluation.failures:
        rows = "".join(f"<li>{escape(str(k))}: {escape(v)}</li>" for k, v in list(evaluation.failures.items())[:50])
        lines.append(
            f'<div class="warning">{len(evaluation.failures)} images could not be scored and are in no figure:'
            f"<ul>{rows}</ul></div>"
        )
    lines += [f'<p class="muted">{escape(note)}</p>' for note in evaluation.notes]
    return "\n".join(lines)


def _table(evaluation: Evaluation, images: Images, curves: ScoreCurves, score_threshold: float) -> str:
    values: Mapping[str, float] = getattr(evaluation.metrics, "per_category", {})
    n = len(images.categories)
    objects, found = np.zeros(n, np.int64), np.zeros(n, np.int64)
    for truth, detected in zip(images.truths, images.detections):
        np.add.at(objects, truth.labels[~truth.ignore], 1)
        np.add.at(found, detected.labels[detected.scores >= score_threshold], 1)
    at = int(np.argmin(np.abs(curves.scores - score_threshold)))
    rows = []
    for k in sorted(range(n), key=lambda k: (-values.get(images.categories[k], -1), images.categories[k])):
        if not objects[k] and not found[k]:
            continue
        value = values.get(images.categories[k], -1)
        cells = [f"{curve[k, at]:.2f}" if objects[k] else "-" for curve in (curves.precision, curves.recall, curves.f1)]
        if not found[k]:
            cells[0] = "-"
        rows.append(
            f"<tr><td>{escape(images.categories[k])}</td><td>{_figure(value)}</td>"
            f'<td style="text-align:left"><span class="bar" style="width:{max(value, 0) * 120:.0f}px"></span></td>'
            f"<td>{objects[k]}</td><td>{found[k]}</td>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"
        )
    return (
        f"<h2>Classes</h2><p class='muted'>found, precision, recall and F1: detections of at least score "
        f"{score_threshold:.2f}, IoU 0.5</p><table><tr><th>class</th><th>AP</th><th></th><th>objects</th>"
        "<th>found</th><th>precision</th><th>recall</th><th>F1</th></tr>" + "\n".join(rows) + "</table>"
    )


def _worst(
    images: Images, listed: Mapping[Any, Mapping[str, Any]], folder: Path, score_threshold: float, count: int
) -> str:
    errors = image_errors(images.truths, images.detections, len(images.categories), score_threshold=score_threshold)
    order = np.argsort(-errors[:, 1:].sum(1), kind="stable")[:count]
    parts = [
        "<h2>Images with the most errors</h2>",
        f'<p class="muted">left: annotated; right: detections of at least score {score_threshold:.2f}</p>',
    ]
    for i in order:
        right, wrong, missed = errors[i]
        if wrong + missed == 0:
            break
        name = listed[images.ids[i]]["file_name"]
        image = read_image(folder / name)
        truth, found = images.truths[i], images.detections[i]
        keep = found.scores >= score_threshold
        pictures = (
            _drawn(image, truth.boxes, truth.labels, None, images.categories),
            _drawn(image, found.boxes[keep], found.labels[keep], found.scores[keep], images.categories),
        )
        parts.append(
            f"<div><b>{escape(name)}</b>: {right} right, {wrong} false, {missed} missed</div><div class='pair'>"
            + "".join(
                f'<figure><img alt="{side}" src="{data_url(picture, "JPEG")}"></figure>'
                for side, picture in zip(("annotated", "detected"), pictures)
            )
            + "</div>"
        )
    return "\n".join(parts)


def _drawn(
    image: Pixels, boxes: Floats, labels: Ints, scores: Floats | None, categories: list[str], width: int = 560
) -> Image.Image:
    """The photo at ``width`` pixels with boxes and names on it, and scores if there are any."""
    height = max(1, round(image.shape[0] * width / image.shape[1]))
    small = np.asarray(Image.fromarray(image).resize((width, height), Image.Resampling.BOX))
    known = np.zeros(len(boxes)) if scores is None else scores
    scale = [width / image.shape[1], height / image.shape[0]] * 2
    detections = Detections(boxes * scale, known, labels, tuple(categories), (height, width))
    return Image.fromarray(draw_detections(small, detections, scores=scores is not None))


def _figure(value: float) -> str:
    return f"{value:.3f}" if value >= 0 else "-"


def _context(evaluation: Evaluation) -> dict[str, Any]:
    everything = evaluation.to_dict()
    return {key: everything[key] for key in ("model", "weights", "settings", "versions", "images_per_second")}


def data_url(picture: Image.Image, kind: str) -> str:
    """A picture as an address that holds it; ``kind`` is "PNG" or "JPEG"."""
    buffer = io.BytesIO()
    picture.save(buffer, kind, quality=85)
    return f"data:image/{kind.lower()};base64,{base64.b64encode(buffer.getvalue()).decode()}"
