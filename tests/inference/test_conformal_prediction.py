"""Conformal sets and intervals: coverage in finite samples, and MAPIE's numbers."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from torch import nn
from torch.testing import assert_close

import tacit
from nets import generator
from tacit.inference.conformal_prediction import class_scores, threshold
from tacit.likelihood.predictive import BinaryPredictive, ClassPredictive, RegressionPredictive


def classes(count, seed=0, functions=3, number=4, names=None):
    """Return predictions and labels that agree with them only roughly."""
    random = generator(seed)
    logits = 2 * torch.randn(functions, count, number, generator=random)
    labels = torch.distributions.Categorical(logits=0.5 * logits.mean(0))
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return ClassPredictive(logits, class_names=names), labels.sample()


def numbers(count, seed=0, shape=()):
    """Return predictions that are too narrow, and targets."""
    random = generator(seed)
    means = torch.randn(5, count, *shape, generator=random, dtype=torch.float64)
    scales = 0.2 + torch.rand(5, count, *shape, generator=random, dtype=torch.float64)
    noise = torch.randn(count, *shape, generator=random, dtype=torch.float64)
    return RegressionPredictive(means, scales), means.mean(0) + 2 * noise


def coverages(make, calibrate, splits=300, calibration=29, new=20):
    """Return the coverage of new examples for each of many calibration sets."""
    found = []
    for seed in range(splits):
        prediction, targets = make(calibration + new, seed)
        rule = calibrate(prediction[:calibration], targets[:calibration])
        found.append(rule(prediction[calibration:]).coverage(targets[calibration:]))
    return torch.tensor(found)


def within(found, low, high):
    """Return whether a mean is in an interval, within 4 standard errors."""
    error = found.std() / len(found) ** 0.5
    return low - 4 * error <= found.mean() <= high + 4 * error


@pytest.mark.parametrize("score", ["lac", "aps", "raps"])
def test_sets_contain_the_label_with_the_stated_probability(score):
    found = coverages(
        classes,
        lambda p, y: tacit.conformal(
            p, y, 0.8, score=score, free=1 if score == "raps" else None, allow_empty=True
        ),
    )
    # Between the level and 1 / (n + 1) more, if scores have no ties.
    assert within(found, 0.8, 0.8 + 1 / 30)


def test_sets_that_are_never_empty_contain_the_label_more_often():
    prediction, labels = classes(500)
    strict = tacit.conformal(prediction, labels, 0.3, allow_empty=True)(prediction)
    kind = tacit.conformal(prediction, labels, 0.3)(prediction)
    assert strict.size.min() == 0
    assert kind.size.min() == 1
    assert (kind.members >= strict.members).all()
    assert kind.members.gather(-1, prediction.label[:, None]).all()


@pytest.mark.parametrize("score", ["std", "quantiles"])
def test_intervals_contain_the_target_with_the_stated_probability(score):
    found = coverages(numbers, lambda p, y: tacit.conformal(p, y, 0.8, score=score))
    assert within(found, 0.8, 0.8 + 1 / 30)


@pytest.mark.parametrize("score", ["std", "quantiles"])
def test_boxes_contain_all_targets_of_an_example(score):
    def several(count, seed):
        return numbers(count, seed, (3,))

    found = coverages(several, lambda p, y: tacit.conformal(p, y, 0.8, score=score, joint=True))
    assert within(found, 0.8, 0.8 + 1 / 30)
    single = tacit.conformal(*several(200, 0), 0.8, score=score)
    assert single.thresholds.shape == (3,)
    box = tacit.conformal(*several(200, 0), 0.8, score=score, joint=True)
    assert (box.thresholds > single.thresholds).all()


@pytest.mark.parametrize("scale", [0.3, 0.0])
@pytest.mark.parametrize("score", ["std", "quantiles"])
def test_equal_errors_do_not_fall_out_of_intervals_by_rounding(score, scale):
    found = []
    for seed in range(30):
        mean = torch.randn(1, 1, generator=generator(seed)).expand(1, 40)
        prediction = RegressionPredictive(mean, torch.full_like(mean, scale))
        targets = torch.arange(40) % 3
        rule = tacit.conformal(prediction, targets, score=score)
        again = RegressionPredictive(mean * (1 + 1e-7), prediction.scales)
        found.append(rule(again).coverage(targets))
    assert min(found) >= 0.9


@pytest.mark.parametrize("score", ["lac", "aps", "raps"])
def test_equal_scores_do_not_fall_out_of_sets_by_rounding(score):
    logits = torch.randn(1, 1, 3, generator=generator()).expand(1, 40, 3)
    targets = torch.arange(40) % 3
    rule = tacit.conformal(ClassPredictive(logits), targets, score=score)
    for change in (1e-7, -1e-7):
        again = ClassPredictive(logits * (1 + change))
        assert rule(again).coverage(targets) >= 0.9


def test_by_class_the_probability_holds_for_each_class():
    def calibrate(prediction, labels):
        return tacit.conformal(prediction, labels, 0.8, by_class=True, allow_empty=True)

    inside, plain = [], []
    for seed in range(200):
        prediction, labels = classes(300, seed)
        labels[labels == 3] = 0  # class 0 is often mistaken for class 3
        prediction = ClassPredictive(prediction.logits[..., :3])
        for kind, rule in (
            (inside, calibrate(prediction[:200], labels[:200])),
            (plain, tacit.conformal(prediction[:200], labels[:200], 0.8, allow_empty=True)),
        ):
            sets = rule(prediction[200:])
            own = labels[200:] == 0
            kind.append(sets.members[own, 0].double().mean())
    assert within(torch.stack(inside), 0.8, 0.8 + 1 / 40)
    assert not within(torch.stack(plain), 0.8, 1.0)


def test_several_labels_per_example_have_a_threshold_each():
    prediction, labels = classes(60, functions=2)
    both = ClassPredictive(torch.stack([prediction.logits, prediction.logits.flip(-1)], 2))
    targets = torch.stack([labels, labels], 1)
    rule = tacit.conformal(both, targets)
    assert rule.thresholds.shape == (2, 1)
    for position, logits in enumerate((prediction.logits, prediction.logits.flip(-1))):
        alone = tacit.conformal(ClassPredictive(logits), labels)
        assert_close(alone.thresholds, rule.thresholds[position])
        members = alone(ClassPredictive(logits)).members
        assert torch.equal(members, rule(both).members[:, position])


def test_by_class_several_labels_have_a_threshold_for_each_class_and_position():
    prediction, labels = classes(200, functions=2)
    both = ClassPredictive(torch.stack([prediction.logits, prediction.logits.flip(-1)], 2))
    targets = torch.stack([labels, labels], 1)
    rule = tacit.conformal(both, targets, by_class=True)
    assert rule.thresholds.shape == (2, 4)
    for position, logits in enumerate((prediction.logits, prediction.logits.flip(-1))):
        alone = tacit.conformal(ClassPredictive(logits), labels, by_class=True)
        assert_close(alone.thresholds, rule.thresholds[position])
        members = alone(ClassPredictive(logits)).members
        assert torch.equal(members, rule(both).members[:, position])


def test_a_class_that_is_rare_at_a_position_is_in_all_sets_there():
    prediction, labels = classes(200, names=("ant", "bee", "cat", "dog"))
    both = replace(prediction, logits=torch.stack([prediction.logits] * 2, 2))
    targets = torch.stack([labels, labels.masked_fill(labels == 1, 0)], 1)
    sets = tacit.conformal(both, targets, by_class=True)(both)
    assert sets.members[:, 1, 1].all()
    assert not sets.members[:, 0, 1].all()
    targets[:, 0] = targets[:, 1]
    with pytest.raises(ValueError, match="examples of class bee at some position, received 0"):
        tacit.conformal(both, targets, by_class=True)


def test_binary_predictions_have_sets_of_two_classes():
    logits = torch.randn(3, 50, generator=generator())
    labels = (logits.mean(0) + torch.randn(50, generator=generator(1)) > 0).long()
    sets = tacit.conformal(BinaryPredictive(logits), labels)(BinaryPredictive(logits))
    assert sets.members.shape == (50, 2)
    assert sets.coverage(labels) >= 0.9


@pytest.mark.parametrize("dtype", [torch.bool, torch.float32])
def test_binary_targets_may_be_booleans_or_floats(dtype):
    prediction = BinaryPredictive(torch.randn(5, 40, generator=generator()))
    targets = torch.arange(40) % 2
    expected = tacit.conformal(prediction, targets)
    found = tacit.conformal(prediction, targets.to(dtype))
    assert_close(found.thresholds, expected.thresholds)
    sets = expected(prediction)
    assert sets.coverage(targets.to(dtype)) == sets.coverage(targets)
    with pytest.raises(ValueError, match="not whole"):
        tacit.conformal(prediction, torch.full((40,), 0.5))


@pytest.mark.parametrize("score", ["std", "quantiles"])
def test_boxes_do_not_depend_on_the_units_of_the_outputs(score):
    prediction, targets = numbers(100, shape=(2,))
    units = torch.tensor([1000.0, 0.01], dtype=torch.float64)
    other = RegressionPredictive(prediction.means * units, prediction.scales * units)
    box = tacit.conformal(prediction, targets, score=score, joint=True)(prediction)
    scaled = tacit.conformal(other, targets * units, score=score, joint=True)(other)
    assert_close(scaled.low, box.low * units)
    assert_close(scaled.high, box.high * units)


@pytest.mark.parametrize("score", ["std", "quantiles"])
def test_a_box_of_one_target_is_its_interval(score):
    prediction, targets = numbers(50)
    box, interval = (
        tacit.conformal(prediction, targets, score=score, joint=j)(prediction)
        for j in (True, False)
    )
    assert_close(box.low, interval.low)
    assert box.coverage(targets) == interval.coverage(targets)


def test_aps_and_raps_scores_by_their_definition():
    prediction, _ = classes(20, number=6)
    probs = prediction.probs.double()
    for b in range(20):
        for k in range(6):
            at_least = probs[b] >= probs[b, k]
            aps, rank = probs[b][at_least].sum(), int(at_least.sum())
            assert class_scores(prediction, "aps")[b, k].item() == pytest.approx(aps.item())
            raps = class_scores(prediction, "raps", penalty=0.1, free=2)[b, k].item()
            assert raps == pytest.approx(aps.item() + 0.1 * max(0, rank - 2))


class Probabilities(ClassifierMixin, BaseEstimator):
    """A classifier whose inputs are its probabilities."""

    def fit(self, X, y):
        self.classes_ = np.arange(4)
        return self

    def predict(self, X):
        return X.argmax(1)

    def predict_proba(self, X):
        return X


class Column(RegressorMixin, BaseEstimator):
    """A regressor that predicts one of its inputs."""

    def __init__(self, column=0):
        self.column = column

    def fit(self, X, y):
        self.fitted_ = True
        return self

    def predict(self, X):
        return X[:, self.column]


@pytest.mark.parametrize("level", [0.8, 0.9, 0.95])
def test_lac_sets_are_those_of_mapie(level):
    from mapie.classification import SplitConformalClassifier

    prediction, labels = classes(300)
    calibration, new = prediction[:150], prediction[150:]
    ours = tacit.conformal(calibration, labels[:150], level, allow_empty=True)(new)
    reference = SplitConformalClassifier(Probabilities().fit(None, None), confidence_level=level)
    probs = torch.softmax(prediction.log_probs.double(), -1).numpy()
    reference.conformalize(probs[:150], labels[:150].numpy())
    _, sets = reference.predict_set(probs[150:])
    assert np.array_equal(ours.members.numpy(), sets[:, :, 0])


@pytest.mark.parametrize("level", [0.8, 0.9])
def test_intervals_of_constant_width_are_those_of_mapie(level):
    from mapie.regression import SplitConformalRegressor

    prediction, targets = numbers(300)
    prediction = RegressionPredictive(
        prediction.mean[None], torch.full_like(prediction.mean, 0.7)[None]
    )
    ours = tacit.conformal(prediction[:150], targets[:150], level)(prediction[150:])
    reference = SplitConformalRegressor(Column().fit(None, None), confidence_level=level)
    X = prediction.mean[:, None].numpy()
    reference.conformalize(X[:150], targets[:150].numpy())
    _, intervals = reference.predict_interval(X[150:])
    assert_close(ours.low, torch.from_numpy(intervals[:, 0, 0]))
    assert_close(ours.high, torch.from_numpy(intervals[:, 1, 0]))


@pytest.mark.parametrize("level", [0.8, 0.9])
def test_intervals_in_units_of_the_standard_deviation_are_those_of_mapie(level):
    from mapie.conformity_scores import ResidualNormalisedScore
    from mapie.regression import SplitConformalRegressor

    prediction, targets = numbers(300)
    ours = tacit.conformal(prediction[:150], targets[:150], level)(prediction[150:])
    own = ResidualNormalisedScore(Column(1).fit(None, None), prefit=True, sym=True)
    reference = SplitConformalRegressor(
        Column().fit(None, None), confidence_level=level, conformity_score=own
    )
    X = torch.stack([prediction.mean, prediction.std], 1).numpy()
    reference.conformalize(X[:150], targets[:150].numpy())
    _, intervals = reference.predict_interval(X[150:])
    assert_close(ours.low, torch.from_numpy(intervals[:, 0, 0]))
    assert_close(ours.high, torch.from_numpy(intervals[:, 1, 0]))


@pytest.mark.parametrize("level", [0.8, 0.9])
def test_corrected_quantiles_are_those_of_mapie(level):
    from mapie.regression import ConformalizedQuantileRegressor

    prediction, targets = numbers(300)
    ours = tacit.conformal(prediction[:150], targets[:150], level, score="quantiles")
    X = torch.stack([*prediction.interval(level), prediction.mean], 1).numpy()
    reference = ConformalizedQuantileRegressor(
        [Column(i).fit(None, None) for i in range(3)], confidence_level=level, prefit=True
    )
    reference.conformalize(X[:150], targets[:150].numpy())
    _, intervals = reference.predict_interval(X[150:], symmetric_correction=True)
    found = ours(prediction[150:])
    assert_close(found.low, torch.from_numpy(intervals[:, 0, 0]))
    assert_close(found.high, torch.from_numpy(intervals[:, 1, 0]))


def test_the_threshold_is_an_order_statistic():
    scores = torch.arange(1.0, 10.0)
    assert threshold(scores, 0.9).item() == 9  # (9 + 1) 0.9 is 9, in spite of rounding
    assert threshold(scores, 0.5).item() == 5
    with pytest.raises(ValueError, match="level of 0.9 needs at least 9 calibration examples, rec"):
        threshold(scores[:8], 0.9)
    with pytest.raises(ValueError, match="needs at least 99 calibration examples, received 9"):
        threshold(scores, 0.99)


def test_a_class_without_calibration_examples_is_named():
    prediction, labels = classes(100, names=("ant", "bee", "cat", "dog"))
    labels[labels == 1] = 0
    with pytest.raises(ValueError, match="9 calibration examples of class bee, received 0"):
        tacit.conformal(prediction, labels, by_class=True)


def test_sets_and_intervals_show_what_they_are():
    prediction, labels = classes(100, names=("ant", "bee", "cat", "dog"))
    sets = tacit.conformal(prediction, labels)(prediction[:3])
    assert sets.label_names[0] == [
        name for name, inside in zip(sets.class_names, sets.members[0], strict=True) if inside
    ]
    assert "3 examples, level 0.9, mean size" in repr(sets)
    intervals = tacit.conformal(*numbers(50))(numbers(4)[0])
    assert "4 examples, intervals of level 0.9" in repr(intervals)
    assert (intervals.width > 0).all()


def test_any_method_and_data_form_will_do():
    x, y = torch.randn(60, 2), torch.randint(3, (60,))
    ensemble = tacit.methods.DeepEnsemble(2).fit(
        lambda: nn.Linear(2, 3), (x, y), epochs=1, lr=0.01, progress=False
    )
    prediction = tacit.predict(ensemble, x)
    sets = tacit.conformal(prediction, y.tolist())(prediction)
    assert sets.coverage(y.numpy()) >= 0.9


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda p, y, q, t: tacit.conformal(p, y, 1.0), ValueError, r"conformal\(level\)"),
        (lambda p, y, q, t: tacit.conformal(p, y, score="std"), ValueError, "expected lac, aps, r"),
        (lambda p, y, q, t: tacit.conformal(q, t, score="lac"), ValueError, "expected std, quant"),
        (lambda p, y, q, t: tacit.conformal(p, y[:9]), ValueError, "targets: expected 50 labels"),
        (lambda p, y, q, t: tacit.conformal(q, t[:9]), ValueError, "targets: expected the shape"),
        (lambda p, y, q, t: tacit.conformal(q, t * torch.nan), ValueError, "some are NaN"),
        (lambda p, y, q, t: tacit.conformal(p.probs, y), TypeError, "from tacit.predict"),
        (lambda p, y, q, t: tacit.conformal(p, y, joint=True), ValueError, "joint: applies"),
        (
            lambda p, y, q, t: tacit.conformal(q, t, by_class=True),
            ValueError,
            "classes only",
        ),
        (lambda p, y, q, t: tacit.conformal(q, t, penalty=1.0), ValueError, "classes only"),
        (lambda p, y, q, t: tacit.conformal(p, y, penalty=1.0), ValueError, 'score="raps" only'),
        (
            lambda p, y, q, t: tacit.conformal(q, t, joint=True)(numbers(5, 0, (2,))[0]),
            ValueError,
            r"expected predictions of shape \(\) for each example",
        ),
        (lambda p, y, q, t: tacit.conformal(p, y)(q), TypeError, "from tacit.predict"),
        (lambda p, y, q, t: tacit.conformal(q, t)(p), TypeError, "predictions of numbers"),
        (
            lambda p, y, q, t: tacit.conformal(p, y)(ClassPredictive(p.logits[..., :2])),
            ValueError,
            r"shape \(4,\) for each example, as in the calibration, received \(2,\)",
        ),
        (lambda p, y, q, t: tacit.conformal(p, y)(p).coverage(y[:3]), ValueError, "expected the"),
        (lambda p, y, q, t: tacit.conformal(p, y)(p).coverage(y + 9), ValueError, "out of range"),
        (lambda p, y, q, t: tacit.conformal(p, y)(p).coverage(y + 0.5), ValueError, "not whole"),
        (
            lambda p, y, q, t: tacit.conformal(p, y, score="raps", free=-1),
            ValueError,
            "free: expected",
        ),
        (
            lambda p, y, q, t: tacit.conformal(p, y, score="raps", free="a"),
            ValueError,
            "free: expected",
        ),
        (lambda p, y, q, t: tacit.conformal(p[:0], y[:0]), ValueError, "at least 9"),
        (
            lambda p, y, q, t: tacit.conformal(
                RegressionPredictive(q.means * torch.nan, q.scales), t
            ),
            ValueError,
            "predictions are NaN",
        ),
        (lambda p, y, q, t: tacit.conformal(q, t)(q).coverage(t[:3]), ValueError, "expected the"),
    ],
)
def test_bad_calls_are_refused(call, error, message):
    with pytest.raises(error, match=message):
        call(*classes(50), *numbers(50))
