"""Make the goldens of YOLOX's official code (torch and torchvision needed, and a clone of Megvii-BaseDetection/YOLOX).

    python make_yolox.py CLONE [NAME ...]        # writes NAME.npz beside this script

Every model is built as the experiment file of its name builds it, filled with the seeded weights of `seeded.py`, scaled
layer by layer on the first image, and run on the images of the stored sizes. For image i: boxes_i (n, 4) xyxy pixels
of the image, scores_i (n,), labels_i (n,) in COCO's own ids, as the official evaluation gives them with confidence 0.01
and IoU 0.65.
"""

import sys
import types
from pathlib import Path

import cv2
import numpy as np
import torch
from make_torchvision import FOLDER, HEADS, agreement, calibrate
from seeded import Golden, seeded_state, synthetic_image, write_golden
from torch import Tensor, nn

# depth, width, depthwise and size of the input; None is the model of yolov3.py
MODELS = {
    "yolox_nano": (0.33, 0.25, True, 416),
    "yolox_tiny": (0.33, 0.375, False, 416),
    "yolox_s": (0.33, 0.50, False, 640),
    "yolox_m": (0.67, 0.75, False, 640),
    "yolox_l": (1.0, 1.0, False, 640),
    "yolox_x": (1.33, 1.25, False, 640),
    "yolox_darknet53": None,
}
SIZES = [(200, 301), (161, 97)]
UNUSED = (12, 26, 29, 30, 45, 66, 68, 69, 71, 83)
IDS = np.array([i for i in range(1, 91) if i not in UNUSED])
HEADS |= {r"cls_preds\.\d": (-4.0, 1.5), r"obj_preds\.\d": (-4.5, 1.5), r"reg_preds\.\d": (1.0, 0.6)}


def import_yolox(clone: Path) -> None:
    """Make `yolox.models` and `yolox.data.data_augment` importable without what only training needs."""

    def package(name: str, folder: Path | None = None) -> types.ModuleType:
        module = types.ModuleType(name)
        if folder:
            module.__path__ = [str(folder)]
        sys.modules[name] = module
        return module

    package("yolox", clone / "yolox")
    package("yolox.models", clone / "yolox" / "models")
    package("loguru").logger = None
    utils = package("yolox.utils", clone / "yolox" / "utils")
    utils.meshgrid = lambda tensors: torch.meshgrid(*tensors, indexing="ij")
    utils.bboxes_iou = utils.cxcywh2xyxy = utils.visualize_assign = None


def build(name: str) -> nn.Module:
    from yolox.models.yolo_fpn import YOLOFPN
    from yolox.models.yolo_head import YOLOXHead
    from yolox.models.yolo_pafpn import YOLOPAFPN
    from yolox.models.yolox import YOLOX

    settings = MODELS[name]
    if settings is None:
        model = YOLOX(YOLOFPN(), YOLOXHead(80, 1.0, in_channels=[128, 256, 512], act="lrelu"))
    else:
        depth, width, depthwise, _ = settings
        model = YOLOX(YOLOPAFPN(depth, width, depthwise=depthwise), YOLOXHead(80, width, depthwise=depthwise))
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eps = 1e-3
    return model.eval()


def seed(model: nn.Module, golden: Golden | None = None) -> None:
    shapes = {k: (tuple(v.shape), str(v.dtype).removeprefix("torch.")) for k, v in model.state_dict().items()}
    state = seeded_state(shapes, golden)
    model.load_state_dict({k: torch.from_numpy(np.ascontiguousarray(v)) for k, v in state.items()})


def preprocess(name: str, image: np.ndarray) -> tuple[Tensor, float]:
    """The input of an image (h, w, 3) RGB: what `yolox.data.data_augment.preproc` does, which imports too much."""
    settings = MODELS[name]
    size = (settings[3] if settings else 640,) * 2
    bgr = np.ascontiguousarray(image[:, :, ::-1])
    padded = np.full((*size, 3), 114, np.uint8)
    ratio = min(size[0] / bgr.shape[0], size[1] / bgr.shape[1])
    width, height = int(bgr.shape[1] * ratio), int(bgr.shape[0] * ratio)
    padded[:height, :width] = cv2.resize(bgr, (width, height), interpolation=cv2.INTER_LINEAR)
    return torch.from_numpy(np.ascontiguousarray(padded.transpose(2, 0, 1)[None], np.float32)), ratio


def predict(
    name: str, model: nn.Module, image: np.ndarray, dtype: torch.dtype = torch.float32
) -> dict[str, np.ndarray]:
    from yolox.utils.boxes import postprocess

    x, ratio = preprocess(name, image)
    (found,) = postprocess(model(x.to(dtype)).float(), 80, 0.01, 0.65)
    return {
        "boxes": (found[:, :4] / ratio).numpy(),
        "scores": (found[:, 4] * found[:, 5]).numpy(),
        "labels": IDS[found[:, 6].numpy().astype(np.int64)],
    }


def make(name: str, folder: Path = FOLDER) -> None:
    sizes = np.array(SIZES)
    first = build(name)
    seed(first)
    x, _ = preprocess(name, synthetic_image(*SIZES[0]))
    gains, shifts = calibrate(name, first, lambda: first(x))
    model = build(name)
    seed(model, Golden(sizes, gains, shifts))
    images = [synthetic_image(*size) for size in SIZES]
    results = [predict(name, model, image) for image in images]
    outputs = {f"{k}_{i}": v for i, found in enumerate(results) for k, v in found.items()}
    path = folder / f"{name}.npz"
    write_golden(path, Golden(sizes, gains, shifts, outputs))
    print(f"{name}: {path.stat().st_size / 1000:.0f} kB, {sum(p.numel() for p in model.parameters())} parameters")
    model.double()
    for image, found in zip(images, results):
        print(f"  {image.shape}: {agreement(found, predict(name, model, image, dtype=torch.float64))}", flush=True)


if __name__ == "__main__":
    torch.set_grad_enabled(False)
    import_yolox(Path(sys.argv[1]))
    for requested in sys.argv[2:] or MODELS:
        make(requested)
