"""The experiments of the paper by name."""

from __future__ import annotations

from tacit.studies.experiments import (
    coordinate_check,
    corruptions,
    cost,
    gvi_comparison,
    implicit_vs_explicit,
    in_distribution,
    linear_claims,
    linear_theory,
    loss_landscape,
    lr_transfer,
    nll_overfitting,
    rank_scaling,
    single_sample,
)
from tacit.studies.experiments.experiment import Experiment

EXPERIMENTS: dict[str, Experiment] = {
    experiment.name: experiment
    for experiment in (
        implicit_vs_explicit.EXPERIMENT,
        single_sample.EXPERIMENT,
        lr_transfer.EXPERIMENT,
        in_distribution.EXPERIMENT,
        corruptions.EXPERIMENT,
        cost.EXPERIMENT,
        loss_landscape.EXPERIMENT,
        linear_theory.EXPERIMENT,
        linear_claims.EXPERIMENT,
        nll_overfitting.EXPERIMENT,
        coordinate_check.EXPERIMENT,
        rank_scaling.EXPERIMENT,
        gvi_comparison.EXPERIMENT,
    )
}
"""All experiments, in the order of the paper."""


def find_experiment(name: str) -> Experiment:
    """Return the experiment with this name.

    Raises:
        ValueError: If no experiment has this name.
    """
    if name not in EXPERIMENTS:
        raise ValueError(
            f"experiment: expected one of {', '.join(EXPERIMENTS)}; received {name!r}."
        )
    return EXPERIMENTS[name]
