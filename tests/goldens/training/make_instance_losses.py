"""Make instance_losses.json: training losses and gradients of torchvision's Mask and Keypoint R-CNN.

    python make_instance_losses.py [MODEL ...]        # torch and torchvision needed

As `make_losses.py` does it for Faster R-CNN, with the objects of `instances.py`.
"""

import json
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import torch

FOLDER = Path(__file__).resolve().parent
sys.path[:0] = [str(FOLDER.parent), str(FOLDER)]
from instances import INSTANCES, LEFT_OUT  # noqa: E402
from make_losses import norms  # noqa: E402
from make_torchvision import build, seeded_model  # noqa: E402
from objects import IMAGES  # noqa: E402
from seeded import read_golden, synthetic_image  # noqa: E402

MODELS = ("maskrcnn_resnet50_fpn", "maskrcnn_resnet50_fpn_v2", "keypointrcnn_resnet50_fpn")


def case(name: str) -> dict[str, Any]:
    model = seeded_model(name, build(name), read_golden(FOLDER.parent / f"{name}.npz")).train()
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.eval()
    model.transform.min_size, model.transform.max_size = (160,), 256
    images = [torch.from_numpy(synthetic_image(*size)).permute(2, 0, 1).float() / 255 for size in IMAGES]
    targets = []
    for objects, first in zip(INSTANCES, (LEFT_OUT, 0)):
        kept = {k: torch.from_numpy(objects[k][first:]) for k in ("boxes", "labels", "masks", "keypoints")}
        kept["masks"] = kept["masks"].byte()
        if name.startswith("keypoint"):
            kept["labels"] = torch.ones_like(kept["labels"])
        targets.append(kept)
    with mock.patch.object(torch, "randperm", lambda n, **_: torch.arange(n)):
        losses = model(images, targets)
    sum(losses.values()).backward()
    return {"losses": {k: v.item() for k, v in losses.items()}, "gradients": norms(model)}


if __name__ == "__main__":
    path = FOLDER / "instance_losses.json"
    found = json.loads(path.read_text()) if path.exists() else {}
    for model_name in sys.argv[1:] or MODELS:
        found[model_name] = case(model_name)
        print(model_name, found[model_name]["losses"], flush=True)
    path.write_text(json.dumps(found, indent=1) + "\n")
