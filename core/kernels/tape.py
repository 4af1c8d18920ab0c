"""Where operations note what they did, while a plan is being made."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from . import memory


class Notes:
    """The calls of a run in order, and the arrays they need; ``full`` once these hold more than ``limit`` bytes."""

    def __init__(self, limit: int) -> None:
        self.steps: list[Callable[[], Any]] = []
        self.arrays: list[Any] = []
        self.limit = memory.usage()[0] + limit
        self.full = False

    def add(self, step: Callable[[], Any], *arrays: Any) -> None:
        """Note a call; its arrays are kept where they are."""
        if self.full or memory.usage()[0] > self.limit:
            self.full = True
            self.steps, self.arrays = [], []
        else:
            self.steps.append(step)
            self.arrays.append(arrays)


class _Tape(threading.local):
    """``notes`` of this thread, None while nobody listens."""

    notes: Notes | None = None


tape = _Tape()


@contextmanager
def noting(notes: Notes | None) -> Iterator[None]:
    """In this block the operations of this thread are noted there, or nowhere: what is one step as a whole."""
    before, tape.notes = tape.notes, notes
    try:
        yield
    finally:
        tape.notes = before
