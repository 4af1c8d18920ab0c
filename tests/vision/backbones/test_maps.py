"""Every backbone as the front of a detector: the maps it declares, a pyramid on them, gradients for all it learns."""

import numpy as np
import pytest
from chainsight.core import Tensor, no_grad, seed
from chainsight.core import functions as F
from chainsight.core.layers import Conv2d
from chainsight.vision.backbones import swin
from chainsight.vision.backbones.alexnet import AlexNet
from chainsight.vision.backbones.convnext import ConvNeXt
from chainsight.vision.backbones.densenet import DenseNet
from chainsight.vision.backbones.efficientnet import B0, V2_S, EfficientNet, scaled
from chainsight.vision.backbones.googlenet import GoogLeNet
from chainsight.vision.backbones.inception_v3 import InceptionV3
from chainsight.vision.backbones.maxvit import MaxViT
from chainsight.vision.backbones.mnasnet import MNASNet
from chainsight.vision.backbones.mobilenet_v2 import MobileNetV2
from chainsight.vision.backbones.mobilenet_v3 import SMALL, MobileNetV3
from chainsight.vision.backbones.regnet import RegNet, quantised_stages
from chainsight.vision.backbones.resnet import BasicBlock, Bottleneck, ResNet
from chainsight.vision.backbones.shufflenet_v2 import ShuffleNetV2
from chainsight.vision.backbones.squeezenet import V1_0, V1_1, SqueezeNet
from chainsight.vision.backbones.vgg import VGG, A
from chainsight.vision.backbones.vit import VisionTransformer
from chainsight.vision.categories import Categories
from chainsight.vision.detection.anchors import AnchorGenerator
from chainsight.vision.detection.fpn import LastLevelMaxPool, LastLevelP6P7, PyramidBackbone
from chainsight.vision.detection.retinanet import ClassificationHead, DenseHead, RegressionHead, RetinaNet, tower
from chainsight.vision.model import IMAGENET_MEAN, IMAGENET_STD

BACKBONES = {
    "alexnet": AlexNet,
    "vgg": lambda: VGG(A),
    "googlenet": GoogLeNet,
    "inception_v3": InceptionV3,
    "resnet": lambda: ResNet(BasicBlock, (1, 1, 1, 1)),
    "resnext": lambda: ResNet(Bottleneck, (1, 1, 1, 1), groups=32, base=4),
    "densenet": lambda: DenseNet(8, (2, 2, 2, 2), 16),
    "squeezenet1_0": lambda: SqueezeNet(Conv2d(3, 96, 7, 2), V1_0),
    "squeezenet1_1": lambda: SqueezeNet(Conv2d(3, 64, 3, 2), V1_1),
    "mobilenet_v2": MobileNetV2,
    "mobilenet_v3": lambda: MobileNetV3(SMALL),
    "shufflenet_v2": lambda: ShuffleNetV2((24, 48, 96, 192, 1024)),
    "mnasnet": lambda: MNASNet(0.5),
    "efficientnet": lambda: EfficientNet(B0, 32, 1280),
    "efficientnet_v2": lambda: EfficientNet(scaled(V2_S, 1.0, 0.25), 24, 1280),
    "regnet_x": lambda: RegNet(quantised_stages(8, 24, 24.48, 2.54, 16)),
    "regnet_y": lambda: RegNet(quantised_stages(8, 48, 27.89, 2.09, 8), 0.25),
    "convnext": lambda: ConvNeXt((1, 1, 2, 1), (8, 16, 32, 64), drop=0.1),
    "vit": lambda: VisionTransformer(16, 64, depth=2, features=16, heads=2, inner=32),
    "swin": lambda: swin.Swin(swin.Block, swin.PatchMerging, 8, (2, 2, 2, 2), (1, 2, 2, 4), 7, drop=0.1),
    "swin_v2": lambda: swin.Swin(swin.BlockV2, swin.PatchMergingV2, 8, (2, 2, 2, 2), (1, 2, 2, 4), 8, drop=0.1),
    "maxvit": lambda: MaxViT(8, (8, 8, 16, 16), (2, 1, 1, 1), size=8, drop=0.1),
}
SIZES = {"maxvit": (224, 224)}  # else twice a multiple of 32
VALID = ("alexnet", "inception_v3", "squeezenet1_0", "squeezenet1_1")  # convolutions without padding: smaller maps


def images(count: int, size: tuple[int, int]) -> Tensor:
    return Tensor(np.random.default_rng(0).standard_normal((count, 3, *size), np.float32))


@pytest.mark.parametrize("name", BACKBONES)
def test_declared_channels_and_strides(name):
    backbone = BACKBONES[name]().eval()
    height, width = SIZES.get(name, (96, 128))
    with no_grad():
        maps = backbone(images(1, (height, width)))
    assert len(maps) == len(backbone.channels) == len(backbone.strides)
    assert list(backbone.strides) == sorted(set(backbone.strides))
    for x, channels, stride in zip(maps, backbone.channels, backbone.strides, strict=True):
        assert x.shape[:2] == (1, channels)
        assert np.isfinite(x.numpy()).all()
        if name in VALID:
            assert height / stride - 5 < x.shape[2] <= height // stride
            assert width / stride - 5 < x.shape[3] <= width // stride
        else:
            assert x.shape[2:] == (height // stride, width // stride)


@pytest.mark.parametrize("name", BACKBONES)
def test_every_parameter_gets_a_gradient(name):
    seed(0)
    backbone = BACKBONES[name]()
    maps = backbone(images(2, SIZES.get(name, (96, 96))))
    F.sum(F.stack([F.mean(x * x) for x in maps])).backward()
    parameters = dict(backbone.named_parameters())
    assert parameters
    for key, p in parameters.items():
        assert p.grad is not None, key
        assert np.isfinite(p.grad.numpy()).all(), key
    assert sum(bool(np.any(p.grad.numpy())) for p in parameters.values()) > 0.8 * len(parameters)


@pytest.mark.parametrize("name", BACKBONES)
def test_a_pyramid_on_its_last_maps(name):
    body = BACKBONES[name]().eval()
    use = range(len(body.channels))[-3:]
    height, width = SIZES.get(name, (96, 128))
    with no_grad():
        levels = PyramidBackbone(body, use, 16, LastLevelMaxPool()).eval()(images(1, (height, width)))
    assert len(levels) == len(use) + 1
    assert all(level.shape[1] == 16 for level in levels)


@pytest.mark.parametrize("name", ["convnext", "swin", "regnet_y", "vit"])
def test_a_detector_on_it_finds_boxes(name):
    seed(1)
    body = BACKBONES[name]()
    use = range(len(body.channels))[-3:]
    backbone = PyramidBackbone(body, use, 16, LastLevelP6P7(16, 16))
    anchors = AnchorGenerator([(8 * 2**i,) for i in range(len(use) + 2)], (0.5, 1.0, 2.0))
    head = DenseHead(
        ClassificationHead(tower(16, 1), 16, anchors.per_cell[0], 3),
        RegressionHead(tower(16, 1), 16, anchors.per_cell[0]),
    )
    detector = RetinaNet(backbone, anchors, head, Categories.with_background(["boat", "buoy"]))
    photo = np.random.default_rng(2).integers(0, 256, (60, 90, 3), np.uint8)
    found = detector.predict(photo, score_threshold=0.0)
    assert len(found) > 0
    assert np.isfinite(found.scores).all()
    assert (found.boxes >= 0).all()
    assert (found.boxes <= (90, 60, 90, 60)).all()


def test_transformer_takes_other_sizes_than_it_was_made_for():
    net = BACKBONES["vit"]().eval()
    own = net.encoder.positions(4, 4).numpy()
    np.testing.assert_array_equal(own, net.encoder.pos_embedding.numpy())
    wide = net.encoder.positions(4, 8).numpy()
    assert wide.shape == (1, 33, 16)
    np.testing.assert_array_equal(wide[:, 0], own[:, 0])
    np.testing.assert_allclose(wide[0, 1:].reshape(4, 8, 16).mean(1), own[0, 1:].reshape(4, 4, 16).mean(1), atol=2e-2)
    with pytest.raises(ValueError, match="multiples of 16 pixels"):
        net(images(1, (64, 60)))


def test_maxvit_refuses_sizes_that_its_windows_do_not_fill():
    with pytest.raises(ValueError, match="multiples of 224 pixels"):
        BACKBONES["maxvit"]()(images(1, (224, 256)))


@pytest.mark.parametrize("name", ["swin", "swin_v2"])
def test_windows_see_only_their_neighbours(name):
    """A change in one corner does not reach the opposite one within the first stage of two blocks."""
    net = BACKBONES[name]().eval()
    x = images(1, (224, 224))
    y = Tensor(x.numpy().copy())
    y.data[..., :4, :4] += 10
    with no_grad():
        a, b = (net(t)[0].numpy() for t in (x, y))
    changed = np.abs(a - b).max((0, 1)) > 1e-6
    assert changed[:3, :3].all()
    assert not changed[16:].any()
    assert not changed[:, 16:].any()


def test_the_mask_of_shifted_windows_by_its_definition():
    size, window, shift = 6, 3, (1, 2)
    mask = swin.shift_mask(size, size, window, shift)
    labels = np.arange(size * size).reshape(size, size)
    rolled = np.roll(labels, (-shift[0], -shift[1]), (0, 1))
    for w in range(4):
        top, left = w // 2 * window, w % 2 * window
        places = rolled[top : top + window, left : left + window].reshape(-1)
        for i, a in enumerate(places):
            for j, b in enumerate(places):
                # together before the roll: a window's rows and columns are one piece in the original picture
                near = all(abs(p - q) < window for p, q in zip(divmod(a, size), divmod(b, size)))
                assert mask[w, 0, i, j] == (0 if near else -100)


def test_inception_input_is_symmetric():
    from chainsight.vision.backbones.blocks import symmetric_input

    pixels = np.array([0, 0.5, 1], np.float32)
    mean, std = (np.array(v, np.float32).reshape(3, 1) for v in (IMAGENET_MEAN, IMAGENET_STD))
    x = ((pixels - mean) / std).reshape(1, 3, 1, 3)
    np.testing.assert_allclose(symmetric_input(Tensor(x)).numpy()[0, :, 0], [[-1, 0, 1]] * 3, atol=1e-6)
