"""The methods of the paper compared: a grid of trainings that several experiments read."""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from tacit import _checks, models
from tacit.bench import METHODS, PROBLEMS, Cell, grid, results
from tacit.bench import run as run_cells
from tacit.bench.summary import numbers_of
from tacit.experiments.runner import Scales

PAPER = "implicit_bias_vi_paper"  # first and last layer, one draw: the method as the paper has it
OURS = "implicit_bias_vi"  # with the defaults of this library
NAMES = {PAPER: "the paper's recipe", OURS: "tacit's defaults"}
NOT_THE_PAPERS = ("mc_dropout", "generalized_vi", *NAMES)  # not among its methods compared

# The paper's networks, with weights from ImageNet, for which torchvision has to be installed.
cifar10, cifar100, tiny_imagenet = (
    replace(
        PROBLEMS[name],
        make_net=partial(models.ResNet34, classes, norm="group", pretrained="imagenet"),
        lr={"sp": 0.005, "mup": 0.005},
    )
    for name, classes in (("cifar10", 10), ("cifar100", 100), ("tiny_imagenet", 200))
)

SCALES: Scales = {
    "smoke": {
        "data": ("digits",),
        "methods": (
            "standard",
            "temperature_scaling",
            "laplace_grid",
            "deep_ensemble",
            PAPER,
            OURS,
        ),
        "parametrizations": ("sp",),
        "seeds": 1,
        "epochs": 1,
        "train_size": 100,
        "test_size": 20,
        "corrupted_size": 2,
        "samples": 2,
        "jobs": 1,
    },
    "cpu": {},
    "paper": {
        "data": (
            "mnist",
            *(f"tacit.experiments.compared:{n}" for n in ("cifar10", "cifar100", "tiny_imagenet")),
        ),
        "seeds": 5,
        "epochs": 200,
        "lr": 0.005,
        "train_size": None,
        "test_size": None,
        "corrupted_size": None,
    },
}

Setting: TypeAlias = tuple[str, str]
"""Name of a problem, and of a parametrization."""


def compute(
    kinds: Sequence[str],
    data: Sequence[str] = ("mnist", "fashion_mnist"),
    methods: Sequence[str] = tuple(METHODS),
    parametrizations: Sequence[str] = ("sp", "mup"),
    seeds: int = 3,
    epochs: int = 20,
    lr: float | None = None,
    train_size: int | None = 10_000,
    test_size: int | None = 5_000,
    corrupted_size: int | None = 500,
    samples: int = 32,
    jobs: int = -1,
    folder: Path = Path("results/any"),
) -> dict[str, Any]:
    """Compare all methods, in the folder `bench` beside an experiment's own.

    Args:
        kinds: What the names of the numbers to return begin with.
        data: As all others, for `compare`.
        methods: Names of methods.
        parametrizations: "sp", "mup" or both.
        seeds: How many.
        epochs: Passes over the training data.
        lr: Learning rate; if left out, the problem's.
        train_size: How many examples to train on.
        test_size: How many test images.
        corrupted_size: How many of them with each corruption.
        samples: Functions in a prediction.
        jobs: How many trainings at a time.
        folder: Of the experiment.
    """
    rows = compare(
        folder.parent / "bench", data, methods, parametrizations, seeds, jobs,
        epochs=epochs, lr=lr, train_size=train_size, test_size=test_size,
        corrupted_size=corrupted_size, samples=samples,
    )  # fmt: skip
    for row in rows:
        row["numbers"] = {n: v for n, v in row["numbers"].items() if n.startswith(tuple(kinds))}
    return {"rows": rows}


def compare(
    folder: Path,
    data: Sequence[str],
    methods: Sequence[str],
    parametrizations: Sequence[str],
    seeds: int,
    jobs: int,
    **settings: Any,
) -> list[dict[str, Any]]:
    """Train and evaluate what a folder has no result of yet; return the numbers of all.

    Args:
        folder: Folder of the results of single trainings, as `tacit bench` writes them.
        data: Names of problems.
        methods: Names of methods.
        parametrizations: "sp", "mup" or both.
        seeds: How many.
        jobs: How many trainings at a time; -1 for as many as there are cores.
        **settings: Further fields of `tacit.bench.Cell`.

    Returns:
        For each training its setting, method and seed, and `numbers` as `tacit.bench` names them.
    """
    cells = grid(data, methods, parametrizations, seeds, **settings)
    left = len(cells)

    def done(cell: Cell, problem: str | None) -> None:
        nonlocal left
        left -= 1
        sys.stdout.write(f"  {cell.name}{f': {problem}' if problem else ''}, {left} left\n")
        sys.stdout.flush()

    failed = run_cells(cells, folder, jobs=jobs, done=done)
    if failed:
        names = ", ".join(cell.name for cell in failed)
        raise RuntimeError(f"{folder}: {names} failed; start again to go on with the others.")
    wanted = set(cells)
    return [
        {
            "data": found["cell"].data,
            "parametrization": found["cell"].parametrization,
            "method": found["cell"].method,
            "seed": found["cell"].seed,
            "numbers": {n: _checks.finite_or_none(v) for n, v in numbers_of(found).items()},
        }
        for found in results(folder)
        if found["cell"] in wanted
    ]


@dataclass(frozen=True)
class Comparison:
    """The numbers of a comparison by setting, method and seed.

    Args:
        rows: As `compare` returns them.
    """

    rows: Sequence[Mapping[str, Any]]

    @property
    def settings(self) -> list[Setting]:
        """Problems and parametrizations that there are numbers of."""
        return list(dict.fromkeys((row["data"], row["parametrization"]) for row in self.rows))

    @property
    def seeds(self) -> int:
        """The least number of seeds of anything."""
        counts: dict[tuple[str, str, str], int] = {}
        for row in self.rows:
            key = (row["data"], row["parametrization"], row["method"])
            counts[key] = counts.get(key, 0) + 1
        return min(counts.values())

    def methods(self, setting: Setting) -> list[str]:
        """Methods that there are numbers of, in the order of `tacit.bench.METHODS`."""
        found = {r["method"] for r in self.rows if (r["data"], r["parametrization"]) == setting}
        return sorted(found, key=lambda name: [*METHODS, name].index(name))

    def values(self, setting: Setting, method: str, quantity: str) -> dict[int, float]:
        """Return the numbers of a method by seed."""
        return {
            row["seed"]: math.nan if (number := row["numbers"][quantity]) is None else number
            for row in self.rows
            if (row["data"], row["parametrization"], row["method"]) == (*setting, method)
        }

    def mean(self, setting: Setting, method: str, quantity: str) -> float:
        """Return the mean over seeds."""
        return statistics.fmean(self.values(setting, method, quantity).values())

    def ratios(self, method: str, other: str, quantity: str) -> dict[Setting, float]:
        """Return for each setting the ratio of their means."""
        return {
            setting: self.mean(setting, method, quantity) / self.mean(setting, other, quantity)
            for setting in self.settings
        }


def label(setting: Setting) -> str:
    """Return a setting as text: mnist sp."""
    data, parametrization = setting
    return f"{data.rpartition(':')[2]} {parametrization}"


def written(ratios: Mapping[Setting, float]) -> str:
    """Return ratios as text."""
    return ", ".join(f"{label(setting)} {ratio:.2f}" for setting, ratio in ratios.items())
