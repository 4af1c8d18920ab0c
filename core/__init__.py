"""The autograd core: Tensors on NumPy or CuPy arrays, differentiable functions, layers and optimizers."""

from . import functions, kernels
from .device import generator, get_namespace, register_namespace, seed, to_device, to_numpy
from .function import Function, backward, checkpoint, debug_mode, grad, is_recording, no_grad
from .plan import compile, planned
from .tensor import Buffer, Parameter, Tensor

__all__ = [
    "Buffer", "Function", "Parameter", "Tensor", "backward", "checkpoint", "compile", "debug_mode", "functions",
    "generator", "get_namespace", "grad", "is_recording", "kernels", "no_grad", "planned", "register_namespace",
    "seed", "to_device", "to_numpy",
]  # fmt: skip
