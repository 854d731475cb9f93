"""The numbers are read back from the figures."""

import numpy as np
import pytest
import torch

import tacit
from tacit import plots
from tacit.inference import PredictionSets
from tacit.likelihood.predictive import ClassPredictive


def sets():
    members = torch.tensor([[1, 0, 0], [1, 0, 0], [1, 1, 0], [0, 1, 1], [1, 1, 1]]).bool()
    return PredictionSets(members, 0.8), torch.tensor([0, 1, 1, 0, 2])


def classes(size=400, seed=0):
    generator = torch.Generator().manual_seed(seed)
    logits = 4 * torch.randn(1, size, 3, generator=generator)
    labels = torch.distributions.Categorical(logits=logits[0] / 2).probs
    return ClassPredictive(logits), torch.multinomial(labels, 1, generator=generator)[:, 0]


def heights(axis):
    return {round(bar.get_x() + bar.get_width() / 2): bar.get_height() for bar in axis.patches}


def test_bars_are_shares_and_coverages_by_size(tmp_path):
    figure = plots.plot_set_sizes(*sets(), tmp_path / "sizes.png")
    left, right = figure.axes
    assert heights(left) == pytest.approx({1: 40, 2: 40, 3: 20})
    assert heights(right) == pytest.approx({1: 0.5, 2: 0.5, 3: 1.0})
    assert right.lines[0].get_ydata()[0] == 0.8
    assert (tmp_path / "sizes.png").stat().st_size


def test_sets_of_several_labels_are_counted_together():
    given, labels = sets()
    several = PredictionSets(given.members[:4].reshape(2, 2, 3), 0.8)
    left, _ = plots.plot_set_sizes(several, labels[:4].reshape(2, 2)).axes
    assert heights(left) == pytest.approx({1: 50, 2: 50})


def test_labels_to_be_ignored_are_left_out():
    given, labels = sets()
    ignoring = PredictionSets(given.members, 0.8, ignore_index=255)
    left, _ = plots.plot_set_sizes(ignoring, labels.index_fill(0, torch.tensor([0]), 255)).axes
    assert heights(left) == pytest.approx({1: 25, 2: 50, 3: 25})
    with pytest.raises(ValueError, match="all labels are ignored"):
        plots.plot_set_sizes(ignoring, labels.fill_(255))


def test_other_than_sets_and_their_labels_is_refused():
    given, labels = sets()
    with pytest.raises(TypeError, match="expected sets of classes from tacit.conformal, .* Tensor"):
        plots.plot_set_sizes(given.members, labels)
    with pytest.raises(ValueError, match=r"\(labels\): expected shape \(5,\), received \(3,\)"):
        plots.plot_set_sizes(given, labels[:3])
    with pytest.raises(ValueError, match="label 3 is out of range"):
        plots.plot_set_sizes(given, labels + 1)
    with pytest.raises(ValueError, match="expected at least one set, received none"):
        plots.plot_set_sizes(PredictionSets(given.members[:0], 0.8), labels[:0])


def test_the_curve_is_the_error_rate_of_the_most_confident():
    prediction, labels = classes()
    rule = prediction.select(labels, risk=0.2)
    new, truth = classes(seed=1)
    axis = plots.plot_risk_coverage(new, truth, rule=rule).axes[0]
    curve, dot, bound = axis.lines
    order = new.confidence.argsort(descending=True)
    wrong = (new.label != truth)[order].double().cumsum(0) / torch.arange(1, 401)
    np.testing.assert_allclose(curve.get_ydata(), wrong)
    np.testing.assert_allclose(curve.get_xdata(), np.arange(1, 401) / 400, rtol=1e-6)
    answered = new.confidence.double() > rule.threshold
    error = (new.label != truth)[answered].double().mean().item()
    assert dot.get_xdata()[0] == pytest.approx(answered.double().mean().item())
    assert dot.get_ydata()[0] == pytest.approx(error)
    assert bound.get_ydata()[0] == 0.2


def test_each_method_has_its_own_rule():
    (first, labels), (second, _) = classes(), classes(seed=1)
    rule = first.select(labels, risk=0.2)
    axis = plots.plot_risk_coverage({"a": first, "b": second}, labels, rule={"a": rule}).axes[0]
    assert len(axis.lines) == 4
    assert [text.get_text() for text in axis.get_legend().get_texts()] == ["a", "b"]
    with pytest.raises(ValueError, match="a threshold fits one method only; received one rule"):
        plots.plot_risk_coverage({"a": first, "b": second}, labels, rule=rule)
    with pytest.raises(ValueError, match="no predictions are named 'c'"):
        plots.plot_risk_coverage({"a": first}, labels, rule={"c": rule})
    with pytest.raises(TypeError, match="expected a rule from prediction.select, .* received 0.9"):
        plots.plot_risk_coverage(first, labels, rule=0.9)
    with pytest.raises(TypeError, match="plot_risk_coverage: expected class predictions"):
        plots.plot_risk_coverage({"a": first.probs}, labels)


def test_sets_of_a_conformal_prediction_are_drawn():
    prediction, labels = classes()
    found = tacit.conformal(prediction[:200], labels[:200])(prediction[200:])
    left, _ = plots.plot_set_sizes(found, labels[200:]).axes
    assert sum(heights(left).values()) == pytest.approx(100)
