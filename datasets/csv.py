"""CSV tables of boxes: one object a row.

With a header the columns may come in any order and go by these names (case, blanks and underscores do not matter):

========  ===============================================================================
path      path, filename, file, file_name, image, image_path, img, image_id, imageid
xmin ...  xmin, ymin, xmax, ymax; x1, y1, x2, y2; x_min ...; left, top, right, bottom
          or xmin and ymin with width and height of the box as w, h, box_width, box_height
label     label, class, class_name, category, name, object, label_name
size      width, height, image_width, image_height: of the image; optional
split     split, set, subset: optional
========  ===============================================================================

Without a header: ``path,x1,y1,x2,y2,class`` (keras-retinanet). A row with empty coordinates names an image without
objects. Coordinates are pixels from 0 (all between 0 and 1: fractions of the image's size).
"""

from __future__ import annotations

import csv
from collections.abc import Iterable
from functools import partial
from pathlib import Path

import numpy as np

from .cleaning import Problem, problem
from .files import (
    IMAGE_FOLDERS,
    IMAGE_SUFFIXES,
    Layout,
    header_size,
    ordered_splits,
    sorted_files,
    sorted_folders,
    split_folders,
    split_of,
)
from .objects import ObjectDataset, ObjectTable

_ALIASES = {
    "path": (
        "path",
        "filename",
        "file",
        "filepath",
        "image",
        "imagepath",
        "imagename",
        "img",
        "imageid",
        "imagefilename",
    ),
    "xmin": ("xmin", "x1", "left", "x", "bboxx", "bboxxmin", "x0"),
    "ymin": ("ymin", "y1", "top", "y", "bboxy", "bboxymin", "y0"),
    "xmax": ("xmax", "x2", "right", "bboxxmax"),
    "ymax": ("ymax", "y2", "bottom", "bboxymax"),
    "w": ("w", "boxwidth", "bboxwidth", "bboxw"),
    "h": ("h", "boxheight", "bboxheight", "bboxh"),
    "label": ("label", "class", "classname", "category", "name", "object", "labelname", "classid", "categoryname"),
    "width": ("width", "imagewidth", "imgwidth"),
    "height": ("height", "imageheight", "imgheight"),
    "split": ("split", "set", "subset", "partition", "usage"),
}
_CORNERS = ("xmin", "ymin", "xmax", "ymax")


class CSVDataset(ObjectDataset):
    """Boxes of a CSV table (see the module's text for its columns).

    - ``table``: the CSV file; ``images``: folder that the paths start from (None: the file's folder, then the
      usual image folders beside it); ``split``: only the rows of that split, where the table has such a column.
    - ``categories``: class names; None: those that occur, sorted (as numbers when all are numbers).

    Opening reads the header of every image once, to know its size.
    """

    format = "CSV"

    def __init__(
        self,
        table: str | Path,
        images: str | Path | None = None,
        *,
        split: str | None = None,
        categories: list[str] | None = None,
        name: str | None = None,
        strict: bool = False,
    ) -> None:
        path = Path(table)
        columns, rows = _rows(path)
        folders = [Path(images)] if images is not None else _image_folders(path, split)
        problems: list[Problem] = []
        objects = ObjectTable()
        names: dict[str, int] = {c: i for i, c in enumerate(categories or [])}
        positions: dict[str, int] = {}
        records: list[tuple[str, int | str, tuple[int, int], str]] = []
        for number, row in rows:
            if split is not None and "split" in columns and split_of(row[columns["split"]]) != split_of(split):
                continue
            cell = row[columns["path"]].strip().replace("\\", "/")
            if cell not in positions:
                positions[cell] = _register(cell, folders, path, number, records, problems)
            image = positions[cell]
            if image < 0:
                continue
            box = _box(row, columns)
            if box is None:
                continue
            if isinstance(box, str):
                problems.append(problem("unreadable", str(path), number, box))
                continue
            label = row[columns["label"]].strip() if "label" in columns else "object"
            if not label or (categories is not None and label not in names):
                problems.append(problem("unknown class", str(path), number, f"class {label!r}"))
                continue
            objects.add(image, names.setdefault(label, len(names)), box, number)
        if categories is None:
            categories = ordered_names(names)
        mapping = np.array([categories.index(n) for n in names] or [0], np.int64)
        objects.assign(np.array(objects.images, np.int64), mapping[np.array(objects.labels, np.int64)])
        corners = np.array(objects.boxes)
        fractions = bool(len(corners)) and corners.min() >= 0 and corners.max() <= 1
        super().__init__(
            objects,
            records,
            categories,
            name=name or path.stem,
            source=str(path),
            problems=problems,
            strict=strict,
            fractions=fractions,
        )


def _box(row: list[str], columns: dict[str, int]) -> tuple[float, float, float, float] | str | None:
    """The row's box as corners, None when its cells are empty, or what is wrong with it."""
    wanted = [key for key in (*_CORNERS, "w", "h") if key in columns]
    cells = [row[columns[key]].strip() for key in wanted]
    if not any(cells):
        return None
    try:
        value = dict(zip(wanted, (float(c) for c in cells)))
    except ValueError:
        return f"expected numbers in {', '.join(wanted)}, got {cells}"
    x, y = value["xmin"], value["ymin"]
    if "xmax" in value:
        return x, y, value["xmax"], value["ymax"]
    return x, y, x + value["w"], y + value["h"]


def _register(
    cell: str,
    folders: list[Path],
    path: Path,
    number: int,
    records: list[tuple[str, int | str, tuple[int, int], str]],
    problems: list[Problem],
) -> int:
    """Find the image that a row names and append its record; -1 (reported) when it is missing or unreadable."""
    tries = (
        [cell]
        if Path(cell).suffix.lower() in IMAGE_SUFFIXES
        else [cell, *(cell + s for s in (".jpg", ".png", ".jpeg"))]
    )
    tries += [t.rsplit("/", 1)[1] for t in tries if "/" in t]
    found = next((folder / t for t in tries for folder in folders if t and (folder / t).is_file()), None)
    if found is None:
        problems.append(problem("missing image", str(path), number, f"no file {cell!r} in {folders[0]} or beside it"))
        return -1
    try:
        size = header_size(found)
    except ValueError as error:
        problems.append(problem("unreadable", str(path), number, str(error)))
        return -1
    records.append((str(found), cell, size, str(path)))
    return len(records) - 1


def _image_folders(path: Path, split: str | None) -> list[Path]:
    bases = [path.parent, path.parent.parent]
    folders = []
    for base in bases:
        folders += [base] + [base / f for f in IMAGE_FOLDERS]
        splits = split_folders(base) if base.is_dir() else {}
        chosen = split_of(split or path.stem)
        folders += [f for s, f in splits.items() if s == chosen] + [
            f / i for f in splits.values() for i in IMAGE_FOLDERS
        ]
        folders += [base / i / f.name for i in IMAGE_FOLDERS if (base / i).is_dir() for f in sorted_folders(base / i)]
    return [f for f in folders if f.is_dir()]


def _columns(header: list[str]) -> dict[str, int] | None:
    """Which column holds what; None when the cells are no header of boxes."""
    cleaned = ["".join(c for c in cell.lower() if c.isalnum()) for cell in header]
    found: dict[str, int] = {}
    for key, aliases in _ALIASES.items():
        at = next((cleaned.index(a) for a in aliases if a in cleaned), None)
        if at is not None:
            found[key] = at
    if "path" not in found or "xmin" not in found or "ymin" not in found:
        return None
    if "xmax" not in found or "ymax" not in found:
        if "w" not in found and {"width", "height"} <= found.keys():  # x, y, width, height: of the box
            found["w"], found["h"] = found.pop("width"), found.pop("height")
        if not {"w", "h"} <= found.keys():
            return None
        found = {k: v for k, v in found.items() if k not in ("xmax", "ymax")}
    else:
        found = {k: v for k, v in found.items() if k not in ("w", "h")}
    return found


def _headerless(row: list[str]) -> bool:
    """Whether a row reads path,x1,y1,x2,y2,class (coordinates may be empty)."""
    if len(row) != 6 or Path(row[0].strip()).suffix.lower() not in IMAGE_SUFFIXES:
        return False
    cells = [c.strip() for c in row[1:5]]
    return not any(cells) or all(c.replace(".", "", 1).replace("-", "", 1).isdigit() for c in cells)


def _rows(path: Path) -> tuple[dict[str, int], list[tuple[int, list[str]]]]:
    """The columns and the (number, cells) of every row with enough cells.

    Raises ValueError naming the file, its first row and what was expected when it is no table of boxes.
    """
    with path.open(encoding="utf-8-sig", newline="") as file:
        sample = file.read(8192)
        first = sample.split("\n", 1)[0]
        delimiter = max(",;\t", key=first.count)
        file.seek(0)
        rows = [r for r in csv.reader(file, delimiter=delimiter) if any(c.strip() for c in r)]
    if rows and (columns := _columns(rows[0])) is not None:
        rows = rows[1:]
    elif rows and _headerless(rows[0]):
        columns = {"path": 0, "xmin": 1, "ymin": 2, "xmax": 3, "ymax": 4, "label": 5}
    else:
        shown = rows[0] if rows else "an empty file"
        raise ValueError(
            f"{path}: expected a header naming path, xmin, ymin, xmax, ymax, label (or their aliases), or rows "
            f"path,x1,y1,x2,y2,class; the first row is {shown}"
        )
    width = max(columns.values()) + 1
    return columns, [(n, r + [""] * (width - len(r))) for n, r in enumerate(rows)]


def is_table(path: Path) -> bool:
    """Whether a CSV file is a table of boxes."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            first = file.readline()
        row = next(csv.reader([first], delimiter=max(",;\t", key=first.count)), [])
    except (OSError, UnicodeDecodeError, csv.Error):
        return False
    return _columns(row) is not None or _headerless(row)


def _categories(folders: list[Path]) -> list[str] | None:
    """Class names of a ``class,id`` file (keras-retinanet), ordered by id; None when there is no such file."""
    for folder in folders:
        for file in sorted_files(folder, {".csv"}):
            if file.stem.lower() in ("classes", "class", "labels", "class_list", "classmap", "class_mapping"):
                with file.open(encoding="utf-8-sig", newline="") as text:
                    rows = [r for r in csv.reader(text) if len(r) == 2 and r[1].strip().isdigit()]
                if rows:
                    return [r[0].strip() for r in sorted(rows, key=lambda r: int(r[1]))]
    return None


def _occurring(tables: Iterable[Path]) -> list[str]:
    """The class names of some tables, so that every split of a set has the same classes."""
    names: set[str] = set()
    for table in tables:
        columns, rows = _rows(table)
        if "label" in columns:
            names |= {r[columns["label"]].strip() for _, r in rows} - {""}
    return ordered_names(names)


def ordered_names(names: Iterable[str]) -> list[str]:
    """Class names sorted, numbers by value.

    >>> ordered_names({"10", "9", "cat"})
    ['9', '10', 'cat']
    """
    return sorted(names, key=lambda n: (not n.isdecimal(), int(n) if n.isdecimal() else 0, n))


def _open(path: Path, tables: list[Path], name: str, split: str | None = None, strict: bool = False) -> CSVDataset:
    categories = _categories([path.parent, path.parent.parent]) or _occurring(tables)
    if not categories:
        return CSVDataset(path, split=split, name=name, strict=strict)
    return CSVDataset(path, split=split, categories=categories, name=name, strict=strict)


def from_file(path: Path) -> Layout:
    """The splits of one CSV file: its split column's values, or its name."""
    columns, rows = _rows(path)
    if "split" in columns:
        values = {split_of(r[columns["split"]]) or "all" for _, r in rows}
        if "all" not in values:
            return Layout(
                "CSV",
                {s: partial(_open, path, [path], f"{path.stem}@{s}", s) for s in ordered_splits(values)},
            )
    return Layout("CSV", {split_of(path.stem) or "all": partial(_open, path, [path], path.stem)})


def find(root: Path) -> Layout | None:
    """Tables of boxes in ``root``, in ``root/annotations`` or one in each split folder."""
    folders = [root] + [f for f in sorted_folders(root) if f.name.lower() in ("annotations", "labels")]
    files = [f for folder in folders for f in sorted_files(folder, {".csv"}) if is_table(f)]
    if len(files) == 1:
        return from_file(files[0])
    if files:
        tables = {split_of(f.stem) or f.stem: f for f in reversed(files)}
    else:
        inside = {s: [f for f in sorted_files(d, {".csv"}) if is_table(f)] for s, d in split_folders(root).items()}
        tables = {s: found[0] for s, found in inside.items() if found}
    if not tables:
        return None
    every = list(tables.values())
    return Layout("CSV", {s: partial(_open, tables[s], every, f"{root.name}@{s}") for s in ordered_splits(tables)})
