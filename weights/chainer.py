"""Weights that Chainer's `save_npz` wrote: their names in torch's terms, and what ChainerCV's published files share.

A name is the path of links, joined by "/", and one of W, b, gamma, beta, avg_mean, avg_var and scale; the layout of
arrays is torch's. ChainerCV's boxes are y, x, height, width where ours are x, y, width, height.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from numpy.typing import NDArray

from .categories import IMAGENET_1000, VOC_20
from .entry import WeightsEntry

Arrays = dict[str, NDArray[Any]]
Rules = Iterable[tuple[str, str]]

_LEAVES = {
    "W": "weight",
    "b": "bias",
    "gamma": "weight",
    "beta": "bias",
    "avg_mean": "running_mean",
    "avg_var": "running_var",
    "scale": "scale",
}
_COUNTERS = "N"  # how many batches a norm has seen in fine-tuning


def is_chainers(names: Iterable[str]) -> bool:
    """Whether the names of a file are those that Chainer writes.

    >>> is_chainers(["conv1/W", "conv1/b"]), is_chainers(["conv1.weight"])
    (True, False)
    """
    leaves = [name.rpartition("/")[2] for name in names]
    return bool(leaves) and all(leaf in _LEAVES or leaf == _COUNTERS for leaf in leaves)


def torch_names(arrays: Mapping[str, NDArray[Any]], rules: Rules = ()) -> Arrays:
    """Chainer's arrays by torch's names; ``rules``, (regular expression, replacement), apply one after the other.

    >>> import numpy as np
    >>> list(torch_names({"res2/a/bn1/gamma": np.ones(1), "res2/a/bn1/N": np.array(0)}, [(r"res2\\.a", "layer1.0")]))
    ['layer1.0.bn1.weight']
    """
    found: Arrays = {}
    for old, array in arrays.items():
        *path, leaf = old.split("/")
        if leaf == _COUNTERS:
            continue
        name = ".".join([*path, _LEAVES[leaf]])
        for pattern, replacement in rules:
            name = re.sub(pattern, replacement, name)
        found[name] = array
    return found


def converter(rules: Rules, *changes: tuple[str, Callable[[NDArray[Any]], NDArray[Any]]]) -> Callable[[Arrays], Arrays]:
    """What makes a model's arrays of ChainerCV's; the arrays of other files stay as they are.

    ``rules`` are those of `torch_names`; ``changes`` are pairs of a regular expression for the beginning of a name and
    a function that turns such an array into ours.

    >>> import numpy as np
    >>> convert = converter([("^extractor", "backbone")], (r"backbone\\.fc", np.negative))
    >>> convert({"extractor/fc/b": np.ones(1)})
    {'backbone.fc.bias': array([-1.])}
    """
    rules = tuple(rules)

    def convert(arrays: Arrays) -> Arrays:
        if not is_chainers(arrays):
            return arrays
        found = torch_names(arrays, rules)
        for pattern, change in changes:
            for name in found:
                if re.match(pattern, name):
                    found[name] = change(found[name])
        return found

    return convert


def swap_axes(array: NDArray[Any], width: int = 4) -> NDArray[Any]:
    """An array whose rows are y, x, height, width, ... of one box after the other, ``width`` each, as x, y and so on.

    >>> import numpy as np
    >>> swap_axes(np.arange(10), 5).tolist()
    [1, 0, 3, 2, 4, 6, 5, 8, 7, 9]
    """
    order = [1, 0, 3, 2, *range(4, width)]
    return array.reshape(-1, width, *array.shape[1:])[:, order].reshape(array.shape)


def entry(
    name: str,
    file: str,
    parameters: int,
    metrics: Mapping[str, Mapping[str, float]],
    categories: Sequence[str] = VOC_20,
    category_ids: Sequence[int] | None = None,
    settings: Mapping[str, Any] | None = None,
) -> WeightsEntry:
    """One of ChainerCV's files, ``file`` being its name without ".npz"; nobody published hashes of them.

    >>> entry("VOC0712", "net_voc0712", 10, {"VOC2007 test": {"box AP50": 80.2}}).url
    'https://chainercv-models.preferred.jp/net_voc0712.npz'
    """
    return WeightsEntry(
        name=name,
        url=f"https://chainercv-models.preferred.jp/{file}.npz",
        sha256="",
        size=None,
        parameters=parameters,
        licence="not stated (ChainerCV's code is MIT); converted files come from weights with licences of their own",
        source="ChainerCV, github.com/chainer/chainercv",
        categories=tuple(categories),
        category_ids=None if category_ids is None else tuple(category_ids),
        settings=settings or {},
        metrics=metrics,
    )


def imagenet_entry(
    file: str,
    parameters: int,
    error: float,
    mean: Sequence[float],
    ten_crops: float | None = None,
    name: str = "IMAGENET1K",
) -> WeightsEntry:
    """A classifier of ImageNet-1K; its published top-1 errors in percent, ``mean`` of pixels from 0 to 255.

    >>> entry = imagenet_entry("net", 10, 24.8, (128, 128, 128), 23.0)
    >>> entry.metrics
    {'ImageNet-1K': {'acc@1': 75.2, 'acc@1 (10 crops)': 77.0}}
    """
    errors = {"acc@1": error} | ({} if ten_crops is None else {"acc@1 (10 crops)": ten_crops})
    figures = {"ImageNet-1K": {metric: round(100 - value, 2) for metric, value in errors.items()}}
    scaled = tuple(value / 255 for value in mean)
    settings = {"mean": scaled, "std": (1 / 255,) * 3, "antialias": False}
    return entry(name, file, parameters, figures, IMAGENET_1000, settings=settings)
