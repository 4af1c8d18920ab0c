"""COCO segmentations, as polygons or run lengths, as `Runs`: half a million of them in seconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ...vision.masks import decode_rle, encode_rle, polygons_to_mask
from .matching import Ints
from .overlaps import Runs

MASKS_AT_ONCE = 1 << 8  # their arrays stay in the second-level cache


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
        counts, lengths = _counts_of_texts(texts, where[part])
        runs, least = Runs.from_counts(counts, lengths, pixels[part, 0])
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


def _counts_of_texts(texts: Sequence[bytes], where: Sequence[str]) -> tuple[Ints, Ints]:
    """Run lengths of all of COCO's compressed texts (see `vision.masks`) in one array, and how many each has.

    Every number ends with a character without bit 5, so the texts can be read one behind the other.
    """
    codes = np.frombuffer(b"".join(texts), np.uint8) - np.uint8(48)  # wraps around below 48: larger than 63
    bounds = np.cumsum([0, *map(len, texts)])
    last = (codes & 32) == 0
    bad = codes > 63
    ends = bounds[1:][np.diff(bounds) > 0] - 1
    bad[ends] |= ~last[ends]
    stops = np.flatnonzero(last)
    starts = np.concatenate([[0], stops[:-1] + 1])[: len(stops)]
    digits = stops - starts
    bad[stops[digits > 6]] = True  # a run length has 32 bits: seven characters at most
    if bad.any():
        at = int(np.searchsorted(bounds, int(bad.argmax()), side="right")) - 1
        raise ValueError(f"{where[at]}: expected COCO's compressed run lengths, got {texts[at][:40]!r}")
    values = (codes[starts] & 31).astype(np.int64)
    longer = np.flatnonzero(digits)
    for digit in range(1, 7):
        values[longer] |= (codes[starts[longer] + digit] & 31).astype(np.int64) << (5 * digit)
        longer = longer[digits[longer] > digit]
    negative = np.flatnonzero(codes[stops] & 16)
    values[negative] -= np.int64(32) << (5 * digits[negative])
    firsts = np.searchsorted(stops, bounds[:-1])
    lengths = np.diff(np.append(firsts, len(stops)))
    # From the fourth run on a number is the difference to the run two before: sums along every second number, from the
    # second and the third one of each text.
    place = np.arange(len(values)) - np.repeat(firsts, lengths)
    some = firsts[lengths > 0]
    head = values[some]
    values[some] = 0
    for parity in (0, 1):
        chosen = np.flatnonzero((place & 1) == parity)
        total = np.cumsum(values[chosen])
        own = np.flatnonzero(place[chosen] == parity)
        before = np.concatenate([[0], total])[own]
        values[chosen] = total - np.repeat(before, np.diff(np.append(own, len(chosen))))
    values[some] = head
    return values, lengths
