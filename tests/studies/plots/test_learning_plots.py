"""Curves show the means over seeds; diverged runs are omitted."""

import math

import numpy as np
import pytest

from tacit.studies import plots


def change(width, step, mean, std=0.0, seed=0):
    return {
        "layer": "fc", "width": width, "seed": seed, "step": step, "mean": mean, "std": std,
        "start": 1.0,
    }  # fmt: skip


def curves(axis):
    return {line.get_label(): line.get_ydata() for line in axis.lines}


def test_changes_are_averaged_over_seeds():
    rows = [
        change(width, 1, mean=width * (1 + seed), seed=seed) for width in (8, 16) for seed in (0, 1)
    ]
    (axis,) = plots.plot_coordinates(rows).axes
    assert curves(axis)["step 1"] == pytest.approx([12, 24])
    assert curves(axis)["initial size"] == pytest.approx([1, 1])


def test_a_row_of_panels_shows_the_standard_deviation_if_there_is_noise():
    rows = [change(width, 1, mean=1.0, std=0.5) for width in (8, 16)]
    labels = [axis.get_ylabel() for axis in plots.plot_coordinates(rows).axes]
    assert labels == ["change in feature mean", "change in feature std"]


def test_diverged_runs_are_omitted():
    rows = [change(8, 1, mean=0.5), change(16, 1, mean=None)]
    (axis,) = plots.plot_coordinates(rows).axes
    np.testing.assert_equal(np.asarray(curves(axis)["step 1"], float), [0.5, math.nan])


def test_a_star_marks_the_best_learning_rate_of_each_width():
    losses = {8: {0.1: 0.3, 0.2: 0.1, 0.4: 0.2}, 16: {0.1: 0.2, 0.2: 0.3, 0.4: None}}
    trials = [
        {"width": width, "lr": lr, "loss": loss}
        for width, row in losses.items()
        for lr, loss in row.items()
    ]
    (axis,) = plots.plot_learning_rates({"": {"trials": trials, "lr": 0.2}}).axes
    stars = [line.get_xdata() for line in axis.lines if line.get_marker() == "*"]
    assert stars == [[0.2], [0.1]]


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: plots.plot_coordinates([]), ValueError, "mapping with layer, .*received none"),
        (lambda: plots.plot_coordinates(None), TypeError, "received NoneType"),
        (lambda: plots.plot_coordinates([3]), TypeError, "received int"),
        (lambda: plots.plot_coordinates([{"layer": "a"}]), ValueError, "one without width, step"),
        (lambda: plots.plot_learning_rates({}), ValueError, "mapping with trials, lr; received no"),
        (lambda: plots.plot_learning_rates(None), TypeError, "expected a mapping .*NoneType"),
        (lambda: plots.plot_learning_rates({"a": {"lr": 1}}), ValueError, "without trials"),
        (
            lambda: plots.plot_learning_rates({"a": {"trials": [], "lr": 1}}),
            ValueError,
            "trials: expected at least one mapping with width, lr, loss; received none",
        ),
    ],
)
def test_other_than_rows_is_refused(call, error, message):
    with pytest.raises(error, match=message):
        call()
