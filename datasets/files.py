"""Names of splits, images in folders, sizes from image headers: what several adapters need."""

from __future__ import annotations

import os
import re
import struct
import tempfile
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

if TYPE_CHECKING:
    from .dataset import Dataset

IMAGE_SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff", ".ppm", ".pgm", ".jfif"})
IMAGE_FOLDERS = ("images", "image", "img", "imgs", "JPEGImages", "PNGImages", "data", "frames")

_SPLIT_WORDS = {
    "train": "train",
    "training": "train",
    "trn": "train",
    "val": "val",
    "valid": "val",
    "validation": "val",
    "dev": "val",
    "test": "test",
    "testing": "test",
    "tst": "test",
    "trainval": "trainval",
}
SPLIT_FOLDERS = tuple(w for w in _SPLIT_WORDS if w != "trainval")
_ORDER = {"train": 0, "val": 1, "test": 2, "trainval": 3}


Opener = Callable[..., "Dataset"]
"""Opens one split; takes ``strict=True`` or ``False``."""


@dataclass
class Layout:
    """A recognised data set on disk: how to open each split (disjoint) and each alternate (overlapping) view."""

    format: str
    splits: Mapping[str, Opener]
    alternates: Mapping[str, Opener] = field(default_factory=dict)


def split_of(text: str) -> str | None:
    """The split (train, val, test, trainval) that a file or folder name speaks of, or None.

    >>> split_of("instances_train2017"), split_of("valid"), split_of("Testing"), split_of("trains"), split_of("a")
    ('train', 'val', 'test', None, None)
    """
    for word in re.split(r"[^a-z]+", text.lower()):
        if word in _SPLIT_WORDS:
            return _SPLIT_WORDS[word]
    return None


def split_folders(root: Path) -> dict[str, Path]:
    """Direct subfolders of ``root`` named after a split (train2017, valid, Testing), ordered train, val, test."""
    found: dict[str, Path] = {}
    for folder in sorted_folders(root):
        word = re.sub(r"[\W\d_]+$", "", folder.name.lower())
        if word in _SPLIT_WORDS:
            found.setdefault(_SPLIT_WORDS[word], folder)
    return dict(sorted(found.items(), key=lambda item: _ORDER[item[0]]))


def ordered_splits(names: Iterable[str]) -> list[str]:
    """Split names ordered train, val, test, trainval, then others by name."""
    return sorted(names, key=lambda n: (_ORDER.get(split_of(n) or "", 9), n))


def spellings(split: str) -> list[str]:
    """Other ways of writing a split's name, the given one first.

    >>> spellings("val")[:3]
    ['val', 'valid', 'validation']
    """
    canonical = split_of(split)
    return list(dict.fromkeys([split] + [w for w, c in _SPLIT_WORDS.items() if c == canonical]))


def sorted_folders(root: Path) -> list[Path]:
    """Direct subfolders by name, hidden ones and macOS archive litter left out."""
    return sorted(p for p in root.iterdir() if p.is_dir() and not p.name.startswith((".", "__MACOSX")))


def sorted_files(folder: Path, suffixes: Iterable[str]) -> list[Path]:
    """Files directly in ``folder`` with one of the suffixes (lower case, with dot), by name; hidden ones left out."""
    wanted = frozenset(suffixes)
    with os.scandir(folder) as entries:
        names = [e.name for e in entries if not e.name.startswith(".")]
    return [folder / n for n in sorted(names) if os.path.splitext(n)[1].lower() in wanted]


def images_in(folder: Path) -> list[Path]:
    """Image files directly in ``folder``, by name."""
    return sorted_files(folder, IMAGE_SUFFIXES)


def has_images(folder: Path) -> bool:
    """Whether at least one image file lies directly in ``folder``; False when there is no such folder."""
    if not folder.is_dir():
        return False
    with os.scandir(folder) as entries:
        return any(
            os.path.splitext(e.name)[1].lower() in IMAGE_SUFFIXES and not e.name.startswith(".") for e in entries
        )


def subfolder(root: Path, names: Iterable[str]) -> Path | None:
    """The first existing direct subfolder among ``names``, upper and lower case alike."""
    if not root.is_dir():
        return None
    present = {p.name.lower(): p for p in sorted_folders(root)}
    return next((present[n.lower()] for n in names if n.lower() in present), None)


def read_lines(path: Path) -> list[str]:
    """The non-empty lines of a UTF-8 text file, stripped; a byte order mark is ignored."""
    try:
        return [line.strip() for line in path.read_text("utf-8-sig").splitlines() if line.strip()]
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: expected text in UTF-8: {error}") from error


def class_list(folders: Iterable[Path], names: Iterable[str]) -> list[str] | None:
    """The class names, one a line, of the first file among ``names`` in ``folders``; None when there is none."""
    wanted = list(names)
    for folder in folders:
        for name in wanted:
            if (folder / name).is_file():
                return read_lines(folder / name)
    return None


def header_size(path: str | Path) -> tuple[int, int]:
    """(height, width) of an image after EXIF rotation, from its header alone.

    Raises ValueError naming the file when it is no image.
    """
    size, orientation = stored_size(path)
    return size[::-1] if orientation >= 5 else size


def stored_size(path: str | Path) -> tuple[tuple[int, int], int]:
    """((height, width) as stored, EXIF orientation 1..8) of an image, from its header alone."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # nothing is decoded here
            image = Image.open(path)
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise ValueError(f"{path}: cannot read the image's size: {error}") from error
    with image:
        try:
            orientation = image.getexif().get(0x0112, 1)
        except (OSError, SyntaxError, ValueError, TypeError, KeyError, EOFError, struct.error):
            orientation = 1  # a damaged EXIF block says nothing about the pixels
        return (image.height, image.width), orientation if orientation in range(1, 9) else 1


def undo_rotation(image: np.ndarray, orientation: int) -> np.ndarray:
    """The pixels as stored in the file, from an (h, w, c) image that was rotated by its EXIF orientation (5..8)."""
    transposed = image.transpose(1, 0, 2)
    flips = {5: transposed, 6: transposed[::-1], 7: transposed[::-1, ::-1], 8: transposed[:, ::-1]}
    return np.ascontiguousarray(flips[orientation])


def write_atomically(path: Path, text: str) -> None:
    """Write UTF-8 text to a temporary file in the same folder and rename it, so that a reader never sees half of it."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with open(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def pick_split(layout: Layout, split: str, source: str) -> Opener:
    """The opener of ``split``: by exact name, by name in any case, then by meaning (valid = validation = val)."""
    options: dict[str, Opener] = {**layout.alternates, **layout.splits}
    if split in options:
        return options[split]
    lower = {name.lower(): opener for name, opener in reversed(list(options.items()))}
    if split.lower() in lower:
        return lower[split.lower()]
    wanted = split_of(split)
    for table in (layout.splits, layout.alternates):
        for name, opener in table.items():
            if wanted is not None and split_of(name) == wanted:
                return opener
    alternates = f" (also: {', '.join(layout.alternates)})" if layout.alternates else ""
    raise ValueError(
        f"{source}: no split {split!r} in this {layout.format} data set; it has: "
        f"{', '.join(layout.splits) or 'none'}{alternates}"
    )
