"""Models of masks, keypoints and label maps learn eight pictures by heart, as detectors in `test_fit_overfit.py`."""

from itertools import islice

import chainsight as cs
import pytest
from chainsight import core, training
from chainsight.core.layers import BatchNorm2d, ReLU, Sequential, init
from chainsight.datasets import ShapeScenes
from chainsight.vision import boxes as box_ops
from chainsight.vision.backbones.resnet import BasicBlock, Bottleneck, ResNet
from chainsight.vision.categories import Categories
from chainsight.vision.detection.anchors import AnchorGenerator
from chainsight.vision.detection.fpn import LastLevelMaxPool, PyramidBackbone
from chainsight.vision.detection.keypoint_rcnn import KeypointHeads, KeypointPredictor, KeypointRCNN
from chainsight.vision.detection.mask_rcnn import MaskHeads, MaskPredictor, MaskRCNN
from chainsight.vision.detection.resizing import ShortSideResize
from chainsight.vision.detection.roi import BoxPredictor, TwoMLPHead
from chainsight.vision.detection.rpn import RegionProposalNetwork, RPNHead
from chainsight.vision.detection.towers import conv3x3
from chainsight.vision.model import ShortSidePreset
from chainsight.vision.segmentation.encoder_decoder import EncoderDecoder, FCNHead
from chainsight.vision.segmentation.lraspp import lraspp_mobilenet_v3_large

SIZE = 128
SCENES = ShapeScenes(400, size=SIZE, seed=1)
SETTINGS = {"augmentation": None, "progress": False, "workers": 0}


def large(scenes, side):
    """The first eight scenes whose objects all have sides of at least so many pixels."""
    enough = (i for i in range(len(scenes)) if box_ops.at_least(scenes.annotations(i).boxes, side).all())
    return scenes.subset(list(islice(enough, 8)))


def two_stages(make, heads):
    body = ResNet(BasicBlock, (1, 1, 1, 1), norm=BatchNorm2d)
    anchors = AnchorGenerator([[16], [32], [64], [96], [128]], (0.5, 1.0, 2.0))
    rpn = RegionProposalNetwork(RPNHead(64, 3), anchors, 200, 50)
    rpn.in_training = (300, 50)
    categories = Categories.with_background(SCENES.categories)
    backbone = PyramidBackbone(body, (0, 1, 2, 3), 64, LastLevelMaxPool(), BatchNorm2d)
    head, predictor = TwoMLPHead(64 * 7 * 7, 256), BoxPredictor(256, categories.outputs)
    return make(backbone, rpn, heads(head, predictor), categories, ShortSideResize(SIZE, SIZE))


def mask_rcnn():
    convs, masks = Sequential(conv3x3(64, 32, init.he_normal), ReLU()), MaskPredictor(32, len(SCENES.categories) + 1)
    return two_stages(MaskRCNN, lambda head, predictor: MaskHeads(head, predictor, convs, masks))


def keypoint_rcnn():
    convs, points = Sequential(conv3x3(64, 32, init.he_normal), ReLU()), KeypointPredictor(32, 17)  # fit makes it 5
    return two_stages(KeypointRCNN, lambda head, predictor: KeypointHeads(head, predictor, convs, points))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "iou_type", "epochs", "least"), [(mask_rcnn, "segm", 60, 0.65), (keypoint_rcnn, "keypoints", 60, 0.55)]
)
def test_eight_pictures_by_heart(make, iou_type, epochs, least, tmp_path):
    """Every object is found with its mask or keypoints; how exactly, grows long after this test has ended."""
    core.seed(0)
    model, data = make(), large(SCENES, 36)
    training.fit(model, data, epochs=epochs, lr=1e-3, batch_size=4, out=tmp_path, **SETTINGS)
    metrics = cs.evaluate(model, data, progress=False).metrics
    assert metrics.iou_type == iou_type
    assert metrics.AP50 > 0.95
    assert least < metrics.AP


def fcn(categories):
    heads = FCNHead(2048, categories.outputs), FCNHead(1024, categories.outputs)
    return EncoderDecoder(ResNet(Bottleneck, (1, 1, 1, 1), dilations=(1, 1, 2, 4)), *heads, categories)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "size", "side", "epochs", "lr", "batch"),
    [(lraspp_mobilenet_v3_large, 192, 64, 70, 4e-3, 8), (fcn, 96, 40, 40, 1e-3, 4)],
    ids=["lraspp", "fcn"],
)
def test_label_maps_by_heart(make, size, side, epochs, lr, batch, tmp_path):
    core.seed(0)
    scenes = ShapeScenes(1000, size=size, seed=1, background=True)
    model, data = make(Categories.plain(scenes.categories)), large(scenes, side)  # cells have 8 pixels
    model.preset = ShortSidePreset(size)
    for _, module in model.named_modules():
        if isinstance(module, BatchNorm2d):
            module.momentum = 0.2  # the published 0.01 would still remember the start after so few steps
    training.fit(model, data, epochs=epochs, lr=lr, batch_size=batch, out=tmp_path, **SETTINGS)
    assert cs.evaluate(model, data, progress=False).metrics.to_dict()["mIoU"] >= 0.9
