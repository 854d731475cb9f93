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
from tacit.data.splits import stratified
from tacit.data.table_columns import columns_of
from tacit.data.table_encoder import TableEncoder
from tacit.inference import predict
from tacit.integrations.sklearn import files
from tacit.integrations.sklearn.randomness import seeded
from tacit.likelihood import Likelihood
from tacit.likelihood.predictive import Predictive
from tacit.models import MLP
from tacit.training import fit

LEAST = 20  # rows to hold out, as long as these are at most a quarter

Part: TypeAlias = tuple[Tensor, Tensor] | None
"""Inputs and targets of some rows; None for no rows."""
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

    def fit(self: Self, X: Any, y: Any) -> Self:
        """Train on a table.

        Args:
            X: An array of numbers, (n, columns), which may have missing values (NaN), or a pandas
                DataFrame with numbers, categories, strings, dates and missing values, encoded by
                `tacit.data.TableEncoder`.
            y: Targets.

        Returns:
            The estimator itself.
        """
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
            train, validation, conformal = self._parts(self._encoded(X), targets, groups)
            self.history_ = fit(
                self.model_, train, validation, epochs=self.epochs, lr=self.lr,
                batch_size=self.batch_size, standardise=True, accelerator="cpu", seed=self.seed_,
                progress=bool(self.verbose),
            )  # fmt: skip
            self._calibrate(validation, conformal)
        return self

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

    def _parts(
        self, inputs: Tensor, targets: NDArray[Any], groups: NDArray[np.int64]
    ) -> tuple[Part, Part, Part]:
        """Return training, validation and conformal parts."""
        fractions = [
            checks.probability(name, getattr(self, name))
            for name in ("conformal_fraction", "validation_fraction")
        ]
        if sum(fractions) >= 1:
            raise ValueError(
                "validation_fraction and conformal_fraction: expected a sum below 1, received "
                f"{fractions[1]:g} and {fractions[0]:g}."
            )
        like = next(self.model_.parameters()).dtype
        wanted = torch.as_tensor(targets)
        wanted = wanted.to(like) if wanted.is_floating_point() else wanted
        left, parts = np.arange(len(groups)), []
        for fraction in fractions:
            # A fraction of the rows that are left, equal to one of all rows.
            share = fraction * len(groups) / len(left)
            held_out = stratified(groups[left], share, LEAST, self.seed_) if fraction else None
            rows = left[:0] if held_out is None else left[held_out]
            left = left if held_out is None else left[~held_out]
            parts.append((inputs[rows], wanted[rows]) if len(rows) else None)
        return (inputs[left], wanted[left]), parts[1], parts[0]

    def _predictive(self, inputs: Tensor) -> Predictive:
        generator = torch.Generator().manual_seed(self.seed_)
        return predict(self.model_, inputs, samples=self.samples, generator=generator)
