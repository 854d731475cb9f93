"""The comparison of methods: a grid of training runs that several experiments share."""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from tacit import models
from tacit._support import checks
from tacit.studies.bench import METHODS, PROBLEMS, Cell, make_grid, read_results, run_cells
from tacit.studies.bench.summary import numbers_of
from tacit.studies.experiments.experiment import Scales

PAPER = "implicit_bias_vi_paper"  # the paper's method: first and last layer, one draw
OURS = "implicit_bias_vi"  # the defaults of this library
NAMES = {PAPER: "the paper's recipe", OURS: "tacit's defaults"}
NOT_IN_PAPER = ("mc_dropout", "generalized_vi", *NAMES)  # not among the paper's baselines

# The paper's networks, pretrained on ImageNet; they need torchvision.
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
            *(f"{__name__}:{name}" for name in ("cifar10", "cifar100", "tiny_imagenet")),
        ),
        "seeds": 5,
        "epochs": 200,
        "lr": 0.005,
        "train_size": None,
        "test_size": None,
        "corrupted_size": None,
    },
}
MINUTES = {"smoke": 0.5, "cpu": 100, "paper": 1e5}
NEEDS = "MNIST, Fashion-MNIST; paper: also CIFAR-10, CIFAR-100, TinyImageNet, torchvision, GPUs"

Setting: TypeAlias = tuple[str, str]
"""Names of a problem and of a parametrization."""


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
    """Compare all methods, in the folder `bench` beside the experiment's own.

    Args:
        kinds: Prefixes of the names of the numbers to return.
        data: Names of problems.
        methods: Names of methods.
        parametrizations: "sp", "mup" or both.
        seeds: Number of seeds.
        epochs: Passes over the training data.
        lr: Learning rate; by default the problem's.
        train_size: Number of training examples; None for all.
        test_size: Number of test images; None for all.
        corrupted_size: Number of test images per corruption; None for all.
        samples: Sampled functions per prediction.
        jobs: Number of parallel training runs; -1 for one per core.
        folder: Folder of the experiment.

    Returns:
        `rows`, as `compare` returns them.
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
    """Run the training runs without a result in a folder; return the numbers of all.

    Args:
        folder: Folder of the results of single training runs, as `tacit bench` writes them.
        data: Names of problems.
        methods: Names of methods.
        parametrizations: "sp", "mup" or both.
        seeds: Number of seeds.
        jobs: Number of parallel training runs; -1 for one per core.
        **settings: Further fields of `tacit.studies.bench.Cell`.

    Returns:
        Data, parametrization, method and seed of each training, and its `numbers` by their names
        in `tacit.studies.bench.Row`.

    Raises:
        RuntimeError: If training runs failed.
    """
    cells = make_grid(data, methods, parametrizations, seeds, **settings)
    left = len(cells)

    def done(cell: Cell, problem: str | None) -> None:
        nonlocal left
        left -= 1
        sys.stdout.write(f"  {cell.name}{f': {problem}' if problem else ''}, {left} left\n")
        sys.stdout.flush()

    failed = run_cells(cells, folder, jobs=jobs, done=done)
    if failed:
        names = ", ".join(cell.name for cell in failed)
        raise RuntimeError(
            f"{folder}: {names} failed; run again to retry, finished ones are saved."
        )
    wanted = set(cells)
    return [
        {
            "data": found["cell"].data,
            "parametrization": found["cell"].parametrization,
            "method": found["cell"].method,
            "seed": found["cell"].seed,
            "numbers": {n: checks.finite_or_none(v) for n, v in numbers_of(found).items()},
        }
        for found in read_results(folder)
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
        """The settings with numbers."""
        return list(dict.fromkeys((row["data"], row["parametrization"]) for row in self.rows))

    @property
    def seeds(self) -> int:
        """The smallest number of seeds of any method in any setting."""
        counts: dict[tuple[str, str, str], int] = {}
        for row in self.rows:
            key = (row["data"], row["parametrization"], row["method"])
            counts[key] = counts.get(key, 0) + 1
        return min(counts.values())

    def methods(self, setting: Setting) -> list[str]:
        """Return the methods with numbers in a setting, in the order of `METHODS`."""
        found = {r["method"] for r in self.rows if (r["data"], r["parametrization"]) == setting}
        return sorted(found, key=lambda name: [*METHODS, name].index(name))

    def values(self, setting: Setting, method: str, quantity: str) -> dict[int, float]:
        """Return the values of a quantity by seed."""
        return {
            row["seed"]: math.nan if (number := row["numbers"][quantity]) is None else number
            for row in self.rows
            if (row["data"], row["parametrization"], row["method"]) == (*setting, method)
        }

    def mean(self, setting: Setting, method: str, quantity: str) -> float:
        """Return the mean of a quantity over seeds."""
        return statistics.fmean(self.values(setting, method, quantity).values())

    def ratios(self, method: str, other: str, quantity: str) -> dict[Setting, float]:
        """Return the ratio of the means of two methods, by setting."""
        return {
            setting: self.mean(setting, method, quantity) / self.mean(setting, other, quantity)
            for setting in self.settings
        }


def label(setting: Setting) -> str:
    """Return a setting as text: mnist sp."""
    data, parametrization = setting
    return f"{data.rpartition(':')[2]} {parametrization}"


def format_ratios(ratios: Mapping[Setting, float]) -> str:
    """Return ratios as text: mnist sp 0.93, mnist mup 1.02."""
    return ", ".join(f"{label(setting)} {ratio:.2f}" for setting, ratio in ratios.items())
