"""How far features move in training, against width, in both parametrizations."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tacit.calling import variational
from tacit.scaling import initialize
from tacit.scaling.parametrization import MaximalUpdate, Parametrization, Standard
from tacit.scaling.parametrization.roles import Role, ScaledParameter
from tacit.studies.experiments.evidence import geometric, higher, interval, lower, paired
from tacit.studies.experiments.experiment import Experiment
from tacit.studies.experiments.verdict import Verdict
from tacit.studies.plots import plot_coordinates
from tacit.studies.width.coordinates import coordinate_check
from tacit.weights.covariance import FullRank


@dataclass(frozen=True)
class PyTorch(Parametrization):
    """SP with the variances of PyTorch's layers, 1 / (3 fan_in)."""

    roles: Mapping[str, Role] = field(default_factory=dict)

    def std(self, parameter: ScaledParameter) -> float:
        """Return the initial standard deviation, that of PyTorch's uniform distribution."""
        return parameter.fans.scale / math.sqrt(3)

    def learning_rate(self, parameter: ScaledParameter, optimizer: str) -> float:
        """Return 1: all learning rates are the same."""
        return 1.0


PARAMETRIZATIONS: dict[str, Parametrization] = {
    "sp": Standard(), "pytorch": PyTorch(), "mup": MaximalUpdate(),
}  # fmt: skip
REFERENCES = {"sp": "SP", "pytorch": "SP with PyTorch's variances"}


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
    """Run the coordinate checks and return them as plain data."""
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


SERIES = {
    "deterministic: mean": ("deterministic", "mean"),
    "variational: mean": ("variational", "mean"),
    "variational: std": ("variational", "std"),
}


def verdicts(results: dict[str, Any], arguments: Mapping[str, Any]) -> list[Verdict]:
    """Return the paper's two comparisons of muP with SP for each series, and our question."""
    found = []
    for reference, title in REFERENCES.items():
        for subject, (kind, quantity) in SERIES.items():
            if f"{kind}_{reference}" in results:
                changes = [results[f"{kind}_{name}"]["changes"] for name in (reference, "mup")]
                found += _compared(subject, title, quantity, *changes)
    return [*found, _slopes(results)]


def _compared(
    subject: str, title: str, quantity: str, reference: list[Any], mup: list[Any]
) -> list[Verdict]:
    """Return the verdicts on size and stability of the changes, against a reference."""
    changes = {"sp": reference, "mup": mup}
    step = _judged_step(changes["sp"], changes["mup"], quantity)
    logs = {name: _logs(rows, quantity, step) for name, rows in changes.items()}
    more = interval(
        statistics.fmean(logs["mup"][s][key] - logs["sp"][s][key] for key in logs["sp"][s])
        for s in logs["sp"]
    )
    spread = {
        name: {s: _spread(each) for s, each in by_seed.items()} for name, by_seed in logs.items()
    }
    steadier = paired(spread["mup"], spread["sp"])
    diverged = {name: _diverged(rows) for name, rows in changes.items()}
    unstable = diverged["sp"] > diverged["mup"]
    ratio = f"{math.exp(more.mean):.2f}"
    return [
        Verdict(
            "coordinate-check",
            higher(more),
            f"log of the ratio of the changes, muP to {title}, mean over layers and widths after "
            f"{step} step{'s' * (step > 1)}: {more}, a ratio of {ratio}",
            f"features change more under muP than under {title}: the interval over seeds is above "
            "0 (after the last step; if runs diverge, after the first, before features explode)",
            f"{subject} changes more under muP than under {title}",
            f"{ratio} times",
        ),
        Verdict(
            "coordinate-check",
            True if unstable else lower(steadier),
            f"standard deviation over widths of the log change: {_mean(spread['mup']):.2f} "
            f"under muP, {_mean(spread['sp']):.2f} under {title}, difference {steadier}; diverged "
            f"runs: {diverged['mup']} under muP, {diverged['sp']} under {title}",
            f"training is more stable across widths under muP than under {title}: fewer runs "
            "diverge or, if as many, the change varies less between widths",
            f"{subject} is more stable across widths under muP than under {title}",
            f"{_mean(spread['mup']):.2f} against {_mean(spread['sp']):.2f}",
        ),
    ]


def _judged_step(sp: list[Any], mup: list[Any], quantity: str) -> int:
    """Return the last step; the first one if a run diverges, before its features explode."""
    steps: set[int] = {row["step"] for row in sp}
    diverges = any(row[quantity] is None for row in (*sp, *mup))
    return min(steps) if diverges else max(steps)


def _logs(rows: list[Any], quantity: str, step: int) -> dict[int, dict[tuple[str, int], float]]:
    """Return seed -> layer and width -> log change at a step."""
    found: dict[int, dict[tuple[str, int], float]] = {}
    for row in rows:
        if row["step"] == step:
            value = geometric([row[quantity]])
            found.setdefault(row["seed"], {})[row["layer"], row["width"]] = value
    return found


def _spread(logs: Mapping[tuple[str, int], float]) -> float:
    """Return the standard deviation over widths, as a mean over layers."""
    if not all(map(math.isfinite, logs.values())):
        return math.nan
    layers = {layer for layer, _ in logs}
    return statistics.fmean(
        statistics.pstdev([value for (at, _), value in logs.items() if at == layer])
        for layer in layers
    )


def _diverged(rows: list[Any]) -> int:
    return len({(row["width"], row["seed"]) for row in rows if row["mean"] is None})


def _mean(values: Mapping[int, float]) -> float:
    return statistics.fmean(values.values())


def _slopes(results: dict[str, Any]) -> Verdict:
    """Return our question: does the change under muP not depend on the width?"""
    tolerance = results["variational_mup"]["tolerance"]
    slopes = {
        kind: [layer["mean"] for layer in results[f"{kind}_mup"]["slopes"].values()]
        for kind in ("deterministic", "variational")
    }
    values = [value for each in slopes.values() for value in each]
    widths = {row["width"] for row in results["variational_mup"]["changes"]}
    return Verdict(
        "coordinate-check",
        all(value is not None and abs(value) <= tolerance for value in values),
        "log-log slopes of the change of the features' mean against width: "
        + "; ".join(f"{name} {_numbers(each)}" for name, each in slopes.items()),
        f"within {tolerance} of 0 in every layer, the tolerance of tacit mup check",
        "under muP the change doesn't depend on the width",
        _numbers(values),
        lacking="" if len(widths) > 2 else f"{len(widths)} widths",
        ours=True,
    )


def _numbers(values: list[float | None]) -> str:
    return ", ".join("diverged" if v is None else f"{v:.2f}" for v in values)


def draw(results: dict[str, Any], folder: Path) -> None:
    """Draw the four figures from saved results."""
    for name, result in results.items():
        for ending in ("pdf", "png"):
            kind, _, reference = name.partition("_")
            title = f"{kind}, {REFERENCES.get(reference, 'muP')}"
            plot_coordinates(result["changes"], folder / f"{name}.{ending}", title)


EXPERIMENT = Experiment(
    name="coordinate_check",
    figure="supplement, four coordinate checks",
    title="The claim `coordinate-check`: features change more, and more stably, under muP.",
    about="""
    The paper's setting: MLPs with two hidden layers of 8 to 64 units, one observation (1, 1),
    squared error, SGD with learning rate 0.05, deterministic and variational with full-rank
    covariances, five seeds. Full rank at width 64 means 4160 directions.

    The paper defines SP by variances proportional to 1 / fan_in, "as in Kaiming initialization, the
    PyTorch default". The factor matters, so there are two: 1 / fan_in, and PyTorch's third of it.
    """,
    caption="Change of each layer's features after one to five steps against the width",
    claims=("coordinate-check",),
    scales={
        "smoke": {"widths": (4, 8), "seeds": 1, "steps": 2, "samples": 4},
        "cpu": {},
        "paper": {},
    },
    minutes={"smoke": 0.1, "cpu": 1, "paper": 1},
    needs="nothing",
    compute=compute,
    verdicts=verdicts,
    draw=draw,
)
