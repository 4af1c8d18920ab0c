"""Make the goldens of torchvision's models (torch and torchvision needed; the tests that read them need neither).

    python make_torchvision.py [NAME ...]        # all models without a name; writes NAME.npz beside this script

Every model is built as its published weight entry builds it (norm layers, overwritten eps, transformed inputs), filled
with the seeded weights of `seeded.py`, scaled layer by layer on the first image, and run in float32 on the images of
the stored sizes. The outputs, for image i:

    classification  logits_i (1000,): the image as it is (`imagenet_input`), no resize, no crop
    segmentation    logits_i (21, ceil(h/16), ceil(w/16)): every 16th pixel of the logits; the image as it is, no resize
    detection       boxes_i (n, 4) xyxy pixels of the image, scores_i (n,), labels_i (n,) among COCO's 91 ids: the image
                    over 255 given to the whole detector, which resizes it as published
                    masks_i (min(n, 20), ceil(h/4), ceil(w/4)) float16: every 4th pixel of the pasted probabilities
                    keypoints_i (n, 17, 3), keypoint_scores_i (n, 17)

The script prints how well the same model in float64 agrees: a golden with ties that rounding decides is no golden.
"""

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from seeded import Golden, imagenet_input, read_golden, seeded_state, synthetic_image, write_golden
from torch import Tensor, nn
from torchvision.models import _api
from torchvision.ops import box_iou

FOLDER = Path(__file__).resolve().parent
# Classifiers that take images of any size.
ANY_SIZE = """
    alexnet convnext_base convnext_large convnext_small convnext_tiny densenet121 densenet161 densenet169 densenet201
    efficientnet_b0 efficientnet_b1 efficientnet_b2 efficientnet_b3 efficientnet_b4 efficientnet_b5 efficientnet_b6
    efficientnet_b7 efficientnet_v2_l efficientnet_v2_m efficientnet_v2_s googlenet inception_v3 mnasnet0_5 mnasnet0_75
    mnasnet1_0 mnasnet1_3 mobilenet_v2 mobilenet_v3_large mobilenet_v3_small regnet_x_16gf regnet_x_1_6gf regnet_x_32gf
    regnet_x_3_2gf regnet_x_400mf regnet_x_800mf regnet_x_8gf regnet_y_128gf regnet_y_16gf regnet_y_1_6gf regnet_y_32gf
    regnet_y_3_2gf regnet_y_400mf regnet_y_800mf regnet_y_8gf resnet101 resnet152 resnet18 resnet34 resnet50
    resnext101_32x8d resnext101_64x4d resnext50_32x4d shufflenet_v2_x0_5 shufflenet_v2_x1_0 shufflenet_v2_x1_5
    shufflenet_v2_x2_0 squeezenet1_0 squeezenet1_1 swin_b swin_s swin_t swin_v2_b swin_v2_s swin_v2_t vgg11 vgg11_bn
    vgg13 vgg13_bn vgg16 vgg16_bn vgg19 vgg19_bn wide_resnet101_2 wide_resnet50_2
"""
# The models and the sizes (height, width) of the images given to them. Detectors that enlarge to 800 pixels get long
# narrow images: the limit on the longest side keeps them small.
CLASSIFIERS = {name: [(200, 301), (161, 97)] for name in ANY_SIZE.split()} | {
    "maxvit_t": [(224, 224)],
    "vit_b_16": [(224, 224)],
    "vit_b_32": [(224, 224)],
    "vit_l_16": [(224, 224)],
    "vit_l_32": [(224, 224)],
    "vit_h_14": [(518, 518)],
}
SEGMENTERS = {
    "fcn_resnet50": [(200, 301), (161, 97)],
    "fcn_resnet101": [(200, 301), (161, 97)],
    "deeplabv3_resnet50": [(200, 301), (161, 97)],
    "deeplabv3_resnet101": [(200, 301), (161, 97)],
    "deeplabv3_mobilenet_v3_large": [(200, 301), (161, 97)],
    "lraspp_mobilenet_v3_large": [(200, 301), (161, 97)],
}
DETECTORS = {
    "fasterrcnn_resnet50_fpn": [(97, 301), (301, 80), (200, 301)],
    "ssdlite320_mobilenet_v3_large": [(200, 301), (161, 97)],
    "fasterrcnn_resnet50_fpn_v2": [(97, 301), (301, 80)],
    "fasterrcnn_mobilenet_v3_large_fpn": [(97, 301), (301, 80)],
    "fasterrcnn_mobilenet_v3_large_320_fpn": [(200, 301), (161, 97)],
    "retinanet_resnet50_fpn": [(97, 301), (301, 80)],
    "retinanet_resnet50_fpn_v2": [(97, 301), (301, 80)],
    "fcos_resnet50_fpn": [(97, 301), (301, 80)],
    "ssd300_vgg16": [(200, 301), (161, 97)],
    "maskrcnn_resnet50_fpn": [(97, 301), (301, 80)],
    "maskrcnn_resnet50_fpn_v2": [(97, 301), (301, 80)],
    "keypointrcnn_resnet50_fpn": [(97, 301), (301, 80)],
}
MODELS = CLASSIFIERS | SEGMENTERS | DETECTORS

# Last layers (ends of their names): wanted mean and standard deviation of every output channel.
HEADS = {
    r"rpn\.head\.cls_logits": (0.0, 2.0),
    r"rpn\.head\.bbox_pred": (0.0, 0.3),
    r"box_predictor\.cls_score": (0.0, 2.5),
    r"box_predictor\.bbox_pred": (0.0, 0.4),
    r"mask_fcn_logits": (0.0, 3.0),
    r"kps_score_lowres": (0.0, 3.0),
    r"classification_head\.cls_logits": (0.0, 2.0),
    r"regression_head\.bbox_reg": (0.0, 0.3),
    r"regression_head\.bbox_ctrness": (1.0, 1.0),
    r"classification_head\.module_list\.\d(\.1)?": (0.0, 5.0),
    r"regression_head\.module_list\.\d(\.1)?": (0.0, 0.8),
}
# The other layers (found in their names, first wins): wanted standard deviation over the positions. Small residual
# branches keep a deep random network from amplifying rounding errors as no trained one does.
SCALES = {r"layer\d\.\d+\.conv3$": 0.4, r"^(fc|head|heads|classifier)\b": 2.0, r"": 1.0}
FEW = 16  # positions that are too few to tell the statistics of single channels


def build(name: str, state: dict[str, Tensor] | None = None) -> nn.Module:
    """The model as its default entry builds it, with `state` in place of the downloaded file."""
    builder, entry = _api.get_model_builder(name), _api.get_model_weights(name).DEFAULT
    if state is None:  # as the file was trained: with the auxiliary heads
        options: dict[str, Any] = {"num_classes": len(entry.meta["categories"])}
        if name in DETECTORS or name in SEGMENTERS:
            options["weights_backbone"] = None
        if name in SEGMENTERS and "lraspp" not in name:
            options["aux_loss"] = True
        if name in ("googlenet", "inception_v3"):
            options |= {"aux_logits": True, "init_weights": False}
        if name.startswith("vit"):  # as many positions as the file's images have patches
            options["image_size"] = entry.meta["min_size"][0]
        return builder(weights=None, **options).eval()
    original = _api.WeightsEnum.get_state_dict
    _api.WeightsEnum.get_state_dict = lambda *_, **__: state
    try:
        options = {"weights_backbone": None} if name in DETECTORS or name in SEGMENTERS else {}
        return builder(weights=entry, **options).eval()
    finally:
        _api.WeightsEnum.get_state_dict = original


def seeded_model(name: str, plain: nn.Module, golden: Golden | None = None) -> nn.Module:
    """The published model with seeded weights; the geometry buffers come from `plain`."""
    own = plain.state_dict()
    shapes = {k: (tuple(v.shape), str(v.dtype).removeprefix("torch.")) for k, v in own.items()}
    own.update({k: torch.from_numpy(np.ascontiguousarray(v)) for k, v in seeded_state(shapes, golden).items()})
    return build(name, own)  # an OrderedDict with the versions of its modules, which some models ask for


def inputs(name: str, image: np.ndarray, dtype: torch.dtype = torch.float32) -> Any:
    if name in DETECTORS:
        return [(torch.from_numpy(image).permute(2, 0, 1).float() / 255).to(dtype)]
    return torch.from_numpy(imagenet_input(image)).to(dtype)


def sigmoid_shift(levels: list[np.ndarray], threshold: float, wanted: int = 200) -> np.float32:
    """What to add to all logits of all feature levels so that `wanted` scores pass, the last not barely."""
    logits = np.sort(np.concatenate([level.ravel() for level in levels]))
    return np.float32(np.log(threshold / (1 - threshold)) - logits[-wanted - 1 : -wanted + 1].mean())


def background_shift(logits: np.ndarray, threshold: float, share: float) -> np.ndarray:
    """What to add to the background's logits, class 0 of every 91 (or 2), so that `share` scores per row pass."""
    classes = min(91, logits.shape[1])
    rows = logits.reshape(-1, classes).astype(np.float64)

    def margins(level: float) -> np.ndarray:
        moved = rows + np.eye(classes)[0] * level
        scores = np.exp(moved - moved.max(1, keepdims=True))
        return scores[:, 1:] / scores.sum(1, keepdims=True) - threshold

    low, high = -20.0, 40.0
    for _ in range(20):
        middle = (low + high) / 2
        low, high = (middle, high) if (margins(middle) > 0).sum() > share * len(rows) else (low, middle)
    # Here one score is just at the threshold: go to where the nearest one is farthest.
    level = max(np.linspace(high, high + 0.1, 40), key=lambda level: abs(margins(level)).min())
    shift = np.zeros((logits.shape[1] // classes, classes), np.float32)
    shift[:, 0] = level
    return shift.ravel()


def calibrate(name: str, model: nn.Module, run: Callable[[], object]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The gains and shifts of all layers, found in one forward pass: each layer is scaled as its input arrives."""
    gains: dict[str, Any] = {}
    shifts: dict[str, Any] = {}
    threshold = getattr(getattr(model, "roi_heads", model), "score_thresh", 0.0)
    if name.startswith("fcos"):
        threshold = 0.06  # its score is the root of class times centre-ness

    def scale(key: str, layer: Any, output: Tensor) -> Tensor | None:
        if f"{key}.weight" in gains:  # a head that several feature levels share: the first and largest decides
            return None
        axis = 1 if isinstance(layer, nn.Conv2d | nn.ConvTranspose2d) else output.ndim - 1
        column = [-1 if d == axis else 1 for d in range(output.ndim)]
        bias = torch.zeros(output.shape[axis]) if layer.bias is None else layer.bias.clone()
        linear = output - bias.reshape(column)
        rows = linear.transpose(0, axis).flatten(1).T.numpy()  # (positions, channels)
        spread = rows.std(0) if len(rows) >= FEW else np.full(rows.shape[1], rows.std())
        head = next((v for end, v in HEADS.items() if re.search(end + "$", key)), None)
        if name.startswith("fcos") and key.endswith("bbox_reg"):
            head = (3.0, 0.7)  # distances to the sides: below 0 the box has no area
        if head is None:
            gain = np.float32(
                next(v for end, v in SCALES.items() if re.search(end, key))
                / (np.sqrt(np.square(spread, dtype=np.float64).mean()) + 1e-6)
            )
        else:
            gain = (head[1] / (spread + 1e-6)).astype(np.float32)
            if isinstance(layer, nn.ConvTranspose2d):  # its first axis is the input's
                gain = gain.mean()
            centre = rows.mean(0) if len(rows) >= FEW else np.full(rows.shape[1], rows.mean())
            shift = (head[0] - centre * gain).astype(np.float32)
            logits = rows * gain + bias.numpy() + shift
            if "cls_score" in key or "classification_head.module_list" in key:
                shift = shift + background_shift(logits, threshold, 0.08 if "cls_score" in key else 0.015)
            shifts[f"{key}.bias"] = shift
            layer.bias.add_(torch.from_numpy(shift))
            bias = layer.bias
        gains[f"{key}.weight"] = gain
        factor = torch.as_tensor(gain)
        layer.weight.mul_(factor.reshape((-1,) + (1,) * (layer.weight.ndim - 1)))
        return linear * (factor.reshape(column) if factor.ndim else factor) + bias.reshape(column)

    hooks = [
        m.register_forward_hook(lambda m, _, o, k=k: scale(k, m, o))
        for k, m in model.named_modules()
        if isinstance(m, nn.Conv2d | nn.ConvTranspose2d | nn.Linear) and "out_proj" not in k
    ]
    run()
    for hook in hooks:
        hook.remove()
    for key, layer in model.named_modules():  # one layer for all levels: these are known only after the others are set
        if key.endswith("classification_head.cls_logits"):
            levels: list[np.ndarray] = []
            hook = layer.register_forward_hook(lambda *a, to=levels: to.append(a[2].numpy()))
            run()
            hook.remove()
            shifts[f"{key}.bias"] = shifts[f"{key}.bias"] + sigmoid_shift(levels, threshold)
    return gains, shifts


def predict(
    name: str, model: nn.Module, image: np.ndarray, dtype: torch.dtype = torch.float32
) -> dict[str, np.ndarray]:
    """The outputs to store for one image."""
    output = model(inputs(name, image, dtype))
    if name in CLASSIFIERS:
        return {"logits": output[0].numpy()}
    if name in SEGMENTERS:
        return {"logits": output["out"][0, :, ::16, ::16].numpy()}
    found = {k.replace("keypoints_scores", "keypoint_scores"): v.numpy() for k, v in output[0].items()}
    if "masks" in found:
        found["masks"] = found["masks"][:20, 0, ::4, ::4].astype(np.float16)
    return found


def agreement(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> str:
    """How two results differ, in words."""
    if "logits" in a:
        error = np.abs(a["logits"] - b["logits"]).max() / np.abs(b["logits"]).max()
        return f"logits {a['logits'].shape} std {a['logits'].std():.2f}, relative error {error:.1e}"
    overlap = box_iou(torch.from_numpy(a["boxes"]).double(), torch.from_numpy(b["boxes"]).double()).numpy()
    near = np.abs(a["boxes"][:, None] - b["boxes"][None]).max(2) < 0.01  # RetinaNet and SSD keep boxes without area
    same = (
        (near | (overlap > 0.99))
        & (a["labels"][:, None] == b["labels"])
        & (abs(a["scores"][:, None] - b["scores"]) < 1e-3)
    )
    s, matched = a["scores"], (same.any(1).mean() + same.any(0).mean()) / 2
    return (
        f"{len(s)} detections of {len(set(a['labels'].tolist()))} categories, scores {s.min():.3f} {np.median(s):.3f} "
        f"{s.max():.3f}, closest {-np.diff(s).max():.0e}, matched {matched:.3f}"
    )


def make(name: str) -> None:
    sizes = np.array(MODELS[name])
    plain = build(name)
    first = seeded_model(name, plain)
    gains, shifts = calibrate(name, first, lambda: first(inputs(name, synthetic_image(*sizes[0].tolist()))))
    golden = Golden(sizes, gains, shifts)
    model = seeded_model(name, plain, golden)
    results = [predict(name, model, image) for image in golden.images()]
    outputs = {f"{k}_{i}": v for i, found in enumerate(results) for k, v in found.items()}
    write_golden(FOLDER / f"{name}.npz", Golden(sizes, gains, shifts, outputs))
    model.double()
    print(f"{name}: {(FOLDER / f'{name}.npz').stat().st_size / 1000:.0f} kB")
    for image, found in zip(read_golden(FOLDER / f"{name}.npz").images(), results):
        print(f"  {image.shape}: {agreement(found, predict(name, model, image, torch.float64))}", flush=True)


if __name__ == "__main__":
    torch.set_grad_enabled(False)
    for requested in sys.argv[1:] or MODELS:
        make(requested)
