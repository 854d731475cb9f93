import math

from tacit.studies.plots.comparison import _shade, colour, plot_comparison, plot_cost, plot_heat

METHODS = [f"method_{i}" for i in range(12)]


def test_every_method_has_its_colour():
    assert len({colour(METHODS, method) for method in METHODS}) == 12


def test_a_number_that_is_missing_hides_no_other():
    table = {"one": {"fog": math.nan}, "two": {"fog": 1.0}, "three": {"fog": 3.0}}
    assert [_shade(table, method, "fog") for method in table] == [1.0, 0.0, 1.0]
    same = {"one": {"fog": 2.0}, "two": {"fog": 2.0}}
    assert _shade(same, "one", "fog") == 0


def test_figures(tmp_path):
    points = {method: (0.1 * i, math.nan) for i, method in enumerate(METHODS)}
    figure = plot_comparison({"NLL": points, "ECE": points}, tmp_path / "a.png")
    assert [axis.get_title() for axis in figure.axes] == ["NLL", "ECE"]
    table = {method: {"fog": 1.0, "shear": i} for i, method in enumerate(METHODS)}
    labels = plot_heat(table).axes[0].get_yticklabels()
    assert [label.get_text() for label in labels][:2] == ["method 0", "method 1"]
    axis = plot_cost({"NLL": {"standard": (1.0, 0.3), "swag": (1.1, 0.2)}}).axes[0]
    assert axis.get_xscale() == "log"
    assert (tmp_path / "a.png").stat().st_size > 0
