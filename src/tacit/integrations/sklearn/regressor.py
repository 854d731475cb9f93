"""Regression on tables with scikit-learn's interface."""

from __future__ import annotations

from typing import Any, Literal, cast, overload

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import RegressorMixin
from sklearn.utils.validation import validate_data
from torch import Tensor

from tacit.inference.held_out_scores import regions
from tacit.integrations.sklearn.estimator import Part, VariationalEstimator
from tacit.likelihood import Gaussian, HeteroscedasticStudentT, Likelihood
from tacit.likelihood.predictive import RegressionPredictive


class VariationalRegressor(RegressorMixin, VariationalEstimator):
    """A variational network for regression on a table, without settings to tune.

    Inputs and targets are standardised, and a held-out part of the rows ends training and sets the
    noise scale, one for each target. The noise is that of `tacit.HeteroscedasticStudentT`: its
    scale depends on the row, and the weight of its tails is chosen on the held-out rows. With a
    `module` of your own, which has one output for each target, it is that of `tacit.Gaussian`.
    Predictions are mixtures over the functions that the model draws. Training takes place on the
    CPU, in double precision unless `module` is given.

    Args:
        hidden: Widths of the hidden layers of the default network, `tacit.models.MLP`.
        module: Another network: an `nn.Module`, which is copied, or a function from the numbers of
            inputs and outputs to one.
        samples: Number of functions for predictions.
        epochs: Number of passes over the data; by default held-out rows end training.
        lr: Learning rate, by default that of `tacit.fit`.
        batch_size: Rows per training step.
        validation_fraction: Fraction of the rows held out to end training and to set the noise
            scale. At least 20 rows are held out, as long as these are at most a quarter. With 0,
            `epochs` is required, and the noise scale is that of the training rows.
        conformal_fraction: Fraction of the rows held out for `predict_interval` alone, which then
            has a guarantee.
        random_state: Seed of the split, the initial weights, training and prediction.
        verbose: Whether to show progress.

    Attributes:
        model_: The trained variational model.
        history_: The training history.
        encoder_: The `tacit.data.TableEncoder` of the inputs.
        n_features_in_: Number of columns.
        feature_names_in_: Names of the columns, if all are strings.

    Examples:
        >>> from sklearn.datasets import load_diabetes
        >>> X, y = load_diabetes(return_X_y=True)
        >>> regressor = VariationalRegressor(epochs=30, random_state=0).fit(X, y)
        >>> mean, std = regressor.predict(X[:5], return_std=True)
        >>> low, high = regressor.predict_interval(X[:5], level=0.9)
        >>> mean.shape, std.shape, bool((low < mean).all())
        ((5,), (5,), True)
    """

    @overload
    def predict(self, X: Any, return_std: Literal[False] = ...) -> NDArray[np.float64]: ...
    @overload
    def predict(
        self,
        X: Any,
        return_std: Literal[True],
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]: ...
    def predict(
        self,
        X: Any,
        return_std: bool = False,
    ) -> NDArray[np.float64] | tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the predictive mean of each row, in the shape of the targets of `fit`.

        Args:
            X: A table.
            return_std: Whether to return the predictive standard deviation as well, in a pair.
        """
        prediction = self.predictive(X)
        mean = _array(prediction.mean)
        return (mean, _array(prediction.std)) if return_std else mean

    def predict_interval(
        self,
        X: Any,
        level: float = 0.9,
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return an interval for each row that contains its target with a probability.

        By default it is the central interval of the predictive distribution. With
        `conformal_fraction` it is conformal (`tacit.conformal`): the target of a new row from the
        same distribution is inside with at least the stated probability, whatever the model.
        Several targets per row have an interval each.

        Args:
            X: A table.
            level: Probability with which an interval contains the target.

        Returns:
            Lower and upper bounds, each in the shape of the targets.

        Raises:
            ValueError: If `conformal_fraction` held out too few rows for the level.
        """
        prediction = self.predictive(X)
        if self.conformal_scores_ is None:
            low, high = prediction.interval(level)
            return _array(low), _array(high)
        bounds = regions(prediction, torch.from_numpy(self.conformal_scores_), level)
        return _array(bounds.low), _array(bounds.high)

    def predictive(self, X: Any) -> RegressionPredictive:
        """Return the predictive distribution for a table: everything that `tacit.predict` gives.

        The functions are drawn with the seed of training: they are the same in each call.
        """
        return cast(RegressionPredictive, super().predictive(X))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def _read_targets(self, y: Any) -> tuple[NDArray[Any], NDArray[np.int64]]:
        y = validate_data(self, X="no_validation", y=y, multi_output=True, y_numeric=True)
        if y.ndim > 2:
            raise ValueError(f"y: expected the shape (n,) or (n, targets), received {y.shape}.")
        return np.array(y, dtype=np.float64), np.zeros(len(y), dtype=np.int64)

    def _likelihood(self, targets: NDArray[Any]) -> tuple[Likelihood, int]:
        count = 1 if targets.ndim == 1 else targets.shape[1]
        if self.module is None:
            return HeteroscedasticStudentT(), 2 * count
        return Gaussian(), count

    def _calibrate(self, validation: Part, conformal: Part) -> None:
        self.conformal_scores_ = None if conformal is None else self._scores(*conformal)


def _array(values: Tensor) -> NDArray[np.float64]:
    return values.double().numpy()
