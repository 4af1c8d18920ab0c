"""Where operations note what they did, while a plan is being made."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from . import memory


class Notes:
    """The calls of a run in order, and the memory of its arrays; ``full`` once this is more than ``limit`` bytes.

    Arrays that follow one another in the same memory do so again when the calls are repeated.
    """

    def __init__(self, limit: int) -> None:
        self.steps: list[Callable[[], Any]] = []
        self.pool = memory.Pool(lasting=True)
        self.limit = limit
        self.full = False

    def add(self, step: Callable[..., Any], *arrays: Any) -> None:
        """Note the call of ``step`` with these arrays, which stay where they are."""
        if self.full or sum(self.pool.usage()) > self.limit:
            self.full, self.steps = True, []
        else:
            self.steps.append(partial(step, *map(self.pool.alias, arrays)))


class _Tape(threading.local):
    """``notes`` of this thread, None while nobody listens."""

    notes: Notes | None = None


tape = _Tape()


@contextmanager
def noting(notes: Notes | None) -> Iterator[None]:
    """In this block the operations of this thread are noted there, or nowhere: what is one step as a whole."""
    before, tape.notes = tape.notes, notes
    try:
        with memory.using(memory.COMMON if notes is None else notes.pool):
            yield
    finally:
        tape.notes = before
