"""Images without annotations, such as the test sets of Cityscapes and ADE20K whose label maps are kept secret."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ..vision.image import read_image
from ..vision.sample import Sample
from .dataset import Annotations, Dataset
from .files import header_size


class ImageDataset(Dataset):
    """The images of ``paths`` and nothing else; ``tasks`` is empty, ``categories`` are those a model shall find."""

    format = "images"

    def __init__(
        self, paths: list[Path], *, name: str, source: str, categories: tuple[str, ...] = (), strict: bool = False
    ) -> None:
        self.paths, self.name, self.source, self.categories = paths, name, source, categories
        self.tasks = ()

    def __len__(self) -> int:
        return len(self.paths)

    def annotations(self, index: int) -> Annotations:
        path = self.paths[index]
        return Annotations(
            boxes=np.zeros((0, 4), np.float32),
            labels=np.zeros(0, np.int64),
            ignore=np.zeros(0, bool),
            size=header_size(path),
            image_id=path.stem,
            path=str(path),
            source=str(path),
        )

    def load(self, index: int) -> Sample:
        path = self.paths[index]
        return Sample(read_image(path), image_id=path.stem, source=str(path))
