"""Plots: each function returns a figure and writes it to a file if a path is given.

Requires matplotlib: `pip install 'tacit-torch[plots]'`.
"""

from tacit.studies.plots.comparison import plot_comparison, plot_cost, plot_heat
from tacit.studies.plots.learning import plot_coordinates, plot_learning_rates
from tacit.studies.plots.predictions import (
    plot_confidence,
    plot_entropy,
    plot_fan,
    plot_images,
    plot_rejection,
    plot_reliability,
)
from tacit.training.history import plot_history

__all__ = [
    "plot_comparison",
    "plot_confidence",
    "plot_coordinates",
    "plot_cost",
    "plot_entropy",
    "plot_fan",
    "plot_heat",
    "plot_history",
    "plot_images",
    "plot_learning_rates",
    "plot_rejection",
    "plot_reliability",
]
