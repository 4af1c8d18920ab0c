"""Values and gradients against torch's, for the functions whose definition is subtle."""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest
from chainsight.core import Tensor, grad
from chainsight.core import functions as F
from chainsight.vision.detection.losses import focal_loss
from chainsight.vision.detection.losses import iou_loss as our_iou_loss
from chainsight.vision.detection.roi_align import roi_align as our_roi_align

FOLDER = Path(__file__).resolve().parents[2] / "goldens"


def read_cases():
    spec = importlib.util.spec_from_file_location("golden_cases", FOLDER / "cases.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module.read_cases(FOLDER / "functions.npz")


CASES = read_cases()


def pair(value):
    return tuple(value) if isinstance(value, list) else value


def interpolate(input, mode, size=None, scale_factor=None, recompute_scale_factor=True, **options):
    if size is None:
        scales = scale_factor if isinstance(scale_factor, list) else [scale_factor] * 2
        size = [int(n * s) for n, s in zip(input.shape[2:], scales)]
    return F.resize(input, pair(size), mode, **options)


def roi_align(input, boxes, output_size, **options):
    rois = boxes.numpy()
    return our_roi_align(input, rois[:, 1:], rois[:, 0].astype(int), pair(output_size), **options)


def max_pool2d(input, kernel_size, stride, padding=0, dilation=1, ceil_mode=False):
    return F.max_pool2d(input, kernel_size, stride, padding, dilation, ceil_mode)


def avg_pool2d(input, kernel_size, stride, padding=0, ceil_mode=False, count_include_pad=True):
    return F.avg_pool2d(input, pair(kernel_size), pair(stride), pair(padding), ceil_mode, count_include_pad)


def cross_entropy(input, target, weight=None, **options):
    return F.softmax_cross_entropy(input, target, None if weight is None else weight.numpy(), **options)


def batch_norm(input, weight, bias, running_mean, running_var, training, eps, momentum=None):
    if training:
        y, mean, var = F.batch_norm(input, weight, bias, eps)
        count = input.size // input.shape[1]
        running = {"running_mean": mean, "running_var": var * count / (count - 1)}
        before = {"running_mean": running_mean.numpy(), "running_var": running_var.numpy()}
        return {"out": y} | {k: Tensor((1 - momentum) * before[k] + momentum * running[k]) for k in running}
    scale = weight / F.sqrt(running_var + eps)
    return input * scale.reshape(1, -1, 1, 1) + (bias - running_mean * scale).reshape(1, -1, 1, 1)


def layer_norm(input, normalized_shape, weight=None, bias=None, eps=1e-5):
    if weight is None:
        weight, bias = (Tensor(np.full(tuple(normalized_shape), v, input.dtype)) for v in (1, 0))
    return F.layer_norm(input, weight, bias, eps)


def convolution(function):
    def call(input, weight, bias, **options):
        return function(input, weight, bias, **{k: pair(v) for k, v in options.items()})

    return call


def iou_loss(kind):
    return lambda boxes1, boxes2, reduction: our_iou_loss(boxes1, boxes2, kind, reduction)


def one_input(function, **renamed):
    return lambda input, **options: function(input, **{renamed.get(k, k): v for k, v in options.items()})


FUNCTIONS = {
    "torch.nn.functional.interpolate": interpolate,
    "torchvision.ops.roi_align": roi_align,
    "torch.nn.functional.adaptive_avg_pool2d": lambda input, output_size: F.adaptive_avg_pool2d(
        input, pair(output_size)
    ),
    "torch.nn.functional.max_pool2d": max_pool2d,
    "torch.nn.functional.avg_pool2d": avg_pool2d,
    "torch.nn.functional.mish": one_input(F.mish),
    "torch.nn.functional.hardswish": one_input(F.hard_swish),
    "torch.nn.functional.hardsigmoid": one_input(F.hard_sigmoid),
    "torch.nn.functional.silu": one_input(F.silu),
    "torch.nn.functional.relu6": one_input(F.relu6),
    "torch.nn.functional.softplus": one_input(F.softplus),
    "torch.nn.functional.logsigmoid": lambda input: -F.softplus(-input),
    "torch.nn.functional.leaky_relu": one_input(F.leaky_relu, negative_slope="slope"),
    "torch.nn.functional.log_softmax": one_input(F.log_softmax, dim="axis"),
    "torch.nn.functional.normalize": one_input(F.normalize, dim="axis"),
    "torch.nn.functional.cross_entropy": cross_entropy,
    "torchvision.ops.sigmoid_focal_loss": lambda inputs, targets, **options: focal_loss(inputs, targets, **options),
    "torch.nn.functional.binary_cross_entropy_with_logits": one_input(F.sigmoid_cross_entropy),
    "torch.nn.functional.smooth_l1_loss": one_input(F.smooth_l1_loss),
    "torchvision.ops.generalized_box_iou_loss": iou_loss("giou"),
    "torchvision.ops.distance_box_iou_loss": iou_loss("diou"),
    "torchvision.ops.complete_box_iou_loss": iou_loss("ciou"),
    "torch.nn.functional.batch_norm": batch_norm,
    "torch.nn.functional.group_norm": one_input(F.group_norm, num_groups="groups"),
    "torch.nn.functional.layer_norm": layer_norm,
    "torch.nn.functional.conv2d": convolution(F.conv2d),
    "torch.nn.functional.conv_transpose2d": convolution(F.conv_transpose2d),
    "torch.nn.functional.gelu": lambda input, approximate: {"none": F.gelu}[approximate](input),
}
# Of these the core has no equal; nms and the optimizers are tested elsewhere.
ABSENT = {
    "gelu/tanh",
    "cross_entropy/probabilities",
    "binary_cross_entropy_with_logits/pos_weight",
    "adaptive_max_pool2d/(3, 2)",
    "interpolate/bilinear scale, recompute False",
    "interpolate/nearest scale, recompute False",
}
ELSEWHERE = ("torch.optim", "torch.nn.utils", "torchvision.ops.nms")
MINE = {k: c for k, c in CASES.items() if not c.function.startswith(ELSEWHERE) and k not in ABSENT}


def test_every_case_has_a_function():
    assert {c.function for c in MINE.values()} == set(FUNCTIONS)
    assert set(CASES) >= ABSENT


# float64 results were stored in float32, so both comparisons stand at float32's precision; the second computes in it.
@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, 3e-7), (np.float32, 3e-5)], ids=["float64", "float32"])
@pytest.mark.parametrize("key", MINE)
def test_against_torch(key, dtype, tolerance):
    case = MINE[key]
    tensors = {
        k: Tensor(a.astype(dtype), requires_grad=True) if a.dtype.kind == "f" else Tensor(a)
        for k, a in case.inputs.items()
    }
    outputs = FUNCTIONS[case.function](**tensors, **case.options)
    if isinstance(outputs, Tensor):
        outputs = {"out": outputs}
    for name, expected in case.outputs.items():
        scale = np.abs(expected).max(initial=1)
        assert outputs[name].dtype == dtype
        np.testing.assert_allclose(
            outputs[name].numpy(), expected, rtol=tolerance, atol=tolerance * scale, err_msg=name
        )
    names = list(case.gradients)
    found = grad([outputs["out"]], [tensors[n] for n in names], [Tensor(case.cotangent.astype(dtype))])
    for name, g in zip(names, found):
        expected = case.gradients[name]
        assert g.dtype == dtype
        np.testing.assert_allclose(
            g.numpy(), expected, rtol=tolerance, atol=tolerance * np.abs(expected).max(initial=1), err_msg=name
        )
