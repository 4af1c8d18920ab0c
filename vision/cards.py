"""Model cards: what is known about a model of the zoo and its weights, as Markdown."""

from __future__ import annotations

import csv
import inspect
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from ..core.layers import init
from ..weights.entry import WeightsEntry
from .model import CropPreset, ModelInfo, with_fields
from .models import model_info

VERIFIED = Path(__file__).with_name("data") / "verified.tsv"


def card(name: str) -> str:
    """The card of a model as Markdown: architecture, paper, size, and of each of its weights the licence, the source,
    the classes, the preprocessing and the published figures; and how it was compared with the original.

    Raises ValueError that names similar models for an unknown one.

    >>> print(card("nanodet_g").splitlines()[0])
    # nanodet_g
    """
    info = model_info(name)
    parameters = sorted({entry.parameters for entry in info.entries})
    rows = {
        "task": info.task,
        "paper": info.paper,
        "parameters": " or ".join(f"{count:,}" for count in parameters),
        "GFLOPs": f"{info.gflops:g} as published, of one image",
        "compared": _compared(info),
    }
    parts = [f"# {name}", _sentences(info.build), _table(rows), *(_weights(info, entry) for entry in info.entries)]
    default = info.entries[0]
    weights = f', weights="{default.name}=FILE"' if default.by_hand else ""
    use = f'model = chainsight.load("{name}"{weights})\nprint(model.predict("photo.jpg"))'
    parts.append(f"## Use\n\n```python\nimport chainsight\n\n{use}\n```")
    return "\n\n".join(parts) + "\n"


def _weights(info: ModelInfo, entry: WeightsEntry) -> str:
    recommended = " (recommended)" if entry is info.entries[0] and len(info.entries) > 1 else ""
    names = entry.categories
    file = entry.url + (" (a page that asks for a click: download it by hand)" if entry.by_hand else "")
    rows = {
        "licence": entry.licence,
        "source": entry.source,
        "file": file + (f", {entry.size / 1e6:.1f} MB" if entry.size else ""),
        "sha256": entry.sha256 + ("..." if 0 < len(entry.sha256) < 64 else "") or "not published",
        "classes": f"{len(names)}: {', '.join(names[:8])}{', ...' if len(names) > 8 else ''}",
        "preprocessing": _preprocessing(info, entry),
    }
    for data, values in entry.metrics.items():
        rows[f"published on {data}"] = ", ".join(f"{metric} {value:g}" for metric, value in values.items())
    if entry.notes:
        rows["notes"] = entry.notes
    return f"## Weights {entry.name}{recommended}\n\n{_table(rows)}"


def _table(rows: Mapping[str, str]) -> str:
    lines = (f"| {key} | {' '.join(value.replace('|', '/').split())} |" for key, value in rows.items())
    return "\n".join(["| | |", "|---|---|", *lines])


def _sentences(described: Any) -> str:
    """The first paragraph of a docstring."""
    return " ".join((inspect.getdoc(described) or "").split("\n\n")[0].replace("``", "`").split())


def _preprocessing(info: ModelInfo, entry: WeightsEntry) -> str:
    if info.task == "classification":
        step: Any = CropPreset(**entry.settings)
    else:
        with init.skip_init():  # other models know it themselves, without values in their parameters
            model: Any = info.build(info.categories_of(entry))
        step = with_fields(model.preset, entry.settings) if model.preset else getattr(model, "resize", None)
        if step is None:
            height, width = model.size
            return f"{_sentences(model.preprocess)} Input {width} x {height} pixels."
    values = {f.name: getattr(step, f.name) for f in fields(step)} if is_dataclass(step) else vars(step)
    settings = ", ".join(f"{key} {_number(value)}" for key, value in values.items())
    return f"{_sentences(type(step))} {settings}."


def _number(value: Any) -> str:
    if isinstance(value, (tuple, list)):
        return " / ".join(_number(v) for v in value)
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _compared(info: ModelInfo) -> str:
    """How the model was proven equal to its original."""
    with open(VERIFIED, encoding="utf-8", newline="") as file:
        known = {row["model"]: row["compared"] for row in csv.DictReader(file, delimiter="\t")}
    return known.get(info.name, "by the names, shapes and number of its parameters alone")
