"""Fitting the arrays of a file to the parameters of a model."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from .errors import WeightsError


class HasShape(Protocol):
    """Whatever knows its shape and dtype: an array, a Tensor, a parameter."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> np.dtype[Any]: ...


def _torchvision_renames() -> tuple[tuple[str, str], ...]:
    pairs = [
        (r"(.*fpn\.(?:inner|layer)_blocks\.\d+)\.(weight|bias)", r"\1.0.\2"),
        (r"(rpn\.head\.conv)\.(weight|bias)", r"\1.0.0.\2"),
    ]
    for i in range(4):
        pairs.append((rf"(roi_heads\.mask_head)\.mask_fcn{i + 1}\.(weight|bias)", rf"\1.{i}.0.\2"))
        pairs.append((rf"(head\.(?:classification|regression)_head\.conv)\.{2 * i}\.(weight|bias)", rf"\1.{i}.0.\2"))
    return tuple(pairs)


TORCHVISION_RENAMES = _torchvision_renames()
"""Names in torchvision's files of 2019 to 2021 and what the same layers are called since: FPN, RPN, mask and
RetinaNet heads. A name that the model knows is never renamed, so files of either age load."""


@dataclass
class LoadReport:
    """What became of every name when a file met a model; ``str()`` lists them all.

    - ``arrays``: the arrays to load, by the model's names and in the model's dtypes.
    - ``missing``: parameters for which the file has nothing.
    - ``unexpected``: names in the file that the model does not know.
    - ``mismatched``: parameters whose shape or kind of number differs, with both sides.
    - ``reinitialised``: parameters that keep their fresh values because the caller asked for it.
    - ``skipped``: names that are absent from the file or the model, and may be.
    """

    arrays: dict[str, NDArray[Any]] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)
    mismatched: list[tuple[str, str]] = field(default_factory=list)
    reinitialised: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)

    @property
    def loaded(self) -> list[str]:
        """The parameters that get the file's values."""
        return list(self.arrays)

    @property
    def fits(self) -> bool:
        """Whether nothing is missing, unexpected or mismatched."""
        return not (self.missing or self.unexpected or self.mismatched)

    def __str__(self) -> str:
        lines = [f"{len(self.arrays)} loaded"]
        parts: list[tuple[str, list[str]]] = [
            ("missing from the file", self.missing),
            ("unexpected in the file", self.unexpected),
            ("mismatched", [f"{name}: {what}" for name, what in self.mismatched]),
            ("reinitialised", self.reinitialised),
            ("skipped", self.skipped),
        ]
        for title, names in parts:
            if names:
                lines.append(f"{len(names)} {title}:")
                lines += [f"  {name}" for name in names]
        return "\n".join(lines)


def match_state(
    expected: Mapping[str, HasShape],
    found: Mapping[str, NDArray[Any]],
    *,
    renames: Iterable[tuple[str, str]] = (),
    allow_missing: Iterable[str] = (),
    allow_unexpected: Iterable[str] = (),
    reinitialise: Iterable[str] = (),
    strict: bool = True,
) -> LoadReport:
    """Match the arrays ``found`` in a file to the parameters ``expected`` by a model, by name.

    ``renames`` are pairs of a regular expression for a whole name and its replacement; the first that matches a name
    the model does not know is applied. ``allow_missing``, ``allow_unexpected`` and ``reinitialise`` are regular
    expressions for whole names. Floats of any width fit floats, integers fit integers. ``num_batches_tracked`` may
    always be absent on either side: files before torch 0.4.1 and frozen norms have none.

    Raises WeightsError with the whole report if anything is missing, unexpected or mismatched and ``strict`` is set,
    and always when two names of the file become one.

    >>> model = {"conv.weight": np.zeros((2, 1)), "head.bias": np.zeros(3)}
    >>> report = match_state(model, {"conv.weight": np.ones((2, 1))}, reinitialise=[r"head\\..*"])
    >>> print(report)
    1 loaded
    1 reinitialised:
      head.bias
    """
    report = LoadReport()
    untracked = r"(.*\.)?num_batches_tracked"
    may_miss, may_surplus = [*allow_missing, untracked], [*allow_unexpected, untracked]
    fresh, renames = list(reinitialise), list(renames)
    by_name: dict[str, NDArray[Any]] = {}
    origin: dict[str, str] = {}
    for old in found:
        name = old if old in expected else _rename(old, renames, expected)
        if name in by_name:
            raise WeightsError(f"{origin[name]!r} and {old!r} in the file both stand for {name!r}", key=old)
        by_name[name], origin[name] = found[old], old

    for name, wanted in expected.items():
        if _matches(name, fresh):
            report.reinitialised.append(name)
        elif name not in by_name:
            (report.skipped if _matches(name, may_miss) else report.missing).append(name)
        else:
            array = by_name[name]
            if tuple(wanted.shape) == array.shape and _same_kind(wanted.dtype, array.dtype):
                report.arrays[name] = array.astype(wanted.dtype, copy=False)
            else:
                what = f"expected {tuple(wanted.shape)} {wanted.dtype}, got {array.shape} {array.dtype}"
                report.mismatched.append((name, what))
    for name, old in origin.items():
        if name not in expected:
            (report.skipped if _matches(old, may_surplus) else report.unexpected).append(old)
    if strict and report.missing and found and not (report.arrays or report.mismatched or report.reinitialised):
        raise WeightsError(
            f"nothing of the file fits: it seems to be another model's; the model has {len(expected)} parameters, like "
            f"{report.missing[0]}, the file {len(found)}, like {next(iter(found))}"
        )
    if strict and not report.fits:
        raise WeightsError(f"the weights do not fit the model\n{report}")
    return report


def _rename(old: str, renames: list[tuple[str, str]], expected: Mapping[str, HasShape]) -> str:
    for pattern, replacement in renames:
        match = re.fullmatch(pattern, old)
        if match and (name := match.expand(replacement)) in expected:
            return name
    return old


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(re.fullmatch(pattern, name) for pattern in patterns)


def _same_kind(a: np.dtype[Any], b: np.dtype[Any]) -> bool:
    kinds = {"u": "i"}
    return kinds.get(a.kind, a.kind) == kinds.get(b.kind, b.kind)
