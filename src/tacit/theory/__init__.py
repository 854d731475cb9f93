"""Closed forms for linear models: what training must give, and why. float64, no shared code.

The notation is the paper's: N data points are the rows of X, P parameters w with prior
N(mu0, S0 S0^T), S0 of shape (P, R), and the linear model f(x) = x^T w.
"""

from tacit.theory import classification, regression
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
    "squared_wasserstein",
    "squared_wasserstein_by_factors",
    "squared_wasserstein_by_subspaces",
]
