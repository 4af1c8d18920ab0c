"""Every trainable parameter of every detector gets a gradient from what it computes."""

import numpy as np
import pytest
from chainsight.core import Tensor
from chainsight.core.layers import BatchNorm2d
from chainsight.vision import models
from chainsight.vision.detection.dense import DenseDetector
from chainsight.vision.detection.faster_rcnn import FasterRCNN
from chainsight.vision.detection.yolox import YOLOX

FAMILIES = [
    "fasterrcnn_mobilenet_v3_large_fpn",
    "fasterrcnn_resnet50_fpn_v2",
    "maskrcnn_resnet50_fpn_v2",
    "keypointrcnn_resnet50_fpn",
    "retinanet_resnet50_fpn_v2",
    "fcos_resnet50_fpn",
    "ssd300_vgg16",
    "yolox_nano",
    "yolox_darknet53",
]


def outputs(model, x):
    """All tensors that a model computes from x, before anything is selected."""
    if isinstance(model, FasterRCNN):
        levels = model.backbone(x)
        logits, codes = model.rpn(levels)
        boxes = [np.array([[4, 4, 40, 60], [0, 0, 64, 64]], np.float32)]
        found = [*logits, *codes, *model.roi_heads(levels[:-1], boxes, (64, 64))]
        for extra in ("masks", "heatmaps"):
            if hasattr(model.roi_heads, extra):
                found.append(getattr(model.roi_heads, extra)(levels[:-1], boxes, (64, 64)))
        return found
    if isinstance(model, DenseDetector):
        return [t for level in model(x)[0] for t in level]
    found = model(x)
    return found if isinstance(model, YOLOX) else found[:2]


@pytest.mark.parametrize("name", FAMILIES)
def test_every_parameter_gets_a_gradient(name):
    model = models.load(name, weights=None).eval()
    rng = np.random.default_rng(0)
    for _, module in model.named_modules():  # norms of untrained models would leave only zeros after some ReLU
        if isinstance(module, BatchNorm2d):
            module.bias.data = np.full(module.bias.shape, 0.1, np.float32)
    side = 300 if name == "ssd300_vgg16" else 64
    x = Tensor(rng.standard_normal((1, 3, side, side), np.float32))
    total = sum(
        ((t * Tensor(rng.standard_normal(t.shape, np.float32))).sum() for t in outputs(model, x)), Tensor(np.float32(0))
    )
    total.backward()
    missing = [n for n, p in model.named_parameters() if p.grad is None or not np.any(p.grad.numpy())]
    assert missing == []
