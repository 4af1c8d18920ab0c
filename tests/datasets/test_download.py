"""Downloads from a real server on loopback, and archives that must not be extracted."""

import functools
import hashlib
import http.server
import io
import json
import os
import shutil
import tarfile
import threading
import zipfile
from pathlib import Path

import numpy as np
import pytest
from chainsight import datasets
from chainsight.datasets import download
from chainsight.datasets.download import Archive, ArchiveError, extract, obtain
from chainsight.weights.errors import DownloadError
from PIL import Image


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


def packed(folder, address, name, members):
    """An archive of (name in it, bytes) on the server; its hash is not known beforehand."""
    with zipfile.ZipFile(folder / name, "w") as archive:
        for member, content in members:
            archive.writestr(member, content)
    return Archive(f"{address}/{name}", None, None, 10 << 20)


def test_a_hash_is_kept_at_first_sight(server, tmp_path):
    folder, address, _ = server
    archive = packed(folder, address, "a.zip", [("set/a.txt", b"one")])
    obtain(archive, tmp_path / "data", progress=False)
    content = (folder / "a.zip").read_bytes()
    seen = tmp_path / "data/.a.zip.sha256"
    assert seen.read_text().strip() == hashlib.sha256(content).hexdigest()
    (tmp_path / "data/.a.zip.done").unlink()  # downloaded again, and unchanged
    obtain(archive, tmp_path / "data", progress=False)
    (tmp_path / "data/.a.zip.done").unlink()
    packed(folder, address, "a.zip", [("set/a.txt", b"two")])
    with pytest.raises(ArchiveError, match="expected SHA256"):
        obtain(archive, tmp_path / "data", progress=False)
    assert (tmp_path / "data/set/a.txt").read_bytes() == b"one"


def test_a_page_instead_of_the_archive_is_not_kept(server, tmp_path):
    """Section 9, defect 9 of ChainerCV: a page served with status 200 is cached and fails until deleted by hand."""
    folder, address, _ = server
    archive = Archive(f"{address}/a.zip", None, None, 10 << 20)
    pages = {"<html>sorry</html>": "the server sent an HTML page", "out of quota": r"expected a \.tar or \.zip"}
    for page, message in pages.items():
        (folder / "a.zip").write_text(page * 50)
        for _ in range(2):
            with pytest.raises((ArchiveError, DownloadError), match=message):
                obtain(archive, tmp_path / "data", progress=False)
    assert not list((tmp_path / "data").rglob("*.zip"))
    packed(folder, address, "a.zip", [("set/a.txt", b"one")])
    obtain(archive, tmp_path / "data", progress=False)
    assert (tmp_path / "data/set/a.txt").read_bytes() == b"one"


def png(values):
    stream = io.BytesIO()
    Image.fromarray(values).save(stream, "PNG")
    return stream.getvalue()


def test_ade20k_test_images_come_although_the_others_are_there(server, tmp_path, monkeypatch):
    """Section 9, defect 5 of ChainerCV: its test set is not downloaded when the training set's folder exists."""
    folder, address, requests = server
    photo, labels = png(np.zeros((4, 5, 3), np.uint8)), png(np.ones((4, 5), np.uint8))
    root = "ADEChallengeData2016"
    members = [(f"{root}/objectInfo150.txt", b"Idx")]
    for word, name in (("training", "ADE_train_00000001"), ("validation", "ADE_val_00000001")):
        members += [(f"{root}/images/{word}/{name}.jpg", photo), (f"{root}/annotations/{word}/{name}.png", labels)]
    data = packed(folder, address, f"{root}.zip", members)
    test = packed(folder, address, "release_test.zip", [("release_test/testing/ADE_test_00000001.jpg", photo)])
    monkeypatch.setattr(download, "ADE20K", (data, test))
    target = datasets.download_ade20k(tmp_path / "ade", progress=False)
    assert len(datasets.open(target, "val")) == 1
    assert datasets.download_ade20k(tmp_path / "ade", test=True, progress=False) == target
    assert len(datasets.open(target, "test")) == 1
    assert sum(root in path for path in requests) == 1


def test_sbd_with_the_split_that_is_published_apart(server, tmp_path, monkeypatch):
    folder, address, _ = server
    root = "benchmark_RELEASE/dataset"
    with tarfile.open(folder / "benchmark.tgz", "w:gz") as tar:
        for name, content in {
            "train.txt": b"2008_000002\n",
            "val.txt": b"2008_000008\n",
            "img/2008_000002.jpg": b"x",
        }.items():
            info = tarfile.TarInfo(f"{root}/{name}")
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    made = hashlib.md5((folder / "benchmark.tgz").read_bytes()).hexdigest()
    monkeypatch.setattr(download, "SBD", Archive(f"{address}/benchmark.tgz", made, None, 10 << 20))
    monkeypatch.setattr(download, "SBD_SPLIT", f"{address}/train_noval.txt")
    (folder / "train_noval.txt").write_text("the list has moved")
    with pytest.raises(ArchiveError, match="expected image names such as"):
        datasets.download_sbd(tmp_path / "sbd", progress=False)
    (folder / "train_noval.txt").write_text("2008_000002\n2008_000008\n")
    datasets.download_sbd(tmp_path / "sbd", progress=False)
    assert (tmp_path / "sbd" / root / "train_noval.txt").read_text().split() == ["2008_000002", "2008_000008"]


def test_coco_panoptic_archives_lie_in_an_archive(server, tmp_path, monkeypatch):
    folder, address, _ = server
    photo, labels = png(np.zeros((4, 5, 3), np.uint8)), png(np.full((4, 5, 3), (7, 0, 0), np.uint8))
    image = {"id": 1, "file_name": "1.png", "height": 4, "width": 5}
    segment = {"image_id": 1, "file_name": "1.png", "segments_info": [{"id": 7, "category_id": 3}]}
    panoptic = {"images": [image], "annotations": [segment], "categories": [{"id": 3, "name": "sky"}]}
    objects = {"images": [image], "annotations": [], "categories": [{"id": 1, "name": "cat"}]}
    packed(folder, address, "inner.zip", [("panoptic_val2017/1.png", labels)])
    inner = (folder / "inner.zip").read_bytes()
    names = {
        "COCO2017_VAL": [("val2017/1.png", photo)],
        "COCO2017_ANNOTATIONS": [("annotations/instances_val2017.json", json.dumps(objects))],
        "COCO2017_PANOPTIC": [
            ("annotations/panoptic_val2017.json", json.dumps(panoptic)),
            ("annotations/panoptic_val2017.zip", inner),
        ],
    }
    for name, members in names.items():
        monkeypatch.setattr(download, name, packed(folder, address, f"{name}.zip", members))
    target = datasets.download_coco(tmp_path / "coco", panoptic=True, progress=False)
    assert datasets.open(target, "semantic-val")[0].semantic.tolist() == [[0] * 5] * 4
    assert datasets.open(target, "val").format == "COCO"
    with pytest.raises(ValueError, match="2014 has none"):
        datasets.download_coco(target, year="2014", panoptic=True)


def test_addresses():
    """https wherever the host is known to offer it; a published MD5 or none, never a wrong one in form."""
    archives = []
    for value in vars(download).values():
        archives += [a for a in (value if isinstance(value, tuple) else (value,)) if isinstance(a, Archive)]
    assert len(archives) >= 16
    plain = ("host.robots.ox.ac.uk", "images.cocodataset.org", "data.csail.mit.edu", "ftp.cs.stanford.edu")
    for archive in archives:
        assert archive.url.startswith("https://") or archive.url.split("/")[2] in plain
        assert archive.md5 is None or len(bytes.fromhex(archive.md5)) == 16
