"""The numbers are read back from the figures."""

import numpy as np
import pytest
import torch

from tacit import plots
from tacit.likelihood.predictive import ClassPredictive, RegressionPredictive


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


def test_inputs_may_be_a_column():
    x = torch.randn(50, 1)
    axis = plots.plot_quantiles(numbers(), x).axes[0]
    np.testing.assert_allclose(axis.lines[0].get_xdata(), x[:, 0].sort().values)


def test_other_than_a_fan_is_refused():
    prediction = numbers()
    with pytest.raises(TypeError, match="plot_quantiles: expected predictions of a regression"):
        plots.plot_quantiles(ClassPredictive(torch.zeros(1, 5, 2)))
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
        plots.plot_coverage({"a": ClassPredictive(torch.zeros(1, 50, 2))}, torch.zeros(50))
    with pytest.raises(ValueError, match=r"targets: expected the shape \(50,\), received \(9,\)"):
        plots.plot_coverage(prediction, torch.zeros(9))
    with pytest.raises(ValueError, match="without NaN, at least one"):
        plots.plot_coverage(prediction, torch.full((50,), torch.nan))
    with pytest.raises(ValueError, match="bins: expected an integer of at least 1"):
        plots.plot_coverage(prediction, torch.zeros(50), bins=0)
    with pytest.raises(ValueError, match=r"plot_coverage\(predictions\): .* received none"):
        plots.plot_coverage({}, torch.zeros(50))
