"""Which classes a model tells apart, and which output of its head stands for which."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Categories:
    """The names of the classes, the data set's own ids, and the head's output ("slot") of each.

    Labels everywhere are indices into ``names``. A head can have more outputs than there are classes: a background
    class, or COCO's eleven ids that were never used. These take part in softmax and non-maximum suppression, as in the
    original implementations, and are dropped at the very end.

    >>> pets = Categories.with_background(["cat", "dog"])
    >>> pets.outputs, pets.slots, pets.labels_of(np.array([0, 1, 2]))
    (3, (1, 2), array([-1,  0,  1]))
    """

    names: tuple[str, ...]
    ids: tuple[int, ...] | None
    slots: tuple[int, ...]
    outputs: int

    def __post_init__(self) -> None:
        if not self.names:
            raise ValueError("expected at least one category, got none")
        if nameless := [n for n in self.names if not isinstance(n, str) or not n.strip()]:
            raise ValueError(f"expected the names of categories as texts, got {nameless[0]!r}")
        repeated = sorted({n for n in self.names if self.names.count(n) > 1})
        if repeated:
            raise ValueError(f"expected distinct category names, got {', '.join(repeated)} more than once")
        if self.ids is not None and len(self.ids) != len(self.names):
            raise ValueError(f"expected {len(self.names)} category ids, one for each name, got {len(self.ids)}")
        if self.ids is not None and not (all(map(_is_index, self.ids)) and len(set(self.ids)) == len(self.ids)):
            raise ValueError(f"expected distinct integers as category ids, got {self.ids}")
        fits = _is_index(self.outputs) and all(_is_index(s) and 0 <= s < self.outputs for s in self.slots)
        if not fits or len(set(self.slots)) != len(self.names) or len(self.slots) != len(self.names):
            raise ValueError(
                f"expected a slot of its own, from 0 to below {self.outputs!r} outputs, for each of "
                f"{len(self.names)} categories, got {self.slots}"
            )

    def __repr__(self) -> str:
        shown = ", ".join(self.names[:5]) + (", ..." if len(self.names) > 5 else "")
        return f"Categories({len(self.names)}: {shown})"

    def __len__(self) -> int:
        return len(self.names)

    def index(self, name: str) -> int:
        """The label of a class. Raises ValueError that names similar classes for an unknown one.

        >>> Categories.plain(["cat", "dog"]).index("dog")
        1
        """
        return label_of(name, self.names)

    @classmethod
    def plain(cls, names: Sequence[str], ids: Sequence[int] | None = None) -> Categories:
        """One output for each class."""
        names = _several(names)
        return cls(names, None if ids is None else tuple(ids), tuple(range(len(names))), len(names))

    @classmethod
    def with_background(cls, names: Sequence[str], ids: Sequence[int] | None = None) -> Categories:
        """Output 0 is the background, output k + 1 is class k."""
        names = _several(names)
        count = len(names)
        return cls(names, None if ids is None else tuple(ids), tuple(range(1, count + 1)), count + 1)

    @classmethod
    def by_id(cls, names: Sequence[str], ids: Sequence[int]) -> Categories:
        """The output of a class is its id, as torchvision's detectors have it for COCO's 91 ids."""
        return cls(_several(names), tuple(ids), tuple(ids), max(ids) + 1)

    def labels_of(self, slots: np.ndarray) -> np.ndarray:
        """The labels of head outputs; -1 for outputs that stand for no class."""
        table = np.full(self.outputs, -1, np.int64)
        table[list(self.slots)] = np.arange(len(self.names))
        return table[slots]

    def slots_of(self, labels: np.ndarray) -> np.ndarray:
        """The head outputs of labels."""
        return np.asarray(self.slots, np.int64)[labels]


def label_of(name: str, names: Sequence[str]) -> int:
    """The index of ``name`` in ``names``. Raises ValueError that names similar ones for an unknown one.

    >>> label_of("dgo", ("cat", "dog"))
    Traceback (most recent call last):
    ...
    ValueError: there is no class 'dgo': did you mean dog?
    """
    if name not in names:
        close = difflib.get_close_matches(name, names, 3, 0.5)
        hint = f"did you mean {' or '.join(close)}?" if close else f"known are {', '.join(names)}"
        raise ValueError(f"there is no class {name!r}: {hint}")
    return tuple(names).index(name)


def _several(names: Sequence[str]) -> tuple[str, ...]:
    if isinstance(names, str):
        raise TypeError(f"expected a list of category names, got the text {names!r}: pass [{names!r}]")
    return tuple(names)


def _is_index(value: Any) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)
