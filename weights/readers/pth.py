"""PyTorch checkpoints without PyTorch, in the three containers that torch ever wrote.

- zip (torch >= 1.6): ``NAME/data.pkl`` and one uncompressed entry ``NAME/data/KEY`` for each storage;
- stream (torch 0.2 to 1.5, or ``_use_new_zipfile_serialization=False``): five pickles, then each storage's raw bytes;
- tar (torch 0.1): members ``pickle``, ``storages`` and ``tensors``.

In all of them a pickle describes tensors as (storage, offset, size, stride), and storages lie outside the pickle.
Format: torch/serialization.py and torch/_utils.py.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import WeightsError
from .archive import Archive
from .dtypes import BFLOAT16, ElementType, decode, storage_dtype
from .mapped import MappedFile
from .unpickle import GLOBALS, Global, check_sizes, unpickle

_LEGACY_MAGIC = b"\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19."

_MAX_EXPANDED = 2**24

_ELEMENTS: dict[str, ElementType] = {
    "Float": np.dtype(np.float32),
    "Double": np.dtype(np.float64),
    "Half": np.dtype(np.float16),
    "BFloat16": BFLOAT16,
    "Long": np.dtype(np.int64),
    "Int": np.dtype(np.int32),
    "Short": np.dtype(np.int16),
    "Char": np.dtype(np.int8),
    "Byte": np.dtype(np.uint8),
    "Bool": np.dtype(np.bool_),
}


@dataclass(frozen=True)
class StorageType(Global):
    """``torch.FloatStorage`` and its like: named in a pickle to say what a storage's elements are."""

    element: ElementType = "unknown"


class Storage:
    """A flat run of elements in the file: known when the pickle is read, cut out when a tensor of it is asked for."""

    def __init__(self, count: int, load: Callable[[], NDArray[Any]]) -> None:
        self.count = count
        self._load = load
        self._values: NDArray[Any] | None = None

    def values(self) -> NDArray[Any]:
        """The elements as a 1-d array; made once, so that tensors that share a storage go on sharing it."""
        if self._values is None:
            self._values = self._load()
        return self._values

    def part(self, start: object, count: object) -> Storage:
        """A storage that is a part of this one; WeightsError when it reaches past the end."""
        first, size = check_sizes((start, count))
        if first + size > self.count:
            raise WeightsError(f"a part of {size} elements from {first}, but its storage has {self.count}")
        return Storage(size, lambda: self.values()[first : first + size])


class StoredTensor:
    """A tensor of the file: becomes an array, a view of its storage, when it is asked for."""

    def __init__(self, storage: Storage, offset: object, size: object, stride: object) -> None:
        self.storage = storage
        self.offset = offset
        self.size = size
        self.stride = stride

    def array(self) -> NDArray[Any]:
        """The tensor's values; WeightsError when sizes, strides or offset do not fit its storage."""
        (offset,) = check_sizes((self.offset,))
        size, stride = check_sizes(self.size), check_sizes(self.stride)
        if len(size) != len(stride):
            raise WeightsError(f"expected as many strides as sizes, got sizes {size} and strides {stride}")
        count = math.prod(size)
        last = offset + sum((n - 1) * s for n, s in zip(size, stride, strict=True)) if count else offset - 1
        if last >= self.storage.count:
            raise WeightsError(
                f"sizes {size}, strides {stride} and offset {offset} reach element {last}, "
                f"but the storage has {self.storage.count}"
            )
        # Strides of 0 make a huge tensor of one element. Expanded tensors exist, huge ones are an attack.
        if count > max(self.storage.count, _MAX_EXPANDED):
            raise WeightsError(f"sizes {size} are expanded from a storage of only {self.storage.count} elements")
        values = self.storage.values()
        if count == 0:
            return np.empty(size, values.dtype)
        steps = [s * values.itemsize for s in stride]
        return np.ndarray(size, values.dtype, values, offset * values.itemsize, steps)


def _tensor(storage: object, offset: object, size: object, stride: object, *_: object) -> StoredTensor:
    if not isinstance(storage, Storage):
        raise WeightsError(f"expected a storage to build a tensor from, got {type(storage).__name__}")
    return StoredTensor(storage, offset, size, stride)


def _same_tensor(tensor: object, *_: object) -> StoredTensor:
    if not isinstance(tensor, StoredTensor):
        raise WeightsError(f"expected a tensor to build a parameter from, got {type(tensor).__name__}")
    return tensor


def _typed_tensor(rebuild: object, _type: object, arguments: object, *_: object) -> StoredTensor:
    # How torch pickles a tensor that carries attributes of its own.
    if not isinstance(rebuild, Global) or rebuild.build not in (_tensor, _same_tensor):
        raise WeightsError("expected a tensor to build a tensor subclass from")
    if not isinstance(arguments, tuple):
        raise WeightsError(f"expected the arguments of a tensor, got {type(arguments).__name__}")
    return _same_tensor(rebuild.build(*arguments))


def _size(items: object = ()) -> tuple[int, ...]:
    return check_sizes(items)


def _device(kind: object, *_: object) -> object:
    return kind


def _torch_globals() -> dict[str, Global]:
    builders: dict[str, Callable[..., object] | None] = {
        "torch._utils._rebuild_tensor": _tensor,
        "torch._utils._rebuild_tensor_v2": _tensor,
        "torch._utils._rebuild_parameter": _same_tensor,
        "torch._utils._rebuild_parameter_with_state": _same_tensor,
        "torch._tensor._rebuild_from_type_v2": _typed_tensor,
        "torch.Tensor": None,
        "torch.nn.parameter.Parameter": None,
        "torch.Size": _size,
        "torch.device": _device,
    }
    builders |= {f"torch.{name}Tensor": None for name in _ELEMENTS}
    names = {name: Global(name, build) for name, build in builders.items()}
    for name, element in _ELEMENTS.items():
        names[f"torch.{name}Storage"] = StorageType(f"torch.{name}Storage", None, element)
    return {**GLOBALS, **names}


_TORCH_GLOBALS = _torch_globals()


def _storage_id(identity: object) -> tuple[str, ElementType, int, object]:
    """(key, element type, number of elements, view) of ``('storage', type, key, location, count[, view])``."""
    match identity:
        case ("storage", StorageType(element=element), str() as key, _, int() as count, *view):
            return key, element, check_sizes((count,))[0], view[0] if view else None
        case ("module", *_):
            raise WeightsError("the file holds a whole pickled model; save its state_dict instead")
    raise WeightsError("a persistent id of the pickle does not describe a storage")


class _Storages:
    """The storages a pickle refers to, each declared with one type and size however often it occurs."""

    def __init__(self, load: Callable[[str, ElementType, int], NDArray[Any]]) -> None:
        self._load = load
        self.declared: dict[str, tuple[ElementType, int]] = {}
        self._storages: dict[str, Storage] = {}

    def __call__(self, identity: object) -> Storage:
        key, element, count, view = _storage_id(identity)
        if self.declared.setdefault(key, (element, count)) != (element, count):
            raise WeightsError(f"storage {key!r:.80} is declared twice with different types or sizes")
        storage = self._storages.setdefault(key, Storage(count, lambda: self._load(key, element, count)))
        match view:
            case None:
                return storage
            case (_, start, size):
                return storage.part(start, size)
        raise WeightsError(f"storage {key!r:.80} has a malformed view")


def read_zip(file: MappedFile, archive: Archive, root: str) -> object:
    """The object in a zip checkpoint whose members lie in the folder ``root``; its tensors are `StoredTensor`."""
    order = f"{root}/byteorder"
    big_endian = order in archive.members and archive.read(order).strip() == b"big"

    def load(key: str, element: ElementType, count: int) -> NDArray[Any]:
        dtype = storage_dtype(element, big_endian)
        offset, size = archive.span(f"{root}/data/{key}")
        if size < count * dtype.itemsize:
            raise WeightsError(f"storage {key!r:.80} has {size} bytes, expected {count} elements of {dtype.itemsize}")
        return decode(file.array(dtype, count, offset), element)

    pickled = archive.read(f"{root}/data.pkl")
    return unpickle(pickled, names=_TORCH_GLOBALS, persistent=_Storages(load))[0]


class _Cursor:
    """A position in a part of the file that holds pickles, numbers and raw storages one after the other."""

    def __init__(self, file: MappedFile, start: int, size: int) -> None:
        self._file = file
        self._position = start
        self._end = start + size

    def unpickle(self, persistent: Callable[[object], object] | None = None) -> Any:
        data = self._file.data[: self._end]
        value, self._position = unpickle(data, self._position, names=_TORCH_GLOBALS, persistent=persistent)
        return value

    def numbers(self, code: str) -> tuple[int, ...]:
        size = struct.calcsize(code)
        return struct.unpack(code, self._file.bytes(self._advance(size), size))

    def storage(self, element: ElementType) -> tuple[int, int]:
        """(offset, count) of the storage at the position, an int64 count and the elements, which are passed over."""
        (count,) = check_sizes(self.numbers("<q"))
        return self._advance(count * storage_dtype(element).itemsize), count

    def _advance(self, size: int) -> int:
        start = self._position
        if start + size > self._end:
            raise WeightsError(
                f"truncated: expected {size} bytes at byte {start}, but only {self._end - start} are left"
            )
        self._position += size
        return start


def is_legacy(head: bytes) -> bool:
    """Whether a file with this beginning is a legacy stream, whose first pickle is torch's magic number.

    >>> is_legacy(bytes.fromhex("80028a0a6cfc9c46f9206aa850192e") + b"..."), is_legacy(b"PK")
    (True, False)
    """
    return head[:1] == b"\x80" and _LEGACY_MAGIC in head[:32]


def read_legacy(file: MappedFile) -> object:
    """The object in a legacy stream; its tensors are `StoredTensor`."""
    offsets: dict[str, int] = {}

    def load(key: str, element: ElementType, count: int) -> NDArray[Any]:
        if key not in offsets:
            raise WeightsError(f"the file does not hold storage {key!r:.80}")
        # Legacy streams are little-endian on every machine.
        return decode(file.array(storage_dtype(element), count, offsets[key]), element)

    cursor = _Cursor(file, 0, file.size)
    cursor.unpickle()  # the magic number, by which the file was recognised
    version = cursor.unpickle()
    if version != 1001:
        raise WeightsError("expected protocol version 1001 in a legacy torch file")
    cursor.unpickle()  # the writer's byte order and integer sizes
    storages = _Storages(load)
    value = cursor.unpickle(storages)
    keys = cursor.unpickle()
    if not isinstance(keys, list):
        raise WeightsError(f"expected a list of storage keys, got {type(keys).__name__}")
    for key in keys:
        if not isinstance(key, str) or key not in storages.declared:
            raise WeightsError("the list of storage keys names one that no tensor uses")
        element, count = storages.declared[key]
        offset, stored = cursor.storage(element)
        if stored != count:
            raise WeightsError(f"storage {key!r:.80} has {stored} elements, expected {count}")
        offsets[key] = offset
    return value


def read_tar(file: MappedFile) -> object:
    """The object in a tar of torch 0.1; its tensors are `StoredTensor`."""
    members = _tar_members(file)
    missing = {"pickle", "storages", "tensors"} - members.keys()
    if missing:
        raise WeightsError(f"a tar archive without the members {sorted(missing)} is no torch checkpoint")
    storages: dict[int, Storage] = {}
    tensors: dict[int, StoredTensor] = {}

    cursor = _Cursor(file, *members["storages"])
    for _ in range(_count(cursor.unpickle())):
        match cursor.unpickle():
            case (int() as key, _, StorageType(element=element)):
                offset, count = cursor.storage(element)
                storages[key] = Storage(count, _cut(file, element, count, offset))
            case _:
                raise WeightsError("expected (key, location, type) before a storage of a tar checkpoint")
    views = cursor.unpickle()
    for view in views if isinstance(views, list) else []:
        match view:
            case (int() as key, int() as root, start, size) if root in storages:
                storages[key] = storages[root].part(start, size)
            case _:
                raise WeightsError("a storage view of a tar checkpoint refers to no storage")

    cursor = _Cursor(file, *members["tensors"])
    for _ in range(_count(cursor.unpickle())):
        match cursor.unpickle():
            case (int() as key, int() as storage, _) if storage in storages:
                (rank, _) = cursor.numbers("<ii")  # the second half pads the rank to 8 bytes
                if not 0 <= rank <= 32:
                    raise WeightsError(f"expected at most 32 dimensions, got {rank}")
                size, stride = cursor.numbers(f"<{rank}q"), cursor.numbers(f"<{rank}q")
                tensors[key] = StoredTensor(storages[storage], cursor.numbers("<q")[0], size, stride)
            case _:
                raise WeightsError("a tensor of a tar checkpoint refers to no storage")

    def tensor(identity: object) -> StoredTensor:
        if not isinstance(identity, str | int) or not str(identity).isdecimal() or int(identity) not in tensors:
            raise WeightsError("the pickle of a tar checkpoint refers to no tensor")
        return tensors[int(identity)]

    return _Cursor(file, *members["pickle"]).unpickle(tensor)


def _cut(file: MappedFile, element: ElementType, count: int, offset: int) -> Callable[[], NDArray[Any]]:
    return lambda: decode(file.array(storage_dtype(element), count, offset), element)


def _count(value: object) -> int:
    return check_sizes((value,))[0]


def _tar_members(file: MappedFile) -> dict[str, tuple[int, int]]:
    """(offset, size) of each regular member by its name; the other kinds (time stamps of PAX) are passed over."""
    members: dict[str, tuple[int, int]] = {}
    position = 0
    while position + 512 <= file.size:
        header = file.bytes(position, 512)
        if not header.strip(b"\0"):
            break
        try:
            size, checksum = (int(header[a:b].strip(b" \0") or b"0", 8) for a, b in ((124, 136), (148, 156)))
        except ValueError:
            raise WeightsError(f"damaged tar header at byte {position}") from None
        # The checksum counts its own field as spaces.
        if size < 0 or checksum != sum(header) - sum(header[148:156]) + 8 * 32:
            raise WeightsError(f"damaged tar header at byte {position}")
        if position + 512 + size > file.size:
            raise WeightsError(f"tar member at byte {position} ends past the end of the file: truncated?")
        if header[156:157] in (b"0", b"\0"):
            members[header[:100].rstrip(b"\0").decode("utf-8", "replace")] = (position + 512, size)
        position += 512 + -(-size // 512) * 512
    return members
