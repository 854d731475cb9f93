"""Covariances of a layer's parameters, Sigma = S S^T, as structures of their factor S."""

from tacit.weights.covariance.activation import ActivationNoise, Added, Scaled
from tacit.weights.covariance.base import Covariance, Factor, Shapes, parameter_count
from tacit.weights.covariance.diagonal import Diagonal, PositiveDiagonal
from tacit.weights.covariance.full_rank import FullRank
from tacit.weights.covariance.kronecker import Kronecker
from tacit.weights.covariance.low_rank import LowRank
from tacit.weights.covariance.low_rank_plus_diagonal import LowRankPlusDiagonal
from tacit.weights.covariance.rank_one_sum import RankOneSum
from tacit.weights.covariance.relative import Relative

__all__ = [
    "ActivationNoise",
    "Added",
    "Covariance",
    "Diagonal",
    "Factor",
    "FullRank",
    "Kronecker",
    "LowRank",
    "LowRankPlusDiagonal",
    "PositiveDiagonal",
    "RankOneSum",
    "Relative",
    "Scaled",
    "Shapes",
    "parameter_count",
]
