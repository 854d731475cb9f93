"""What a cell measures: train once, predict on everything, keep the numbers."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, get_args

import torch

from tacit import _checks
from tacit._provenance import provenance
from tacit.batches import Batches
from tacit.bench.cells import PARAMETRIZATIONS, Cell, described, method_of, problem_of
from tacit.bench.problems import PROBLEMS
from tacit.data import Images, Splits
from tacit.likelihood import Categorical
from tacit.methods.base import Task
from tacit.methods.kept import Kept
from tacit.metrics import auroc, fpr95
from tacit.prediction import collect, collect_each, functions_of
from tacit.predictive import Averaging
from tacit.predictor import Predictor

BATCH = 256  # examples at a time in predictions


def measure(
    cell: Cell, networks: str | Path | None = None, made_by: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Train and evaluate a cell; return its settings and numbers, as plain data.

    Args:
        cell: What to do.
        networks: Folder to keep plain networks in, and to take them from.
        made_by: What makes the result: versions and commit, now if left out.
    """
    made_by = provenance() if made_by is None else made_by
    problem = problem_of(cell)
    data = Splits(*problem.load())
    test = data.test[: cell.test_size]
    for name in problem.corruptions[:1]:
        problem.corrupted(name, test[:1])  # can such images be corrupted? Better now than later
    # Not of a problem of the user's own: its data or network may have changed since.
    known = cell.data in PROBLEMS and networks is not None
    kept = Kept(Path(str(networks)) / cell.network) if known else None
    sizes = {} if cell.width is None else {"width": cell.width}
    task = Task(
        lambda: problem.make_net(**sizes),
        data.train[: cell.train_size], data.validation[: cell.validation_size],
        Categorical(),
        PARAMETRIZATIONS[cell.parametrization](), cell.seed,
        {"epochs": cell.epochs, "lr": cell.lr, "batch_size": cell.batch_size, "progress": False},
        kept,
    )  # fmt: skip
    predictor = method_of(cell).fit_task(task)
    assert predictor.cost is not None
    return {
        "cell": asdict(cell),
        "method": described(method_of(cell)),
        **made_by,
        "threads": torch.get_num_threads(),
        "cost": {name: _checks.finite_or_none(v) for name, v in asdict(predictor.cost).items()},
        **scores(predictor, cell, test),
    }


def scores(predictor: Predictor, cell: Cell, test: Images) -> dict[str, Any]:
    """Return metrics on test images, on corrupted and on foreign ones, by the same functions."""
    problem, likelihood = problem_of(cell), predictor.likelihood
    assert isinstance(likelihood, Categorical)
    generator = torch.Generator().manual_seed(cell.seed)
    with functions_of(predictor, samples=cell.samples, generator=generator) as functions:
        ways = [likelihood, *(averaged(likelihood, way) for way in get_args(Averaging))]
        clean, *each = collect_each(functions, ways, Batches("test", test, BATCH))
        some = test[: cell.corrupted_size]
        corrupted = {}
        for name in problem.corruptions:
            images = problem.corrupted(name, some)
            found = collect(functions, likelihood, Batches(name, images, BATCH))
            corrupted[name] = finite(found.compute())
        foreign = {}
        for name, load in problem.foreign.items():
            pixels = load().pixels
            chosen = torch.randperm(len(pixels), generator=torch.Generator().manual_seed(0))
            chosen = chosen[: len(some)]
            images = replace(test, pixels=pixels[chosen], targets=chosen)  # normalised as the data
            found = collect(functions, likelihood, Batches(name, images, BATCH, targets=False))
            pair = clean["entropy"], found["entropy"]
            foreign[name] = {"auroc": auroc(*pair), "fpr95": fpr95(*pair)}
    return {
        "test": finite(clean.compute()),
        "corrupted": corrupted,
        "foreign": foreign,
        "averaging": {
            way: finite(found.compute())
            for way, found in zip(get_args(Averaging), each, strict=True)
        },
    }


def averaged(likelihood: Categorical, averaging: Averaging) -> Categorical:
    """Return the likelihood with a way to combine functions, at temperature 1: fair to each."""
    copied = copy.deepcopy(likelihood)
    copied.averaging = averaging
    copied.set_temperature(torch.ones(()))
    return copied


def finite(numbers: Mapping[str, float]) -> dict[str, Any]:
    """Return numbers for a JSON file: None stands for one that is not finite."""
    return {name: _checks.finite_or_none(value) for name, value in numbers.items()}
