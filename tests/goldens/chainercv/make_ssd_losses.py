"""Write ssd_losses.json: ChainerCV's MultiBox losses of random outputs and objects.

python make_ssd_losses.py        # in ChainerCV's environment
"""

import json
from pathlib import Path

import chainer
import numpy as np
from chainercv.links import SSD300, SSD512
from chainercv.links.model.ssd import multibox_loss
from ssd_scenes import CASES, outputs, scene

found = {}
for name, seed in CASES:
    model = {"ssd300": SSD300, "ssd512": SSD512}[name](n_fg_class=20)
    boxes, labels = scene(int(name[3:]), seed)
    targets = [model.coder.encode(b[:, [1, 0, 3, 2]], label.astype(np.int32)) for b, label in zip(boxes, labels)]
    codes, logits = (chainer.Variable(a) for a in outputs(len(targets[0][0]), seed))
    box, classes = multibox_loss(codes, logits, *(np.stack(part) for part in zip(*targets)), 3)
    (box + classes).backward()
    norms = [float(np.linalg.norm(v.grad)) for v in (codes, logits)]
    claimed = [int((label > 0).sum()) for _, label in targets]
    found[f"{name} {seed}"] = {
        "box": float(box.array),
        "class": float(classes.array),
        "norms": norms,
        "claimed": claimed,
    }
Path(__file__).with_name("ssd_losses.json").write_text(json.dumps(found, indent=1) + "\n")
