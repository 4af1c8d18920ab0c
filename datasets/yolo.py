"""YOLO text labels: one file an image, one object a line, all numbers fractions of the image's width and height.

A line is ``class cx cy w h``, or ``class x1 y1 x2 y2 x3 y3 ...`` for a polygon (three points or more).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from .cleaning import Problem, problem
from .files import (
    IMAGE_FOLDERS,
    Layout,
    class_list,
    has_images,
    images_in,
    ordered_splits,
    read_lines,
    sorted_files,
    sorted_folders,
    split_folders,
    split_of,
    subfolder,
)
from .objects import ObjectDataset, ObjectTable

CLASS_FILES = (
    "classes.txt",
    "obj.names",
    "_darknet.labels",
    "class_names.txt",
    "labels.txt",
    "names.txt",
    "coco.names",
)


class YOLODataset(ObjectDataset):
    """Boxes or polygons of YOLO label files.

    - ``pairs``: (label file or None, image file) of each image; no label file: no objects.
    - ``categories``: class names; None: the class numbers that occur serve as names.
    - ``keypoint_shape``: (keypoints, 2 or 3) when keypoints (x y, x y visibility) follow the box on each line.

    >>> import tempfile, pathlib
    >>> from PIL import Image
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> Image.new("RGB", (100, 50)).save(folder / "a.png")
    >>> _ = (folder / "a.txt").write_text("0 0.5 0.5 0.2 0.4")
    >>> found = YOLODataset([(folder / "a.txt", folder / "a.png")], ["cat"], name="cats", source=str(folder))
    >>> found.annotations(0).boxes.round(3).tolist()
    [[40.0, 15.0, 60.0, 35.0]]
    """

    format = "YOLO"

    def __init__(
        self,
        pairs: list[tuple[Path | None, Path]],
        categories: list[str] | None,
        *,
        name: str,
        source: str,
        keypoint_shape: tuple[int, int] | None = None,
        problems: list[Problem] | None = None,
        strict: bool = False,
    ) -> None:
        problems = list(problems or [])
        table = ObjectTable()
        images: list[tuple[str, int | str, tuple[int, int], str]] = []
        limit = None if categories is None else len(categories)
        for label_file, image in pairs:
            if label_file is not None:
                _read(table, len(images), label_file, limit, keypoint_shape, problems)
            images.append((str(image), image.stem, (0, 0), str(label_file or image)))
        if categories is None:
            categories = [str(k) for k in range(max(table.labels, default=-1) + 1)]
        if categories and categories == [str(k) for k in range(len(categories))]:
            message = "no class names found (data.yaml, classes.txt): the class numbers are the names"
            problems.append(Problem("unnamed classes", "kept", source, None, message))
        super().__init__(
            table, images, categories, name=name, source=source, problems=problems, strict=strict, fractions=True
        )


def _read(
    table: ObjectTable,
    image: int,
    file: Path,
    limit: int | None,
    keypoint_shape: tuple[int, int] | None,
    problems: list[Problem],
) -> None:
    try:
        lines = read_lines(file)
    except ValueError as error:
        problems.append(problem("unreadable", str(file), None, str(error)))
        return
    for number, line in enumerate(lines):
        words = line.split()
        try:
            label, values = float(words[0]), [float(w) for w in words[1:]]
            if label != int(label) or label < 0:
                raise ValueError(f"class {words[0]}")
        except (ValueError, OverflowError) as error:
            problems.append(problem("unreadable", str(file), number, f"line {line[:60]!r}: {error}"))
            continue
        if limit is not None and label >= limit:
            problems.append(problem("unknown class", str(file), number, f"class {int(label)}, the set names {limit}"))
            continue
        points = keypoint_shape[0] * keypoint_shape[1] if keypoint_shape else 0
        if len(values) == 4 + points:
            x, y, w, h = values[:4]
            table.add(image, int(label), (x - w / 2, y - h / 2, x + w / 2, y + h / 2), number)
            if keypoint_shape:
                xyv = np.full((keypoint_shape[0], 3), 2, np.float32)
                xyv[:, : keypoint_shape[1]] = np.reshape(values[4:], keypoint_shape)
                if keypoint_shape[1] == 2:
                    xyv[(xyv[:, :2] == 0).all(1), 2] = 0
                table.add_keypoints(len(table) - 1, xyv)
        elif not points and len(values) >= 6 and len(values) % 2 == 0:
            xs, ys = values[0::2], values[1::2]
            table.add(image, int(label), (min(xs), min(ys), max(xs), max(ys)), number)
            table.add_ring(values)
        else:
            wanted = f"{4 + points} numbers" if points else "4 numbers or the x y of 3 or more points"
            message = f"expected a class and {wanted}, got {len(values)} numbers"
            problems.append(problem("unreadable", str(file), number, message))


def read_yaml(path: Path) -> dict[str, Any]:
    """The part of YAML that data.yaml files use: ``key: value``, lists (``[a, b]`` or ``- a``), one level of mapping.

    Values stay text, lists are lists, mappings dicts. Anything else raises ValueError with file and line.

    >>> import tempfile, pathlib
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "data.yaml"
    >>> _ = path.write_text("train: images/train  # comment\\nnames:\\n  0: cat\\n  1: 'a dog'\\nnc: 2\\n")
    >>> read_yaml(path)
    {'train': 'images/train', 'names': {'0': 'cat', '1': 'a dog'}, 'nc': '2'}
    """
    result: dict[str, Any] = {}
    key: str | None = None
    for number, line in _logical_lines(path):
        text = line.strip()
        nested = line[0] in " \t" or text.startswith("- ") or text == "-"
        if nested and key is not None and text.startswith("-"):
            if result[key] == "":
                result[key] = []
            if isinstance(result[key], list):
                result[key].append(_scalar(text[1:]))
            continue
        pair = _key_value(text)
        if pair is None or (nested and key is None):
            raise ValueError(f"{path}, line {number}: expected 'key: value' or '- item', got {text!r}")
        name, value = pair[0], _value(pair[1], path, number)
        if not nested or key is None:
            key = name
            result[key] = value
            continue
        if result[key] == "":
            result[key] = {}
        if isinstance(result[key], dict):
            result[key][name] = value
    return result


def _logical_lines(path: Path) -> Iterator[tuple[int, str]]:
    """(number, text) of the lines that say something: without comments and the text of blocks (``key: |``), and with
    a bracketed list over several lines as one."""
    lines = path.read_text("utf-8-sig").splitlines()
    block = ""
    at = 0
    while at < len(lines):
        line, number = _without_comment(lines[at]), at + 1
        at += 1
        indented = line[:1] in (" ", "\t")
        if not line.strip() or line.strip() in ("---", "...") or (block and indented):
            continue
        while at < len(lines) and (line.count("[") > line.count("]") or line.count("{") > line.count("}")):
            line += " " + _without_comment(lines[at]).strip()
            at += 1
        block = line if line.endswith(("|", ">", "|-", ">-")) and not indented else ""
        yield number, line


def _without_comment(line: str) -> str:
    quote = ""
    for i, c in enumerate(line):
        if quote:
            quote = "" if c == quote else quote
        elif c in "'\"" and (i == 0 or line[i - 1] in " [,:{-'"):
            quote = c
        elif c == "#" and (i == 0 or line[i - 1] in " \t"):
            return line[:i].rstrip()
    return line.rstrip()


def _key_value(text: str) -> tuple[str, str] | None:
    match = re.match(r"""("[^"]*"|'[^']*'|[^:{\[]+?)\s*:(?:\s+(.*)|)$""", text)
    return None if match is None else (_scalar(match[1]), (match[2] or "").strip())


def _scalar(text: str) -> str:
    text = text.strip()
    if len(text) >= 2 and text[0] == text[-1] and text[0] in "'\"":
        inner = text[1:-1]
        return inner.replace("''", "'") if text[0] == "'" else inner.replace('\\"', '"')
    return text


def _value(text: str, path: Path, number: int) -> Any:
    text = text.strip()
    if text.startswith(("[", "{")):
        if not text.endswith("]" if text[0] == "[" else "}"):
            raise ValueError(f"{path}, line {number}: {text[:60]!r} is not closed")
        items = _items(text[1:-1])
        if text[0] == "[":
            return [_scalar(i) for i in items]
        pairs = [_key_value(i.replace(":", ": ", 1)) for i in items]
        if any(p is None for p in pairs):
            raise ValueError(f"{path}, line {number}: expected {{key: value, ...}}, got {text[:60]!r}")
        return {p[0]: _scalar(p[1]) for p in pairs if p}
    return _scalar(text)


def _items(text: str) -> list[str]:
    """Split at commas outside quotes; a trailing comma adds nothing."""
    items, quote, start = [], "", 0
    for i, c in enumerate(text):
        if quote:
            quote = "" if c == quote else quote
        elif c in "'\"" and not text[start:i].strip():
            quote = c
        elif c == ",":
            items.append(text[start:i])
            start = i + 1
    items.append(text[start:])
    return [i.strip() for i in items if i.strip()]


def class_names(names: Any, path: Path) -> list[str]:
    """The class names of a data.yaml's ``names``, a list or a mapping from class number.

    Raises ValueError naming the file when the numbers have gaps: labels could not be told apart from classes.
    """
    if isinstance(names, list):
        return [str(n) for n in names]
    if isinstance(names, dict) and names:
        try:
            numbered = {int(k): str(v) for k, v in names.items()}
        except ValueError as error:
            raise ValueError(f"{path}: expected class numbers as keys of names: {error}") from error
        if sorted(numbered) != list(range(len(numbered))):
            raise ValueError(
                f"{path}: expected the class numbers 0..{len(numbered) - 1} in names, got {sorted(numbered)}"
            )
        return [numbered[k] for k in range(len(numbered))]
    raise ValueError(f"{path}: expected names: a list or a mapping of class names, got {names!r}")


Naming = Callable[[], tuple[list[str] | None, tuple[int, int] | None]]


def _named(folders: list[Path], label_folders: list[Path]) -> tuple[list[str] | None, tuple[int, int] | None]:
    """The class names and the keypoint shape of a set: from a class file or a yaml file in ``folders``, or the class
    numbers of all label folders, so that every split of a set has the same classes; None when no file has a class."""
    names = class_list(folders, CLASS_FILES)
    if names:
        return names, None
    for folder in folders:
        for file in sorted_files(folder, {".yaml", ".yml"}):
            content = read_yaml(file)
            if content.get("names"):
                return class_names(content["names"], file), _keypoint_shape(content, file)
    highest = -1
    for folder in label_folders:
        for file in sorted_files(folder, {".txt"}):
            if _is_label_file(file):
                numbers = [line.split()[0] for line in read_lines(file)]
                highest = max([highest, *(int(n) for n in numbers if n.isdecimal())])
    return None if highest < 0 else [str(k) for k in range(highest + 1)], None


def _keypoint_shape(content: dict[str, Any], path: Path) -> tuple[int, int] | None:
    """(keypoints, numbers a keypoint: 2 or 3) of a pose data.yaml."""
    shape = content.get("kpt_shape")
    if shape is None:
        return None
    if isinstance(shape, list) and len(shape) == 2 and shape[0].isdecimal() and shape[1] in ("2", "3"):
        return int(shape[0]), int(shape[1])
    raise ValueError(f"{path}: expected kpt_shape: [keypoints, 2 or 3], got {shape!r}")


def _labels_beside(image_folder: Path) -> list[Path]:
    """Where the labels of an image folder may lie: its last part 'images' replaced by 'labels', or itself."""
    parts = list(image_folder.parts)
    options = []
    for i in range(len(parts) - 1, -1, -1):
        if parts[i].lower() in {f.lower() for f in IMAGE_FOLDERS}:
            options += [
                Path(*parts[:i], name, *parts[i + 1 :]) for name in ("labels", "label", "Labels", "annotations")
            ]
            break
    return [*options, image_folder.parent / "labels", image_folder]


def _pairs_of_folder(
    image_folder: Path, label_folder: Path | None, problems: list[Problem]
) -> list[tuple[Path | None, Path]]:
    images = images_in(image_folder)
    options = [label_folder] if label_folder is not None else [f for f in _labels_beside(image_folder) if f.is_dir()]
    texts: dict[str, Path] = {}
    for folder in options:
        found = {p.stem: p for p in sorted_files(folder, {".txt"}) if p.name not in CLASS_FILES}
        if any(p.stem in found for p in images):
            texts = found
            break
    stems = {p.stem for p in images}
    for stem, file in texts.items():
        if stem not in stems and _is_label_file(file):
            problems.append(problem("missing image", str(file), None, f"no image {stem}.* in {image_folder}"))
    for image in images:
        if image.stem not in texts:
            message = "no label file: taken as an image without objects"
            problems.append(Problem("missing annotation", "kept", str(image), None, message))
    return [(texts.get(p.stem), p) for p in images]


def _open(
    name: str,
    places: list[tuple[Path, Path | None]],
    naming: Naming,
    source: str,
    strict: bool = False,
) -> YOLODataset:
    """Open image folders (with the label folder, None: found) or text files that list images."""
    problems: list[Problem] = []
    pairs: list[tuple[Path | None, Path]] = []
    for place, labels in places:
        if place.is_dir():
            if not images_in(place) and (inner := subfolder(place, IMAGE_FOLDERS)):
                place = inner
            pairs += _pairs_of_folder(place, labels, problems)
            continue
        for line in read_lines(place):
            parts = Path(line.replace("\\", "/")).parts  # often the paths of another computer
            bases = (place.parent, place.parent.parent)
            tries = [Path(line), *(base.joinpath(*parts[i:]) for i in range(len(parts)) for base in bases)]
            image = next((p for p in tries if p.is_file()), None)
            if image is None:
                problems.append(problem("missing image", str(place), None, f"no file {line}"))
                continue
            options = [folder / f"{image.stem}.txt" for folder in _labels_beside(image.parent)]
            pairs.append((next((o for o in options if o.is_file()), None), image))
    categories, points = naming()
    return YOLODataset(
        pairs, categories, name=name, source=source, keypoint_shape=points, problems=problems, strict=strict
    )


def _is_label_file(path: Path) -> bool:
    """Whether the first line is a class number and at least four numbers (an empty file is one too)."""
    try:
        with path.open(encoding="utf-8-sig") as file:
            words = file.readline().split()
    except (OSError, UnicodeDecodeError):
        return False
    if not words:
        return path.stat().st_size == 0
    try:
        numbers = [float(w) for w in words]
    except ValueError:
        return False
    return len(numbers) >= 5 and numbers[0] == int(numbers[0])


def from_yaml(path: Path) -> Layout | None:
    """The splits that a data.yaml names; None when the file is no data.yaml.

    Its paths may be relative to ``path:``, to the file, or (as some exports write them) wrong by leading ``../``.
    """
    if "names" not in path.read_text("utf-8-sig"):
        return None
    content = read_yaml(path)
    keys = [k for k in ("train", "val", "valid", "validation", "test") if content.get(k)]
    if "names" not in content or not keys:
        return None
    names = content["names"]
    if isinstance(names, str) and (path.parent / names).is_file():
        categories = read_lines(path.parent / names)
    else:
        categories = class_names(names, path)
    count = str(content.get("nc", ""))
    if count.isdigit() and int(count) != len(categories):
        raise ValueError(f"{path}: nc is {count}, but names lists {len(categories)} classes")
    points = _keypoint_shape(content, path)
    base = str(content.get("path") or "")
    splits = {}
    for key in keys:
        entries = content[key] if isinstance(content[key], list) else [content[key]]
        places = [_resolve(str(e), base, path) for e in entries]
        split = split_of(key) or key
        if None in places:
            if split != "train" and not split_folders(path.parent).get(split):
                continue  # many files name a test split that was not delivered
            raise ValueError(
                f"{path}: {key}: no folder or file {entries[places.index(None)]!r}, looked beside the file"
            )
        found: list[tuple[Path, Path | None]] = [(p, None) for p in places if p is not None]
        splits[split] = partial(_open, f"{path.parent.name}@{split}", found, lambda: (categories, points), str(path))
    return Layout("YOLO", {s: splits[s] for s in ordered_splits(splits)})


def _resolve(entry: str, base: str, path: Path) -> Path | None:
    entry, base = entry.replace("\\", "/"), base.replace("\\", "/")
    bare = re.sub(r"^(\.\./|\./)+", "", entry)
    root = path.parent
    options = [root / base / entry, Path(base) / entry, root / entry, root / bare, root / base / bare]
    parts = Path(bare).parts
    options += [root.joinpath(*parts[i:]) for i in range(1, len(parts))]
    return next((o for o in options if o.exists() and o != root), None)


def find(root: Path) -> Layout | None:
    """A data.yaml, or images and labels side by side, per split or not, or label files beside the images."""
    for file in sorted_files(root, {".yaml", ".yml"}):
        if layout := from_yaml(file):
            return layout
    if root.name.lower() == "labels" and root.parent.is_dir():  # the labels folder itself was named
        images = subfolder(root.parent, IMAGE_FOLDERS)
        if images is None:
            return None
        return _layout(root, images, root, [root, root.parent])
    labels = subfolder(root, ("labels", "label", "annotations", "yolo"))
    images = subfolder(root, IMAGE_FOLDERS)
    if labels and images and (layout := _layout(root, images, labels, [root, labels, root.parent])):
        return layout
    found = {}
    for split, folder in split_folders(root).items():
        inner_images = subfolder(folder, IMAGE_FOLDERS) or folder
        inner_labels = subfolder(folder, ("labels", "label", "annotations")) or folder
        if has_images(inner_images) and _has_labels(inner_labels):
            found[split] = (inner_images, inner_labels)
    if found:
        label_folders = [labels for _, labels in found.values()]
        naming = partial(
            _named, list(dict.fromkeys([root, *label_folders, *(f.parent for f in label_folders)])), label_folders
        )
        return Layout(
            "YOLO", {s: partial(_open, f"{root.name}@{s}", [pair], naming, str(root)) for s, pair in found.items()}
        )
    for folder in [root, *sorted_folders(root)]:
        if has_images(folder) and _has_labels(folder):
            naming = partial(_named, [folder, root], [folder])
            lists = {f.stem: f for f in sorted_files(root, {".txt"}) if split_of(f.stem) and not _is_label_file(f)}
            places: dict[str, tuple[Path, Path | None]] = {s: (lists[s], None) for s in ordered_splits(lists)} or {
                "all": (folder, folder)
            }
            return Layout(
                "YOLO",
                {s: partial(_open, f"{root.name}@{s}", [place], naming, str(root)) for s, place in places.items()},
            )
    return None


def _has_labels(folder: Path) -> bool:
    files = [f for f in sorted_files(folder, {".txt"}) if f.name not in CLASS_FILES][:5]
    return any(_is_label_file(f) for f in files)


def _layout(root: Path, images: Path, labels: Path, folders: list[Path]) -> Layout | None:
    image_splits = split_folders(images)
    found = {s: f for s, f in split_folders(labels).items() if s in image_splits and _has_labels(f)}
    if found:
        naming = partial(_named, folders, list(found.values()))
        return Layout(
            "YOLO",
            {
                s: partial(_open, f"{root.name}@{s}", [(image_splits[s], f)], naming, str(root))
                for s, f in found.items()
            },
        )
    if has_images(images) and _has_labels(labels):
        naming = partial(_named, folders, [labels])
        return Layout("YOLO", {"all": partial(_open, root.name, [(images, labels)], naming, str(root))})
    return None
