"""The comparison of methods: a grid of training runs that several experiments share."""

from __future__ import annotations

import math
import statistics
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, TypeAlias

from tacit import models
from tacit._support import checks
from tacit.methods import MeanFieldVI
from tacit.studies.bench import METHODS, PROBLEMS, Cell, make_grid, read_results, run_cells
from tacit.studies.bench.results import is_finished
from tacit.studies.bench.summary import numbers_of
from tacit.studies.experiments.cells import ALL, trained
from tacit.studies.experiments.evidence import Interval, paired, shortfall
from tacit.studies.experiments.experiment import Scales

PAPER = "implicit_bias_vi_paper"  # the paper's method: first and last layer, one draw
OURS = "implicit_bias_vi"  # the defaults of this library
NAMES = {PAPER: "the paper's recipe", OURS: "tacit's defaults"}
SWAG, ENSEMBLE = "swag", "deep_ensemble"
MEAN_FIELD = "mean_field_vi_8"  # with the paper's 8 samples per step
POST_HOC = ("temperature_scaling", "laplace_grid", "laplace_marglik")
BASELINES = ("standard", *POST_HOC, "mean_field_vi", MEAN_FIELD, SWAG)  # single networks
DATA = ("mnist", "cifar10", "cifar100", "tiny_imagenet")  # the paper's; others are ours
SIZE = {"epochs": 200, "train_size": None}

mean_field_vi_8 = MeanFieldVI(samples=8)

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
        "data": ("mnist",),
        # The first trains the plain networks that most others use; meanwhile run those that don't.
        "methods": (SWAG, PAPER, OURS, "standard", *POST_HOC, ENSEMBLE),
        "slow_methods": (f"{__name__}:{MEAN_FIELD}",),
        "slow_seeds": 2,
        "pretrained": True,
        "seeds": 5,
        "epochs": 200,
        "lr": 0.005,
        "train_size": None,
        "test_size": None,
        "corrupted_size": None,
    },
}
MINUTES = {"smoke": 0.5, "cpu": 100, "paper": 1800}
NEEDS = (
    "MNIST, Fashion-MNIST; paper: MNIST, with --data cifar10,cifar100,tiny_imagenet also "
    "torchvision and GPUs"
)

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
    slow_methods: Sequence[str] = (),
    slow_seeds: int = 2,
    pretrained: bool = False,
    jobs: int = -1,
    folder: Path = Path("results/any"),
    bench: str = "",
    cells: str = ALL,
) -> dict[str, Any]:
    """Compare all methods, in the folder `bench` beside the experiment's own.

    Training runs that the pattern `cells` leaves out, and that the folder lacks, have no rows.

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
        slow_methods: Further methods, with fewer seeds, since they take many times as long.
        slow_seeds: Number of seeds of these.
        pretrained: Whether photographs are classified by the paper's networks: ResNet-34,
            pretrained on ImageNet.
        jobs: Number of parallel training runs; -1 for one per core.
        folder: Folder of the experiment.
        bench: Folder of `tacit bench` that has, or receives, the training runs.
        cells: Shell pattern of the names of the cells to train.

    Returns:
        `rows`, as `compare` returns them, and which training runs are finished.
    """
    own = ("cifar10", "cifar100", "tiny_imagenet") if pretrained else ()
    data = [f"{__name__}:{name}" if name in own else name for name in data]
    settings = {
        "epochs": epochs, "lr": lr, "train_size": train_size, "test_size": test_size,
        "corrupted_size": corrupted_size, "samples": samples,
    }  # fmt: skip
    grid = make_grid(data, methods, parametrizations, seeds, **settings)
    if slow_methods:
        grid += make_grid(data, slow_methods, parametrizations, slow_seeds, **settings)
    rows = compare(Path(bench) if bench else folder.parent / "bench", grid, jobs, cells)
    for row in rows:
        row["numbers"] = {n: v for n, v in row["numbers"].items() if n.startswith(tuple(kinds))}
    return {"rows": rows, "trained": _trained(grid, rows)}


def _trained(grid: Sequence[Cell], rows: Sequence[Mapping[str, Any]]) -> str:
    """Return which training runs are finished, in words; empty if all are."""
    names = "data", "parametrization", "method", "seed"
    finished = {tuple(row[name] for name in names) for row in rows}
    choices = [
        {**{name: getattr(cell, name) for name in names}, "method": short(cell.method)}
        for cell in grid
    ]
    return trained(choices, [True if tuple(c.values()) in finished else None for c in choices])


def compare(
    folder: Path, cells: Sequence[Cell], jobs: int, pattern: str = ALL
) -> list[dict[str, Any]]:
    """Run the training runs without a result in a folder; return the numbers of those it has.

    Args:
        folder: Folder of the results of single training runs, as `tacit bench` writes them.
        cells: The training runs.
        jobs: Number of parallel training runs; -1 for one per core.
        pattern: Shell pattern; only cells whose name it matches are run.

    Returns:
        Data, parametrization, method (without its module) and seed of each training, and its
        `numbers` by their names in `tacit.studies.bench.Row`.

    Raises:
        RuntimeError: If training runs failed.
    """
    unfinished = [cell for cell in cells if not is_finished(cell, folder)]
    chosen = [cell for cell in unfinished if fnmatchcase(cell.name, pattern)]
    if not chosen and len(unfinished) == len(cells):
        raise ValueError(
            f"--cells: expected a pattern of names like {cells[0].name!r}, since {folder} has no "
            f"finished training run; received {pattern!r}."
        )
    start, count = time.monotonic(), 0

    def done(cell: Cell, problem: str | None) -> None:
        nonlocal count
        count += 1
        hours = (time.monotonic() - start) / count * (len(chosen) - count) / 3600
        finished, state = len(cells) - len(unfinished) + count, f": {problem}" if problem else ""
        sys.stdout.write(f"  [{finished}/{len(cells)}] {cell.name}{state}, {hours:.1f} h left\n")
        sys.stdout.flush()

    failed = run_cells(chosen, folder, jobs=jobs, done=done)
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
            "method": short(found["cell"].method),
            "seed": found["cell"].seed,
            "seconds": found["cost"]["seconds"],
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

    def only(self, paper: bool) -> Comparison:
        """Return the numbers on the paper's data sets, or those on the others."""
        rows = [row for row in self.rows if (short(row["data"]) in DATA) == paper]
        return Comparison(rows)

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

    def difference(
        self, setting: Setting, method: str, other: str, quantity: str, comparisons: int = 1
    ) -> Interval:
        """Return the interval of the difference of two methods over their common seeds."""
        ours, theirs = (self.values(setting, name, quantity) for name in (method, other))
        return paired(ours, theirs, comparisons)

    def differences(self, method: str, other: str, quantity: str) -> dict[str, Interval]:
        """Return the difference of two methods by setting, where both have numbers."""
        return {
            label(setting): self.difference(setting, method, other, quantity)
            for setting in self.both(method, other)
        }

    def lacks(self, methods: Iterable[str], arguments: Mapping[str, Any]) -> str:
        """Return what a comparison of methods lacks to decide, in words; empty if nothing.

        Args:
            methods: Names of the methods.
            arguments: Arguments of the run: sizes, data sets, parametrizations, methods.
        """
        ours = {short(setting[0]) in DATA for setting in self.settings}
        data = [name for name in arguments.get("data", ()) if (name in DATA) in ours]
        wanted = list(product(data, arguments.get("parametrizations", ()))) or self.settings
        planned = {short(m) for key in ("methods", "slow_methods") for m in arguments.get(key, ())}
        needed = [m for m in methods if m in (planned or {row["method"] for row in self.rows})]
        finished = {label(setting): self.methods(setting) for setting in self.settings}
        missing = []
        for at in map(label, wanted):
            absent = [method for method in needed if method not in finished.get(at, ())]
            missing += [f"{', '.join(absent)} ({at})" if at in finished else at] if absent else []
        runs = [f"no training runs of {', '.join(missing)}"] if missing else []
        return ", ".join(filter(None, [shortfall(arguments, SIZE), *runs]))

    def both(self, method: str, other: str) -> list[Setting]:
        """Return the settings in which two methods have numbers."""
        return [s for s in self.settings if {method, other} <= set(self.methods(s))]

    def ratio(self, method: str, other: str, quantity: str) -> float:
        """Return the ratio of a quantity of two methods, mean over settings; NaN without any."""
        ratios = [
            self.mean(s, method, quantity) / self.mean(s, other, quantity)
            for s in self.both(method, other)
        ]
        return statistics.fmean(ratios) if ratios else math.nan

    def spread(self, setting: Setting, quantity: str) -> float:
        """Return the root mean square difference between two seeds of the standard network."""
        values = list(self.values(setting, "standard", quantity).values())
        if len(values) < 2 or not all(map(math.isfinite, values)):
            return math.nan
        return math.sqrt(2) * statistics.stdev(values)


def short(name: str) -> str:
    """Return the name of a problem or method without its module."""
    return name.rpartition(":")[2]


def parts(results: Mapping[str, Any]) -> list[tuple[Comparison, bool]]:
    """Return the numbers on the paper's data sets and on others, and whether they are the paper's.

    Parts without numbers are left out.
    """
    found = Comparison(results["rows"])
    both = [(found.only(paper), paper) for paper in (True, False)]
    return [(part, paper) for part, paper in both if part.rows]


def label(setting: Setting) -> str:
    """Return a setting as text: mnist sp."""
    data, parametrization = setting
    return f"{short(data)} {parametrization}"
