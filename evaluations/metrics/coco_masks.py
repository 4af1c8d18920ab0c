"""COCO segmentations, as polygons or run lengths, as `Runs`: half a million of them in seconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ...vision.masks import encode_rle, polygons_to_mask
from .matching import Ints
from .overlaps import Runs

TEXTS_AT_ONCE = 1 << 14


def read_runs(segmentations: Sequence[Any], sizes: Sequence[tuple[int, int]], where: Sequence[str]) -> Runs:
    """Runs of all segmentations; ``sizes`` (height, width) and ``where`` (for errors) of each one's image.

    A segmentation is a list of polygons, or ``{"size": [height, width], "counts": text or list}``. Raises ValueError,
    naming the place, for what is neither, for run lengths of another size than the image and runs that do not fill it.
    """
    counts: list[Ints] = [np.zeros(0, np.int64)] * len(segmentations)
    texts: list[tuple[int, bytes]] = []
    for i, (segmentation, size) in enumerate(zip(segmentations, sizes)):
        if isinstance(segmentation, Mapping) and {"size", "counts"} <= segmentation.keys():
            if tuple(segmentation["size"]) != tuple(size):
                raise ValueError(
                    f"{where[i]}: expected a mask of the image's size (height, width) {tuple(size)}, "
                    f"got {tuple(segmentation['size'])}"
                )
            value = segmentation["counts"]
            if isinstance(value, str | bytes):
                texts.append((i, value.encode("latin-1", "replace") if isinstance(value, str) else value))
            else:
                counts[i] = np.asarray(value, np.int64)
        elif isinstance(segmentation, Sequence) and not isinstance(segmentation, str | bytes):
            try:
                mask = polygons_to_mask(segmentation, size)
            except (TypeError, ValueError) as error:
                raise ValueError(f"{where[i]}: segmentation: {error}") from None
            counts[i] = np.asarray(encode_rle(mask, compressed=False)["counts"], np.int64)
        else:
            raise ValueError(f"{where[i]}: expected polygons or run lengths, got {str(segmentation)[:80]}")
    for start in range(0, len(texts), TEXTS_AT_ONCE):
        part = texts[start : start + TEXTS_AT_ONCE]
        for (i, _), value in zip(part, _counts_of_texts([text for _, text in part], [where[i] for i, _ in part])):
            counts[i] = value
    for i, (value, (height, width)) in enumerate(zip(counts, sizes)):
        if value.ndim != 1 or value.min(initial=0) < 0 or value.sum() != height * width:
            raise ValueError(
                f"{where[i]}: expected run lengths that fill {height} x {width} pixels, got {value.sum()} pixels"
            )
    return Runs(counts, np.array([height for height, _ in sizes], np.int64))


def _counts_of_texts(texts: Sequence[bytes], where: Sequence[str]) -> list[Ints]:
    """Run lengths of each of COCO's compressed texts (see `vision.masks`), all decoded in one go.

    Every number ends with a character without bit 5, so the texts can be read one behind the other.
    """
    codes = np.frombuffer(b"".join(texts), np.uint8).astype(np.int64) - 48
    bounds = np.cumsum([0, *map(len, texts)])
    last = (codes & 32) == 0
    bad = (codes < 0) | (codes > 63)
    ends = bounds[1:][np.diff(bounds) > 0] - 1
    bad[ends] |= ~last[ends]
    if bad.any():
        at = int(np.searchsorted(bounds, int(bad.argmax()), side="right")) - 1
        raise ValueError(f"{where[at]}: expected COCO's compressed run lengths, got {texts[at][:40]!r}")
    stops = np.flatnonzero(last)
    starts = np.concatenate([[0], stops[:-1] + 1])[: len(stops)]
    digit = np.arange(len(codes)) - np.repeat(starts, stops - starts + 1)
    # A run length has 32 bits: seven characters at most.
    values = np.add.reduceat((codes & 31) << (5 * np.minimum(digit, 11)), starts) if len(starts) else codes
    values -= np.where(codes[stops] & 16, 1 << (5 * np.minimum(digit[stops] + 1, 12)), 0)
    firsts = np.searchsorted(stops, bounds[:-1])
    lengths = np.diff(np.append(firsts, len(stops)))
    # From the fourth run on a number is the difference to the run two before: sums along every second number, from the
    # second and the third one of each text.
    place = np.arange(len(values)) - np.repeat(firsts, lengths)
    head = np.where(place == 0, values, 0)
    values = values - head
    for parity in (0, 1):
        chosen = np.flatnonzero(place % 2 == parity)
        total = np.cumsum(values[chosen])
        own = np.flatnonzero(place[chosen] == parity)
        before = np.concatenate([[0], total])[own]
        values[chosen] = total - np.repeat(before, np.diff(np.append(own, len(chosen))))
    return np.split(values + head, firsts[1:])
