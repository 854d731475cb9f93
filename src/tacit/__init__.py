"""Deep networks that know what they don't know: variational deep learning without a regularizer."""

from tacit import divergence, metrics, moments, noise, objective, plots, theory
from tacit.conversion import deterministic, ensemble
from tacit.coordinate_check import coordinate_check
from tacit.covariance import Diagonal, FullRank, Kronecker, LowRank, LowRankPlusDiagonal
from tacit.objective import ELBO, GVI, ExpectedLoss
from tacit.parametrization import MaximalUpdate, NeuralTangent, Standard
from tacit.scaling import describe, initialize, param_groups
from tacit.transfer import transfer_learning_rate
from tacit.variational import variational

__version__ = "0.1.0"

__all__ = [
    "ELBO",
    "GVI",
    "Diagonal",
    "ExpectedLoss",
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
    "divergence",
    "ensemble",
    "initialize",
    "metrics",
    "moments",
    "noise",
    "objective",
    "param_groups",
    "plots",
    "theory",
    "transfer_learning_rate",
    "variational",
]
