"""Darknet's detectors of every kind learn eight pictures by heart: targets, losses and decoding agree."""

import chainsight as cs
import pytest
from chainsight import core, training
from chainsight.datasets import ShapeScenes
from chainsight.vision import boxes as box_ops
from chainsight.vision.categories import Categories
from chainsight.vision.detection.darknet import Darknet

SIZE = 96
SCENES = ShapeScenes(200, size=SIZE, seed=1)
LARGE = [i for i in range(200) if box_ops.at_least(SCENES.annotations(i).boxes, 20).all()][:8]
CLASSES = len(SCENES.categories)
ANCHORS = "16,16, 28,28, 40,40, 56,32, 32,56, 64,64"


def conv(filters, stride=1, size=3, activation="leaky"):
    return (
        f"[convolutional]\nbatch_normalize=1\nfilters={filters}\nsize={size}\nstride={stride}\npad=1\n"
        f"activation={activation}\n"
    )


def head(kind, anchors, options, activation="linear"):
    return (
        f"[convolutional]\nfilters={anchors * (5 + CLASSES)}\nsize=1\nactivation={activation}\n"
        f"[{kind}]\nclasses={CLASSES}\n{options}\n"
    )


def body(activation="leaky"):
    return f"[net]\nwidth={SIZE}\nheight={SIZE}\n" + "".join(conv(c, 2, 3, activation) for c in (16, 32, 64, 96))


V2 = (
    body()
    + "[route]\nlayers=-2\n[reorg]\nstride=2\n[route]\nlayers=-1,-3\n"
    + conv(128)
    + head(
        "region",
        3,
        "anchors=1.2,1.2, 2.2,2.2, 3.6,3.6\nnum=3\nsoftmax=1\nbias_match=1\nrescore=1\nobject_scale=5\nthresh=.6",
    )
)
V3 = (
    body()
    + conv(128)
    + head("yolo", 3, f"mask=3,4,5\nanchors={ANCHORS}\nnum=6\niou_normalizer=1")
    + "[route]\nlayers=-3\n[upsample]\nstride=2\n[route]\nlayers=-1,2\n"
    + conv(96)
    + head("yolo", 3, f"mask=0,1,2\nanchors={ANCHORS}\nnum=6\niou_normalizer=1")
)
CIOU = "iou_loss=ciou\niou_normalizer=0.07\niou_thresh=0.213"
V4 = body("mish") + conv(128) + head("yolo", 6, f"anchors={ANCHORS}\nnum=6\nscale_x_y=1.05\n{CIOU}")
CSP = (
    body("swish")
    + conv(128)
    + head("yolo", 6, f"anchors={ANCHORS}\nnum=6\nscale_x_y=2\nnew_coords=1\n{CIOU}", "logistic")
)


@pytest.mark.slow
@pytest.mark.parametrize("cfg", [V2, V3, V4, CSP], ids=["v2", "v3", "v4", "csp"])
def test_eight_pictures_by_heart(cfg, tmp_path):
    core.seed(0)
    model, data = Darknet(cfg, Categories.plain(SCENES.categories)), SCENES.subset(LARGE)
    model.name = "darknet"
    settings = {"augmentation": None, "out": tmp_path, "progress": False, "workers": 0}
    training.fit(model, data, epochs=60, lr=4e-3, batch_size=4, **settings)
    metrics = cs.evaluate(model, data, progress=False).metrics
    assert metrics.AP50 > 0.95
    assert metrics.AP > 0.7
