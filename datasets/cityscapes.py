"""Cityscapes (Cordts et al. 2016): street scenes with label maps of 19 scored classes.

``leftImg8bit/SPLIT/CITY/*_leftImg8bit.png`` with ``gtFine/SPLIT/CITY/*_gtFine_labelIds.png``, or ``gtCoarse`` likewise.
The data may not be passed on: download it from https://www.cityscapes-dataset.com.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from ..vision.label_sets import CITYSCAPES
from .cleaning import Problem, problem
from .files import Layout, ordered_splits, sorted_folders, subfolder
from .images import ImageDataset
from .semantic import LabelScheme, SemanticDataset

NAMES = tuple(c.name for c in CITYSCAPES)


def scheme() -> LabelScheme:
    """The 19 scored classes; all other ids, licence plates (255 in 8 bits) among them, are ignored.

    >>> scheme().values[:4], scheme().names[6]
    ((7, 8, 11, 12), 'traffic light')
    """
    values = tuple(c.value for c in CITYSCAPES)
    return LabelScheme(NAMES, values, ignored=frozenset(range(256)) - frozenset(values))


def find(root: Path) -> Layout | None:
    """Splits of ``gtFine``, and as alternates ``coarse-SPLIT`` of ``gtCoarse`` and the images of ``test``."""
    images = subfolder(root, ("leftImg8bit",))
    if images is None:
        return None
    layout = Layout("Cityscapes", {})
    splits: dict[str, partial[SemanticDataset | ImageDataset]] = {}
    alternates: dict[str, partial[SemanticDataset | ImageDataset]] = {}
    for kind, prefix, table in (("gtFine", "", splits), ("gtCoarse", "coarse-", alternates)):
        maps = subfolder(root, (kind,))
        for folder in [] if maps is None else sorted_folders(maps):
            # The maps of the test set hold nothing to score: it is opened as images.
            if folder.name != "test" and next(folder.glob(f"*/*_{kind}_labelIds.png"), None):
                table[prefix + folder.name] = partial(_open, images, folder, kind, f"Cityscapes {prefix}{folder.name}")
    if (test := images / "test").is_dir():
        alternates["test"] = partial(_test, test)
    layout.splits = {s: splits[s] for s in ordered_splits(splits)}
    layout.alternates = alternates
    return layout if layout.splits or alternates else None


def _open(images: Path, maps: Path, kind: str, name: str, strict: bool = False) -> SemanticDataset:
    problems: list[Problem] = []
    pairs = []
    for label_map in sorted(maps.glob(f"*/*_{kind}_labelIds.png")):
        stem = label_map.name.removesuffix(f"_{kind}_labelIds.png")
        image = images / maps.name / label_map.parent.name / f"{stem}_leftImg8bit.png"
        if image.is_file():
            pairs.append((image, label_map))
        else:
            problems.append(problem("missing image", str(image), None, f"no image for {label_map.name}"))
    return SemanticDataset(pairs, scheme(), name=name, source=str(maps), problems=problems, strict=strict)


def _test(folder: Path, strict: bool = False) -> ImageDataset:
    paths = sorted(folder.glob("*/*_leftImg8bit.png"))
    return ImageDataset(paths, name="Cityscapes test", source=str(folder), categories=NAMES, strict=strict)
