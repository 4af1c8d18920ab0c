"""A pickle machine that can only build tensors, containers and numbers.

The standard unpickler calls whatever the file names and trusts every length in it. This one knows the opcodes of the
binary protocols 2 to 5 (https://github.com/python/cpython/blob/main/Lib/pickletools.py), calls nothing outside the
table of globals it is given, hashes only flat keys, and stops at a budget of operations, so a hostile file gives a
`WeightsError` and neither code execution nor exhausted memory.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ..errors import WeightsError

MAX_OPERATIONS = 1_000_000
"""About 30 operations build one tensor, so this is 30,000 tensors: far above any checkpoint."""

_MARK = object()


@dataclass(frozen=True)
class Global:
    """A name a pickle may refer to; ``build`` is what a call of it does, None if it may be named but not called."""

    name: str
    build: Callable[..., object] | None = None


class PlainDict(dict[Any, Any]):
    """Stands in for `OrderedDict` and other dicts: state set on the object (torch's ``_metadata``) is dropped."""

    def set_state(self, state: object) -> None:
        pass


class Namespace(dict[Any, Any]):
    """Stands in for `argparse.Namespace`: its attributes as a dict."""

    def set_state(self, state: object) -> None:
        if not isinstance(state, dict):
            raise WeightsError(f"expected a dict as the state of a Namespace, got {type(state).__name__}")
        self.update(state)


class PickledDtype:
    """A NumPy dtype of numbers or bools, as ``numpy.dtype(code, align, copy)`` plus a state with the byte order."""

    def __init__(self, code: object, *_: object) -> None:
        if not isinstance(code, str) or not re.fullmatch(r"b1|[iu][1248]|f[248]", code):
            raise WeightsError(f"expected the dtype of numbers in a pickled NumPy array, got {_brief(code)}")
        self.dtype = np.dtype(code)

    def set_state(self, state: object) -> None:
        if isinstance(state, tuple) and len(state) > 1 and state[1] in ("<", ">"):
            self.dtype = self.dtype.newbyteorder(state[1])


class PickledArray:
    """A NumPy array, as ``_reconstruct(ndarray, (0,), b'b')`` plus a state with shape, dtype and bytes."""

    def __init__(self, *_: object) -> None:
        self._state: tuple[tuple[int, ...], np.dtype[Any], bool, bytes] | None = None

    def set_state(self, state: object) -> None:
        match state:
            case (int(), tuple() as shape, PickledDtype(dtype=dtype), int() as fortran, (bytes() | str()) as raw):
                # Python 2 has one type for text and bytes.
                raw = raw.encode("utf-8", "surrogatepass") if isinstance(raw, str) else raw
                self._state = (check_sizes(shape), dtype, bool(fortran), raw)
            case _:
                raise WeightsError("a pickled NumPy array does not hold shape, dtype and bytes")

    def array(self) -> NDArray[Any]:
        """The array, as a copy; WeightsError when its bytes do not fill its shape."""
        if self._state is None:
            raise WeightsError("a pickled NumPy array without content")
        shape, dtype, fortran, raw = self._state
        try:
            flat = np.frombuffer(raw, dtype) if raw else np.empty(0, dtype)
            return flat.reshape(shape, order="F" if fortran else "C").astype(dtype.newbyteorder("="))
        except ValueError as error:
            raise WeightsError(f"pickled NumPy array of shape {shape}: {error}") from None


def check_sizes(sizes: object) -> tuple[int, ...]:
    """``sizes`` if it is a tuple (or list) of at most 32 non-negative ints, otherwise WeightsError."""
    if not isinstance(sizes, tuple | list) or len(sizes) > 32:
        raise WeightsError(f"expected at most 32 sizes, got {_brief(sizes)}")
    for size in sizes:
        if type(size) is not int or not 0 <= size < 2**62:
            raise WeightsError(f"expected sizes from 0 to 2**62, got {_brief(size)}")
    return tuple(sizes)


def _brief(value: object) -> str:
    """A scalar or the type's name: printing a container would follow whatever a hostile pickle nested in it."""
    if isinstance(value, list | tuple):
        return f"a {type(value).__name__} of {len(value)}"
    return f"{value!r:.80}" if isinstance(value, int | float | str) else type(value).__name__


def _encode(text: object, encoding: object = "") -> bytes:
    # Protocol 2 has no bytes: Python 3 writes them as a call of this function.
    if not isinstance(text, str) or encoding not in ("latin1", "latin-1"):
        raise WeightsError("expected text in latin-1 where the pickle holds bytes")
    try:
        return text.encode("latin-1")
    except UnicodeEncodeError:
        raise WeightsError("expected text in latin-1 where the pickle holds bytes") from None


def _no_bytes() -> bytes:
    return b""


def _namespace() -> Namespace:
    return Namespace()


def _scalar(dtype: object, raw: object = None) -> object:
    if not isinstance(dtype, PickledDtype) or not isinstance(raw, bytes) or len(raw) != dtype.dtype.itemsize:
        raise WeightsError("a pickled NumPy scalar does not hold a dtype and as many bytes")
    return np.frombuffer(raw, dtype.dtype)[0].item()


def _dict(items: object = ()) -> PlainDict:
    pairs: object = list(items.items()) if isinstance(items, dict) else items
    if not isinstance(pairs, list | tuple):
        raise WeightsError(f"expected pairs to build a dict from, got {type(items).__name__}")
    out = PlainDict()
    for pair in pairs:
        if not isinstance(pair, list | tuple) or len(pair) != 2:
            raise WeightsError("expected pairs to build a dict from")
        out[_key(pair[0])] = pair[1]
    return out


def _set(items: object = ()) -> set[Hashable]:
    if not isinstance(items, list | tuple | set | frozenset):
        raise WeightsError(f"expected a list to build a set from, got {type(items).__name__}")
    return {_key(item) for item in items}


def _key(key: object) -> Hashable:
    """``key`` if it may be hashed: scalars and flat tuples of them (hashing nested tuples recurses without limit)."""
    parts = key if isinstance(key, tuple) else (key,)
    if all(part is None or isinstance(part, str | bytes | int | float) for part in parts):
        return key
    raise WeightsError(f"expected text or numbers as keys of a dict, got {type(key).__name__}")


def _globals() -> dict[str, Global]:
    builders: dict[str, Callable[..., object] | None] = {
        "collections.OrderedDict": _dict,
        "collections.Counter": _dict,
        "argparse.Namespace": _namespace,
        "_codecs.encode": _encode,
        "numpy.ndarray": None,
        "numpy.dtype": PickledDtype,
    }
    for module in ("builtins", "__builtin__"):
        builders |= {f"{module}.set": _set, f"{module}.bytes": _no_bytes}
    for module in ("numpy.core.multiarray", "numpy._core.multiarray"):
        builders |= {f"{module}._reconstruct": PickledArray, f"{module}.scalar": _scalar}
    return {name: Global(name, build) for name, build in builders.items()}


GLOBALS: Mapping[str, Global] = _globals()
"""The allow-list that every pickle gets; torch's files add torch's own names."""


def unpickle(
    data: memoryview | bytes,
    start: int = 0,
    *,
    names: Mapping[str, Global] = GLOBALS,
    persistent: Callable[[object], object] | None = None,
) -> tuple[object, int]:
    """The object of the pickle that begins at ``start``, and the position after it.

    ``names`` is everything the pickle may refer to; ``persistent`` maps a persistent id to its object.
    Raises WeightsError when the pickle is truncated, malformed, too large or refers to any other name.

    >>> import pickle
    >>> unpickle(pickle.dumps({"epoch": 3, "lr": [0.1, 0.01]}, protocol=2))[0]
    {'epoch': 3, 'lr': [0.1, 0.01]}
    >>> try:
    ...     unpickle(pickle.dumps(print))
    ... except WeightsError as error:
    ...     print(str(error)[:44])
    the pickle refers to 'builtins.print', which
    """
    machine = _Machine(data, start, names, persistent)
    try:
        return machine.run(), machine.position
    except (
        IndexError,
        KeyError,
        struct.error,
        UnicodeDecodeError,
        OverflowError,
        RecursionError,
        MemoryError,
    ) as error:
        raise WeightsError(f"malformed pickle at byte {machine.position}: {type(error).__name__} {error}") from None


class _Machine:
    def __init__(
        self,
        data: memoryview | bytes,
        start: int,
        names: Mapping[str, Global],
        persistent: Callable[[object], object] | None,
    ) -> None:
        self.data = memoryview(data)
        self.position = start
        self.names = names
        self.persistent = persistent
        self.stack: list[Any] = []
        self.memo: dict[int, object] = {}
        self.operations = 0
        self.copied = 0

    def run(self) -> object:
        while True:
            self._spend(1)
            if self.position >= len(self.data):
                raise WeightsError("truncated pickle: it has no end")
            opcode = self.data[self.position]
            self.position += 1
            if opcode == 0x2E:  # STOP
                return self._pop()
            operation = self._OPERATIONS.get(opcode)
            if operation is None:
                raise WeightsError(
                    f"malformed pickle at byte {self.position - 1}: unexpected opcode {bytes([opcode])!r}"
                )
            operation(self)

    def _spend(self, operations: int) -> None:
        self.operations += operations
        if self.operations > MAX_OPERATIONS:
            raise WeightsError(f"the pickle takes more than {MAX_OPERATIONS} operations: no weight file does")

    def _take(self, size: int) -> bytes:
        end = self.position + size
        if size < 0 or end > len(self.data):
            raise WeightsError(f"truncated pickle: expected {size} bytes at byte {self.position}")
        taken = bytes(self.data[self.position : end])
        self.position = end
        return taken

    def _number(self, code: str) -> Any:
        return struct.unpack(code, self._take(struct.calcsize(code)))[0]

    def _line(self) -> str:
        # Names of modules and classes: no real one comes near 256 bytes.
        window = bytes(self.data[self.position : self.position + 256])
        line, newline, _ = window.partition(b"\n")
        if not newline:
            raise WeightsError(f"malformed pickle at byte {self.position}: expected a name")
        self.position += len(line) + 1
        return line.decode("utf-8")

    def _push(self, value: object) -> None:
        self.stack.append(value)

    def _pop(self) -> Any:
        value = self.stack.pop()
        if value is _MARK:
            raise WeightsError(f"malformed pickle at byte {self.position}: a mark where a value was expected")
        return value

    def _top(self, kind: type) -> Any:
        if not self.stack or not isinstance(self.stack[-1], kind):
            raise WeightsError(f"malformed pickle at byte {self.position}: expected a {kind.__name__} to add to")
        return self.stack[-1]

    def _pop_to_mark(self) -> list[Any]:
        items: list[Any] = []
        while (value := self.stack.pop()) is not _MARK:
            items.append(value)
        items.reverse()
        return items

    def _set_items(self, items: list[Any]) -> None:
        target = self._top(dict)
        if len(items) % 2:
            raise WeightsError(f"malformed pickle at byte {self.position}: a key without a value")
        for key, value in zip(items[::2], items[1::2], strict=True):
            target[_key(key)] = value

    def _global(self, module: object, name: object) -> None:
        full = f"{module}.{name}" if isinstance(module, str) and isinstance(name, str) else "an object"
        if full not in self.names:
            raise WeightsError(
                f"the pickle refers to {full!r:.200}, which is neither a tensor, a container nor a number; it was not "
                "executed. A file that holds a whole pickled model must be saved again as its state_dict"
            )
        self._push(self.names[full])

    def _call(self, function: object, arguments: object) -> None:
        if not isinstance(function, Global) or function.build is None or not isinstance(arguments, tuple):
            raise WeightsError(f"malformed pickle at byte {self.position}: a call of something that is not callable")
        for argument in arguments:
            if isinstance(argument, str | bytes):
                # Repeated copies of one long text must not outgrow the file.
                self.copied += len(argument)
                if self.copied > 2 * len(self.data):
                    raise WeightsError("the pickle copies more text than it holds")
            elif isinstance(argument, list | tuple | dict | set):
                self._spend(len(argument))
        try:
            self._push(function.build(*arguments))
        except TypeError:
            raise WeightsError(f"{function.name} does not take {len(arguments)} such arguments") from None

    def _build(self) -> None:
        state = self._pop()
        target = self.stack[-1]
        if isinstance(state, dict):
            self._spend(len(state))
        if not isinstance(target, PlainDict | Namespace | PickledDtype | PickledArray):
            raise WeightsError(f"malformed pickle at byte {self.position}: state for a {type(target).__name__}")
        target.set_state(state)

    def _persistent_id(self) -> None:
        identity = self._pop()
        if self.persistent is None:
            raise WeightsError("the pickle refers to a storage outside it, but this kind of file has none")
        self._push(self.persistent(identity))

    def _memoize(self, index: int) -> None:
        self.memo[index] = self.stack[-1]

    def _text(self, size: int) -> None:
        self._push(self._take(size).decode("utf-8", "surrogatepass"))

    def _old_string(self, size: int) -> None:
        # A Python 2 str: text for names, bytes for the content of arrays.
        raw = self._take(size)
        try:
            self._push(raw.decode("utf-8"))
        except UnicodeDecodeError:
            self._push(raw)

    def _long(self, size: int) -> None:
        if size > 16:
            raise WeightsError(f"a number of {size} bytes in the pickle")
        self._push(int.from_bytes(self._take(size), "little", signed=True))

    def _tuple(self, size: int) -> None:
        items = [self._pop() for _ in range(size)]
        self._push(tuple(reversed(items)))

    def _reduce(self) -> None:
        arguments, function = self._pop(), self._pop()
        self._call(function, arguments)

    def _stack_global(self) -> None:
        name, module = self._pop(), self._pop()
        self._global(module, name)

    def _add_items(self) -> None:
        items = self._pop_to_mark()
        self._top(set).update(_key(item) for item in items)

    def _extend(self) -> None:
        items = self._pop_to_mark()
        self._top(list).extend(items)

    def _append(self) -> None:
        item = self._pop()
        self._top(list).append(item)

    def _set_item(self) -> None:
        value, key = self._pop(), self._pop()
        self._set_items([key, value])

    _OPERATIONS: ClassVar[Mapping[int, Callable[[_Machine], object]]] = {
        0x80: lambda m: m._take(1),  # PROTO
        0x95: lambda m: m._take(8),  # FRAME
        ord("("): lambda m: m._push(_MARK),
        ord("0"): lambda m: m.stack.pop(),
        ord("1"): lambda m: m._pop_to_mark(),
        ord("2"): lambda m: m._push(m.stack[-1]),
        ord("N"): lambda m: m._push(None),
        0x88: lambda m: m._push(True),
        0x89: lambda m: m._push(False),
        ord("J"): lambda m: m._push(m._number("<i")),
        ord("K"): lambda m: m._push(m._number("<B")),
        ord("M"): lambda m: m._push(m._number("<H")),
        0x8A: lambda m: m._long(m._number("<B")),
        0x8B: lambda m: m._long(m._number("<i")),
        ord("G"): lambda m: m._push(m._number(">d")),
        ord("T"): lambda m: m._old_string(m._number("<i")),
        ord("U"): lambda m: m._old_string(m._number("<B")),
        ord("X"): lambda m: m._text(m._number("<I")),
        0x8C: lambda m: m._text(m._number("<B")),
        0x8D: lambda m: m._text(m._number("<Q")),
        ord("B"): lambda m: m._push(m._take(m._number("<I"))),
        ord("C"): lambda m: m._push(m._take(m._number("<B"))),
        0x8E: lambda m: m._push(m._take(m._number("<Q"))),
        ord("]"): lambda m: m._push([]),
        ord("a"): _append,
        ord("e"): _extend,
        ord(")"): lambda m: m._push(()),
        ord("t"): lambda m: m._push(tuple(m._pop_to_mark())),
        0x85: lambda m: m._tuple(1),
        0x86: lambda m: m._tuple(2),
        0x87: lambda m: m._tuple(3),
        ord("}"): lambda m: m._push({}),
        ord("s"): _set_item,
        ord("u"): lambda m: m._set_items(m._pop_to_mark()),
        0x8F: lambda m: m._push(set()),
        0x90: _add_items,
        0x91: lambda m: m._push(frozenset(_set(m._pop_to_mark()))),
        ord("h"): lambda m: m._push(m.memo[m._number("<B")]),
        ord("j"): lambda m: m._push(m.memo[m._number("<I")]),
        ord("q"): lambda m: m._memoize(m._number("<B")),
        ord("r"): lambda m: m._memoize(m._number("<I")),
        0x94: lambda m: m._memoize(len(m.memo)),
        ord("c"): lambda m: m._global(m._line(), m._line()),
        0x93: _stack_global,
        ord("R"): _reduce,
        0x81: _reduce,  # NEWOBJ: a class and its arguments, built as a call
        ord("b"): _build,
        ord("Q"): _persistent_id,
    }
