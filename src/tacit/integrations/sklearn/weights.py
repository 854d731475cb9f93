"""Weights of rows: in the loss of training rows, and by how often a held-out row counts.

Weights travel with the targets of training rows, as their last column.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils import _safe_indexing
from sklearn.utils.validation import _check_sample_weight, check_consistent_length
from torch import Tensor
from torch.func import vmap
from torch.nn import functional as F

from tacit.likelihood import (
    Categorical,
    ContinuousLikelihood,
    Gaussian,
    HeteroscedasticStudentT,
    Likelihood,
)


class WeightedCategorical(Categorical):
    """`Categorical` whose training loss is sum_n w_n loss_n / B, for targets (label, w)."""

    def training_loss(
        self, outputs: Tensor, targets: Tensor, *, samples: bool | None = None
    ) -> Tensor:
        """Return the weighted loss of a batch, with outputs (B, C) of one draw."""
        each = F.cross_entropy(outputs, targets[:, 0].long(), reduction="none")
        return (targets[:, 1].to(each) * each).mean()


class WeightedTargets(ContinuousLikelihood):
    """Mixin: a training loss that is sum_n w_n loss_n / B, for targets (y, w)."""

    def training_loss(
        self, outputs: Tensor, targets: Tensor, *, samples: bool | None = None
    ) -> Tensor:
        """Return the weighted loss of a batch, with outputs (B, D) of one draw."""
        one = super().training_loss

        def loss(output: Tensor, target: Tensor) -> Tensor:
            return one(output[None], target[None], samples=False)

        each = vmap(loss)(outputs, targets[:, :-1])
        return (targets[:, -1].to(each) * each).mean()

    def fit_scale(self, outputs: Tensor, targets: Tensor) -> None:
        """Set the scale on held-out rows, or, for targets with weights, on training rows."""
        super().fit_scale(*self._unweighted(outputs, targets))  # type: ignore[safe-super]

    def ensure_coverage(self, outputs: Tensor, targets: Tensor) -> None:
        """Raise the scale on the rows of `fit_scale`."""
        super().ensure_coverage(*self._unweighted(outputs, targets))

    def _unweighted(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Return rows as often as their weights say."""
        if targets.ndim != 2 or targets.shape[1] != self.unit.numel() + 1:
            return outputs, targets
        rows = torch.from_numpy(in_proportion(targets[:, -1].numpy()))
        return outputs[:, rows], targets[rows, :-1]


class WeightedGaussian(WeightedTargets, Gaussian):
    """`Gaussian` for targets with weights."""


class WeightedStudentT(WeightedTargets, HeteroscedasticStudentT):
    """`HeteroscedasticStudentT` for targets with weights."""


def weights_of(X: Any, y: Any, given: Any) -> tuple[Any, Any, NDArray[np.float64] | None]:
    """Return the rows of a table with positive weights, and these; None if all are equal.

    Raises:
        ValueError: If there isn't one finite weight of at least 0 for each row, or all are 0.
    """
    if given is None:
        return X, y, None
    weights = _check_sample_weight(given, X, dtype=np.float64, ensure_non_negative=True)
    if not weights.any():
        raise ValueError("sample_weight: all weights are 0; expected rows with a positive weight.")
    check_consistent_length(X, y)
    rows = np.flatnonzero(weights)
    if len(rows) < len(weights):
        X, weights = _safe_indexing(X, rows), weights[rows]
        y = None if y is None else _safe_indexing(y, rows)
    return X, y, None if (weights == weights[0]).all() else weights


def weighted(likelihood: Likelihood) -> Likelihood:
    """Return a likelihood in the state of another, for targets with weights."""
    if isinstance(likelihood, Categorical):
        return _like(likelihood, WeightedCategorical(likelihood.class_names))
    if isinstance(likelihood, HeteroscedasticStudentT):
        return _like(likelihood, WeightedStudentT(likelihood.df))
    assert isinstance(likelihood, Gaussian)
    return _like(likelihood, WeightedGaussian())


def unweighted(likelihood: Likelihood) -> Likelihood:
    """Return a likelihood in the state of a weighted one, for targets without weights."""
    if isinstance(likelihood, WeightedCategorical):
        return _like(likelihood, Categorical(likelihood.class_names))
    if isinstance(likelihood, WeightedStudentT):
        return _like(likelihood, HeteroscedasticStudentT(likelihood.df))
    assert isinstance(likelihood, WeightedGaussian)
    return _like(likelihood, Gaussian())


def with_weights(targets: Tensor, weights: NDArray[np.float64]) -> Tensor:
    """Return the targets of training rows with weights of mean 1 in a last column."""
    column = torch.from_numpy(weights / weights.mean())[:, None]
    return torch.cat([targets.double().reshape(len(targets), -1), column], 1)


def in_proportion(weights: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return as many rows as there are weights, each about as often as its weight says.

    Systematic resampling: row n stands floor(N p_n) or ceil(N p_n) times, p_n its share of the
    weights. Equal weights give each row once.
    """
    edges = np.cumsum(weights / weights.sum())[:-1]  # without the last, which rounding may move
    points = (np.arange(len(weights)) + 0.5) / len(weights)
    return np.searchsorted(edges, points)


def _like(given: Likelihood, made: Any) -> Likelihood:
    made.load_state_dict(given.state_dict())
    if isinstance(given, ContinuousLikelihood):
        made.flat = given.flat
    return made  # type: ignore[no-any-return]
