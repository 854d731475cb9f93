"""The numbers are read back from the figures."""

import pytest
import torch

from tacit import metrics, plots
from tacit.likelihood.predictive import BinaryPredictive, ClassPredictive, RegressionPredictive


def example(size=60, classes=4):
    logits = 2 * torch.randn(5, size, classes)
    labels = torch.randint(classes, (size,))
    return ClassPredictive(logits), labels


@pytest.mark.parametrize("suffix", ["png", "pdf", "svg"])
def test_the_suffix_determines_the_format(suffix, tmp_path):
    prediction, labels = example()
    path = tmp_path / "new" / f"figure.{suffix}"
    plots.plot_reliability({"a": prediction, "b": prediction}, labels, path)
    start = {"png": b"\x89PNG", "pdf": b"%PDF", "svg": b"<?xml"}[suffix]
    assert path.read_bytes().startswith(start)


def test_reliability_bars_are_the_accuracies():
    prediction, labels = example()
    axis = plots.plot_reliability({"a": prediction}, labels, bins=5).axes[0]
    found = metrics.reliability(prediction.confidence, prediction.label == labels, 5)
    expected = found.accuracy[found.size > 0].tolist()
    assert [bar.get_height() for bar in axis.patches] == pytest.approx(expected)


def test_a_single_prediction_needs_no_name():
    prediction, labels = example()
    assert len(plots.plot_reliability(prediction, labels).axes) == 1


def test_predictions_that_do_not_fit_the_labels_are_rejected():
    prediction, labels = example()
    shapes = r"predictions from a: expected shape \(7,\), received \(60,\)"
    with pytest.raises(ValueError, match=shapes):
        plots.plot_rejection({"a": prediction}, labels[:7])
    numbers = RegressionPredictive(torch.randn(3, 60), torch.ones(3, 60))
    with pytest.raises(TypeError, match="expected class predictions .* from a, received Regr"):
        plots.plot_confidence({"a": numbers}, labels)


@pytest.mark.parametrize(
    "plot", [plots.plot_reliability, plots.plot_confidence, plots.plot_rejection]
)
def test_other_than_predictions_and_labels_is_refused(plot):
    prediction, labels = example()
    name = plot.__name__
    with pytest.raises(TypeError, match=rf"{name}\(predictions\): expected .* received NoneType"):
        plot(None, labels)
    with pytest.raises(ValueError, match=rf"{name}\(predictions\): expected at least one"):
        plot({}, labels)
    with pytest.raises(TypeError, match=rf"{name}: expected class predictions .* received Tensor"):
        plot({"a": prediction.probs}, labels)
    with pytest.raises(TypeError, match=rf"{name}\(labels\): expected tensors .*received NoneType"):
        plot(prediction, None)
    with pytest.raises(TypeError, match=rf"{name}\(labels\): expected integer classes .*float32"):
        plot(prediction, labels.float())
    assert plot(prediction, labels.tolist())


def test_other_than_predictions_by_input_is_refused():
    prediction, _ = example()
    with pytest.raises(TypeError, match=r"plot_entropy\(predictions\): .* received NoneType"):
        plots.plot_entropy(None)
    with pytest.raises(ValueError, match=r"plot_entropy\(predictions\): .* received none"):
        plots.plot_entropy({})
    with pytest.raises(TypeError, match=r"plot_entropy\(a\): .* received ClassPredictive"):
        plots.plot_entropy({"a": prediction})
    with pytest.raises(TypeError, match="plot_entropy: expected class predictions .* int"):
        plots.plot_entropy({"a": {"known": 3}})


def test_other_than_images_is_refused():
    prediction, labels = example(size=5)
    pictures = torch.rand(5, 8, 8)
    with pytest.raises(TypeError, match=r"plot_images\(predictions\): .* received NoneType"):
        plots.plot_images(pictures, None, labels)
    with pytest.raises(ValueError, match=r"expected 5 images, .* received shape \(4, 8, 8\)"):
        plots.plot_images(pictures[:4], prediction, labels)
    with pytest.raises(ValueError, match="count: expected an integer of at least 1, received 0"):
        plots.plot_images(pictures, prediction, labels, 0)
    with pytest.raises(ValueError, match="bins: expected an integer of at least 1, received 0"):
        plots.plot_reliability(prediction, labels, bins=0)


def test_other_than_a_regression_of_one_input_is_refused():
    grid = torch.linspace(-1, 1, 20)
    prediction = RegressionPredictive(torch.randn(30, 20), torch.ones(30, 20))
    functions, x = prediction.means[:3], grid[:5]
    with pytest.raises(TypeError, match="plot_fan: expected predictions of a regression .* None"):
        plots.plot_fan(grid, None, functions, x, x)
    with pytest.raises(ValueError, match=r"predictions: expected shape \(9,\), received \(20,\)"):
        plots.plot_fan(grid[:9], prediction, functions, x, x)
    with pytest.raises(ValueError, match=r"plot_fan\(functions\): expected shape"):
        plots.plot_fan(grid, prediction, functions[:, :9], x, x)
    with pytest.raises(ValueError, match=r"plot_fan\(y\): expected shape \(5,\), received \(20,\)"):
        plots.plot_fan(grid, prediction, functions, x, grid)


def test_without_rejection_the_accuracy_is_that_of_all_predictions():
    prediction, labels = example()
    (line,) = plots.plot_rejection({"a": prediction}, labels).axes[0].lines
    accuracy = metrics.accuracy(prediction.log_probs, labels)
    assert line.get_ydata()[-1] == pytest.approx(accuracy)
    assert line.get_xdata()[-1] == pytest.approx(0)


def test_the_legend_counts_correct_and_wrong_predictions():
    prediction, labels = example()
    axis = plots.plot_confidence({"a": prediction}, labels).axes[0]
    assert [text.get_text() for text in axis.get_legend().get_texts()] == [
        f"correct ({(prediction.label == labels).sum()})",
        f"wrong ({(prediction.label != labels).sum()})",
    ]


@pytest.mark.parametrize("classes", [4, 300])
def test_the_entropy_range_fits_the_number_of_classes(classes):
    prediction = ClassPredictive(0.01 * torch.randn(3, 20, classes))
    axis = plots.plot_entropy({"a": {"known": prediction}}).axes[0]
    (drawn,) = axis.patches
    assert drawn.get_xy()[:, 1].max() > 0


@pytest.mark.parametrize("shape", [(8, 8), (1, 8, 8), (3, 8, 8)])
@pytest.mark.parametrize("count", [1, 8])
def test_each_row_shows_at_most_count_images(shape, count):
    prediction, labels = example(size=5)
    figure = plots.plot_images(torch.rand(5, *shape), prediction, labels, count)
    assert len(figure.axes) == 2 * min(count, 5)


def test_a_fan_has_a_line_per_function():
    grid = torch.linspace(-1, 1, 20)
    prediction = RegressionPredictive(torch.randn(30, 20), torch.ones(30, 20))
    axis = plots.plot_fan(grid, prediction, prediction.means[:3], grid[:5], grid[:5]).axes[0]
    assert len(axis.lines) == 5  # three functions, the mean and the data


def test_a_fan_takes_columns_as_networks_return_them():
    grid = torch.linspace(-1, 1, 20)[:, None]
    prediction = RegressionPredictive(torch.randn(30, 20, 1), torch.ones(30, 20, 1))
    axis = plots.plot_fan(grid, prediction, prediction.means[:3], grid[:5], grid[:5]).axes[0]
    assert len(axis.lines) == 5
    flat = RegressionPredictive(prediction.means[..., 0], prediction.scales[..., 0])
    expected = plots.plot_fan(grid, flat, flat.means[:3], grid[:5], grid[:5]).axes[0]
    for line, other in zip(axis.lines, expected.lines, strict=True):
        assert line.get_xydata().tolist() == other.get_xydata().tolist()


@pytest.mark.parametrize(
    "plot",
    [
        plots.plot_reliability, plots.plot_confidence, plots.plot_rejection,
        plots.plot_risk_coverage,
    ],
)  # fmt: skip
def test_binary_targets_are_two_classes(plot):
    logits, labels = 2 * torch.randn(5, 60), torch.randint(2, (60,))
    pairs = torch.stack([torch.zeros_like(logits), logits], -1)
    expected = drawn(plot(ClassPredictive(pairs), labels))
    assert drawn(plot(BinaryPredictive(logits), labels.bool())) == expected
    assert drawn(plot(BinaryPredictive(logits), labels[:, None].float())) == expected


@pytest.mark.parametrize(
    "plot",
    [
        plots.plot_reliability, plots.plot_confidence, plots.plot_rejection,
        plots.plot_risk_coverage,
    ],
)  # fmt: skip
def test_several_labels_of_an_example_are_examples_without_those_to_be_ignored(plot):
    prediction, labels = example(60)
    labels[::7] = -1
    kept = labels != -1
    dense = ClassPredictive(prediction.logits.reshape(5, 4, 3, 5, 4), ignore_index=-1)
    expected = drawn(plot(ClassPredictive(prediction.logits[:, kept]), labels[kept]))
    assert drawn(plot(dense, labels.reshape(4, 3, 5))) == expected


def drawn(figure):
    """Return the bars and lines of a figure's first axes."""
    axis = figure.axes[0]
    return (
        [bar.get_height() for bar in axis.patches],
        [line.get_xydata().tolist() for line in axis.get_lines()],
    )
