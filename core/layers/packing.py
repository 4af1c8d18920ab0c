"""Prepared inference kernels, kept as long as the parameters they were made from stay as they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..kernels.tape import noting
from ..tensor import Tensor


class Packed:
    """The kernels made from some tensors, by key; made anew once a tensor was replaced or changed.

    Arrays that went into a kernel become read-only, so that a write into one, which nothing could notice, is an error
    instead of a stale result: assign ``tensor.data``, or write into ``tensor.writable()``.
    """

    def __init__(self) -> None:
        self.made: dict[Any, tuple[list[Tensor], list[int], Any]] = {}

    def get(self, key: Any, tensors: list[Tensor], make: Callable[[], Any]) -> Any:
        """The kernel of ``key``, from the cache or made by ``make``."""
        found = self.made.get(key)
        if found is not None:
            sources, versions, kernel = found
            if all(a is b and b.version == v for a, b, v in zip(sources, tensors, versions)):
                return kernel
        with noting(None):  # is no part of a run
            kernel = make()
        for t in tensors:
            if hasattr(t.data, "flags") and hasattr(t.data.flags, "writeable"):
                t.data.flags.writeable = False
        self.made[key] = (tensors, [t.version for t in tensors], kernel)
        return kernel

    def __deepcopy__(self, memo: Any) -> Packed:
        return Packed()

    def __reduce__(self) -> tuple[type[Packed], tuple[()]]:
        return Packed, ()
