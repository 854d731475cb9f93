"""Measurement of a cell: train once, then score on all test sets."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, get_args

import torch

from tacit._support import checks
from tacit._support.provenance import provenance
from tacit.data import Images, Splits
from tacit.data.batches import Batches
from tacit.inference.calibration import calibrate
from tacit.inference.functions import Predictor, functions_of
from tacit.inference.scores import collect, collect_each
from tacit.likelihood import Categorical
from tacit.likelihood.predictive import Averaging
from tacit.methods.network_cache import NetworkCache
from tacit.methods.task import Task
from tacit.metrics import auroc, fpr95
from tacit.studies.bench.grid import PARAMETRIZATIONS, Cell, describe, method_of, problem_of

BATCH = 256  # examples per batch in prediction
SCORES = "entropy", "mutual_information"  # by which foreign images are detected


def measure(
    cell: Cell,
    networks: str | Path | None = None,
    made_by: Mapping[str, Any] | None = None,
    checkpoint: Path | None = None,
) -> dict[str, Any]:
    """Train and evaluate a cell; return its settings and scores as plain data.

    Args:
        cell: Settings of training and evaluation.
        networks: Folder in which plain networks are saved and looked up; None for no reuse.
        made_by: Versions and commit to record; by default the current ones.
        checkpoint: Folder of checkpoints, from which an interrupted training resumes; None for no
            checkpoints.

    Returns:
        The settings as `cell` and `method`, the scores as `test`, `corrupted`, `foreign` and
        `averaging`, the `cost`, and the versions.

    Examples:
        >>> sizes = {"train_size": 64, "test_size": 10, "corrupted_size": 2}
        >>> result = measure(Cell("digits", "standard", epochs=1, **sizes))
        >>> sorted(result["test"])[:3], len(result["corrupted"])
        (['accuracy', 'adaptive_ece', 'aurc'], 15)
    """
    made_by = provenance() if made_by is None else made_by
    problem = problem_of(cell)
    data = Splits(*problem.load())
    test = data.test[: cell.test_size]
    for name in problem.corruptions[:1]:
        problem.corrupted(name, test[:1])  # raises before training if the images are unsuitable
    # Only for built-in problems: the data or network of a user's own problem may have changed.
    own = ":" in cell.data and not cell.data.startswith("tacit.")
    reuse = networks is not None and not own
    cache = NetworkCache(Path(str(networks)) / cell.network) if reuse else None
    sizes = {} if cell.width is None else {"width": cell.width}
    task = Task(
        lambda: problem.make_net(**sizes),
        data.train[: cell.train_size], data.validation[: cell.validation_size],
        Categorical(),
        PARAMETRIZATIONS[cell.parametrization](), cell.seed,
        {
            "epochs": cell.epochs, "lr": cell.lr, "batch_size": cell.batch_size,
            "average": cell.average, "optimizer": cell.optimizer, "progress": False,
            "checkpoint": checkpoint,
        },
        cache,
    )  # fmt: skip
    method = method_of(cell)
    predictor = method.fit_task(task)
    assert predictor.cost is not None
    scores = score(predictor, cell, test)
    if getattr(method, "calibrated", False) and cell.samples > 1:
        for way, nll in tempered_nll(predictor, cell, task.validation, test).items():
            scores["averaging"][way]["tempered_nll"] = nll
    return {
        "cell": asdict(cell),
        "method": describe(method),
        **made_by,
        "threads": torch.get_num_threads(),
        "cost": {name: checks.finite_or_none(v) for name, v in asdict(predictor.cost).items()},
        **scores,
    }


def score(predictor: Predictor, cell: Cell, test: Images) -> dict[str, Any]:
    """Return metrics on test, corrupted and foreign images, by the same functions."""
    problem, likelihood = problem_of(cell), predictor.likelihood
    assert isinstance(likelihood, Categorical)
    generator = seeded(predictor, cell.seed)
    with functions_of(predictor, samples=cell.samples, generator=generator) as functions:
        ways = [likelihood, *(with_averaging(likelihood, way) for way in get_args(Averaging))]
        clean, *each = collect_each(functions, ways, Batches("test", test, BATCH), SCORES)
        inside = clean.uncertainties
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
            # `replace` keeps the normalisation of the test images.
            images = replace(test, pixels=pixels[chosen], targets=chosen)
            data = Batches(name, images, BATCH, targets=False)
            outside = collect(functions, likelihood, data, SCORES).uncertainties
            pair = inside["entropy"], outside["entropy"]
            foreign[name] = {"auroc": auroc(*pair), "fpr95": fpr95(*pair)}
            if cell.samples > 1:
                pair = inside["mutual_information"], outside["mutual_information"]
                foreign[name]["auroc_mutual_information"] = auroc(*pair)
    return {
        "test": finite(clean.compute()),
        "corrupted": corrupted,
        "foreign": foreign,
        "averaging": {
            way: finite(found.compute())
            for way, found in zip(get_args(Averaging), each, strict=True)
        },
    }


def tempered_nll(
    predictor: Predictor, cell: Cell, validation: Images, test: Images
) -> dict[str, float | None]:
    """Return the test NLL of each averaging with a temperature of its own.

    Averaging logits gives the same probabilities as averaging log-probabilities.
    """
    found: dict[str, float | None] = {}
    ways: tuple[Averaging, ...] = ("log_probs", "probs")
    for way in ways:
        copied = copy.deepcopy(predictor)
        assert isinstance(copied.likelihood, Categorical)
        copied.likelihood.averaging = way
        first, second = (seeded(copied, cell.seed) for _ in range(2))
        calibrate(copied, validation, samples=cell.samples, generator=first)
        with functions_of(copied, samples=cell.samples, generator=second) as functions:
            scores = collect(functions, copied.likelihood, Batches("test", test, BATCH)).compute()
        found[way] = scores["nll"] if math.isfinite(scores["nll"]) else None
    return found


def seeded(predictor: Predictor, seed: int) -> torch.Generator:
    """Return a generator of random numbers on the predictor's device, as its noise requires."""
    largest = max((*predictor.parameters(), *predictor.buffers()), key=torch.Tensor.numel)
    return torch.Generator(largest.device).manual_seed(seed)


def with_averaging(likelihood: Categorical, averaging: Averaging) -> Categorical:
    """Return a copy of the likelihood with another averaging.

    Its temperature is 1, because the fitted temperature depends on the averaging.
    """
    copied = copy.deepcopy(likelihood)
    copied.averaging = averaging
    copied.set_temperature(torch.ones(()))
    return copied


def finite(numbers: Mapping[str, float]) -> dict[str, Any]:
    """Return numbers for a JSON file, with None for those that are not finite."""
    return {name: checks.finite_or_none(value) for name, value in numbers.items()}
