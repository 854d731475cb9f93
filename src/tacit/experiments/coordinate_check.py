"""The claim `coordinate-check`: features move alike at every width under muP, not under SP.

    python -m tacit.experiments.coordinate_check --out DIR

The paper's setting: MLPs with two hidden layers of 8 to 64 units, one observation (1, 1), squared
error, SGD with learning rate 0.05, deterministic and variational with full-rank covariances, five
seeds. Full rank at width 64 means 4160 directions. Takes 20 seconds on two cores.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tacit.coordinate_check import coordinate_check
from tacit.covariance import FullRank
from tacit.experiments.runner import run
from tacit.parametrization import MaximalUpdate, Parametrization, Standard
from tacit.plots import plot_coordinates
from tacit.scaling import initialize
from tacit.variational import variational

SMOKE = {"widths": (4, 8), "seeds": 1, "steps": 2, "samples": 4}
PARAMETRIZATIONS: dict[str, Parametrization] = {"sp": Standard(), "mup": MaximalUpdate()}


def make_net(width: int, *, parametrization: Parametrization, random: bool) -> nn.Module:
    """Return the paper's network: two hidden layers, one input, one output."""
    net = nn.Sequential(
        nn.Linear(1, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1)
    )
    initialize(net, parametrization)
    if not random:
        return net
    return variational(net, {"*": FullRank()}, parametrization=parametrization)


def compute(
    widths: tuple[int, ...] = (8, 16, 32, 64),
    lr: float = 0.05,
    steps: int = 5,
    seeds: int = 5,
    samples: int = 32,
) -> dict[str, Any]:
    """Run the four checks and return them as plain data."""
    results: dict[str, Any] = {}
    data = (torch.ones(1, 1), torch.ones(1, 1))
    for kind in ("deterministic", "variational"):
        for name, parametrization in PARAMETRIZATIONS.items():
            random = kind == "variational"
            check = coordinate_check(
                partial(make_net, parametrization=parametrization, random=random),
                widths,
                data,
                parametrization=None if random else parametrization,
                lr=lr,
                steps=steps,
                seeds=seeds,
                samples=samples,
            )
            results[f"{kind}_{name}"] = check.to_dict()
    return results


def draw(results: dict[str, Any], folder: Path) -> None:
    """Draw the four figures from saved results, as vector graphics and as pictures."""
    for name, result in results.items():
        for ending in ("pdf", "png"):
            title = name.replace("_", ", ").replace("mup", "muP").replace("sp", "SP")
            plot_coordinates(result["changes"], folder / f"{name}.{ending}", title)


if __name__ == "__main__":
    run(sys.modules[__name__])
