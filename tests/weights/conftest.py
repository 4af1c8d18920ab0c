"""Writers of torch's three containers without torch, and small weight files of every kind."""

import io
import pickle
import struct
import sys
import tarfile
import types
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

NAMES = {"f4": "Float", "f8": "Double", "f2": "Half", "i8": "Long", "i4": "Int", "u1": "Byte", "b1": "Bool"}


def _module(name: str, **content: Any) -> types.ModuleType:
    module = types.ModuleType(name)
    for key, value in content.items():
        value.__module__, value.__qualname__ = name, key
        setattr(module, key, value)
    return module


def _rebuild_tensor_v2(*arguments: Any) -> None:
    raise NotImplementedError("a name for pickles only")


STORAGES = {f"{name}Storage": type(f"{name}Storage", (), {}) for name in [*NAMES.values(), "BFloat16"]}
# A pickler looks a global up before it writes its name, so torch's modules are there while one runs.
MODULES = {
    "torch": _module("torch", **STORAGES),
    "torch._utils": _module("torch._utils", _rebuild_tensor_v2=_rebuild_tensor_v2),
}


@dataclass(frozen=True)
class Storage:
    """Raw elements under a key; ``count`` and ``kind`` are what the pickle claims."""

    key: str
    data: bytes
    kind: str
    count: int
    view: tuple[str, int, int] | None = None


@dataclass(frozen=True)
class Tensor:
    """What torch pickles for a tensor."""

    storage: Storage
    offset: Any
    size: Any
    stride: Any


class TorchFiles:
    """Writes what `torch.save` writes: NumPy arrays become tensors with a storage of their own."""

    Storage = Storage
    Tensor = Tensor

    def _pickle(self, tree: Any, protocol: int, legacy: bool) -> tuple[bytes, dict[str, Storage]]:
        storages: dict[str, Storage] = {}

        class Pickler(pickle.Pickler):
            def reducer_override(self, obj: Any) -> Any:
                if isinstance(obj, np.ndarray):
                    storage = Storage(str(len(storages)), obj.tobytes(), NAMES[obj.dtype.str[1:]], obj.size)
                    strides = tuple(s // obj.itemsize for s in np.empty(obj.shape, obj.dtype).strides)
                    obj = Tensor(storage, 0, obj.shape, strides)
                if isinstance(obj, Tensor):
                    arguments = (obj.storage, obj.offset, obj.size, obj.stride, False, OrderedDict())
                    return _rebuild_tensor_v2, arguments
                return NotImplemented

            def persistent_id(self, obj: Any) -> Any:
                if not isinstance(obj, Storage):
                    return None
                storages.setdefault(obj.key, obj)
                identity = ("storage", STORAGES[obj.kind + "Storage"], obj.key, "cpu", obj.count)
                return (*identity, obj.view) if legacy else identity

        return self._dump(Pickler, tree, protocol), storages

    @staticmethod
    def _dump(pickler: Callable[..., pickle.Pickler], value: Any, protocol: int = 2) -> bytes:
        buffer = io.BytesIO()
        with pytest.MonkeyPatch.context() as patch:
            for name, module in MODULES.items():
                patch.setitem(sys.modules, name, module)
            pickler(buffer, protocol=protocol).dump(value)
        return buffer.getvalue()

    def zip(self, path: Path, tree: Any, *, protocol: int = 2, root: str = "archive", order: str = "little") -> Path:
        pickled, storages = self._pickle(tree, protocol, legacy=False)
        with zipfile.ZipFile(path, "w") as archive:

            def write(name: str, content: bytes) -> None:
                info = zipfile.ZipInfo(f"{root}/{name}")
                # torch pads the local header with a field "FB" so that the content begins at a multiple of 64.
                position = archive.fp.tell() + 30 + len(info.filename) + 4
                padding = -position % 64
                info.extra = b"FB" + struct.pack("<H", padding) + b"Z" * padding
                archive.writestr(info, content)

            write("data.pkl", pickled)
            write("byteorder", order.encode())
            for storage in storages.values():
                write(f"data/{storage.key}", storage.data)
            write("version", b"3\n")
        return path

    def legacy(self, path: Path, tree: Any, *, protocol: int = 2) -> Path:
        pickled, storages = self._pickle(tree, protocol, legacy=True)
        system = {"protocol_version": 1001, "little_endian": True, "type_sizes": {"short": 2, "int": 4, "long": 4}}
        with open(path, "wb") as file:
            for value in (0x1950A86A20F9469CFC6C, 1001, system):
                pickle.dump(value, file, protocol=2)
            file.write(pickled)
            pickle.dump(sorted(storages), file, protocol=2)
            for key in sorted(storages):
                file.write(struct.pack("<q", storages[key].count) + storages[key].data)
        return path

    def tar(self, path: Path, state: dict[str, np.ndarray], views: list[tuple[int, int, int, int]] = ()) -> Path:
        """``views`` are (key, root's key, offset, count); storages have the keys 1, 2, ..., tensors 101, 102, ..."""
        storages, tensors = [self._plain(len(state))], [self._plain(len(state))]
        for i, array in enumerate(state.values(), 1):
            kind = STORAGES[NAMES[array.dtype.str[1:]] + "Storage"]
            storages.append(self._plain((i, "cpu", kind)) + struct.pack("<q", array.size) + array.tobytes())
            strides = [s // array.itemsize for s in np.empty(array.shape, array.dtype).strides]
            numbers = struct.pack(f"<ii{2 * array.ndim + 1}q", array.ndim, 0, *array.shape, *strides, 0)
            tensors.append(self._plain((100 + i, i, kind)) + numbers)
        storages.append(self._plain(list(views)))

        class Pickler(pickle.Pickler):
            def persistent_id(self, obj: Any) -> Any:
                return str(100 + [id(a) for a in state.values()].index(id(obj)) + 1) if id(obj) in ids else None

        ids = {id(array) for array in state.values()}
        members = {"pickle": self._dump(Pickler, OrderedDict(state)), "storages": storages, "tensors": tensors}
        with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as archive:
            for name, content in members.items():
                content = b"".join(content) if isinstance(content, list) else content
                info = tarfile.TarInfo(name)
                info.size, info.mtime = len(content), 1.5  # a fraction makes PAX add a header of its own
                archive.addfile(info, io.BytesIO(content))
        return path

    def _plain(self, value: Any) -> bytes:
        return self._dump(pickle.Pickler, value)


@pytest.fixture(scope="session")
def torch_files() -> TorchFiles:
    return TorchFiles()


@pytest.fixture(scope="session")
def state() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        "conv.weight": rng.standard_normal((4, 3, 3, 3), np.float32),
        "conv.bias": rng.standard_normal(4, np.float32),
        "bn.num_batches_tracked": np.array(7, np.int64),
        "half": rng.standard_normal(5).astype(np.float16),
        "empty": np.zeros((0, 3), np.float32),
        "mask": np.array([True, False]),
    }


FORMATS = ("zip", "legacy", "tar", "safetensors", "npz", "compressed npz")


@pytest.fixture(scope="session")
def write_state(torch_files: TorchFiles) -> Callable[[Path, str, dict[str, np.ndarray]], Path]:
    """Writes a state dict in one of `FORMATS`; safetensors through the reference implementation."""

    def write(path: Path, kind: str, arrays: dict[str, np.ndarray]) -> Path:
        if kind == "safetensors":
            from safetensors.numpy import save_file

            save_file(arrays, path)
        elif kind.endswith("npz"):
            with open(path, "wb") as file:
                (np.savez if kind == "npz" else np.savez_compressed)(file, **arrays)
        else:
            getattr(torch_files, kind)(path, arrays)
        return path

    return write


@pytest.fixture(params=FORMATS)
def kind(request: pytest.FixtureRequest) -> str:
    return request.param
