import errno
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from chainsight.weights.errors import WeightsError
from chainsight.weights.readers import read
from chainsight.weights.writer import read_metadata, replacing, save_safetensors
from safetensors import safe_open
from safetensors.numpy import load_file, save_file


def test_reference_implementation_reads_what_we_write(state: dict, tmp_path: Path) -> None:
    arrays = {
        **state,
        "strided": np.arange(12.0).reshape(3, 4)[:, ::2],
        "fortran": np.asfortranarray(np.arange(6, dtype=np.int16).reshape(2, 3)),
        "big endian": np.arange(3, dtype=">u4"),
        "größe": np.uint8([1]),
    }
    path = tmp_path / "model.safetensors"
    save_safetensors(path, arrays, {"model": "ssd", "größe": "8"})
    found = load_file(path)
    assert found.keys() == arrays.keys()
    for name, array in arrays.items():
        assert found[name].dtype == array.dtype.newbyteorder("=")
        np.testing.assert_array_equal(found[name], array)
        np.testing.assert_array_equal(read(path)[name], array)
        assert read(path)[name].flags.aligned
    with safe_open(path, "np") as file:
        assert file.metadata() == {"model": "ssd", "größe": "8"}
    assert read_metadata(path) == {"model": "ssd", "größe": "8"}


def test_bytes_do_not_depend_on_the_order(state: dict, tmp_path: Path) -> None:
    save_safetensors(tmp_path / "a", state, {"x": "1", "y": "2"})
    save_safetensors(tmp_path / "b", dict(reversed(state.items())), {"y": "2", "x": "1"})
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_a_file_may_be_rewritten_from_its_own_arrays(state: dict, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_safetensors(path, state)
    mapped = read(path)
    save_safetensors(path, {**mapped, "extra": np.zeros(1)})
    np.testing.assert_array_equal(read(path)["conv.weight"], state["conv.weight"])


@pytest.mark.parametrize("bad", [np.zeros(1, np.complex64), np.array(["text"]), np.array([None])])
def test_dtypes_that_safetensors_lacks(tmp_path: Path, bad: np.ndarray) -> None:
    with pytest.raises(WeightsError, match=r"a\.st: 'w': cannot be stored as"):
        save_safetensors(tmp_path / "a.st", {"w": bad})
    assert list(tmp_path.iterdir()) == []


def test_other_arguments(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="expected NumPy arrays by name, got 'w': list"):
        save_safetensors(tmp_path / "a", {"w": [1.0]})  # type: ignore[dict-item]
    with pytest.raises(TypeError, match="expected text as metadata, got 'epoch': int"):
        save_safetensors(tmp_path / "a", {}, {"epoch": 3})  # type: ignore[dict-item]
    with pytest.raises(WeightsError, match="__metadata__"):
        save_safetensors(tmp_path / "a", {"__metadata__": np.zeros(1)})


def test_a_full_disk_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: dict) -> None:
    path = tmp_path / "model.safetensors"
    save_safetensors(path, state, {"version": "old"})

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        save_safetensors(path, state, {"version": "new"})
    assert read_metadata(path) == {"version": "old"}
    assert os.listdir(tmp_path) == [path.name]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="/dev/full is a device of Linux")
def test_a_really_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: dict) -> None:
    path = tmp_path / "model.safetensors"
    save_safetensors(path, state, {"version": "old"})
    opened = open

    def on_full_disk(name: Any, mode: str = "r") -> Any:
        return opened("/dev/full", "wb") if mode == "xb" else opened(name, mode)

    monkeypatch.setattr("builtins.open", on_full_disk)
    with pytest.raises(OSError, match=r"No space left|Problem writing|requested and"):
        save_safetensors(path, {"w": np.zeros(100_000)}, {"version": "new"})
    monkeypatch.undo()
    assert read_metadata(path) == {"version": "old"}


def test_an_interruption_leaves_nothing(tmp_path: Path) -> None:
    def interrupted() -> None:
        with replacing(tmp_path / "a") as file:
            file.write(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert list(tmp_path.iterdir()) == []


def test_metadata_of_files_without_it(tmp_path: Path) -> None:
    save_file({"w": np.zeros(1)}, tmp_path / "a")
    assert read_metadata(tmp_path / "a") == {}
    (tmp_path / "b").write_bytes(b"short")
    with pytest.raises(WeightsError, match="b: expected 8 bytes"):
        read_metadata(tmp_path / "b")
