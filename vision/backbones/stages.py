"""A network as a row of parts of which several are asked for their outputs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ...core import Tensor
from ...core.layers import Module, Sequential


class Stages(Sequential):
    """Modules one after the other, up to the last of the indices ``at``; returns the outputs of those.

    ``channels`` are the widths of these outputs. Parameters are named by the index of their module.

    >>> import numpy as np
    >>> from chainsight.core.layers import Conv2d
    >>> stages = Stages([Conv2d(3, 4, 1), Conv2d(4, 5, 1), Conv2d(5, 6, 1)], (0, 1), (4, 5))
    >>> len(stages), [m.shape for m in stages(Tensor(np.zeros((1, 3, 2, 2), np.float32)))]
    (2, [(1, 4, 2, 2), (1, 5, 2, 2)])
    """

    def __init__(self, modules: Iterable[Module], at: Sequence[int], channels: Sequence[int]) -> None:
        super().__init__(*list(modules)[: at[-1] + 1])
        self.at, self.channels = tuple(at), tuple(channels)

    def forward(self, x: Tensor) -> list[Tensor]:  # type: ignore[override]
        return self.outputs(x, self.at)
