"""The container of `functions.npz`: many small cases, each a call of a function with what it returned.

    for key, case in read_cases("functions.npz").items():
        output = FUNCTIONS[case.function](**case.inputs, **case.options)     # == case.outputs["out"]
        # gradients of (output * case.cotangent).sum() by each input          == case.gradients[name]

Every case is one array in the file: a `.npz` spends some 300 bytes on each of its members.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Arrays = Mapping[str, NDArray[Any]]
GROUPS = ("inputs", "outputs", "gradients")


@dataclass(frozen=True)
class Case:
    """A call `function(**inputs, **options)` in float64; `outputs` and `gradients` are rounded to float32.

    Tuples among the options come back as lists.
    `cotangent` is the gradient that flows into `outputs["out"]`; without one the case has no gradients.
    """

    function: str
    options: Mapping[str, Any]
    inputs: Arrays
    outputs: Arrays
    cotangent: NDArray[Any] | None = None
    gradients: Arrays = field(default_factory=dict)


def write_cases(path: Path, cases: Mapping[str, Case]) -> None:
    """Store the cases as one compressed `.npz`: a JSON index and one flat float32 array per case."""
    index: dict[str, Any] = {}
    flat: dict[str, NDArray[Any]] = {}
    for key, case in cases.items():
        groups: dict[str, Arrays] = {group: getattr(case, group) for group in GROUPS}
        groups["cotangent"] = {} if case.cotangent is None else {"out": case.cotangent}
        layout = {g: {n: [a.dtype.str, list(a.shape)] for n, a in arrays.items()} for g, arrays in groups.items()}
        index[key] = {"function": case.function, "options": case.options, **layout}
        parts = [np.ravel(a) for arrays in groups.values() for a in arrays.values()]
        flat[key] = np.concatenate(parts).astype(np.float32)
    np.savez_compressed(path, index=np.array(json.dumps(index)), **flat)  # type: ignore[arg-type]


def read_cases(path: str | Path) -> dict[str, Case]:
    """Read what `write_cases` stored; floating inputs come as float64 (their float32 values are exact)."""
    cases = {}
    with np.load(path, allow_pickle=False) as file:
        for key, entry in json.loads(str(file["index"])).items():
            values, start = file[key], 0
            groups: dict[str, dict[str, NDArray[Any]]] = {}
            for group in (*GROUPS, "cotangent"):
                groups[group] = {}
                for name, (dtype, shape) in entry[group].items():
                    size = int(np.prod(shape, dtype=np.int64))
                    part = values[start : start + size].reshape(shape)
                    groups[group][name] = part.astype("<f8" if dtype == "<f4" and group == "inputs" else dtype)
                    start += size
            cases[key] = Case(
                entry["function"],
                entry["options"],
                groups["inputs"],
                groups["outputs"],
                groups["cotangent"].get("out"),
                groups["gradients"],
            )
    return cases
