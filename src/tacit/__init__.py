"""Deep networks that know what they don't know: variational deep learning without a regularizer."""

from tacit import (
    data,
    divergence,
    likelihood,
    methods,
    metrics,
    models,
    moments,
    noise,
    objective,
    plots,
    theory,
)
from tacit.calibration import calibrate
from tacit.conversion import deterministic, ensemble
from tacit.coordinate_check import coordinate_check
from tacit.covariance import Diagonal, FullRank, Kronecker, LowRank, LowRankPlusDiagonal
from tacit.likelihood import Bernoulli, Categorical, Gaussian, HeteroscedasticGaussian
from tacit.objective import ELBO, GVI, ExpectedLoss
from tacit.parametrization import MaximalUpdate, NeuralTangent, Standard
from tacit.prediction import evaluate, predict
from tacit.saving import load, save
from tacit.scaling import describe, initialize, param_groups
from tacit.selection import every_layer, first_and_last
from tacit.sgd import SGD
from tacit.training import fit
from tacit.transfer import transfer_learning_rate
from tacit.variational import variational

__version__ = "0.1.0"

__all__ = [
    "ELBO",
    "GVI",
    "SGD",
    "Bernoulli",
    "Categorical",
    "Diagonal",
    "ExpectedLoss",
    "FullRank",
    "Gaussian",
    "HeteroscedasticGaussian",
    "Kronecker",
    "LowRank",
    "LowRankPlusDiagonal",
    "MaximalUpdate",
    "NeuralTangent",
    "Standard",
    "calibrate",
    "coordinate_check",
    "data",
    "describe",
    "deterministic",
    "divergence",
    "ensemble",
    "evaluate",
    "every_layer",
    "first_and_last",
    "fit",
    "initialize",
    "likelihood",
    "load",
    "methods",
    "metrics",
    "models",
    "moments",
    "noise",
    "objective",
    "param_groups",
    "plots",
    "predict",
    "save",
    "theory",
    "transfer_learning_rate",
    "variational",
]
