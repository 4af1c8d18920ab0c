"""Where arrays live: the array namespace by an array's type, moves between devices, and the random seed."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import numpy as np

Array = Any  # numpy.ndarray, cupy.ndarray, or any type given to register_namespace

_NAMESPACES: dict[type, ModuleType] = {}


def register_namespace(array_type: type, module: ModuleType) -> None:
    """Make ``module`` the namespace whose functions work on arrays of ``array_type``.

    >>> register_namespace(np.ndarray, np)
    """
    _NAMESPACES[array_type] = module


def get_namespace(array: Array) -> Any:
    """The module (numpy or cupy) whose functions work on ``array``, chosen by its type alone.

    CuPy is used only when one of its arrays arrives, never imported to look for it. Raises TypeError for other types.

    >>> get_namespace(np.zeros(3)).__name__
    'numpy'
    """
    kind = type(array)
    found = _NAMESPACES.get(kind)
    if found is None:
        root = kind.__module__.partition(".")[0]
        if root not in ("numpy", "cupy") or root not in sys.modules:
            raise TypeError(f"expected a NumPy or CuPy array, got {kind.__module__}.{kind.__qualname__}")
        found = _NAMESPACES[kind] = sys.modules[root]
    return found


def to_numpy(array: Array) -> np.ndarray:
    """The array on the host: itself if it is a NumPy array, a copy from the GPU otherwise.

    >>> to_numpy(np.ones(2))
    array([1., 1.])
    """
    return array if isinstance(array, np.ndarray) else np.asarray(get_namespace(array).asnumpy(array))


def to_device(array: Array, device: str) -> Array:
    """The array on ``device``: "cpu", "cuda" (the current GPU) or "cuda:N".

    Raises ValueError for another name, TypeError for no name, and RuntimeError when CuPy is not installed.

    >>> to_device(np.ones(2), "cpu")
    array([1., 1.])
    """
    if not isinstance(device, str):
        raise TypeError(f'expected a device "cpu", "cuda" or "cuda:N", got {device!r}')
    kind, _, index = device.partition(":")
    if kind == "cpu" and not index:
        return to_numpy(array)
    if kind != "cuda" or (index and not index.isdigit()):
        raise ValueError(f'expected a device "cpu", "cuda" or "cuda:N", got {device!r}')
    try:
        import cupy
    except ImportError:
        raise RuntimeError(f"device {device!r} needs CuPy: install chainsight[cuda12x] or [cuda13x]") from None
    with cupy.cuda.Device(int(index) if index else None):
        return cupy.asarray(array)


def device_of(array: Array) -> str:
    """The device's name, as ``to_device`` takes it.

    >>> device_of(np.ones(2))
    'cpu'
    """
    index = getattr(getattr(array, "device", None), "id", None)
    return "cpu" if index is None else f"cuda:{index}"


_generator = np.random.default_rng()


def seed(value: int) -> None:
    """Seed the generator behind initialisers and dropout.

    >>> seed(0); a = generator().random(2); seed(0); bool((a == generator().random(2)).all())
    True
    """
    global _generator
    _generator = np.random.default_rng(value)


def generator() -> np.random.Generator:
    """The generator behind initialisers and dropout; numbers are drawn on the host, so every device sees the same.

    >>> generator().random(3).shape
    (3,)
    """
    return _generator
