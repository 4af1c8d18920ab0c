"""One self-contained HTML page about an evaluation: figures, curves, confusion, classes and the worst images."""

from __future__ import annotations

import base64
import io
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ..vision.draw import draw_detections, draw_segmentation
from ..vision.image import read_image, write_image
from ..vision.masks import PixelMasks, decode_rle, polygons_to_mask
from ..vision.results import Detections, SegmentationMap
from .metrics import (
    CocoMetrics,
    ScoreCurves,
    SemanticMetrics,
    VocMetrics,
    confusion_matrix,
    image_errors,
    score_curves,
)
from .metrics.coco import compare
from .metrics.coco_format import Images, read_json, to_images
from .metrics.matching import Ints, Overlap
from .on_dataset import coco_truth, label_map
from .plots import Line, confusion_plot, f1_plot, line_plot, precision_recall_plot
from .runner import Evaluation, category_names, write_text

Pixels = NDArray[np.uint8]
WIDTH = 560  # of a picture, in pixels

STYLE = """
body{font:15px/1.5 system-ui,sans-serif;color:#222;max-width:1180px;margin:32px auto;padding:0 20px}
h1{font-size:26px;margin:0}h2{font-size:19px;margin:36px 0 10px;border-bottom:1px solid #ddd}
table{border-collapse:collapse;font-variant-numeric:tabular-nums}
td,th{padding:3px 14px 3px 0;text-align:right;border-bottom:1px solid #eee}
td:first-child,th:first-child,.text{text-align:left}
th{font-weight:600;color:#555;position:sticky;top:0;background:white}
.figures{display:flex;flex-wrap:wrap;gap:10px;margin:16px 0}
.figure{background:#f4f6f8;border-radius:6px;padding:8px 16px;min-width:76px}.figure b{display:block;font-size:20px}
.figure span{color:#555}.muted{color:#666}.warning{background:#fff4e0;padding:8px 14px;border-radius:6px}
img{max-width:100%;height:auto}.bar{display:inline-block;height:9px;background:#0072B2;vertical-align:middle}
.plots{display:grid;grid-template-columns:repeat(auto-fit,minmax(480px,1fr));gap:10px;align-items:start}
.confusion{display:flex;flex-wrap:wrap;gap:28px;align-items:start}.confusion img{max-width:800px}
.scroll{max-height:640px;overflow-y:auto;display:inline-block;padding-right:12px}
.pair{display:grid;grid-template-columns:1fr 1fr;gap:10px;margin:4px 0 20px}figure{margin:0}pre{overflow-x:auto}
.cards{display:grid;align-items:start;grid-template-columns:repeat(auto-fill,minmax(250px,1fr));gap:18px}
"""


def write_report(
    folder: str | os.PathLike[str],
    evaluation: Evaluation,
    annotations: Mapping[str, Any] | str | os.PathLike[str],
    images: str | os.PathLike[str] | Callable[[Any], Any],
    *,
    score_threshold: float | None = None,
    worst: int = 12,
) -> Path:
    """Write ``index.html``, the plots as PNG and ``evaluation.json`` into ``folder``; returns the page's path.

    ``evaluation``: of `evaluate_detector` on ``annotations`` (COCO's JSON or a path to it) and its ``images``.
    ``score_threshold``: from which score detections are counted and drawn; None: where the mean F1 is best. ``worst``:
    how many images with the most errors are drawn. Detections are matched by what was scored: boxes, masks or
    keypoints.
    """
    _, data = read_json(annotations, "annotations")
    scored = set(evaluation.image_ids)
    kept = {image["id"]: image for image in data["images"] if image["id"] in scored}
    order = {image: i for i, image in enumerate(sorted(kept))}
    size = {image: (entry.get("height"), entry.get("width")) for image, entry in kept.items()}
    truths, found = (
        sorted((entry for entry in entries if entry["image_id"] in order), key=lambda entry: order[entry["image_id"]])
        for entries in (data["annotations"], evaluation.predictions)
    )
    iou_type = evaluation.settings["iou_type"]
    truths = [entry if "bbox" in entry else entry | {"bbox": _box(entry, size)} for entry in truths]
    data = {"images": list(kept.values()), "categories": data["categories"], "annotations": truths}
    compared = compare(iou_type, data, truths, found)
    by_image = to_images(data, found)
    bounds = np.cumsum([len(truth.labels) for truth in by_image.truths])[:-1]
    ignored = np.split(compared.ignore, bounds)
    by_image = by_image._replace(truths=[t._replace(ignore=part) for t, part in zip(by_image.truths, ignored)])
    joints = next((category["skeleton"] for category in data["categories"] if category.get("skeleton")), None)

    own: dict[Any, tuple[list[Any], list[Any]]] = {image: ([], []) for image in order}
    for side, entries in enumerate((truths, found)):
        for entry in entries:
            own[entry["image_id"]][side].append(entry)

    def pictures(i: int, least: float) -> tuple[Pixels, Detections, Detections]:
        identity = by_image.ids[i]
        source = images(identity) if callable(images) else Path(images) / kept[identity]["file_name"]
        image = read_image(source)
        truth, detected = by_image.truths[i], by_image.detections[i]
        objects, hits = own[identity]
        keep = np.flatnonzero(detected.scores >= least)
        shown = (
            _detections(image, truth.boxes, truth.labels, None, by_image.categories, truth.ignore),
            _detections(image, detected.boxes[keep], detected.labels[keep], detected.scores[keep], by_image.categories),
        )
        return (
            image,
            _with_extras(shown[0], objects, iou_type),
            _with_extras(shown[1], [hits[k] for k in keep], iou_type),
        )

    names = [kept[image].get("file_name") or f"image {image}" for image in by_image.ids]
    case = _Boxes(by_image, compared.overlap, names, pictures, None if joints is None else np.array(joints) - 1)
    return _write(folder, evaluation, *_of_detections(evaluation, case, score_threshold, worst))


def write_dataset_report(
    folder: str | os.PathLike[str],
    evaluation: Evaluation,
    dataset: Any,
    model: Any,
    *,
    score_threshold: float | None = None,
    worst: int = 12,
) -> Path:
    """Like `write_report`, of an evaluation of a data set by any of the functions of this package.

    ``model`` predicts the worst images of a segmentation once more, to draw them.
    """
    if evaluation.settings.get("iou_type") in ("segm", "keypoints"):
        truth = coco_truth(dataset, evaluation.indices, evaluation.settings["iou_type"])
        numbered = replace(evaluation, image_ids=evaluation.indices)
        picture = partial(_image, dataset)
        return write_report(folder, numbered, truth, picture, score_threshold=score_threshold, worst=worst)
    if isinstance(evaluation.metrics, (CocoMetrics, VocMetrics)):
        annotated = [dataset.annotations(i) for i in evaluation.indices]
        by_image = Images(list(evaluation.image_ids), list(dataset.categories), annotated, evaluation.predictions)

        def pictures(i: int, least: float) -> tuple[Pixels, Detections, Detections]:
            image = _image(dataset, evaluation.indices[i])
            truth, found = annotated[i], evaluation.predictions[i]
            keep = [score >= least for score in found.scores]
            return (
                image,
                _detections(image, truth.boxes, truth.labels, None, by_image.categories, truth.ignore),
                _detections(
                    image,
                    np.reshape(found.boxes, (-1, 4))[keep],
                    np.array(found.labels, np.int64)[keep],
                    np.array(found.scores, float)[keep],
                    by_image.categories,
                ),
            )

        case = _Boxes(by_image, None, [str(image) for image in evaluation.image_ids], pictures, None)
        parts = _of_detections(evaluation, case, score_threshold, worst)
    elif isinstance(evaluation.metrics, SemanticMetrics):
        parts = _of_segmentation(evaluation, evaluation.metrics, dataset, model, worst)
    else:
        parts = _of_classification(evaluation, dataset, category_names(model), worst)
    return _write(folder, evaluation, *parts)


def _write(
    folder: str | os.PathLike[str], evaluation: Evaluation, plots: Mapping[str, Image.Image], sections: Sequence[str]
) -> Path:
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    for name, plot in plots.items():
        write_image(target / f"{name}.png", np.asarray(plot.convert("RGB")))
    evaluation.save(target / "evaluation.json")
    settings = "<h2>Settings</h2><pre>" + escape(json.dumps(_context(evaluation), indent=2)) + "</pre>"
    title = escape(f"{evaluation.model}: {evaluation.task}")
    page = (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width"><title>{title}</title>'
        f"<style>{STYLE}</style></head>\n<body>"
        + "\n".join([_head(evaluation), *sections, settings])
        + "</body></html>\n"
    )
    path = target / "index.html"
    write_text(path, page)
    return path


class _Boxes(NamedTuple):
    """What a page about detections is made from; ``pictures(i, score)``: an image with its truth and detections."""

    images: Images
    overlap: Overlap | None
    names: list[str]
    pictures: Callable[[int, float], tuple[Pixels, Detections, Detections]]
    joints: NDArray[np.int64] | None


def _of_detections(
    evaluation: Evaluation, case: _Boxes, score_threshold: float | None, worst: int
) -> tuple[dict[str, Image.Image], list[str]]:
    images, metrics = case.images, evaluation.metrics
    curves = score_curves(images.truths, images.detections, images.categories, overlap=case.overlap)
    if score_threshold is None:
        score_threshold = curves.best_score if np.isfinite(curves.best_score) else 0.5
    confusion = confusion_matrix(
        images.truths,
        images.detections,
        len(images.categories),
        score_threshold=score_threshold,
        overlap=case.overlap,
    )
    plots = {"f1": f1_plot(curves), "confusion": confusion_plot(confusion, images.categories)}
    if isinstance(metrics, (CocoMetrics, VocMetrics)):
        plots = {"precision_recall": precision_recall_plot(metrics), **plots}
    errors = image_errors(
        images.truths,
        images.detections,
        len(images.categories),
        score_threshold=score_threshold,
        overlap=case.overlap,
    )
    parts = [
        f'<p class="muted">left: annotated; right: detections of at least score {score_threshold:.2f}</p>',
    ]
    for i in np.argsort(-errors[:, 1:].sum(1), kind="stable")[:worst]:
        right, wrong, missed = errors[i]
        if wrong + missed == 0:
            break
        image, truth, found = case.pictures(int(i), score_threshold)
        parts.append(
            f"<div><b>{escape(case.names[i])}</b>: {right} right, {wrong} false, {missed} missed</div>"
            + _pair(_drawn(image, truth, False, case.joints), _drawn(image, found, True, case.joints))
        )
    return plots, [
        _plots({name: plot for name, plot in plots.items() if name != "confusion"}),
        _confusion(plots["confusion"], confusion, images.categories),
        _table(evaluation, images, curves, score_threshold),
        "<h2>Images with the most errors</h2>",
        *(parts if len(parts) > 1 else ["<p>There is no image with an error.</p>"]),
    ]


def _of_segmentation(
    evaluation: Evaluation, metrics: SemanticMetrics, dataset: Any, model: Any, worst: int
) -> tuple[dict[str, Image.Image], list[str]]:
    names = metrics.categories
    of_images = []
    for record in evaluation.predictions:
        one = SemanticMetrics(names, metrics.ignore_index)
        one.add_counts(record)
        of_images.append(one)
    mean_iou = np.nan_to_num([one.mean_iou for one in of_images])
    best_first = np.sort(mean_iou)[::-1]
    share = np.arange(1, len(best_first) + 1) / len(best_first)
    line = Line(np.append(0, share), np.append(best_first[0], best_first), "", "#0072B2", 3)
    plots = {
        "images": line_plot([line], "Mean IoU of the images, the best first", ("share of the images", "mean IoU")),
        "confusion": confusion_plot(metrics.confusion, names),
    }
    total = max(int(metrics.confusion.sum()), 1)
    annotated, predicted = metrics.confusion.sum(1) / total, metrics.confusion.sum(0) / total
    rows = []
    for k in sorted(range(len(names)), key=lambda k: (-np.nan_to_num(metrics.iou[k], nan=-1), names[k])):
        if annotated[k] or predicted[k]:
            shares = (f"{100 * value:.2f}%" for value in (annotated[k], predicted[k]))
            rows.append(_row(names[k], metrics.iou[k], [_figure(metrics.class_accuracies[k]), *shares]))
    parts = ['<p class="muted">left: annotated (unpainted where it is not); right: predicted</p>']
    accuracy = np.nan_to_num([one.pixel_accuracy for one in of_images], nan=1)
    for i in np.argsort(accuracy, kind="stable")[:worst]:
        if accuracy[i] == 1:
            break
        found = dataset.annotations(evaluation.indices[i])
        image = _image(dataset, evaluation.indices[i])
        label_maps = label_map(dataset, evaluation.indices[i]), model.predict(image).labels
        caption = f"{100 * accuracy[i]:.1f}% of the pixels right, mean IoU {mean_iou[i]:.3f}"
        parts.append(
            f"<div><b>{escape(str(found.image_id))}</b>: {caption}</div>"
            + _pair(*(_painted(image, labels, names) for labels in label_maps))
        )
    return plots, [
        _plots({"images": plots["images"]}),
        _confusion(plots["confusion"], metrics.confusion, names, "pixels"),
        _classes(["IoU", "", "accuracy", "annotated", "predicted"], rows, "annotated, predicted: share of all pixels"),
        "<h2>Images with the most wrong pixels</h2>",
        *(parts if len(parts) > 1 else ["<p>There is no image with a wrong pixel.</p>"]),
    ]


def _of_classification(
    evaluation: Evaluation, dataset: Any, names: Sequence[str], worst: int
) -> tuple[dict[str, Image.Image], list[str]]:
    truth, rank, predicted = (np.array([r[k] for r in evaluation.predictions], np.int64) for k in range(3))
    score = np.array([record[3] for record in evaluation.predictions])
    right = rank == 0
    thresholds = np.linspace(0, 1, 101)
    kept = score >= thresholds[:, None]
    accuracy = np.divide((kept & right).sum(1), kept.sum(1), out=np.full(101, np.nan), where=kept.any(1))
    lines = [
        Line(thresholds, kept.mean(1), "images left", "#D55E00", 3),
        Line(thresholds[kept.any(1)], accuracy[kept.any(1)], "their top-1", "#0072B2", 3),
    ]
    confusion = np.zeros((len(names), len(names)), np.int64)
    np.add.at(confusion, (truth, predicted), 1)
    plots = {
        "probability": line_plot(lines, "Images by the probability of their best class", ("at least", "share")),
        "confusion": confusion_plot(confusion, names),
    }
    images = confusion.sum(1)
    rows = []
    share = np.divide(np.diagonal(confusion), images, out=np.full(len(names), np.nan), where=images > 0)
    for k in sorted(np.flatnonzero(images).tolist(), key=lambda k: (-share[k], names[k])):
        others = confusion[k].copy()
        others[k] = 0
        taken_for = f"{names[others.argmax()]} ({others.max()})" if others.any() else ""
        rows.append(_row(names[k], share[k], [str(images[k]), taken_for]))
    cards = []
    for i in np.argsort(np.where(right, 2, -score), kind="stable")[:worst]:
        if right[i]:
            break
        name = dataset.annotations(evaluation.indices[i]).image_id
        place = "the second guess" if rank[i] == 1 else f"guess {rank[i] + 1}"
        picture = data_url(_small(_image(dataset, evaluation.indices[i]), 250))
        cards.append(
            f'<figure><img alt="{escape(str(name))}" src="{picture}">'
            f"<figcaption>{escape(names[predicted[i]])} {100 * score[i]:.0f}%<br><b>{escape(names[truth[i]])}</b> "
            f'is {place}<br><span class="muted">{escape(str(name))}</span></figcaption></figure>'
        )
    return plots, [
        _plots({"probability": plots["probability"]}),
        _confusion(plots["confusion"], confusion, names),
        _classes(["top-1", "", "images", "most often taken for"], rows, ""),
        "<h2>The surest mistakes</h2>",
        '<p class="muted">predicted, with its probability; in bold the annotated class</p>'
        f'<div class="cards">{"".join(cards)}</div>'
        if cards
        else "<p>There is no mistake.</p>",
    ]


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


def _plots(plots: Mapping[str, Image.Image]) -> str:
    images = (f'<img alt="{name}" src="{data_url(plot, "PNG")}">' for name, plot in plots.items())
    return f'<div class="plots">{"".join(images)}</div>'


def _confusion(plot: Image.Image, counts: Ints, names: Sequence[str], unit: str = "times") -> str:
    """The matrix, and beside it the pairs of classes that are confused most."""
    n = len(names)
    others = counts[:n, :n] * (1 - np.eye(n, dtype=np.int64))
    order = np.argsort(-others, axis=None, kind="stable")[:12]
    rows = []
    for k, j in zip(*np.unravel_index(order, others.shape)):
        if others[k, j]:
            share = 100 * others[k, j] / counts[k].sum()
            digits = 0 if share >= 1 else 1
            rows.append(
                f"<tr><td>{escape(names[k])}</td><td class='text'>{escape(names[j])}</td><td>{others[k, j]}</td>"
                f"<td>{share:.{digits}f}%</td></tr>"
            )
    table = (
        "<div><p class='muted'>Most often confused</p><table><tr><th>class</th><th class='text'>taken for</th>"
        f"<th>{unit}</th><th>of the class</th></tr>{''.join(rows)}</table></div>"
        if rows
        else ""
    )
    image = f'<img alt="confusion" src="{data_url(plot, "PNG")}">'
    return f'<h2>Confusion</h2><div class="confusion">{image}{table}</div>'


def _table(evaluation: Evaluation, images: Images, curves: ScoreCurves, score_threshold: float) -> str:
    values: Mapping[str, float] = getattr(evaluation.metrics, "per_category", {})
    n = len(images.categories)
    objects, found = np.zeros(n, np.int64), np.zeros(n, np.int64)
    for truth, detected in zip(images.truths, images.detections):
        np.add.at(objects, np.asarray(truth.labels)[~truth.ignore], 1)
        kept = np.asarray(detected.scores) >= score_threshold
        np.add.at(found, np.asarray(detected.labels, np.int64)[kept], 1)
    at = int(np.argmin(np.abs(curves.scores - score_threshold)))
    known = {name: value if value >= 0 else -1 for name, value in values.items()}  # nan and -1: no objects
    rows = []
    for k in sorted(range(n), key=lambda k: (-known.get(images.categories[k], -1), images.categories[k])):
        if not objects[k] and not found[k]:
            continue
        cells = [f"{curve[k, at]:.2f}" if objects[k] else "-" for curve in (curves.precision, curves.recall, curves.f1)]
        if not found[k]:
            cells[0] = "-"
        value = known.get(images.categories[k], -1)
        rows.append(_row(images.categories[k], value, [str(objects[k]), str(found[k]), *cells]))
    overlap = "OKS" if evaluation.settings.get("iou_type") == "keypoints" else "IoU"
    return _classes(
        ["AP", "", "objects", "found", "precision", "recall", "F1"],
        rows,
        f"found, precision, recall and F1: detections of at least score {score_threshold:.2f}, {overlap} 0.5",
    )


def _row(name: str, value: float, cells: Sequence[str]) -> str:
    bar = f'<span class="bar" style="width:{np.nan_to_num(max(value, 0)) * 120:.0f}px"></span>'
    rest = "".join(f"<td>{escape(cell)}</td>" for cell in cells)
    return f"<tr><td>{escape(name)}</td><td>{_figure(value)}</td><td class='text'>{bar}</td>{rest}</tr>"


def _classes(columns: Sequence[str], rows: Sequence[str], note: str) -> str:
    head = "".join(f"<th>{name}</th>" for name in ("class", *columns))
    text = f"<p class='muted'>{note}</p>" if note else ""
    return f"<h2>Classes</h2>{text}<div class='scroll'><table><tr>{head}</tr>{''.join(rows)}</table></div>"


def _pair(left: Image.Image, right: Image.Image) -> str:
    figures = (
        f'<figure><img alt="{side}" src="{data_url(picture)}"></figure>'
        for side, picture in (("annotated", left), ("predicted", right))
    )
    return f'<div class="pair">{"".join(figures)}</div>'


def _detections(
    image: Pixels, boxes: Any, labels: Any, scores: Any, categories: Sequence[str], ignore: Any = None
) -> Detections:
    """Objects (without scores) or detections, at the size of a picture; ignored objects are named so."""
    names = (*categories, *(f"{name} (ignored)" for name in categories))
    labels = np.asarray(labels, np.int64) + len(categories) * (0 if ignore is None else np.asarray(ignore, np.int64))
    scores = np.ones(len(labels)) if scores is None else scores
    size = image.shape[0], image.shape[1]
    return Detections(boxes, scores, labels, names, size, image=image)


def _with_extras(shown: Detections, entries: Sequence[Mapping[str, Any]], iou_type: str) -> Detections:
    """At the size of a picture, with the masks or keypoints of COCO's entries."""
    if iou_type == "keypoints" and entries:
        shown.keypoints = np.array([entry["keypoints"] for entry in entries], np.float32).reshape(len(entries), -1, 3)
    small = shown.resized(_height_and_width(shown.image_size))
    if iou_type == "segm" and entries:
        masks = (PixelMasks(_mask(entry["segmentation"], shown.image_size)[None]) for entry in entries)
        small.masks = PixelMasks(np.concatenate([mask.resized(small.image_size).pixels for mask in masks]))
    return small


def _box(entry: Mapping[str, Any], sizes: Mapping[Any, tuple[int, int]]) -> list[float]:
    """x, y, width and height around an annotation that has only a mask."""
    (rows, columns) = PixelMasks(_mask(entry["segmentation"], sizes[entry["image_id"]])[None]).place(0)
    return [columns.start, rows.start, columns.stop - columns.start, rows.stop - rows.start]


def _mask(segmentation: Any, size: tuple[int, int]) -> NDArray[np.bool_]:
    is_rle = isinstance(segmentation, Mapping)
    return decode_rle(dict(segmentation)) if is_rle else polygons_to_mask(segmentation, size)


def _image(dataset: Any, index: int) -> Pixels:
    path = dataset.annotations(index).path
    return read_image(path) if path else dataset[index].image  # drawn scenes have no file


def _drawn(image: Pixels, shown: Detections, scores: bool, joints: Any) -> Image.Image:
    """The photo at the size of a picture, with what was annotated or found on it."""
    small = np.asarray(_small(image))
    return Image.fromarray(draw_detections(small, shown.resized(small.shape[:2]), scores=scores, skeleton=joints))


def _painted(image: Pixels, labels: Any, categories: Sequence[str]) -> Image.Image:
    small = np.asarray(_small(image))
    shown = SegmentationMap(labels, tuple(categories)).resized(small.shape[:2])
    return Image.fromarray(draw_segmentation(small, shown.labels, categories))


def _small(image: Pixels, width: int = WIDTH) -> Image.Image:
    kind = Image.Resampling.BOX if width < image.shape[1] else Image.Resampling.BICUBIC
    return Image.fromarray(image).resize(_height_and_width(image.shape[:2], width)[::-1], kind)


def _height_and_width(size: tuple[int, ...], width: int = WIDTH) -> tuple[int, int]:
    return max(1, round(size[0] * width / size[1])), width


def _figure(value: float) -> str:
    return f"{value:.3f}" if value >= 0 else "-"


def _context(evaluation: Evaluation) -> dict[str, Any]:
    everything = evaluation.to_dict()
    return {key: everything[key] for key in ("model", "weights", "settings", "versions", "images_per_second")}


def data_url(picture: Image.Image, kind: str = "JPEG") -> str:
    """A picture as an address that holds it; ``kind`` is "PNG" or "JPEG"."""
    buffer = io.BytesIO()
    picture.save(buffer, kind, quality=85)
    return f"data:image/{kind.lower()};base64,{base64.b64encode(buffer.getvalue()).decode()}"
