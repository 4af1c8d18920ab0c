"""Small data sets of every format, written into a temporary folder."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image


class Trees:
    """Writes images and annotations under one folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.count = 0

    def image(self, name: str, size: tuple[int, int] = (40, 60)) -> Path:
        """An image of (height, width) with pixels of its own."""
        self.count += 1
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(self.count).integers(0, 256, (*size, 3), np.uint8)
        Image.fromarray(pixels).save(path)
        return path

    def text(self, name: str, content: str) -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, "utf-8")
        return path

    def json(self, name: str, content: object) -> Path:
        return self.text(name, json.dumps(content))

    def voc(self, name: str, objects: list[tuple], size: tuple[int, int] = (40, 60)) -> Path:
        """An XML file; objects are (class, xmin, ymin, xmax, ymax[, difficult]) as VOC counts them."""
        parts = [f"<annotation><size><width>{size[1]}</width><height>{size[0]}</height><depth>3</depth></size>"]
        for label, x0, y0, x1, y1, *difficult in objects:
            parts.append(
                f"<object><name>{label}</name><difficult>{difficult[0] if difficult else 0}</difficult><bndbox>"
                f"<xmin>{x0}</xmin><ymin>{y0}</ymin><xmax>{x1}</xmax><ymax>{y1}</ymax></bndbox></object>"
            )
        return self.text(name, "".join(parts) + "</annotation>")

    def label_map(self, name: str, values: np.ndarray, palette: bool = False) -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        image = Image.fromarray(values.astype(np.uint8))
        if palette:
            image = image.convert("P")
            image.putdata(values.reshape(-1).tolist())
            image.putpalette([(i * 37) % 256 for i in range(768)])
        image.save(path)
        return path

    def coco(self, name: str, annotations: list[dict], images: list[str], **more: object) -> Path:
        """A COCO file of 40x60 images with ids from 10 and the classes cat (3) and dog (7)."""
        content = {
            "images": [{"id": 10 + i, "file_name": n, "height": 40, "width": 60} for i, n in enumerate(images)],
            "annotations": [{"id": i + 1, "iscrowd": 0, **a} for i, a in enumerate(annotations)],
            "categories": [{"id": 7, "name": "dog"}, {"id": 3, "name": "cat"}],
            **more,
        }
        return self.json(name, content)


@pytest.fixture
def trees(tmp_path: Path) -> Trees:
    return Trees(tmp_path)
