"""One or more calls for every Function of the core, on inputs away from kinks: what the gradient tests run over."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from chainsight.core import functions as F
from chainsight.core import seed
from chainsight.core.functions import conv, elementwise, interpolate, norm, pool, reduce, shape
from chainsight.core.functions.linear import Linear, MatMul
from chainsight.vision.detection.losses import focal_loss, iou_loss
from chainsight.vision.detection.roi_align import roi_align

ROIS = np.array([[0.0, 0, 7, 5], [1.3, 2.1, 5.2, 9.7], [-3, -2, 4, 3], [5, 5, 5.3, 5.2]])
IMAGES = np.array([0, 1, 1, 0])
MASK = np.array([[True, False, True], [False, False, True]])


@dataclass(frozen=True)
class Case:
    """``call`` on inputs of the given ``shapes`` exercises the Function class ``of``.

    ``low`` and ``high`` bound the values; no two of an input are closer than their spacing, none is near a kink.
    """

    of: type
    call: Callable
    shapes: tuple
    low: float = -2.0
    high: float = 2.0
    what: str = ""

    def __str__(self):
        return f"{self.of.__name__}{f' {self.what}' if self.what else ''}"

    def arrays(self, number=0):
        """float64 inputs: evenly spaced values in random order, shifted off round numbers."""
        rng = np.random.default_rng(number)
        made = []
        for i, shape_ in enumerate(self.shapes):
            n = max(int(np.prod(shape_)), 1)
            values = self.low + (self.high - self.low) * (np.arange(n) + 0.37 + 0.17 * i) / n
            made.append(rng.permutation(values)[: int(np.prod(shape_))].reshape(shape_))
        return made


def _mask(x):
    return x.xp.asarray(MASK)


def _dropout(x):
    seed(7)
    return F.dropout(x, 0.4)


def _roi(**options):
    return lambda x: roi_align(x, ROIS, IMAGES, (2, 3), 0.5, **options)


E_, S, R = elementwise, shape, reduce
IMAGE = (2, 3, 5, 4)
CASES = [
    Case(E_.Add, lambda a, b: a + b, ((2, 3), (2, 3))),
    Case(E_.Add, lambda a, b: a + b, ((2, 1, 3), (4, 1)), what="broadcast"),
    Case(E_.Sub, lambda a, b: a - b, ((2, 3), (2, 3))),
    Case(E_.Sub, lambda a, b: a - b, ((3,), (4, 1)), what="broadcast"),
    Case(E_.Sub, lambda a: 2 - a, ((3,),), what="from a number"),
    Case(E_.Mul, lambda a, b: a * b, ((2, 3), (2, 3))),
    Case(E_.Mul, lambda a, b: a * b, ((2, 1, 3), (4, 1)), what="broadcast"),
    Case(E_.Mul, lambda a: a * a, ((2, 3),), what="with itself"),
    Case(E_.Div, lambda a, b: a / b, ((2, 3), (2, 3)), 0.5, 2),
    Case(E_.Div, lambda a, b: a / b, ((3,), (4, 1)), -2, -0.5, what="broadcast"),
    Case(E_.Div, lambda a: 3 / a, ((3,),), 0.5, 2, what="of a number"),
    Case(E_.Pow, lambda x: x**3, ((2, 3),), what="3"),
    Case(E_.Pow, lambda x: x**2, ((2, 3),), what="2"),
    Case(E_.Pow, lambda x: x**-1.5, ((2, 3),), 0.5, 2, what="-1.5"),
    Case(E_.Maximum, F.maximum, ((2, 3), (2, 3))),
    Case(E_.Maximum, F.maximum, ((2, 1, 3), (4, 1)), what="broadcast"),
    Case(E_.Maximum, F.minimum, ((3,), (4, 1)), what="minimum"),
    Case(E_.Where, lambda a, b: F.where(_mask(a), a, b), ((2, 3), (2, 3))),
    Case(E_.Where, lambda a, b: F.where(_mask(a), a, b), ((3,), (2, 1)), what="broadcast"),
    Case(E_.Neg, lambda x: -x, ((2, 3),)),
    Case(E_.Abs, abs, ((3, 4),)),
    Case(E_.Exp, F.exp, ((2, 3),)),
    Case(E_.Log, F.log, ((2, 3),), 0.5, 3),
    Case(E_.Sqrt, F.sqrt, ((2, 3),), 0.5, 3),
    Case(E_.Atan, F.atan, ((2, 3),)),
    Case(E_.Sigmoid, F.sigmoid, ((2, 3),)),
    Case(E_.Tanh, F.tanh, ((2, 3),)),
    Case(E_.Softplus, F.softplus, ((2, 3),)),
    Case(E_.Clip, lambda x: F.clip(x, -1, 1), ((3, 4),)),
    Case(E_.ReLU, F.relu, ((3, 4),)),
    Case(E_.AddReLU, F.add_relu, ((3, 4), (3, 4))),
    Case(E_.Add, F.add_relu, ((2, 1, 3), (4, 1)), what="broadcast, ReLU"),
    Case(E_.ReLU6, F.relu6, ((3, 4),), -2, 8),
    Case(E_.LeakyReLU, lambda x: F.leaky_relu(x, 0.2), ((3, 4),)),
    Case(E_.SiLU, F.silu, ((2, 3),)),
    Case(E_.HardSigmoid, F.hard_sigmoid, ((3, 4),), -5, 5),
    Case(E_.HardSwish, F.hard_swish, ((3, 4),), -5, 5),
    Case(E_.Erf, F.erf, ((2, 3),)),
    Case(E_.GELU, F.gelu, ((2, 3),)),
    Case(E_.Mish, F.mish, ((2, 3),)),
    Case(E_.AsType, lambda x: F.astype(x.astype("float64") * x, "float64"), ((2, 3),)),
    Case(E_.To, lambda x: F.to(x, x.device) * x, ((2, 3),)),
    Case(S.Reshape, lambda x: F.reshape(x, (3, -1)) * 2, ((2, 3),)),
    Case(S.Transpose, lambda x: F.transpose(x, (1, -1, 0)), ((2, 3, 4),)),
    Case(S.BroadcastTo, lambda x: F.broadcast_to(x, (2, 4, 3)), ((4, 1),)),
    Case(S.SumTo, lambda x: F.sum_to(x, (4, 1)), ((2, 4, 3),)),
    Case(S.GetItem, lambda x: x[1:, ..., None, ::-2], ((3, 4),), what="basic"),
    Case(S.GetItem, lambda x: x[[2, 0, 2]], ((3, 4),), what="repeated rows"),
    Case(S.GetItem, lambda x: x[_mask(x)], ((2, 3),), what="mask"),
    Case(S.GetItem, lambda x: x[:, [0, 2]], ((2, 3),), what="columns"),
    Case(S.ScatterAdd, lambda x: F.scatter_add(x, [0, 2, 0], (4, 2)), ((3, 2),)),
    Case(S.ScatterAdd, lambda x: F.scatter_add(x, (slice(1, 3),), (4, 2)), ((2, 2),), what="basic"),
    Case(S.Concatenate, lambda a, b, c: F.concatenate([a, b, c], 1), ((2, 3), (2, 1), (2, 2))),
    Case(S.Concatenate, lambda a, b: F.stack([a, b], -1), ((2, 3), (2, 3)), what="stack"),
    Case(S.Split, lambda x: F.split(x, (1, 3), -1), ((2, 4),)),
    Case(S.Split, lambda x: F.split(x, (1, 3), -1)[1], ((2, 4),), what="one part"),
    Case(S.Pad, lambda x: F.pad(x, ((1, 0), (2, 3)), 5), ((2, 3),)),
    Case(R.Sum, lambda x: x.sum((0, -1)), ((2, 3, 4),)),
    Case(R.Sum, lambda x: x.mean(1, keepdims=True), ((2, 3),), what="mean"),
    Case(R.Max, lambda x: x.max((0, 2)), ((2, 3, 4),)),
    Case(R.Max, lambda x: x.min(1, keepdims=True), ((2, 3),), what="min"),
    Case(R.LogSoftmax, lambda x: F.log_softmax(x, 1), ((2, 3, 2),)),
    Case(R.LogSoftmax, lambda x: F.logsumexp(x, (0, 2)), ((2, 3, 2),), what="logsumexp"),
    Case(R.Softmax, lambda x: F.softmax(x, 1), ((2, 3, 2),)),
    Case(MatMul, lambda a, b: a @ b, ((2, 3), (3, 4))),
    Case(MatMul, lambda a, b: a @ b, ((2, 1, 2, 3), (4, 3, 2)), what="batches"),
    Case(MatMul, lambda a, b: a @ b, ((3,), (2, 3, 4)), what="vector"),
    Case(Linear, F.linear, ((2, 3), (4, 3), (4,))),
    Case(Linear, F.linear, ((2, 5, 3), (4, 3)), what="without bias"),
    Case(conv.Conv2d, lambda x, w, b: F.conv2d(x, w, b, padding=1), (IMAGE, (2, 3, 3, 3), (2,))),
    Case(
        conv.Conv2d,
        lambda x, w: F.conv2d(x, w, None, (2, 1), (1, 0, 2, 1), (1, 2), 2),
        ((1, 4, 6, 5), (6, 2, 3, 2)),
        what="stride, padding, dilation, groups",
    ),
    Case(conv.Conv2d, lambda x, w: F.conv2d(x, w, None, 2, 1, 1, 3), (IMAGE, (3, 1, 3, 3)), what="depthwise"),
    Case(
        conv.Conv2dInputGrad,
        lambda x, w, b: F.conv_transpose2d(x, w, b, 2, 1, 1),
        ((1, 3, 3, 4), (3, 2, 3, 3), (2,)),
    ),
    Case(
        conv.Conv2dInputGrad,
        lambda x, w: F.conv_transpose2d(x, w, None, 2, (0, 1, 1, 0), (1, 0), 1, 2),
        ((1, 4, 3, 2), (4, 1, 2, 3)),
        what="groups",
    ),
    Case(
        conv.Conv2dWeightGrad,
        lambda x, gy: conv.Conv2dWeightGrad((2, 3, 2, 2), conv.conv_spec(1, 1, 1, 1))(x, gy),
        ((2, 3, 3, 4), (2, 2, 4, 5)),
    ),
    Case(pool.MaxPool2d, lambda x: F.max_pool2d(x, 3, 2, 1), (IMAGE,)),
    Case(pool.MaxPool2d, lambda x: F.max_pool2d(x, 2, 2, ceil_mode=True), (IMAGE,), what="ceil mode"),
    Case(pool.PlaneScatter, lambda x: pool.PlaneScatter(_places(x), (2, 3, 2, 4))(x), ((2, 3, 2, 2),)),
    Case(pool.PlaneGather, lambda x: pool.PlaneGather(_places(x), (2, 3, 2, 4))(x), ((2, 3, 2, 4),)),
    Case(pool.AvgPool2d, lambda x: F.avg_pool2d(x, (3, 2), 2, 1, True), (IMAGE,)),
    Case(
        pool.AvgPool2d,
        lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
        (IMAGE,),
        what="padding not counted",
    ),
    Case(
        pool.AvgPool2dGrad,
        lambda gy: pool.AvgPool2dGrad(pool.pool_spec(2, 2, 0, 1, False), True, (2, 3, 4, 5))(gy),
        ((2, 3, 2, 2),),
    ),
    Case(norm.BatchNorm, lambda x, w, b: F.batch_norm(x, w, b, 1e-3)[0], ((3, 2, 2, 4), (2,), (2,))),
    Case(
        norm.BatchNorm,
        lambda x, w, b: F.batch_norm(x, w, b, 1e-3, relu=True)[0],
        ((3, 2, 2, 4), (2,), (2,)),
        what="with ReLU",
    ),
    Case(R.Sum, lambda x, w, b: F.group_norm(x, 2, w, b, 1e-3), ((2, 4, 3, 2), (4,), (4,)), what="group norm"),
    Case(R.Sum, lambda x, w, b: F.layer_norm(x, w, b, 1e-3), ((2, 3, 4), (3, 4), (3, 4)), what="layer norm"),
    Case(E_.Clip, lambda x: F.normalize(x), ((2, 3, 2),), 0.2, 2, what="normalize"),
    Case(norm.Dropout, _dropout, ((3, 4),)),
    Case(interpolate.Interpolate, lambda x: F.resize(x, (7, 3)), (IMAGE,)),
    Case(interpolate.Interpolate, lambda x: F.resize(x, (3, 9), align_corners=True), (IMAGE,), what="corners"),
    Case(interpolate.Interpolate, lambda x: F.resize(x, (2, 2), antialias=True), (IMAGE,), what="antialias"),
    Case(interpolate.Interpolate, lambda x: F.resize(x, (8, 3), "nearest"), (IMAGE,), what="nearest"),
    Case(interpolate.Interpolate, lambda x: F.resize(x, (8, 3)), ((1, 20, 5, 4),), what="many channels"),
    Case(interpolate.Interpolate, lambda x: F.adaptive_avg_pool2d(x, (3, 6)), (IMAGE,), what="adaptive pooling"),
    Case(interpolate.Interpolate, _roi(), (IMAGE,), what="RoIAlign"),
    Case(interpolate.Interpolate, _roi(sampling_ratio=0, aligned=True), (IMAGE,), what="RoIAlign, adaptive"),
    Case(
        interpolate.InterpolateTransposed,
        lambda x: interpolate.InterpolateTransposed(interpolate._cell_taps(9, 5), 2)(x),
        (IMAGE,),
    ),
    Case(R.LogSoftmax, lambda x: F.softmax_cross_entropy(x, LABELS, WEIGHTS, 9, 0.1), ((3, 4, 2),), what="loss"),
    Case(E_.Softplus, lambda x, t: F.sigmoid_cross_entropy(x, t, "sum"), ((2, 3), (2, 3)), 0.1, 0.9, what="loss"),
    Case(E_.Pow, lambda x: focal_loss(x, F.where(_mask(x), x * 0 + 1, x * 0)), ((2, 3),), what="focal loss"),
    Case(E_.Abs, lambda x, t: F.l1_loss(x, t), ((2, 3), (2, 3)), what="L1 loss"),
    Case(E_.Where, lambda x, t: F.smooth_l1_loss(x, t, 0.5, "none"), ((2, 3), (2, 3)), what="smooth L1 loss"),
    *(
        Case(E_.Atan if kind == "ciou" else E_.Maximum, lambda a, b, k=kind: _iou(k, a, b), ((3, 4), (3, 4)), what=kind)
        for kind in ("iou", "giou", "diou", "ciou")
    ),
]
LABELS, WEIGHTS = np.array([[0, 3], [2, 9], [1, 2]]), np.array([0.5, 1, 2, 0.7])


def _places(x):
    """Flat places in planes of 2 x 4, some of them twice."""
    return x.xp.asarray(np.random.default_rng(0).integers(0, 8, (2, 3, 2, 2)))


def _iou(kind, a, b):
    """Boxes from any four values: a corner and a positive size."""
    boxes = [F.concatenate([t[:, :2] * 0.3, t[:, :2] * 0.3 + F.exp(t[:, 2:] * 0.3)], 1) for t in (a, b)]
    if kind == "ciou":  # the aspect term's factor is a constant by definition: the difference must not move it
        return iou_loss(*boxes, "diou", "none") + F.atan(a[:, 2] / F.exp(b[:, 2]))
    return iou_loss(*boxes, kind, "none")
