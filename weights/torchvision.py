"""What torchvision's weight entries have in common: host, licence, and the hash in the file's name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .categories import COCO_80, COCO_80_IDS, IMAGENET_1000
from .entry import WeightsEntry

LICENCE = "BSD-3-Clause (torchvision); the training images have licences of their own"
SWAG_LICENCE = "CC-BY-NC-4.0 (SWAG, github.com/facebookresearch/SWAG/blob/main/LICENSE): not for commercial use"


def entry(
    name: str,
    file: str,
    parameters: int,
    categories: Sequence[str],
    metrics: Mapping[str, Mapping[str, float]],
    category_ids: Sequence[int] | None = None,
    settings: Mapping[str, Any] | None = None,
    licence: str = LICENCE,
) -> WeightsEntry:
    """One of torchvision's files, ``file`` being its name without ".pth".

    >>> entry("V1", "net-0123abcd", 10, ["cat"], {"ImageNet-1K": {"acc@1": 70.0}}).sha256
    '0123abcd'
    """
    return WeightsEntry(
        name=name,
        url=f"https://download.pytorch.org/models/{file}.pth",
        sha256=file.rpartition("-")[2],
        size=None,
        parameters=parameters,
        licence=licence,
        source="torchvision, github.com/pytorch/vision",
        categories=tuple(categories),
        category_ids=None if category_ids is None else tuple(category_ids),
        settings=settings or {},
        metrics=metrics,
    )


def coco_entry(file: str, parameters: int, name: str = "COCO_V1", **metrics: float) -> WeightsEntry:
    """A detector trained on COCO; metrics as ``box_ap=37.0``.

    >>> coco_entry("net-0123abcd", 10, box_ap=37.0).metrics
    {'COCO val2017': {'box AP': 37.0}}
    """
    figures = {key.replace("_ap", " AP"): value for key, value in metrics.items()}
    return entry(name, file, parameters, COCO_80, {"COCO val2017": figures}, COCO_80_IDS)


def imagenet_entry(version: int, file: str, parameters: int, top1: float, top5: float, **settings: Any) -> WeightsEntry:
    """A classifier trained on ImageNet-1K; ``settings`` are those of its preprocessing that are not the usual ones.

    >>> imagenet_entry(2, "net-0123abcd", 10, 80.858, 95.434, resize=232).name
    'IMAGENET1K_V2'
    """
    figures = {"ImageNet-1K": {"acc@1": top1, "acc@5": top5}}
    return entry(f"IMAGENET1K_V{version}", file, parameters, IMAGENET_1000, figures, settings=settings)


def swag_entry(kind: str, file: str, parameters: int, top1: float, top5: float, **settings: Any) -> WeightsEntry:
    """A classifier of SWAG (Singh et al. 2022), not for commercial use.

    ``kind`` is "E2E", fine-tuned as a whole on ImageNet-1K, or "LINEAR", where only the last layer was trained on it.

    >>> swag_entry("E2E", "net_swag-0123abcd", 10, 80.0, 95.0, crop=384).name
    'IMAGENET1K_SWAG_E2E_V1'
    """
    figures = {"ImageNet-1K": {"acc@1": top1, "acc@5": top5}}
    name, settings = f"IMAGENET1K_SWAG_{kind}_V1", {"interpolation": "bicubic", **settings}
    return entry(name, file, parameters, IMAGENET_1000, figures, settings=settings, licence=SWAG_LICENCE)


# The published files that no model of the zoo reads, by the reason.
UNSUPPORTED = {
    "quantised to int8: packed parameters that only torch's own kernels compute with; the float file of the same model "
    "is supported": (
        "quantized/googlenet_fbgemm-c81f6644",
        "quantized/inception_v3_google_fbgemm-a2837893",
        "quantized/mobilenet_v2_qnnpack_37f702c5",
        "quantized/mobilenet_v3_large_qnnpack-5bcacf28",
        "quantized/resnet18_fbgemm_16fa66dd",
        "quantized/resnet50_fbgemm_bf931d71",
        "quantized/resnet50_fbgemm-23753f79",
        "quantized/resnext101_32x8_fbgemm_09835ccf",
        "quantized/resnext101_32x8_fbgemm-ee16d00c",
        "quantized/resnext101_64x4d_fbgemm-605a1cb3",
        "quantized/shufflenetv2_x0.5_fbgemm-00845098",
        "quantized/shufflenetv2_x1_fbgemm-1e62bb32",
        "quantized/shufflenetv2_x1_5_fbgemm-d7401f05",
        "quantized/shufflenetv2_x2_0_fbgemm-5cac526c",
    ),
    "classifies video clips: the zoo works on single images": (
        "mc3_18-a90a0ba3",
        "mvit_v1_b-dbeb1030",
        "mvit_v2_s-ae3be167",
        "r2plus1d_18-91a641e6",
        "r3d_18-b3b3357e",
        "s3d-d76dad2f",
        "swin3d_b_1k-24f7c7c6",
        "swin3d_b_22k-7c6ae6fa",
        "swin3d_s-da41c237",
        "swin3d_t-7615ae03",
    ),
    "optical flow between two frames: the zoo works on single images": (
        "raft_large_C_T_V1-22a6c225",
        "raft_large_C_T_V2-1bb1363a",
        "raft_large_C_T_SKHT_V1-0b8c9e55",
        "raft_large_C_T_SKHT_V2-ff5fadd5",
        "raft_large_C_T_SKHT_K_V1-4a6a5039",
        "raft_large_C_T_SKHT_K_V2-b5c70766",
        "raft_small_C_T_V1-ad48884c",
        "raft_small_C_T_V2-01064c6d",
    ),
}
