"""One annotated image: the type that data sets yield, transforms map and training consumes."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np


@dataclass
class Sample:
    """An image with everything that may be annotated on it; absent annotations are None.

    - ``image``: (height, width, 3) uint8, RGB.
    - ``boxes``: (n, 4) float32, xyxy in pixels of ``image``; (0, 4) when the image has no object.
    - ``labels``: (n,) int64, indices into the data set's ``categories``.
    - ``ignore``: (n,) bool, objects that neither training nor scoring counts (COCO crowds, VOC difficult).
    - ``masks``: (n, height, width) bool, instance masks.
    - ``keypoints``: (n, k, 3) float32, x and y in pixels and visibility 0 (absent), 1 (hidden) or 2 (visible).
    - ``semantic``: (height, width) uint8 or int32 label map, 255 where nothing is annotated.
    - ``label``: the class of the whole image, for classification.
    - ``image_id``: the data set's own id; ``source``: the file or recipe the image came from, for error messages.
    - ``extra``: whatever else a format carries (COCO areas, annotation ids).

    Raises ValueError naming the source when two fields disagree about the number of objects or the image size.

    >>> sample = Sample(np.zeros((4, 6, 3), np.uint8), boxes=np.array([[0, 0, 2, 2]]), labels=np.array([1]))
    >>> len(sample), sample.boxes.dtype, sample.size
    (1, dtype('float32'), (4, 6))
    """

    image: np.ndarray
    boxes: np.ndarray | None = None
    labels: np.ndarray | None = None
    ignore: np.ndarray | None = None
    masks: np.ndarray | None = None
    keypoints: np.ndarray | None = None
    semantic: np.ndarray | None = None
    label: int | None = None
    image_id: int | str | None = None
    source: str = ""
    extra: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        height, width = self.image.shape[:2]
        if self.image.shape != (height, width, 3) or self.image.dtype != np.uint8:
            raise ValueError(
                f"{self._where}expected an image of shape (height, width, 3) and dtype uint8, "
                f"got {self.image.shape} {self.image.dtype}"
            )
        if self.boxes is not None:
            self.boxes = np.asarray(self.boxes, np.float32).reshape(-1, 4)
            n = len(self.boxes)
            self.labels = np.zeros(n, np.int64) if self.labels is None else np.asarray(self.labels, np.int64)
            self.ignore = np.zeros(n, bool) if self.ignore is None else np.asarray(self.ignore, bool)
            for name in ("labels", "ignore", "masks", "keypoints"):
                value = getattr(self, name)
                if value is not None and len(value) != n:
                    raise ValueError(f"{self._where}expected {n} {name}, one for each box, got {len(value)}")
        if self.masks is not None and self.masks.shape[1:] != (height, width):
            raise ValueError(
                f"{self._where}expected masks of the image's size {height, width}, got {self.masks.shape[1:]}"
            )
        if self.semantic is not None and self.semantic.shape != (height, width):
            raise ValueError(
                f"{self._where}expected a label map of the image's size {height, width}, got {self.semantic.shape}"
            )

    @property
    def _where(self) -> str:
        return f"{self.source or self.image_id}: " if self.source or self.image_id is not None else ""

    @property
    def size(self) -> tuple[int, int]:
        """(height, width) of the image in pixels."""
        return self.image.shape[0], self.image.shape[1]

    def __len__(self) -> int:
        return 0 if self.boxes is None else len(self.boxes)

    def select(self, keep: np.ndarray) -> Sample:
        """The sample with only the objects that ``keep`` (bool mask or indices) names, in that order."""
        fields = {n: getattr(self, n) for n in ("boxes", "labels", "ignore", "masks", "keypoints")}
        return replace(self, **{n: v[keep] for n, v in fields.items() if v is not None})
