"""Base class of the estimators: from tables to a trained model, and from the model to predictions.

Fitted attributes and methods have the names and meanings that scikit-learn asks for.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_consistent_length, check_is_fitted, validate_data
from torch import Tensor, nn

from tacit._support import checks
from tacit.calling import variational
from tacit.data.batches import Batches
from tacit.data.splits import stratified
from tacit.data.table_columns import columns_of
from tacit.data.table_encoder import TableEncoder
from tacit.inference import predict
from tacit.inference.held_out_scores import nonconformity
from tacit.integrations.sklearn import files
from tacit.integrations.sklearn.randomness import seeded
from tacit.integrations.sklearn.weights import (
    in_proportion,
    unweighted,
    weighted,
    weights_of,
    with_weights,
)
from tacit.likelihood import Likelihood
from tacit.likelihood.predictive import ClassPredictive, Predictive, RegressionPredictive
from tacit.models import MLP
from tacit.training import fit
from tacit.training.units import set_units

LEAST = 20  # rows to hold out, as long as these are at most a quarter

Pair: TypeAlias = tuple[Tensor, Tensor]
"""Inputs and targets of some rows."""
Part: TypeAlias = Pair | None
Module: TypeAlias = nn.Module | Callable[[int, int], nn.Module] | None
Self = TypeVar("Self", bound="VariationalEstimator")


class VariationalEstimator(BaseEstimator, ABC):
    """What classifier and regressor share; arguments are documented there."""

    def __init__(
        self,
        *,
        hidden: Sequence[int] = (64, 64),
        module: Module = None,
        samples: int = 32,
        epochs: int | None = None,
        lr: float | None = None,
        batch_size: int = 128,
        validation_fraction: float = 0.1,
        conformal_fraction: float = 0.0,
        random_state: Any = None,
        verbose: int = 0,
    ) -> None:
        self.hidden = hidden
        self.module = module
        self.samples = samples
        self.epochs = epochs
        self.lr = lr
        self.batch_size = batch_size
        self.validation_fraction = validation_fraction
        self.conformal_fraction = conformal_fraction
        self.random_state = random_state
        self.verbose = verbose

    @abstractmethod
    def _read_targets(self, y: Any) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Return the targets as the likelihood takes them, and groups of rows to be split alike."""

    @abstractmethod
    def _likelihood(self, targets: NDArray[Any]) -> tuple[Likelihood, int]:
        """Return the likelihood of the targets, and the number of outputs that it needs."""

    @abstractmethod
    def _calibrate(self, validation: Part, conformal: Part) -> None:
        """Calibrate the trained model, and set `conformal_scores_`."""

    def fit(self: Self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Train on a table.

        Args:
            X: An array of numbers, (n, columns), which may have missing values (NaN), or a pandas
                DataFrame with numbers, categories, strings, dates and missing values, encoded by
                `tacit.data.TableEncoder`.
            y: Targets.
            sample_weight: Weights of the rows, (n,), at least 0. They multiply the losses of
                training rows, and held-out rows count in proportion to them. Rows with weight 0 are
                left out from the start.

        Returns:
            The estimator itself.
        """
        X, y, weights = weights_of(X, y, sample_weight)
        targets, groups = self._read_targets(y)
        X = self._checked(X, reset=True)
        check_consistent_length(X, targets)
        if len(targets) < 2:
            raise ValueError(
                f"{type(self).__name__}: expected at least 2 rows, received n_samples = 1."
            )
        self.encoder_ = TableEncoder.fit(X)
        self.seed_ = int(check_random_state(self.random_state).randint(np.iinfo(np.int32).max))
        with seeded(self.seed_):
            likelihood, outputs = self._likelihood(targets)
            net = self._network(len(self.encoder_.features), outputs)
            self.model_ = variational(net, likelihood=likelihood)
            rows = self._rows(groups)
            if weights is not None:
                rows = (rows[0], *(part[in_proportion(weights[part])] for part in rows[1:]))
            like = next(net.parameters()).dtype
            inputs, wanted = self._encoded(X), torch.as_tensor(targets)
            wanted = wanted.to(like) if wanted.is_floating_point() else wanted
            train, validation, conformal = ((inputs[part], wanted[part]) for part in rows)
            held_out = validation if len(rows[1]) else None
            self._train(train, held_out, None if weights is None else weights[rows[0]])
            self._calibrate(held_out, conformal if len(rows[2]) else None)
        return self

    def _train(
        self, train: Pair, validation: Part, weights: NDArray[np.float64] | None = None
    ) -> None:
        settings: dict[str, Any] = {
            "epochs": self.epochs, "lr": self.lr, "batch_size": self.batch_size,
            "accelerator": "cpu", "seed": self.seed_, "progress": bool(self.verbose),
        }  # fmt: skip
        if weights is None:
            self.history_ = fit(self.model_, train, validation, standardise=True, **settings)
            return
        model = self.model_
        assert model.likelihood is not None
        set_units(model, model.likelihood, Batches("train", train, self.batch_size), True)
        model.likelihood = weighted(model.likelihood)
        train = (train[0], with_weights(train[1], weights))
        try:
            self.history_ = fit(model, train, validation, standardise=False, **settings)
        finally:
            model.likelihood = unweighted(model.likelihood)

    def predictive(self, X: Any) -> Predictive:
        """Return the predictive distribution for a table: everything that `tacit.predict` gives.

        The functions are drawn with the seed of training: they are the same in each call.
        """
        check_is_fitted(self, "model_")
        return self._predictive(self._encoded(self._checked(X, reset=False)))

    def save(self, path: str | Path) -> Path:
        """Write the fitted estimator to a file without pickle: safetensors and JSON.

        Its network has to be one of `tacit.models`, like the default. The training history is not
        saved. `tacit.load` reads the same file as a model.

        Args:
            path: File to write, usually ending in .safetensors; replaced atomically.

        Raises:
            TypeError: If the network or the labels can't be described in a file.
        """
        check_is_fitted(self, "model_")
        return files.save(self, path)

    @classmethod
    def load(cls: type[Self], path: str | Path) -> Self:
        """Return the fitted estimator that `save` wrote; nothing in the file is executed.

        A network that was passed as `module` is the trained one: fitted again, it starts there.

        Raises:
            FileNotFoundError: If there is no such file.
            ValueError: If the file is damaged, or of another estimator.
        """
        found: Self = files.load(cls, path)
        return found

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.target_tags.required = True
        return tags

    def _checked(self, X: Any, *, reset: bool) -> Any:
        """Return a table whose number, names and order of columns scikit-learn has checked."""
        if hasattr(X, "columns"):
            return validate_data(self, X=X, reset=reset, skip_check_array=True)
        return validate_data(
            self, X=X, reset=reset, dtype=np.float64, ensure_all_finite="allow-nan"
        )

    def _encoded(self, X: Any) -> Tensor:
        # By position: names are checked, and a table without names may follow one with names.
        names = (column.name for column in self.encoder_.columns)
        table = dict(zip(names, columns_of(X).values(), strict=True))
        return torch.from_numpy(self.encoder_.transform(table, np.float64))

    def _network(self, inputs: int, outputs: int) -> nn.Module:
        """Return the network: the default in double precision, others in their own."""
        if self.module is None:
            # Predictions then don't depend on the rows around them, to 1e-7 of their value.
            return MLP(inputs, self.hidden, outputs).double()
        if isinstance(self.module, nn.Module):
            return copy.deepcopy(self.module)
        found = self.module(inputs, outputs) if callable(self.module) else self.module
        if not isinstance(found, nn.Module):
            raise TypeError(
                "module: expected an nn.Module, or a function from the numbers of inputs and "
                f"outputs to one, received {found!r}."
            )
        return found

    def _rows(self, groups: NDArray[np.int64]) -> tuple[NDArray[np.int64], ...]:
        """Return the rows for training, for validation, and for sets or intervals."""
        fractions = [
            checks.probability(name, getattr(self, name))
            for name in ("conformal_fraction", "validation_fraction")
        ]
        if sum(fractions) >= 1:
            raise ValueError(
                "validation_fraction and conformal_fraction: expected a sum below 1, received "
                f"{fractions[1]:g} and {fractions[0]:g}."
            )
        left, parts = np.arange(len(groups)), []
        for fraction in fractions:
            # A share of the rows that are left, equal to one of all rows.
            share = fraction * len(groups) / len(left)
            held_out = np.zeros(len(left), dtype=bool)
            if fraction:
                held_out = stratified(groups[left], share, LEAST, self.seed_)
            parts.append(left[held_out])
            left = left[~held_out]
        return left, parts[1], parts[0]

    def _predictive(self, inputs: Tensor) -> Predictive:
        generator = torch.Generator().manual_seed(self.seed_)
        return predict(self.model_, inputs, samples=self.samples, generator=generator)

    def _scores(self, inputs: Tensor, targets: Tensor) -> NDArray[np.float64]:
        """Return the scores of held-out rows that decide sets or intervals."""
        prediction = self._predictive(inputs)
        assert isinstance(prediction, ClassPredictive | RegressionPredictive)
        return nonconformity(prediction, targets).numpy()
