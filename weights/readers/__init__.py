"""Readers of weight files: PyTorch's .pth in three containers, .safetensors and .npz."""

from __future__ import annotations

import os
from typing import Any

from numpy.typing import NDArray

from ..errors import WeightsError
from . import pth
from .archive import Archive
from .mapped import MappedFile
from .npz import read_npz
from .safetensors import read_safetensors
from .state import extract_state

__all__ = ["read"]


def read(path: str | os.PathLike[str], key: str | None = None) -> dict[str, NDArray[Any]]:
    """Read the arrays of a weight file by name; the content, not the extension, tells the format.

    Understands PyTorch checkpoints in all three containers (zip, legacy stream, tar), safetensors and npz. In a
    training checkpoint the state dict is found by itself (averaged weights before plain ones) or at the dotted path
    ``key``, as in ``key="ema.module"``; a prefix ``module.`` that all names share is removed. bfloat16 becomes
    float32, all other dtypes stay.

    The arrays are views of a copy-on-write map of the file wherever it holds them as they are: reading takes no
    memory before they are used, and writing to them does not touch the file. Copy them to be independent of it.

    Nothing in a file is ever executed. Raises WeightsError, which names the file and the key, when the file is
    truncated, malformed, refers to anything but tensors, containers and numbers, or is of another kind; OSError when
    it cannot be opened.

    >>> import numpy as np, tempfile, pathlib
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "weights.npz"
    >>> np.savez(path, weight=np.float32([1, 2]))
    >>> read(path)
    {'weight': array([1., 2.], dtype=float32)}
    """
    try:
        with MappedFile(path) as file:
            return extract_state(_read_tree(file), key)
    except WeightsError as error:
        error.path = path
        raise


def _read_tree(file: MappedFile) -> object:
    head = file.bytes(0, min(file.size, 512))
    if head.startswith(b"PK\x03\x04"):
        archive = Archive(file)
        roots = [name.removesuffix("/data.pkl") for name in archive.members if name.endswith("/data.pkl")]
        if len(roots) == 1:
            if f"{roots[0]}/constants.pkl" in archive.members:
                raise WeightsError("the file is a TorchScript program; save the model's state_dict instead")
            return pth.read_zip(file, archive, roots[0])
        if archive.members and all(name.endswith(".npy") for name in archive.members):
            return read_npz(file, archive)
        raise WeightsError("the zip archive is neither a torch checkpoint (one data.pkl) nor an .npz file (only .npy)")
    if pth.is_legacy(head):
        return pth.read_legacy(file)
    if head[257:262] == b"ustar":
        return pth.read_tar(file)
    if head[8:9] == b"{":
        return read_safetensors(file)
    text = head.lstrip().lower()
    if text.startswith((b"<!doctype", b"<html")):
        raise WeightsError("the file is an HTML page, not weights: the download went wrong")
    if text.startswith(b"version https://git-lfs"):
        raise WeightsError("the file is a Git LFS pointer, not the weights themselves: fetch it with `git lfs pull`")
    raise WeightsError(
        f"expected a torch checkpoint (.pth), safetensors or npz file, got one that begins with {head[:16]!r}"
    )
