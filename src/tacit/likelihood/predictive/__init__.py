"""Predictive distributions: one frozen class per task, independent of the method."""

from tacit.likelihood.predictive.base import Predictive
from tacit.likelihood.predictive.binary import BinaryPredictive, check_binary
from tacit.likelihood.predictive.classification import (
    Averaging,
    ClassPredictive,
    average_log_probs,
    check_averaging,
)
from tacit.likelihood.predictive.labels import (
    check_labels,
    check_names,
    check_number_of_names,
    counted,
)
from tacit.likelihood.predictive.recalibration import ProbabilityMap
from tacit.likelihood.predictive.regression import RegressionPredictive

__all__ = [
    "Averaging",
    "BinaryPredictive",
    "ClassPredictive",
    "Predictive",
    "ProbabilityMap",
    "RegressionPredictive",
    "average_log_probs",
    "check_averaging",
    "check_binary",
    "check_labels",
    "check_names",
    "check_number_of_names",
    "counted",
]
