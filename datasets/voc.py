"""Pascal VOC: boxes from XML, semantic and instance masks from PNG (http://host.robots.ox.ac.uk/pascal/VOC/)."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable
from functools import partial
from pathlib import Path

import numpy as np

from ..vision.image import read_image
from ..vision.sample import Sample
from .cleaning import Problem, problem, report
from .dataset import DETECTION, INSTANCE, Annotations, Dataset
from .files import (
    IMAGE_FOLDERS,
    Layout,
    class_list,
    has_images,
    images_in,
    ordered_splits,
    read_lines,
    sorted_files,
    split_folders,
    subfolder,
)
from .objects import ObjectDataset, ObjectTable
from .semantic import find as find_semantic
from .semantic import read_label_map
from .voc_names import VOC_CATEGORIES

CLASS_FILES = ("labels.txt", "classes.txt", "label_list.txt", "class_names.txt", "predefined_classes.txt")
_ANNOTATION_FOLDERS = ("Annotations", "annotation", "xml", "xmls", "labels")


class VOCDataset(ObjectDataset):
    """Boxes of VOC XML files; coordinates are 1-based and inclusive, so xmin and ymin lose 1.

    - ``pairs``: (XML file or None, image file) of each image; no XML: no objects. `find` makes them from a folder.
    - ``categories``: the class names; None: those that occur in ``pairs``, see `ordered_names`.

    ``difficult`` becomes ``ignore``. A box whose xmin = xmax or ymin = ymax is a click, not a box: degenerate.
    """

    format = "VOC"

    def __init__(
        self,
        pairs: list[tuple[Path | None, Path]],
        *,
        name: str,
        source: str,
        categories: list[str] | None = None,
        problems: list[Problem] | None = None,
        strict: bool = False,
    ) -> None:
        found_problems = list(problems or [])
        table = ObjectTable()
        names: dict[str, int] = {c: i for i, c in enumerate(categories or [])}
        images: list[tuple[str, int | str, tuple[int, int], str]] = []
        for xml, image in pairs:
            size = (0, 0)
            if xml is not None:
                try:
                    root = ElementTree.parse(xml).getroot()
                except (ElementTree.ParseError, OSError) as error:
                    found_problems.append(problem("unreadable", str(xml), None, str(error)))
                    continue
                size = _size(root)
                for number, item in enumerate(root.iter("object")):
                    self._add(table, len(images), item, number, names, categories is not None, found_problems, xml)
            images.append((str(image), image.stem, size, str(xml or image)))
        if categories is None:
            categories = ordered_names(names)
        position = {c: i for i, c in enumerate(categories)}
        mapping = np.array([position[c] for c in names] or [0], np.int64)
        table.assign(np.array(table.images, np.int64), mapping[np.array(table.labels, np.int64)])
        super().__init__(table, images, categories, name=name, source=source, problems=found_problems, strict=strict)

    @staticmethod
    def _add(
        table: ObjectTable,
        image: int,
        item: ElementTree.Element,
        number: int,
        names: dict[str, int],
        closed: bool,
        problems: list[Problem],
        xml: Path,
    ) -> None:
        name = (item.findtext("name") or "").strip()
        if not name or (closed and name not in names):
            problems.append(problem("unknown class", str(xml), number, f"class {name!r}"))
            return
        texts = [item.findtext(f"bndbox/{key}") for key in ("xmin", "ymin", "xmax", "ymax")]
        try:
            x0, y0, x1, y1 = (float(text or "") for text in texts)
        except ValueError:
            message = f"expected numbers xmin ymin xmax ymax in bndbox, got {texts}"
            problems.append(problem("unreadable", str(xml), number, message))
            return
        if x0 > x1 or y0 > y1:
            message = f"box {x0:g} {y0:g} {x1:g} {y1:g} has its corners in the wrong order"
            problems.append(problem("swapped", str(xml), number, message))
        x0, x1, y0, y1 = min(x0, x1), max(x0, x1), min(y0, y1), max(y0, y1)
        if x0 == x1 or y0 == y1:
            message = f"box {x0:g} {y0:g} {x1:g} {y1:g} has no width or no height"
            problems.append(problem("degenerate", str(xml), number, message))
            return
        difficult = (item.findtext("difficult") or "0").strip() == "1"
        label = names.setdefault(name, len(names))
        table.add(image, label, (x0 - 1, y0 - 1, x1, y1), number, ignore=difficult)


def ordered_names(names: Iterable[str]) -> list[str]:
    """Class names sorted; VOC's own 20 in their order when no other name and at least 10 of them occur."""
    found = set(names)
    return list(VOC_CATEGORIES) if len(found) >= 10 and found <= set(VOC_CATEGORIES) else sorted(found)


def _occurring(folders: Iterable[Path]) -> list[str]:
    """The class names of all XML files in some folders, so that every split of a set has the same classes."""
    names: set[str] = set()
    for folder in folders:
        for file in sorted_files(folder, {".xml"}):
            try:
                root = ElementTree.parse(file).getroot()
            except ElementTree.ParseError:
                continue  # reported when the file's own split is opened
            names |= {name for item in root.iter("object") if (name := (item.findtext("name") or "").strip())}
    return ordered_names(names)


def _size(root: ElementTree.Element) -> tuple[int, int]:
    """(height, width) that the XML states, (0, 0) when it does not."""
    try:
        return int(float(root.findtext("size/height") or 0)), int(float(root.findtext("size/width") or 0))
    except ValueError:
        return 0, 0


class VOCInstanceDataset(Dataset):
    """Instance masks of ``SegmentationObject`` with the classes of ``SegmentationClass``, border 255 left out.

    ``names`` are image names without extension; boxes are the extents of the masks.
    """

    format = "VOC instance"
    image_folder = "JPEGImages"

    def __init__(
        self,
        root: str | Path,
        names: list[str],
        *,
        name: str,
        categories: tuple[str, ...] = VOC_CATEGORIES,
        strict: bool = False,
    ) -> None:
        self.root, self.name, self.source = Path(root), name, str(root)
        self.tasks = (DETECTION, INSTANCE)
        self.categories = categories
        self.images = [_image_of(n, self.root / self.image_folder) for n in names]
        self.problems = [
            problem("missing image", f"{self.root}/{self.image_folder}/{n}", None, "no such image")
            for n, image in zip(names, self.images)
            if image is None
        ]
        self.names = [n for n, image in zip(names, self.images) if image is not None]
        self.images = [image for image in self.images if image is not None]
        report(name, list(self.problems), strict)

    def __len__(self) -> int:
        return len(self.names)

    def map_file(self, index: int) -> Path:
        """The file with the objects of image ``index``."""
        return self.root / "SegmentationObject" / f"{self.names[index]}.png"

    def maps(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        """(height, width) numbers of the objects (0: none, 255: border) and classes (1: the first)."""
        classes = self.root / "SegmentationClass" / f"{self.names[index]}.png"
        return read_label_map(self.map_file(index)), read_label_map(classes)

    def _objects(self, index: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Boxes, labels and masks of image ``index``."""
        objects, classes = self.maps(index)
        file = self.map_file(index)
        if objects.shape != classes.shape:
            raise ValueError(f"{file}: class map {classes.shape} and object map {objects.shape} differ")
        values = [v for v in np.unique(objects) if v not in (0, 255)]
        masks = np.stack([objects == v for v in values]) if values else np.zeros((0, *objects.shape), bool)
        boxes = np.zeros((len(values), 4), np.float32)
        labels = np.zeros(len(values), np.int64)
        for i, mask in enumerate(masks):
            rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
            boxes[i] = columns[0], rows[0], columns[-1] + 1, rows[-1] + 1
            inside = classes[mask]
            inside = inside[(inside > 0) & (inside <= len(self.categories))]
            if not len(inside):
                raise ValueError(f"{file}: object {values[i]} has no class in the class map")
            labels[i] = np.bincount(inside).argmax() - 1
        return boxes, labels, masks

    def annotations(self, index: int) -> Annotations:
        boxes, labels, masks = self._objects(index)
        return Annotations(
            boxes=boxes,
            labels=labels,
            ignore=np.zeros(len(boxes), bool),
            size=masks.shape[1:],
            image_id=self.names[index],
            path=str(self.images[index]),
            source=str(self.map_file(index)),
            areas=masks.sum((1, 2)).astype(np.float32),
        )

    def load(self, index: int) -> Sample:
        boxes, labels, masks = self._objects(index)
        path = str(self.images[index])
        return Sample(
            read_image(path), boxes=boxes, labels=labels, masks=masks, image_id=self.names[index], source=path
        )


def _image_of(name: str, folder: Path) -> Path | None:
    """The image file called ``name`` (with any image suffix) in ``folder``."""
    for suffix in (".jpg", ".png", ".jpeg", ".JPG", ".bmp", ".PNG", ".JPEG"):
        if (folder / f"{name}{suffix}").is_file():
            return folder / f"{name}{suffix}"
    return None


def _pairs(
    names: list[str] | None, xml_folder: Path, image_folder: Path, problems: list[Problem]
) -> list[tuple[Path | None, Path]]:
    """XML and image of each name (None: of every XML file and every image); those without image are reported."""
    images = {p.stem: p for p in images_in(image_folder)}
    xmls = {p.stem: p for p in sorted_files(xml_folder, {".xml"})}
    pairs: list[tuple[Path | None, Path]] = []
    for name in sorted({**images, **xmls}) if names is None else names:
        if name in xmls and name in images:
            pairs.append((xmls[name], images[name]))
        elif name in images and names is not None:
            pairs.append((None, images[name]))
            message = "listed in the split, but no XML file: taken as an image without objects"
            problems.append(Problem("missing annotation", "kept", str(images[name]), None, message))
        elif name in images:
            problems.append(Problem("missing annotation", "dropped", str(images[name]), None, "no XML file"))
        else:
            where = str(xmls.get(name, xml_folder / f"{name}.xml"))
            problems.append(problem("missing image", where, None, f"no image {name}.* in {image_folder}"))
    return pairs


def _open(
    name: str,
    root: Path,
    names: list[str] | None,
    xml_folder: Path,
    image_folder: Path,
    xml_folders: list[Path],
    strict: bool = False,
) -> VOCDataset:
    """Open one split; the XML files of all splits (``xml_folders``) make the class list when no file does."""
    problems: list[Problem] = []
    pairs = _pairs(names, xml_folder, image_folder, problems)
    folders = [root, xml_folder, xml_folder.parent, xml_folder.parent.parent]
    return VOCDataset(
        pairs,
        name=name,
        source=str(xml_folder),
        categories=class_list(folders, CLASS_FILES) or _occurring(xml_folders),
        problems=problems,
        strict=strict,
    )


def names_in(file: Path) -> list[str]:
    """The image names of an ImageSets file; of "name flag" lines (one file a class) all names, whatever the flag."""
    return [line.split()[0].rsplit("/", 1)[-1].removesuffix(".jpg") for line in read_lines(file)]


def _place(root: Path) -> tuple[Path, Path] | None:
    """(folder of XML files, folder of images) of a folder in VOC's layout or one like it."""
    folders = [subfolder(root, _ANNOTATION_FOLDERS)]
    if folders[0] is not None:
        folders.append(subfolder(folders[0], _ANNOTATION_FOLDERS))
    folders.append(root)
    for xml_folder in folders:
        if xml_folder is None or not any(_is_voc(f) for f in sorted_files(xml_folder, {".xml"})[:3]):
            continue
        for image_folder in (subfolder(root, IMAGE_FOLDERS), xml_folder, root):
            if image_folder is not None and has_images(image_folder):
                return xml_folder, image_folder
    return None


def _is_voc(file: Path) -> bool:
    try:
        return b"<annotation" in file.read_bytes()[:4096]
    except OSError:
        return False


def find(root: Path) -> Layout | None:
    """VOC's own layout, XML beside the images, or one of these in each split folder."""
    sets = subfolder(root, ("ImageSets",))
    lists: dict[str, list[str]] = {}
    for folder in [f for f in (sets and subfolder(sets, ("Main",)), sets) if f]:
        for file in sorted_files(folder, {".txt"}):
            if "_" not in file.stem:  # aeroplane_train.txt and the like repeat the same names
                lists.setdefault(file.stem, names_in(file))
    place = _place(root)
    layout = Layout("VOC", {})
    if place is not None:
        xml_folder, image_folder = place
        openers = {
            s: partial(_open, f"{root.name}@{s}", root, lists[s], xml_folder, image_folder, [xml_folder])
            for s in ordered_splits(lists)
        }
        overlapping = {"trainval"} if {"train", "val"} & set(openers) else set()
        layout.splits = {s: o for s, o in openers.items() if s not in overlapping}
        layout.alternates = {s: o for s, o in openers.items() if s in overlapping}
        if not layout.splits:
            layout.splits = {"all": partial(_open, root.name, root, None, xml_folder, image_folder, [xml_folder])}
    else:
        found: dict[str, tuple[Path, Path]] = {}
        annotations, images = subfolder(root, _ANNOTATION_FOLDERS), subfolder(root, IMAGE_FOLDERS)
        if annotations and images:  # annotations/train, images/train
            image_splits = split_folders(images)
            for split, folder in split_folders(annotations).items():
                if split in image_splits and any(_is_voc(f) for f in sorted_files(folder, {".xml"})[:3]):
                    found[split] = folder, image_splits[split]
        else:
            found = {s: inner for s, folder in split_folders(root).items() if (inner := _place(folder))}
        every = [xml_folder for xml_folder, _ in found.values()]
        layout.splits = {s: partial(_open, f"{root.name}@{s}", root, None, *pair, every) for s, pair in found.items()}
    segmented = sets and subfolder(sets, ("Segmentation",))
    if segmented and (root / "SegmentationClass").is_dir():
        semantic = find_semantic(root)
        if semantic is not None:
            layout.alternates = dict(layout.alternates) | {
                f"semantic-{s}": o for s, o in {**semantic.splits, **semantic.alternates}.items()
            }
    if segmented and (root / "SegmentationObject").is_dir():
        names = class_list([root], CLASS_FILES)
        categories = tuple(names) if names else VOC_CATEGORIES
        for file in sorted_files(segmented, {".txt"}):
            name = f"instance-{file.stem}"
            opener = partial(
                VOCInstanceDataset, root, names_in(file), name=f"{root.name}@{name}", categories=categories
            )
            layout.alternates = {**layout.alternates, name: opener}
        if not layout.splits:
            layout.splits = {
                s.removeprefix("instance-"): o for s, o in layout.alternates.items() if s.startswith("instance-")
            }
    return layout if layout.splits else None
