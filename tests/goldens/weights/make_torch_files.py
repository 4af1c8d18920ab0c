"""Makes zip.pth and legacy.pth, which torch itself wrote: run once with torch 2.14.1, `python make_torch_files.py`.

Every value is a multiple of 1/8, so `test_goldens.py` can state what is in them without another file.
"""

import argparse
from collections import Counter
from pathlib import Path

import numpy as np
import torch


def count(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return (torch.arange(int(np.prod(shape))) / 8).to(dtype).reshape(shape)


model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
with torch.no_grad():
    model[0].weight.copy_(count(2, 3))
    model[0].bias.copy_(count(2))
state = model.state_dict()  # an OrderedDict with _metadata and the int64 scalar num_batches_tracked
base = count(4, 6)
tagged = torch.nn.Parameter(count(2))
tagged.note = "attributes make torch pickle a tensor in another way"
state |= {
    "transposed": base.t(),
    "sliced": base[1:3, ::2],
    "row": base[2],
    "parameter": torch.nn.Parameter(count(2)),
    "tagged": tagged,
    "expanded": count(2)[1:].expand(3, 1),
    "empty": count(0, 3),
    "half": count(3, dtype=torch.float16),
    "bfloat16": count(2, 2, dtype=torch.bfloat16),
    "double": count(2, dtype=torch.float64),
    "int32": torch.arange(3, dtype=torch.int32),
    "int16": torch.arange(3, dtype=torch.int16),
    "int8": torch.arange(3, dtype=torch.int8),
    "uint8": torch.arange(3, dtype=torch.uint8),
    "bool": torch.tensor([True, False, True]),
}
checkpoint = {
    "model": state,
    "optimizer": {"state": {0: {"momentum": count(2)}}, "param_groups": [{"lr": 0.1, "params": [0]}]},
    "epoch": 3,
    "best": np.float64(0.5),
    "curve": np.arange(3.0),
    "args": argparse.Namespace(name="example", device=torch.device("cpu"), size=torch.Size([1, 2])),
    "milestones": Counter([8, 11]),
    "raw": b"\xff\x00",
    "nothing": b"",
}
folder = Path(__file__).parent
torch.save(checkpoint, folder / "zip.pth")
torch.save(checkpoint, folder / "legacy.pth", _use_new_zipfile_serialization=False)
