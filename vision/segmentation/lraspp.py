"""LR-ASPP: Howard et al. 2019, "Searching for MobileNetV3", section 6.4."""

from __future__ import annotations

from ...core import Tensor
from ...core import functions as F
from ...core.layers import AdaptiveAvgPool2d, Conv2d, Module, ReLU, Sequential, Sigmoid
from ..backbones.blocks import conv_norm_activation
from ..categories import Categories
from ..model import Segmenter
from .encoder_decoder import dilated_mobilenet, segmenter_info


class LRASPPHead(Module):
    """The coarse map, gated by its mean, and a fine one; the logits of both are added (figure 10)."""

    def __init__(self, low_channels: int, high_channels: int, classes: int, width: int = 128) -> None:
        self.cbr = conv_norm_activation(high_channels, width, 1, activation=ReLU())
        self.scale = Sequential(AdaptiveAvgPool2d(1), Conv2d(high_channels, width, 1, bias=False), Sigmoid())
        self.low_classifier = Conv2d(low_channels, classes, 1)
        self.high_classifier = Conv2d(width, classes, 1)

    def forward(self, low: Tensor, high: Tensor) -> Tensor:
        x = F.resize(self.cbr(high) * self.scale(high), low.shape[2:])  # type: ignore[arg-type]
        return self.low_classifier(low) + self.high_classifier(x)  # type: ignore[no-any-return]


class LRASPP(Segmenter):
    """A backbone with a fine and a coarse map, and the light head that joins them.

    >>> lraspp_mobilenet_v3_large(Categories.plain(["sky", "sea"])).parameter_count()
    3218308
    """

    class_layers = ("classifier.low_classifier.", "classifier.high_classifier.")

    def __init__(self, backbone: Module, classifier: LRASPPHead, categories: Categories) -> None:
        self.backbone, self.classifier, self.categories = backbone, classifier, categories

    def logits(self, x: Tensor) -> Tensor:
        """Logits (n, classes, h, w) at the size of the finer map."""
        return self.classifier(*self.backbone(x))  # type: ignore[no-any-return]


def lraspp_mobilenet_v3_large(categories: Categories) -> LRASPP:
    """LR-ASPP on MobileNetV3-Large of stride 16."""
    return LRASPP(dilated_mobilenet(), LRASPPHead(40, 960, categories.outputs), categories)


MODELS = (
    segmenter_info(
        lraspp_mobilenet_v3_large,
        "lraspp_mobilenet_v3_large-d234d4ea",
        3_221_538,
        57.9,
        91.2,
        2.086,
        "Howard et al. 2019, Searching for MobileNetV3",
    ),
)
