"""Tests of a parametrization across widths: coordinate check and learning-rate transfer."""

from tacit.studies.width.coordinates import CoordinateCheck, coordinate_check
from tacit.studies.width.transfer import LearningRateTransfer, transfer_learning_rate

__all__ = ["CoordinateCheck", "LearningRateTransfer", "coordinate_check", "transfer_learning_rate"]
