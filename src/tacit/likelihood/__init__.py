"""Likelihoods: the training loss and the predictive distribution, given the outputs."""

from tacit.likelihood.base import Likelihood, aligned
from tacit.likelihood.bernoulli import Bernoulli
from tacit.likelihood.categorical import Categorical
from tacit.likelihood.continuous import ContinuousLikelihood
from tacit.likelihood.discrete import DiscreteLikelihood
from tacit.likelihood.gaussian import Gaussian
from tacit.likelihood.heteroscedastic import (
    HeteroscedasticGaussian,
    HeteroscedasticLikelihood,
    HeteroscedasticStudentT,
)
from tacit.likelihood.homoscedastic import HomoscedasticLikelihood
from tacit.likelihood.laplace import Laplace
from tacit.likelihood.student_t import StudentT

__all__ = [
    "Bernoulli",
    "Categorical",
    "ContinuousLikelihood",
    "DiscreteLikelihood",
    "Gaussian",
    "HeteroscedasticGaussian",
    "HeteroscedasticLikelihood",
    "HeteroscedasticStudentT",
    "HomoscedasticLikelihood",
    "Laplace",
    "Likelihood",
    "StudentT",
    "aligned",
]
