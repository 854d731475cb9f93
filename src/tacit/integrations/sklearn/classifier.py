"""Classification of tables with scikit-learn's interface."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import validate_data

from tacit.inference import calibrate
from tacit.inference.held_out_scores import regions
from tacit.integrations.sklearn.estimator import Part, VariationalEstimator
from tacit.likelihood import Categorical, Likelihood
from tacit.likelihood.predictive import ClassPredictive


class VariationalClassifier(ClassifierMixin, VariationalEstimator):
    """A variational network that classifies the rows of a table, without settings to tune.

    Inputs are standardised, a held-out part of the rows ends training and sets a temperature, and
    probabilities are averages over the functions that the model draws. Training takes place on the
    CPU, in double precision unless `module` is given.

    Args:
        hidden: Widths of the hidden layers of the default network, `tacit.models.MLP`.
        module: Another network: an `nn.Module`, which is copied, or a function from the numbers of
            inputs and outputs to one. Its outputs are logits, one for each class.
        samples: Number of functions for predictions.
        epochs: Number of passes over the data; by default held-out rows end training.
        lr: Learning rate, by default that of `tacit.fit`.
        batch_size: Rows per training step.
        validation_fraction: Fraction of each class held out to end training and to set the
            temperature. At least 20 rows are held out, as long as these are at most a quarter.
            With 0, `epochs` is required, and probabilities are not calibrated.
        conformal_fraction: Fraction of each class held out for `predict_set` alone, which then has
            a guarantee.
        random_state: Seed of the split, the initial weights, training and prediction.
        verbose: Whether to show progress.

    Attributes:
        classes_: The labels, in the order of the probabilities.
        model_: The trained variational model.
        history_: The training history.
        encoder_: The `tacit.data.TableEncoder` of the inputs.
        n_features_in_: Number of columns.
        feature_names_in_: Names of the columns, if all are strings.

    Examples:
        >>> from sklearn.datasets import load_iris
        >>> X, y = load_iris(return_X_y=True)
        >>> classifier = VariationalClassifier(epochs=60, random_state=0).fit(X, y)
        >>> classifier.predict(X[:3]), classifier.predict_proba(X).shape
        (array([0, 0, 0]), (150, 3))
        >>> bool(classifier.score(X, y) > 0.9)
        True
    """

    def predict(self, X: Any) -> NDArray[Any]:
        """Return the most probable label of each row, (n,)."""
        best = self.predict_proba(X).argmax(1)
        labels: NDArray[Any] = self.classes_[best]
        return labels

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Return the probabilities of the classes, (n, classes), in the order of `classes_`."""
        log_probs = self.predictive(X).log_probs
        return log_probs.double().softmax(-1).numpy()

    def predict_set(self, X: Any, level: float = 0.9) -> NDArray[np.bool_]:
        """Return a set of classes for each row that contains the true one with a probability.

        Sets are conformal (`tacit.conformal`). With `conformal_fraction` they are calibrated on
        rows used for nothing else, and contain the label of a new row from the same distribution
        with at least the stated probability. Otherwise they are calibrated on the held-out rows
        that also ended training and set the temperature: coverage is then approximate.

        Args:
            X: A table.
            level: Probability with which a set contains the true class.

        Returns:
            Whether each class is in the set, (n, classes), in the order of `classes_`.

        Raises:
            ValueError: If no rows, or too few for the level, were held out.
        """
        prediction = self.predictive(X)
        if self.conformal_scores_ is None:
            raise ValueError(
                "predict_set: no rows were held out. Set validation_fraction or conformal_fraction "
                "above 0, and fit again."
            )
        return regions(prediction, torch.from_numpy(self.conformal_scores_), level).members.numpy()

    def predictive(self, X: Any) -> ClassPredictive:
        """Return the predictive distribution for a table: everything that `tacit.predict` gives.

        The functions are drawn with the seed of training: they are the same in each call.
        """
        return cast(ClassPredictive, super().predictive(X))

    def _read_targets(self, y: Any) -> tuple[NDArray[Any], NDArray[np.int64]]:
        y = validate_data(self, X="no_validation", y=y)
        check_classification_targets(y)
        self.classes_, labels = np.unique(y, return_inverse=True)
        count = len(self.classes_)
        if count < 2:
            raise ValueError(
                "VariationalClassifier: expected labels of at least 2 classes, received "
                f"{count} class{'' if count else 'es'}."
            )
        return labels, labels

    def _likelihood(self, targets: NDArray[Any]) -> tuple[Likelihood, int]:
        names = [str(label) for label in self.classes_.tolist()]
        return Categorical(class_names=names), len(names)

    def _calibrate(self, validation: Part, conformal: Part) -> None:
        if validation is not None:
            generator = torch.Generator().manual_seed(self.seed_)
            calibrate(self.model_, validation, samples=self.samples, generator=generator)
        part = conformal or validation
        self.conformal_scores_ = None if part is None else self._scores(*part)
