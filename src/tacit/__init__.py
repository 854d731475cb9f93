"""Deep networks that know what they don't know: variational deep learning without a regularizer."""

from tacit import metrics, noise, plots
from tacit.conversion import deterministic, ensemble
from tacit.coordinate_check import coordinate_check
from tacit.covariance import Diagonal, FullRank, Kronecker, LowRank, LowRankPlusDiagonal
from tacit.parametrization import MaximalUpdate, NeuralTangent, Standard
from tacit.scaling import describe, initialize, param_groups
from tacit.variational import variational

__version__ = "0.1.0"

__all__ = [
    "Diagonal",
    "FullRank",
    "Kronecker",
    "LowRank",
    "LowRankPlusDiagonal",
    "MaximalUpdate",
    "NeuralTangent",
    "Standard",
    "coordinate_check",
    "describe",
    "deterministic",
    "ensemble",
    "initialize",
    "metrics",
    "noise",
    "param_groups",
    "plots",
    "variational",
]
