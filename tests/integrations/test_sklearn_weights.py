"""Weights of rows in the estimators for scikit-learn."""

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import load_diabetes, load_iris
from sklearn.model_selection import GridSearchCV

from tacit import Categorical, Gaussian, HeteroscedasticStudentT
from tacit.integrations.sklearn import VariationalClassifier, VariationalRegressor
from tacit.integrations.sklearn.weights import (
    WeightedCategorical,
    WeightedGaussian,
    WeightedStudentT,
    in_proportion,
    with_weights,
)

SMALL = {"epochs": 20, "hidden": (16,), "random_state": 0}


def iris(seed=0):
    x, y = load_iris(return_X_y=True)
    return x, y, np.random.default_rng(seed).integers(0, 4, len(x)).astype(float)


def likelihoods():
    labels = torch.tensor([0, 2, 1, 1, 0])
    numbers = torch.randn(5, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    gaussian, weighted = Gaussian(), WeightedGaussian()
    student, weighted_student = HeteroscedasticStudentT(), WeightedStudentT()
    for each in (gaussian, weighted, student, weighted_student):
        each.set_units(torch.tensor([1.0, 2.0]), torch.tensor([3.0, 0.5]))
    return [
        (Categorical(), WeightedCategorical(), labels, 3),
        (gaussian, weighted, numbers, 2),
        (Gaussian(), WeightedGaussian(), numbers[:, 0], 1),
        (student, weighted_student, numbers, 4),
        (HeteroscedasticStudentT(), WeightedStudentT(), numbers[:, 0], 2),
    ]


@pytest.mark.parametrize(("plain", "weighted", "targets", "size"), likelihoods())
def test_weights_in_the_loss_are_repetitions(plain, weighted, targets, size):
    weights = np.array([1.0, 3.0, 0.0, 2.0, 4.0])
    generator = torch.Generator().manual_seed(0)
    outputs = torch.randn(5, size, generator=generator, dtype=torch.float64, requires_grad=True)
    losses = [
        weighted.training_loss(outputs, with_weights(targets, weights)),
        plain.training_loss(
            *(part[np.repeat(np.arange(5), weights.astype(int))] for part in (outputs, targets))
        ),
    ]
    torch.testing.assert_close(losses[0], losses[1])
    gradients = [torch.autograd.grad(loss, outputs)[0] for loss in losses]
    torch.testing.assert_close(*gradients)
    assert not gradients[0][2].any()


def test_scale_of_training_rows_counts_weights():
    outputs = torch.zeros(3, 4, 1)
    targets = torch.tensor([1.0, 1.0, 5.0, 5.0])
    found, expected = WeightedGaussian(), Gaussian()
    found.fit_scale(outputs, with_weights(targets, np.array([2.0, 2.0, 1e-9, 1e-9])))
    expected.fit_scale(outputs, torch.ones(4))
    torch.testing.assert_close(found.scale, expected.scale)


@pytest.mark.parametrize("seed", range(5))
def test_rows_in_proportion(seed):
    weights = np.random.default_rng(seed).gamma(1.0, size=37)
    counts = np.bincount(in_proportion(weights), minlength=37)
    assert counts.sum() == 37
    assert (np.abs(counts - 37 * weights / weights.sum()) < 1).all()
    assert (in_proportion(np.full(37, 0.3)) == np.arange(37)).all()
    assert len(in_proportion(np.empty(0))) == 0


@pytest.mark.parametrize("kind", [VariationalClassifier, VariationalRegressor])
def test_rows_of_weight_0_have_no_influence(kind):
    x, y, weights = iris()
    kept = weights > 0
    nonsense = np.where(kept[:, None], x, 1e6)
    first = kind(**SMALL).fit(nonsense, np.where(kept, y, 7), weights)
    second = kind(**SMALL).fit(x[kept], y[kept], weights[kept])
    assert (first.predict(x) == second.predict(x)).all()
    assert first.history_.epochs[-1]["loss"] == second.history_.epochs[-1]["loss"]


@pytest.mark.parametrize("kind", [VariationalClassifier, VariationalRegressor])
def test_equal_weights_are_none(kind):
    x, y, _ = iris()
    predictions = [
        kind(**SMALL).fit(x, y, weights).predict(x) for weights in (None, np.full(len(x), 3.0))
    ]
    assert (predictions[0] == predictions[1]).all()


def test_weights_move_the_boundary_and_the_noise():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 1))
    noisy = np.arange(400) % 2 == 0
    y = x[:, 0] + np.where(noisy, 2.0, 0.1) * rng.normal(size=400)
    scales = [
        VariationalRegressor(**SMALL).fit(x, y, np.where(noisy, a, b)).predictive(x).std.mean()
        for a, b in ((1, 50), (50, 1))
    ]
    assert scales[0] < 0.5 < 1.5 < scales[1]
    labels = rng.integers(0, 2, 400)  # nothing to learn but the share of the classes
    probs = VariationalClassifier(**SMALL).fit(x, labels, 1.0 + 8 * labels).predict_proba(x)
    share = (9 * labels).sum() / (1 + 8 * labels).sum()
    assert abs(probs[:, 1].mean() - share) < 0.05


@pytest.mark.parametrize("targets", [1, 2])
@pytest.mark.parametrize("validation", [0.0, 0.2])
def test_regression_with_weights(tmp_path, targets, validation):
    x, y = load_diabetes(return_X_y=True)
    y = np.where(y > np.median(y), 1.0, -1.0)  # mean 0 and standard deviation 1 already
    y = y if targets == 1 else np.stack([y, 100 * y], 1)
    weights = np.random.default_rng(0).uniform(0, 2, len(x))
    regressor = VariationalRegressor(**SMALL, validation_fraction=validation)
    regressor.set_params(conformal_fraction=0.2).fit(x, y, sample_weight=weights)
    assert type(regressor.model_.likelihood) is HeteroscedasticStudentT
    assert regressor.predict(x).shape == y.shape
    assert regressor.score(x, y, sample_weight=weights) > 0.2
    loaded = VariationalRegressor.load(regressor.save(tmp_path / "weighted.safetensors"))
    assert (loaded.predict(x) == regressor.predict(x)).all()
    low, high = loaded.predict_interval(x)
    assert 0.8 < ((low <= y) & (y <= high)).mean() < 0.99


def test_weights_with_tables_and_tools():
    x, y, weights = iris()
    frame = pd.DataFrame(x, columns=list("abcd")).assign(kind=np.where(y > 0, "x", None))
    classifier = VariationalClassifier(**SMALL).fit(frame, y, sample_weight=pd.Series(weights))
    assert list(classifier.feature_names_in_) == ["a", "b", "c", "d", "kind"]
    assert classifier.predict_set(frame, level=0.8).shape == (150, 3)
    search = GridSearchCV(clone(classifier), {"lr": [0.01, 0.03]}, cv=2)
    assert search.fit(frame, y, sample_weight=weights).best_score_ > 0.5
    calibrated = CalibratedClassifierCV(VariationalClassifier(**SMALL), cv=2)
    assert calibrated.fit(x, y, sample_weight=weights).score(x, y) > 0.8


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (np.zeros(150), "[Ww]eight"),
        (-np.ones(150), "[Nn]egative"),
        (np.ones(3), "sample_weight"),
        (np.full(150, np.nan), "NaN"),
    ],
)
def test_bad_weights(weights, message):
    x, y, _ = iris()
    with pytest.raises(ValueError, match=message):
        VariationalClassifier(**SMALL).fit(x, y, weights)
