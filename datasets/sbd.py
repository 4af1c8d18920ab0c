"""Semantic Boundaries Dataset (Hariharan et al. 2011): instance masks of VOC's 20 classes on 11,355 images.

``img/NAME.jpg``, ``cls/NAME.mat``, ``inst/NAME.mat``, ``train.txt``, ``val.txt``. The published figures use another
split, without VOC 2012's validation images in training (``train_noval.txt``, or ``train_voc2012.txt`` as ChainerCV
calls it): ``train_voc2012`` has these, ``val_voc2012`` all others.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np

from .files import Layout, read_lines
from .matlab import read_mat
from .voc import VOCInstanceDataset

_VOC_LISTS = ("train_voc2012.txt", "train_noval.txt")


class SBDDataset(VOCInstanceDataset):
    """Instance masks from ``inst`` with the classes of ``cls``; boxes are the extents of the masks."""

    format = "SBD"
    image_folder = "img"

    def maps(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        name = f"{self.names[index]}.mat"
        objects = _segmentation(self.root / "inst" / name, "GTinst")
        return objects, _segmentation(self.root / "cls" / name, "GTcls")

    def map_file(self, index: int) -> Path:
        return self.root / "inst" / f"{self.names[index]}.mat"


def _segmentation(path: Path, name: str) -> np.ndarray:
    """The label map in the field ``Segmentation`` of the structure ``name``."""
    value = read_mat(path).get(name)
    if not isinstance(value, list) or not value:
        raise ValueError(f"{path}: expected a structure {name!r}")
    found = value[0].get("Segmentation")
    if not isinstance(found, np.ndarray) or found.ndim != 2:
        raise ValueError(f"{path}: expected a label map {name}.Segmentation")
    return found


def find(root: Path) -> Layout | None:
    """The folder with ``cls``, ``inst`` and ``img``, or one of those above it in the archive."""
    for folder in (root, root / "dataset", root / "benchmark_RELEASE" / "dataset"):
        if all((folder / part).is_dir() for part in ("cls", "inst", "img")):
            break
    else:
        return None
    lists = {s: read_lines(file) for s in ("train", "val") if (file := folder / f"{s}.txt").is_file()}
    every = sorted({name for names in lists.values() for name in names})
    more = {"trainval": every} if len(lists) == 2 else {}
    for place in (folder / name for name in _VOC_LISTS):
        if place.is_file():
            train = read_lines(place)
            more |= {"train_voc2012": train, "val_voc2012": sorted(set(every) - set(train)), "trainval_voc2012": every}
            break
    openers = {s: partial(SBDDataset, folder, n, name=f"SBD {s}") for s, n in {**lists, **more}.items()}
    return Layout("SBD", {s: openers[s] for s in lists}, {s: openers[s] for s in more}) if lists else None
