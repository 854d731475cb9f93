"""Covariances of a layer's parameters, Sigma = S S^T, as structures of their factor S."""

from tacit.covariance.base import Covariance, Factor, Shapes, parameter_count
from tacit.covariance.diagonal import Diagonal, PositiveDiagonal
from tacit.covariance.full_rank import FullRank
from tacit.covariance.kronecker import Kronecker
from tacit.covariance.low_rank import LowRank
from tacit.covariance.low_rank_plus_diagonal import LowRankPlusDiagonal

__all__ = [
    "Covariance",
    "Diagonal",
    "Factor",
    "FullRank",
    "Kronecker",
    "LowRank",
    "LowRankPlusDiagonal",
    "PositiveDiagonal",
    "Shapes",
    "parameter_count",
]
