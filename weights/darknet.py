"""Darknet's files: the `.cfg` of a network, its `.weights`, and the `.names` of its classes.

Formats: github.com/AlexeyAB/darknet and github.com/pjreddie/darknet, `src/parser.c` and `src/option_list.c`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from .errors import WeightsError

_LARGEST_TEXT = 1 << 20  # bytes; real files have a few kilobytes


@dataclass(frozen=True)
class Section:
    """One section of a `.cfg`: its kind, as `convolutional`, and its options with the line each stands on."""

    kind: str
    line: int
    options: Mapping[str, str] = field(default_factory=dict)
    lines: Mapping[str, int] = field(default_factory=dict)

    def error(self, reason: str, option: str | None = None) -> WeightsError:
        """An error that names the section's line, or that of one of its options."""
        return WeightsError(f"line {self.lines.get(option or '', self.line)}: [{self.kind}] {reason}")

    def text(self, option: str, default: str) -> str:
        """The value of an option as it stands there."""
        return self.options.get(option, default)

    def integer(self, option: str, default: int | None = None, least: int = 0) -> int:
        """The whole number of an option; WeightsError for another value, one below ``least``, or one that is needed."""
        if option not in self.options:
            if default is None:
                raise self.error(f"has no {option}")
            return default
        (value,) = self._values(option, int, 1)
        if value < least:
            raise self.error(f"expected {option} of at least {least}, got {value}", option)
        return int(value)

    def number(self, option: str, default: float) -> float:
        """The number of an option."""
        return float(self._values(option, float, 1)[0]) if option in self.options else default

    def integers(self, option: str) -> list[int]:
        """The whole numbers of an option, which commas separate."""
        if option not in self.options:
            raise self.error(f"has no {option}")
        return [int(value) for value in self._values(option, int)]

    def numbers(self, option: str) -> list[float]:
        """The numbers of an option, which commas separate."""
        if option not in self.options:
            raise self.error(f"has no {option}")
        return [float(value) for value in self._values(option, float)]

    def _values(self, option: str, kind: type[int] | type[float], count: int | None = None) -> list[Any]:
        text = self.options[option]
        try:
            values = [kind(part) for part in text.rstrip(", ").split(",")]
        except ValueError:
            values = []
        if not values or count not in (None, len(values)) or not np.isfinite(values).all():
            what = "a whole number" if kind is int else "a number"
            raise self.error(f"expected {what}{'' if count else ' or several'} as {option}, got {text!r:.80}", option)
        return values


def parse_cfg(text: str) -> list[Section]:
    """The sections of a `.cfg`, in its order. Raises WeightsError, which names the line, for anything else.

    >>> [s.kind for s in parse_cfg("[net]\\nwidth = 320  # pixels\\n\\n[convolutional]\\nfilters=8")]
    ['net', 'convolutional']
    """
    sections: list[Section] = []
    options: dict[str, str] = {}
    lines: dict[str, int] = {}
    for number, raw in enumerate(text.splitlines(), 1):
        line = re.split(r"[#;]", raw, maxsplit=1)[0].strip()
        if not line:
            continue
        if heading := re.fullmatch(r"\[\s*([A-Za-z0-9_]+)\s*\]", line):
            options, lines = {}, {}
            sections.append(Section(heading[1].lower(), number, options, lines))
            continue
        name, equals, value = (part.strip() for part in line.partition("="))
        if not equals or not name or not value:
            raise WeightsError(f"line {number}: expected [section] or option=value, got {raw.strip()!r:.80}")
        if not sections:
            raise WeightsError(f"line {number}: expected [net] before the first option, got {raw.strip()!r:.80}")
        if name in options and options[name] != value:
            raise WeightsError(f"line {number}: {name} stands on line {lines[name]} already, with another value")
        options[name], lines[name] = value, number
    if not sections or sections[0].kind not in ("net", "network"):
        first = f"[{sections[0].kind}] on line {sections[0].line}" if sections else "no section"
        raise WeightsError(f"expected a Darknet .cfg, which begins with [net], got {first}")
    return sections


def read_text(path: Path) -> str:
    """A small text file; WeightsError for one that is large or no text, OSError for one that cannot be read."""
    if path.stat().st_size > _LARGEST_TEXT:
        raise WeightsError(f"expected a text of a few kilobytes, got {path.stat().st_size} bytes", path=path)
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise WeightsError("expected a text in UTF-8, got other bytes", path=path) from None


def read_weights(path: str | os.PathLike[str], expected: Sequence[tuple[str, tuple[int, ...]]]) -> dict[str, Any]:
    """The arrays of a `.weights` file, float32, by the names of ``expected``, (name, shape) in the file's order.

    The file has a header (versions, images seen in training) and then nothing but numbers, so its size is all that can
    be checked: WeightsError if it is not that of the expected arrays.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "tiny.weights"
    >>> _ = path.write_bytes(np.array([0, 2, 0, 0, 0], "<i4").tobytes() + np.array([1.5, -1], "<f4").tobytes())
    >>> read_weights(path, [("bias", (2,))])
    {'bias': array([ 1.5, -1. ], dtype=float32)}
    """
    path = Path(path)
    size = path.stat().st_size
    head = np.fromfile(path, "<i4", 3)
    major, minor = head[:2].tolist() if len(head) == 3 else (-1, -1)
    if not (0 <= major < 1000 and 0 <= minor < 1000):
        with open(path, "rb") as file:
            begins = file.read(16)
        raise WeightsError(f"expected a Darknet .weights file, got one that begins with {begins!r}", path=path)
    start = 20 if major * 10 + minor >= 2 else 16  # the count of images took four bytes before version 0.2
    counts = [int(np.prod(shape)) for _, shape in expected]
    if size != start + 4 * sum(counts):
        raise WeightsError(
            f"expected {sum(counts):,} numbers for the layers of the .cfg, got {(size - start) / 4:,.10g}: the .cfg "
            "belongs to other weights, or the file is not complete",
            path=path,
        )
    # no map of the file: Darknet overwrites its files while it trains
    values = np.fromfile(path, "<f4", offset=start)
    parts = np.split(values, np.cumsum(counts)[:-1])
    return {name: part.reshape(shape) for (name, shape), part in zip(expected, parts)}


def find_cfg(weights: Path) -> Path:
    """The `.cfg` beside a `.weights` file: `x.cfg` for `x.weights`, also for `x_best`, `x_last`, `x_1000` and so on.

    Raises WeightsError that says what was looked for.
    """
    tried = [folder_file for stem in _stems(weights) if (folder_file := weights.with_name(f"{stem}.cfg"))]
    for path in tried:
        if path.is_file():
            return path
    names = " or ".join(path.name for path in tried)
    raise WeightsError(f"expected the network's description beside it, as {names}", path=weights)


def _stems(weights: Path) -> list[str]:
    """The name of a file of weights, and that name without what Darknet appends when it saves in training."""
    plain = re.sub(r"_(final|last|best|\d+|ema)$", "", weights.stem)
    return [weights.stem] if plain == weights.stem else [weights.stem, plain]


def find_names(weights: Path, count: int) -> tuple[str, ...] | None:
    """The names of ``count`` classes beside a `.weights` file, or None if there are none.

    They are in `x.names`, in the file that `x.data` names, or in the one `.names` of the folder that has so many.
    Raises WeightsError if the first two hold another number of names.
    """
    own = [weights.with_name(f"{stem}.names") for stem in _stems(weights)]
    own += [path for stem in _stems(weights) for path in _listed(weights.with_name(f"{stem}.data"))]
    for path in own:
        if path.is_file():
            names = _names(path)
            if len(names) != count:
                raise WeightsError(f"expected the names of {count} classes, got {len(names)}", path=path)
            return names
    others = {_names(path) for path in sorted(weights.parent.glob("*.names"))}
    fitting = [names for names in others if len(names) == count]
    return fitting[0] if len(fitting) == 1 else None


def _listed(data: Path) -> Iterator[Path]:
    """Where the file may be that a `.data` file gives as `names`: from its folder, the working folder, or beside it."""
    if not data.is_file():
        return
    for line in read_text(data).splitlines():
        option, _, value = (part.strip() for part in line.partition("="))
        if option == "names" and value:
            yield from (data.parent / value, Path(value), data.parent / Path(value).name)


def _names(path: Path) -> tuple[str, ...]:
    return tuple(line.strip() for line in read_text(path).splitlines() if line.strip())
