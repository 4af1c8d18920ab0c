"""Data sets of every common format behind one type: `open` one, `check` it, `convert` it; download published ones."""

from .check import CheckReport, check, run_check
from .classification import ClassificationDataset
from .cleaning import DirtyDataError, Problem, clean_boxes
from .coco import COCODataset
from .coco_panoptic import PanopticDataset
from .convert import convert
from .csv import CSVDataset
from .cub import CUBDataset
from .dataset import Annotations, Concatenation, Dataset, Subset
from .download import (
    download_ade20k,
    download_camvid,
    download_coco,
    download_cub,
    download_online_products,
    download_sbd,
    download_voc,
)
from .images import ImageDataset
from .labelme import LabelMeDataset
from .objects import ObjectDataset
from .online_products import OnlineProductsDataset
from .opening import open, splits
from .pairs import MixUp, Siamese
from .sbd import SBDDataset
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
    "CUBDataset",
    "CheckReport",
    "ClassificationDataset",
    "Concatenation",
    "Dataset",
    "DirtyDataError",
    "ImageDataset",
    "LabelMeDataset",
    "LabelScheme",
    "MixUp",
    "ObjectDataset",
    "OnlineProductsDataset",
    "PanopticDataset",
    "Problem",
    "SBDDataset",
    "SemanticDataset",
    "ShapeScenes",
    "Siamese",
    "Subset",
    "VOCDataset",
    "VOCInstanceDataset",
    "YOLODataset",
    "check",
    "clean_boxes",
    "convert",
    "download_ade20k",
    "download_camvid",
    "download_coco",
    "download_cub",
    "download_online_products",
    "download_sbd",
    "download_voc",
    "open",
    "run_check",
    "splits",
]
