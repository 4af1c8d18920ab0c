"""Images of files and videos, one after the other, read while the ones before are worked on."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import cv2
import numpy as np

from .image import ImageError, Source, read_image

VIDEOS = frozenset((".mp4", ".m4v", ".mov", ".avi", ".mkv", ".webm"))
_AHEAD = 2  # more would not come sooner, only lie in memory


def read_ahead(sources: Iterable[Source]) -> Iterator[tuple[str, np.ndarray | Exception]]:
    """The name and the image (height, width, 3) uint8 RGB of each source, and of each frame of a video.

    A thread reads ahead, by at most two images. What cannot be read comes as its ValueError, OSError or MemoryError
    in the place of the image. Frames are named by their number from 0: "clip-00012.png" of clip.mp4, in its folder.

    >>> [(name, image.shape) for name, image in read_ahead([np.zeros((2, 3, 3), np.uint8)])]
    [('array', (2, 3, 3))]
    """
    images = _images(sources)
    with ThreadPoolExecutor(1, "chainsight-read") as reader:
        waiting = deque(reader.submit(next, images, None) for _ in range(_AHEAD))
        while (item := waiting.popleft().result()) is not None:
            waiting.append(reader.submit(next, images, None))
            yield item


def is_video(source: Source) -> bool:
    """Whether this is a path with a video's extension.

    >>> is_video("clip.MP4"), is_video("photo.jpg")
    (True, False)
    """
    return isinstance(source, (str, Path)) and Path(source).suffix.lower() in VIDEOS


def _images(sources: Iterable[Source]) -> Iterator[tuple[str, np.ndarray | Exception]]:
    for source in sources:
        name = (
            str(source) if isinstance(source, (str, Path)) else "array" if isinstance(source, np.ndarray) else "image"
        )
        if is_video(source):
            yield from _frames(name)
            continue
        try:
            yield name, read_image(source)
        except (ValueError, OSError, MemoryError) as error:
            yield name, error


def _frames(name: str) -> Iterator[tuple[str, np.ndarray | Exception]]:
    path = Path(name)
    if not path.is_file():
        yield name, ImageError(f"{name}: no such file")
        return
    video = cv2.VideoCapture(name)
    count = 0
    try:
        while (found := video.read())[0]:
            yield str(path.with_name(f"{path.stem}-{count:05}.png")), cv2.cvtColor(found[1], cv2.COLOR_BGR2RGB)
            count += 1
    finally:
        video.release()
    if not count:
        yield name, ImageError(f"{name}: no video that OpenCV reads, or one without frames")
