"""A weight entry: what is known about one published file of weights, as typed data beside its model."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

PACKAGE = "package:"  # how the address of a file within the package begins


@dataclass(frozen=True, kw_only=True)
class WeightsEntry:
    """One published file of weights.

    - ``name``: the entry's name within its model, such as ``COCO_V1``.
    - ``url``: where the file is, "package:PATH" for one that comes with the package; ``sha256``: its hash in hex, or
      the first digits that the publisher puts in the file's name, empty if nobody published one; ``size``: its length
      in bytes, None if nobody published it.
    - ``parameters``: how many numbers the model learns.
    - ``licence``: of the weights, not of the code; ``source``: who trained and published them, with a link.
    - ``categories``: names by label; ``category_ids``: the data set's own ids in the same order, None if it has none.
    - ``settings``: preprocessing and thresholds of the published evaluation, read by the model alone.
    - ``metrics``: published results by data set and metric, ``{"COCO val2017": {"box AP": 37.0}}``, in percent.
    - ``notes``: what else a user should know.
    - ``by_hand``: the address is a page that asks for a click, so a program cannot download the file.

    >>> entry = WeightsEntry(
    ...     name="DEMO", url="https://example.org/demo-0123abcd.pth", sha256="0123abcd", size=None, parameters=10,
    ...     licence="BSD-3-Clause", source="example", categories=("cat", "dog"),
    ... )
    >>> validate(entry)
    """

    name: str
    url: str
    sha256: str
    size: int | None
    parameters: int
    licence: str
    source: str
    categories: tuple[str, ...]
    category_ids: tuple[int, ...] | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    metrics: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    notes: str = ""
    by_hand: bool = False

    @property
    def file(self) -> str:
        """The name of the published file."""
        return urlsplit(self.url).path.rpartition("/")[2]


def validate(entry: WeightsEntry) -> None:
    """Raise ValueError with everything that is wrong with an entry; a test calls it for every entry of the registry."""
    wrong: list[str] = []

    def check(good: bool, message: str) -> None:
        if not good:
            wrong.append(message)

    check(bool(re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*", entry.name)), f"name {entry.name!r} is not an identifier")
    parts = urlsplit(entry.url)
    check(
        (entry.url.startswith(PACKAGE) or (parts.scheme in ("http", "https") and bool(parts.netloc)))
        and not parts.path.endswith("/"),
        f"url {entry.url!r} is not the address of a file",
    )
    check(
        bool(re.fullmatch(r"([0-9a-f]{8,64})?", entry.sha256)),
        f"sha256 {entry.sha256!r} is neither empty nor 8 to 64 hex digits",
    )
    check(entry.size is None or entry.size > 0, f"size {entry.size} is not a number of bytes")
    check(entry.parameters > 0, f"parameters {entry.parameters} is not a count")
    check(bool(entry.licence.strip()), "licence is empty: write 'not stated' if the publisher says nothing")
    check(bool(entry.source.strip()), "source is empty")
    check(
        isinstance(entry.categories, tuple) and bool(entry.categories) and all(entry.categories),
        "categories is not a tuple of names",
    )
    if entry.category_ids is not None:
        check(
            len(entry.category_ids) == len(entry.categories),
            f"{len(entry.category_ids)} category_ids for {len(entry.categories)} categories",
        )
        check(len(set(entry.category_ids)) == len(entry.category_ids), "a category id occurs twice")
    for data_set, values in entry.metrics.items():
        check(bool(values), f"no metric for {data_set!r}")
        for metric, value in values.items():
            check(
                math.isfinite(value) and 0 <= value <= 100, f"{metric!r} on {data_set!r} is {value}, expected percent"
            )
    if wrong:
        raise ValueError(f"weights entry {entry.name!r}: " + "; ".join(wrong))
