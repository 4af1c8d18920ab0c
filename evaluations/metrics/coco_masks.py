"""COCO segmentations, as polygons or run lengths, as `Runs`: half a million of them in seconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ...vision.masks import decode_rle, encode_rle, polygons_to_mask
from .matching import Ints
from .overlaps import Runs

MASKS_AT_ONCE = 1 << 8  # their arrays stay in the second-level cache
_ONE_CHARACTER = (np.arange(32) & 15) - (np.arange(32) & 16)  # five bits with a sign


def read_runs(segmentations: Sequence[Any], sizes: Sequence[tuple[int, int]], where: Sequence[str]) -> Runs:
    """Runs of all segmentations; ``sizes`` (height, width) and ``where`` (for errors) of each one's image.

    A segmentation is a list of polygons, or ``{"size": [height, width], "counts": text or list}``. Raises ValueError,
    naming the place, for what is neither, for run lengths of another size than the image and runs that do not fill it.
    """
    pixels = np.array(sizes, np.int64).reshape(-1, 2)
    parts = []
    for start in range(0, max(len(segmentations), 1), MASKS_AT_ONCE):
        part = slice(start, start + MASKS_AT_ONCE)
        texts = [_text(*one) for one in zip(segmentations[part], sizes[part], where[part])]
        background, foreground, rows = _counts_of_texts(texts, where[part])
        runs, least = Runs.from_counts(background, foreground, rows, pixels[part, 0])
        bad = np.flatnonzero((least < 0) | (runs.filled != pixels[part].prod(1)))
        if len(bad):
            raise ValueError(
                f"{where[start + bad[0]]}: expected run lengths that fill {sizes[start + bad[0]]} (height, width), "
                f"got {runs.filled[bad[0]]} pixels, the shortest run {least[bad[0]]}"
            )
        parts.append(runs)
    return Runs.join(parts)


def _text(segmentation: Any, size: tuple[int, int], where: str) -> bytes:
    """COCO's compressed text of any form of segmentation."""
    if type(segmentation) is dict and segmentation.get("size") == [*size]:  # nearly always, and then quickly
        counts = segmentation.get("counts")
        if type(counts) is str:
            return counts.encode("latin-1", "replace")
    if isinstance(segmentation, Mapping) and {"size", "counts"} <= segmentation.keys():
        if tuple(segmentation["size"]) != tuple(size):
            raise ValueError(
                f"{where}: expected a mask of the image's size (height, width) {tuple(size)}, "
                f"got {tuple(segmentation['size'])}"
            )
        counts = segmentation["counts"]
        if isinstance(counts, bytes):
            return counts
        if isinstance(counts, str):
            return counts.encode("latin-1", "replace")
    elif not isinstance(segmentation, Sequence) or isinstance(segmentation, str | bytes):
        raise ValueError(f"{where}: expected polygons or run lengths, got {str(segmentation)[:80]}")
    try:
        is_rle = isinstance(segmentation, Mapping)
        mask = decode_rle(dict(segmentation)) if is_rle else polygons_to_mask(segmentation, size)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{where}: segmentation: {error}") from None
    return str(encode_rle(mask)["counts"]).encode()


def _counts_of_texts(texts: Sequence[bytes], where: Sequence[str]) -> tuple[Ints, Ints, Ints]:
    """Run lengths of all of COCO's compressed texts (see `vision.masks`): background and foreground in turn, in pairs,
    and how many pairs each text has. A text that ends with background has 0 as its last foreground.

    Every number ends with a character without bit 5, so the texts can be read one behind the other.
    """
    codes = np.frombuffer(b"".join(texts), np.uint8) - np.uint8(48)  # wraps around below 48: larger than 63
    bounds = np.cumsum([0, *map(len, texts)])
    last = codes < 32
    stops = np.flatnonzero(last)
    ends = bounds[1:][np.diff(bounds) > 0] - 1
    values = _ONE_CHARACTER[codes[stops] & 31]
    digits = np.diff(stops, prepend=-1) - 1
    longer = np.flatnonzero(digits)
    # A run length has 32 bits: seven characters at most.
    if codes.max(initial=0) > 63 or not last[ends].all() or digits.max(initial=0) > 6:
        at = next(i for i, text in enumerate(texts) if not _is_sound(text))
        raise ValueError(f"{where[at]}: expected COCO's compressed run lengths, got {texts[at][:40]!r}")
    if len(longer):
        count, first = digits[longer], stops[longer] - digits[longer]
        long = (codes[first] & 31).astype(np.int64)
        for digit in range(1, int(count.max()) + 1):
            some = np.flatnonzero(count >= digit)
            long[some] |= (codes[first[some] + digit] & 31).astype(np.int64) << (5 * digit)
        long -= np.where(codes[stops[longer]] & 16, np.int64(32) << (5 * count), 0)
        values[longer] = long
    firsts = np.searchsorted(stops, bounds)
    lengths = np.diff(firsts)
    odd = np.flatnonzero(lengths & 1)
    if len(odd):
        values = np.insert(values, firsts[1:][odd], 0)
    rows = (lengths + 1) // 2
    bounds = np.concatenate([[0], np.cumsum(rows)])
    # From the fourth run on a number is the difference to the run two before.
    some = bounds[:-1][rows > 0]
    head = values[2 * some]
    values[2 * some] = 0
    background, foreground = (_sums(values[side::2], bounds) for side in (0, 1))
    background[some] = head
    foreground[bounds[1:][odd] - 1] = 0
    return background, foreground, rows


def _sums(values: Ints, bounds: Ints) -> Ints:
    """Cumulative sums that start anew at each of ``bounds``."""
    total = np.cumsum(values)
    before = np.concatenate([[0], total])[bounds[:-1]]
    total -= np.repeat(before, np.diff(bounds))
    return total


def _is_sound(text: bytes) -> bool:
    codes = np.frombuffer(text, np.uint8) - np.uint8(48)
    last = np.append(-1, np.flatnonzero(codes < 32))
    return not text or bool(codes.max() < 64 and last[-1] == len(text) - 1 and np.diff(last).max() <= 7)
