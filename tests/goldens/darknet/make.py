"""Make `outputs.npz` with OpenCV's reader of Darknet's files (opencv-python-headless 4; version 5 has none).

    python make.py

For each network of `cases.py` and its k-th head: `NAME_raw_k`, what the head gets, and `NAME_rows_k`, what
OpenCV makes of it: rows of centre x, y, width, height (fractions of the input), objectness and the score of each class,
where scores up to OpenCV's own threshold are 0.
"""

import tempfile
from pathlib import Path

import cv2
import numpy as np
from cases import CFGS, picture, weights_file

FOLDER = Path(__file__).resolve().parent


def outputs(cfg: str, weights: bytes, image: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """Of each head what it gets and what OpenCV makes of it."""
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / "net.cfg", Path(folder) / "net.weights"]
        files[0].write_text(cfg)
        files[1].write_bytes(weights)
        net = cv2.dnn.readNetFromDarknet(*map(str, files))
    net.setPreferableBackend(cv2.dnn.DNN_BACKEND_OPENCV)
    net.enableFusion(False)
    names = net.getLayerNames()
    heads = [i for i, name in enumerate(names) if name.startswith(("yolo_", "detection_out"))]
    wanted = [names[i - 2] for i in heads] + [names[i] for i in heads]  # between them is a permutation of axes
    net.setInput(image)
    found = net.forward(wanted)
    return list(zip(found[: len(heads)], found[len(heads) :]))


if __name__ == "__main__":
    stored = {}
    for name, cfg in CFGS.items():
        for k, (raw, rows) in enumerate(outputs(cfg, weights_file(cfg), picture(cfg))):
            stored |= {f"{name}_raw_{k}": raw[0], f"{name}_rows_{k}": rows.reshape(-1, rows.shape[-1])}
            print(name, k, raw.shape, rows.shape, float(raw.std()), int((rows[..., 5:] > 0).sum()))
    np.savez_compressed(FOLDER / "outputs.npz", **stored)
