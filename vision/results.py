"""What models return: detections, label maps and classifications, as plain arrays with names beside them."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, overload

import cv2
import numpy as np
from PIL import Image

from . import boxes as box_ops
from .categories import label_of
from .draw import draw_detections, draw_segmentation
from .image import Source, read_image, write_image
from .masks import InstanceMasks, PixelMasks, encode_rle

_ROWS_SHOWN = 12
_SMALLEST_PICTURE, _LARGEST_IN_NOTEBOOK = 320, 1024


class _Picture:
    """What results with an image have in common: they can be drawn, saved and shown."""

    image: Source | None
    image_size: tuple[int, int]

    def draw(self, image: Source | None = None) -> np.ndarray:
        """The image (height, width, 3) uint8 RGB with the result drawn on it; the one given to ``predict`` by default.

        Raises ValueError when there is no image, or it has another size than the result's.
        """
        return self._paint(self._pixels(image))

    def save_image(self, path: str | os.PathLike[str], image: Source | None = None) -> None:
        """Draw the result and write it to ``path``, in the format of its extension, all or nothing.

        An image under 320 pixels is enlarged by a whole number first, so that labels can be read.
        """
        write_image(path, self._at_size(self._pixels(image), None))

    def _repr_png_(self) -> bytes | None:
        """The picture that a notebook shows; nothing when the image is not at hand."""
        try:
            pixels = self._pixels(None)
        except ValueError:
            return None
        file = io.BytesIO()
        Image.fromarray(self._at_size(pixels, _LARGEST_IN_NOTEBOOK)).save(file, "PNG")
        return file.getvalue()

    def _pixels(self, image: Source | None) -> np.ndarray:
        source = self.image if image is None else image
        if source is None:
            raise ValueError("this result has no image: pass the image to draw on")
        pixels = read_image(source)
        if pixels.shape[:2] != self.image_size:
            raise ValueError(
                f"expected an image of (height, width) = {self.image_size}, the size of the result, "
                f"got {pixels.shape[:2]}"
            )
        return pixels

    def _at_size(self, pixels: np.ndarray, largest: int | None) -> np.ndarray:
        height, width = self.image_size
        longest = max(height, width)
        if longest < _SMALLEST_PICTURE:
            factor = -(-_SMALLEST_PICTURE // longest)
            pixels = pixels.repeat(factor, 0).repeat(factor, 1)
        elif largest is not None and longest > largest:
            ratio = largest / longest
            pixels = cv2.resize(
                pixels, (max(1, round(width * ratio)), max(1, round(height * ratio))), interpolation=cv2.INTER_AREA
            )
        return self.resized(pixels.shape[:2])._paint(pixels)

    def _paint(self, pixels: np.ndarray) -> np.ndarray:
        raise NotImplementedError

    def resized(self, image_size: tuple[int, int]) -> _Picture:
        raise NotImplementedError


@dataclass(frozen=True)
class Detection:
    """One object of a :class:`Detections`, as iteration and integer indexing give it."""

    box: np.ndarray
    score: float
    label: int
    name: str
    category_id: int
    _masks: InstanceMasks | PixelMasks | None = None
    keypoints: np.ndarray | None = None

    @property
    def mask(self) -> np.ndarray | None:
        """(height, width) bool, pasted when asked for; None when the model makes no masks."""
        return None if self._masks is None else self._masks.binary(0)

    def __repr__(self) -> str:
        return f"Detection({self.name!r}, score={self.score:.3f}, box={[round(float(v), 1) for v in self.box]})"


@dataclass(eq=False, repr=False)
class Detections(_Picture):
    """The objects found in one image.

    - ``boxes``: (n, 4) float32 xyxy in pixels of the original image; ``scores``: (n,) float32.
    - ``labels``: (n,) int64, indices into ``categories``, a tuple of names.
    - ``image_size``: (height, width) of the original image.
    - ``category_ids``: the data set's own id of every category, or None when there are none but the indices.
    - ``masks``: instance masks; ``keypoints``: (n, k, 3) float32, x, y and score.
    - ``image``: the source given to ``predict``, for drawing. A reference: a path is read again when needed.

    ``found[i]`` is one object; a category's name, a slice, a bool mask or indices select objects in all fields
    together. Raises ValueError when fields disagree, a label is no index of ``categories``, or a number is not finite.

    >>> found = Detections([[1, 2, 30, 40]], [0.9], [1], ("cat", "dog"), (60, 80), category_ids=(17, 18))
    >>> found
    Detections: 1 object in an image of 80 x 60 pixels
      dog  0.900  x1 1.0, y1 2.0, x2 30.0, y2 40.0
    >>> found.to_coco(7)
    [{'image_id': 7, 'category_id': 18, 'bbox': [1.0, 2.0, 29.0, 38.0], 'score': 0.8999999761581421}]
    >>> len(found["dog"]), len(found["cat"]), len(found[found.scores > 0.95])
    (1, 0, 0)
    """

    boxes: np.ndarray
    scores: np.ndarray
    labels: np.ndarray
    categories: tuple[str, ...]
    image_size: tuple[int, int]
    category_ids: tuple[int, ...] | None = None
    masks: InstanceMasks | PixelMasks | None = None
    keypoints: np.ndarray | None = None
    image: Source | None = None

    def __post_init__(self) -> None:
        boxes, labels = np.asarray(self.boxes, np.float32), np.asarray(self.labels)
        if boxes.size and (boxes.ndim != 2 or boxes.shape[1] != 4):
            raise ValueError(f"expected boxes (n, 4) as x1, y1, x2, y2, got {boxes.shape}")
        if labels.size and labels.dtype.kind not in "iu":
            raise TypeError(f"expected labels of an integer type, got {labels.dtype}")
        if isinstance(self.categories, str):
            raise TypeError(f"expected categories as a tuple of names, got {self.categories!r}")
        self.boxes, self.labels = boxes.reshape(-1, 4), labels.astype(np.int64, copy=False)
        self.scores, self.categories = np.asarray(self.scores, np.float32), tuple(self.categories)
        height, width = self.image_size
        self.image_size = int(height), int(width)
        if min(self.image_size) < 1:
            raise ValueError(f"expected an image_size (height, width) of at least one pixel, got {self.image_size}")
        n = len(self.boxes)
        if self.keypoints is not None:
            self.keypoints = np.asarray(self.keypoints, np.float32)
            if self.keypoints.ndim != 3 or self.keypoints.shape[::2] != (n, 3):
                raise ValueError(f"expected keypoints ({n}, k, 3), got {self.keypoints.shape}")
        if self.scores.shape != (n,) or self.labels.shape != (n,) or (self.masks is not None and len(self.masks) != n):
            raise ValueError(
                f"expected {n} scores, labels and masks, one for each box, got scores {self.scores.shape}, "
                f"labels {self.labels.shape}" + ("" if self.masks is None else f", {len(self.masks)} masks")
            )
        if self.category_ids is not None:
            self.category_ids = tuple(self.category_ids)
            if len(self.category_ids) != len(self.categories):
                raise ValueError(
                    f"expected one category id for each of {len(self.categories)} categories, "
                    f"got {len(self.category_ids)}"
                )
        if n and not 0 <= self.labels.min() <= self.labels.max() < len(self.categories):
            raise ValueError(
                f"expected labels from 0 to {len(self.categories) - 1}, got {self.labels.min()} to {self.labels.max()}"
            )
        if not (np.isfinite(self.boxes).all() and np.isfinite(self.scores).all()):
            raise ValueError(
                "expected finite boxes and scores, got NaN or infinity; are the weights or the image broken?"
            )

    def __len__(self) -> int:
        return len(self.boxes)

    def __iter__(self) -> Iterator[Detection]:
        return (self[i] for i in range(len(self)))

    @overload
    def __getitem__(self, index: int) -> Detection: ...

    @overload
    def __getitem__(self, index: str | slice | np.ndarray | Sequence[int] | Sequence[bool]) -> Detections: ...

    def __getitem__(self, index: Any) -> Detection | Detections:
        if isinstance(index, (int, np.integer)):
            if not -len(self) <= index < len(self):
                raise IndexError(f"there is no object {index} among {len(self)}")
            i = int(index) % len(self)
            label = int(self.labels[i])
            return Detection(
                self.boxes[i],
                float(self.scores[i]),
                label,
                self.categories[label],
                self._ids[label],
                None if self.masks is None else self.masks[i : i + 1],
                None if self.keypoints is None else self.keypoints[i],
            )
        if isinstance(index, str):
            index = self.labels == label_of(index, self.categories)
        elif not isinstance(index, slice):
            index = np.asarray(index)
            if index.size == 0 and index.dtype != bool:
                index = index.astype(np.int64)
            if index.ndim != 1 or index.dtype.kind not in "biu" or (index.dtype == bool and len(index) != len(self)):
                raise IndexError(
                    f"expected an integer, a slice, indices or a bool for each of {len(self)} objects, "
                    f"got {index.dtype} {index.shape}"
                )
        return replace(
            self,
            boxes=self.boxes[index],
            scores=self.scores[index],
            labels=self.labels[index],
            masks=None if self.masks is None else self.masks[index],
            keypoints=None if self.keypoints is None else self.keypoints[index],
        )

    @property
    def names(self) -> list[str]:
        """The category name of every object."""
        return [self.categories[label] for label in self.labels.tolist()]

    @property
    def _ids(self) -> Sequence[int]:
        return range(len(self.categories)) if self.category_ids is None else self.category_ids

    def to_coco(self, image_id: int | str) -> list[dict[str, Any]]:
        """COCO's result records: ``bbox`` as x, y, width, height, and ``category_id`` as the data set numbers it.

        Without ``category_ids`` the label itself is the id. Masks become ``segmentation`` (compressed run lengths),
        keypoints the flat list x1, y1, s1, ...
        """
        records = []
        corners = box_ops.xyxy_to_xywh(self.boxes.astype(np.float64))
        for i, (box, score, label) in enumerate(zip(corners.tolist(), self.scores.tolist(), self.labels.tolist())):
            record = {"image_id": image_id, "category_id": self._ids[label], "bbox": box, "score": score}
            if self.masks is not None:
                (record["segmentation"],) = self.masks[i : i + 1].to_rle()
            if self.keypoints is not None:
                record["keypoints"] = self.keypoints[i].ravel().tolist()
            records.append(record)
        return records

    def to_dict(self) -> dict[str, Any]:
        """Everything but the image in JSON's types: ``image_size`` and a list of ``objects``."""
        objects = []
        for i, record in enumerate(self.to_coco(0)):
            label = int(self.labels[i])
            objects.append(
                {
                    "name": self.categories[label],
                    "label": label,
                    "category_id": record["category_id"],
                    "score": record["score"],
                    "box": self.boxes[i].tolist(),
                    **({"mask": record["segmentation"]} if self.masks is not None else {}),
                    **({"keypoints": self.keypoints[i].tolist()} if self.keypoints is not None else {}),
                }
            )
        return {"image_size": list(self.image_size), "objects": objects}

    def __repr__(self) -> str:
        height, width = self.image_size
        count = f"{len(self)} object{'' if len(self) == 1 else 's'}"
        lines = [f"Detections: {count} in an image of {width} x {height} pixels"]
        shown = self[:_ROWS_SHOWN]
        space = max((len(name) for name in shown.names), default=0)
        for name, score, box in zip(shown.names, shown.scores, shown.boxes):
            x1, y1, x2, y2 = box.tolist()
            lines.append(f"  {name:<{space}}  {score:.3f}  x1 {x1:.1f}, y1 {y1:.1f}, x2 {x2:.1f}, y2 {y2:.1f}")
        if len(self) > _ROWS_SHOWN:
            lines.append(f"  and {len(self) - _ROWS_SHOWN} more")
        return "\n".join(lines)

    def _paint(self, pixels: np.ndarray) -> np.ndarray:
        return draw_detections(pixels, self)

    def resized(self, image_size: tuple[int, int]) -> Detections:
        """The same objects on the same image at another size (height, width), without the image.

        >>> Detections([[1, 2, 3, 4]], [0.5], [0], ("cat",), (10, 10)).resized((20, 30)).boxes
        array([[3., 4., 9., 8.]], dtype=float32)
        """
        size = (int(image_size[0]), int(image_size[1]))
        if size == self.image_size:
            return self
        x, y = size[1] / self.image_size[1], size[0] / self.image_size[0]
        return replace(
            self,
            boxes=box_ops.scale(self.boxes, self.image_size, size),
            image_size=size,
            masks=None if self.masks is None else self.masks.resized(size),
            keypoints=None if self.keypoints is None else self.keypoints * np.array([x, y, 1], np.float32),
            image=None,
        )


@dataclass(eq=False, repr=False)
class SegmentationMap(_Picture):
    """The class of every pixel of one image.

    - ``labels``: (height, width) integers at the size of the original image, indices into ``categories``; other values
      (255, say) mean no class.
    - ``class_probabilities``: (k, h, w) float32 at the model's own output size, or None; see :meth:`probability`.
    - ``image``: the source given to ``predict``, for drawing.

    >>> found = SegmentationMap(np.array([[0, 1], [1, 1]]), ("background", "cat"))
    >>> found
    SegmentationMap: 2 x 2 pixels
      cat         75.0%
      background  25.0%
    >>> found.mask("cat").sum().item()
    3
    """

    labels: np.ndarray
    categories: tuple[str, ...]
    class_probabilities: np.ndarray | None = None
    image: Source | None = None

    def __post_init__(self) -> None:
        self.labels, self.categories = np.asarray(self.labels), tuple(self.categories)
        if self.labels.ndim != 2 or self.labels.dtype.kind not in "iu":
            raise ValueError(
                f"expected a label map (height, width) of integers, got {self.labels.shape} {self.labels.dtype}"
            )
        found = self.class_probabilities
        if found is not None and (found.ndim != 3 or len(found) != len(self.categories)):
            raise ValueError(f"expected probabilities ({len(self.categories)}, h, w), got {found.shape}")
        self.image_size = (self.labels.shape[0], self.labels.shape[1])

    def mask(self, category: str | int) -> np.ndarray:
        """Where ``category`` (a name or an index) is: (height, width) bool."""
        return np.asarray(self.labels == self._index(category))

    def probability(self, category: str | int) -> np.ndarray:
        """Probability of ``category`` (a name or an index) in every pixel: (height, width) float32.

        Resized bilinearly from the model's output. Raises ValueError when the model kept no probabilities.
        """
        if self.class_probabilities is None:
            raise ValueError("this label map was made without class probabilities")
        values = np.asarray(self.class_probabilities[self._index(category)], np.float32)
        height, width = self.image_size
        return np.asarray(cv2.resize(values, (width, height), interpolation=cv2.INTER_LINEAR))

    def areas(self) -> dict[str, int]:
        """Pixels of every category that occurs, the largest first."""
        known = self.labels[(self.labels >= 0) & (self.labels < len(self.categories))]
        counts = np.bincount(known, minlength=len(self.categories))
        return {self.categories[k]: int(counts[k]) for k in np.argsort(-counts, kind="stable") if counts[k]}

    def to_dict(self) -> dict[str, Any]:
        """Everything but the image and the probabilities in JSON's types: areas and run lengths by category."""
        areas = self.areas()
        regions = [
            {"name": name, "label": self._index(name), "area": area, "mask": encode_rle(self.mask(name))}
            for name, area in areas.items()
        ]
        return {"image_size": list(self.image_size), "regions": regions}

    def _index(self, category: str | int) -> int:
        if isinstance(category, str):
            return label_of(category, self.categories)
        if not 0 <= category < len(self.categories):
            raise ValueError(f"expected a label from 0 to {len(self.categories) - 1}, got {category}")
        return category

    def __repr__(self) -> str:
        height, width = self.image_size
        areas = list(self.areas().items())
        space = max((len(name) for name, _ in areas[:_ROWS_SHOWN]), default=0)
        lines = [f"SegmentationMap: {width} x {height} pixels"]
        lines += [f"  {name:<{space}}  {100 * n / (height * width):.1f}%" for name, n in areas[:_ROWS_SHOWN]]
        if len(areas) > _ROWS_SHOWN:
            lines.append(f"  and {len(areas) - _ROWS_SHOWN} more")
        return "\n".join(lines)

    def _paint(self, pixels: np.ndarray) -> np.ndarray:
        return draw_segmentation(pixels, self.labels, self.categories)

    def resized(self, image_size: tuple[int, int]) -> SegmentationMap:
        """The labels for the same image at another size (height, width), without the image."""
        rows, columns = (np.arange(to) * side // to for side, to in zip(self.image_size, image_size))
        return SegmentationMap(self.labels[rows[:, None], columns], self.categories)


@dataclass(eq=False, repr=False)
class Classification:
    """The classes of one whole image, with their probabilities.

    - ``probabilities``: (k,) float32, one for each of ``categories``.

    >>> found = Classification(np.array([0.1, 0.7, 0.2]), ("cat", "dog", "fox"))
    >>> found.name, found.top(2)
    ('dog', [('dog', 0.699999988079071), ('fox', 0.20000000298023224)])
    >>> found
    Classification: 3 classes
      dog  70.0%
      fox  20.0%
      cat  10.0%
    """

    probabilities: np.ndarray
    categories: tuple[str, ...]
    image: Source | None = None

    def __post_init__(self) -> None:
        self.probabilities, self.categories = np.asarray(self.probabilities, np.float32), tuple(self.categories)
        if self.probabilities.shape != (len(self.categories),) or not len(self.categories):
            raise ValueError(
                f"expected one probability for each of {len(self.categories)} categories, "
                f"got {self.probabilities.shape}"
            )
        if not np.isfinite(self.probabilities).all():
            raise ValueError("expected finite probabilities, got NaN or infinity; are the weights or the image broken?")

    @property
    def label(self) -> int:
        """Index of the most probable category."""
        return int(self.probabilities.argmax())

    @property
    def name(self) -> str:
        """Name of the most probable category."""
        return self.categories[self.label]

    @property
    def score(self) -> float:
        """Probability of the most probable category."""
        return float(self.probabilities[self.label])

    def top(self, k: int = 5) -> list[tuple[str, float]]:
        """The ``k`` most probable categories as (name, probability), the best first."""
        order = np.argsort(-self.probabilities, kind="stable")[:k]
        return [(self.categories[i], float(self.probabilities[i])) for i in order]

    def to_dict(self, k: int = 5) -> dict[str, Any]:
        """The ``k`` most probable categories in JSON's types."""
        return {"classes": [{"name": name, "probability": probability} for name, probability in self.top(k)]}

    def __repr__(self) -> str:
        best = self.top()
        space = max(len(name) for name, _ in best)
        count = len(self.categories)
        lines = [f"Classification: {count} class{'' if count == 1 else 'es'}"]
        return "\n".join(lines + [f"  {name:<{space}}  {100 * probability:.1f}%" for name, probability in best])
