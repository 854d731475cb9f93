"""Predictions with uncertainty: one frozen object per task, whatever the method behind it."""

from tacit.predictive.base import Predictive
from tacit.predictive.binary import BinaryPredictive
from tacit.predictive.classification import (
    Averaging,
    ClassPredictive,
    average_log_probs,
    check_labels,
)
from tacit.predictive.regression import RegressionPredictive

__all__ = [
    "Averaging",
    "BinaryPredictive",
    "ClassPredictive",
    "Predictive",
    "RegressionPredictive",
    "average_log_probs",
    "check_labels",
]
