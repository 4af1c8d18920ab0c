"""`chainsight demo`: the built-in detector on drawn scenes that it never saw; nothing is downloaded."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from html import escape
from pathlib import Path

import numpy as np
from PIL import Image

from .datasets import ShapeScenes
from .evaluations.metrics import BoxesFound, CocoMetrics, box_metrics, image_errors
from .evaluations.plots import precision_recall_plot
from .evaluations.report import STYLE, data_url
from .evaluations.runner import versions, write_text
from .vision.detection.nanodet import SHAPES_INPUT
from .vision.draw import draw_detections
from .vision.models import load
from .vision.results import Detections

SEED = 2026  # of the scenes; training and the choice of its best epoch used others
SCORE = 0.5  # least score of what is drawn and counted as found
PICTURES = 12
ENLARGED = 576  # pixels of a drawn picture
ON_A_PHOTO = "chainsight predict PHOTO.jpg --model ssdlite320_mobilenet_v3_large --out found"

MORE_STYLE = """
.lead{font-size:17px;max-width:820px}.scenes{display:grid;grid-template-columns:repeat(auto-fill,minmax(540px,1fr));gap:22px}
.scenes .pair{margin:0;gap:4px}.scenes img{display:block;border-radius:4px;width:100%}
figcaption{color:#555;margin-top:4px}.ok{color:#00734f}.off{color:#b04a00}
pre.try{background:#1f2933;color:#f2f5f7;padding:14px 18px;border-radius:6px;font-size:14px}
.half{display:grid;grid-template-columns:minmax(0,3fr) minmax(0,2fr);gap:24px;align-items:start}
@media(max-width:760px){.half,.scenes{grid-template-columns:1fr}}
"""


@dataclass(frozen=True)
class Demo:
    """What the demo measured on ``scenes`` scenes, and wrote: a page and a picture of each of the first scenes."""

    scenes: int
    seed: int
    metrics: CocoMetrics
    images_per_second: float
    page: Path
    pictures: tuple[Path, ...]

    def __str__(self) -> str:
        figures = "  ".join(f"{name} {_figure(self.metrics[name])}" for name in ("AP", "AP50", "AP75"))
        return "\n".join(
            [
                f"{self.scenes} drawn scenes that the model never saw (seed {self.seed}), COCO's metric:",
                f"  {figures}",
                f"  {self.images_per_second:.0f} images per second, from pixels to boxes",
                f"{len(self.pictures)} pictures: {self.pictures[0].parent}",
                f"page: {self.page}",
                "",
                "Now a photo of yours, with weights trained on COCO (14 MB, downloaded once):",
                f"  {ON_A_PHOTO}",
            ]
        )


def run_demo(out: str | os.PathLike[str], scenes: int = 100, seed: int = SEED) -> Demo:
    """Detect the shapes in drawn scenes, score the boxes, and write pictures and one self-contained page into ``out``.

    Raises ValueError for less than one scene.

    >>> import tempfile
    >>> demo = run_demo(tempfile.mkdtemp(), scenes=2)
    >>> demo.page.name, len(demo.pictures)
    ('index.html', 2)
    """
    if scenes < 1:
        raise ValueError(f"expected at least one scene, got {scenes}")
    data = ShapeScenes(scenes, SHAPES_INPUT, seed)
    model = load("nanodet_shapes")
    samples = [data[i] for i in range(scenes)]
    model.predict(samples[0].image)  # the first call also prepares the kernels
    start = time.perf_counter()
    results = [model.predict(sample.image, score_threshold=None) for sample in samples]
    speed = scenes / (time.perf_counter() - start)
    truths = [data.annotations(i) for i in range(scenes)]
    found = [BoxesFound(r.boxes, r.scores, r.labels) for r in results]
    metrics = box_metrics(truths, found, data.categories)
    errors = image_errors(truths, found, len(data.categories), score_threshold=SCORE)

    folder = Path(out)
    (folder / "pictures").mkdir(parents=True, exist_ok=True)
    pictures, cards = [], []
    for i in range(min(PICTURES, scenes)):
        result = results[i][results[i].scores >= SCORE]
        truth = Detections(truths[i].boxes, np.ones(len(truths[i].boxes)), truths[i].labels, data.categories, data.size)
        right = _picture(samples[i].image, result, scores=True)
        path = folder / "pictures" / f"scene-{i + 1:02}.png"
        right.save(path)
        pictures.append(path)
        cards.append(_card(i, _picture(samples[i].image, truth, scores=False), right, *errors[i].tolist()))
    demo = Demo(scenes, seed, metrics, speed, folder / "index.html", tuple(pictures))
    write_text(demo.page, _page(demo, cards, errors.sum(0).tolist(), model.parameter_count()))
    return demo


def _picture(image: np.ndarray, shown: Detections, scores: bool) -> Image.Image:
    """The image enlarged, with boxes and names on it."""
    scale = ENLARGED / image.shape[0]
    large = np.asarray(Image.fromarray(image).resize((ENLARGED, ENLARGED), Image.Resampling.BICUBIC))
    boxes = Detections(shown.boxes * scale, shown.scores, shown.labels, shown.categories, (ENLARGED, ENLARGED))
    return Image.fromarray(draw_detections(large, boxes, scores=scores))


def _card(index: int, truth: Image.Image, found: Image.Image, right: int, wrong: int, missed: int) -> str:
    verdict = f'<span class="ok">all {right} found</span>'
    if wrong or missed:
        verdict = f'{right} found, <span class="off">{missed} missed, {wrong} false</span>'
    sides = zip(("annotated", "found"), (truth, found))
    images = "".join(f'<img alt="scene {index + 1}: {side}" src="{data_url(p, "JPEG")}">' for side, p in sides)
    return f'<figure><div class="pair">{images}</div><figcaption>Scene {index + 1}: {verdict}</figcaption></figure>'


def _figure(value: float) -> str:
    return f"{value:.3f}" if value >= 0 else "-"  # -1: there were no such objects


def _page(demo: Demo, cards: list[str], errors: list[int], parameters: int) -> str:
    metrics = demo.metrics
    right, wrong, missed = errors
    figures = [(name, _figure(metrics[name])) for name in ("AP", "AP50", "AP75", "APs", "APm")]
    figures += [("images per second", f"{demo.images_per_second:.0f}"), ("parameters", f"{parameters / 1e6:.2f} M")]
    tiles = "".join(f'<div class="figure"><span>{name}</span><b>{value}</b></div>' for name, value in figures)
    rows = "".join(
        f'<tr><td>{escape(name)}</td><td>{_figure(value)}</td><td style="text-align:left">'
        f'<span class="bar" style="width:{max(value, 0) * 160:.0f}px"></span></td></tr>'
        for name, value in sorted(metrics.per_category.items(), key=lambda item: -item[1])
    )
    used = ", ".join(f"{name} {version}" for name, version in versions().items())
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>chainsight demo</title><style>{STYLE}{MORE_STYLE}</style></head>
<body><h1>chainsight demo</h1>
<p class="lead">A small detector that comes with the package looked at {demo.scenes} drawn scenes that it never saw
(seed {demo.seed}). It was trained from random values by <code>chainsight.fit</code> on other scenes of the same kind;
every box below was computed on this machine just now.</p>
<div class="figures">{tiles}</div>
<p class="muted">AP: COCO's average precision, the mean over IoU thresholds from 0.50 to 0.95; APs and APm: of objects
below and above 32 x 32 pixels. At score {SCORE} and IoU 0.5, {right} objects were found and {missed} missed, with
{wrong} false alarms.</p>
<h2>The first {len(cards)} scenes</h2>
<p class="muted">left: what was drawn; right: what was found, with scores. {SHAPES_INPUT} pixels, enlarged.</p>
<div class="scenes">{"".join(cards)}</div>
<h2>By class</h2>
<div class="half"><img alt="precision and recall" src="{data_url(precision_recall_plot(metrics, 0.75), "PNG")}">
<table><tr><th>class</th><th>AP</th><th></th></tr>{rows}</table></div>
<h2>Now a photo of yours</h2>
<p>With weights trained on the 80 classes of COCO (14 MB, downloaded once):</p>
<pre class="try">{ON_A_PHOTO}</pre>
<p class="muted">{escape(used)}</p>
</body></html>
"""
