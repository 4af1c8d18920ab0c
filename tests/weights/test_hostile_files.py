"""Damaged and hostile files: each gives a WeightsError that names the file, and nothing is executed."""

import contextlib
import io
import json
import pickle
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from chainsight.weights.errors import WeightsError
from chainsight.weights.readers import read
from chainsight.weights.readers.unpickle import unpickle

Write = Callable[[Path, str, dict[str, np.ndarray]], Path]
A = np.arange(8, dtype=np.float32)


def refused(path: Path, message: str, key: str | None = None) -> None:
    with pytest.raises(WeightsError, match=message) as caught:
        read(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert caught.value.key == key


class Bomb:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return Path.touch, (self.marker,)


@pytest.mark.parametrize("container", ["zip", "legacy"])
def test_code_is_not_executed(torch_files: Any, tmp_path: Path, container: str) -> None:
    marker = tmp_path / "executed"
    path = getattr(torch_files, container)(tmp_path / "a.pth", {"a": A, "b": Bomb(marker)})
    refused(path, r"refers to '.*', which is neither a tensor, a container nor a number; it was not executed")
    assert not marker.exists()


@pytest.mark.parametrize(
    "program",
    [
        b"cos\nsystem\n(S'true'\ntR.",
        b"\x80\x02cbuiltins\neval\nX\x01\x00\x00\x001\x85R.",
        b"\x80\x04\x8c\x02os\x8c\x06system\x93.",
        b"\x80\x04]]\x93.",  # a list as the name of a module
        b"\x80\x02ctorch._utils\n__dict__\n.",
        b"\x80\x02ccollections\nOrderedDict.__init__\n.",
    ],
)
def test_other_globals_are_refused(program: bytes) -> None:
    with pytest.raises(WeightsError, match=r"refers to|unexpected opcode"):
        unpickle(program)


@pytest.mark.parametrize(
    ("program", "message"),
    [
        (b"\x80\x02\x8e" + struct.pack("<Q", 2**62) + b"x.", "truncated pickle"),
        (b"\x80\x02T\xff\xff\xff\xff.", "truncated pickle"),
        (b"\x80\x02\x8b\xff\xff\xff\x7f.", "a number of 2147483647 bytes"),
        (b"\x80\x02\x8b\xff\xff\xff\xff.", "truncated pickle"),
        (b"\x80\x02Nr\xff\xff\xff\xff0j\xfe\xff\xff\xff.", "malformed pickle"),
        (b"\x80\x02(.", "a mark where a value was expected"),
        (b"\x80\x02.", "malformed pickle"),
        (b"\x80\x02u.", "malformed pickle"),
        (b"\x80\x02}(K\x01", "it has no end"),
        (b"\x80\x02}(K\x01u.", "a key without a value"),
        (b"\x80\x02Nb.", "malformed pickle"),
        (b"\x80\x02NNb.", "state for a NoneType"),
        (b"\x80\x02N)R.", "not callable"),
        (b"\x80\x02cnumpy\nndarray\n)R.", "not callable"),
        (b"\x80\x02cnumpy\ndtype\nX\x01\x00\x00\x00O\x85R.", "expected the dtype of numbers, got|got 'O'"),
        (b"\x80\x02c_codecs\nencode\nX\x01\x00\x00\x00aX\x05\x00\x00\x00utf-7\x86R.", "latin-1"),
        (b"\x80\x02NQ.", "storage outside"),
        (b"\x80\x02}]Ns.", "text or numbers as keys"),
        (b"\x80\x02}" + b")" + b"\x85" * 100_000 + b"Ns.", "text or numbers as keys"),  # hashing would overflow
        (b"\x80\x02ccollections\nOrderedDict\n" + b")" + b"\x85" * 100_000 + b"\x85R.", "pairs to build a dict"),
        (b"\x80\x02" + b"]" * 1_100_000 + b".", "more than 1000000 operations"),
        (b"\x80\x02(" + b"N" * 1_000 + b"lq\x00.", "unexpected opcode"),
        (
            b"\x80\x02c__builtin__\nset\nq\x000](" + b"K\x01" * 50_000 + b"eq\x010" + b"h\x00h\x01\x85R0" * 50 + b"N.",
            "more than 1000000 operations",
        ),
        (
            b"\x80\x02c_codecs\nencode\nq\x000X\xff\xff\x00\x00" + b"a" * 65535 + b"q\x01X\x06\x00\x00\x00latin1q\x020"
            b"0" + b"h\x00h\x01h\x02\x86R0" * 100 + b"N.",
            "copies more text",
        ),
    ],
)
def test_hostile_pickles(program: bytes, message: str) -> None:
    with pytest.raises(WeightsError, match=message):
        unpickle(program)


def test_deeply_nested_containers(torch_files: Any, tmp_path: Path) -> None:
    tree: Any = {"a": A}
    for _ in range(100):
        tree = {"model": tree}
    refused(torch_files.zip(tmp_path / "a.pth", tree), "found no state dict")
    deep, _ = unpickle(b"\x80\x02" + b"]" * 300_000 + b"a" * 299_999 + b".")
    assert isinstance(deep, list)
    itself, _ = unpickle(b"\x80\x02}q\x00X\x05\x00\x00\x00modelh\x00s.")
    assert itself["model"] is itself


@pytest.mark.parametrize(
    ("offset", "size", "stride", "message"),
    [
        (1, (8,), (1,), "reach element 8, but the storage has 8"),
        (0, (2, 4), (5, 1), "reach element 8"),
        (-1, (2,), (1,), "got -1"),
        (0, (-2,), (1,), "got -2"),
        (0, (2,), (-1,), "got -1"),
        (0, (2**61, 2**61), (0, 0), "expanded"),
        (0, (2**25,), (0,), "expanded"),
        (0, (2**70,), (1,), "sizes from 0"),
        (9, (0,), (1,), "reach element 8"),
        (0, (2, 2), (1,), "as many strides as sizes"),
        (0, (1,) * 33, (1,) * 33, "at most 32"),
        (0, 8, 1, "at most 32 sizes, got 8"),
        (0, (2.0,), (1,), r"got 2\.0"),
        (0, (True,), (1,), "got True"),
        ("0", (2,), (1,), "got '0'"),
        (0, ([[[]]],), (1,), "got a list of 1"),
    ],
)
@pytest.mark.parametrize("container", ["zip", "legacy"])
def test_tensors_that_do_not_fit_their_storage(
    torch_files: Any, tmp_path: Path, container: str, offset: Any, size: Any, stride: Any, message: str
) -> None:
    tensor = torch_files.Tensor(torch_files.Storage("0", A.tobytes(), "Float", 8), offset, size, stride)
    refused(getattr(torch_files, container)(tmp_path / "a.pth", {"conv.weight": tensor}), message, "conv.weight")


def test_storages_that_lie(torch_files: Any, tmp_path: Path) -> None:
    def tensor(storage: Any) -> Any:
        return torch_files.Tensor(storage, 0, (8,), (1,))

    short = tensor(torch_files.Storage("0", A.tobytes()[:-1], "Float", 8))
    refused(torch_files.zip(tmp_path / "a.pth", {"w": short}), "has 31 bytes, expected 8 elements of 4", "w")
    refused(torch_files.legacy(tmp_path / "b.pth", {"w": short}), "truncated")
    long = torch_files.Storage("0", A.tobytes(), "Float", 2**50)
    refused(torch_files.zip(tmp_path / "c.pth", {"w": tensor(long)}), "expected 1125899906842624 elements", "w")
    refused(torch_files.legacy(tmp_path / "d.pth", {"w": tensor(long)}), "truncated")
    two = {"v": tensor(torch_files.Storage("0", A.tobytes(), "Float", 8)), "w": tensor(long)}
    refused(torch_files.zip(tmp_path / "e.pth", two), "declared twice")
    view = torch_files.Storage("0", A.tobytes(), "Float", 8, view=("1", 4, 5))
    refused(torch_files.legacy(tmp_path / "f.pth", {"w": tensor(view)}), "a part of 5 elements from 4")
    refused(torch_files.tar(tmp_path / "g.pth", {"w": A}, views=[(1, 77, 0, 1)]), "refers to no storage")
    refused(torch_files.tar(tmp_path / "h.pth", {"w": A}, views=[(2, 1, 5, 4)]), "a part of 4 elements from 5")


def test_whole_pickled_models(tmp_path: Path) -> None:
    stream = io.BytesIO()
    for value in (0x1950A86A20F9469CFC6C, 1001, {}):
        pickle.dump(value, stream, protocol=2)
    stream.write(b"\x80\x02(X\x06\x00\x00\x00modulectorch\nSize\nNNtQ.")
    path = tmp_path / "a.pth"
    path.write_bytes(stream.getvalue())
    refused(path, "whole pickled model")


def zipped(path: Path, members: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


def test_zip_archives(torch_files: Any, tmp_path: Path) -> None:
    empty = pickle.dumps({}, protocol=2)
    refused(zipped(tmp_path / "a", {"../../evil": b"", "x/data.pkl": empty}), "points outside the archive")
    refused(zipped(tmp_path / "b", {"/evil.npy": b""}), "points outside the archive")
    refused(zipped(tmp_path / "c", {"a.txt": b"hello"}), "neither a torch checkpoint")
    refused(zipped(tmp_path / "d", {"x/data.pkl": empty, "y/data.pkl": empty}), "neither a torch checkpoint")
    refused(zipped(tmp_path / "e", {"x/data.pkl": empty, "x/constants.pkl": empty}), "TorchScript")
    refused(zipped(tmp_path / "f", {"x/data.pkl": empty * 100}, zipfile.ZIP_DEFLATED), "is compressed")
    twice = zipped(tmp_path / "g", {"x/data.pkl": empty, "y/data.pkl": empty})
    twice.write_bytes(twice.read_bytes().replace(b"y/data.pkl", b"x/data.pkl"))
    refused(tmp_path / "g", "occurs twice")
    whole = torch_files.zip(tmp_path / "h", {"w": A}).read_bytes()
    (tmp_path / "h").write_bytes(whole[:-30])
    refused(tmp_path / "h", "damaged or truncated zip")


def test_overlapping_zip_entries(tmp_path: Path) -> None:
    # A thousand directory entries that all point at one content.
    zipped(tmp_path / "one", {"a.npy": b"\0" * 1000})
    raw = (tmp_path / "one").read_bytes()
    start = raw.index(b"PK\x01\x02")
    end = raw.index(b"PK\x05\x06")
    entry = raw[start:end]
    entries = b"".join(entry.replace(b"a.npy", b"%05d" % i) for i in range(1000))
    tail = bytearray(raw[end:])
    tail[8:20] = struct.pack("<HHII", 1000, 1000, len(entries), start)
    path = tmp_path / "many"
    path.write_bytes(raw[:start] + entries + bytes(tail))
    refused(path, "overlapping|Overlapped|damaged")


def npy(header: str, content: bytes = b"") -> bytes:
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() + content


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (npy("{'descr': '<f4', 'fortran_order': False, 'shape': (3,)}", b"\0" * 8), "takes 12 bytes, got 8"),
        (npy("{'descr': '<f4', 'fortran_order': False, 'shape': (-3,)}"), "got -3"),
        (npy("{'descr': '<f4', 'fortran_order': False, 'shape': (4611686018427387904, 4)}"), "sizes from 0|takes"),
        (npy("{'descr': '<U4', 'fortran_order': False, 'shape': ()}", b"\0" * 16), "array of numbers"),
        (npy("{'descr': '<c8', 'fortran_order': False, 'shape': ()}", b"\0" * 8), "array of numbers"),
        (npy("__import__('os')"), "malformed .npy header"),
        (npy("(" * 9000), "malformed .npy header"),
        (b"\x93NUMPY\x09\x00", "malformed .npy header"),
        (b"", "malformed .npy header"),
    ],
)
@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_npz_headers(tmp_path: Path, content: bytes, message: str, compression: int) -> None:
    refused(zipped(tmp_path / "a.npz", {"w.npy": content}, compression), message, "w")


def test_npz_objects_are_refused(tmp_path: Path) -> None:
    marker = tmp_path / "executed"
    np.savez(tmp_path / "a.npz", w=np.array([Bomb(marker)], dtype=object))
    refused(tmp_path / "a.npz", "holds Python objects", "w")
    assert not marker.exists()


def test_npz_bomb(tmp_path: Path) -> None:
    with (
        zipfile.ZipFile(tmp_path / "a.npz", "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
        archive.open("w.npy", "w") as stream,
    ):
        stream.write(npy("{'descr': '|u1', 'fortran_order': False, 'shape': (314572800,)}"))
        for _ in range(300):
            stream.write(bytes(1 << 20))
    assert (tmp_path / "a.npz").stat().st_size < 2e6
    refused(tmp_path / "a.npz", "no weights compress that well")


def tensors(path: Path, header: Any, content: bytes = b"", size: int | None = None) -> Path:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes((len(raw) if size is None else size).to_bytes(8, "little") + raw + content)
    return path


def entry(begin: int, end: int, shape: Any = (1,), dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


@pytest.mark.parametrize(
    ("header", "content", "message", "key"),
    [
        ({"a": entry(0, 4), "b": entry(2, 6)}, b"\0" * 6, "overlap or leave a hole", "b"),
        ({"a": entry(0, 4), "b": entry(8, 12)}, b"\0" * 12, "overlap or leave a hole", "b"),
        ({"a": entry(0, 4)}, b"\0" * 8, "hidden hole", None),
        ({"a": entry(0, 8, [2])}, b"\0" * 4, "got the range 0:8 of 4", "a"),
        ({"a": entry(0, 4, [2])}, b"\0" * 4, "takes 8 bytes", "a"),
        ({"a": entry(4, 0)}, b"\0" * 4, "got the range 4:0", "a"),
        ({"a": entry(0, 4, [-1])}, b"\0" * 4, "got -1", "a"),
        ({"a": entry(0, 4, [2**61, 2**61])}, b"\0" * 4, "takes", "a"),
        ({"a": entry(0, 4, [True])}, b"\0" * 4, "got True", "a"),
        ({"a": entry(0, 4, dtype="F8_E4M3")}, b"\0" * 4, "unsupported dtype 'F8_E4M3'", "a"),
        ({"a": {"dtype": "F32"}}, b"", "expected dtype, shape and data_offsets", "a"),
        ({"a": 3}, b"", "expected dtype, shape and data_offsets", "a"),
        ({"__metadata__": {"n": 3}}, b"", "text values", None),
        (b'{"a":{"dtype":"U8","shape":[],"data_offsets":[0,1]},"a":3}', b"\0", "occurs twice", None),
        (b'{"a":' + b"[" * 100_000, b"", "not valid JSON", None),
        (b'{"a":' + b"9" * 10_000 + b"}", b"", "not valid JSON|expected dtype", None),
        (b'{"\xff":3}', b"", "not valid JSON", None),
    ],
)
def test_safetensors_headers(tmp_path: Path, header: Any, content: bytes, message: str, key: str | None) -> None:
    if isinstance(header, bytes) and b"9999" in header:
        # Python versions differ in whether numbers of 10,000 digits are read at all.
        with pytest.raises(WeightsError, match=message):
            read(tensors(tmp_path / "a", header, content))
    else:
        refused(tensors(tmp_path / "a", header, content), message, key)


def test_safetensors_header_size(tmp_path: Path) -> None:
    refused(tensors(tmp_path / "a", {}, size=2**63), "header claims 9223372036854775808 bytes")
    refused(tensors(tmp_path / "b", {}, size=3), "claims 3 bytes, but the file has 10")


def test_damaged_tars(torch_files: Any, tmp_path: Path) -> None:
    path = torch_files.tar(tmp_path / "a", {"w": A})
    raw = path.read_bytes()
    path.write_bytes(raw.replace(b"storages", b"storaged"))
    refused(path, "damaged tar header")
    path.write_bytes(raw[:2000])
    refused(path, "truncated|without the members")


def outcome(path: Path) -> str:
    try:
        arrays = read(path)
    except WeightsError as error:
        return "refused" if str(error).startswith(f"{path}: ") else f"an error without the file's name: {error}"
    for array in arrays.values():
        array.sum()  # touches every element: a view past the map would crash here
    return "read"


def test_fuzz(kind: str, write_state: Write, state: dict, tmp_path: Path) -> None:
    small = {k: v for k, v in state.items() if v.size < 100}
    whole = write_state(tmp_path / "whole", kind, small).read_bytes()
    rng = np.random.default_rng(len(kind))
    path = tmp_path / "damaged"
    outcomes = set()
    for _ in range(400):
        damaged = bytearray(whole)
        for position in rng.integers(0, len(whole), rng.integers(1, 4)):
            damaged[position] = rng.choice([0, 0xFF, rng.integers(256), damaged[position] ^ 1 << rng.integers(8)])
        path.write_bytes(damaged)
        with np.errstate(all="ignore"):
            outcomes.add(outcome(path))
    assert outcomes == {"read", "refused"}
    # A tar ends in zeros, which may go missing.
    lengths = rng.integers(1, len(whole.rstrip(b"\0")), 100)
    for length in lengths:
        path.write_bytes(whole[:length])
        assert outcome(path) == "refused", f"truncated to {length} of {len(whole)} bytes"


def test_fuzz_pickles() -> None:
    rng = np.random.default_rng(0)
    opcodes = np.frombuffer(b"(01N\x88JKMGUX\x8cC]ae)t\x85\x86\x87}su\x8f\x90\x91hqcR\x81bQ.\x00\x01\x02", np.uint8)
    heads = [
        b"\x80\x02",
        b"\x80\x02cnumpy\ndtype\nq\x00ccollections\nOrderedDict\nq\x01",
        b"\x80\x02cnumpy.core.multiarray\n_reconstruct\nq\x00cnumpy\ndtype\nq\x01X\x02\x00\x00\x00f4q\x02",
    ]
    for i in range(5000):
        program = heads[i % 3] + rng.choice(opcodes, rng.integers(1, 40)).tobytes() + b"."
        with contextlib.suppress(WeightsError):  # any other error fails the test
            unpickle(program)
