"""Detection and segmentation models with their published weights, on a small autograd core over NumPy and CuPy."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_PUBLIC = {  # name: (module, attribute); resolved at first use, so that importing the package costs next to nothing
    "Categories": (".vision.categories", "Categories"),
    "Classification": (".vision.results", "Classification"),
    "Dataset": (".datasets", "Dataset"),
    "Detections": (".vision.results", "Detections"),
    "DownloadError": (".weights.errors", "DownloadError"),
    "ImageError": (".vision.image", "ImageError"),
    "Sample": (".vision.sample", "Sample"),
    "SegmentationMap": (".vision.results", "SegmentationMap"),
    "WeightsError": (".weights.errors", "WeightsError"),
    "card": (".vision.cards", "card"),
    "compile": (".core.plan", "compile"),
    "core": (".core", None),
    "datasets": (".datasets", None),
    "evaluate": (".evaluating", "evaluate"),
    "fit": (".training", "fit"),
    "list_models": (".vision.models", "list_models"),
    "load": (".vision.models", "load"),
    "model_info": (".vision.models", "model_info"),
    "quantize": (".vision.quantization", "quantize"),
    "read_image": (".vision.image", "read_image"),
    "set_num_threads": (".core.kernels", "set_num_threads"),
    "show_config": (".config", "show_config"),
}

__all__ = [
    "Categories",
    "Classification",
    "Dataset",
    "Detections",
    "DownloadError",
    "ImageError",
    "Sample",
    "SegmentationMap",
    "WeightsError",
    "__version__",
    "card",
    "compile",
    "core",
    "datasets",
    "evaluate",
    "fit",
    "list_models",
    "load",
    "model_info",
    "quantize",
    "read_image",
    "set_num_threads",
    "show_config",
]

if TYPE_CHECKING:
    from . import core, datasets
    from .config import show_config
    from .core.kernels import set_num_threads
    from .core.plan import compile
    from .datasets import Dataset
    from .evaluating import evaluate
    from .training import fit
    from .vision.cards import card
    from .vision.categories import Categories
    from .vision.image import ImageError, read_image
    from .vision.models import list_models, load, model_info
    from .vision.quantization import quantize
    from .vision.results import Classification, Detections, SegmentationMap
    from .vision.sample import Sample
    from .weights.errors import DownloadError, WeightsError


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, attribute = _PUBLIC[name]
    found = import_module(module, __name__)
    value = globals()[name] = found if attribute is None else getattr(found, attribute)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
