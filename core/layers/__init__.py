"""Layers: modules with parameters, named as torch names them."""

from .activation import GELU, Activation, HardSigmoid, HardSwish, LeakyReLU, Mish, ReLU, ReLU6, Sigmoid, SiLU, Tanh
from .containers import ModuleList, Sequential
from .conv import Conv2d, ConvTranspose2d
from .dropout import Dropout, StochasticDepth
from .linear import Flatten, Identity, Linear, Permute
from .module import Module
from .norm import BatchNorm, BatchNorm2d, FrozenBatchNorm2d, GroupNorm, LayerNorm
from .pooling import AdaptiveAvgPool2d, AvgPool2d, MaxPool2d

__all__ = [
    "GELU", "Activation", "AdaptiveAvgPool2d", "AvgPool2d", "BatchNorm", "BatchNorm2d", "Conv2d", "ConvTranspose2d",
    "Dropout", "Flatten", "FrozenBatchNorm2d", "GroupNorm", "HardSigmoid", "HardSwish", "Identity", "LayerNorm",
    "LeakyReLU", "Linear", "MaxPool2d", "Mish", "Module", "ModuleList", "Permute", "ReLU",
    "ReLU6", "Sequential", "SiLU", "Sigmoid", "StochasticDepth", "Tanh",
]  # fmt: skip
