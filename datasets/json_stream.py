"""Read the arrays of a huge JSON object one element at a time, in constant memory."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

_BLOCK = 1 << 22
_SPACE = " \t\r\n"


class _Reader:
    """A text window on the file that grows while a value is incomplete and forgets what was read."""

    def __init__(self, path: Path, unparsed: str | None = None) -> None:
        self.path = path
        # A list of numbers (of lists of numbers) under the key, as far as it lies in one block.
        self.unparsed = unparsed and re.compile(
            rf'("{re.escape(unparsed)}"\s*:\s*)(\[[\[\]0-9eE+\-., \t\r\n]*\])(?=\s*(?:\}}|,\s*"))'
        )
        self.file = path.open(encoding="utf-8-sig")
        self.text = ""
        self.position = 0
        self.ended = False
        self.batches = True
        self.decode = json.JSONDecoder().raw_decode

    def grow(self) -> bool:
        """Read more (at least as much as is pending, so that a long value costs linear time); False at the end."""
        if self.ended:
            return False
        pending = self.text[self.position :]
        try:
            block = self.file.read(max(_BLOCK, len(pending)))
        except UnicodeDecodeError as error:
            raise ValueError(f"{self.path}: expected JSON in UTF-8: {error}") from error
        if self.unparsed:
            block = self.unparsed.sub(r'\1"\2"', block)
        self.batches = True
        self.text, self.position, self.ended = pending + block, 0, not block
        return bool(block)

    def peek(self) -> str:
        """The next character that is not white space, or "" at the end; the position is moved onto it."""
        while True:
            while self.position < len(self.text) and self.text[self.position] in _SPACE:
                self.position += 1
            if self.position < len(self.text):
                return self.text[self.position]
            if not self.grow():
                return ""

    def expect(self, allowed: str) -> str:
        found = self.peek()
        if not found or found not in allowed:
            raise self.error(f"expected one of {' '.join(allowed)}, found {found or 'the end of the file'!r}")
        self.position += 1
        return found

    def value(self) -> Any:
        self.peek()
        while True:
            try:
                value, end = self.decode(self.text, self.position)
            except json.JSONDecodeError as error:
                if self.grow():
                    continue
                raise self.error(error.msg) from error
            if end == len(self.text) and self.grow():  # a number may go on in the next block
                continue
            self.position = end
            return value

    def batch(self) -> list[Any]:
        """Elements of the array that the position is in, at least one: all complete ones in the window if possible."""
        boundary = self.text.rfind("},", self.position) if self.batches else -1
        if boundary >= 0:
            try:
                elements: list[Any] = json.loads("[" + self.text[self.position : boundary + 1] + "]")
            except json.JSONDecodeError:  # the array ends in this window, or the boundary lies inside an element
                self.batches = False
                return [self.value()]
            self.position = boundary + 1
            return elements
        return [self.value()]

    def error(self, message: str) -> ValueError:
        near = self.text[max(0, self.position - 40) : self.position + 40]
        return ValueError(f"{self.path}: not valid JSON near {near!r}: {message}")


def iterate_arrays(path: Path, keys: Collection[str], unparsed: str | None = None) -> Iterator[tuple[str, list[Any]]]:
    """Yield (key, elements) for the top-level arrays that ``keys`` names: some elements at a time, in file order.

    Other values are parsed and dropped; a named key whose value is no array is an error. ``unparsed`` names a key whose
    lists of numbers may come as their JSON text, which is ten times faster (a few come as lists). Memory: the longest
    element and 4 MB blocks. Raises ValueError naming the file and the place when it is not a JSON object in UTF-8.

    >>> import tempfile, pathlib
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "a.json"
    >>> _ = path.write_text('{"info": {}, "images": [{"id": 1}, {"id": 2}]}')
    >>> list(iterate_arrays(path, {"images"}))
    [('images', [{'id': 1}]), ('images', [{'id': 2}])]
    """
    reader = _Reader(path, unparsed)
    with reader.file:
        reader.expect("{")
        if reader.peek() == "}":
            return
        while True:
            key = reader.value()
            reader.expect(":")
            if key in keys:
                reader.expect("[")
                if reader.peek() == "]":
                    reader.position += 1
                else:
                    while True:
                        yield key, reader.batch()
                        if reader.expect(",]") == "]":
                            break
            else:
                reader.value()
            if reader.expect(",}") == "}":
                return
