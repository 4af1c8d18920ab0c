"""What goes wrong with weight files."""

from __future__ import annotations

import os
from pathlib import Path


class WeightsError(ValueError):
    """A weight file that cannot be read, or that does not fit the model; names the file and the key where it can.

    >>> str(WeightsError("expected 4 bytes, got 2", path="model.pth", key="conv.weight"))
    "model.pth: 'conv.weight': expected 4 bytes, got 2"
    """

    def __init__(self, reason: str, *, path: str | os.PathLike[str] | None = None, key: str | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.path = path
        self.key = key

    def __str__(self) -> str:
        path = [] if self.path is None else [os.fspath(self.path)]
        key = [] if self.key is None else [repr(self.key)]
        return ": ".join([*path, *key, self.reason])


class DownloadError(OSError):
    """A file that could not be downloaded: names the URL, the HTTP status and where to place the file by hand."""

    def __init__(self, reason: str, *, url: str, path: Path, status: int | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.url = url
        self.path = path
        self.status = status

    def __str__(self) -> str:
        return (
            f"{self.reason} (url: {self.url}). To go on without this download, place the file by hand at "
            f"{self.path}; the environment variable CHAINSIGHT_CACHE moves that folder"
        )
