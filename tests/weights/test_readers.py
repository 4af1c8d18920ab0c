import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from chainsight.weights.errors import WeightsError
from chainsight.weights.readers import read

Write = Callable[[Path, str, dict[str, np.ndarray]], Path]


def assert_equal(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    assert found.keys() == expected.keys()
    for key, array in expected.items():
        assert (found[key].shape, found[key].dtype) == (array.shape, array.dtype), key
        assert found[key].dtype.isnative
        assert found[key].flags.aligned
        np.testing.assert_array_equal(found[key], array, err_msg=key)


def test_every_format_by_content_not_name(kind: str, write_state: Write, state: dict, tmp_path: Path) -> None:
    path = write_state(tmp_path / "weights.bin", kind, state)
    assert_equal(read(path), state)
    assert_equal(read(str(path)), state)


def test_writing_to_an_array_leaves_the_file(kind: str, write_state: Write, state: dict, tmp_path: Path) -> None:
    path = write_state(tmp_path / "weights", kind, state)
    before = path.read_bytes()
    read(path)["conv.weight"][:] = 0
    assert path.read_bytes() == before
    assert_equal(read(path), state)


def test_arrays_outlive_the_file(kind: str, write_state: Write, state: dict, tmp_path: Path) -> None:
    path = write_state(tmp_path / "weights", kind, state)
    found = read(path)
    path.unlink()
    assert_equal(found, state)


def test_zip_is_mapped_not_copied(torch_files: Any, tmp_path: Path) -> None:
    found = read(torch_files.zip(tmp_path / "a.pth", {"a": np.arange(64, dtype=np.float32)}))
    assert not found["a"].flags.owndata


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("container", ["zip", "legacy"])
def test_pickle_protocols(torch_files: Any, state: dict, tmp_path: Path, container: str, protocol: int) -> None:
    path = getattr(torch_files, container)(tmp_path / "a.pth", state, protocol=protocol)
    assert_equal(read(path), state)


def test_shared_storage_strides_and_offsets(torch_files: Any, tmp_path: Path) -> None:
    data = np.arange(12, dtype=np.float32)
    storage = torch_files.Storage("7", data.tobytes(), "Float", 12)
    tree = {
        "rows": torch_files.Tensor(storage, 0, (3, 4), (4, 1)),
        "columns": torch_files.Tensor(storage, 1, (4, 2), (1, 4)),
        "last": torch_files.Tensor(storage, 11, (), ()),
        "expanded": torch_files.Tensor(storage, 2, (5, 2), (0, 1)),
    }
    for path in (torch_files.zip(tmp_path / "a", tree), torch_files.legacy(tmp_path / "b", tree)):
        found = read(path)
        np.testing.assert_array_equal(found["rows"], data.reshape(3, 4))
        np.testing.assert_array_equal(found["columns"], data.reshape(3, 4)[:2].T.reshape(4, 2) + 1)
        assert found["last"] == 11
        np.testing.assert_array_equal(found["expanded"], [[2, 3]] * 5)
        assert np.shares_memory(found["rows"], found["columns"])


def test_storage_views_of_old_streams_and_tars(torch_files: Any, tmp_path: Path) -> None:
    data = np.arange(6, dtype=np.float32)
    storage = torch_files.Storage("7", data.tobytes(), "Float", 6, view=("8", 2, 3))
    path = torch_files.legacy(tmp_path / "a", {"part": torch_files.Tensor(storage, 1, (2,), (1,))})
    np.testing.assert_array_equal(read(path)["part"], [3, 4])
    path = torch_files.tar(tmp_path / "b", {"a": data}, views=[(9, 1, 2, 3)])
    np.testing.assert_array_equal(read(path)["a"], data)


def test_big_endian_zip(torch_files: Any, tmp_path: Path) -> None:
    storages = {
        "f": torch_files.Storage("0", np.array([1.5, -2], ">f4").tobytes(), "Float", 2),
        "b": torch_files.Storage("1", np.array([0x3F80, 0xC000], ">u2").tobytes(), "BFloat16", 2),
    }
    tree = {name: torch_files.Tensor(storage, 0, (2,), (1,)) for name, storage in storages.items()}
    found = read(torch_files.zip(tmp_path / "a.pth", tree, order="big"))
    np.testing.assert_array_equal(found["f"], [1.5, -2])
    np.testing.assert_array_equal(found["b"], [1, -2])
    assert found["f"].dtype == found["b"].dtype == np.float32


def test_bool_bytes_above_one_are_true(torch_files: Any, tmp_path: Path) -> None:
    storage = torch_files.Storage("0", b"\x00\x02\xff", "Bool", 3)
    found = read(torch_files.zip(tmp_path / "a.pth", {"m": torch_files.Tensor(storage, 0, (3,), (1,))}))
    assert found["m"].view(np.uint8).tolist() == [0, 1, 1]


def test_bfloat16_of_safetensors(tmp_path: Path) -> None:
    header = b'{"w":{"dtype":"BF16","shape":[2,1],"data_offsets":[0,4]}}'
    path = tmp_path / "a.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + b"\x80\x3f\x00\xc0")  # an unaligned header, too
    found = read(path)["w"]
    np.testing.assert_array_equal(found, np.array([[1], [-2]], np.float32))
    assert found.dtype == np.float32


def test_fortran_order_and_big_endian_npz(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    expected = {"f": np.asfortranarray(np.arange(6.0).reshape(2, 3)), "b": np.arange(3, dtype=">i4")}
    np.savez_compressed(path, **expected)
    found = read(path)
    np.testing.assert_array_equal(found["f"], expected["f"])
    np.testing.assert_array_equal(found["b"], expected["b"])
    assert found["b"].dtype == np.int32


@pytest.mark.parametrize(
    ("wrap", "key"),
    [
        (lambda s: s, None),
        (lambda s: {"model": s, "optimizer": {"lr": 0.1}, "epoch": 3}, None),
        (lambda s: {"state_dict": s, "epoch": 3}, None),
        (lambda s: {"params": s}, None),
        (lambda s: {"ema": {"module": s, "updates": 9}, "model": {"other": np.zeros(1, np.float32)}}, None),
        (lambda s: {"model": {"state_dict": s}, "epoch": 3}, None),
        (lambda s: {"state_dict": {f"module.{k}": v for k, v in s.items()}}, None),
        (lambda s: {"mine": {"deep": s}, "model": {"other": np.zeros(1, np.float32)}}, "mine.deep"),
        (lambda s: {"mine": {"model": s, "epoch": 1}}, "mine"),
    ],
)
def test_state_dict_inside_a_checkpoint(torch_files: Any, state: dict, tmp_path: Path, wrap: Any, key: Any) -> None:
    assert_equal(read(torch_files.zip(tmp_path / "a.pth", wrap(state)), key), state)


def test_one_name_without_prefix_keeps_all_prefixes(torch_files: Any, tmp_path: Path) -> None:
    tree = {"module.a": np.zeros(1, np.float32), "b": np.zeros(1, np.float32)}
    assert read(torch_files.zip(tmp_path / "a.pth", tree)).keys() == tree.keys()


def test_pickled_numpy_arrays_count_as_tensors(tmp_path: Path) -> None:
    import argparse
    import pickle

    from chainsight.weights.readers.unpickle import PickledArray, unpickle

    for array in (np.arange(6.0).reshape(2, 3), np.asfortranarray(np.eye(2)), np.zeros((0, 2), np.int32)):
        pickled, _ = unpickle(pickle.dumps(array, protocol=2))
        assert isinstance(pickled, PickledArray)
        np.testing.assert_array_equal(pickled.array(), array)
        assert pickled.array().dtype == array.dtype
    tree = {"best": np.float32(0.5), "args": argparse.Namespace(lr=0.1, names=["a"]), "ids": {1, 2}, "none": None}
    assert unpickle(pickle.dumps(tree, protocol=2))[0] == {
        "best": 0.5,
        "args": {"lr": 0.1, "names": ["a"]},
        "ids": {1, 2},
        "none": None,
    }


def test_missing_file_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"nowhere\.pth"):
        read(tmp_path / "nowhere.pth")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"\xff\xd8\xff\xe0 a photo", "expected a torch checkpoint"),
        (b"\n<!DOCTYPE html><html>404</html>", "HTML page"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\n", "Git LFS pointer"),
    ],
)
def test_other_files(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "model.pth"
    path.write_bytes(content)
    with pytest.raises(WeightsError, match=message) as caught:
        read(path)
    assert str(caught.value).startswith(f"{path}: ")


MEASURE = """
import sys, time
from chainsight.weights.readers import read
def peak():
    # Unlike getrusage's, this peak does not include the parent's memory before exec.
    return next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith("VmHWM"))
before, start = peak(), time.perf_counter()
arrays = read(sys.argv[1])
seconds = time.perf_counter() - start
total = sum(float(a.sum()) for a in arrays.values())
print(peak() - before, seconds, total)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads the peak memory from Linux's /proc")
def test_memory_and_time_of_a_large_file(kind: str, write_state: Write, tmp_path: Path) -> None:
    # Small numbers, which compress quickly; the odd width leaves the arrays of most formats unaligned.
    arrays = {f"layer{i}.weight": np.full((512, 1281), i, np.float32) for i in range(20)}
    path = write_state(tmp_path / "large", kind, arrays)
    size = sum(array.nbytes for array in arrays.values())
    assert size > 48e6
    run = subprocess.run([sys.executable, "-c", MEASURE, str(path)], capture_output=True, text=True, check=True)
    extra, seconds, total = (float(x) for x in run.stdout.split())
    assert total == pytest.approx(sum(float(a.sum()) for a in arrays.values()))
    assert extra <= 1.2 * size, f"{extra / size:.2f} of the file's size"
    assert seconds < 3


def test_pickle_machine_is_fast(torch_files: Any, tmp_path: Path) -> None:
    path = torch_files.zip(tmp_path / "a.pth", {f"block{i}.weight": np.zeros(1, np.float32) for i in range(2000)})
    start = time.perf_counter()
    assert len(read(path)) == 2000
    assert time.perf_counter() - start < 3
