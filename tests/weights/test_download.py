"""Downloads from a real HTTP server on loopback that misbehaves in every way servers do."""

import errno
import hashlib
import http.server
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from chainsight.weights import download
from chainsight.weights.download import cache_folder, cache_path, fetch
from chainsight.weights.errors import DownloadError

CONTENT = np.random.default_rng(0).bytes(3_000_000)
SHA256 = hashlib.sha256(CONTENT).hexdigest()


class Server(http.server.ThreadingHTTPServer):
    """Serves ``content`` at every path; ``behave`` may take over the answer to the n-th request (from 1)."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.content = CONTENT
        self.etag = '"one"'
        self.ranges = True
        self.behave: Callable[[Handler, int], bool] = lambda handler, n: False
        self.requests: list[dict[str, str]] = []
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/models/net-{SHA256[:8]}.pth"

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass  # clients that hang up are part of the tests


class Handler(http.server.BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        with self.server.lock:
            self.server.requests.append(dict(self.headers))
            n = len(self.server.requests)
        if not self.server.behave(self, n):
            self.reply()

    def reply(self, limit: int | None = None, pause: float = 0) -> None:
        """The file, or the range of it that was asked for; ``limit`` hangs up after so many bytes."""
        content, start = self.server.content, 0
        wanted = self.headers.get("Range")
        fresh = self.headers.get("If-Range") in (None, self.server.etag)
        if wanted and self.server.ranges and fresh:
            start = int(wanted.removeprefix("bytes=").removesuffix("-"))
            if start >= len(content):
                self.answer(416, {"Content-Range": f"bytes */{len(content)}"})
                return
        headers = {"Content-Length": str(len(content) - start), "ETag": self.server.etag}
        if start:
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        self.answer(206 if start else 200, {k: v for k, v in headers.items() if v})
        body = content[start:] if limit is None else content[start : start + limit]
        for i in range(0, len(body), 1 << 20):
            self.wfile.write(body[i : i + (1 << 20)])
            time.sleep(pause)

    def answer(self, status: int, headers: dict[str, str], body: bytes = b"") -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if "Content-Length" not in headers:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.delenv("CHAINSIGHT_OFFLINE", raising=False)
    monkeypatch.setattr(download, "BACKOFF", 0.01)
    server = Server()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def get(server: Server, cache: Path, **options: Any) -> Path:
    options = {"sha256": SHA256[:8], "size": len(CONTENT), "progress": False, **options}
    return fetch(server.url, cache=cache, **options)


def continued_near(request: dict[str, str], position: int) -> bool:
    """Whether a request asks for the rest from ``position``, less the last block, which may have been lost."""
    start = int(request["Range"].removeprefix("bytes=").removesuffix("-"))
    return position - 3 * download.BLOCK < start <= position


def only_the_lock(cache: Path) -> bool:
    return all(path.suffix == ".lock" for path in cache.rglob("*") if path.is_file())


def fails(server: Server, cache: Path, message: str, status: int | None = None, **options: Any) -> DownloadError:
    with pytest.raises(DownloadError, match=message) as caught:
        get(server, cache, **options)
    text = str(caught.value)
    assert server.url in text
    assert str(cache_path(server.url, cache)) in text
    assert "CHAINSIGHT_CACHE" in text
    assert caught.value.status == status
    return caught.value


def test_downloads_once(server: Server, tmp_path: Path) -> None:
    path = get(server, tmp_path)
    assert path.read_bytes() == CONTENT
    assert path == cache_path(server.url, tmp_path)
    assert get(server, tmp_path, sha256=SHA256) == path
    assert get(server, tmp_path, sha256=None, size=None) == path
    assert len(server.requests) == 1
    assert not list(tmp_path.rglob("*.part*"))


def test_shows_progress_on_a_terminal_only(server: Server, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    get(server, tmp_path, progress=True)
    assert capfd.readouterr() == ("", "")


def test_connection_dropped_half_way_is_continued(server: Server, tmp_path: Path) -> None:
    def drop(handler: Handler, n: int) -> bool:
        if n <= 2:
            handler.reply(limit=1_200_000)
        return n <= 2

    server.behave = drop
    assert get(server, tmp_path).read_bytes() == CONTENT
    assert server.requests[0].get("Range") is None
    assert continued_near(server.requests[1], 1_200_000)
    assert continued_near(server.requests[2], 2_400_000)
    assert server.requests[1]["If-Range"] == '"one"'
    assert all(r["Accept-Encoding"] == "identity" for r in server.requests)


def test_a_later_call_continues(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "ATTEMPTS", 1)
    server.behave = lambda handler, n: n == 1 and (handler.reply(limit=1_000_000) or True)
    fails(server, tmp_path, "failed after 1 attempts.*of 3000000 bytes|failed after 1 attempts.*IncompleteRead")
    assert not cache_path(server.url, tmp_path).exists()
    assert get(server, tmp_path).read_bytes() == CONTENT
    assert continued_near(server.requests[1], 1_000_000)


def test_a_part_that_was_complete(server: Server, tmp_path: Path) -> None:
    path = cache_path(server.url, tmp_path)
    path.parent.mkdir(parents=True)
    path.with_name(path.name + ".part").write_bytes(CONTENT)
    assert get(server, tmp_path).read_bytes() == CONTENT
    assert len(server.requests) == 1


def test_a_part_longer_than_the_file(server: Server, tmp_path: Path) -> None:
    path = cache_path(server.url, tmp_path)
    path.parent.mkdir(parents=True)
    path.with_name(path.name + ".part").write_bytes(CONTENT + b"more")
    assert get(server, tmp_path).read_bytes() == CONTENT


def test_server_without_ranges(server: Server, tmp_path: Path) -> None:
    server.ranges = False
    server.behave = lambda handler, n: n == 1 and (handler.reply(limit=1_000_000) or True)
    assert get(server, tmp_path).read_bytes() == CONTENT
    assert len(server.requests) == 2


@pytest.mark.parametrize("known_hash", [True, False])
@pytest.mark.parametrize("etag", ['"two"', ""])
def test_file_changed_between_attempts(server: Server, tmp_path: Path, etag: str, known_hash: bool) -> None:
    old = CONTENT[::-1]

    def change(handler: Handler, n: int) -> bool:
        if n == 1:
            server.content, server.etag = old, '"one"' if etag else ""
            handler.reply(limit=1_000_000)
            server.content, server.etag = CONTENT, etag
        return n == 1

    server.behave = change
    options = {} if known_hash else {"sha256": None}
    assert get(server, tmp_path, **options).read_bytes() == CONTENT
    # Without an ETag only the hash of the whole tells that the parts do not belong together.
    assert len(server.requests) == (3 if known_hash and not etag else 2)


def test_wrong_hash(server: Server, tmp_path: Path) -> None:
    fails(server, tmp_path, f"has sha256 {SHA256}, expected 00000000", sha256="00000000")
    assert len(server.requests) == 1
    assert only_the_lock(tmp_path)


def test_wrong_size(server: Server, tmp_path: Path) -> None:
    fails(server, tmp_path, "file has 3000000 bytes, expected 9", 200, size=9)
    assert only_the_lock(tmp_path)


def test_short_answer_without_a_length(server: Server, tmp_path: Path) -> None:
    def unknown_length(handler: Handler, n: int) -> bool:
        handler.send_response(200)
        handler.end_headers()
        handler.wfile.write(CONTENT[:5000])
        return True

    server.behave = unknown_length
    fails(server, tmp_path, "has 5000 bytes, expected 3000000")


@pytest.mark.parametrize("kind", ["text/html; charset=utf-8", "application/octet-stream"])
def test_html_page_instead_of_the_file(server: Server, tmp_path: Path, kind: str) -> None:
    page = b"\n<!DOCTYPE html><title>Sign in</title>"
    server.behave = lambda handler, n: handler.answer(200, {"Content-Type": kind}, page) or True
    error = fails(server, tmp_path, "HTML page", 200 if "html" in kind else None, sha256=None, size=None)
    assert "instead of the file" in str(error)
    assert only_the_lock(tmp_path)


@pytest.mark.parametrize("status", [401, 403, 404, 410])
def test_refusals_are_not_repeated(server: Server, tmp_path: Path, status: int) -> None:
    server.behave = lambda handler, n: handler.answer(status, {}) or True
    fails(server, tmp_path, f"the server answered {status} ", status)
    assert len(server.requests) == 1


@pytest.mark.parametrize("status", [429, 500, 503])
def test_passing_failures_are_repeated(server: Server, tmp_path: Path, status: int) -> None:
    server.behave = lambda handler, n: n <= 2 and (handler.answer(status, {}) or True)
    assert get(server, tmp_path).read_bytes() == CONTENT
    assert len(server.requests) == 3


def test_lasting_failures_end(server: Server, tmp_path: Path) -> None:
    server.behave = lambda handler, n: handler.answer(500, {}) or True
    fails(server, tmp_path, "failed after 6 attempts.*500 Internal Server Error")
    assert len(server.requests) == 6


def test_redirect(server: Server, tmp_path: Path) -> None:
    def redirect(handler: Handler, n: int) -> bool:
        if handler.path.startswith("/models"):
            handler.answer(302, {"Location": "/elsewhere/file"})
            return True
        return False

    server.behave = redirect
    assert get(server, tmp_path) == cache_path(server.url, tmp_path)
    server.behave = lambda handler, n: handler.answer(302, {"Location": handler.path}) or True
    fails(server, tmp_path / "other", "TooManyRedirects")


def test_stalled_server_times_out_and_is_asked_again(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download, "TIMEOUT", (1.0, 0.2))
    over = threading.Event()

    def stall(handler: Handler, n: int) -> bool:
        if n == 1:
            handler.reply(limit=2_000_000)
            over.wait(10)
        return n == 1

    server.behave = stall
    assert get(server, tmp_path).read_bytes() == CONTENT
    over.set()
    assert server.requests[1]["Range"].startswith("bytes=")


def test_slow_server_is_waited_for(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "TIMEOUT", (1.0, 0.5))
    server.behave = lambda handler, n: handler.reply(pause=0.25) or True  # longer in all than the timeout
    assert get(server, tmp_path).read_bytes() == CONTENT
    assert len(server.requests) == 1


def test_nobody_listens(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "ATTEMPTS", 2)
    url = server.url.replace(str(server.server_address[1]), "1")
    with pytest.raises(DownloadError, match="failed after 2 attempts, the last with ConnectionError"):
        fetch(url, cache=tmp_path, progress=False)


def test_damaged_cached_file_is_replaced(server: Server, tmp_path: Path) -> None:
    path = get(server, tmp_path)
    damaged = bytearray(CONTENT)
    damaged[1000] ^= 1
    path.write_bytes(damaged)
    os.utime(path, ns=(1, 1))
    assert get(server, tmp_path).read_bytes() == CONTENT
    path.write_bytes(CONTENT[:-1])
    assert get(server, tmp_path).read_bytes() == CONTENT
    assert len(server.requests) == 3


def test_the_hash_is_computed_once(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    get(server, tmp_path)
    monkeypatch.setattr(download, "file_sha256", lambda path: pytest.fail("hashed again"))
    get(server, tmp_path)
    monkeypatch.setenv("CHAINSIGHT_OFFLINE", "1")
    with pytest.raises(DownloadError, match="CHAINSIGHT_OFFLINE forbids"):
        get(server, tmp_path, sha256="0" * 64)  # the recorded hash is compared with what this call wants


def test_a_file_placed_by_hand(server: Server, tmp_path: Path) -> None:
    path = cache_path(server.url, tmp_path)
    path.parent.mkdir(parents=True)
    path.write_bytes(CONTENT)
    assert get(server, tmp_path) == path
    assert server.requests == []


def test_offline(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHAINSIGHT_OFFLINE", "1")
    fails(server, tmp_path, "cached file is missing and CHAINSIGHT_OFFLINE forbids")
    assert list(tmp_path.iterdir()) == []
    path = cache_path(server.url, tmp_path)
    path.parent.mkdir(parents=True)
    path.write_bytes(CONTENT[:-1])
    fails(server, tmp_path, "cached file is damaged")
    path.write_bytes(CONTENT)
    assert get(server, tmp_path) == path
    assert server.requests == []


def test_read_only_cache(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = cache_path(server.url, tmp_path)
    path.parent.mkdir(parents=True)
    path.write_bytes(CONTENT)

    def refuse(path: Path) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    # Permissions do not stop root, so the one place that writes beside a cached file refuses instead.
    monkeypatch.setattr(download, "replacing", refuse)
    assert get(server, tmp_path) == path
    assert get(server, tmp_path) == path
    assert list(path.parent.iterdir()) == [path]


def test_cache_that_is_no_folder(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(DownloadError, match="cannot write to the cache"):
        get(server, tmp_path / "file" / "cache")


def test_not_enough_space(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = download.shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(download.shutil, "disk_usage", lambda path: usage)
    fails(server, tmp_path, "needs 3000000 bytes, but only 1000 are free")


def test_threads_download_once(server: Server, tmp_path: Path) -> None:
    server.behave = lambda handler, n: handler.reply(pause=0.05) or True
    with ThreadPoolExecutor(10) as pool:
        paths = list(pool.map(lambda _: get(server, tmp_path), range(10)))
    assert {path.read_bytes() == CONTENT for path in paths} == {True}
    assert len(server.requests) == 1


SCRIPT = """
import sys
from chainsight.weights.download import fetch
print(fetch(sys.argv[1], sha256=sys.argv[2], cache=sys.argv[3], progress=False))
"""


def start(server: Server, cache: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", SCRIPT, server.url, SHA256, str(cache)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.slow
def test_ten_processes_download_once(server: Server, tmp_path: Path) -> None:
    server.behave = lambda handler, n: handler.reply(pause=0.3) or True
    processes = [start(server, tmp_path) for _ in range(10)]
    for process in processes:
        out, err = process.communicate(timeout=60)
        assert (process.returncode, err) == (0, "")
        assert Path(out.strip()).read_bytes() == CONTENT
    assert len(server.requests) == 1


@pytest.mark.skipif(sys.platform == "win32", reason="SIGKILL is POSIX")
def test_killed_process_leaves_no_lock_and_its_part(server: Server, tmp_path: Path) -> None:
    over = threading.Event()

    def stall(handler: Handler, n: int) -> bool:
        if n == 1:
            handler.reply(limit=2 << 20)
            over.wait(30)
        return n == 1

    server.behave = stall
    process = start(server, tmp_path)
    part = cache_path(server.url, tmp_path).with_name(cache_path(server.url, tmp_path).name + ".part")
    deadline = time.monotonic() + 30
    while not (part.exists() and part.stat().st_size >= 1 << 20):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert get(server, tmp_path).read_bytes() == CONTENT
    over.set()
    assert "Range" in server.requests[1]


def test_cache_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CHAINSIGHT_CACHE", str(tmp_path))
    assert cache_folder() == tmp_path
    monkeypatch.delenv("CHAINSIGHT_CACHE")
    assert cache_folder().name == "chainsight"
    if sys.platform.startswith("linux"):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        assert cache_folder() == tmp_path / "chainsight"


def test_cache_path(tmp_path: Path) -> None:
    github = cache_path("https://github.com/a/b/releases/download/0.1/net.pth", tmp_path)
    assert github == tmp_path / "github.com/a/b/releases/download/0.1/net.pth"
    queries = {cache_path(f"https://example.org/net.pth?version={i}", tmp_path) for i in range(3)}
    assert len(queries) == 3
    assert {path.name for path in queries} == {"net.pth"}
    inside = cache_path("https://example.org/../../etc/%2e%2e/passwd", tmp_path)
    assert inside.is_relative_to(tmp_path)
    assert ".." not in inside.parts
    assert "secret" not in str(cache_path("https://user:secret@example.org/net.pth", tmp_path))


@pytest.mark.parametrize("url", ["ftp://example.org/a", "https://example.org", "/a/b.pth", "file:///etc/passwd", ""])
def test_other_urls(url: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="expected the http or https address of a file"):
        fetch(url, cache=tmp_path)


@pytest.mark.parametrize("digits", ["abc", "xyz" * 5, "0" * 65])
def test_malformed_hashes(digits: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="8 to 64 hex digits"):
        fetch("https://example.org/a.pth", sha256=digits, cache=tmp_path)
