"""Plots: each function returns a figure and writes it to a file if a path is given.

Requires matplotlib: `pip install 'tacit-torch[plots]'`.
"""

from tacit.studies.plots.comparison import plot_comparison, plot_cost, plot_heat
from tacit.studies.plots.decisions import plot_risk_coverage, plot_set_sizes
from tacit.studies.plots.dense import plot_uncertainty_map
from tacit.studies.plots.learning import plot_coordinates, plot_learning_rates
from tacit.studies.plots.predictions import (
    plot_confidence,
    plot_entropy,
    plot_fan,
    plot_images,
    plot_rejection,
    plot_reliability,
)
from tacit.studies.plots.regression import plot_coverage, plot_quantiles
from tacit.training.history import plot_history

__all__ = [
    "plot_comparison",
    "plot_confidence",
    "plot_coordinates",
    "plot_cost",
    "plot_coverage",
    "plot_entropy",
    "plot_fan",
    "plot_heat",
    "plot_history",
    "plot_images",
    "plot_learning_rates",
    "plot_quantiles",
    "plot_rejection",
    "plot_reliability",
    "plot_risk_coverage",
    "plot_set_sizes",
    "plot_uncertainty_map",
]
