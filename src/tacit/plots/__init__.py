"""Figures: each function returns one, and writes it where a path is given.

They need matplotlib: `pip install 'tacit-torch[plots]'`.
"""

from tacit.plots.comparison import plot_comparison, plot_cost, plot_heat
from tacit.plots.learning import plot_coordinates, plot_history, plot_learning_rates
from tacit.plots.predictions import (
    plot_confidence,
    plot_entropy,
    plot_fan,
    plot_images,
    plot_rejection,
    plot_reliability,
)

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
