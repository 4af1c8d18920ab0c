"""Random predictions and what ChainerCV's evaluation functions say of them: ``metrics.npz``, beside this file.

Runs where ChainerCV 0.13.1 and pycocotools are installed. Boxes are (x0, y0, x1, y1) in the file, and whole numbers:
ChainerCV's VOC metric counts the last pixel, ``offset=1`` in ours.
"""

import contextlib
import io
import os

import numpy as np
from chainercv import evaluations as reference

HERE = os.path.dirname(os.path.abspath(__file__))
CLASSES, IMAGES, SIZE = 5, 24, (48, 64)


def boxes(rng, n):
    low = rng.integers(0, 40, (n, 2))
    return np.concatenate([low, low + rng.integers(3, 40, (n, 2))], 1).astype(np.float32)


def masks(rng, n):
    found = np.zeros((n, *SIZE), bool)
    for mask in found:
        y, x = rng.integers(0, SIZE[0] - 8), rng.integers(0, SIZE[1] - 8)
        mask[y : y + rng.integers(3, 30), x : x + rng.integers(3, 30)] = True
    return found


def near(rng, truth, labels):
    """Detections around true boxes and others, more than one of some; most with the right class."""
    chosen = rng.integers(0, max(len(truth), 1), len(truth) + 2 if len(truth) else 0)
    moved = truth[chosen] + rng.integers(-2, 3, (len(chosen), 4)).astype(np.float32)
    moved[:, 2:] = np.maximum(moved[:, 2:], moved[:, :2] + 1)
    others = boxes(rng, int(rng.integers(0, 4)))
    guess = np.concatenate([labels[chosen], rng.integers(0, CLASSES, len(others))])
    wrong = rng.random(len(guess)) < 0.1
    guess[wrong] = rng.integers(0, CLASSES, wrong.sum())
    return np.concatenate([moved, others]), guess.astype(np.int32)


def detections(rng):
    """Per image: truth boxes, labels, difficult; found boxes, labels, scores. Class 4 is never true."""
    for i in range(IMAGES):
        truth = boxes(rng, 0 if i % 7 == 3 else int(rng.integers(1, 6)))
        labels = rng.integers(0, CLASSES - 1, len(truth)).astype(np.int32)
        found, guess = near(rng, truth, labels)
        if i % 5 == 0:
            found, guess = found[:0], guess[:0]
        scores = rng.permutation(len(found)).astype(np.float32) / 97 + np.float32(i / 1e4)
        yield truth, labels, rng.random(len(truth)) < 0.2, found, guess, scores


def instances(rng):
    for i in range(IMAGES // 2):
        truth = masks(rng, 0 if i % 5 == 3 else int(rng.integers(1, 5)))
        labels = rng.integers(0, CLASSES - 1, len(truth)).astype(np.int32)
        again = [np.roll(m, rng.integers(-3, 4, 2), (0, 1)) for m in truth for _ in range(2)]
        found = np.concatenate([np.array(again).reshape(-1, *SIZE).astype(bool), masks(rng, 2)])
        guess = np.concatenate([np.repeat(labels, 2), [0, CLASSES - 1]]).astype(np.int32)
        scores = rng.permutation(len(found)).astype(np.float32) / 97 + np.float32(i / 1e4)
        yield truth, labels, rng.random(len(truth)) < 0.2, found, guess, scores


def swapped(items):
    return [b[:, [1, 0, 3, 2]] for b in items]


def coco(result):
    """AP and AR over all areas, and their means over classes, in COCO's order."""
    ap = "map/iou={}/area={}/max_dets=100"
    names = [ap.format(iou, "all") for iou in ("0.50:0.95", "0.50", "0.75")]
    names += [ap.format("0.50:0.95", area) for area in ("small", "medium", "large")]
    names += [f"mar/iou=0.50:0.95/area=all/max_dets={n}" for n in (1, 10, 100)]
    names += [f"mar/iou=0.50:0.95/area={area}/max_dets=100" for area in ("small", "medium", "large")]
    return np.array([result[name] for name in names])


def pack(arrays, prefix, columns):
    """Ragged columns as one array each, with the number of rows of every image."""
    for name, column in zip(("truth", "labels", "ignore", "found", "guess", "scores"), columns):
        joined = np.concatenate(column)
        arrays[f"{prefix}/{name}"] = np.packbits(joined) if joined.ndim == 3 else joined
    arrays[f"{prefix}/counts"] = np.array([[len(a), len(b)] for a, b in zip(columns[0], columns[3])])


def main():
    rng = np.random.default_rng(20261201)
    arrays = {"size": np.array(SIZE), "classes": np.array(CLASSES)}
    columns = [list(c) for c in zip(*detections(rng))]
    truth, labels, ignore, found, guess, scores = columns
    pack(arrays, "boxes", columns)
    for use_07 in (False, True):
        for iou in (0.5, 0.7):
            for name, difficult in (("all", None), ("easy", ignore)):
                result = reference.eval_detection_voc(
                    swapped(found),
                    guess,
                    scores,
                    swapped(truth),
                    labels,
                    difficult,
                    iou_thresh=iou,
                    use_07_metric=use_07,
                )
                arrays[f"boxes/voc/{'11 points' if use_07 else 'area'}/{iou}/{name}"] = result["ap"]
    areas = [np.prod(b[:, 2:] - b[:, :2], axis=1) * 3 for b in truth]
    with contextlib.redirect_stdout(io.StringIO()):
        result = reference.eval_detection_coco(swapped(found), guess, scores, swapped(truth), labels, areas, ignore)
    arrays["boxes/coco"] = coco(result)
    columns = [list(c) for c in zip(*instances(rng))]
    truth, labels, ignore, found, guess, scores = columns
    pack(arrays, "masks", columns)
    for use_07 in (False, True):
        for iou in (0.5, 0.7):
            result = reference.eval_instance_segmentation_voc(
                found, guess, scores, truth, labels, iou_thresh=iou, use_07_metric=use_07
            )
            arrays[f"masks/voc/{'11 points' if use_07 else 'area'}/{iou}/all"] = result["ap"]
    areas = [m.sum((1, 2)) * 3.0 for m in truth]
    with contextlib.redirect_stdout(io.StringIO()):
        result = reference.eval_instance_segmentation_coco(found, guess, scores, truth, labels, areas, ignore)
    arrays["masks/coco"] = coco(result)
    maps = [rng.integers(-1, CLASSES, SIZE).astype(np.int32) for _ in range(4)]
    guesses = [
        np.where(rng.random(SIZE) < 0.6, m, rng.integers(0, CLASSES, SIZE)).clip(0).astype(np.int32) for m in maps
    ]
    result = reference.eval_semantic_segmentation(guesses, maps)
    arrays["semantic/truth"], arrays["semantic/found"] = np.array(maps, np.int8), np.array(guesses, np.int8)
    for name in ("iou", "miou", "pixel_accuracy", "class_accuracy", "mean_class_accuracy"):
        arrays["semantic/" + name] = np.asarray(result[name])
    np.savez_compressed(os.path.join(HERE, "metrics.npz"), **arrays)


if __name__ == "__main__":
    main()
