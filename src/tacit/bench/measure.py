"""What a cell measures: train once, predict on everything, keep the numbers."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, get_args

import torch
from torch import nn

from tacit import _checks, _files
from tacit._provenance import provenance
from tacit.batches import Batches
from tacit.bench.cells import PARAMETRIZATIONS, Cell, method_of, problem_of
from tacit.data import Images
from tacit.likelihood import Categorical
from tacit.methods.base import Task
from tacit.metrics import auroc, fpr95
from tacit.prediction import collect, collect_each, functions_of
from tacit.predictive import Averaging
from tacit.predictor import Predictor

BATCH = 256  # examples at a time in predictions


@dataclass(frozen=True)
class SharedTask(Task):
    """A task whose plain networks are kept as files, for all methods that begin with them.

    Args:
        folder: Where; one for each task, None to keep nothing.
        took: Seconds that the networks took which were found there.
    """

    folder: Path | None = None
    took: list[float] | None = None

    def trained(self, member: int = 0) -> nn.Module:
        """Return a plain network that is trained, from its file if there is one."""
        if self.folder is None:
            return super().trained(member)
        path = self.folder / f"{member}.safetensors"
        net = self.net(member)
        if path.exists():
            header, tensors = _files.read(path, "tacit_bench", "tacit bench")
            _files.check_fits(path, net.state_dict(), tensors)
            net.load_state_dict(tensors)
            assert self.took is not None
            self.took.append(header["seconds"])
            return net
        seconds = sum(self.fit(net, member=member)["seconds"])
        self.folder.mkdir(parents=True, exist_ok=True)
        _files.write(path, "tacit_bench", {"seconds": seconds}, net.state_dict())
        return net

    @property
    def spared(self) -> float:
        """Seconds of training that were spared because the network was there already."""
        return sum(self.took or [])


def measure(cell: Cell, networks: str | Path | None = None) -> dict[str, Any]:
    """Train and evaluate a cell; return its settings and numbers, as plain data.

    Args:
        cell: What to do.
        networks: Folder to keep plain networks in, and to take them from.
    """
    problem = problem_of(cell)
    data = problem.load()
    sizes = {} if cell.width is None else {"width": cell.width}
    task = SharedTask(
        lambda: problem.make_net(**sizes),
        data.train[: cell.train_size], data.validation, Categorical(),
        PARAMETRIZATIONS[cell.parametrization](), cell.seed,
        {"epochs": cell.epochs, "lr": cell.lr, "batch_size": cell.batch_size, "progress": False},
        None if networks is None else Path(networks) / cell.network, [],
    )  # fmt: skip
    predictor = method_of(cell).fit_task(task)
    assert predictor.cost is not None
    return {
        "cell": asdict(cell),
        "method": repr(method_of(cell)),
        **provenance(),
        "cost": {name: _checks.finite_or_none(v) for name, v in asdict(predictor.cost).items()},
        **scores(predictor, cell, data.test[: cell.test_size]),
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
    """Return the same likelihood with another way to combine functions."""
    copied = copy.deepcopy(likelihood)
    copied.averaging = averaging
    return copied


def finite(numbers: Mapping[str, float]) -> dict[str, Any]:
    """Return numbers for a JSON file: None stands for one that is not finite."""
    return {name: _checks.finite_or_none(value) for name, value in numbers.items()}
