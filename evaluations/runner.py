"""What all evaluation scripts share: running over images, surviving bad ones and interruptions, writing the result."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import platform
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any, Protocol

from tqdm import tqdm

from ..weights.download import file_sha256
from ..weights.writer import replacing

logger = logging.getLogger(__name__)

Key = int | str


class Metrics(Protocol):
    """What a metric's result can do: its figures by name, and text to read."""

    def to_dict(self) -> dict[str, float]: ...
    def __str__(self) -> str: ...


@dataclass
class Run:
    """``records``: what ``process`` gave for each image; ``failures``: why the others gave nothing."""

    records: dict[Key, Any]
    failures: dict[Key, str]
    images_per_second: float | None
    resumed: int = 0


@dataclass
class Evaluation:
    """A measured result with everything that makes it reproducible.

    - ``metrics``: the figures; ``published``: those of the weights' publisher under the same names, in the same unit.
    - ``image_ids``: which images were scored; ``failures``: why the others were not, by image.
    - ``predictions``: the records the metrics were computed from, such as COCO's results list.
    - ``indices``: which images of a data set were scored, in the order of ``predictions``.
    """

    task: str
    metrics: Metrics
    model: str
    weights: dict[str, Any]
    settings: dict[str, Any]
    image_ids: Sequence[Key]
    images_per_second: float | None
    published: Mapping[str, float] = field(default_factory=dict)
    published_on: str = ""
    failures: Mapping[Key, str] = field(default_factory=dict)
    notes: Sequence[str] = ()
    predictions: Any = None
    indices: Sequence[int] = ()

    @property
    def images(self) -> int:
        """How many images were scored."""
        return len(self.image_ids)

    def to_dict(self) -> dict[str, Any]:
        """For JSON: ``metrics``, ``published``, ``model``, ``weights``, ``settings``, ``versions`` and more."""
        return {
            "task": self.task,
            "metrics": _numbers(self.metrics.to_dict()),
            "per_category": _numbers(getattr(self.metrics, "per_category", {})),
            "published": {"data": self.published_on, "metrics": dict(self.published)} if self.published else None,
            "model": self.model,
            "weights": self.weights,
            "settings": self.settings,
            "versions": versions(),
            "images": self.images,
            "failures": {str(key): reason for key, reason in self.failures.items()},
            "notes": list(self.notes),
            "images_per_second": self.images_per_second,
        }

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write `to_dict` as JSON, at once: a reader never sees half a file."""
        write_text(Path(path), json.dumps(self.to_dict(), indent=2, allow_nan=False) + "\n")

    def __str__(self) -> str:
        lines = [f"{self.model}, weights {self.weights.get('name')}: {self.task}", str(self.metrics)]
        if self.published:
            measured = self.metrics.to_dict()
            lines.append(f"published on {self.published_on}, comparable only with figures of the same images:")
            for name, value in self.published.items():
                here = f"{measured[name]:.4f}" if measured[name] >= 0 else "-"
                lines.append(f"  {name:>5} {value:.4f}  measured here {here}")
        speed = "" if self.images_per_second is None else f", {self.images_per_second:.2f} images per second"
        lines.append(f"{self.images} images scored{speed}")
        if self.failures:
            lines.append(f"{len(self.failures)} images could not be scored and are in no figure:")
            lines += [f"  {key}: {reason}" for key, reason in list(self.failures.items())[:10]]
            if len(self.failures) > 10:
                lines.append(f"  and {len(self.failures) - 10} more")
        return "\n".join(lines + [f"note: {note}" for note in self.notes])


def run(
    keys: Sequence[Key],
    process: Callable[[Key], Any],
    *,
    settings: Mapping[str, Any],
    resume: str | os.PathLike[str] | None = None,
    progress: bool | None = None,
) -> Run:
    """Call ``process`` for the images named by ``keys``; what it returns must be fit for JSON.

    - An OSError or ValueError belongs to that image: it is kept in ``failures`` and the next image follows. If all
      images fail, that is a ValueError naming the first.
    - ``resume``: a file that each record is appended to. If it exists, the images in it are not processed again (failed
      ones are). It belongs to ``settings``: ValueError if it was written with others.
    - ``progress``: show a bar with the time left; None: on a terminal.
    """
    records: dict[Key, Any] = {}
    log = None if resume is None else _Log(Path(resume), settings)
    if log is not None:
        wanted = set(keys)
        records = {key: record for key, record in log.records.items() if key in wanted}
    resumed = len(records)
    left = [key for key in keys if key not in records]
    failures: dict[Key, str] = {}
    first_error: Exception | None = None
    start = time.perf_counter()
    try:
        for key in tqdm(left, initial=0, unit="image", disable=None if progress is None else not progress):
            try:
                records[key] = process(key)
            except (OSError, ValueError) as error:
                failures[key] = f"{error}"
                first_error = first_error or error
                logger.warning("image %s: %s", key, error)
                continue
            if log is not None:
                log.append(key, records[key])
    finally:
        seconds = time.perf_counter() - start
        if log is not None:
            log.close()
    if first_error is not None and not records:
        raise ValueError(f"all {len(keys)} images failed; the first: {first_error}") from first_error
    done = len(left) - len(failures)
    ordered = {key: records[key] for key in keys if key in records}
    return Run(ordered, failures, done / seconds if done else None, resumed)


class _Log:
    """Records of finished images, one JSON line each after a line that says which settings they belong to."""

    def __init__(self, path: Path, settings: Mapping[str, Any]) -> None:
        head: dict[str, Any] = {"settings": dict(settings), "sha256": settings_hash(settings)}
        self.records: dict[Key, Any] = {}
        if path.exists() and path.stat().st_size:
            whole, _, _ = path.read_bytes().rpartition(b"\n")  # an interruption may have cut the last line
            lines = whole.split(b"\n")
            try:
                found = json.loads(lines[0])
                entries = [json.loads(line) for line in lines[1:]]
                self.records = {entry["key"]: entry["record"] for entry in entries}
                belongs = found["sha256"] == head["sha256"]
            except (ValueError, KeyError, TypeError) as error:
                raise ValueError(f"{path}: expected a file written by an earlier evaluation ({error!r})") from None
            if not belongs:
                different = [
                    f"{key}: {found['settings'].get(key)!r} there, {head['settings'].get(key)!r} now"
                    for key in sorted({*found["settings"], *head["settings"]})
                    if found["settings"].get(key) != json.loads(json.dumps(head["settings"].get(key)))
                ]
                raise ValueError(f"{path} belongs to an evaluation with other settings ({'; '.join(different)})")
            with open(path, "r+b") as file:
                file.truncate(len(whole) + 1)
            self._file = open(path, "a", encoding="utf-8")  # noqa: SIM115 - closed by close()
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = open(path, "w", encoding="utf-8")  # noqa: SIM115 - closed by close()
            self._write(head)

    def append(self, key: Key, record: Any) -> None:
        self._write({"key": key, "record": record})

    def _write(self, entry: Mapping[str, Any]) -> None:
        try:
            self._file.write(json.dumps(entry) + "\n")
            self._file.flush()
        except OSError as error:
            raise OSError(error.errno, error.strerror, self._file.name) from error

    def close(self) -> None:
        self._file.close()


def settings_hash(settings: Mapping[str, Any]) -> str:
    """The same for equal settings, whatever the order of their keys."""
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()


def describe_weights(model: Any, weights: str | os.PathLike[str] | None = None) -> dict[str, Any]:
    """Name, file and sha256 of a model's weights: of the file ``weights``, else of the model's published entry."""
    entry = getattr(model, "entry", None)
    file = weights if weights is not None and Path(weights).is_file() else getattr(model, "weights_file", None)
    if file is not None:
        return {"name": Path(file).name, "file": str(file), "sha256": file_sha256(file)}
    return {
        "name": weights if entry is None else entry.name,
        "file": None if entry is None else entry.url,
        "sha256": getattr(entry, "sha256", None),
    }


def model_name(model: Any) -> str:
    """The name a model was loaded by, or that of its class."""
    return getattr(model, "name", "") or type(model).__name__


def category_names(model: Any) -> tuple[str, ...]:
    """The names of a model's classes, by label."""
    return tuple(getattr(model.categories, "names", model.categories))


def published(model: Any, names: Mapping[str, str], data: str) -> dict[str, float]:
    """Published figures on the data set ``data`` in 0..1, renamed by ``names`` {published name: our name}."""
    entry = getattr(model, "entry", None)
    values = {} if entry is None else entry.metrics.get(data, {})
    return {names[name]: round(value / 100, 6) for name, value in values.items() if name in names}


def published_data(model: Any, name: str, default: str) -> str:
    """The name under which the model's figures on the data set ``name`` are published; ``default`` when none are.

    ``VOC2012@semantic-val`` is published as "VOC2012 val", SBD's split without VOC 2012's images as "SBD val".
    """
    entry = getattr(model, "entry", None)
    plain = re.sub(r"@(semantic-|instance-)?", " ", name).removesuffix("_voc2012")
    return plain if entry is not None and plain in entry.metrics else default


def versions() -> dict[str, str]:
    """Versions of everything that can change a figure."""
    packages = ("chainsight", "numpy", "opencv-python-headless", "opencv-python", "pillow", "onednn-cpu-gomp", "cupy")
    found = {"python": platform.python_version(), "platform": platform.platform()}
    for package in packages:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def write_text(path: Path, text: str) -> None:
    """Write a file through a temporary one beside it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as file:
        file.write(text.encode("utf-8", "backslashreplace"))


def check_options(limit: int | None, score_threshold: float | None = None) -> None:
    """ValueError for options with which every image would fail, or none be left."""
    if limit is not None and limit < 1:
        raise ValueError(f"expected a limit of at least 1 image, got {limit}")
    if score_threshold is not None and not 0 <= score_threshold <= 1:
        raise ValueError(f"expected a score threshold from 0 to 1 or None, got {score_threshold}")


def first(items: Iterable[Any], n: int = 5) -> str:
    """The first few of many, for a message."""
    names = [str(item) for item in items]
    return ", ".join(names[:n]) + (f" and {len(names) - n} more" if len(names) > n else "")


def _numbers(values: Mapping[str, float]) -> dict[str, float | None]:
    """JSON has no nan: an undefined figure is null."""
    return {name: None if value != value else value for name, value in values.items()}
