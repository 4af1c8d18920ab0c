"""Data sets of every common format behind one type: `open` one, `check` it, `convert` it, download VOC and COCO."""

from .check import CheckReport, check, run_check
from .classification import ClassificationDataset
from .cleaning import DirtyDataError, Problem, clean_boxes
from .coco import COCODataset
from .convert import convert
from .csv import CSVDataset
from .dataset import Annotations, Concatenation, Dataset, Subset
from .download import download_coco, download_voc
from .labelme import LabelMeDataset
from .objects import ObjectDataset
from .opening import open, splits
from .semantic import LabelScheme, SemanticDataset
from .shape_scenes import ShapeScenes
from .voc import VOCDataset, VOCInstanceDataset
from .voc_names import VOC_CATEGORIES
from .yolo import YOLODataset

__all__ = [
    "VOC_CATEGORIES",
    "Annotations",
    "COCODataset",
    "CSVDataset",
    "CheckReport",
    "ClassificationDataset",
    "Concatenation",
    "Dataset",
    "DirtyDataError",
    "LabelMeDataset",
    "LabelScheme",
    "ObjectDataset",
    "Problem",
    "SemanticDataset",
    "ShapeScenes",
    "Subset",
    "VOCDataset",
    "VOCInstanceDataset",
    "YOLODataset",
    "check",
    "clean_boxes",
    "convert",
    "download_coco",
    "download_voc",
    "open",
    "run_check",
    "splits",
]
