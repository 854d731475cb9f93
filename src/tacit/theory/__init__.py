"""Exact results for linear models: a float64 reference that shares no code with training.

The notation is the paper's: the N rows of X are data points, the P parameters w have the prior
N(mu0, S0 S0^T) with S0 of shape (P, R), and the linear model is f(x) = x^T w.
"""

from tacit.theory import classification, regression, relative
from tacit.theory.gaussian import (
    Normal,
    kl,
    squared_wasserstein,
    squared_wasserstein_by_factors,
    squared_wasserstein_by_subspaces,
)
from tacit.theory.subspaces import null_projection, null_projection_from_factor, range_projection

__all__ = [
    "Normal",
    "classification",
    "kl",
    "null_projection",
    "null_projection_from_factor",
    "range_projection",
    "regression",
    "relative",
    "squared_wasserstein",
    "squared_wasserstein_by_factors",
    "squared_wasserstein_by_subspaces",
]
