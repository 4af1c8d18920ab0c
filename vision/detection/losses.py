"""Losses of detectors: of classes that hardly ever occur, and of boxes by their overlap."""

from __future__ import annotations

import math

from ...core import Tensor
from ...core import functions as F
from ...core.functions.elementwise import operands
from ...core.functions.loss import need_same_shape, reduced
from ...core.tensor import wrap


def focal_loss(x: Tensor, target: Tensor, alpha: float = 0.25, gamma: float = 2.0, reduction: str = "mean") -> Tensor:
    """The focal loss of logits x and targets 0 or 1 of the same shape (Lin et al. 2017, equation 5); alpha < 0: none.

    >>> round(focal_loss(Tensor([0.0]), Tensor([1.0])).item(), 5)
    0.04332
    """
    x, target = operands("focal_loss", x, target)
    need_same_shape("focal_loss", x, target)
    towards = x * wrap(1 - 2 * target.data)  # the logit of the wrong answer
    loss = F.softplus(towards) * F.sigmoid(towards) ** gamma
    if alpha >= 0:
        loss = loss * wrap(target.data * (2 * alpha - 1) + (1 - alpha))
    return reduced(loss, reduction)


def _corners(boxes: Tensor) -> list[Tensor]:
    return [boxes[:, i] for i in range(4)]


def iou_loss(x: Tensor, target: Tensor, kind: str = "iou", reduction: str = "mean", eps: float = 1e-7) -> Tensor:
    """1 - IoU of boxes x and target (n, 4) xyxy, with a penalty that has a gradient where they do not overlap.

    ``kind`` is "iou"; "giou" (Rezatofighi et al. 2019): minus the share of the enclosing box that neither covers;
    "diou" (Zheng et al. 2020): the squared distance of the centres by the enclosing box's diagonal; "ciou": that and
    the difference of the aspect ratios, whose factor gets no gradient.

    >>> iou_loss(Tensor([[0.0, 0.0, 2.0, 2.0]]), Tensor([[0.0, 0.0, 2.0, 1.0]])).item()
    0.5
    """
    if kind not in ("iou", "giou", "diou", "ciou"):
        raise ValueError(f'expected a kind "iou", "giou", "diou" or "ciou", got {kind!r}')
    need_same_shape("iou_loss", x, target)
    if x.ndim != 2 or x.shape[1] != 4:
        raise ValueError(f"iou_loss: expected boxes (n, 4), got {x.shape}")
    ax1, ay1, ax2, ay2 = _corners(x)
    bx1, by1, bx2, by2 = _corners(target)
    width, height = F.minimum(ax2, bx2) - F.maximum(ax1, bx1), F.minimum(ay2, by2) - F.maximum(ay1, by1)
    overlaps = (width.data > 0) & (height.data > 0)
    inter = F.where(overlaps, width * height, 0.0)
    union = (ax2 - ax1) * (ay2 - ay1) + (bx2 - bx1) * (by2 - by1) - inter
    iou = inter / (union + eps)
    loss = 1 - iou
    if kind != "iou":
        cw, ch = F.maximum(ax2, bx2) - F.minimum(ax1, bx1), F.maximum(ay2, by2) - F.minimum(ay1, by1)
        if kind == "giou":
            hull = cw * ch
            loss = loss + (hull - union) / (hull + eps)
        else:
            dx, dy = (ax1 + ax2 - bx1 - bx2) * 0.5, (ay1 + ay2 - by1 - by2) * 0.5
            loss = loss + (dx * dx + dy * dy) / (cw * cw + ch * ch + eps)
    if kind == "ciou":
        difference = F.atan((bx2 - bx1) / (by2 - by1)) - F.atan((ax2 - ax1) / (ay2 - ay1))
        v = difference * difference * (4 / math.pi**2)
        factor = v.data / (1 - iou.data + v.data + eps)
        loss = loss + v * wrap(factor)
    return reduced(loss, reduction)
