"""Downloading weight files once, completely, and with their hash checked."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import logging
import os
import re
import shutil
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from .errors import DownloadError
from .lock import locked
from .writer import replacing

if TYPE_CHECKING:
    from requests import Response

logger = logging.getLogger(__name__)

TIMEOUT = (10.0, 30.0)
"""Seconds to wait for a connection, and for the next bytes of it."""

ATTEMPTS = 6
"""How often a download is tried; each continues where the last one stopped."""

BACKOFF = 1.0
"""Seconds before the second attempt; doubled for each further one."""

BLOCK = 1 << 16
"""Bytes that are received and written at a time: what a dropped connection loses."""

_TRANSIENT = frozenset({408, 425, 429, 500, 502, 503, 504})


def cache_folder() -> Path:
    """The folder of downloads: ``CHAINSIGHT_CACHE`` if set, otherwise ``chainsight`` in the platform's user cache."""
    if chosen := os.environ.get("CHAINSIGHT_CACHE"):
        return Path(chosen).expanduser()
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "chainsight"


def cache_path(url: str, cache: str | os.PathLike[str] | None = None) -> Path:
    """Where the file of ``url`` lies in the cache once it is there: host and path of the URL as folders.

    >>> cache_path("https://example.org/models/a.pth", "cache").as_posix()
    'cache/example.org/models/a.pth'
    """
    parts = urlsplit(url)
    names = [re.sub(r"[^A-Za-z0-9._-]", "_", name) for name in parts.path.split("/") if name not in ("", ".", "..")]
    if parts.scheme not in ("http", "https") or not parts.netloc or not names:
        raise ValueError(f"expected the http or https address of a file, got {url!r}")
    if parts.query:
        # Different queries may name different files.
        names.insert(-1, hashlib.sha256(parts.query.encode()).hexdigest()[:8])
    folder = cache_folder() if cache is None else Path(cache)
    return folder.joinpath(re.sub(r"[^A-Za-z0-9._-]", "_", parts.netloc.rpartition("@")[2]), *names)


def fetch(
    url: str,
    *,
    sha256: str | None = None,
    size: int | None = None,
    cache: str | os.PathLike[str] | None = None,
    progress: bool = True,
) -> Path:
    """The path of a local copy of ``url``, downloaded if the cache does not hold it yet.

    ``sha256`` is the expected hash in hex, or its first 8 or more digits; ``size`` the expected number of bytes;
    ``cache`` a folder instead of `cache_folder`; ``progress`` shows a bar on a terminal.

    An interrupted download is continued, by this call or the next one. Of several threads or processes that ask for
    the same file one downloads and the others wait. A file is only ever seen complete and with its hash checked; the
    check is repeated when its size or time of change differ from what was recorded. With ``CHAINSIGHT_OFFLINE=1``
    nothing is downloaded.

    Raises DownloadError, which names the URL, the HTTP status and the path at which the file can be placed by hand;
    ValueError for a malformed URL or hash.
    """
    if sha256 is not None and not re.fullmatch(r"[0-9a-fA-F]{8,64}", sha256):
        raise ValueError(f"expected 8 to 64 hex digits of a sha256, got {sha256!r}")
    wanted = _Wanted(url, cache_path(url, cache), (sha256 or "").lower(), size)
    if _is_cached(wanted):
        return wanted.path
    if os.environ.get("CHAINSIGHT_OFFLINE", "0") not in ("", "0"):
        there = "is damaged or another one" if wanted.path.exists() else "is missing"
        raise wanted.error(f"the cached file {there} and CHAINSIGHT_OFFLINE forbids to download it")
    try:
        wanted.path.parent.mkdir(parents=True, exist_ok=True)
        with locked(wanted.path.with_name(wanted.path.name + ".lock"), wanted.wait):
            if not _is_cached(wanted):  # nobody else downloaded it while this call waited
                _download(wanted, progress)
    except DownloadError:
        raise
    except OSError as error:
        raise wanted.error(f"cannot write to the cache: {error}") from error
    return wanted.path


@dataclass(frozen=True)
class _Wanted:
    """What is asked for: the file of a URL, where it goes, and the hash (or its beginning) and size it must have."""

    url: str
    path: Path
    sha256: str
    size: int | None

    def wait(self, tries: int) -> None:
        """Pass a moment in which another download of the file goes on."""
        if tries == 0:
            logger.info("waiting for another download of %s", self.url)
        time.sleep(0.05)

    @property
    def part(self) -> Path:
        """The download as far as it got."""
        return self.path.with_name(self.path.name + ".part")

    @property
    def validator(self) -> Path:
        """The server's mark of the version that `part` holds a beginning of."""
        return self.path.with_name(self.path.name + ".part.version")

    @property
    def record(self) -> Path:
        """Size, time of change and hash of the file when it was last checked."""
        return self.path.with_name(self.path.name + ".checked.json")

    def error(self, reason: str, status: int | None = None) -> DownloadError:
        return DownloadError(reason, url=self.url, path=self.path, status=status)


class _Interrupted(Exception):
    """An attempt failed in a way that another attempt may mend."""


def _is_cached(wanted: _Wanted) -> bool:
    """Whether the wanted file is there and has the wanted size and hash."""
    try:
        stat = wanted.path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    if wanted.size is not None and stat.st_size != wanted.size:
        logger.warning("%s has %d bytes, expected %d: not used", wanted.path, stat.st_size, wanted.size)
        return False
    digest = _recorded_hash(wanted, stat)
    if digest is None:
        digest = file_sha256(wanted.path)
        # A cache that cannot be written to is fine: the hash is then computed each time.
        with contextlib.suppress(OSError):
            _write_record(wanted, digest)
    if not digest.startswith(wanted.sha256):
        logger.warning("%s has sha256 %s, expected %s: not used", wanted.path, digest, wanted.sha256)
        return False
    return True


def _recorded_hash(wanted: _Wanted, stat: os.stat_result) -> str | None:
    try:
        record = json.loads(wanted.record.read_bytes())
    except (OSError, ValueError):
        return None
    match record:
        case {"size": stat.st_size, "mtime_ns": stat.st_mtime_ns, "sha256": str() as digest}:
            return digest
    return None


def _write_record(wanted: _Wanted, digest: str) -> None:
    stat = wanted.path.stat()
    record = {"size": stat.st_size, "mtime_ns": stat.st_mtime_ns, "sha256": digest}
    with replacing(wanted.record) as file:
        file.write(json.dumps(record).encode())


def file_sha256(path: str | os.PathLike[str]) -> str:
    """The sha256 of a file's content in hex."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _download(wanted: _Wanted, progress: bool) -> None:
    import requests

    for attempt in range(1, ATTEMPTS + 1):
        try:
            resumed = _transfer(wanted, progress)
            if _check(wanted, resumed):
                return
        except (requests.RequestException, _Interrupted) as error:
            reason = f"{type(error).__name__.strip('_')}: {error}"
            if attempt == ATTEMPTS or isinstance(error, requests.exceptions.InvalidURL | requests.TooManyRedirects):
                raise wanted.error(f"download failed after {attempt} attempts, the last with {reason}") from error
            pause = BACKOFF * 2 ** (attempt - 1)
            # A warning, as it is shown by default: whoever waits wants to know what for.
            logger.warning(
                "attempt %d of %d to download %s failed with %s, the next in %g s",
                *(attempt, ATTEMPTS, wanted.url, type(error).__name__.strip("_"), pause),
            )
            time.sleep(pause)
    raise wanted.error(f"download failed after {ATTEMPTS} attempts")


def _transfer(wanted: _Wanted, progress: bool) -> bool:
    """Bring the rest of the file to `part`; returns whether it began with what an earlier attempt had left."""
    import requests

    have = wanted.part.stat().st_size if wanted.part.exists() else 0
    # Compression would make ranges and lengths speak of other bytes than the file's.
    headers = {"Accept-Encoding": "identity", "User-Agent": "chainsight"}
    validator = wanted.validator.read_text() if wanted.validator.exists() else ""
    if have and (validator or wanted.sha256):
        headers["Range"] = f"bytes={have}-"
        if validator:
            headers["If-Range"] = validator
    with requests.get(wanted.url, headers=headers, stream=True, timeout=TIMEOUT) as response:
        status = response.status_code
        if status in _TRANSIENT:
            raise _Interrupted(f"the server answered {status} {response.reason}")
        if status == 416 and response.headers.get("Content-Range") == f"bytes */{have}":
            return True  # everything is there already
        if status == 416:
            wanted.part.unlink()
            raise _Interrupted("the server no longer has the range that was missing")
        if status not in (200, 206):
            raise wanted.error(f"the server answered {status} {response.reason} for {response.url}", status)
        if status == 200:
            have = 0  # the server ignores ranges, or its file has changed: begin again
        elif not response.headers.get("Content-Range", "").startswith(f"bytes {have}-"):
            wanted.part.unlink()
            raise _Interrupted(f"the server sent the range {response.headers.get('Content-Range')!r}, not from {have}")
        length = response.headers.get("Content-Length", "")
        encoded = response.headers.get("Content-Encoding", "identity") != "identity"
        total = have + int(length) if length.isdecimal() and not encoded else None
        _refuse_early(wanted, response, have, total)
        if have == 0:
            wanted.part.unlink(missing_ok=True)  # a part must never lie beside another version's mark
            wanted.validator.write_text(_validator(response))
        _receive(wanted, response, have, total, progress)
    return have > 0


def _validator(response: Response) -> str:
    """What If-Range takes: a strong ETag, or the time of the last change, or nothing."""
    tag = response.headers.get("ETag", "")
    return tag if tag.startswith('"') else response.headers.get("Last-Modified", "")


def _refuse_early(wanted: _Wanted, response: Response, have: int, total: int | None) -> None:
    """Raise DownloadError where the answer's head already tells that the file cannot be had."""
    if response.headers.get("Content-Type", "").startswith("text/html"):
        raise wanted.error(f"{response.url} is an HTML page instead of the file", response.status_code)
    if wanted.size is not None and total is not None and total != wanted.size:
        raise wanted.error(f"the server's file has {total} bytes, expected {wanted.size}", response.status_code)
    missing = (total or wanted.size or 0) - have
    free = shutil.disk_usage(wanted.path.parent).free
    if missing > free:
        raise wanted.error(f"the download needs {missing} bytes, but only {free} are free in {wanted.path.parent}")


def _receive(wanted: _Wanted, response: Response, have: int, total: int | None, progress: bool) -> None:
    from tqdm import tqdm

    bar: tqdm[Any] = tqdm(
        desc=wanted.path.name,
        total=total,
        initial=have,
        unit="B",
        unit_scale=True,
        unit_divisor=1024,
        disable=None if progress else True,  # None: shown on a terminal only
    )
    with bar, open(wanted.part, "ab" if have else "wb") as file:
        for block in response.iter_content(BLOCK):
            try:
                file.write(block)
            except OSError as error:
                if error.errno == errno.ENOSPC:
                    raise wanted.error(f"the disk is full at {wanted.path.parent}") from error
                raise
            bar.update(len(block))
        got = file.tell()
    if total is not None and got < total:
        raise _Interrupted(f"the connection ended after {got} of {total} bytes")


def _check(wanted: _Wanted, resumed: bool) -> bool:
    """Put the complete `part` in place if it is what was wanted; False if a resumed one is not and was removed."""
    with open(wanted.part, "rb") as file:
        head = file.read(512).lstrip().lower()
        got = os.fstat(file.fileno()).st_size
    digest = file_sha256(wanted.part)
    reason = ""
    if head.startswith((b"<!doctype html", b"<html")):
        reason = "the server sent an HTML page instead of the file"
    elif wanted.size is not None and got != wanted.size:
        reason = f"the downloaded file has {got} bytes, expected {wanted.size}"
    elif not digest.startswith(wanted.sha256):
        reason = f"the downloaded file has sha256 {digest}, expected {wanted.sha256}"
    if reason:
        wanted.part.unlink()
        wanted.validator.unlink(missing_ok=True)
        if resumed:
            logger.info("%s: %s; it was put together from several attempts, so it begins again", wanted.url, reason)
            return False
        raise wanted.error(reason)
    with open(wanted.part, "rb+") as file:
        os.fsync(file.fileno())
    os.replace(wanted.part, wanted.path)
    wanted.validator.unlink(missing_ok=True)
    _write_record(wanted, digest)
    return True
