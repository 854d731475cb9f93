"""Estimators for scikit-learn: its own checks, its tools, tables, sets and intervals, files."""

import pickle
import random
import subprocess
import sys

import joblib
import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import load_iris, make_regression
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks
from torch import nn

import tacit
from tacit.data.splits import stratified
from tacit.integrations.sklearn import VariationalClassifier, VariationalRegressor
from tacit.training import loop

SMALL = {"epochs": 20, "hidden": (16,), "random_state": 0}


def not_for_batches(estimator):
    """Return the check that weights equal copies of rows, which batches and splits rule out.

    Copies of a row are in different batches. For weighted losses see test_sklearn_weights.py.
    """
    why = "copies of a row are in different batches, and held out separately"
    return {"check_sample_weight_equivalence_on_dense_data": why}


@parametrize_with_checks(
    [VariationalClassifier(**SMALL), VariationalRegressor(**SMALL)],
    expected_failed_checks=not_for_batches,
)
def test_checks_of_scikit_learn(estimator, check):
    check(estimator)


def iris():
    return load_iris(return_X_y=True)


def numbers(count=200, targets=1):
    return make_regression(count, 4, n_informative=4, n_targets=targets, noise=5, random_state=0)


def table(count=200):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "area": rng.normal(70, 20, count),
            "city": rng.choice(["Oslo", "Rome"], count),
            "built": pd.Timestamp("1950-01-01")
            + pd.to_timedelta(rng.integers(0, 25_000, count), unit="D"),
        }
    )
    rent = 10 * frame["area"] + 500 * (frame["city"] == "Oslo") + rng.normal(0, 20, count)
    frame.loc[rng.random(count) < 0.1, "area"] = np.nan
    return frame, rent


def trained(**settings):
    return VariationalClassifier(**{**SMALL, **settings}).fit(*iris())


def test_defaults_need_no_settings(monkeypatch):
    monkeypatch.setattr(loop, "MOST_STEPS", 500)
    monkeypatch.setattr(loop, "MOST_EPOCHS", 1)
    x, y = iris()
    classifier = VariationalClassifier(random_state=0).fit(x * [1, 1e4, 1e-4, 1] + 1e3, y)
    assert classifier.score(x * [1, 1e4, 1e-4, 1] + 1e3, y) > 0.9
    x, y = numbers()
    regressor = VariationalRegressor(random_state=0).fit(x, 1e3 * y - 1e6)
    assert regressor.score(x, 1e3 * y - 1e6) > 0.95
    assert len(regressor.history_) <= 10


@pytest.mark.parametrize(
    "labels", [["no", "yes"], [False, True], [-7, 3], [0.0, 2.0], ["a", "b", "c"]], ids=str
)
def test_labels_of_any_type(labels):
    x, y = iris()
    y = np.array(labels)[y % len(labels)]
    for given in (y, pd.Series(y)):
        classifier = VariationalClassifier(**SMALL).fit(x, given)
        predicted = classifier.predict(x)
        assert list(classifier.classes_) == labels
        assert set(predicted) <= set(labels)
        assert predicted.dtype == classifier.classes_.dtype


def test_probabilities_are_those_of_the_predictive():
    classifier = trained()
    x, _ = iris()
    prediction = classifier.predictive(x)
    np.testing.assert_allclose(classifier.predict_proba(x), prediction.probs.numpy())
    assert prediction.class_names == ("0", "1", "2")
    assert len(prediction.logits) == 32
    classifier.set_params(samples=4)
    assert len(classifier.predictive(x).logits) == 4


def test_the_temperature_is_calibrated_on_held_out_rows():
    assert trained().model_.likelihood.temperature != 1
    assert trained(validation_fraction=0).model_.likelihood.temperature == 1


def test_several_targets():
    x, y = numbers(targets=2)
    y = y * [1, 1000]
    regressor = VariationalRegressor(**{**SMALL, "epochs": 60}).fit(x, y)
    mean, std = regressor.predict(x, return_std=True)
    low, high = regressor.predict_interval(x, level=0.5)
    assert mean.shape == std.shape == low.shape == high.shape == (200, 2)
    assert regressor.score(x, y) > 0.9
    assert std[:, 1].mean() > 100 * std[:, 0].mean()
    np.testing.assert_allclose(mean, regressor.predictive(x).mean.numpy())
    np.testing.assert_allclose(std, regressor.predictive(x).std.numpy())


def test_intervals_are_those_of_the_predictive():
    x, y = numbers()
    regressor = VariationalRegressor(**SMALL).fit(x, y)
    expected = regressor.predictive(x).interval(0.8)
    for bound, wanted in zip(regressor.predict_interval(x, 0.8), expected, strict=True):
        np.testing.assert_allclose(bound, wanted.numpy())


def rows_for_conformal(estimator, groups):
    return stratified(groups, estimator.conformal_fraction, 20, estimator.seed_)


def test_conformal_intervals_are_those_of_tacit():
    x, y = numbers()
    regressor = VariationalRegressor(**SMALL, conformal_fraction=0.25).fit(x, y)
    rows = rows_for_conformal(regressor, np.zeros(200, dtype=int))
    assert rows.sum() == 50
    intervals = tacit.conformal(regressor.predictive(x[rows]), y[rows], 0.8)
    expected = intervals(regressor.predictive(x))
    low, high = regressor.predict_interval(x, 0.8)
    np.testing.assert_allclose(low, expected.low.numpy(), rtol=1e-6)
    np.testing.assert_allclose(high, expected.high.numpy(), rtol=1e-6)
    assert ((low <= y) & (y <= high))[rows].mean() >= 0.8


@pytest.mark.parametrize("fraction", [0.0, 0.2])
def test_conformal_sets_are_those_of_tacit(fraction):
    x, y = iris()
    classifier = trained(conformal_fraction=fraction, epochs=3)
    rows = (
        rows_for_conformal(classifier, y)
        if fraction
        else stratified(y, classifier.validation_fraction, 20, classifier.seed_)
    )
    sets = tacit.conformal(classifier.predictive(x[rows]), y[rows], 0.8)
    expected = sets(classifier.predictive(x)).members.numpy()
    found = classifier.predict_set(x, level=0.8)
    assert found.dtype == bool
    np.testing.assert_array_equal(found, expected)
    assert found[rows][np.arange(rows.sum()), y[rows]].mean() >= 0.8


def test_sets_need_held_out_rows():
    classifier = trained(validation_fraction=0)
    with pytest.raises(ValueError, match="no rows were held out. Set validation_fraction"):
        classifier.predict_set(iris()[0])
    with pytest.raises(ValueError, match="a level of 0.99 needs at least 99 calibration examples"):
        trained().predict_set(iris()[0], level=0.99)


def test_rows_are_held_out_class_by_class():
    groups = np.repeat([0, 1, 2, 3], [100, 50, 10, 1])
    held_out = stratified(groups, 0.2, 20, seed=0)
    counts = np.bincount(groups[held_out], minlength=4)
    assert counts.tolist() == [20, 10, 2, 0]
    assert not np.array_equal(held_out, stratified(groups, 0.2, 20, seed=1))
    assert stratified(np.zeros(100, dtype=int), 0.1, 20, seed=0).sum() == 20  # at least 20,
    assert stratified(np.zeros(40, dtype=int), 0.1, 20, seed=0).sum() == 10  # but at most a quarter
    assert stratified(np.arange(5), 0.5, 20, seed=0).sum() == 0  # every class stays in training


def test_the_result_depends_on_the_random_state_alone():
    x, _ = iris()
    first, second = trained(), trained()
    torch.manual_seed(5)
    np.testing.assert_array_equal(first.predict_proba(x), second.predict_proba(x))
    np.testing.assert_array_equal(first.predict_proba(x), first.predict_proba(x))
    other = trained(random_state=1)
    assert not np.allclose(first.predict_proba(x), other.predict_proba(x))
    generators = [trained(random_state=np.random.RandomState(3), epochs=2) for _ in range(2)]
    np.testing.assert_array_equal(*(each.predict_proba(x) for each in generators))


def test_global_random_states_stay_as_they_are():
    def states():
        return torch.get_rng_state().tolist(), np.random.get_state()[1:3], random.getstate()

    before = states()
    classifier = trained(epochs=2)
    classifier.predict_set(iris()[0])
    for a, b in zip(before, states(), strict=True):
        assert str(a) == str(b)


def test_threads_do_not_disturb_each_other():
    x, y = numbers()
    regressor = VariationalRegressor(**{**SMALL, "epochs": 5})
    with joblib.parallel_backend("threading"):
        together = cross_val_score(regressor, x, y, cv=3, n_jobs=2)
    np.testing.assert_array_equal(together, cross_val_score(regressor, x, y, cv=3))


def test_tables_with_any_kind_of_column():
    frame, rent = table()
    regressor = VariationalRegressor(**{**SMALL, "epochs": 60}).fit(frame, rent)
    known = frame["area"].notna()
    assert regressor.score(frame[known], rent[known]) > 0.8
    assert list(regressor.feature_names_in_) == ["area", "city", "built"]
    assert regressor.n_features_in_ == 3
    assert regressor.encoder_.features == [
        *("area", "area missing", "city=Oslo", "city=Rome", "built"),
    ]
    unseen = frame[:3].assign(city=["Graz", None, "Rome"])
    assert np.isfinite(regressor.predict(unseen)).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda frame: frame[["city", "area", "built"]], "must be in the same order"),
        (lambda frame: frame.drop(columns="city"), "seen at fit time, yet now missing:\n- city"),
        (lambda frame: frame.assign(more=1), "unseen at fit time:\n- more"),
    ],
)
def test_other_columns_than_in_fit(change, message):
    frame, rent = table()
    regressor = VariationalRegressor(**{**SMALL, "epochs": 1}).fit(frame, rent)
    with pytest.raises(ValueError, match=message):
        regressor.predict(change(frame))


def test_another_kind_of_values_than_in_fit():
    frame, rent = table()
    regressor = VariationalRegressor(**{**SMALL, "epochs": 1}).fit(frame, rent)
    with pytest.raises(TypeError, match="column 'area': expected number values, received 'wide'"):
        regressor.predict(frame.assign(area="wide"))


def test_arrays_with_missing_values():
    x, y = numbers()
    gaps = np.where(np.random.default_rng(0).random(x.shape) < 0.1, np.nan, x)
    regressor = VariationalRegressor(**{**SMALL, "epochs": 40}).fit(gaps, y)
    assert regressor.score(gaps, y) > 0.7
    assert len(regressor.encoder_.features) == 8
    with pytest.raises(ValueError, match="Input X contains infinity"):
        regressor.predict(np.full((1, 4), np.inf))


def test_arrays_and_frames_are_the_same_by_position():
    x, y = numbers()
    frame = pd.DataFrame(x, columns=list("abcd"))
    expected = VariationalRegressor(**SMALL).fit(x, y)
    regressor = VariationalRegressor(**SMALL).fit(frame, y)
    np.testing.assert_array_equal(regressor.predict(frame), expected.predict(x))
    with pytest.warns(UserWarning, match="X does not have valid feature names"):
        np.testing.assert_array_equal(regressor.predict(x), expected.predict(x))
    with pytest.warns(UserWarning, match="fitted without feature names"):
        np.testing.assert_array_equal(expected.predict(frame), expected.predict(x))


class Line(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.hidden, self.last = nn.Linear(inputs, 8), nn.Linear(8, outputs)

    def forward(self, x):
        return self.last(torch.tanh(self.hidden(x)))


def test_any_network():
    x, y = iris()
    net = Line(4, 3)
    before = net.last.weight.clone()
    classifier = trained(module=net)
    assert torch.equal(net.last.weight, before)
    assert isinstance(classifier.model_.module, Line)
    assert classifier.predict_proba(x).dtype == np.float64
    np.testing.assert_allclose(classifier.predict_proba(x).sum(1), 1, rtol=1e-14)
    made = trained(module=Line)
    assert made.score(x, y) > 0.7
    np.testing.assert_array_equal(made.predict_proba(x), trained(module=Line).predict_proba(x))
    regressor = VariationalRegressor(**SMALL, module=Line).fit(*numbers())
    assert regressor.predict(numbers()[0]).dtype == np.float64


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"module": "MLP"}, TypeError, "module: expected an nn.Module, or a function"),
        ({"module": lambda inputs, outputs: None}, TypeError, "module: expected an nn.Module"),
        ({"validation_fraction": 1.5}, ValueError, "validation_fraction: expected a number from 0"),
        ({"validation_fraction": 0.5, "conformal_fraction": 0.5}, ValueError, "a sum below 1"),
        ({"validation_fraction": 0, "epochs": None}, ValueError, "epochs: expected a number of"),
        ({"samples": 0}, ValueError, "samples: expected an integer of at least 1"),
        ({"hidden": 3}, TypeError, r"MLP\(hidden\): expected a list of widths"),
    ],
)
def test_settings_that_are_refused(settings, error, message):
    with pytest.raises(error, match=message):
        trained(**settings)


def test_targets_that_are_refused():
    x, y = iris()
    with pytest.raises(ValueError, match="at least 2 classes, received 1 class"):
        VariationalClassifier(**SMALL).fit(x, y * 0)
    with pytest.raises(ValueError, match="expected at least 2 rows, received n_samples = 1"):
        VariationalRegressor(**SMALL).fit(x[:1], y[:1])
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        VariationalRegressor(**SMALL).fit(x[:-1], y)


def test_in_pipelines_and_searches():
    x, y = iris()
    pipeline = make_pipeline(StandardScaler(), VariationalClassifier(**SMALL))
    assert pipeline.fit(x, y).score(x, y) > 0.7
    search = GridSearchCV(VariationalClassifier(**SMALL), {"epochs": [1, 15]}, cv=2).fit(x, y)
    assert search.best_params_ == {"epochs": 15}
    calibrated = CalibratedClassifierCV(VariationalClassifier(**SMALL), cv=2).fit(x, y)
    assert calibrated.score(x, y) > 0.7


@pytest.mark.slow
def test_in_several_processes():
    x, y = iris()
    alone, together = (
        GridSearchCV(trained(epochs=5), {"lr": [0.01, 0.1]}, cv=2, n_jobs=n).fit(x, y)
        for n in (None, 2)
    )
    np.testing.assert_allclose(
        together.cv_results_["mean_test_score"], alone.cv_results_["mean_test_score"]
    )


def test_in_mapie():
    from mapie.classification import SplitConformalClassifier
    from mapie.regression import SplitConformalRegressor

    x, y = numbers()
    regressor = VariationalRegressor(**SMALL).fit(x[:100], y[:100])
    wrapped = SplitConformalRegressor(regressor, confidence_level=0.8, prefit=True)
    low, high = wrapped.conformalize(x[100:], y[100:]).predict_interval(x)[1][:, :, 0].T
    assert ((low <= y) & (y <= high))[100:].mean() >= 0.8
    x, y = iris()
    wrapped = SplitConformalClassifier(trained(), confidence_level=0.8, prefit=True)
    members = wrapped.conformalize(x, y).predict_set(x)[1]
    assert members.shape == (150, 3, 1)


def test_clones_and_pickles(tmp_path):
    x, _ = iris()
    classifier = trained(module=Line)
    copy = clone(classifier)
    assert copy.get_params() == classifier.get_params()
    with pytest.raises(NotFittedError):
        copy.predict(x)
    joblib.dump(classifier, tmp_path / "classifier")
    expected = classifier.predict_proba(x)
    for found in (joblib.load(tmp_path / "classifier"), pickle.loads(pickle.dumps(classifier))):
        np.testing.assert_array_equal(found.predict_proba(x), expected)


@pytest.mark.parametrize(
    "labels",
    [
        np.array(["no", "yes", "so"]),
        np.array([1, 2, 5]),
        np.array([1, 2, 5], dtype=np.int8),
        np.array([0, 1, 2.5e9], dtype=np.float32),
        np.array([False, True, True]),
    ],
    ids=str,
)
def test_saved_classifiers(tmp_path, labels):
    x, y = iris()
    classifier = VariationalClassifier(**SMALL).fit(x, labels[y])
    classifier.save(tmp_path / "classifier.safetensors")
    found = VariationalClassifier.load(tmp_path / "classifier.safetensors")
    np.testing.assert_array_equal(found.predict_proba(x), classifier.predict_proba(x))
    np.testing.assert_array_equal(found.predict_set(x), classifier.predict_set(x))
    np.testing.assert_array_equal(found.predict(x), classifier.predict(x))
    assert found.classes_.dtype.kind == labels.dtype.kind
    assert found.get_params() == classifier.get_params()


def test_labels_of_pandas_are_saved(tmp_path):
    x, y = iris()
    classifier = VariationalClassifier(**SMALL).fit(x, pd.Series(y).map(str).astype("category"))
    found = VariationalClassifier.load(classifier.save(tmp_path / "file"))
    assert found.predict(x[:1])[0] == "0"
    assert found.classes_.dtype == object


def test_saved_regressors(tmp_path):
    frame, rent = table()
    y = np.stack([rent, -rent], 1)
    settings = {**SMALL, "conformal_fraction": 0.3, "epochs": np.int64(5)}
    regressor = VariationalRegressor(**settings).fit(frame, y)
    found = VariationalRegressor.load(regressor.save(tmp_path / "file.safetensors"))
    for level in (0.5, 0.9):
        np.testing.assert_array_equal(
            found.predict_interval(frame, level), regressor.predict_interval(frame, level)
        )
    assert found.encoder_ == regressor.encoder_
    assert list(found.feature_names_in_) == list(frame.columns)
    with pytest.raises(ValueError, match="same order"):
        found.predict(frame[["city", "area", "built"]])
    model = tacit.load(tmp_path / "file.safetensors")
    assert len(model.inputs.mean) == len(found.encoder_.features)


def test_saved_networks_of_tacit(tmp_path):
    classifier = trained(module=tacit.models.MLP(4, [8], 3))
    found = VariationalClassifier.load(classifier.save(tmp_path / "file"))
    assert isinstance(found.module, tacit.models.MLP)
    x, y = iris()
    np.testing.assert_array_equal(found.predict_proba(x), classifier.predict_proba(x))
    assert found.fit(x, y).score(x, y) > 0.7


def test_what_can_not_be_saved(tmp_path):
    with pytest.raises(TypeError, match="expected a network of tacit.models, received Line"):
        trained(module=Line).save(tmp_path / "file")
    with pytest.raises(NotFittedError):
        VariationalClassifier().save(tmp_path / "file")
    classifier = trained()
    classifier.classes_ = np.array(["2020", "2021", "2022"], dtype="datetime64[Y]")
    with pytest.raises(TypeError, match="labels that are strings, numbers or booleans"):
        classifier.save(tmp_path / "file")


def test_files_of_others_and_damaged_files(tmp_path):
    classifier = trained()
    path = classifier.save(tmp_path / "file")
    with pytest.raises(ValueError, match="holds a VariationalClassifier; use Var.*Classifier.load"):
        VariationalRegressor.load(path)
    with pytest.raises(FileNotFoundError):
        VariationalRegressor.load(tmp_path / "other")
    tacit.save(classifier.model_, path)
    with pytest.raises(ValueError, match="holds a model without an estimator; use tacit.load"):
        VariationalClassifier.load(path)


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"classes": None}, "its model doesn't fit its estimator"),
        ({"classes": {"kind": "int64", "labels": [0, 1]}}, "its model doesn't fit its estimator"),
        ({"classes": {"kind": "int64", "labels": [0, 1, []]}}, "expected an integer"),
        ({"classes": {"kind": "int64", "labels": [0, 1, "x"]}}, "expected an integer"),
        ({"feature_names": ["a"]}, "its model doesn't fit its estimator"),
        ({"scores": [[0.1], [0.1, 0.2]]}, "expected rows of the same length"),
        ({"scores": [-1.0]}, "expected a number from 0"),
        ({"seed": -1}, "seed.*expected an integer"),
        ({"table": {"columns": []}}, "expected columns with distinct names"),
    ],
)
def test_descriptions_in_files_are_checked(tmp_path, entries, message):
    classifier = trained(epochs=1)
    given = classifier.model_
    path = classifier.save(tmp_path / "file")
    estimator = tacit.load(path).preprocessing["estimator"]
    tacit.save(given, path, preprocessing={"estimator": {**estimator, **entries}})
    with pytest.raises(ValueError, match=message):
        VariationalClassifier.load(path)


def test_tacit_does_not_import_scikit_learn():
    code = "import sys, tacit; tacit.fit, tacit.integrations; assert 'sklearn' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
