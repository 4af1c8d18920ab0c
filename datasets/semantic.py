"""Semantic segmentation: a folder of images and a folder of label maps (PNG, palette or grey or coloured).

The class names come from a file in the data set:

- ``classes.json``: a list of ``{"index" (or "id", "value"): 3, "name": "road", "color": [r, g, b] (optional)}``, a
  list of names, or a mapping name -> index or index -> name;
- ``labels.txt``, ``classes.txt``: one name a line, the first is value 0 (LabelMe's ``__ignore__`` before it: -1);
- ``_classes.csv`` (``Pixel Value, Class``) or ``class_dict.csv`` (``name,r,g,b``: coloured maps).

Values become labels 0..n-1 in ascending order. Value 255, values of classes called unlabeled, void or ignore, and
values that the file does not list become 255: not annotated. Without a file the values that occur are the classes;
maps of only 0 and 255 are background and foreground.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from ..vision.image import read_image
from ..vision.sample import Sample
from .cleaning import Problem, log, problem, report
from .dataset import SEMANTIC, Annotations, Dataset
from .files import (
    IMAGE_FOLDERS,
    Layout,
    header_size,
    images_in,
    ordered_splits,
    read_lines,
    sorted_files,
    split_folders,
    split_of,
    subfolder,
)
from .voc_names import VOC_CATEGORIES

IGNORE = 255
_IGNORED_NAMES = frozenset({"unlabeled", "unlabelled", "void", "ignore", "__ignore__", "ignored", "undefined"})
_MAP_SUFFIXES = frozenset({".png", ".bmp", ".tif", ".tiff", ".gif"})
_MASK_FOLDERS = (
    "masks", "mask", "semantic", "SegmentationClass", "SegmentationClassPNG", "labels", "label", "annotations",
    "annotation", "ann", "ann_dir", "anns", "gt", "gts", "gtFine", "segmentation", "segmentations",
    "segmentation_masks", "ground_truth", "groundtruth", "targets", "seg", "trimaps", "label_maps",
)  # fmt: skip
_IMAGE_FOLDERS = (*IMAGE_FOLDERS, "img_dir", "leftImg8bit", "photos", "rgb", "input", "inputs")
_MASK_ENDING = re.compile(
    r"[_\-.](gtfine|labelids|labeltrainids|mask|masks|gt|label|labels|seg|segmentation|annotation|groundtruth|lab|l)$"
)
_IMAGE_ENDING = re.compile(r"[_\-.](leftimg8bit|image|img|rgb|sat)$")


@dataclass(frozen=True)
class LabelScheme:
    """What the values (or colours) of label maps mean.

    ``values[i]`` is the value of class ``names[i]``; ``colors`` maps (r, g, b) to values in coloured maps.
    """

    names: tuple[str, ...]
    values: tuple[int, ...]
    colors: dict[tuple[int, int, int], int] | None = None
    ignored: frozenset[int] = frozenset({IGNORE})
    named: bool = True

    @classmethod
    def from_entries(
        cls, entries: list[tuple[int, str]], colors: dict[tuple[int, int, int], int] | None, source: str
    ) -> LabelScheme:
        """Sort by value and split off the classes that mean "not annotated"; ValueError when a value comes twice."""
        entries = sorted(entries)
        values = [v for v, _ in entries]
        if len(set(values)) != len(values):
            raise ValueError(
                f"{source}: two classes have one value: {sorted(v for v in values if values.count(v) > 1)}"
            )
        ignored = {v for v, n in entries if n.strip().lower() in _IGNORED_NAMES or v < 0} | {IGNORE}
        kept = [(v, n) for v, n in entries if v not in ignored]
        if not 0 < len(kept) <= IGNORE:
            raise ValueError(f"{source}: expected 1 to {IGNORE} classes, got {len(kept)}")
        return cls(tuple(n for _, n in kept), tuple(v for v, _ in kept), colors, frozenset(ignored))

    def apply(self, raw: np.ndarray) -> tuple[np.ndarray, list[int]]:
        """((h, w) uint8 labels with 255 for what is not annotated, the values that the scheme does not know)."""
        if raw.ndim == 3:
            if self.colors is None:
                raise ValueError(
                    "a coloured label map, but the data set lists no colours (class_dict.csv, classes.json)"
                )
            packed = raw.astype(np.int32) @ np.array([1 << 16, 1 << 8, 1], np.int32)
            colors = {(r << 16) + (g << 8) + b: v for (r, g, b), v in self.colors.items()}
            present, inverse = np.unique(packed, return_inverse=True)
            index = np.array([colors.get(int(p), -1) for p in present], np.int64)
            found = index[inverse].reshape(packed.shape)
            raw = np.where(found < 0, IGNORE, found)
        table = np.full(int(max(raw.max(initial=0), max(self.values))) + 1, IGNORE, np.uint8)
        table[list(self.values)] = np.arange(len(self.values))
        unknown = [int(v) for v in np.flatnonzero(np.bincount(raw.reshape(-1), minlength=1))]
        unknown = [v for v in unknown if v not in self.values and v not in self.ignored]
        return table[raw], unknown


class SemanticDataset(Dataset):
    """Images with label maps; opening reads neither.

    - ``pairs``: (image, label map) files; ``scheme``: what the values mean.
    - ``category_ids``: the value of each class in the files.

    A label map of another size than its image is reported by `check` and raises ValueError when it is read.
    """

    format = "semantic"

    def __init__(
        self,
        pairs: list[tuple[Path, Path]],
        scheme: LabelScheme,
        *,
        name: str,
        source: str,
        problems: list[Problem] | None = None,
        strict: bool = False,
    ) -> None:
        self.pairs, self.scheme, self.name, self.source = pairs, scheme, name, source
        self.tasks = (SEMANTIC,)
        self.categories, self.category_ids = scheme.names, scheme.values
        self.problems = list(problems or [])
        if not scheme.named:
            message = "no class names found (classes.json, labels.txt): the values of the label maps are the names"
            self.problems.append(Problem("unnamed classes", "kept", source, None, message))
        self._unknown_noted = False
        report(name, self.problems, strict)

    def __len__(self) -> int:
        return len(self.pairs)

    def annotations(self, index: int) -> Annotations:
        image, label_map = self.pairs[index]
        return Annotations(
            boxes=np.zeros((0, 4), np.float32),
            labels=np.zeros(0, np.int64),
            ignore=np.zeros(0, bool),
            size=header_size(label_map),
            image_id=image.stem,
            path=str(image),
            source=str(label_map),
        )

    def label_map(self, index: int) -> np.ndarray:
        """(h, w) uint8 labels of image ``index`` without reading the image, 255 where nothing is annotated."""
        path = self.pairs[index][1]
        try:
            labels, unknown = self.scheme.apply(read_label_map(path))
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error
        if unknown and not self._unknown_noted:
            self._unknown_noted = True
            note = Problem(
                "unknown class", "ignored", str(path), None, f"values {unknown[:10]} are no class: now {IGNORE}"
            )
            log.warning("%s: %s", self.name, note)
            self.problems = [*self.problems, note]
        return labels

    def load(self, index: int) -> Sample:
        image = self.pairs[index][0]
        return Sample(read_image(image), semantic=self.label_map(index), image_id=image.stem, source=str(image))

    def histogram(self) -> np.ndarray:
        """(classes,) int64: pixels of each class in all label maps."""
        counts = np.zeros(256, np.int64)
        for i in range(len(self)):
            counts += np.bincount(self.label_map(i).reshape(-1), minlength=256)
        return counts[: len(self.categories)]


def read_label_map(path: Path) -> np.ndarray:
    """The values of a label map: (h, w) integers (palette index, grey level), or (h, w, 3) uint8 if it is coloured."""
    try:
        with Image.open(path) as image:
            if image.mode in ("P", "L", "1", "I", "I;16", "I;16B", "I;16L"):
                pixels = np.asarray(image)
            elif image.mode in ("LA", "PA"):
                pixels = np.asarray(image)[..., 0]
            else:
                pixels = np.asarray(image.convert("RGB"))
    except (OSError, SyntaxError) as error:
        raise ValueError(f"{path}: cannot read the label map: {error}") from error
    if pixels.ndim == 3 and (pixels == pixels[..., :1]).all():
        pixels = pixels[..., 0]
    if pixels.dtype.kind not in "ui":
        pixels = pixels.astype(np.uint8)
    return pixels


def read_scheme(folders: Iterable[Path]) -> LabelScheme | None:
    """The label scheme of the first class file found in ``folders``; None when there is none."""
    for folder in folders:
        for name in ("classes.json", "labels.json", "class_dict.csv", "_classes.csv", "classes.csv"):
            if (folder / name).is_file():
                path = folder / name
                return _from_json(path) if path.suffix == ".json" else _from_csv(path)
        for name in ("labels.txt", "classes.txt", "class_names.txt", "label_names.txt"):
            if (folder / name).is_file():
                names = read_lines(folder / name)
                first = -1 if names and names[0] == "__ignore__" else 0
                return LabelScheme.from_entries([(first + i, n) for i, n in enumerate(names)], None, str(folder / name))
    return None


def _from_json(path: Path) -> LabelScheme:
    content: Any = json.loads(path.read_text("utf-8-sig"))
    if isinstance(content, dict) and isinstance(content.get("classes") or content.get("categories"), list):
        content = content.get("classes") or content["categories"]
    entries: list[tuple[int, str]] = []
    colors: dict[tuple[int, int, int], int] = {}
    try:
        if isinstance(content, dict):
            pairs = [(k, v) if str(k).lstrip("-").isdigit() else (v, k) for k, v in content.items()]
            entries = [(int(v), str(n)) for v, n in pairs]
        else:
            for i, item in enumerate(content):
                if isinstance(item, str):
                    entries.append((i, item))
                    continue
                value = next((int(item[k]) for k in ("index", "id", "value", "label_id") if k in item), i)
                entries.append((value, str(item["name"])))
                color = item.get("color") or item.get("colour")
                if color:
                    colors[int(color[0]), int(color[1]), int(color[2])] = value
    except (TypeError, KeyError, ValueError) as error:
        raise ValueError(f"{path}: expected classes with index and name: {error!r}") from error
    return LabelScheme.from_entries(entries, colors or None, str(path))


def _from_csv(path: Path) -> LabelScheme:
    with path.open(encoding="utf-8-sig", newline="") as file:
        rows = [[c.strip() for c in r] for r in csv.reader(file) if any(c.strip() for c in r)]
    body = rows[1:] if rows and not any(c.isdigit() for c in rows[0]) else rows
    try:
        if body and len(body[0]) >= 4:
            colors = {(int(r[1]), int(r[2]), int(r[3])): i for i, r in enumerate(body)}
            return LabelScheme.from_entries([(i, r[0]) for i, r in enumerate(body)], colors, str(path))
        number = 0 if body and body[0][0].isdigit() else 1
        return LabelScheme.from_entries([(int(r[number]), r[1 - number]) for r in body], None, str(path))
    except (ValueError, IndexError) as error:
        raise ValueError(f"{path}: expected rows 'value,name' or 'name,r,g,b': {error}") from error


def scheme_of_maps(maps: list[Path], sample: int = 500) -> LabelScheme:
    """The scheme of label maps without a class file, from the values of (at most ``sample``, evenly spread) maps."""
    values: set[int] = set()
    for path in maps[:: max(1, -(-len(maps) // sample))]:
        raw = read_label_map(path)
        if raw.ndim == 3:
            raise ValueError(
                f"{path}: a coloured label map, but the data set lists no colours (class_dict.csv, classes.json)"
            )
        values |= {int(v) for v in np.flatnonzero(np.bincount(raw.reshape(-1)))}
    if 255 in values and values <= {0, 255}:
        return LabelScheme(("background", "foreground"), (0, 255), ignored=frozenset())
    top = max(values - {IGNORE}, default=0)
    if top >= IGNORE:
        raise ValueError(f"{maps[0].parent}: label values up to {top} need a class file (classes.json, labels.txt)")
    return LabelScheme(tuple(str(v) for v in range(top + 1)), tuple(range(top + 1)), named=False)


def _mask_key(stem: str) -> str:
    key = stem.lower()
    while (shorter := _MASK_ENDING.sub("", key)) != key:
        key = shorter
    return _IMAGE_ENDING.sub("", key)


def _image_key(stem: str) -> str:
    return _IMAGE_ENDING.sub("", stem.lower())


def pair_files(images: list[Path], maps: list[Path], problems: list[Problem]) -> list[tuple[Path, Path]]:
    """Match images with label maps by name, endings such as ``_mask`` left out; the unmatched are reported."""
    by_key: dict[str, Path] = {}
    for path in maps:
        by_key.setdefault(path.stem.lower(), path)
        by_key.setdefault(_mask_key(path.stem), path)
    pairs = []
    for image in images:
        found = by_key.get(image.stem.lower()) or by_key.get(_image_key(image.stem))
        if found is None:
            problems.append(Problem("missing annotation", "dropped", str(image), None, "no label map of this name"))
        else:
            pairs.append((image, found))
    used = {label_map for _, label_map in pairs}
    for path in maps:
        if path not in used:
            problems.append(problem("missing image", str(path), None, "no image of this name"))
    return pairs


def _open(
    name: str,
    image_folder: Path,
    map_folder: Path,
    folders: list[Path],
    every: list[tuple[Path, Path]],
    names: list[str] | None = None,
    strict: bool = False,
) -> SemanticDataset:
    """Open one split; ``every`` lists the folders of all splits, whose values make the scheme when no file does."""
    problems: list[Problem] = []
    images, maps = _contents(image_folder, map_folder)
    if names is not None:
        wanted = set(names)
        images, maps = (
            [p for p in images if p.stem in wanted],
            [p for p in maps if _mask_key(p.stem) in {w.lower() for w in wanted}],
        )
    pairs = pair_files(images, maps, problems)
    scheme = read_scheme(folders)
    if (
        scheme is None
        and (map_folder.name.startswith("SegmentationClass"))
        and (map_folder.parent / "JPEGImages").is_dir()
    ):
        scheme = voc_scheme()
    if scheme is None:
        scheme = scheme_of_maps([p for pair in every for p in _contents(*pair)[1]])
    return SemanticDataset(pairs, scheme, name=name, source=str(map_folder), problems=problems, strict=strict)


def voc_scheme() -> LabelScheme:
    """Background and VOC's 20 classes with values 0..20."""
    return LabelScheme(("background", *VOC_CATEGORIES), tuple(range(21)))


def _contents(image_folder: Path, map_folder: Path) -> tuple[list[Path], list[Path]]:
    """Images and label maps of two folders, or of one in which the maps end in ``_mask`` or the like."""
    if image_folder != map_folder:
        return images_in(image_folder), sorted_files(map_folder, _MAP_SUFFIXES)
    files = images_in(image_folder)
    stems = {p.stem.lower() for p in files}
    maps = [
        p
        for p in files
        if p.suffix.lower() in _MAP_SUFFIXES and _mask_key(p.stem) != p.stem.lower() and _mask_key(p.stem) in stems
    ]
    inside = set(maps)
    return [p for p in files if p not in inside], maps


def _matched(image_folder: Path | None, map_folder: Path | None) -> bool:
    if image_folder is None or map_folder is None or not image_folder.is_dir() or not map_folder.is_dir():
        return False
    return bool(pair_files(*_contents(image_folder, map_folder), []))


def find(root: Path) -> Layout | None:
    """Images and label maps: in two folders, in two folders of each split, in one folder, or split and splitannot."""
    found = _places(root)
    if not found:
        return None
    pairs = list(found.values())
    folders = list(dict.fromkeys([root, *(m for _, m in pairs), *(m.parent for _, m in pairs)]))
    lists = _lists(root) if list(found) == ["all"] else {}
    if lists:
        image_folder, map_folder = found["all"]
        splits = {
            s: partial(_open, f"{root.name}@{s}", image_folder, map_folder, folders, pairs, names)
            for s, names in lists.items()
        }
        overlapping = {s for s in splits if s == "trainval"} if len(splits) > 1 else set()
        return Layout(
            "semantic",
            {s: splits[s] for s in ordered_splits(splits) if s not in overlapping},
            {s: splits[s] for s in overlapping},
        )
    return Layout(
        "semantic",
        {
            s: partial(_open, root.name if s == "all" else f"{root.name}@{s}", i, m, folders, pairs)
            for s, (i, m) in found.items()
        },
    )


def _lists(root: Path) -> dict[str, list[str]]:
    """Image names of each split from text files in ImageSets/Segmentation, splits or the root."""
    sets = subfolder(root, ("ImageSets",))
    for folder in [sets and (subfolder(sets, ("Segmentation",)) or sets), subfolder(root, ("splits",)), root]:
        if folder:
            files = [f for f in sorted_files(folder, {".txt"}) if split_of(f.stem)]
            if files:
                return {f.stem: [Path(line.split()[0]).stem for line in read_lines(f)] for f in files}
    return {}


def _places(root: Path) -> dict[str, tuple[Path, Path]]:
    """(image folder, map folder) of each split, or under "all"."""
    images = subfolder(root, _IMAGE_FOLDERS)
    for name in _MASK_FOLDERS:
        maps = subfolder(root, (name,))
        if maps is None or maps == images:
            continue
        if images is None:
            continue
        in_images, in_maps = split_folders(images), split_folders(maps)
        found = {s: (in_images[s], in_maps[s]) for s in in_maps if _matched(in_images.get(s), in_maps[s])}
        if found:
            return found
        if _matched(images, maps):
            return {"all": (images, maps)}
    found = {}
    for split, folder in split_folders(root).items():
        inner_images = subfolder(folder, _IMAGE_FOLDERS) or folder
        candidates = [subfolder(folder, (n,)) for n in _MASK_FOLDERS]
        candidates += [root / f"{folder.name}{end}" for end in ("annot", "_labels", "_masks", "_mask", "_gt", "_annot")]
        candidates += [folder]
        for maps in candidates:
            if maps is not None and _matched(inner_images, maps):
                found[split] = (inner_images, maps)
                break
    if found:
        return found
    if _matched(root, root):
        return {"all": (root, root)}
    names = {n.lower() for n in _MASK_FOLDERS}
    beside = subfolder(root.parent, _IMAGE_FOLDERS) if root.name.lower() in names or read_scheme([root]) else None
    if beside is not None and beside != root:
        in_images, in_maps = split_folders(beside), split_folders(root)
        found = {s: (in_images[s], in_maps[s]) for s in in_maps if _matched(in_images.get(s), in_maps[s])}
        if not found and _matched(beside, root):
            found = {"all": (beside, root)}
    return found
