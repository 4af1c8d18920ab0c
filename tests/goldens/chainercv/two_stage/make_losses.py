"""Make losses.json: the training losses of ChainerCV 0.13.1 on what `loss_inputs.py` has.

Where there are more anchors or regions than are sampled, the first ones are. "pyramid" is of FPN, "plane" of Faster
R-CNN on VGG-16, "light_head" of Light-Head R-CNN and "fcis" of FCIS, each without the factors of the sum.
"""

import json
from pathlib import Path

import chainer.functions as F
import numpy as np
from chainercv.experimental.links.model.fcis.utils.proposal_target_creator import (
    ProposalTargetCreator as InstanceTargetCreator,
)
from chainercv.links.model import fpn
from chainercv.links.model.faster_rcnn import FasterRCNNVGG16
from chainercv.links.model.faster_rcnn.faster_rcnn_train_chain import _fast_rcnn_loc_loss
from chainercv.links.model.faster_rcnn.region_proposal_network import _enumerate_shifted_anchor
from chainercv.links.model.faster_rcnn.utils.anchor_target_creator import AnchorTargetCreator
from chainercv.links.model.faster_rcnn.utils.proposal_target_creator import ProposalTargetCreator
from chainercv.links.model.light_head_rcnn.light_head_rcnn_train_chain import _ohem_loss
from loss_inputs import BOXES, HARDEST, LABELS, SIZE, masks, normal, outputs, proposals, regions_of_masks

SWAPPED = [1, 0, 3, 2]
BBOX, LABEL = BOXES[:, SWAPPED], LABELS.astype(np.int32)


def last_ones(values, size, replace=False):
    return values[len(values) - size :]


def pyramid():
    fpn.rpn.choice = fpn.bbox_head.choice = last_ones  # they are left out
    np.random.randint = lambda count, size: np.arange(size)
    sizes = [(80, 104), (40, 52), (20, 26), (10, 13), (5, 7)]
    anchors = fpn.RPN((1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 64)).anchors(sizes)
    confs = [F.identity(normal(10 + i, 1, len(a))) for i, a in enumerate(anchors)]
    locs = [F.identity(normal(20 + i, 1, len(a), 4)[..., SWAPPED]) for i, a in enumerate(anchors)]
    rpn_loc, rpn_conf = fpn.rpn_loss(locs, confs, anchors, [SIZE], [BBOX])
    rois = np.concatenate([proposals()[:, SWAPPED], BBOX])
    indices = [np.zeros(len(rois), np.int32)]
    _, indices, gt_locs, gt_labels = fpn.bbox_head_loss_pre([rois], indices, (0.1, 0.2), [BBOX], [LABEL])
    logits, codes = outputs(len(rois))
    loc, conf = fpn.bbox_head_loss_post(
        F.identity(codes[..., SWAPPED]), F.identity(logits), indices, gt_locs, gt_labels, 1
    )
    return {"objectness": rpn_conf, "proposal box": rpn_loc, "class": conf, "box": loc}


def plane():
    np.random.choice = last_ones
    height, width = 19, 25
    anchor = _enumerate_shifted_anchor(FasterRCNNVGG16(20).rpn.anchor_base, 16, height, width)
    gt_loc, gt_label = AnchorTargetCreator()(BBOX, anchor, SIZE)
    loc, score = F.identity(normal(30, len(anchor), 4)[:, SWAPPED]), normal(31, len(anchor), 2)
    losses = {
        "objectness": F.softmax_cross_entropy(score, gt_label),
        "proposal box": _fast_rcnn_loc_loss(loc, gt_loc, gt_label, 3.0),
    }
    roi, gt_loc, gt_label = ProposalTargetCreator()(
        proposals()[:, SWAPPED], BBOX, LABEL, (0.0,) * 4, (0.1, 0.1, 0.2, 0.2)
    )
    logits, codes = of_regions(roi)
    codes = F.identity(codes[np.arange(len(roi)), gt_label])
    losses["class"] = F.softmax_cross_entropy(logits, gt_label)
    losses["box"] = _fast_rcnn_loc_loss(codes, gt_loc, gt_label, 1.0)
    return losses


def light_head():
    np.random.choice = lambda values, size, replace: values[:size]  # they are kept
    roi, gt_loc, gt_label = ProposalTargetCreator(n_sample=None)(
        proposals()[:, SWAPPED], BBOX, LABEL, (0.0,) * 4, (0.1, 0.1, 0.2, 0.2)
    )
    logits, codes = of_regions(roi)
    loc, conf = _ohem_loss(F.identity(codes), F.identity(logits), gt_loc, gt_label, HARDEST, 1.0)
    return {"class": conf, "box": 2 * loc}


def mask_targets():
    """Of each region the object it overlaps most and, as hexadecimal bits, what its mask should be."""
    boxes = regions_of_masks()
    np.bool = bool  # ChainerCV still has the old name
    ((_,), (_,), (targets,), (_,)) = fpn.mask_head_loss_pre(
        [boxes[:, SWAPPED]], [np.zeros(len(boxes), np.int32)], [masks()], [BBOX], [np.ones(len(boxes), np.int32)], 28
    )
    return [np.packbits(target.astype(bool)).tobytes().hex() for target in targets]


def fcis():
    np.random.choice = lambda values, size, replace: values[:size]  # they are kept
    roi, gt_mask, gt_label, gt_loc = InstanceTargetCreator()(proposals()[:, SWAPPED], masks(), LABEL, BBOX)
    logits, codes = of_regions(roi)
    segments = normal(6, 60, 441)[place_of(roi)]
    segments = np.stack([np.zeros_like(segments), segments], 1).reshape(-1, 2, 21, 21)
    codes = F.identity(codes[np.arange(len(roi)), (gt_label > 0).astype(int)])
    return {
        "class": F.softmax_cross_entropy(logits, gt_label),
        "box": _fast_rcnn_loc_loss(codes, gt_loc, gt_label, 1.0),
        "mask": F.softmax_cross_entropy(segments, gt_mask, normalize=False) * 10.0 / 21 / 21,
    }


def place_of(roi):
    """The place of regions among proposals and objects."""
    every = np.concatenate([proposals()[:, SWAPPED], BBOX])
    return np.abs(every[None] - roi[:, None]).max(2).argmin(1)


def of_regions(roi):
    """The outputs of regions."""
    logits, codes = outputs(60)
    return logits[place_of(roi)], codes[place_of(roi)][..., SWAPPED]


if __name__ == "__main__":
    losses = {
        make.__name__: {name: float(value.array) for name, value in make().items()}
        for make in (pyramid, plane, light_head, fcis)
    }
    losses["mask targets"] = mask_targets()
    path = Path(__file__).resolve().parent / "losses.json"
    path.write_text(json.dumps(losses, indent=1) + "\n")
    print(path.read_text())
