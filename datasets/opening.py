"""`open`: recognise a data set's format from what lies in its folder."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from . import (
    ade20k,
    camvid,
    cityscapes,
    classification,
    coco,
    coco_panoptic,
    csv,
    cub,
    labelme,
    online_products,
    sbd,
    semantic,
    voc,
    yolo,
)
from .cleaning import log
from .dataset import Concatenation, Dataset
from .files import Layout, has_images, pick_split, sorted_folders, split_of


def _coco(root: Path) -> Layout | None:
    """COCO's objects, and as alternates ``semantic-SPLIT`` the label maps of its panoptic annotations."""
    layout, panoptic = coco.find(root), coco_panoptic.find(root)
    if layout is None or panoptic is None:
        return layout or panoptic
    layout.alternates = {**layout.alternates, **{f"semantic-{s}": o for s, o in panoptic.splits.items()}}
    return layout


# More specific formats first: a COCO set with a labels folder beside it opens as COCO.
FORMATS: tuple[Callable[[Path], Layout | None], ...] = (
    cityscapes.find,
    ade20k.find,
    camvid.find,
    sbd.find,
    cub.find,
    online_products.find,
    _coco,
    voc.find,
    yolo.find,
    labelme.find,
    csv.find,
    semantic.find,
    classification.find,
)

_LOOKED_FOR = """looked for
  COCO: *.json with images and annotations here, in annotations/ or in each of train/ valid/ test/
  VOC: Annotations/*.xml with JPEGImages/ (or images/), ImageSets/Main/*.txt; or *.xml beside the images
  YOLO: data.yaml; or images/ and labels/ with *.txt; or *.txt beside the images
  LabelMe: *.json with shapes beside the images
  CSV: *.csv with path, xmin, ymin, xmax, ymax, label
  semantic: images/ and masks/ (or labels/, annotations/, semantic/) with *.png
  class folders: one folder of images a class, with or without train/ val/ above
  Cityscapes, ADE20K, CamVid, SBD, CUB-200-2011, Stanford Online Products: as published"""


def open(path: str | Path, split: str | None = None, *, strict: bool = False) -> Dataset:
    """Open a data set of any known format; opening reads annotations, never pixels.

    - ``path``: a folder, or a COCO .json, data.yaml or .csv file; ``"PATH@SPLIT"`` names the split too.
    - ``split``: train, val, test or a name of the set; spellings such as valid or training are understood. None: all
      splits together, which is logged when there are several.
    - ``strict``: dirty annotations raise `DirtyDataError` instead of being handled by the rule of
      `chainsight.datasets.cleaning`.

    Raises FileNotFoundError when there is nothing at ``path``, ValueError when the split is missing (naming those that
    exist) or the layout is unknown (naming what was looked for and what lies there).

    >>> import tempfile, pathlib
    >>> from PIL import Image
    >>> root = pathlib.Path(tempfile.mkdtemp())
    >>> for name in ("cat", "dog"):
    ...     (root / name).mkdir()
    ...     Image.new("RGB", (8, 8)).save(root / name / "0.png")
    >>> open(root).categories
    ('cat', 'dog')
    """
    folder, named = parse(path)
    split = named if split is None else split
    layout = recognise(folder)
    if split is not None:
        return pick_split(layout, split, str(folder))(strict=strict)
    if not layout.splits:
        raise ValueError(f"{folder}: no split of this {layout.format} data set can be opened")
    parts = {name: opener(strict=strict) for name, opener in layout.splits.items()}
    if len(parts) == 1:
        return next(iter(parts.values()))
    counts = ", ".join(f"{name} ({len(part)})" for name, part in parts.items())
    log.warning("%s: no split named: all of %s opened together", folder, counts)
    return Concatenation(list(parts.values()))


def splits(path: str | Path) -> dict[str, Dataset]:
    """All splits of a data set by name; of ``"PATH@SPLIT"`` only that one."""
    folder, named = parse(path)
    layout = recognise(folder)
    if named is not None:
        return {split_of(named) or named: pick_split(layout, named, str(folder))(strict=False)}
    return {name: opener(strict=False) for name, opener in layout.splits.items()}


def parse(text: str | Path) -> tuple[Path, str | None]:
    """Split ``PATH@SPLIT``; a path that exists as it is wins, so that an @ in a folder's name does no harm.

    Raises FileNotFoundError naming what was looked for.
    """
    whole = Path(text).expanduser()
    if whole.exists():
        return whole, None
    head, at, tail = str(text).rpartition("@")
    path = Path(head).expanduser()
    if at and head and tail and path.exists():
        return path, tail
    near = path if at else whole
    parent = next((p for p in near.parents if p.is_dir()), None)
    there = "" if parent is None else f"; {parent} has: {_listing(parent)}"
    raise FileNotFoundError(f"{near}: no such file or folder{there}")


def recognise(path: Path) -> Layout:
    """The layout of a folder or an annotation file; ValueError when it is none that is known."""
    if path.is_file():
        return _recognise_file(path)
    folder, depth = path, 0
    while True:
        for find in FORMATS:
            if (layout := find(folder)) is not None:
                return layout
        inner = sorted_folders(folder)
        if len(inner) != 1 or depth == 3 or has_images(inner[0]):
            break
        folder, depth = inner[0], depth + 1  # archives often hold one folder in another
    raise ValueError(f"{path}: not a data set of a known layout; {_LOOKED_FOR}\nfound: {_listing(path)}")


def _recognise_file(path: Path) -> Layout:
    suffix = path.suffix.lower()
    if suffix == ".json" and coco.is_coco(path):
        name = split_of(path.stem) or split_of(path.parent.name) or path.stem
        return Layout("COCO", {name: partial(coco.COCODataset, path)})
    if suffix in (".yaml", ".yml"):
        if (layout := yolo.from_yaml(path)) is not None:
            return layout
        raise ValueError(f"{path}: expected a data.yaml with names and train, val or test")
    if suffix == ".csv":
        return csv.from_file(path)
    if suffix in (".zip", ".tar", ".gz", ".tgz"):
        raise ValueError(f"{path}: an archive; extract it and open the folder")
    raise ValueError(
        f"{path}: expected a folder, a COCO .json (with images and annotations), a data.yaml or a .csv file"
    )


def _listing(folder: Path) -> str:
    if not folder.is_dir():
        return str(folder)
    names = sorted(p.name + ("/" if p.is_dir() else "") for p in folder.iterdir())
    return ", ".join(names[:15]) + (f", ... ({len(names)} in all)" if len(names) > 15 else "") if names else "nothing"
