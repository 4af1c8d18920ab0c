"""The differentiable functions, each a short class with forward and backward and a function that calls it."""

from .shape import (  # isort: skip  first: the others need it
    broadcast_to, concatenate, expand_dims, flip, getitem, pad, reshape, roll, scatter_add, split, squeeze, stack,
    sum_to, transpose,
)  # fmt: skip
from .conv import conv2d, conv_transpose2d

from .elementwise import (  # isort: skip  many names in few lines
    abs, add, add_relu, astype, atan, clip, div, erf, exp, gelu, hard_sigmoid, hard_swish, leaky_relu, log, maximum,
    minimum, mish, mul, neg, pow, relu, relu6, sigmoid, silu, softplus, sqrt, sub, tanh, to, where,
)  # fmt: skip
from .interpolate import adaptive_avg_pool2d, resize
from .linear import attention, linear, matmul
from .loss import l1_loss, sigmoid_cross_entropy, smooth_l1_loss, softmax_cross_entropy
from .norm import batch_norm, dropout, group_norm, layer_norm, normalize
from .pool import avg_pool2d, max_pool2d
from .reduce import log_softmax, logsumexp, max, mean, min, softmax, sum

__all__ = [
    "abs", "adaptive_avg_pool2d", "add", "add_relu", "astype", "atan", "attention", "avg_pool2d", "batch_norm",
    "broadcast_to", "clip", "concatenate", "conv2d", "conv_transpose2d", "div", "dropout", "erf", "exp",
    "expand_dims", "flip", "gelu", "getitem", "group_norm", "hard_sigmoid", "hard_swish", "l1_loss",
    "layer_norm", "leaky_relu", "linear", "log", "log_softmax", "logsumexp", "matmul", "max",
    "max_pool2d", "maximum", "mean", "min", "minimum", "mish", "mul", "neg", "normalize", "pad", "pow", "relu",
    "relu6", "reshape", "resize", "roll", "scatter_add", "sigmoid", "sigmoid_cross_entropy", "silu",
    "smooth_l1_loss", "softmax", "softmax_cross_entropy", "softplus", "split", "sqrt", "squeeze", "stack", "sub",
    "sum", "sum_to", "tanh", "to", "transpose", "where",
]  # fmt: skip
