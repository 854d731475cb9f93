import math

import pytest

from tacit.studies.plots.comparison import colour, plot_comparison, plot_cost, plot_heat

METHODS = [f"method_{i}" for i in range(12)]


def test_every_method_has_its_own_colour():
    assert len({colour(METHODS, method) for method in METHODS}) == 12


@pytest.mark.parametrize(
    ("numbers", "shades"),
    [
        ([1.0, 2.0, 3.0], [0.0, 0.5, 1.0]),
        ([math.nan, 1.0, 3.0], [1.0, 0.0, 1.0]),
        ([2.0, 2.0], [0, 0]),
        ([math.nan, 2.0, 2.0], [1.0, 0.0, 0.0]),
        ([math.inf, 2.0, -math.inf], [1.0, 0.0, 0.0]),
        ([math.nan, math.nan], [1.0, 1.0]),
    ],
)
def test_shades_span_the_finite_numbers_of_a_column(numbers, shades):
    table = {f"method_{i}": {"fog": number} for i, number in enumerate(numbers)}
    (image,) = plot_heat(table).axes[0].images
    assert image.get_array().flatten().tolist() == shades


def test_figures_are_labelled_and_written(tmp_path):
    points = {method: (0.1 * i, math.nan) for i, method in enumerate(METHODS)}
    figure = plot_comparison({"NLL": points, "ECE": points}, tmp_path / "a.png")
    assert [axis.get_title() for axis in figure.axes] == ["NLL", "ECE"]
    table = {method: {"fog": 1.0, "shear": i} for i, method in enumerate(METHODS)}
    labels = plot_heat(table).axes[0].get_yticklabels()
    assert [label.get_text() for label in labels][:2] == ["method 0", "method 1"]
    axis = plot_cost({"NLL": {"standard": (1.0, 0.3), "swag": (1.1, 0.2)}}).axes[0]
    assert axis.get_xscale() == "log"
    assert (tmp_path / "a.png").stat().st_size > 0


@pytest.mark.parametrize("plot", [plot_comparison, plot_heat, plot_cost])
@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({}, ValueError, "at least one; received none"),
        (None, TypeError, "received NoneType"),
        ([1], TypeError, "received list"),
        ({"a": {}}, ValueError, "'a' is empty"),
        ({"a": 3.0}, TypeError, "received float for 'a'"),
        ({"a": {"x": (1, 1)}, "b": {"y": (1, 1)}}, ValueError, "'a' and 'b'; only one .* has x, y"),
    ],
)
def test_other_than_a_table_is_refused(plot, given, error, message):
    with pytest.raises(error, match=rf"{plot.__name__}\(\w+\): expected .*{message}"):
        plot(given)
