"""Estimate of the time that the paper's comparison on photographs takes on a GPU."""

from __future__ import annotations

from tacit.methods import DeepEnsemble
from tacit.studies.experiments import comparison

RATE = 10e12  # floating-point operations a second that a GPU is assumed to sustain
OPERATIONS = {"cifar10": 6.95e9, "cifar100": 6.95e9, "tiny_imagenet": 27.81e9}
"""Operations of a forward and backward pass of ResNet-34 for one image."""

IMAGES = {"cifar10": 45_000, "cifar100": 45_000, "tiny_imagenet": 90_000}
"""Training images."""


def passes_per_image() -> int:
    """Return how often an image is seen in one epoch of all training runs, at the scale "paper".

    The plain networks of an ensemble serve Standard, temperature scaling, Laplace and SWAG too.
    """
    scale = comparison.SCALES["paper"]
    plain = {"standard", *comparison.POST_HOC, comparison.SWAG, comparison.ENSEMBLE}
    trainings = DeepEnsemble().members + len(set(scale["methods"]) - plain)
    slow = scale["slow_seeds"] * comparison.mean_field_vi_8.samples
    parametrizations = 2
    passes: int = parametrizations * (scale["seeds"] * trainings + slow)
    return passes


def gpu_hours(data: str) -> float:
    """Return the hours of all training runs on a data set, without their evaluation.

    Args:
        data: "cifar10", "cifar100" or "tiny_imagenet".

    Examples:
        >>> round(gpu_hours("cifar10") / passes_per_image(), 1)  # of one training run
        1.7
    """
    epochs: int = comparison.SCALES["paper"]["epochs"]
    passes = passes_per_image() * epochs * IMAGES[data]
    return passes * OPERATIONS[data] / RATE / 3600
