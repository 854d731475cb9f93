"""Predictive distributions: one frozen class per task, independent of the method."""

from tacit.likelihood.predictive.base import Predictive
from tacit.likelihood.predictive.binary import BinaryPredictive
from tacit.likelihood.predictive.classification import (
    Averaging,
    ClassPredictive,
    average_log_probs,
    check_labels,
)
from tacit.likelihood.predictive.regression import RegressionPredictive

__all__ = [
    "Averaging",
    "BinaryPredictive",
    "ClassPredictive",
    "Predictive",
    "RegressionPredictive",
    "average_log_probs",
    "check_labels",
]
