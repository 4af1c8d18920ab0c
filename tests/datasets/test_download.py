"""Downloads from a real server on loopback, and archives that must not be extracted."""

import functools
import hashlib
import http.server
import io
import os
import shutil
import tarfile
import threading
import zipfile
from pathlib import Path

import pytest
from chainsight import datasets
from chainsight.datasets import download
from chainsight.datasets.download import Archive, ArchiveError, extract, obtain


@pytest.fixture
def server(tmp_path):
    """(folder that is served, address, list of requested paths)."""
    folder = tmp_path / "served"
    folder.mkdir()
    requests = []

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *args):
            requests.append(self.path)

    handler = functools.partial(Handler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        yield folder, f"http://127.0.0.1:{running.server_port}", requests
        running.shutdown()
        thread.join()


def voc_tar(path: Path, source: Path) -> Archive:
    """A small archive laid out like VOC's, made of real BCCD files."""
    names = (source / "ImageSets/Main/test.txt").read_text().split()[:3]
    with tarfile.open(path, "w") as tar:
        for name in names:
            for folder, suffix in (("JPEGImages", ".jpg"), ("Annotations", ".xml")):
                file = f"{folder}/{name}{suffix}"
                tar.add(source / file, f"VOCdevkit/VOC2007/{file}")
        listing = "\n".join(names).encode()
        info = tarfile.TarInfo("VOCdevkit/VOC2007/ImageSets/Main/test.txt")
        info.size = len(listing)
        tar.addfile(info, io.BytesIO(listing))
    return Archive("", hashlib.md5(path.read_bytes()).hexdigest(), path.stat().st_size, 10 << 20)


def test_download_unpack_open_and_not_again(server, shared, tmp_path, monkeypatch):
    folder, address, requests = server
    made = voc_tar(folder / "VOCtest.tar", shared / "data" / "bccd")
    archive = Archive(f"{address}/VOCtest.tar", made.md5, made.size, made.extracted)
    monkeypatch.setattr(download, "VOC2007", (archive,))
    root = datasets.download_voc(tmp_path / "data", "2007", progress=False)
    found = datasets.open(root, "test")
    assert len(found) == 3
    assert found[0].size == (480, 640)
    count = len(requests)
    assert datasets.download_voc(tmp_path / "data", "2007", progress=False) == root
    assert len(requests) == count
    assert not list((tmp_path / "data").rglob("*.tar"))
    with pytest.raises(ValueError, match="expected year"):
        datasets.download_voc(tmp_path, "1999")


def test_coco_archives_unpack_into_a_set_that_opens(server, shared, tmp_path, monkeypatch):
    folder, address, _ = server
    source = shared / "data" / "coco128"

    def zipped(name, members):
        with zipfile.ZipFile(folder / name, "w") as archive:
            for path, target in members:
                archive.write(path, target)
        content = (folder / name).read_bytes()
        return Archive(f"{address}/{name}", hashlib.md5(content).hexdigest(), len(content), 100 << 20)

    images = sorted((source / "images/val").iterdir())[:4]
    annotations = [(source / "instances_val.json", "annotations/instances_val2017.json")]
    monkeypatch.setattr(download, "COCO2017_ANNOTATIONS", zipped("annotations.zip", annotations))
    monkeypatch.setattr(download, "COCO2017_VAL", zipped("val2017.zip", [(p, f"val2017/{p.name}") for p in images]))
    found = datasets.open(datasets.download_coco(tmp_path / "coco", progress=False), "val")
    assert found.format == "COCO"
    assert len(found) == 4 - sum(p.kind == "x" for p in found.problems)
    assert found.tasks == ("detection", "instance")
    with pytest.raises(ValueError, match="train and val"):
        datasets.download_coco(tmp_path, ("test",))


def test_another_hash_or_too_little_space_is_an_error(server, shared, tmp_path, monkeypatch):
    folder, address, requests = server
    made = voc_tar(folder / "a.tar", shared / "data" / "bccd")
    with pytest.raises(ArchiveError, match="expected MD5 00"):
        obtain(Archive(f"{address}/a.tar", "00", made.size, 10 << 20), tmp_path / "data", progress=False)
    assert not list((tmp_path / "data").rglob("*.tar"))
    assert not list((tmp_path / "data").rglob("*.jpg"))
    count = len(requests)
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1000))
    with pytest.raises(OSError, match="are needed"):
        obtain(Archive(f"{address}/a.tar", made.md5, made.size, 10 << 20), tmp_path / "data", progress=False)
    assert len(requests) == count


def tar_with(path: Path, *members: tarfile.TarInfo, content: bytes = b"x") -> Path:
    with tarfile.open(path, "w") as tar:
        for member in members:
            if member.isreg():
                member.size = len(content)
            tar.addfile(member, io.BytesIO(content) if member.isreg() else None)
    return path


def link(name: str, target: str, kind: bytes) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


@pytest.mark.parametrize(
    "members",
    [
        [tarfile.TarInfo("../evil")],
        [tarfile.TarInfo("/tmp/evil")],
        [tarfile.TarInfo("a/../../evil")],
        [tarfile.TarInfo("..\\evil")],
        [tarfile.TarInfo("C:\\evil")],
        [link("a", "/etc", tarfile.SYMTYPE), tarfile.TarInfo("a/evil")],
        [link("a", "b", tarfile.LNKTYPE)],
        [link("a", "", tarfile.FIFOTYPE)],
    ],
)
def test_escapes_and_links_are_refused_before_anything_is_written(tmp_path, members):
    path = tar_with(tmp_path / "bad.tar", tarfile.TarInfo("good"), *members)
    with pytest.raises(ArchiveError, match=r"bad\.tar"):
        extract(path, tmp_path / "out", limit=1000)
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize("name", ["../evil", "/evil", "a/../../evil"])
def test_zip_escapes_are_refused(tmp_path, name):
    with zipfile.ZipFile(tmp_path / "bad.zip", "w") as archive:
        archive.writestr(name, "x")
    with pytest.raises(ArchiveError, match="does not stay inside"):
        extract(tmp_path / "bad.zip", tmp_path / "out", limit=1000)
    info = zipfile.ZipInfo("link")
    info.external_attr = 0o120777 << 16
    with zipfile.ZipFile(tmp_path / "link.zip", "w") as archive:
        archive.writestr(info, "/etc/passwd")
    with pytest.raises(ArchiveError, match="link or a special file"):
        extract(tmp_path / "link.zip", tmp_path / "out", limit=1000)


def test_bombs_damaged_archives_and_links_on_disk_are_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "bomb.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("zeros", bytes(1 << 20))
    with pytest.raises(ArchiveError, match="holds 1048576 bytes, expected at most 1000"):
        extract(tmp_path / "bomb.zip", tmp_path / "out", limit=1000)
    good = tar_with(tmp_path / "good.tar", tarfile.TarInfo("sub/file"), content=b"y" * 5000)
    (tmp_path / "cut.tar").write_bytes(good.read_bytes()[:2000])
    with pytest.raises(ArchiveError, match=r"cut\.tar"):
        extract(tmp_path / "cut.tar", tmp_path / "cut", limit=10000)
    assert [p for p in (tmp_path / "cut").rglob("*") if p.is_file()] == []
    (tmp_path / "linked").mkdir()
    os.symlink(tmp_path, tmp_path / "linked" / "sub")
    with pytest.raises(ArchiveError, match="through a link"):
        extract(good, tmp_path / "linked", limit=10000)
    assert [p.read_bytes() for p in extract(good, tmp_path / "fine", limit=10000)] == [b"y" * 5000]
    (tmp_path / "text.tar").write_text("hello" * 1000)
    with pytest.raises(ArchiveError, match=r"expected a \.tar or \.zip"):
        extract(tmp_path / "text.tar", tmp_path / "out", limit=1000)
