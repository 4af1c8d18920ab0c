"""The weights of ChainerCV's goldens: functions of the parameters' names, and gains that keep the signal's size.

arrays = filled(names, gains)              # {Chainer's name: shape} -> {Chainer's name: array}, as `save_npz` has it
"""

import importlib.util
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

SPEC = importlib.util.spec_from_file_location("goldens_seeded", Path(__file__).resolve().parents[1] / "seeded.py")
assert SPEC is not None
assert SPEC.loader is not None
seeded = importlib.util.module_from_spec(SPEC)
sys.modules[SPEC.name] = seeded
SPEC.loader.exec_module(seeded)

KINDS = {
    "W": "weight",
    "b": "bias",
    "gamma": "weight",
    "beta": "bias",
    "avg_mean": "running_mean",
    "avg_var": "running_var",
    "scale": "scale_weight",
}
# Of heads, what a bias gets in addition: (end of the name, rows of one box or cell, {row: shift}).
SHIFTS = (
    (r"subnet(/\d/1)?/b", 25, {4: -3.0}),
    (r"multibox/conf/\d/b", 21, {0: 3.0}),
)


def filled(names: Mapping[str, tuple[int, ...]], gains: Mapping[str, float]) -> dict[str, NDArray[Any]]:
    """The arrays of all parameters; a layer's gain multiplies its W and b."""
    arrays = {}
    for name, shape in names.items():
        path, _, leaf = name.rpartition("/")
        if leaf == "N":
            arrays[name] = np.int64(3)
            continue
        array = seeded.seeded_array(f"{name}.{KINDS[leaf]}", tuple(shape), "float32")
        if leaf in "Wb":
            array = array * np.float32(gains[path])
        for pattern, width, rows in SHIFTS:
            if re.fullmatch(pattern, name):
                for row, shift in rows.items():
                    array[row::width] += np.float32(shift)
        arrays[name] = array
    return arrays
