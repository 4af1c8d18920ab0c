"""What every model of the zoo can do: predict on photos, and say what it is."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from numbers import Real
from pathlib import Path
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary

import cv2
import numpy as np
from PIL import Image

from ..core import Tensor, kernels, no_grad
from ..core import functions as F
from ..core.kernels import threads
from ..core.layers import BatchNorm2d, Module
from ..core.plan import planned
from ..weights.entry import WeightsEntry
from ..weights.readers import read as read_arrays
from ..weights.writer import save_safetensors
from .categories import Categories
from .image import ImageError, Source, read_image
from .results import Classification, Detections, SegmentationMap
from .sample import Sample

Result = TypeVar("Result")
M = TypeVar("M", bound="Model[Any]")

_LARGEST_INPUT = 1 << 24  # pixels; a label map of more takes tens of gigabytes
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of red, green and blue, 0 to 1


class Model(Module, Generic[Result]):
    """A network with its preprocessing, its postprocessing and the names of its classes.

    A subclass computes in ``predict_image`` what ``predict`` returns for one photo. ``class_layers`` are the prefixes
    of the parameters that are made anew when the classes change.
    """

    categories: Categories
    class_layers: tuple[str, ...] = ()
    training_layers: tuple[str, ...] = ()  # prefixes of parameters without a part in predictions: files may lack them
    name: str = ""
    entry: WeightsEntry | None = None
    weights_file: Path | None = None
    about: Mapping[str, Any] = {}
    precision = "f32"  # of ``predict``; see ``core.kernels.use_precision``
    preset: Any = None  # the preprocessing as a dataclass, where it is a setting of the weights
    frozen_norms = False  # batch norms use the stored statistics in training too, as for folded weights

    def train(self: M, mode: bool = True) -> M:
        """Switch to training behaviour; batch norms whose scale is frozen keep their statistics."""
        super().train(mode)
        for _, module in self.named_modules():
            if isinstance(module, BatchNorm2d) and (self.frozen_norms or not module.weight.requires_grad):
                module.training = False
        return self

    def describe(self) -> str:
        weights = self.entry.name if self.entry else self.weights_file.name if self.weights_file else "random weights"
        return f"{self.name or 'unnamed'}, {weights}, {len(self.categories.names)} classes"

    def carry_over(self, name: str, fresh: np.ndarray, published: np.ndarray) -> np.ndarray:
        """What a parameter of ``class_layers`` starts from when the classes change, given its published value."""
        return fresh

    def read(self, path: str | os.PathLike[str]) -> dict[str, Any]:
        """The arrays of a file of weights, by name."""
        return read_arrays(path)

    def take_shapes(self, state: Mapping[str, np.ndarray]) -> None:
        """Make parameters whose size is a setting of a file, not of the model, as large as in ``state``."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if args and isinstance(args[0], (str, bytes, os.PathLike, Image.Image, np.ndarray)):
            raise TypeError(
                f"expected a Tensor (n, 3, height, width), got {type(args[0]).__name__}: "
                "for what is on a photo call model.predict(photo)"
            )
        return super().__call__(*args, **kwargs)

    def predict_image(self, image: np.ndarray, score_threshold: float | None) -> Result:
        raise NotImplementedError(f"{type(self).__name__} has no predict_image")

    def losses(self, samples: Sequence[Sample], rng: np.random.Generator) -> dict[str, Tensor]:
        """The losses of a batch by name; training minimises their sum. Raises NotImplementedError if there are none."""
        raise NotImplementedError(f"{type(self).__name__} cannot be trained yet: its losses are missing")

    def predict(
        self,
        source: Source | Sequence[Source],
        *,
        score_threshold: float | None = 0.5,
        channel_order: str = "RGB",
    ) -> Any:
        """The result for a photo, or a list of results for a list of photos.

        A photo is a path, a URL, bytes, a PIL image, or an array (height, width, 3) uint8 in RGB order, or in
        ``channel_order="BGR"`` as OpenCV has it. ``score_threshold`` is the least score of what is returned; None means
        the model's published evaluation settings. Raises ImageError for what is no image, ValueError for a threshold
        outside of 0 to 1, an empty list and parameters with NaN or infinity, TypeError for anything else. A model in
        training mode predicts in evaluation mode and is then as before; several threads may predict with one model at
        the same time.
        """
        if score_threshold is not None and (isinstance(score_threshold, bool) or not isinstance(score_threshold, Real)):
            raise TypeError(f"expected a score_threshold from 0 to 1 or None, got {score_threshold!r}")
        if score_threshold is not None and not 0 <= score_threshold <= 1:
            raise ValueError(f"expected a score_threshold from 0 to 1 or None, got {score_threshold}")
        if isinstance(source, (list, tuple)):
            if not source:
                raise ValueError("expected at least one image, got an empty list")
            return [self._predict(s, score_threshold, channel_order, f"image {i}: ") for i, s in enumerate(source)]
        return self._predict(source, score_threshold, channel_order, "")  # type: ignore[arg-type]

    def _predict(self, source: Source, score_threshold: float | None, channel_order: str, place: str) -> Result:
        try:
            image = read_image(source, channel_order=channel_order)
        except (ValueError, TypeError) as error:
            if not place:
                raise
            kind = next(k for k in (ImageError, ValueError, TypeError) if isinstance(error, k))
            raise kind(f"{place}{error}") from error
        _need_finite(self)
        with _evaluating(self), no_grad(), kernels.use_precision(self.precision):
            return self.predict_image(image, score_threshold)

    def save(self, path: str | os.PathLike[str], **facts: Any) -> None:
        """Write the model to a ``.safetensors`` file that ``chainsight.load`` takes alone, all or nothing.

        It carries the model's name, classes and ids, and the licence note of the weights it started from; ``facts``
        (metrics, settings of a training) are stored beside them, as JSON. Raises ValueError for a model without a name
        and a fact called as one of these, TypeError for a fact that JSON cannot hold.
        """
        if not self.name:
            raise ValueError(
                f"only a model made by chainsight.load has the name a file needs, not a {type(self).__name__}"
            )
        c = self.categories
        if self.preset is not None:
            facts = {"preset": asdict(self.preset), **facts}
        about = {
            "model": self.name,
            "categories": {"names": c.names, "ids": c.ids, "slots": c.slots, "outputs": c.outputs},
            "licence": self.entry.licence if self.entry else self.about.get("licence", "not stated"),
        }
        if taken := sorted(about.keys() & facts.keys()):
            raise ValueError(f"the file says itself what it holds as {', '.join(taken)}: choose other names for facts")
        try:
            text = json.dumps(about | facts)
        except TypeError as error:
            raise TypeError(f"expected facts that JSON can hold (numbers, texts, lists): {error}") from None
        save_safetensors(path, self.state_dict(), {"chainsight": text})


_switching = threading.Lock()
_borrowed: WeakKeyDictionary[Model[Any], tuple[int, list[tuple[Module, bool]]]] = WeakKeyDictionary()


@contextmanager
def _evaluating(model: Model[Any]) -> Iterator[None]:
    """Evaluation mode for all threads that predict with the model; when the last is done, every part is as it was."""
    with _switching:
        users, modes = _borrowed.get(model, (0, []))
        if model.training:
            modes = modes or [(module, module.training) for _, module in model.named_modules()]
            model.eval()
        if modes:
            _borrowed[model] = users + 1, modes
    try:
        yield
    finally:
        if modes:
            with _switching:
                users, _ = _borrowed.pop(model)
                if users > 1:
                    _borrowed[model] = users - 1, modes
                else:
                    for module, mode in modes:
                        module.training = mode


_finite: WeakKeyDictionary[Model[Any], tuple[int, list[tuple[Tensor, int]]]] = WeakKeyDictionary()


def _need_finite(model: Model[Any]) -> None:
    """Raise ValueError for NaN or infinity in a model's parameters, looked for once after each change of them.

    A detector would not find anything with them, or nonsense, as comparisons with NaN are false.
    """
    changes, known = _finite.get(model, (-1, []))
    if changes == Module.changes and all(tensor.version == version for tensor, version in known):
        return
    changes, known = Module.changes, [(tensor, tensor.version) for tensor in model.tensors()]
    for tensor, _ in known:
        values, xp = tensor.data, tensor.xp
        with np.errstate(over="ignore", invalid="ignore"):
            suspect = values.dtype.kind == "f" and not bool(xp.isfinite(values.sum()))
        if suspect and not bool(xp.isfinite(values).all()):
            named = (*model.named_parameters(), *model.named_buffers())
            name = next(name for name, other in named if other is tensor)
            raise ValueError(f"{model.describe()}: {name} holds NaN or infinity, from a training or a change by hand")
    _finite[model] = changes, known


class Detector(Model[Detections]):
    """A model that finds boxes."""

    score_threshold = 0.05  # of the published evaluation

    def detections(self, image: np.ndarray, boxes: np.ndarray, scores: np.ndarray, slots: np.ndarray) -> Detections:
        """The result from what the head found, without the outputs that stand for no class."""
        labels = self.categories.labels_of(slots)
        keep = labels >= 0
        return Detections(
            boxes=boxes[keep].astype(np.float32),
            scores=scores[keep].astype(np.float32),
            labels=labels[keep],
            categories=self.categories.names,
            category_ids=self.categories.ids,
            image_size=(image.shape[0], image.shape[1]),
            image=image,
        )


def with_fields(preset: Any, values: Mapping[str, Any]) -> Any:
    """A preset with other values of some fields, which may come from JSON, that has no tuples.

    >>> with_fields(CropPreset(), {"mean": [0.5, 0.5, 0.5]}).mean
    (0.5, 0.5, 0.5)
    """
    return replace(preset, **{name: tuple(v) if isinstance(v, list) else v for name, v in values.items()})


@dataclass(frozen=True)
class CropPreset:
    """For classification: the short side resized to ``resize``, then the square of ``crop`` pixels in the middle.

    With ``ten_crops`` there are nine more squares: those in the corners, and all five mirrored (Krizhevsky et al. 2012,
    section 4.1); a model's probabilities are then the means over the ten. Without ``antialias`` the image is resized
    as OpenCV does it with floats, not as Pillow.
    """

    resize: int = 256
    crop: int = 224
    interpolation: str = "bilinear"
    mean: tuple[float, float, float] = IMAGENET_MEAN
    std: tuple[float, float, float] = IMAGENET_STD
    antialias: bool = True
    ten_crops: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.crop <= self.resize:
            raise ValueError(f"expected a crop of 1 to {self.resize} pixels, the side it is cut from, got {self.crop}")

    def __call__(self, image: np.ndarray) -> Tensor:
        """The tensor (1 or 10, 3, crop, crop) of an image (height, width, 3)."""
        if self.antialias:
            small = np.asarray(resize_short_side(image, self.resize, self.interpolation))
        else:
            size = short_side_size(image, self.resize)
            small = cv2.resize(image.astype(np.float32), size) if size != image.shape[1::-1] else image
        bottom, right = small.shape[0] - self.crop, small.shape[1] - self.crop
        if not self.ten_crops:
            return to_input(self._cut(small, round(bottom / 2), round(right / 2)), self.mean, self.std)
        corners = [(0, 0), (bottom, 0), (0, right), (bottom, right)]
        squares = [self._cut(small, *at) for at in ((bottom // 2, right // 2), *corners)]
        upright = np.concatenate([to_input(s, self.mean, self.std).numpy() for s in squares])
        return Tensor(np.concatenate([upright, upright[..., ::-1]]))

    def _cut(self, image: np.ndarray, top: int, left: int) -> np.ndarray:
        return np.ascontiguousarray(image[top : top + self.crop, left : left + self.crop])


class Classifier(Model[Classification]):
    """A model that names the whole image; it computes logits (n, classes) from (n, 3, height, width)."""

    preset: CropPreset = CropPreset()

    def predict_image(self, image: np.ndarray, score_threshold: float | None) -> Classification:
        """The probabilities of all classes; ``score_threshold`` has no meaning here.

        Those of outputs that stand for no class, a background, are left out at the end.
        """
        outputs = softmax(planned(self, self.preset(image)).numpy()).mean(0)
        return Classification(probabilities=outputs[list(self.categories.slots)], categories=self.categories.names)

    def losses(self, samples: Sequence[Sample], rng: np.random.Generator) -> dict[str, Tensor]:
        """The cross entropy of a batch whose images are cut and scaled as those to predict."""
        for sample in samples:
            if sample.label is None:
                where = sample.source or sample.image_id
                raise ValueError(f"{where}: training a classifier needs the image's class, got a sample without")
        crops = [self.preset(sample.image).numpy() for sample in samples]
        slots = self.categories.slots_of(np.array([sample.label for sample in samples], np.int64))
        logits = self(Tensor(np.concatenate(crops)))
        return {"class": F.softmax_cross_entropy(logits, np.repeat(slots, [len(c) for c in crops]))}


@dataclass(frozen=True)
class ShortSidePreset:
    """Preprocessing for segmentation: the short side resized to ``short`` pixels, with antialiasing."""

    short: int = 520
    mean: tuple[float, float, float] = IMAGENET_MEAN
    std: tuple[float, float, float] = IMAGENET_STD

    def __call__(self, image: np.ndarray) -> Tensor:
        """The tensor (1, 3, h, w) of an image (height, width, 3)."""
        return to_input(np.asarray(resize_short_side(image, self.short)), self.mean, self.std)


@dataclass(frozen=True)
class WholePreset:
    """Preprocessing for segmentation: the photo at its own size."""

    mean: tuple[float, float, float] = IMAGENET_MEAN
    std: tuple[float, float, float] = IMAGENET_STD

    def __call__(self, image: np.ndarray) -> Tensor:
        """The tensor (1, 3, height, width) of an image (height, width, 3)."""
        return to_input(image, self.mean, self.std)


class Segmenter(Model[SegmentationMap]):
    """A model that names every pixel; it computes logits (n, classes, height, width) from (n, 3, height, width).

    A subclass computes in ``logits`` those of its head, at the head's size, and in ``all_logits`` also those of heads
    that only help in training.
    """

    preset: Any = ShortSidePreset()
    auxiliary_weight = 0.5  # of the losses of heads after the first
    align_corners = False  # of the resizing of logits

    def logits(self, x: Tensor) -> Tensor:
        raise NotImplementedError(f"{type(self).__name__} has no logits")

    def all_logits(self, x: Tensor) -> list[Tensor]:
        return [self.logits(x)]

    def forward(self, x: Tensor) -> Tensor:
        return self.resize_logits(self.logits(x), x.shape[2:])

    def resize_logits(self, logits: Tensor, size: tuple[int, ...]) -> Tensor:
        """Logits (n, classes, h, w) at ``size`` (height, width)."""
        return F.resize(logits, size, align_corners=self.align_corners)  # type: ignore[arg-type]

    def predict_image(self, image: np.ndarray, score_threshold: float | None) -> SegmentationMap:
        """The most probable class of every pixel; ``score_threshold`` has no meaning here."""
        x = self.preset(image)
        logits = planned(self, x, "logits")
        probabilities = softmax(logits.numpy()[0].transpose(1, 2, 0)).transpose(2, 0, 1)
        at_input = F.resize(logits, x.shape[2:]).numpy()[0]  # type: ignore[arg-type]
        labels = most_probable(at_input, image.shape[:2])  # type: ignore[arg-type]
        return SegmentationMap(labels, self.categories.names, probabilities, image)

    def cross_entropy(self, logits: Tensor, target: np.ndarray) -> Tensor:
        """The mean loss of logits (n, classes, height, width) in the annotated pixels of ``target``."""
        return F.softmax_cross_entropy(logits, target, ignore_index=UNLABELLED)

    def losses(self, samples: Sequence[Sample], rng: np.random.Generator) -> dict[str, Tensor]:
        """The cross entropy of every head, over the annotated pixels of a batch; training minimises their sum.

        Images of several sizes are padded with the mean colour at the right and below, where nothing is annotated.
        """
        height, width = (max(sample.size[axis] for sample in samples) for axis in (0, 1))
        x = np.zeros((len(samples), height, width, 3), np.float32)
        target = np.full((len(samples), height, width), UNLABELLED, np.int64)
        for i, sample in enumerate(samples):
            if sample.semantic is None:
                where = sample.source or sample.image_id
                raise ValueError(f"{where}: training a segmenter needs a label map, got a sample without")
            h, w = sample.size
            x[i, :h, :w] = to_input(sample.image, self.preset.mean, self.preset.std).numpy()[0].transpose(1, 2, 0)
            target[i, :h, :w] = sample.semantic
        heads = self.all_logits(Tensor(x.transpose(0, 3, 1, 2)))
        losses = {}
        for i, logits in enumerate(heads):
            loss = self.cross_entropy(self.resize_logits(logits, (height, width)), target)
            losses["auxiliary" if i else "class"] = loss * self.auxiliary_weight if i else loss
        return losses


UNLABELLED = 255  # in label maps: pixels without annotation


def most_probable(logits: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """The class (height, width) uint8 of each pixel from logits (classes, h, w), resized bilinearly to ``size``.

    Works on a few rows at a time, so large photos need little memory. int32 for more than 255 classes.

    >>> most_probable(np.array([[[0.0, 2.0]], [[1.0, 1.0]]], np.float32), (1, 4)).tolist()
    [[1, 1, 0, 0]]
    """
    height, width = size
    rows = logits.transpose(1, 2, 0)
    position = np.maximum((np.arange(height) + 0.5) * (rows.shape[0] / height) - 0.5, 0).astype(np.float32)
    low = np.minimum(position.astype(np.int64), rows.shape[0] - 1)
    high, upper = np.minimum(low + 1, rows.shape[0] - 1), (position - low)[:, None, None]
    labels = np.empty(size, np.uint8 if len(logits) <= UNLABELLED else np.int32)
    step = max(1, 300_000 // (width * len(logits)))  # what stays in a core's cache

    def work(tops: Sequence[int]) -> None:
        for top in tops:
            part = slice(top, top + step)
            mixed = rows[low[part]] * (1 - upper[part])
            mixed += rows[high[part]] * upper[part]
            planes = (cv2.resize(mixed[..., k], (width, len(mixed))) for k in range(len(logits)))
            best, labels[part] = next(planes), 0
            for k, plane in enumerate(planes, 1):  # quicker than argmax
                np.copyto(labels[part], k, where=plane > best)
                np.maximum(best, plane, out=best)

    threads.share(work, range(0, height, step))
    return labels


def resize_short_side(image: np.ndarray, short: int, interpolation: str = "bilinear") -> Image.Image:
    """An image (height, width, 3) resized, with antialiasing, so that its short side is ``short`` pixels.

    Raises ImageError for one so narrow that more than 2**24 pixels would come of it.

    >>> resize_short_side(np.zeros((50, 100, 3), np.uint8), 20).size
    (40, 20)
    """
    size = short_side_size(image, short)
    return Image.fromarray(image).resize(size, Image.Resampling[interpolation.upper()])


def short_side_size(image: np.ndarray, short: int) -> tuple[int, int]:
    """The width and height at which the short side of an image (height, width, 3) is ``short`` pixels.

    Raises ImageError for an image so narrow that these are more than 2**24 pixels.

    >>> short_side_size(np.zeros((50, 100, 3), np.uint8), 20)
    (40, 20)
    """
    height, width = image.shape[:2]
    long = int(short * max(height, width) / min(height, width))
    size = (short, long) if width <= height else (long, short)
    if short * long > _LARGEST_INPUT:
        raise ImageError(
            f"an image of {width} x {height} pixels would be enlarged to {size[0]} x {size[1]} for this model: "
            "expected one that is less narrow, cut it into pieces"
        )
    return size


def to_input(image: np.ndarray, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """An image (height, width, 3), values 0 to 255, as the tensor (1, 3, height, width) of (value / 255 - mean) / std.

    >>> to_input(np.full((2, 2, 3), 255, np.uint8), (0.5, 0.5, 0.5), (0.5, 0.5, 0.5)).numpy().max()
    np.float32(1.0)
    """
    height, width, _ = image.shape
    # Rounded as torchvision does, step by step: deep networks make a hundred times more of a difference. Whole rows at
    # a time: three values at a time would be slow.
    x = np.divide(image.reshape(height, -1), np.float32(255), dtype=np.float32)
    x -= np.tile(np.asarray(mean, np.float32), width)
    x /= np.tile(np.asarray(std, np.float32), width)
    x = x.reshape(image.shape)
    return Tensor(x[None].transpose(0, 3, 1, 2))


def softmax(logits: np.ndarray) -> np.ndarray:
    """The softmax over the last axis of an array.

    >>> softmax(np.zeros(2, np.float32))
    array([0.5, 0.5], dtype=float32)
    """
    y = np.exp(logits - logits.max(axis=-1, keepdims=True))
    y /= y.sum(axis=-1, keepdims=True)
    return np.asarray(y)


def sigmoid(logits: np.ndarray) -> np.ndarray:
    """The logistic function of an array.

    >>> sigmoid(np.zeros(1, np.float32))
    array([0.5], dtype=float32)
    """
    return np.asarray(0.5 * np.tanh(0.5 * logits) + 0.5, logits.dtype)


@dataclass(frozen=True)
class ModelInfo:
    """One row of the zoo: how to build a model, and what is published of it.

    ``build`` makes the model, randomly initialised, for some Categories; ``spread`` turns names and ids into the
    Categories of such a model. ``entries`` are the published weights, the recommended first; ``renames`` are the pairs
    (regular expression, replacement) that turn an older file's names into today's; ``convert`` makes of the arrays of
    another library's file those of the model, and leaves other files' as they are.
    """

    name: str
    task: str
    build: Callable[[Categories], Model[Any]]
    spread: Callable[..., Categories]
    entries: tuple[WeightsEntry, ...]
    paper: str
    gflops: float
    renames: tuple[tuple[str, str], ...] = ()
    convert: Callable[[dict[str, Any]], dict[str, Any]] | None = None
    published: Callable[..., Categories] | None = None  # how the published heads number classes, if not as ``spread``

    def categories_of(self, entry: WeightsEntry) -> Categories:
        """The Categories of the head that an entry's file holds."""
        return (self.published or self.spread)(entry.categories, entry.category_ids)


def has_folded_norms(model: Module) -> bool:
    """Whether every batch norm's statistics are those of an identity: mean 0 and variance 1 - eps.

    Weights that went through an inference engine come so, with the norms folded into the convolutions. Their true
    statistics are lost, and those of a batch would change the function.
    """
    norms = [m for _, m in model.named_modules() if isinstance(m, BatchNorm2d)]
    return bool(norms) and all(
        not m.running_mean.data.any() and bool((m.running_var.data == np.float32(1 - m.eps)).all()) for m in norms
    )
