"""Make functions.npz: torch's results for functions whose definition is subtle (torch and torchvision needed).

    python make_functions.py

`cases.py` reads the file. Keys are "FUNCTION/what is special"; `case.function` is torch's own dotted name, options are
torch's, everything was computed in float64:

- functions: `inputs` by torch's argument names, `outputs["out"]`, and for batch_norm in training also the updated
  "running_mean" and "running_var"; `gradients` by every floating input that has one (box lists, running statistics
  and class weights have none);
- torch.optim.*: inputs "parameter" and "gradient_1" ... "gradient_5"; outputs "step_1" ... "step_5", the parameter
  after each step;
- torch.optim.lr_scheduler.*: input "rate"; output "out", the rates of the epochs or steps 0, 1, 2, ...; the key
  "warmup_cosine" is SequentialLR of LinearLR and CosineAnnealingLR with the options of both;
- torch.nn.utils.clip_grad_norm_: inputs "gradient_1" and "gradient_2"; outputs the clipped ones and, "out", the norm
  before.
"""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torchvision
from cases import Case, write_cases
from seeded import noise
from torch.optim import lr_scheduler

ROOT = {"F": "torch.nn.functional", "ops": "torchvision.ops"}
CASES: dict[str, Case] = {}


def values(name: str, *shape: int, scale: float = 2.0) -> np.ndarray:
    """Values between -scale and scale, 16 bits each, a function of the name."""
    integers = noise(name, int(np.prod(shape))).astype(np.float64) - 32768
    return (integers * (scale / 32768)).reshape(shape).astype(np.float32).astype(np.float64)


def call(function: str) -> Callable[..., Any]:
    """The callable of a dotted name below torch or torchvision."""
    found: Any = {"torch": torch, "torchvision": torchvision}[function.split(".")[0]]
    for part in function.split(".")[1:]:
        found = getattr(found, part)
    return found


def add(key: str, inputs: dict[str, np.ndarray], frozen: tuple[str, ...] = (), **options: Any) -> None:
    """Run one case; `frozen` names the floating inputs without a gradient."""
    where, name = key.split("/")[0].split(".")
    function = f"{ROOT[where]}.{name}"
    inputs = {k: v.astype(np.float32).astype(np.float64) if v.dtype.kind == "f" else v for k, v in inputs.items()}
    tensors = {k: torch.from_numpy(np.array(v)) for k, v in inputs.items()}
    wanted = {k: t.requires_grad_() for k, t in tensors.items() if t.is_floating_point() and k not in frozen}
    out = call(function)(**tensors, **options)
    outputs = {"out": out.detach().numpy()}
    outputs |= {k: t.numpy() for k, t in tensors.items() if k.startswith("running") and options.get("training")}
    cotangent, gradients = None, {}
    if out.requires_grad:
        cotangent = values(f"{key} cotangent", *out.shape, scale=1.0)
        found = torch.autograd.grad(out, list(wanted.values()), torch.from_numpy(cotangent))
        gradients = {k: g.numpy() for k, g in zip(wanted, found)}
    CASES[key.split(".", 1)[1]] = Case(function, options, inputs, outputs, cotangent, gradients)


def resizing() -> None:
    x = {"input": values("interpolate", 1, 2, 7, 5)}
    for align in (False, True):
        add(f"F.interpolate/bilinear up, align_corners {align}", x, size=(12, 11), mode="bilinear", align_corners=align)
        add(f"F.interpolate/bilinear down, align_corners {align}", x, size=(3, 2), mode="bilinear", align_corners=align)
    one = {"input": values("interpolate one", 1, 2, 1, 1)}
    add("F.interpolate/bilinear from one pixel", one, size=(3, 4), mode="bilinear", align_corners=False)
    for what, size in (("down", (3, 2)), ("up", (9, 8)), ("down and up", (4, 9))):
        add(f"F.interpolate/antialias {what}", x, size=size, mode="bilinear", align_corners=False, antialias=True)
    for recompute in (False, True):
        add(
            f"F.interpolate/bilinear scale, recompute {recompute}",
            x,
            scale_factor=(1.7, 0.65),
            mode="bilinear",
            align_corners=False,
            recompute_scale_factor=recompute,
        )
        add(
            f"F.interpolate/nearest scale, recompute {recompute}",
            x,
            scale_factor=1.7,
            mode="nearest",
            recompute_scale_factor=recompute,
        )
    for what, size in (("up", (11, 12)), ("down", (4, 3))):
        add(f"F.interpolate/nearest {what}", x, size=size, mode="nearest")


def regions() -> None:
    boxes = np.array(
        [
            [0, 2.0, 1.0, 13.5, 9.25],
            [1, 0.0, 0.0, 23.0, 17.0],  # all of it
            [0, -6.0, -4.0, 5.0, 6.0],  # partly outside
            [1, 18.0, 12.0, 40.0, 30.0],
            [0, 60.0, 60.0, 80.0, 70.0],  # wholly outside
            [1, 7.0, 5.0, 7.0, 5.0],  # without area
            [0, 4.25, 3.5, 4.75, 3.75],  # smaller than a pixel
        ]
    )
    inputs = {"input": values("roi_align", 2, 2, 9, 12), "boxes": boxes}
    for aligned in (False, True):
        for sampling in (-1, 0, 1, 2):
            add(
                f"ops.roi_align/aligned {aligned}, sampling_ratio {sampling}",
                inputs,
                ("boxes",),
                output_size=(2, 3),
                spatial_scale=0.5,
                sampling_ratio=sampling,
                aligned=aligned,
            )
    corners = values("nms", 40, 4, scale=10.0)
    corners[:, 2:] = corners[:, :2] + abs(corners[:, 2:]) + 4
    for threshold in (0.3, 0.5, 0.7):
        found = {"boxes": corners, "scores": abs(values("nms scores", 40))}
        add(f"ops.nms/{threshold}", found, ("boxes", "scores"), iou_threshold=threshold)


def pooling() -> None:
    x = {"input": values("pooling", 2, 2, 7, 5)}
    for size in ((3, 2), (1, 1), (8, 6), (4, 5)):
        add(f"F.adaptive_avg_pool2d/{size}", x, output_size=size)
    add("F.adaptive_max_pool2d/(3, 2)", x, output_size=(3, 2))
    add("F.max_pool2d/3 2 1", x, kernel_size=3, stride=2, padding=1)
    add("F.max_pool2d/dilation", x, kernel_size=2, stride=1, padding=1, dilation=2)
    for ceil in (False, True):
        add(f"F.max_pool2d/2 2 0, ceil_mode {ceil}", x, kernel_size=2, stride=2, ceil_mode=ceil)
        for counted in (False, True):
            add(
                f"F.avg_pool2d/ceil_mode {ceil}, count_include_pad {counted}",
                x,
                kernel_size=(3, 2),
                stride=(2, 3),
                padding=1,
                ceil_mode=ceil,
                count_include_pad=counted,
            )
    # The last window of a row would start in the padding alone and is dropped (7 + 2 -> 4 windows, 5 + 2 -> 3).
    add("F.avg_pool2d/ceil_mode drops a window", x, kernel_size=2, stride=3, padding=1, ceil_mode=True)


def activations() -> None:
    x = {"input": values("activation", 4, 16, scale=8.0)}
    for name in ("mish", "hardswish", "hardsigmoid", "silu", "relu6", "softplus", "logsigmoid"):
        add(f"F.{name}/", x)
    for approximate in ("none", "tanh"):
        add(f"F.gelu/{approximate}", x, approximate=approximate)
    add("F.leaky_relu/0.1", x, negative_slope=0.1)
    add("F.log_softmax/axis 0", x, dim=0)
    add("F.normalize/axis 1", x, dim=1)


def losses() -> None:
    rows = {"input": values("logits", 6, 5), "target": np.array([0, 3, -100, 4, 2, 3])}
    weight = abs(values("class weights", 5)) + 0.1
    maps = {"input": values("logit maps", 2, 4, 3, 3), "target": noise("label maps", 18).reshape(2, 3, 3) % 4}
    maps["target"] = maps["target"].astype(np.int64)
    maps["target"][0, 1] = 255
    for reduction in ("mean", "sum", "none"):
        add(f"F.cross_entropy/{reduction}", rows, reduction=reduction)
        add(
            f"F.cross_entropy/{reduction}, weights, smoothing",
            rows | {"weight": weight},
            ("weight",),
            reduction=reduction,
            label_smoothing=0.1,
        )
        add(f"F.cross_entropy/{reduction}, weights", rows | {"weight": weight}, ("weight",), reduction=reduction)
        for alpha in (0.25, -1):
            logits = {"inputs": values("focal", 5, 4), "targets": (noise("focal targets", 20) % 2).reshape(5, 4) * 1.0}
            options = {"alpha": alpha, "gamma": 2.0, "reduction": reduction}
            add(f"ops.sigmoid_focal_loss/{reduction}, alpha {alpha}", logits, ("targets",), **options)
    add("F.cross_entropy/maps, ignore_index 255", maps, ignore_index=255)
    add("F.cross_entropy/smoothing", rows, label_smoothing=0.1)
    soft = np.exp(values("soft targets", 6, 5))
    soft = {"input": rows["input"], "target": (soft / soft.sum(1, keepdims=True)).astype(np.float32).astype(np.float64)}
    add("F.cross_entropy/probabilities", soft, ("target",))
    binary = {"input": values("binary", 4, 3), "target": abs(values("binary targets", 4, 3, scale=1.0))}
    add("F.binary_cross_entropy_with_logits/mean", binary, ("target",))
    positive = binary | {"pos_weight": abs(values("positive weights", 3)) + 0.5}
    add("F.binary_cross_entropy_with_logits/pos_weight", positive, ("target", "pos_weight"), reduction="sum")
    pair = {"input": values("smooth", 6, 4), "target": values("smooth target", 6, 4)}
    for name, beta in (("1", 1.0), ("1/9", 1 / 9), ("0", 0.0)):
        add(f"F.smooth_l1_loss/beta {name}", pair, beta=beta)
    add("F.smooth_l1_loss/sum", pair, beta=0.5, reduction="sum")
    first = np.array([[0, 0, 4, 4], [1, 1, 6, 3], [2, 2, 3, 3], [0, 0, 2, 2], [5, 5, 9, 8], [1.5, 0.5, 4.5, 7.5]])
    other = np.array([[1, 1, 5, 6], [0, 0, 8, 8], [0, 0, 9, 9], [4, 5, 7, 9], [5.5, 4, 8, 9.5], [1.25, 1, 4, 7]])
    for name in ("generalized_box_iou_loss", "distance_box_iou_loss", "complete_box_iou_loss"):
        for reduction in ("none", "mean", "sum"):
            add(f"ops.{name}/{reduction}", {"boxes1": first, "boxes2": other}, reduction=reduction)


def norms() -> None:
    x = {"input": values("norm", 3, 4, 3, 5)}
    affine = {"weight": values("norm weight", 4), "bias": values("norm bias", 4)}
    running = {"running_mean": values("running mean", 4), "running_var": abs(values("running var", 4)) + 0.25}
    statistics = ("running_mean", "running_var")
    add("F.batch_norm/training", x | affine | running, statistics, training=True, momentum=0.1, eps=1e-5)
    add("F.batch_norm/training, eps 1e-3", x | affine | running, statistics, training=True, momentum=0.03, eps=1e-3)
    add("F.batch_norm/frozen", x | affine | running, statistics, training=False, eps=1e-5)
    add("F.group_norm/2 groups", x | affine, num_groups=2, eps=1e-5)
    last = {"weight": values("layer weight", 3, 5), "bias": values("layer bias", 3, 5)}
    add("F.layer_norm/last two axes", x | last, normalized_shape=(3, 5), eps=1e-6)
    add("F.layer_norm/last axis, no affine", x, normalized_shape=(5,))


def convolutions() -> None:
    x = {"input": values("convolution", 2, 4, 6, 5)}
    bias = values("convolution bias", 6)
    for what, groups, options in (
        ("plain", 1, {"stride": 1, "padding": 1}),
        ("stride, padding, dilation by axis", 1, {"stride": (2, 1), "padding": (1, 2), "dilation": (1, 2)}),
        ("groups", 2, {"stride": 2, "padding": 1}),
    ):
        weight = values(f"convolution {what}", 6, 4 // groups, 3, 3)
        add(f"F.conv2d/{what}", x | {"weight": weight, "bias": bias}, groups=groups, **options)
    for what, groups, options in (
        ("plain", 1, {"stride": 2, "padding": 1}),
        ("output_padding", 1, {"stride": (3, 2), "padding": 1, "output_padding": (2, 1)}),
        ("groups", 2, {"stride": 2, "padding": (1, 0), "output_padding": 1}),
        ("dilation", 1, {"stride": (1, 2), "padding": 2, "dilation": 2, "output_padding": (0, 1)}),
        ("all", 2, {"stride": 2, "padding": 1, "dilation": (2, 3), "output_padding": 1}),
    ):
        weight = values(f"transposed {what}", 4, 6 // groups, 3, 2)
        add(f"F.conv_transpose2d/{what}", x | {"weight": weight, "bias": bias}, groups=groups, **options)


def optimizers() -> None:
    gradients = {f"gradient_{i}": values(f"gradient {i}", 3, 2) for i in range(1, 6)}
    start = values("parameter", 3, 2)
    for name, options in (
        ("SGD", {"lr": 0.1}),
        ("SGD", {"lr": 0.1, "momentum": 0.9}),
        ("SGD", {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}),
        ("SGD", {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01, "nesterov": True}),
        ("Adam", {"lr": 0.01}),
        ("Adam", {"lr": 0.01, "betas": (0.8, 0.99), "eps": 1e-6, "weight_decay": 0.1}),
        ("AdamW", {"lr": 0.01, "weight_decay": 0.1}),
        ("AdamW", {"lr": 0.05, "betas": (0.8, 0.95), "eps": 1e-4, "weight_decay": 0.02}),
    ):
        parameter = torch.from_numpy(start.copy()).requires_grad_()
        optimizer = getattr(torch.optim, name)([parameter], **options)
        outputs = {}
        for i in range(1, 6):
            parameter.grad = torch.from_numpy(gradients[f"gradient_{i}"].copy())
            optimizer.step()
            outputs[f"step_{i}"] = parameter.detach().numpy().copy()
        key = f"{name}/" + ", ".join(f"{k} {v}" for k, v in options.items())
        CASES[key] = Case(f"torch.optim.{name}", options, {"parameter": start, **gradients}, outputs)
    for limit in (1.0, 100.0):
        tensors = [torch.zeros(3, 2, dtype=torch.float64, requires_grad=True) for _ in range(2)]
        for i, tensor in enumerate(tensors, 1):
            tensor.grad = torch.from_numpy(gradients[f"gradient_{i}"].copy())
        norm = torch.nn.utils.clip_grad_norm_(tensors, limit)
        clipped = {f"gradient_{i}": t.grad.numpy() for i, t in enumerate(tensors, 1) if t.grad is not None}
        given = {k: gradients[k] for k in clipped}
        CASES[f"clip_grad_norm_/{limit}"] = Case(
            "torch.nn.utils.clip_grad_norm_", {"max_norm": limit}, given, {"out": norm.numpy(), **clipped}
        )


def schedules() -> None:
    def record(key: str, name: str, options: dict[str, Any], make: Callable[[Any], Any], steps: int) -> None:
        optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
        schedule = make(optimizer)
        rates = []
        for _ in range(steps):
            rates.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            schedule.step()
        function = f"torch.optim.lr_scheduler.{name}"
        CASES[key] = Case(function, options, {"rate": np.array(0.1, np.float32)}, {"out": np.array(rates)})

    for name, options, steps in (
        ("StepLR", {"step_size": 3, "gamma": 0.5}, 10),
        ("MultiStepLR", {"milestones": [2, 5, 6], "gamma": 0.1}, 9),
        ("CosineAnnealingLR", {"T_max": 8, "eta_min": 0.001}, 9),
        ("PolynomialLR", {"total_iters": 8, "power": 0.9}, 10),
        ("LinearLR", {"start_factor": 0.001, "end_factor": 1.0, "total_iters": 5}, 8),
    ):
        record(name, name, options, lambda o, n=name, k=options: getattr(lr_scheduler, n)(o, **k), steps)
    linear, cosine = {"start_factor": 0.01, "total_iters": 4}, {"T_max": 8, "eta_min": 0.0}
    record(
        "warmup_cosine",
        "SequentialLR",
        {"linear": linear, "cosine": cosine, "milestones": [4]},
        lambda o: lr_scheduler.SequentialLR(
            o, [lr_scheduler.LinearLR(o, **linear), lr_scheduler.CosineAnnealingLR(o, **cosine)], milestones=[4]
        ),
        12,
    )


if __name__ == "__main__":
    warnings.filterwarnings("ignore", message="The epoch parameter")
    for make in (resizing, regions, pooling, activations, losses, norms, convolutions, optimizers, schedules):
        make()
    path = Path(__file__).resolve().with_name("functions.npz")
    write_cases(path, CASES)
    print(f"{len(CASES)} cases, {path.stat().st_size / 1000:.0f} kB")
