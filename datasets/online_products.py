"""Stanford Online Products (Song et al. 2016): 120,053 images of 22,634 products of 12 kinds.

``Ebay_train.txt`` (the first 11,318 products) and ``Ebay_test.txt`` (the other 11,316) list
number, product, kind, path.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np

from ..vision.image import read_image
from ..vision.sample import Sample
from .cleaning import problem, report
from .dataset import CLASSIFICATION, Annotations, Dataset
from .files import Layout, header_size, read_lines

KINDS = (
    "bicycle", "cabinet", "chair", "coffee_maker", "fan", "kettle", "lamp", "mug", "sofa", "stapler", "table",
    "toaster",
)  # fmt: skip
_FILES = {"train": "Ebay_train.txt", "test": "Ebay_test.txt"}
_HEADER = "image_id class_id super_class_id path"


class OnlineProductsDataset(Dataset):
    """Images with the product's number as the class and its kind beside.

    - ``categories``: the numbers of the products of both splits, so that a label means the same in both.
    - ``kinds``: (n,) int64, indices into `KINDS`; of a sample ``extra["kind"]``.
    """

    format = "Online Products"

    def __init__(self, root: str | Path, split: str, *, strict: bool = False) -> None:
        self.root = Path(root)
        self.name, self.source = f"Online Products {split}", str(self.root / _FILES[split])
        self.tasks = (CLASSIFICATION,)
        lists = {s: _rows(self.root / f) for s, f in _FILES.items() if (self.root / f).is_file()}
        self.category_ids = tuple(sorted({product for rows in lists.values() for product, _, _ in rows}))
        self.categories = tuple(str(number) for number in self.category_ids)
        rows = [row for row in lists[split] if (self.root / row[2]).is_file()]
        there = {row[2] for row in rows}
        self.problems = [
            problem("missing image", str(self.root / row[2]), None, f"listed in {_FILES[split]}")
            for row in lists[split]
            if row[2] not in there
        ]
        label_of = {number: label for label, number in enumerate(self.category_ids)}
        self.labels = np.array([label_of[product] for product, _, _ in rows], np.int64)
        self.kinds = np.array([kind - 1 for _, kind, _ in rows], np.int64)
        self.paths = [path for _, _, path in rows]
        report(self.name, self.problems, strict)

    def __len__(self) -> int:
        return len(self.paths)

    def image_labels(self) -> np.ndarray:
        return self.labels

    def annotations(self, index: int) -> Annotations:
        path = self.root / self.paths[index]
        return Annotations(
            boxes=np.zeros((0, 4), np.float32),
            labels=np.zeros(0, np.int64),
            ignore=np.zeros(0, bool),
            size=header_size(path),
            image_id=self.paths[index],
            path=str(path),
            source=self.source,
            label=int(self.labels[index]),
        )

    def load(self, index: int) -> Sample:
        path = str(self.root / self.paths[index])
        return Sample(
            read_image(path),
            label=int(self.labels[index]),
            image_id=self.paths[index],
            source=path,
            extra={"kind": int(self.kinds[index])},
        )


def _rows(file: Path) -> list[tuple[int, int, str]]:
    """(product, kind, path) of each line after the header."""
    rows = []
    for at, line in enumerate(read_lines(file)[1:], 2):
        words = line.split()
        if len(words) != 4 or not all(w.isdigit() for w in words[:3]) or not 1 <= int(words[2]) <= len(KINDS):
            raise ValueError(f"{file}, line {at}: expected image, class, super class (1..12) and path, got {line!r}")
        rows.append((int(words[1]), int(words[2]), words[3]))
    return rows


def find(root: Path) -> Layout | None:
    """The folder of the lists or the one above it."""
    for folder in (root, root / "Stanford_Online_Products"):
        files = {s: folder / name for s, name in _FILES.items()}
        present = [s for s, file in files.items() if file.is_file() and read_lines(file)[:1] == [_HEADER]]
        if present:
            return Layout("Online Products", {s: partial(OnlineProductsDataset, folder, s) for s in present})
    return None
