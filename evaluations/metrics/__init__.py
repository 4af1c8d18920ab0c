"""Metrics as pure functions on arrays and annotations."""

from .classification import TopKAccuracy
from .coco import CocoMetrics, box_metrics, coco_metrics
from .errors import ScoreCurves, confusion_matrix, image_errors, score_curves
from .inputs import BoxesFound, BoxTruth
from .semantic import SemanticMetrics
from .voc import MasksFound, MaskTruth, VocMetrics, voc_detection, voc_instance

__all__ = [
    "BoxTruth",
    "BoxesFound",
    "CocoMetrics",
    "MaskTruth",
    "MasksFound",
    "ScoreCurves",
    "SemanticMetrics",
    "TopKAccuracy",
    "VocMetrics",
    "box_metrics",
    "coco_metrics",
    "confusion_matrix",
    "image_errors",
    "score_curves",
    "voc_detection",
    "voc_instance",
]
