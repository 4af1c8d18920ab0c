"""Files that torch itself wrote, with every kind of tensor a checkpoint may hold (see make_torch_files.py)."""

from pathlib import Path

import numpy as np
import pytest
from chainsight.weights.readers import read

FOLDER = Path(__file__).parent.parent / "goldens" / "weights"


def count(*shape: int, dtype: type = np.float32) -> np.ndarray:
    return (np.arange(int(np.prod(shape))) / 8).astype(dtype).reshape(shape)


BASE = count(4, 6)
EXPECTED = {
    "0.weight": count(2, 3),
    "0.bias": count(2),
    "1.weight": np.ones(2, np.float32),
    "1.bias": np.zeros(2, np.float32),
    "1.running_mean": np.zeros(2, np.float32),
    "1.running_var": np.ones(2, np.float32),
    "1.num_batches_tracked": np.array(0, np.int64),
    "transposed": BASE.T,
    "sliced": BASE[1:3, ::2],
    "row": BASE[2],
    "parameter": count(2),
    "tagged": count(2),
    "expanded": np.full((3, 1), 1 / 8, np.float32),
    "empty": count(0, 3),
    "half": count(3, dtype=np.float16),
    "bfloat16": count(2, 2),
    "double": count(2, dtype=np.float64),
    "int32": np.arange(3, dtype=np.int32),
    "int16": np.arange(3, dtype=np.int16),
    "int8": np.arange(3, dtype=np.int8),
    "uint8": np.arange(3, dtype=np.uint8),
    "bool": np.array([True, False, True]),
}


@pytest.mark.parametrize("name", ["zip.pth", "legacy.pth"])
def test_every_tensor_of_a_real_checkpoint(name: str) -> None:
    found = read(FOLDER / name)
    assert found.keys() == EXPECTED.keys()
    for key, expected in EXPECTED.items():
        assert (found[key].shape, found[key].dtype) == (expected.shape, expected.dtype), key
        np.testing.assert_array_equal(found[key], expected, err_msg=key)
    assert np.shares_memory(found["transposed"], found["row"]), "tensors that shared a storage still do"


@pytest.mark.parametrize("name", ["zip.pth", "legacy.pth"])
def test_another_part_by_its_path(name: str) -> None:
    with pytest.raises(ValueError, match=r"no state dict in \{state: dict, param_groups: list\}"):
        read(FOLDER / name, "optimizer")
    with pytest.raises(ValueError, match=r"no 'ema' in \{model: PlainDict, optimizer: dict, epoch: int"):
        read(FOLDER / name, "ema.module")
