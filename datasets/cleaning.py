"""The written rule for dirty annotations, in one place: clip, drop or keep; always reported, never silent.

====================  =======  ==========================================================================
what is wrong         action   detail
====================  =======  ==========================================================================
not finite            dropped  a coordinate is NaN or infinite
swapped               sorted   xmax < xmin or ymax < ymin: the corners are put in order
outside               clipped  a box leaves the image; by up to half a pixel it is the rounding of the
                               file format and is clipped without a report
degenerate            dropped  nothing of at least 0.001 pixels a side is left (after clipping)
no mask               kept     an object without outline in a set that has outlines: its box is its mask
missing image         dropped  the annotated image file does not exist
missing annotation    kept     an image without annotation file is one without objects; dropped where the
                               annotation would be a label map, or an XML file that no split lists
unnamed classes       kept     no file names the classes: numbers serve as names
unknown class         dropped  an object of a class the set does not list
unreadable            dropped  a line, object or file that is not in its format
size                  kept     the image is not of the annotated size; boxes are clipped to the real one
====================  =======  ==========================================================================

Every case becomes a `Problem` in ``dataset.problems``, and opening a set logs one summarising warning. With
``strict=True`` the first opening raises `DirtyDataError` instead.
"""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass

import numpy as np

log = logging.getLogger("chainsight.datasets")

MIN_SIDE = 1e-3
ROUNDING = 0.5


@dataclass(frozen=True)
class Problem:
    """One thing wrong with a data set, and what was done about it.

    ``kind`` is a row of the table above, ``action`` what was done (clipped, dropped, sorted, kept), ``source`` the
    file, ``object`` the object's index in that file counted from 0 (None: the whole file).

    >>> print(Problem("degenerate", "dropped", "a.xml", 3, "box 4 4 4 4 has no area"))
    a.xml, object 3: degenerate: box 4 4 4 4 has no area (dropped)
    """

    kind: str
    action: str
    source: str
    object: int | None
    message: str

    def __str__(self) -> str:
        where = self.source if self.object is None else f"{self.source}, object {self.object}"
        return f"{where}: {self.kind}: {self.message} ({self.action})"


class DirtyDataError(ValueError):
    """Raised for dirty annotations when a data set is opened with ``strict=True``; lists the problems."""


def report(name: str, problems: list[Problem], strict: bool) -> None:
    """Log one line that sums up ``problems``, or raise `DirtyDataError` when ``strict``.

    >>> report("boats", [], strict=True)
    """
    if not problems:
        return
    counts = Counter(f"{p.kind}, {p.action}" for p in problems)
    summary = "; ".join(f"{n} {what}" for what, n in counts.most_common())
    if strict:
        raise DirtyDataError(f"{name}: {summary}\n  " + "\n  ".join(str(p) for p in problems[:20]))
    log.warning("%s: %s (first: %s; all in dataset.problems)", name, summary, problems[0])


@dataclass(frozen=True)
class CleanedBoxes:
    """The outcome of `clean_boxes`: the boxes, which to keep, and why (kind, index, message) for each finding."""

    boxes: np.ndarray
    keep: np.ndarray
    findings: list[tuple[str, int, str]]


def clean_boxes(
    boxes: np.ndarray, sizes: np.ndarray, *, rounding: float = ROUNDING, min_side: float = MIN_SIDE
) -> CleanedBoxes:
    """Apply the rule of this module to ``boxes``.

    - ``boxes``: (n, 4) float, xyxy; not modified.
    - ``sizes``: (n, 2) height and width of each box's image in their unit; 0 or less: not known, not clipped.
    - returns float32 boxes of the same length, ``keep`` (n,) bool, and the findings.

    >>> cleaned = clean_boxes(np.array([[-5.0, 0, 4, 4], [3, 3, 3, 9]]), np.array([[10, 10], [10, 10]]))
    >>> cleaned.boxes[0].tolist(), cleaned.keep.tolist(), [kind for kind, _, _ in cleaned.findings]
    ([0.0, 0.0, 4.0, 4.0], [True, False], ['outside', 'degenerate'])
    """
    raw = np.asarray(boxes, np.float64).reshape(-1, 4)
    sizes = np.asarray(sizes, np.float64).reshape(-1, 2)
    finite = np.asarray(np.isfinite(raw).all(1))
    ordered = np.where(finite[:, None], raw, 0.0)
    swapped: np.ndarray = finite & (ordered[:, :2] > ordered[:, 2:]).any(1)
    ordered = np.concatenate(
        [np.minimum(ordered[:, :2], ordered[:, 2:]), np.maximum(ordered[:, :2], ordered[:, 2:])], 1
    )
    known = np.asarray((sizes > 0).all(1))
    limit = np.where(known[:, None], sizes[:, [1, 0, 1, 0]], np.inf)
    low = np.where(known, 0.0, -np.inf)[:, None]
    clipped = np.clip(ordered, low, limit)
    outside: np.ndarray = finite & (np.abs(clipped - ordered) > rounding).any(1)
    degenerate: np.ndarray = finite & ((clipped[:, 2:] - clipped[:, :2]) < min_side).any(1)

    findings = []
    for index in np.flatnonzero(swapped | outside | degenerate | ~finite):
        box = " ".join(f"{v:.7g}" for v in raw[index])
        i = int(index)
        if not finite[index]:
            findings.append(("not finite", i, f"box {box}"))
            continue
        if swapped[index]:
            findings.append(("swapped", i, f"box {box} has its corners in the wrong order"))
        if degenerate[index]:
            beyond = " inside the image" if outside[index] else ""
            findings.append(("degenerate", i, f"box {box} has no width or no height{beyond}"))
        elif outside[index]:
            height, width = sizes[index]
            findings.append(("outside", i, f"box {box} leaves the image of {width:g}x{height:g}"))
    return CleanedBoxes(clipped.astype(np.float32), finite & ~degenerate, findings)


ACTIONS = {
    "not finite": "dropped",
    "degenerate": "dropped",
    "outside": "clipped",
    "swapped": "sorted",
    "no mask": "kept",
    "missing image": "dropped",
    "unknown class": "dropped",
    "unreadable": "dropped",
    "size": "kept",
}


def problem(kind: str, source: str, index: int | None, message: str) -> Problem:
    """A `Problem` with the action that the rule prescribes for its kind.

    >>> problem("outside", "a.txt", 0, "box").action
    'clipped'
    """
    return Problem(kind, ACTIONS[kind], source, index, message)
