"""Where the state dict lies in a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import WeightsError
from .pth import StoredTensor
from .unpickle import PickledArray

WRAPPERS = (
    "ema.module",
    "ema",
    "model_ema",
    "state_dict_ema",
    "params_ema",
    "state_dict",
    "model",
    "params",
)
"""Where training programs keep the weights, first come first served: averaged weights are those that get evaluated."""

_ARRAYS = (np.ndarray, StoredTensor, PickledArray)


def extract_state(tree: object, key: str | None = None) -> dict[str, NDArray[Any]]:
    """The state dict inside ``tree``: at the dotted path ``key``, or where `WRAPPERS` find it, or ``tree`` itself.

    A prefix ``module.`` that all names share (DataParallel) is removed. Raises WeightsError when there is no state
    dict, listing what there is.
    """
    found = tree
    for part in [] if key is None else key.split("."):
        if not isinstance(found, Mapping) or part not in found:
            raise WeightsError(f"expected a state dict under {key!r}, but there is no {part!r} in {_describe(found)}")
        found = found[part]
    state = _search(found, depth=3)
    if state is None:
        raise WeightsError(
            f"found no state dict in {_describe(found)}; if it lies elsewhere, give its dotted path as `key`"
        )
    prefix = "module." if all(name.startswith("module.") for name in state) else ""
    return {name[len(prefix) :]: _array(value, name) for name, value in state.items()}


def _search(node: object, depth: int) -> Mapping[str, Any] | None:
    if not isinstance(node, Mapping) or not node:
        return None
    if all(isinstance(value, _ARRAYS) for value in node.values()):
        return node if all(isinstance(name, str) for name in node) else None
    for wrapper in WRAPPERS if depth else ():
        inner: object = node
        for part in wrapper.split("."):
            inner = inner.get(part) if isinstance(inner, Mapping) else None
        state = _search(inner, depth - 1)
        if state is not None:
            return state
    return None


def _array(value: Any, name: str) -> NDArray[Any]:
    if isinstance(value, np.ndarray):
        return value
    try:
        array: NDArray[Any] = value.array()
    except WeightsError as error:
        error.key = name
        raise
    return array


def _describe(node: object) -> str:
    if not isinstance(node, Mapping):
        return f"a {type(node).__name__}"
    kinds = [f"{str(name)[:60]}: {_kind(value)}" for name, value in list(node.items())[:30]]
    more = [f"and {len(node) - 30} more"] if len(node) > 30 else []
    return "{" + ", ".join(kinds + more) + "}"


def _kind(value: object) -> str:
    return "tensor" if isinstance(value, _ARRAYS) else type(value).__name__
