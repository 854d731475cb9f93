"""The numbers are read back from the figures."""

import numpy as np
import pytest
import torch

import tacit
from tacit import plots
from tacit.inference import PredictionSets
from tacit.likelihood.predictive import ClassPredictive, RegressionPredictive


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


def pixels():
    generator = torch.Generator().manual_seed(0)
    return ClassPredictive(torch.randn(4, 2, 5, 6, 3, generator=generator))


@pytest.mark.parametrize("shape", [(5, 6), (1, 5, 6), (3, 5, 6)])
def test_maps_show_image_classes_and_entropy(shape, tmp_path):
    prediction, image, truth = pixels()[1], torch.rand(shape), torch.randint(3, (5, 6))
    figure = plots.plot_uncertainty_map(image, prediction, truth, tmp_path / "map.png")
    shown = [np.asarray(axis.images[0].get_array()) for axis in figure.axes[:4]]
    expected = image.movedim(0, -1).squeeze(-1) if image.ndim == 3 else image
    np.testing.assert_allclose(shown[0], expected)
    np.testing.assert_array_equal(shown[1], prediction.label[0])
    np.testing.assert_array_equal(shown[2], truth)
    np.testing.assert_allclose(shown[3], prediction.entropy[0])
    assert figure.axes[3].images[0].get_clim() == pytest.approx((0, np.log(3)))
    assert len(plots.plot_uncertainty_map(image, prediction).axes) == 4  # one is the colour bar


def test_other_than_the_pixels_of_an_image_is_refused():
    prediction, image = pixels(), torch.rand(5, 6)
    with pytest.raises(ValueError, match=r"one image, \(1, H, W\), received \(2, 5, 6\)"):
        plots.plot_uncertainty_map(image, prediction)
    with pytest.raises(ValueError, match=r"\(image\): expected shape \(5, 6\), .* \(6, 5\)"):
        plots.plot_uncertainty_map(image.T, prediction[0])
    with pytest.raises(ValueError, match=r"\(labels\): expected shape \(5, 6\), received \(30,\)"):
        plots.plot_uncertainty_map(image, prediction[0], torch.zeros(30))
    with pytest.raises(TypeError, match="plot_uncertainty_map: expected class predictions"):
        plots.plot_uncertainty_map(image, image)


def numbers(size=50, shape=()):
    generator = torch.Generator().manual_seed(0)
    means = torch.randn(7, size, *shape, generator=generator)
    return RegressionPredictive(means, torch.ones_like(means))


def test_bands_are_quantiles_in_the_order_of_x(tmp_path):
    prediction, x = numbers(), torch.randperm(50, generator=torch.Generator().manual_seed(1))
    y = prediction.mean + 1
    figure = plots.plot_quantiles(prediction, x, y, tmp_path / "fan.svg", levels=[0.5, 0.9])
    axis, order = figure.axes[0], x.argsort()
    wide = axis.collections[0].get_paths()[0].vertices
    low, high = (bound[order] for bound in prediction.interval(0.9))
    for k in (0, 17, 49):
        at = wide[np.isclose(wide[:, 0], k)][:, 1]
        assert at.min() == pytest.approx(low[k].item(), rel=1e-5)
        assert at.max() == pytest.approx(high[k].item(), rel=1e-5)
    median, dots = axis.lines
    np.testing.assert_allclose(median.get_ydata(), prediction.quantile(0.5)[order], rtol=1e-6)
    np.testing.assert_allclose(dots.get_ydata(), y[order])
    labels = [text.get_text() for text in axis.get_legend().get_texts()]
    assert labels == ["90 %", "50 %", "median", "target"]


@pytest.mark.parametrize("shape", [(), (1,)])
def test_forecasts_and_columns_are_drawn_over_time(shape):
    prediction = numbers(12, shape) if shape else numbers(1, (12,))
    axis = plots.plot_quantiles(prediction, targets=prediction.mean).axes[0]
    np.testing.assert_array_equal(axis.lines[0].get_xdata(), np.arange(12))


def test_other_than_a_fan_is_refused():
    prediction = numbers()
    with pytest.raises(TypeError, match="plot_quantiles: expected predictions of a regression"):
        plots.plot_quantiles(classes()[0])
    with pytest.raises(ValueError, match=r"received predictions of shape \(50, 2\). Select one"):
        plots.plot_quantiles(numbers(50, (2,)))
    with pytest.raises(ValueError, match=r"\(x\): expected shape \(50,\), received \(9,\)"):
        plots.plot_quantiles(prediction, torch.zeros(9))
    with pytest.raises(ValueError, match=r"\(targets\): expected shape \(50,\), received \(9,\)"):
        plots.plot_quantiles(prediction, targets=torch.zeros(9))
    with pytest.raises(ValueError, match=r"\(levels\): expected a number between 0 and 1"):
        plots.plot_quantiles(prediction, levels=[0.5, 1.0])


def test_observed_coverages_and_probabilities_are_those_of_the_predictions():
    prediction = numbers(200, (2,))
    y = prediction.means[0] + torch.randn(200, 2, generator=torch.Generator().manual_seed(2))
    figure = plots.plot_coverage({"a": prediction, "b": prediction}, y, bins=5)
    curves, first, _ = figure.axes
    line = curves.lines[0]
    for k in (9, 49, 89):
        assert line.get_xdata()[k] == pytest.approx((k + 1) / 100)
        expected = prediction.coverage(y, (k + 1) / 100)
        assert line.get_ydata()[k] == pytest.approx(expected, abs=0.003)
    counts = np.histogram(prediction.cdf(y).flatten(), bins=5, range=(0, 1), density=True)[0]
    np.testing.assert_allclose([bar.get_height() for bar in first.patches], counts)
    assert [text.get_text() for text in curves.get_legend().get_texts()] == ["a", "b"]
    assert len(plots.plot_coverage(prediction, y).axes) == 2


def test_other_than_predictions_of_numbers_is_refused():
    prediction = numbers()
    with pytest.raises(TypeError, match="plot_coverage: expected predictions of a reg.* from a"):
        plots.plot_coverage({"a": classes()[0]}, torch.zeros(50))
    with pytest.raises(ValueError, match=r"targets: expected the shape \(50,\), received \(9,\)"):
        plots.plot_coverage(prediction, torch.zeros(9))
    with pytest.raises(ValueError, match="without NaN, at least one"):
        plots.plot_coverage(prediction, torch.full((50,), torch.nan))
    with pytest.raises(ValueError, match="bins: expected an integer of at least 1"):
        plots.plot_coverage(prediction, torch.zeros(50), bins=0)
    with pytest.raises(ValueError, match=r"plot_coverage\(predictions\): .* received none"):
        plots.plot_coverage({}, torch.zeros(50))


def test_sets_of_a_conformal_prediction_are_drawn():
    prediction, labels = classes()
    found = tacit.conformal(prediction[:200], labels[:200])(prediction[200:])
    left, _ = plots.plot_set_sizes(found, labels[200:]).axes
    assert sum(heights(left).values()) == pytest.approx(100)
