"""Metrics of classification, segmentation, calibration, detection, rejection and regression."""

from tacit.metrics.calibration import Bins, calibration_error, reliability
from tacit.metrics.classification import (
    accuracy,
    among_first,
    brier,
    classwise_ece,
    classwise_gaps,
    ece,
    nll,
)
from tacit.metrics.detection import aupr, auroc, fpr95
from tacit.metrics.regression import coverage, interval_score, rmse
from tacit.metrics.rejection import aurc, selective_accuracy
from tacit.metrics.segmentation import class_iou, confusion_matrix, miou
from tacit.metrics.streaming import Metrics, Streaming

__all__ = [
    "Bins",
    "Metrics",
    "Streaming",
    "accuracy",
    "among_first",
    "aupr",
    "aurc",
    "auroc",
    "brier",
    "calibration_error",
    "class_iou",
    "classwise_ece",
    "classwise_gaps",
    "confusion_matrix",
    "coverage",
    "ece",
    "fpr95",
    "interval_score",
    "miou",
    "nll",
    "reliability",
    "rmse",
    "selective_accuracy",
]
