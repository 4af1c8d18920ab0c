"""Seconds and memory of COCO's metrics on an input like val2017: ``python tests/support/time_coco_metrics.py segm``.

5,000 images of 640 x 480 with 100 detections each and about 7 objects, 80 categories. Masks are outlines of
`ShapeScenes` as a 28 x 28 grid of probabilities, pasted into boxes of all sizes; keypoints are of 17 points.
"""

from __future__ import annotations

import argparse
import resource
import time

import numpy as np
from chainsight.datasets import ShapeScenes
from chainsight.evaluations.metrics import coco_metrics
from chainsight.vision.masks import InstanceMasks

HEIGHT, WIDTH, CATEGORIES, POOL = 480, 640, 80, 8000


def make(kind, images=5000, found_each=100, seed=0, pool=POOL):
    """Ground truth and detections; a third of the detections lies near an object; ``pool`` boxes differ."""
    rng = np.random.default_rng(seed)
    categories = 1 if kind == "keypoints" else CATEGORIES
    truth = {
        "images": [{"id": i, "height": HEIGHT, "width": WIDTH} for i in range(images)],
        "categories": [{"id": k, "name": str(k)} for k in range(categories)],
        "annotations": [],
    }
    boxes = random_boxes(rng, pool)
    near = boxes + (boxes[:, 2:] - boxes[:, :2])[:, [0, 1, 0, 1]] * rng.normal(0, 0.05, (pool, 4))
    if kind == "segm":
        crops = shape_crops(300)[rng.integers(0, 300, pool)]
        segmentations = InstanceMasks(crops, boxes, (HEIGHT, WIDTH)).to_rle()
        segmentations_near = InstanceMasks(crops, near, (HEIGHT, WIDTH)).to_rle()
    points = boxes[:, None, :2] + rng.random((pool, 17, 2)) * (boxes[:, None, 2:] - boxes[:, None, :2])
    points = np.concatenate([points, np.full((pool, 17, 1), 2)], 2)
    points_near = points + np.concatenate([rng.normal(0, 3, (pool, 17, 2)), np.zeros((pool, 17, 1))], 2)

    def entry(image, category, j, moved):
        x0, y0, x1, y1 = (near if moved else boxes)[j].tolist()
        one = {"image_id": image, "category_id": category, "bbox": [x0, y0, x1 - x0, y1 - y0]}
        if kind == "segm":
            one["segmentation"] = (segmentations_near if moved else segmentations)[j]
        if kind == "keypoints":
            one["keypoints"] = (points_near if moved else points)[j].ravel().tolist()
        return one

    found = []
    for image in range(images):
        objects = [(int(rng.integers(categories)), int(rng.integers(pool))) for _ in range(rng.poisson(7.3))]
        for category, j in objects:
            one = entry(image, category, j, False) | {"id": len(truth["annotations"]) + 1, "num_keypoints": 17}
            truth["annotations"].append(one | {"iscrowd": int(rng.random() < 0.02)})
        for k in range(found_each):
            moved = bool(objects) and k < found_each // 3
            category, j = (
                objects[k % len(objects)] if moved else (int(rng.integers(categories)), int(rng.integers(pool)))
            )
            found.append(entry(image, category, j, moved) | {"score": float(rng.random())})
    return truth, found


def random_boxes(rng, n):
    """(n, 4) xyxy inside of the image, sides from 12 to 300 pixels, uniform on a logarithmic scale."""
    sides = np.exp(rng.uniform(np.log(12), np.log(300), (n, 2)))
    corner = rng.random((n, 2)) * ([WIDTH, HEIGHT] - sides)
    return np.concatenate([corner, corner + sides], 1)


def shape_crops(n):
    """(n, 28, 28) float32: the masks of drawn shapes, cut out and averaged in the cells of their box."""
    crops = []
    for sample in ShapeScenes(n, 320, seed=9):
        for mask, box in zip(sample.masks, sample.boxes.astype(int)):
            x0, y0, x1, y1 = box
            rows, columns = ((np.arange(280) * side // 280) for side in (y1 - y0, x1 - x0))
            grid = mask[y0:y1, x0:x1][rows[:, None], columns].reshape(28, 10, 28, 10).mean((1, 3))
            crops.append(grid.astype(np.float32))
        if len(crops) >= n:
            return np.stack(crops[:n])
    raise ValueError("too few shapes")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=("bbox", "segm", "keypoints"))
    parser.add_argument("--images", type=int, default=5000)
    options = parser.parse_args()
    truth, found = make(options.kind, options.images)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    wall, processor = time.perf_counter(), time.process_time()
    metrics = coco_metrics(truth, found, iou_type=options.kind)
    wall, processor = time.perf_counter() - wall, time.process_time() - processor
    more = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    print(f"{options.kind}: {wall:.1f} s, {processor:.1f} s of the processor, {more:.0f} MB more than the input")
    print(metrics)


if __name__ == "__main__":
    main()
