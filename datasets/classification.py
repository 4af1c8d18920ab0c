"""Classification: one folder of images a class, with or without split folders above."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np

from ..vision.image import read_image
from ..vision.sample import Sample
from .cleaning import log, problem, report
from .dataset import CLASSIFICATION, Annotations, Dataset
from .files import IMAGE_FOLDERS, IMAGE_SUFFIXES, Layout, has_images, header_size, sorted_folders, split_folders


class ClassificationDataset(Dataset):
    """Images of ``root/<class>/...``; the class is the folder's name.

    ``categories``: class names (None: the folders, sorted). A folder that is none of them is reported and left out.
    """

    format = "class folders"

    def __init__(
        self, root: str | Path, categories: list[str] | None = None, *, name: str | None = None, strict: bool = False
    ) -> None:
        folder = Path(root)
        present = [f.name for f in sorted_folders(folder)]
        self.name, self.source, self.tasks = name or folder.name, str(folder), (CLASSIFICATION,)
        self.categories = tuple(present if categories is None else categories)
        self.problems = [
            problem("unknown class", str(folder / n), None, f"folder {n!r} is no class")
            for n in present
            if n not in self.categories
        ]
        self.paths: list[str] = []
        labels: list[int] = []
        for label, category in enumerate(self.categories):
            if (folder / category).is_dir():
                files = (p for p in sorted((folder / category).rglob("*")) if not p.name.startswith("."))
                images = [str(p) for p in files if p.suffix.lower() in IMAGE_SUFFIXES and p.is_file()]
                self.paths += images
                labels += [label] * len(images)
        self.labels = np.array(labels, np.int64)
        report(self.name, self.problems, strict)

    def __len__(self) -> int:
        return len(self.paths)

    def annotations(self, index: int) -> Annotations:
        path = self.paths[index]
        return Annotations(
            boxes=np.zeros((0, 4), np.float32),
            labels=np.zeros(0, np.int64),
            ignore=np.zeros(0, bool),
            size=header_size(path),
            image_id=str(Path(path).relative_to(self.source)),
            path=path,
            source=path,
            label=int(self.labels[index]),
        )

    def load(self, index: int) -> Sample:
        path = self.paths[index]
        identity = str(Path(path).relative_to(self.source))
        return Sample(read_image(path), label=int(self.labels[index]), image_id=identity, source=path)

    def image_labels(self) -> np.ndarray:
        return self.labels

    def histogram(self) -> np.ndarray:
        return np.bincount(self.labels, minlength=len(self.categories)).astype(np.int64)


def _classes(folder: Path) -> list[str]:
    reserved = {n.lower() for n in IMAGE_FOLDERS} | {"masks", "labels", "annotations"}
    return [f.name for f in sorted_folders(folder) if has_images(f) and f.name.lower() not in reserved]


def find(root: Path) -> Layout | None:
    """Class folders in each split folder, or in ``root``; all splits have the classes of all.

    Raises ValueError where a folder of images with a split's name (a class "train"?) lies beside class folders.
    """
    named = {folder.name for folder in split_folders(root).values()}
    beside = [name for name in _classes(root) if name not in named]
    classes = {split: (folder, found) for split, folder in split_folders(root).items() if (found := _classes(folder))}
    if classes:
        if beside:
            splits = ", ".join(folder.name for folder, _ in classes.values())
            log.warning("%s: %s taken for splits, images of %s left out", root, splits, ", ".join(beside))
        union = sorted({name for _, found in classes.values() for name in found})
        return Layout(
            "class folders",
            {
                s: partial(ClassificationDataset, folder, union, name=f"{root.name}@{s}")
                for s, (folder, _) in classes.items()
            },
        )
    found = _classes(root)
    if beside and (unclear := sorted(named & set(found))):
        raise ValueError(
            f"{root}: {', '.join(unclear)} could be a class like {', '.join(beside[:5])}, or a split without classes: "
            "rename it, or put the class folders into train/ and val/"
        )
    if len(found) > 1 and not named:
        return Layout("class folders", {"all": partial(ClassificationDataset, root, found, name=root.name)})
    return None
