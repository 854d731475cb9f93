"""Uncertainty for any PyTorch network: variational deep learning without a regularizer."""

from typing import TYPE_CHECKING

from tacit import likelihood
from tacit._support.lazy_imports import lazy_attributes
from tacit.calling import deterministic, ensemble, moments, variational
from tacit.likelihood import (
    Bernoulli,
    Categorical,
    Gaussian,
    HeteroscedasticGaussian,
    HeteroscedasticStudentT,
    StudentT,
)
from tacit.scaling import (
    MaximalUpdate,
    NeuralTangent,
    Standard,
    describe,
    initialize,
    param_groups,
    parametrization,
)
from tacit.weights import (
    adapters,
    covariance,
    divergence,
    every_layer,
    first_and_last,
    noise,
    relative_noise,
)
from tacit.weights.covariance import (
    Diagonal,
    FullRank,
    Kronecker,
    LowRank,
    LowRankPlusDiagonal,
    RankOneSum,
    Relative,
)

if TYPE_CHECKING:
    from tacit import data, methods, metrics, models, testing, theory
    from tacit.inference import acquire, calibrate, conformal, evaluate, load, predict, save
    from tacit.studies import plots
    from tacit.studies.width import coordinate_check, transfer_learning_rate
    from tacit.training import ELBO, GVI, SGD, ExpectedLoss, fit, objective

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
    "HeteroscedasticStudentT",
    "Kronecker",
    "LowRank",
    "LowRankPlusDiagonal",
    "MaximalUpdate",
    "NeuralTangent",
    "RankOneSum",
    "Relative",
    "Standard",
    "StudentT",
    "acquire",
    "adapters",
    "calibrate",
    "conformal",
    "coordinate_check",
    "covariance",
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
    "parametrization",
    "plots",
    "predict",
    "relative_noise",
    "save",
    "testing",
    "theory",
    "transfer_learning_rate",
    "variational",
]

# Imported on first use: they account for most of the import time.
_ROOMS = (
    *("cli", "data", "inference", "integrations", "methods", "metrics"),
    *("models", "studies", "testing", "theory", "training"),
)
_NAMES = {
    "tacit.inference": ("acquire", "calibrate", "conformal", "evaluate", "load", "predict", "save"),
    "tacit.studies": ("plots",),
    "tacit.studies.width": ("coordinate_check", "transfer_learning_rate"),
    "tacit.training": ("ELBO", "GVI", "SGD", "ExpectedLoss", "fit", "objective"),
}
__getattr__ = lazy_attributes(
    "tacit",
    {
        **{room: f"tacit.{room}" for room in _ROOMS},
        **{name: f"{module}:{name}" for module, names in _NAMES.items() for name in names},
    },
)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
