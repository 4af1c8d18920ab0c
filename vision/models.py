"""The zoo: every model by name, and loading it with weights."""

from __future__ import annotations

import difflib
import json
import logging
import os
from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from typing import Any

import numpy as np

from ..core import kernels
from ..core.layers import init
from ..weights import download, writer
from ..weights.entry import PACKAGE, WeightsEntry
from ..weights.errors import WeightsError
from ..weights.loading import match_state
from ..weights.readers import read
from .backbones import (
    alexnet,
    chainercv_resnet,
    convnext,
    densenet,
    efficientnet,
    googlenet,
    inception_v3,
    maxvit,
    mnasnet,
    mobilenet_v2,
    mobilenet_v3,
    regnet,
    resnet,
    shufflenet_v2,
    squeezenet,
    swin,
    vgg,
    vit,
)
from .categories import Categories
from .detection import (
    chainercv_rcnn,
    darknet,
    faster_rcnn,
    fcis,
    fcos,
    keypoint_rcnn,
    light_head_rcnn,
    mask_rcnn,
    nanodet,
    retinanet,
    ssd,
    yolo,
    yolox,
)
from .model import Model, ModelInfo, has_folded_norms, with_fields
from .quantization import take_quantized
from .segmentation import deeplabv3, deeplabv3_plus, fcn, lraspp, pspnet, segnet

log = logging.getLogger("chainsight")

MODULES = (
    faster_rcnn,
    mask_rcnn,
    keypoint_rcnn,
    retinanet,
    fcos,
    chainercv_rcnn,
    light_head_rcnn,
    fcis,
    ssd,
    nanodet,
    yolox,
    yolo,
    fcn,
    deeplabv3,
    lraspp,
    segnet,
    pspnet,
    deeplabv3_plus,
    resnet,
    mobilenet_v3,
    alexnet,
    chainercv_resnet,
    vgg,
    googlenet,
    inception_v3,
    densenet,
    squeezenet,
    mobilenet_v2,
    shufflenet_v2,
    mnasnet,
    efficientnet,
    regnet,
    convnext,
    vit,
    swin,
    maxvit,
)
MODELS: dict[str, ModelInfo] = {info.name: info for module in MODULES for info in module.MODELS}


def list_models(task: str | None = None) -> list[str]:
    """The names of all models, or of those for one task ("detection", "classification", ...).

    >>> "nanodet_g" in list_models("detection"), "nanodet_g" in list_models("classification")
    (True, False)
    """
    tasks = {info.task for info in MODELS.values()}
    if task is not None and task not in tasks:
        raise ValueError(f"expected a task of {', '.join(sorted(tasks))}, got {task!r}")
    return sorted(name for name, info in MODELS.items() if task in (None, info.task))


def model_info(name: str) -> ModelInfo:
    """What the zoo knows about a model. Raises ValueError that names similar models for an unknown one."""
    if name not in MODELS:
        plain = name.lower().replace("-", "_")
        inside = sorted((known for known in MODELS if plain and plain in known), key=len)[:5]
        similar = inside or difflib.get_close_matches(plain, MODELS, 3, 0.5)
        hint = f"did you mean {' or '.join(similar)}? " if similar else ""
        raise ValueError(f"there is no model {name!r}: {hint}`chainsight models` lists all {len(MODELS)}")
    return MODELS[name]


def load(
    name: str | os.PathLike[str],
    weights: str | os.PathLike[str] | None = "default",
    categories: Sequence[str] | None = None,
    device: str | None = None,
    precision: str = "f32",
) -> Model[Any]:
    """A model of the zoo, ready to predict.

    ``name`` is a model's name, or the file of a model saved by ``Model.save``. ``weights`` is "default" (the published
    entry that is recommended), an entry's name, the path of a file in any format, or None for random values. The model
    "darknet" is what the ``.cfg`` beside its ``.weights`` file describes. The preprocessing for a file is that of the
    published one with its name or sha256, else of the model's first entry, or of the entry named before it, as in
    "IMAGENET1K_V1=my.pth". With ``categories``, names of classes other than those of the weights, the layers that
    depend on the classes start fresh, and the log says which. A saved model's file, by itself or as ``weights``, brings
    its classes along. Files are downloaded once and verified. With ``precision="bf16"`` the model predicts in bfloat16,
    on processors that have it in a fraction of the time. Raises ValueError for an unknown model, entry or precision,
    WeightsError for a file that is broken or does not fit, DownloadError for one that cannot be fetched.

    >>> model = load("nanodet_g", weights=None, categories=["boat", "buoy"])
    >>> model.categories.names
    ('boat', 'buoy')
    """
    names = None if categories is None else _class_names(categories)
    if not isinstance(name, (str, os.PathLike)):
        raise TypeError(f"expected a model's name or a saved model's file, got {type(name).__name__}")
    if weights is not None and not isinstance(weights, (str, os.PathLike)):
        raise TypeError(f"expected weights as an entry's name, a file or None, got {type(weights).__name__}")
    if name == darknet.NAME:
        model = _load_darknet(weights, names)
    elif not isinstance(name, str) or name.endswith(".safetensors") or (name not in MODELS and os.path.isfile(name)):
        if weights != "default":
            raise ValueError(
                f"{os.fspath(name)}: a saved model brings its own weights, got weights={weights!r} as well; "
                "for other weights pass the model's name"
            )
        model = load_saved(name, names)
    else:
        info = model_info(name)
        entry, path = _resolve(info, weights)
        published = entry is not None and str(weights).partition("=")[0] in ("default", entry.name)
        if path is not None and not published and _facts(path) is not None:
            model = load_saved(path, names, info.name)
        else:
            model = build(info, entry, names, fresh=path is None)
            if path is not None:
                fill(model, info, path, keep_classes=_same_names(model, info, entry))
            if entry is not None:
                model.entry = entry
    with kernels.use_precision(precision):  # raises where it cannot be had
        model.precision = precision
    return model.to(device).eval() if device is not None else model.eval()


def _load_darknet(weights: str | os.PathLike[str] | None, names: tuple[str, ...] | None) -> Model[Any]:
    """The model of a ``.weights`` file and the ``.cfg`` beside it."""
    path = Path("" if weights in (None, "default") else weights)  # type: ignore[arg-type]
    if not path.is_file():
        raise ValueError(f"{darknet.NAME} needs a .weights file with its .cfg beside it, got weights={weights!r}")
    if _facts(path) is not None:
        return load_saved(path, names, darknet.NAME)
    info, model, keep = darknet.from_files(path, names)
    model.name = info.name
    fill(model, info, path, keep_classes=keep)
    return model


def _class_names(categories: Sequence[str]) -> tuple[str, ...]:
    if isinstance(categories, (str, bytes, Set)) or not hasattr(categories, "__iter__"):
        given = repr(categories) if isinstance(categories, (str, bytes)) else f"a {type(categories).__name__}"
        raise TypeError(f"expected categories as a list of names, in the order of the labels, got {given}")
    return tuple(str(name) if isinstance(name, str) else name for name in categories)


def _resolve(info: ModelInfo, weights: str | os.PathLike[str] | None) -> tuple[WeightsEntry | None, Path | None]:
    """The entry whose classes and settings apply, and the file to read."""
    if weights is None:
        return None, None
    if weights == "default":
        if not info.entries:
            raise ValueError(f"no weights are published for {info.name}: pass a file, or None for random values")
        chosen = info.entries[0]
    else:
        before, equals, after = os.fspath(weights).partition("=")
        named = [e for e in info.entries if e.name == before and isinstance(weights, str)]
        if not named or equals:
            file = after if named else os.fspath(weights)
            path = Path(file)
            if not file or not path.exists() or path.is_dir():
                known = ", ".join(e.name for e in info.entries) or "none"
                what = "a folder" if file and path.is_dir() else "no file"
                raise ValueError(
                    f"expected weights of {info.name} to be one of its entries ({known}), a file, ENTRY=FILE, or None; "
                    f"got {os.fspath(weights)!r}, which is {what}"
                )
            return (named[0] if named else _recognised(info, path)), path
        chosen = named[0]
    if chosen.by_hand:
        raise WeightsError(
            f"the weights {chosen.name} of {info.name} cannot be downloaded by a program: get the file from "
            f"{chosen.url} and pass its path as weights"
        )
    return chosen, _locate(chosen)


def _recognised(info: ModelInfo, path: Path) -> WeightsEntry | None:
    """The entry whose file this is, by its name or its hash; the first one for any other file."""
    entries = info.entries
    if len(entries) > 1:
        named = [e for e in entries if e.file == path.name]
        digest = "" if named else download.file_sha256(path)
        entries = tuple(named or [e for e in entries if e.sha256 and digest.startswith(e.sha256)]) or entries
    return entries[0] if entries else None


def _locate(entry: WeightsEntry) -> Path:
    """The file of an entry: part of the package, or downloaded."""
    if entry.url.startswith(PACKAGE):
        return Path(__file__).parent.parent / entry.url.removeprefix(PACKAGE)
    return download.fetch(entry.url, sha256=entry.sha256 or None, size=entry.size)


def build(info: ModelInfo, entry: WeightsEntry | None, names: Sequence[str] | None, fresh: bool = True) -> Model[Any]:
    """The model for the classes of an entry (the first if None), or for others; filled unless all will be loaded."""
    published = entry or (info.entries[0] if info.entries else None)
    if names is not None and (published is None or tuple(names) != published.categories):
        model = info.build(info.spread(names))
    elif published is None:
        raise ValueError(f"{info.name} has no published classes: pass categories")
    elif fresh:
        model = info.build(info.categories_of(published))
    else:
        with init.skip_init():
            model = info.build(info.categories_of(published))
    model.name = info.name
    if published is not None and model.preset is not None:
        model.preset = with_fields(model.preset, published.settings)
    return model


def _same_names(model: Model[Any], info: ModelInfo, entry: WeightsEntry | None) -> bool:
    return entry is None or model.categories == info.categories_of(entry)


def fill(model: Model[Any], info: ModelInfo, path: Path, keep_classes: bool) -> None:
    """Load a file into the model; without ``keep_classes`` the layers that depend on the classes stay as they are.

    Raises WeightsError, and leaves the parameters as they were, for a file that does not fit or holds NaN or infinity.
    """
    ignored = [f"{p}.{key}" if p else key for p, m in model.named_modules() for key in m.ignored_keys]
    try:
        found = model.read(path)
        if info.convert is not None:
            found = info.convert(found)
        model.take_shapes(found)
        if take_quantized(model, found) and not keep_classes:
            raise WeightsError("quantized weights cannot be trained for other classes: take those they were made from")
        own = model.state_dict()
        heads = [] if keep_classes else [name for name in own if name.startswith(model.class_layers)]
        report = match_state(
            own,
            found,
            renames=info.renames,
            allow_missing=[_escaped(name) for name in own if name.startswith(model.training_layers)],
            allow_unexpected=[_escaped(key) for key in ignored],
            reinitialise=[_escaped(name) for name in heads],
        )
        _check_finite(report.arrays)
    except WeightsError as error:
        raise WeightsError(f"not weights of {info.name}: {_reason(error, path)}", path=path) from None
    carried = {name: model.carry_over(name, own[name], found[name]) for name in heads if name in found}
    model.load_state_dict(report.arrays | carried, strict=False)
    model.frozen_norms = has_folded_norms(model)
    model.weights_file = Path(path)
    if report.reinitialised:
        log.warning(
            "%s: %d tensors loaded; started fresh for %d classes: %s",
            info.name,
            len(report.arrays),
            len(model.categories.names),
            ", ".join(report.reinitialised),
        )


def _escaped(name: str) -> str:
    return name.replace(".", r"\.")


def _reason(error: WeightsError, path: str | os.PathLike[str]) -> str:
    return str(error).removeprefix(f"{os.fspath(path)}: ")


def _check_finite(arrays: Mapping[str, np.ndarray]) -> None:
    for name, array in arrays.items():
        with np.errstate(over="ignore", invalid="ignore"):
            suspect = array.dtype.kind == "f" and not np.isfinite(array.sum())  # quick, and nearly always enough
        if suspect and not np.isfinite(array).all():
            bad = int((~np.isfinite(array)).sum())
            raise WeightsError(f"{bad} of {array.size} values are NaN or infinite: a broken file or training", key=name)


def _facts(path: str | os.PathLike[str]) -> str | None:
    """The JSON that ``Model.save`` wrote into a file; None in any other file."""
    try:
        return writer.read_metadata(path).get("chainsight")
    except WeightsError:
        return None  # no safetensors: whoever reads the weights says what is wrong with it


def load_saved(path: str | os.PathLike[str], names: tuple[str, ...] | None = None, name: str = "") -> Model[Any]:
    """A model from the file that ``Model.save`` wrote; with other ``names`` the layers of the classes start fresh.

    Raises WeightsError for any other file, for what ``Model.save`` never wrote, and for a model that is not ``name``.
    """
    if not os.path.isfile(path):
        what = "a folder, expected a saved model's file" if os.path.isdir(path) else "there is no such file"
        raise WeightsError(what, path=path)
    text = _facts(path)
    if text is None:
        read(path)  # raises what is wrong with a file that cannot be read at all
        raise WeightsError("not a saved model, only weights: pass a model's name and this file as weights", path=path)
    try:
        about = json.loads(text)
        c = about["categories"]
        if not isinstance(about["model"], str) or not all(isinstance(c[k], list) for k in ("names", "slots")):
            raise TypeError("expected a model's name, and lists of names and slots")
        info = darknet.info_of(about["cfg"]) if about["model"] == darknet.NAME else model_info(about["model"])
        ids = None if c["ids"] is None else tuple(c["ids"])
        stored = Categories(tuple(c["names"]), ids, tuple(c["slots"]), c["outputs"])
        other = names is not None and names != stored.names
        if other:
            model = info.build(info.spread(names))
        else:
            with init.skip_init():
                model = info.build(stored)
        if model.preset is not None and "preset" in about:
            model.preset = with_fields(model.preset, about["preset"])
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, MemoryError) as error:
        reason = f"the description of the saved model is damaged: {type(error).__name__}: {error}"
        raise WeightsError(reason, path=path) from error
    if name and name != info.name:
        raise WeightsError(f"a saved {info.name}, not weights of {name}", path=path)
    model.name = info.name
    model.about = about
    fill(model, info, Path(path), keep_classes=not other)
    return model
