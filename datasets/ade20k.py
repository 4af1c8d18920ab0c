"""ADE20K of the scene parsing challenge 2016 (Zhou et al. 2017): 150 classes, 20,210 and 2,000 images.

``images/training/*.jpg`` with ``annotations/training/*.png``, ``validation`` likewise; ``release_test/testing/*.jpg``
beside them. Value 0 of a label map is "other objects": not annotated.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from ..vision.label_sets import ADE20K
from .cleaning import Problem
from .files import Layout, images_in, sorted_files
from .images import ImageDataset
from .semantic import LabelScheme, SemanticDataset, pair_files

NAMES = tuple(c.name for c in ADE20K)


def scheme() -> LabelScheme:
    """The 150 classes with values 1..150; 0 is ignored.

    >>> len(scheme().names), scheme().names[:3], scheme().values[0]
    (150, ('wall', 'building', 'sky'), 1)
    """
    return LabelScheme(NAMES, tuple(c.value for c in ADE20K), ignored=frozenset({0, 255}))


def find(root: Path) -> Layout | None:
    """The challenge's folder ``ADEChallengeData2016`` or the one above, with ``release_test`` as alternate "test"."""
    inner = root / "ADEChallengeData2016"
    data = inner if inner.is_dir() else root
    named = data.name == "ADEChallengeData2016" or (data / "objectInfo150.txt").is_file()
    layout = Layout("ADE20K", {})
    for split, word in (("train", "training"), ("val", "validation")):
        if named and (data / "images" / word).is_dir() and (data / "annotations" / word).is_dir():
            layout.splits = {**layout.splits, split: partial(_open, data, word, f"ADE20K {split}")}
    for test in (root / "release_test" / "testing", data.parent / "release_test" / "testing"):
        if test.is_dir():
            layout.alternates = {"test": partial(_test, test)}
    return layout if layout.splits or layout.alternates else None


def _open(data: Path, word: str, name: str, strict: bool = False) -> SemanticDataset:
    problems: list[Problem] = []
    maps = data / "annotations" / word
    pairs = pair_files(images_in(data / "images" / word), sorted_files(maps, {".png"}), problems)
    return SemanticDataset(pairs, scheme(), name=name, source=str(maps), problems=problems, strict=strict)


def _test(folder: Path, strict: bool = False) -> ImageDataset:
    return ImageDataset(images_in(folder), name="ADE20K test", source=str(folder), categories=NAMES, strict=strict)
