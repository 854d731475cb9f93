"""Distributions over the weights of a module: covariances, noise, random layers."""

from tacit.weights.adapter_recipe import adapters
from tacit.weights.distribution import Distribution
from tacit.weights.layers import RandomLayer
from tacit.weights.prior import Prior
from tacit.weights.recipes import every_layer, first_and_last, relative_noise
from tacit.weights.selection import Where, select_layers

__all__ = [
    "Distribution",
    "Prior",
    "RandomLayer",
    "Where",
    "adapters",
    "every_layer",
    "first_and_last",
    "relative_noise",
    "select_layers",
]
