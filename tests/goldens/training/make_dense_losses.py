"""Make dense_losses.json: training losses of the original RetinaNet, FCOS and YOLOX (torch and torchvision needed).

    python make_dense_losses.py CLONE        # CLONE: a folder with the files of github.com/Megvii-BaseDetection/YOLOX

The models have the seeded weights of `seeded.py` with the gains of the published model's golden, and are given the
images of `objects.py`; torchvision's resize them to 160 to 256 pixels. Batch norms use the stored statistics. The file
has the objects of two batches (boxes xyxy in pixels, labels among COCO's 80 classes) and, for each model and batch, the
losses by the original's names and, of the head and the pyramid, by the parameter's name the norm of the gradient of
their sum. The script prints how far the same losses in float64 are: a golden that rounding decides is none.
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

FOLDER = Path(__file__).resolve().parent
sys.path[:0] = [str(FOLDER.parent), str(FOLDER)]
import make_torchvision  # noqa: E402
import make_yolox  # noqa: E402
from objects import IMAGES, OBJECTS  # noqa: E402
from seeded import noise, read_golden, synthetic_image  # noqa: E402

TORCHVISION = ("retinanet_resnet50_fpn", "retinanet_resnet50_fpn_v2", "fcos_resnet50_fpn")
YOLOX = ("yolox_nano", "yolox_s")
RESIZED = (160, 256)  # the short side, and the most that the long one may be
COUNTS = (14, 5)  # objects of the images in the crowded batch
Batch = list[dict[str, np.ndarray]]


def crowded() -> Batch:
    """Objects of all sizes over each other, the classes of several the same."""
    batch = []
    for (height, width), count in zip(IMAGES, COUNTS):
        values = noise(f"objects {height}x{width}", count * 5).reshape(count, 5) / 65536
        side = np.array([width, height]) * (0.05 + 0.6 * values[:, :1] ** 2) * (0.6 + 0.8 * values[:, 1:2] * [1, -0.5])
        corner = values[:, 2:4] * (np.array([width, height]) - side)
        boxes = np.concatenate([corner, corner + side], 1).round(2).astype(np.float32)
        batch.append({"boxes": boxes, "labels": (values[:, 4] * 6).astype(np.int64) * 11})
    return batch


def result(model: torch.nn.Module, losses: dict[str, torch.Tensor]) -> dict[str, Any]:
    model.zero_grad()
    sum(losses.values()).backward()
    norms = {
        n: float(p.grad.double().norm())
        for n, p in model.named_parameters()
        if p.grad is not None and n.endswith("weight") and any(part in n for part in ("head", "fpn", "C3_n"))
    }
    return {"losses": {k: v.item() for k, v in losses.items()}, "gradients": norms}


def norms_as_stored(model: torch.nn.Module) -> torch.nn.Module:
    model.train()
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.eval()
    return model


def torchvision_losses(name: str, batches: dict[str, Batch], dtype: torch.dtype) -> dict[str, Any]:
    golden = read_golden(FOLDER.parent / f"{name}.npz")
    model = norms_as_stored(make_torchvision.seeded_model(name, make_torchvision.build(name), golden)).to(dtype)
    model.transform.min_size, model.transform.max_size = RESIZED[:1], RESIZED[1]
    images = [torch.from_numpy(synthetic_image(*size)).permute(2, 0, 1).to(dtype) / 255 for size in IMAGES]
    found = {}
    for kind, batch in batches.items():
        targets = [
            {"boxes": torch.from_numpy(o["boxes"]).to(dtype), "labels": torch.from_numpy(make_yolox.IDS[o["labels"]])}
            for o in batch
        ]
        found[f"{name} {kind}"] = result(model, model(images, targets))
    return found


def yolox_losses(name: str, batches: dict[str, Batch], dtype: torch.dtype) -> dict[str, Any]:
    model = make_yolox.build(name)
    make_yolox.seed(model, read_golden(FOLDER.parent / f"{name}.npz"))
    norms_as_stored(model).to(dtype)
    inputs = [make_yolox.preprocess(name, synthetic_image(*size)) for size in IMAGES]
    x = torch.cat([image for image, _ in inputs]).to(dtype)
    found = {}
    for kind, batch in batches.items():
        labels = np.zeros((len(batch), max(len(o["labels"]) for o in batch), 5), np.float32)
        for row, objects, (_, ratio) in zip(labels, batch, inputs):
            box, count = objects["boxes"], len(objects["boxes"])
            centre, side = (box[:, :2] + box[:, 2:]) / 2, box[:, 2:] - box[:, :2]
            row[:count] = np.concatenate([objects["labels"][:, None], centre * ratio, side * ratio], 1)
        losses = model(x, torch.from_numpy(labels).to(dtype))
        parts = {k: losses[k] for k in ("iou_loss", "conf_loss", "cls_loss")}
        found[f"{name} {kind}"] = result(model, parts)
    return found


def make(batches: dict[str, Batch], dtype: torch.dtype) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in (*TORCHVISION, *YOLOX):
        found |= (torchvision_losses if name in TORCHVISION else yolox_losses)(name, batches, dtype)
        print(name, dtype, flush=True)
    return found


if __name__ == "__main__":
    make_yolox.import_yolox(Path(sys.argv[1]))
    from yolox.models import yolo_head  # type: ignore[import-not-found]
    from yolox.utils.boxes import bboxes_iou  # type: ignore[import-not-found]

    yolo_head.bboxes_iou = bboxes_iou
    index = {int(i): k for k, i in enumerate(make_yolox.IDS)}
    sparse = [{"boxes": o["boxes"], "labels": np.array([index[i] for i in o["labels"].tolist()], int)} for o in OBJECTS]
    given = {"sparse": sparse, "crowded": crowded()}
    cases = make(given, torch.float32)
    listed = {kind: [{k: v.tolist() for k, v in o.items()} for o in batch] for kind, batch in given.items()}
    (FOLDER / "dense_losses.json").write_text(json.dumps({"batches": listed, "cases": cases}, indent=1) + "\n")
    for case, exact in make(given, torch.float64).items():
        pairs = [(cases[case]["losses"][k], v) for k, v in exact["losses"].items()]
        print(case, cases[case]["losses"], "in float64", [f"{abs(a - b) / abs(b):.1e}" for a, b in pairs if b])
