"""Reading and writing images: any source becomes (height, width, 3) uint8 RGB by one written rule.

Pillow is the reference decoder: for an ordinary opaque photo the result equals
``ImageOps.exif_transpose(Image.open(path)).convert("RGB")`` in every pixel.
"""

from __future__ import annotations

import errno
import glob
import io
import os
import re
import struct
import threading
import time
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import TypeAlias

import numpy as np
from PIL import Image, UnidentifiedImageError

Source: TypeAlias = "str | os.PathLike[str] | bytes | Image.Image | np.ndarray"

EXTENSIONS = frozenset(
    (".jpg", ".jpeg", ".jpe", ".jfif", ".mpo", ".png", ".bmp", ".dib", ".gif", ".tif", ".tiff", ".webp", ".avif")
    + (".jp2", ".ppm", ".pgm", ".pbm", ".pnm", ".tga", ".ico")
)
MAX_PIXELS = 1 << 28
MAX_DOWNLOAD = 256 << 20
_CONNECT_SECONDS, _SILENCE_SECONDS, _TOTAL_SECONDS = 10.0, 30.0, 300.0
_ORIENTATION = 0x0112
# The dangerous one: Pillow hands Encapsulated PostScript to a Ghostscript process.
_REFUSED_FORMATS = frozenset({"EPS"})
_open_lock = threading.Lock()


class ImageError(ValueError):
    """An image source that cannot be read; the message names the source and the reason."""


def read_image(source: Source, *, channel_order: str = "RGB", max_pixels: int = MAX_PIXELS) -> np.ndarray:
    """The image of ``source`` as (height, width, 3) uint8, RGB, upright.

    - ``source``: a path, an http(s) URL, the bytes of an image file, a PIL image, or an ndarray of shape
      (height, width, 3), (height, width, 4), (height, width, 1) or (height, width) and dtype uint8. An RGB ndarray is
      returned as it is, without a copy.
    - ``channel_order``: of an ndarray with 3 or 4 channels: "RGB" (also RGBA) or "BGR" (also BGRA), as cv2 has it.
    - ``max_pixels``: more pixels are refused before they are decoded (a decompression bomb).

    What becomes of each kind of pixel:

    - Grayscale and 1-bit: the grey in all three channels.
    - Palette, and anything with transparency (RGBA, LA, palette or colour-key transparency): colours looked up, then
      laid over white.
    - 16-bit grayscale: value / 257, rounded, so 65535 becomes 255. A 12-bit image stored in 16 bits comes out dark:
      stretch it first. 16-bit colour PNG: the upper byte of each channel.
    - CMYK: red = (255 - C)(255 - K) / 255 and so on, no colour profile; JPEGs in Adobe's inverted CMYK are inverted
      back.
    - Several frames (animated GIF, multi-page TIFF): the first; of a PIL image, the current one.
    - EXIF orientation is applied to files and PIL images; an ndarray is taken to be upright.
    - 32-bit integers beyond 16 bits, floats and Lab have no written rule and are refused.

    Raises ImageError (a ValueError) naming the source and the reason for a file, URL, bytes or PIL image that cannot
    be read, ValueError for an ndarray of a wrong shape or with NaNs, and TypeError for another dtype or source type.

    >>> read_image(np.array([[0, 255]], np.uint8))
    array([[[  0,   0,   0],
            [255, 255, 255]]], dtype=uint8)
    >>> read_image(np.array([[[255, 0, 0]]], np.uint8), channel_order="BGR")
    array([[[  0,   0, 255]]], dtype=uint8)
    """
    if channel_order not in ("RGB", "BGR"):
        raise ValueError(f'expected channel_order "RGB" or "BGR", got {channel_order!r}')
    if isinstance(source, np.ndarray):
        return _from_array(source, channel_order)
    if isinstance(source, Image.Image):
        return _from_pil(source, "PIL image", max_pixels)
    if isinstance(source, (bytes, bytearray, memoryview)):
        data = bytes(source)
        return _decode(io.BytesIO(data), f"image of {len(data)} bytes", data[:24], max_pixels)
    if isinstance(source, (str, os.PathLike)):
        name = os.fspath(source)
        if is_url(name):
            data = _download(name)
            return _decode(io.BytesIO(data), name, data[:24], max_pixels)
        return _read_file(name, max_pixels)
    raise TypeError(
        "expected one image as a path, URL, bytes, PIL image or ndarray (height, width, 3) uint8, "
        f"got {type(source).__module__}.{type(source).__qualname__}"
    )


def is_url(source: object) -> bool:
    """Whether ``source`` is a string that starts with http:// or https://.

    >>> is_url("HTTPS://example.org/a.jpg"), is_url("a.jpg")
    (True, False)
    """
    return isinstance(source, str) and source[:8].lower().startswith(("http://", "https://"))


def _read_file(name: str, max_pixels: int) -> np.ndarray:
    if not os.path.exists(name):
        raise ImageError(f"{name}: no such file")
    if os.path.isdir(name):
        raise ImageError(f"{name}: expected an image file, got a folder")
    try:
        with open(name, "rb") as file:
            head = file.read(24)
            file.seek(0)
            return _decode(file, name, head, max_pixels)
    except ImageError:
        raise
    except OSError as error:
        raise ImageError(f"{name}: {error.strerror or error}") from error


def _decode(file: io.BufferedReader | io.BytesIO, name: str, head: bytes, max_pixels: int) -> np.ndarray:
    if not head:
        raise ImageError(f"{name}: the file is empty (0 bytes)")
    try:
        with _open_lock:
            # Pillow warns about big images from a global limit; ours is checked below, before any pixel is decoded.
            limit, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, None
            try:
                image = Image.open(file)
            finally:
                Image.MAX_IMAGE_PIXELS = limit
    except UnidentifiedImageError:
        kind = "a web page" if head.lstrip().lower().startswith((b"<!doc", b"<html")) else "no image that Pillow reads"
        raise ImageError(f"{name}: {kind}; the file begins with {head!r}") from None
    except Exception as error:  # Pillow's parsers raise whatever a broken header makes them stumble over.
        raise ImageError(f"{name}: broken image header ({_reason(error)})") from error
    with image:
        return _from_pil(image, name, max_pixels)


def _from_pil(image: Image.Image, name: str, max_pixels: int) -> np.ndarray:
    width, height = image.size
    if width * height > max_pixels:
        raise ImageError(
            f"{name}: {width} x {height} pixels, expected at most {max_pixels} in all; "
            "reduce the image, or pass a higher max_pixels to read_image"
        )
    if width == 0 or height == 0:
        raise ImageError(f"{name}: expected at least one pixel, got {width} x {height}")
    if image.format in _REFUSED_FORMATS:
        raise ImageError(f"{name}: {image.format} is a program, not an image; convert it to PNG first")
    try:
        # First of all: a PNG's getexif loads the pixels too, and once that has failed Pillow gives garbage in silence.
        image.load()
        orientation = _orientation(image)
        pixels = _to_rgb(image, name)
    except ImageError:
        raise
    except MemoryError as error:
        raise ImageError(f"{name}: not enough memory for {width} x {height} pixels") from error
    except Exception as error:  # Pillow's decoders raise whatever broken data makes them stumble over.
        raise ImageError(f"{name}: broken or truncated image data ({_reason(error)})") from error
    return _upright(pixels, orientation)


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _orientation(image: Image.Image) -> int:
    try:
        value = image.getexif().get(_ORIENTATION, 1)
    except (SyntaxError, ValueError, TypeError, KeyError, OSError, EOFError, struct.error):
        return 1  # A damaged EXIF block says nothing about the pixels, which may be whole.
    return value if isinstance(value, int) else 1


def _upright(pixels: np.ndarray, orientation: int) -> np.ndarray:
    """Undo an EXIF orientation (EXIF 2.32, tag 0x0112): 2 to 4 flip, 5 to 8 also exchange the axes."""
    if not 2 <= orientation <= 8:
        return pixels
    if orientation >= 5:
        pixels = pixels.transpose(1, 0, 2)
    if orientation in (2, 3, 6, 7):
        pixels = pixels[:, ::-1]
    if orientation in (3, 4, 7, 8):
        pixels = pixels[::-1]
    return np.ascontiguousarray(pixels)


def _to_rgb(image: Image.Image, name: str) -> np.ndarray:
    if image.mode.startswith("I"):
        values = np.array(image)
        if values.min() < 0 or values.max() > 65535:
            raise ImageError(
                f"{name}: expected 8 or 16 bits a channel, got 32-bit integers from {values.min()} to {values.max()}; "
                "scale them to 0..255 and pass an ndarray of dtype uint8"
            )
        grey = ((values.astype(np.uint32) + 128) // 257).astype(np.uint8)
        return np.repeat(grey[..., None], 3, axis=2)
    if image.mode in ("F", "LAB"):
        raise ImageError(
            f"{name}: pixels of mode {image.mode} have no one conversion to RGB; "
            "convert them to 0..255 and pass an ndarray of dtype uint8"
        )
    if image.has_transparency_data:
        image = image.convert("RGBA")
        if image.getchannel("A").getextrema() != (255, 255):
            image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return np.array(image.convert("RGB"))


def _from_array(array: np.ndarray, channel_order: str) -> np.ndarray:
    shape = array.shape
    if array.ndim == 4:
        raise ValueError(f"expected one image (height, width, 3), got a batch of shape {shape}; pass a list of images")
    if array.ndim not in (2, 3) or (array.ndim == 3 and shape[2] not in (1, 3, 4)):
        hint = ""
        if array.ndim == 3 and shape[0] in (1, 3, 4):
            hint = "; the channels seem to come first: pass array.transpose(1, 2, 0)"
        raise ValueError(
            f"expected an image of shape (height, width, 3), (height, width, 4), (height, width, 1) "
            f"or (height, width), got {shape}{hint}"
        )
    if 0 in shape:
        raise ValueError(f"expected an image of at least one pixel, got shape {shape}")
    if array.dtype != np.uint8:
        raise _wrong_dtype(array)
    if array.ndim == 2 or shape[2] == 1:
        return np.repeat(array.reshape(*shape[:2], 1), 3, axis=2)
    if channel_order == "BGR":
        array = array[..., [2, 1, 0, 3][: shape[2]]]
    if shape[2] == 4:
        alpha = array[..., 3:].astype(np.uint32)
        return ((array[..., :3] * alpha + 255 * (255 - alpha) + 127) // 255).astype(np.uint8)
    return np.ascontiguousarray(array)


def _wrong_dtype(array: np.ndarray) -> Exception:
    """The error for pixels that are not uint8, with the conversion that their range suggests."""
    expected = f"expected pixels of dtype uint8 from 0 to 255, got {array.dtype}"
    if array.dtype == bool:
        return TypeError(f"{expected}; convert with array.astype(np.uint8) * 255")
    if array.dtype.kind not in "iuf":
        return TypeError(expected)
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        return ValueError(f"{expected} with {int((~np.isfinite(array)).sum())} values that are NaN or infinite")
    low, high = array.min().item(), array.max().item()
    span = f" from {low:g} to {high:g}"
    if low < 0:
        return TypeError(f"{expected}{span}; undo the normalisation, then round to uint8")
    if high <= 1 and array.dtype.kind == "f":
        return TypeError(f"{expected}{span}; convert with (array * 255).round().astype(np.uint8)")
    if high <= 255:
        return TypeError(f"{expected}{span}; convert with array.round().astype(np.uint8)")
    if array.dtype == np.uint16:
        return TypeError(f"{expected}{span}; convert with (array / 257).round().astype(np.uint8), or stretch the range")
    return TypeError(f"{expected}{span}; scale the values to 0..255 and convert to uint8")


def _download(url: str) -> bytes:
    import requests  # Imported here: it takes a third of the package's import time, and most images are files.

    deadline = time.monotonic() + _TOTAL_SECONDS
    try:
        with requests.get(
            url, timeout=(_CONNECT_SECONDS, _SILENCE_SECONDS), stream=True, headers={"User-Agent": "chainsight"}
        ) as reply:
            if reply.status_code != 200:
                raise ImageError(f"{url}: expected an image, got HTTP {reply.status_code} {reply.reason}")
            data = bytearray()
            for chunk in reply.iter_content(1 << 16):
                data += chunk
                if len(data) > MAX_DOWNLOAD:
                    raise ImageError(f"{url}: expected at most {MAX_DOWNLOAD >> 20} MiB, the server sends more")
                if time.monotonic() > deadline:
                    raise ImageError(f"{url}: not complete after {_TOTAL_SECONDS:.0f} s ({len(data)} bytes received)")
            return bytes(data)
    except requests.RequestException as error:
        raise ImageError(f"{url}: download failed ({_reason(error)})") from error


def write_image(path: str | os.PathLike[str], image: np.ndarray) -> None:
    """Write ``image`` (height, width, 3) uint8 RGB to ``path`` in the format of its extension, all or nothing.

    The file is written beside its place and renamed, so no half picture is ever seen. Raises ValueError for an
    unknown extension, FileNotFoundError when the folder does not exist, OSError when the disk refuses.
    """
    path = Path(path)
    Image.init()
    form = Image.EXTENSION.get(path.suffix.lower())
    if form not in Image.SAVE:
        raise ValueError(f"{path}: expected an image extension such as .png or .jpg, got {path.suffix!r}")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"{path}: the folder {path.parent} does not exist")
    if path.is_dir():
        raise IsADirectoryError(f"{path}: expected the name of a picture, got a folder")
    temporary = path.with_name(f".{path.stem[:64]}.{uuid.uuid4().hex[:12]}.tmp")
    try:
        Image.fromarray(image).save(temporary, form, **({"quality": 92} if form in ("JPEG", "WEBP") else {}))
        os.replace(temporary, path)
    except OSError as error:
        reason = error.strerror or f"cannot be written: {error}"
        raise OSError(error.errno or errno.EIO, reason, os.fspath(path)) from error
    finally:
        temporary.unlink(missing_ok=True)


def iter_sources(sources: Source | Iterable[Source]) -> list[Source]:
    """Single images for files, folders, glob patterns and URLs, in natural order and without repeats.

    - A folder gives its image files (by extension, not those of its subfolders); a pattern its matches, where ``**``
      crosses folders. Both are sorted as people count: img2 before img10.
    - Everything else (a file, a URL, bytes, an array) is passed on as it is. So is a name that matches nothing, for
      :func:`read_image` to report, so that one wrong name does not stop the others.

    Raises ImageError when nothing at all is found.

    >>> iter_sources("https://example.org/street.jpg")
    ['https://example.org/street.jpg']
    """
    given = [sources] if isinstance(sources, (str, os.PathLike, bytes, Image.Image, np.ndarray)) else list(sources)
    found: list[Source] = []
    seen: set[str] = set()
    anything = False
    for source in given:
        names = _expand(os.fspath(source)) if isinstance(source, (str, os.PathLike)) else None
        anything |= names is None or len(names) > 0
        if names is None:
            found.append(source)
            continue
        for name in names or [os.fspath(source)]:  # type: ignore[arg-type]
            if name not in seen:
                seen.add(name)
                found.append(name)
    if not anything:
        listed = ", ".join(str(source) for source in given) or "an empty list"
        raise ImageError(f"no image found in {listed}; expected image files, folders with images, patterns or URLs")
    return found


def _expand(name: str) -> list[str]:
    if is_url(name):
        return [name]
    if os.path.isdir(name):
        return _natural(entry.path for entry in os.scandir(name) if entry.is_file() and _has_extension(entry.name))
    if os.path.exists(name):
        return [name]
    return _natural(match for match in glob.glob(name, recursive=True) if os.path.isfile(match))


def _has_extension(name: str) -> bool:
    return not name.startswith(".") and os.path.splitext(name)[1].lower() in EXTENSIONS


def _natural(names: Iterable[str]) -> list[str]:
    def key(name: str) -> list[tuple[int, str]]:
        return [(int(part), "") if part.isdecimal() else (-1, part.lower()) for part in re.split(r"(\d+)", name)]

    return sorted(names, key=lambda name: (key(name), name))
