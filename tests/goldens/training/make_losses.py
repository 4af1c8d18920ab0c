"""Make losses.json: training losses and gradients of the original implementations (torch and torchvision needed).

    python make_losses.py NANODET [MODEL ...]        # NANODET: a checkout of github.com/RangiLyu/nanodet

torchvision's detectors have the seeded weights of `seeded.py` with the gains of the published model's golden, and are
given its images and the `OBJECTS` below; what they sample at random are the first anchors, in order. NanoDet's head is
given seeded outputs. For each case the file has the losses by the original's names and, by the parameter's name, the
norm of the gradient of their sum.

Batch norms use the stored statistics. Without an argument NanoDet's cases stay as they are.
"""

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import torch
import torchvision  # noqa: F401  before modules are stubbed

FOLDER = Path(__file__).resolve().parent
sys.path[:0] = [str(FOLDER.parent), str(FOLDER)]
from objects import CELLS, CLASSES, IMAGES, OBJECTS, head_outputs, network_boxes  # noqa: E402
from seeded import read_golden, synthetic_image  # noqa: E402

STUBBED = ("cv2", "pytorch_lightning", "lightning_fabric", "termcolor", "tabulate", "matplotlib", "yaml", "pycocotools")


def norms(model: torch.nn.Module) -> dict[str, float]:
    named = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    return {n: float(g.double().norm()) for n, g in named.items() if n.endswith("weight")}


def torchvision_case(name: str) -> dict[str, Any]:
    from make_torchvision import build, seeded_model

    model = seeded_model(name, build(name), read_golden(FOLDER.parent / f"{name}.npz")).train()
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.eval()  # two images on maps of one cell: batch statistics would blow rounding errors up
    if name.startswith("fasterrcnn"):
        model.transform.min_size, model.transform.max_size = (160,), 256
    images = [torch.from_numpy(synthetic_image(*size)).permute(2, 0, 1).float() / 255 for size in IMAGES]
    targets = [{k: torch.from_numpy(v) for k, v in objects.items()} for objects in OBJECTS]
    with mock.patch.object(torch, "randperm", lambda n, **_: torch.arange(n)):
        losses = model(images, targets)
    sum(losses.values()).backward()
    return {"losses": {k: v.item() for k, v in losses.items()}, "gradients": norms(model)}


class _Stubs:
    """Finds empty modules for what the official package imports but its head does not use."""

    def find_spec(self, name: str, *_: Any) -> Any:
        from importlib.machinery import ModuleSpec

        return ModuleSpec(name, self, is_package=True) if name.split(".")[0] in STUBBED else None

    def create_module(self, spec: Any) -> ModuleType:
        module = ModuleType(spec.name)
        module.__getattr__ = lambda attribute: type(attribute, (), {"__init__": lambda *_, **__: None})  # type: ignore[method-assign]
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__path__ = []


def nanodet_cases(source: str) -> dict[str, Any]:
    sys.meta_path.append(_Stubs())  # type: ignore[arg-type]
    sys.path.insert(0, source)
    from nanodet.model.head.nanodet_head import NanoDetHead  # type: ignore[import-not-found]

    sys.meta_path.pop()
    for name in [name for name in sys.modules if name.split(".")[0] in STUBBED]:
        del sys.modules[name]

    class Settings:
        def __init__(self, **values: Any) -> None:
            self.__dict__.update(values)

    loss = Settings(
        loss_qfl=Settings(use_sigmoid=True, beta=2.0, loss_weight=1.0),
        loss_dfl=Settings(loss_weight=0.25),
        loss_bbox=Settings(loss_weight=2.0),
    )
    head = NanoDetHead(
        CLASSES, loss, 8, 1, 8, "Conv", reg_max=10, share_cls_reg=True, activation="LeakyReLU", feat_channels=8
    )
    cases = {}
    for scale in (0.5, 3.0):
        outputs = torch.from_numpy(head_outputs(scale)).requires_grad_()
        truth = [network_boxes(i) for i in range(len(OBJECTS))]
        meta = {
            "img": torch.zeros(1, 3, 416, 416),
            "gt_bboxes": [boxes for boxes, _ in truth],
            "gt_labels": [labels for _, labels in truth],
            "gt_bboxes_ignore": None,
        }
        total, parts = head.loss(outputs, meta)
        total.backward()
        gradient = outputs.grad[:, :CELLS].double()
        cases[f"nanodet_g {scale}"] = {
            "losses": {k: v.item() for k, v in parts.items()},
            "gradients": {
                "classes": gradient[..., :CLASSES].norm().item(),
                "bins": gradient[..., CLASSES:].norm().item(),
            },
        }
    return cases


if __name__ == "__main__":
    path = FOLDER / "losses.json"
    found = json.loads(path.read_text()) if path.exists() else {}
    for model_name in sys.argv[2:] or ("ssdlite320_mobilenet_v3_large", "fasterrcnn_resnet50_fpn"):
        found[model_name] = torchvision_case(model_name)
    path.write_text(json.dumps(found, indent=1) + "\n")
    if len(sys.argv) > 1:
        found |= nanodet_cases(sys.argv[1])
    path.write_text(json.dumps(found, indent=1) + "\n")
    for case, content in found.items():
        print(case, content["losses"])
