"""`check`: look at every image and annotation of a data set before a model does, and say what a person should fix."""

from __future__ import annotations

import hashlib
import os
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
from tqdm import tqdm

from ..vision.image import ImageError, read_image
from .cleaning import Problem
from .dataset import SEMANTIC, Annotations, Dataset
from .files import stored_size
from .opening import splits
from .semantic import SemanticDataset

DUPLICATE_IOU = 0.8
ERROR, WARNING = "error", "warning"
_WARNINGS = frozenset({"missing annotation", "unnamed classes", "swapped", "no mask"})
_ADVICE = {
    "image": "replace or remove the image files that do not decode",
    "size": "correct the annotated sizes, or undo the rotation or resizing of the images",
    "degenerate": "delete the boxes without width or height, or draw them again",
    "outside": "correct the boxes that leave the image (are they in the right unit and order?)",
    "swapped": "write xmin < xmax and ymin < ymax",
    "not finite": "correct the boxes with NaN or infinite coordinates",
    "unreadable": "correct the lines and objects that are not in the format",
    "unknown class": "list the class, or correct the spelling or number in the annotation",
    "missing image": "add the image files, or remove their annotations",
    "missing annotation": "add empty annotation files if these images really show no object",
    "unnamed classes": "name the classes in a class file",
    "no mask": "draw the outlines that are missing",
    "duplicate box": "delete one of each pair: one object was annotated twice",
    "duplicate image": "remove the copies",
    "leakage": "keep an image in one split only: a score on images that were trained on says nothing",
    "class without objects": "remove the class or add examples; a model cannot learn it",
    "different classes": "give all splits the same class list in the same order",
    "no objects": "fine as background; check that they really show no object",
}


@dataclass(frozen=True)
class Finding:
    """Something to fix: how bad it is (error, warning), what kind it is, where, and the details."""

    severity: str
    kind: str
    split: str
    where: str
    message: str

    def __str__(self) -> str:
        return f"{self.where}: {self.message}"


@dataclass
class CheckReport:
    """What `check` found.

    ``ok`` is True when there is no finding of severity error. ``histograms``: for each split the objects (pixels for
    label maps, images for classification) of each class. ``print(report)`` gives the text for a person.
    """

    sets: dict[str, str]
    categories: tuple[str, ...]
    findings: list[Finding] = field(default_factory=list)
    histograms: dict[str, np.ndarray] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        return not any(f.severity == ERROR for f in self.findings)

    def counts(self) -> dict[str, int]:
        """How many findings of each kind there are."""
        return dict(Counter(f.kind for f in self.findings))

    def __str__(self) -> str:
        lines = list(self.sets.values())
        grouped: defaultdict[tuple[str, str], list[Finding]] = defaultdict(list)
        for finding in self.findings:
            grouped[finding.severity, finding.kind].append(finding)
        for (severity, kind), found in sorted(grouped.items()):
            lines.append(f"\n{severity}: {len(found)} x {kind}. To do: {_ADVICE[kind]}.")
            lines += [f"  {f}" for f in found[:10]]
            if len(found) > 10:
                lines.append(f"  ... and {len(found) - 10} more")
        lines += ["", *self._table()]
        errors = sum(f.severity == ERROR for f in self.findings)
        warnings = len(self.findings) - errors
        lines.append(f"\n{'OK' if self.ok else 'NOT OK'}: {errors} errors, {warnings} warnings")
        return "\n".join(lines)

    def _table(self) -> list[str]:
        """The label histogram, one line a class, the commonest first; classes without objects are left out."""
        total = sum(self.histograms.values(), np.zeros(len(self.categories), np.int64))
        order = [int(i) for i in np.argsort(-total, kind="stable") if total[i]]
        width = max([5, *(len(self.categories[i]) for i in order)])
        lines = ["".join([f"{'class':<{width}}", *(f"{split:>12}" for split in self.histograms)])]
        for i in order[:100]:
            counts = "".join(f"{h[i]:>12}" for h in self.histograms.values())
            lines.append(f"{self.categories[i]:<{width}}{counts}")
        if len(order) > 100:
            lines.append(f"... and {len(order) - 100} more classes")
        return lines


def check(data: Dataset | Mapping[str, Dataset] | str | Sequence[str], *, progress: bool = False) -> CheckReport:
    """Check a data set, the splits of one, or paths (``PATH`` or ``PATH@SPLIT``).

    Every image is decoded once: does it decode, is it of the annotated size (EXIF rotation included), is it a pixel
    for pixel copy of another one (in another split: leakage). Boxes: clipped, dropped and other problems found at
    opening, and pairs of one class with IoU >= 0.8. Classes: without objects, unknown, different between splits.
    ``progress`` shows a bar on a terminal. Raises what `chainsight.datasets.open` raises.
    """
    sets = _sets(data)
    first = next(iter(sets.values()))
    report = CheckReport({name: f"{name}: {dataset!r}" for name, dataset in sets.items()}, first.categories)
    seen: dict[bytes, tuple[str, str]] = {}
    bar = tqdm(total=sum(len(s) for s in sets.values()), unit="image", disable=None if progress else True, desc="check")
    with bar, ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        for split, dataset in sets.items():
            known = len(dataset.problems)
            _opening(report, split, dataset.problems)
            _classes(report, split, dataset)
            for found, outcome in _decoded(pool, dataset):
                bar.update()
                _image(report, split, found, outcome, seen)
                _objects(report, split, found)
            if isinstance(dataset, SemanticDataset):
                _label_maps(report, split, dataset)
            _opening(report, split, list(dataset.problems)[known:])
    used = sum(report.histograms.values(), np.zeros(len(first.categories), np.int64))
    for category, count in zip(first.categories, used):
        if not count:
            report.findings.append(Finding(WARNING, "class without objects", "", category, "no object in any split"))
    return report


def run_check(paths: list[str]) -> int:
    """``chainsight check DATA [DATA...]``: print the report, on a terminal with a progress bar.

    Returns the exit code: 0 nothing to fix, 1 errors found, 2 a path cannot be opened.
    """
    try:
        report = check(paths, progress=True)
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(report)
    return 0 if report.ok else 1


def _sets(data: Dataset | Mapping[str, Dataset] | str | Sequence[str]) -> dict[str, Dataset]:
    if isinstance(data, Dataset):
        return {data.name: data}
    if isinstance(data, Mapping):
        return dict(data)
    paths = [data] if isinstance(data, (str, os.PathLike)) else list(data)
    if not paths:
        raise ValueError("expected at least one data set to check")
    found: dict[str, Dataset] = {}
    for path in paths:
        for split, dataset in splits(path).items():
            name = split if split not in found and len(paths) == 1 else f"{path}@{split}".replace(f"@{split}@", "@")
            found[name if name not in found else f"{name} ({len(found)})"] = dataset
    return found


def _opening(report: CheckReport, split: str, problems: Sequence[Problem]) -> None:
    """The problems that opening found, as findings."""
    for found in problems:
        severity = WARNING if found.kind in _WARNINGS else ERROR
        where = found.source if found.object is None else f"{found.source}, object {found.object}"
        report.findings.append(Finding(severity, found.kind, split, where, f"{found.message} ({found.action})"))


def _classes(report: CheckReport, split: str, dataset: Dataset) -> None:
    if dataset.categories != report.categories:
        mine, others = set(dataset.categories), set(report.categories)
        message = f"lacks {sorted(others - mine)}, adds {sorted(mine - others)}, compared with the first set"
        if mine == others:
            message = "lists the classes in another order than the first set"
        report.findings.append(Finding(ERROR, "different classes", split, dataset.source, message))
    counts = np.zeros(len(report.categories), np.int64)
    if SEMANTIC not in dataset.tasks:
        position = {c: i for i, c in enumerate(report.categories)}
        for category, count in zip(dataset.categories, dataset.histogram()):
            if category in position:
                counts[position[category]] += count
    report.histograms[split] = counts


def _decoded(pool: ThreadPoolExecutor, dataset: Dataset) -> Iterator[tuple[Annotations, tuple[int, int, bytes] | str]]:
    """Each image's annotations with (height, width, hash of the pixels), or why it does not decode; in order."""
    window: list[tuple[Annotations, Future[tuple[int, int, bytes] | str]]] = []
    for index in range(len(dataset)):
        try:
            found = dataset.annotations(index)
        except ValueError as error:  # no image, no size to scale fractions with
            yield _without_size(dataset, index), str(error)
            continue
        window.append((found, pool.submit(_decode, found.path)))
        if len(window) >= 32:
            found, future = window.pop(0)
            yield found, future.result()
    for found, future in window:
        yield found, future.result()


def _without_size(dataset: Dataset, index: int) -> Annotations:
    none = np.zeros(0)
    return Annotations(none.reshape(0, 4), none.astype(np.int64), none.astype(bool), None, index, "", dataset.source)


def _decode(path: str) -> tuple[int, int, bytes] | str:
    try:
        image = read_image(path)
    except (ImageError, OSError) as error:
        return str(error).removeprefix(f"{path}: ")  # the finding names it
    digest = hashlib.blake2b(np.ascontiguousarray(image).data, digest_size=16, key=repr(image.shape).encode())
    return image.shape[0], image.shape[1], digest.digest()


def _image(
    report: CheckReport,
    split: str,
    found: Annotations,
    outcome: tuple[int, int, bytes] | str,
    seen: dict[bytes, tuple[str, str]],
) -> None:
    path = found.path or found.source
    if isinstance(outcome, str):
        report.findings.append(Finding(ERROR, "image", split, path, outcome))
        return
    height, width, digest = outcome
    if found.size is not None and found.size != (height, width):
        message = f"the image is {width}x{height}, annotated as {found.size[1]}x{found.size[0]}"
        stored, orientation = stored_size(path)
        if orientation >= 5 and stored == found.size:
            message += ": annotated without its EXIF rotation (the pixels are then used as stored)"
        report.findings.append(Finding(ERROR, "size", split, path, message))
    if digest in seen:
        other_split, other = seen[digest]
        kind, severity = ("leakage", ERROR) if other_split != split else ("duplicate image", WARNING)
        report.findings.append(Finding(severity, kind, split, path, f"the same pixels as {other} ({other_split})"))
    else:
        seen[digest] = split, path


def _objects(report: CheckReport, split: str, found: Annotations) -> None:
    """Pairs of boxes of one class that lie on each other; ignored objects may overlap."""
    boxes, labels = found.boxes.astype(np.float64), found.labels
    counted = np.flatnonzero(~found.ignore)
    if len(counted) < 2:
        return
    first, second = (counted[i] for i in np.triu_indices(len(counted), 1))
    same = labels[first] == labels[second]
    first, second = first[same], second[same]
    size = np.maximum(
        np.minimum(boxes[first, 2:], boxes[second, 2:]) - np.maximum(boxes[first, :2], boxes[second, :2]), 0
    )
    inside = size.prod(1)
    area = (boxes[:, 2:] - boxes[:, :2]).prod(1)
    overlap = inside / np.maximum(area[first] + area[second] - inside, 1e-12)
    numbers = np.arange(len(boxes)) if found.numbers is None else found.numbers
    for a, b, iou in zip(first, second, overlap):
        if iou >= DUPLICATE_IOU:
            message = (
                f"objects {numbers[a]} and {numbers[b]} ({report.categories[labels[a]]}) overlap with IoU {iou:.2f}"
                if labels[a] < len(report.categories)
                else f"objects {numbers[a]} and {numbers[b]} overlap with IoU {iou:.2f}"
            )
            report.findings.append(
                Finding(WARNING, "duplicate box", split, f"{found.source}, {found.image_id}", message)
            )


def _label_maps(report: CheckReport, split: str, dataset: SemanticDataset) -> None:
    counts = report.histograms[split]
    for index, (_, label_map) in enumerate(dataset.pairs):
        try:
            found = np.bincount(dataset.label_map(index).reshape(-1), minlength=256)[: len(counts)]
        except ValueError as error:
            report.findings.append(Finding(ERROR, "image", split, str(label_map), str(error)))
            continue
        counts[: len(found)] += found
