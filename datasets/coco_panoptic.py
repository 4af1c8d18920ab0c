"""COCO's panoptic annotations (Kirillov et al. 2019) as label maps of 133 classes.

``annotations/panoptic_SPLIT.json`` beside the folder of the same name with PNG files, in which a pixel's segment is
``R + 256 G + 65536 B``; ``segments_info`` names the category of each. Segment 0 is not annotated.
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from .cleaning import Problem, problem
from .coco import find_images
from .files import Layout, ordered_splits, sorted_files, split_of
from .semantic import IGNORE, LabelScheme, SemanticDataset


class PanopticDataset(SemanticDataset):
    """Label maps made of the segments' categories; ``categories`` in the file's order."""

    format = "COCO panoptic"

    def __init__(self, path: str | Path, *, name: str | None = None, strict: bool = False) -> None:
        path = Path(path)
        try:
            content: dict[str, Any] = json.loads(path.read_text("utf-8-sig"))
            ids = [int(c["id"]) for c in content["categories"]]
            names = [str(c["name"]) for c in content["categories"]]
            files = {image["id"]: str(image["file_name"]) for image in content["images"]}
            entries = [
                (a["image_id"], str(a["file_name"]), {int(s["id"]): int(s["category_id"]) for s in a["segments_info"]})
                for a in content["annotations"]
            ]
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{path}: expected COCO's panoptic annotations: {error!r}") from error
        if len(names) > IGNORE:
            raise ValueError(f"{path}: expected at most {IGNORE} categories, got {len(names)}")
        label_of = {number: label for label, number in enumerate(ids)}
        images = find_images(path, list(files.values()))
        problems: list[Problem] = []
        pairs = []
        self.segments: list[dict[int, int]] = []
        for image_id, file, segments in entries:
            image, label_map = images / files.get(image_id, ""), path.with_suffix("") / file
            if image_id not in files or not image.is_file() or not label_map.is_file():
                lost = label_map if image.is_file() else image
                problems.append(problem("missing image", str(lost), None, f"image id {image_id}"))
                continue
            if unknown := sorted(set(segments.values()) - set(label_of)):
                raise ValueError(f"{path}: image id {image_id}: unknown categories {unknown[:5]}")
            pairs.append((image, label_map))
            self.segments.append({segment: label_of[category] for segment, category in segments.items()})
        scheme = LabelScheme(tuple(names), tuple(ids))
        super().__init__(pairs, scheme, name=name or path.stem, source=str(path), problems=problems, strict=strict)

    def label_map(self, index: int) -> np.ndarray:
        path = self.pairs[index][1]
        try:
            with Image.open(path) as image:
                colors = np.asarray(image.convert("RGB"), np.int32)
        except (OSError, SyntaxError) as error:
            raise ValueError(f"{path}: cannot read the label map: {error}") from error
        numbers = colors @ np.array([1, 1 << 8, 1 << 16], np.int32)
        present, inverse = np.unique(numbers, return_inverse=True)
        labels = np.array([self.segments[index].get(int(n), IGNORE) for n in present], np.uint8)
        return labels[inverse].reshape(numbers.shape)


def find(root: Path) -> Layout | None:
    """``panoptic_*.json`` with a folder of the same name, in ``annotations`` or ``root``; one for each split."""
    splits: dict[str, partial[PanopticDataset]] = {}
    for folder in (root / "annotations", root):
        for file in sorted_files(folder, {".json"}) if folder.is_dir() else []:
            if file.name.startswith("panoptic") and file.with_suffix("").is_dir():
                split = split_of(file.stem) or file.stem
                splits.setdefault(split, partial(PanopticDataset, file, name=f"COCO panoptic {split}"))
    return Layout("COCO panoptic", {s: splits[s] for s in ordered_splits(splits)}) if splits else None
