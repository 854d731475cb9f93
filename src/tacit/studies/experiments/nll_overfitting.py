"""Test NLL of a classifier in long training, with and without rescaling."""

from __future__ import annotations

import copy
import math
import statistics
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tacit._support.figures import saved
from tacit.calling import Variational, variational
from tacit.inference.calibration import calibrate
from tacit.inference.scores import evaluate
from tacit.likelihood import Categorical
from tacit.studies.experiments.cells import ALL, run_each, trained
from tacit.studies.experiments.evidence import (
    Interval,
    all_of,
    geometric,
    higher,
    interval,
    lower,
    no_different,
    no_higher,
)
from tacit.studies.experiments.experiment import Experiment
from tacit.studies.experiments.verdict import Verdict
from tacit.weights.covariance import LowRank

WAYS = {"raw": "unscaled", "rescaled": "last mean / log t", "tempered": "temperature"}


def classes(size: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return two noisy half-moons, inputs (N, 2) and labels."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 2, (size,), generator=generator)
    angle = math.pi * torch.rand(size, generator=generator)
    side = 1.0 - 2.0 * labels
    moons = torch.stack([side * angle.cos() + labels - 0.5, side * angle.sin() - 0.25 * side], 1)
    return moons + 0.25 * torch.randn(moons.shape, generator=generator), labels


def compute(
    width: int = 64,
    rank: int = 10,
    train_size: int = 60,
    other_size: int = 2000,
    steps: int = 20_000,
    points: int = 24,
    lr: float = 0.1,
    samples: int = 100,
    seeds: int = 5,
    folder: Path = Path("results/nll_overfitting"),
    jobs: int = -1,
    cells: str = ALL,
) -> dict[str, Any]:
    """Train from several seeds, and score the models at times spaced evenly in log t."""
    choices = [{"seed": seed} for seed in range(seeds)]
    found = run_each(
        train_one, choices, folder, jobs, cells=cells, width=width, rank=rank,
        train_size=train_size, other_size=other_size, steps=steps, points=points, lr=lr,
        samples=samples,
    )  # fmt: skip
    rows = [{"seed": seed, **row} for seed, each in enumerate(found) for row in each or ()]
    return {"rows": rows, "trained": trained(choices, found)}


def train_one(
    seed: int,
    width: int,
    rank: int,
    train_size: int,
    other_size: int,
    steps: int,
    points: int,
    lr: float,
    samples: int,
) -> list[dict[str, Any]]:
    """Train one network, and score it at times spaced evenly in log t."""
    x, y = classes(train_size, 3 * seed)
    validation, held_out = (classes(other_size, 3 * seed + i) for i in (1, 2))
    torch.manual_seed(seed)
    net = nn.Sequential(
        nn.Linear(2, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 2)
    )
    likelihood = Categorical(averaging="log_probs")  # as in the paper
    model = variational(net, {"*": LowRank(rank, 0.5)}, likelihood=likelihood)
    optimizer = torch.optim.SGD(model.param_groups(lr))
    times = {round(math.exp(p / points * math.log(steps))) for p in range(points + 1)}
    rows = []
    for step in range(1, steps + 1):
        loss = nn.functional.cross_entropy(model(x, draws=8), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step in times:
            rows.append({"step": step, **score(model, (x, y), validation, held_out, step, samples)})
            model.train()
    return rows


def score(
    model: Variational,
    train: tuple[Tensor, Tensor],
    validation: tuple[Tensor, Tensor],
    held_out: tuple[Tensor, Tensor],
    step: int,
    samples: int,
) -> dict[str, float]:
    """Return losses, error and norm at one time; the parameters are not changed."""
    model.eval()

    def nll_and_error(chosen: Variational) -> tuple[float, float]:
        generator = torch.Generator().manual_seed(0)
        found = evaluate(chosen, held_out, samples=samples, generator=generator)
        return found["nll"], 1 - found["accuracy"]

    rescaled = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in list(rescaled.module.parameters())[-2:]:  # outputs are linear in them
            parameter.div_(max(1.0, math.log(step)))
    tempered = copy.deepcopy(model)
    calibrate(tempered, validation, samples=samples)
    raw, error = nll_and_error(model)
    with torch.no_grad():
        train_loss = nn.functional.cross_entropy(model(train[0]), train[1]).item()
        squares = sum(p.double().square().sum().item() for p in model.module.parameters())
    return {
        "train_loss": train_loss,
        "error": error,
        "raw": raw,
        "rescaled": nll_and_error(rescaled)[0],
        "tempered": nll_and_error(tempered)[0],
        "norm": math.sqrt(squares),
    }


def by_seed(results: dict[str, Any]) -> dict[int, list[dict[str, Any]]]:
    """Return the rows of each seed, in the order of time; old results have one seed."""
    found: dict[int, list[dict[str, Any]]] = {}
    for row in results["rows"]:
        found.setdefault(row.get("seed", 0), []).append(row)
    return found


def verdicts(results: dict[str, Any], arguments: Mapping[str, Any]) -> list[Verdict]:
    """Return the verdicts on the claim, and our question on the norm of a deep network."""
    runs = by_seed(results)
    last = results["rows"][-1]["step"]
    lacking = "" if last >= 5000 else f"{last} steps"
    lacking = lacking or ("" if len(runs) > 1 else "one seed")
    judge = partial(Verdict, "nll-overfitting", lacking=lacking)
    turns = {s: min(rows, key=lambda row: row["raw"]) for s, rows in runs.items()}
    ends = {s: rows[-1] for s, rows in runs.items()}

    def rise(quantity: str, scale: float = 1.0) -> Interval:
        return interval(scale * (ends[s][quantity] - turns[s][quantity]) for s in runs)

    rises = {way: rise(way) for way in WAYS}
    error = rise("error", 100)
    early = interval(
        statistics.fmean(
            row["tempered"] - row["rescaled"] for row in rows if row["step"] < last / 10
        )
        for rows in runs.values()
    ) if last >= 10 else interval([])  # fmt: skip
    found = [
        judge(
            all_of([higher(rises["raw"]), no_higher(error)]),
            f"from the time of the least NLL to the end the NLL changes by {rises['raw']}, the "
            f"error by {error} points",
            "over seeds the NLL rises, and the error does not",
            "NLL rises while the error does not",
            f"{rises['raw'].mean:+.2f}",
        ),
        *(
            judge(
                no_higher(rises[way]),
                f"over the same time the NLL with {WAYS[way]} changes by {rises[way]}",
                "it does not rise, over seeds, from the time at which the unscaled NLL is least",
                f"{title} avoids overfitting",
                f"{rises[way].mean:+.3f}",
            )
            for way, title in (
                ("rescaled", "the theory's rescaling"), ("tempered", "temperature scaling"),
            )
        ),
        judge(
            lower(early),
            "NLL with a temperature minus that with rescaling, mean over the times before a tenth "
            f"of the steps: {early}",
            "below 0 over seeds: the temperature is better in the non-asymptotic regime",
            "a temperature is better than rescaling before the asymptote",
            f"{early.mean:+.3f}",
        ),
    ]  # fmt: skip
    return [*found, _norm(runs, judge)]


def _norm(runs: dict[int, list[dict[str, Any]]], judge: Callable[..., Verdict]) -> Verdict:
    """Return our question: does the norm grow like log t, as in linear models?"""
    bent, slopes = [], []
    for rows in runs.values():
        late = [row for row in rows if row["step"] >= math.sqrt(rows[-1]["step"])]
        first, second = (
            slope(part) for part in (late[: len(late) // 2 + 1], late[len(late) // 2 :])
        )
        bent.append(geometric([second]) - geometric([first]))
        slopes.append((first, second))
    found = interval(bent)
    firsts, seconds = zip(*slopes, strict=True)
    return judge(
        no_different(found),
        "growth of the norm of the mean per unit of log t, first and second half of late training: "
        f"{statistics.fmean(firsts):.2f} and {statistics.fmean(seconds):.2f}; log of the ratio "
        f"{found}",
        "the same slope in both halves, over seeds: log t is the theory of linear models",
        "the norm of a deep network's mean grows like log t",
        f"{math.exp(found.mean):.2f} times",
        ours=True,
    )


def slope(rows: list[dict[str, float]]) -> float:
    """Return the least-squares slope of the norm against log t; 0 for fewer than two rows."""
    if len(rows) < 2:
        return 0.0
    times = torch.tensor([math.log(row["step"]) for row in rows], dtype=torch.float64)
    norms = torch.tensor([row["norm"] for row in rows], dtype=torch.float64)
    times, norms = times - times.mean(), norms - norms.mean()
    return float(times @ norms / (times @ times))


def _averaged(results: dict[str, Any]) -> list[dict[str, float]]:
    """Return the mean over seeds of each quantity at each time."""
    runs = list(by_seed(results).values())
    return [
        {name: statistics.fmean(row[name] for row in each) for name in each[0] if name != "seed"}
        for each in zip(*runs, strict=True)
    ]


def draw(results: dict[str, Any], folder: Path) -> None:
    """Draw the three panels from saved results."""
    from matplotlib.figure import Figure

    rows = _averaged(results)
    steps = [row["step"] for row in rows]
    figure = Figure(figsize=(11, 3.4), layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    left.plot(steps, [row["train_loss"] for row in rows], label="training loss")
    left.plot(steps, [row["error"] for row in rows], label="test error")
    left.set(title="The loss falls, the error stays", yscale="log")
    left.legend()
    for way, title in WAYS.items():
        middle.plot(steps, [row[way] for row in rows], label=title)
    middle.set(title="Test NLL", yscale="log")
    middle.legend()
    right.plot(steps, [row["norm"] for row in rows], color="black")
    right.set(title="Norm of the mean")
    for axis in (left, middle, right):
        axis.set(xscale="log", xlabel="step")
    for ending in ("pdf", "png"):
        saved(figure, folder / f"nll_overfitting.{ending}")


EXPERIMENT = Experiment(
    name="nll_overfitting",
    title="The claim `nll-overfitting`: in long training the NLL rises while the error does not.",
    about="""
    The supplement's figure on the need for rescaling: a network with two hidden layers on synthetic
    data, two slightly overlapping classes, trained by gradient descent on the expected loss for
    many steps. Left: training loss and test error. Middle: test NLL unscaled, with the mean of the
    last layer, in which the outputs are linear, divided by log t as in Theorem 2, and with a
    temperature fitted on validation data. Right: the norm of the mean against log t.
    The paper doesn't state the data. These are 60 examples whose classes overlap, so that fitting
    all of them also raises the error, by points, where the paper's stays.
    """,
    figure="supplement, NLL overfitting",
    caption="Training loss and test error, test NLL with and without rescaling, and the norm of "
    "the mean, during training",
    claims=("nll-overfitting",),
    scales={
        "smoke": {"steps": 20, "samples": 4, "seeds": 2, "jobs": 1},
        "cpu": {},
        "paper": {"steps": 100_000},
    },
    minutes={"smoke": 0.1, "cpu": 8, "paper": 40},
    needs="nothing",
    compute=compute,
    verdicts=verdicts,
    draw=draw,
)
