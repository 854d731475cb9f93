"""Time and memory of a training step, for every method."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tacit._support.figures import saved
from tacit.calling import Variational, variational
from tacit.methods.mean_field_vi import unit_prior
from tacit.models import LeNet5, ResNet34
from tacit.studies.experiments.evidence import all_of
from tacit.studies.experiments.experiment import Experiment
from tacit.studies.experiments.verdict import Verdict
from tacit.studies.timing import interleaved_seconds, ratio, training_bytes
from tacit.training.objective import ELBO, GVI
from tacit.training.optim.by_name import make_optimizer
from tacit.weights import first_and_last
from tacit.weights.covariance import PositiveDiagonal

# Names of methods, also in the saved results.
PLAIN, ENSEMBLE = "plain network", "ensemble of 5"
PAPER, OURS = "IBVI, the paper's recipe", "IBVI, tacit's defaults"
MEMORY = 1.1  # the paper: an overhead of as little as about 10 %
MEMBERS = 5  # of the ensemble
SIZE = 50_000  # data size that the regularizers are divided by


def compute(
    repeats: int = 200,
    batch: int = 128,
    large: bool = True,
    large_repeats: int = 7,
    large_batch: int = 8,
    seed: int = 0,
) -> dict[str, Any]:
    """Measure a training step of all methods."""
    torch.manual_seed(seed)
    found = {"LeNet-5": measure_steps(LeNet5, (batch, 1, 28, 28), 10, repeats)}
    if large:
        shape = (large_batch, 3, 32, 32)
        found["ResNet-34"] = measure_steps(partial(ResNet34, 100), shape, 100, large_repeats)
    return found


def measure_steps(
    make_net: Callable[[], nn.Module], shape: tuple[int, ...], classes: int, repeats: int
) -> dict[str, Any]:
    """Return time and memory of a step of each method, and their ratios to the plain network's."""
    x, y = torch.randn(shape), torch.randint(classes, shape[:1])
    chosen = make_methods(make_net, x, y)
    steps = {name: step_of(model, loss) for name, (model, loss) in chosen.items()}
    sizes = {name: training_bytes(model, loss) for name, (model, loss) in chosen.items()}
    members = [step_of(net, loss_of(net, x, y)) for net in (make_net() for _ in range(MEMBERS))]

    def train_all() -> None:
        for train in members:
            train()

    steps[ENSEMBLE], sizes[ENSEMBLE] = train_all, sizes[PLAIN]  # members train in sequence
    seconds = interleaved_seconds(steps, repeats, "steps", warmup=2)
    return {
        name: {
            **ratio(seconds, name, PLAIN),
            "bytes": sizes[name],
            "memory_ratio": sizes[name] / sizes[PLAIN],
        }
        for name in steps
    }


def make_methods(
    make_net: Callable[[], nn.Module], x: Tensor, y: Tensor
) -> dict[str, tuple[nn.Module, Callable[[], Tensor]]]:
    """Return model and loss of each method whose step differs from the others'."""
    plain = make_net()
    paper, gvi = (variational(make_net(), first_and_last) for _ in range(2))
    ours = variational(make_net())
    mean_field = variational(make_net(), {"*": PositiveDiagonal(0.1)})
    wasserstein, elbo = GVI(gvi.prior(), 1.0), ELBO(unit_prior(mean_field))
    return {
        PLAIN: (plain, loss_of(plain, x, y)),
        PAPER: (paper, loss_of(paper, x, y)),
        OURS: (ours, loss_of(ours, x, y)),
        "GVI": (gvi, lambda: wasserstein(F.cross_entropy(gvi(x), y), gvi, data_size=SIZE)),
        "mean-field VI, M=8": (
            mean_field,
            lambda: elbo(
                F.cross_entropy(mean_field(x, samples=8).flatten(0, 1), y.repeat(8)),
                mean_field,
                data_size=SIZE,
            ),
        ),
    }


def loss_of(model: nn.Module, x: Tensor, y: Tensor) -> Callable[[], Tensor]:
    """Return the loss on a batch."""
    return lambda: F.cross_entropy(model(x), y)


def step_of(model: nn.Module, loss: Callable[[], Tensor]) -> Callable[[], None]:
    """Return a training step: SGD with momentum."""
    draws = model.draws if isinstance(model, Variational) and isinstance(model.draws, int) else 1
    optimizer = make_optimizer(model, 1e-4, momentum=0.9, deferred_draws=draws)  # as `fit` does

    def step() -> None:
        value = loss()
        optimizer.zero_grad()
        value.backward()
        optimizer.step()

    return step


def verdicts(results: dict[str, Any], arguments: Mapping[str, Any]) -> list[Verdict]:
    """Return verdicts on time, memory, and the time of an ensemble."""
    lacking = "" if len(results) > 1 else "one network, without ResNet-34"
    paper = {net: found[PAPER] for net, found in results.items()}
    others = {
        net: [row for name, row in found.items() if name not in (PLAIN, PAPER, OURS)]
        for net, found in results.items()
    }
    cheaper = {
        net: row["ratio_high"] < min(other["ratio"] for other in others[net])
        for net, row in paper.items()
    }
    ensembles = {net: found[ENSEMBLE] for net, found in results.items()}

    def verdict(
        subject: str, states: Iterable[bool | None], kind: str, rows: Mapping[str, Any], text: str
    ) -> Verdict:
        values = [_with_interval(row, kind) for row in rows.values()]
        measured = "; ".join(
            f"{net}: " + ", ".join(
                f"{name} {_with_interval(row, kind)}" for name, row in results[net].items()
                if name != PLAIN
            ) for net in rows
        )  # fmt: skip
        return Verdict(
            "cost", all_of(states), f"ratios to the plain network; {measured}", text, subject,
            ", ".join(values), lacking,
        )  # fmt: skip

    return [
        verdict(
            "training time close to a standard network's",
            [_similar(row, cheaper[net]) for net, row in paper.items()],
            "ratio",
            paper,
            "the 95 % interval of the ratio contains 1, or lies below the cheapest other method "
            "that trains a distribution or several networks (the reference; the paper gives no "
            "number)",
        ),
        verdict(
            "memory about 10 % above a standard network's",
            [row["memory_ratio"] <= MEMORY for row in paper.values()],
            "memory_ratio",
            paper,
            f"at most {MEMORY:.2f} times: the paper's figure, an overhead of about 10 %",
        ),
        verdict(
            "an ensemble of 5 costs 5 times as much",
            [row["ratio_low"] <= MEMBERS <= row["ratio_high"] for row in ensembles.values()],
            "ratio",
            ensembles,
            f"the 95 % interval of the ratio contains {MEMBERS}",
        ),
    ]


def _similar(row: Mapping[str, float], cheaper: bool) -> bool:
    """Return whether a ratio of times is 1 up to its uncertainty, or below all other methods'."""
    return row["ratio_low"] <= 1 or cheaper


def _with_interval(row: Mapping[str, float], kind: str) -> str:
    if kind == "ratio":
        return f"{row['ratio']:.2f} ({row['ratio_low']:.2f} to {row['ratio_high']:.2f})"
    return f"{row[kind]:.2f}"


def draw(results: dict[str, Any], folder: Path) -> None:
    """Draw time and memory of each method from saved results, a row of panels per network."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 2.6 * len(results)), layout="constrained")
    axes = figure.subplots(len(results), 2, sharey="row", squeeze=False)
    for line, (net, found) in zip(axes, results.items(), strict=True):
        names = list(found)[::-1]
        for axis, kind, title in zip(
            line, ("ratio", "memory_ratio"), ("time of a step", "memory of a step"), strict=True
        ):
            axis.barh(names, [found[name][kind] for name in names], color="tab:blue")
            axis.axvline(1, color="black", linewidth=0.8)
            axis.set(title=f"{net}: {title}", xlabel="relative to the plain network")
    for ending in ("pdf", "png"):
        saved(figure, folder / f"cost.{ending}")


EXPERIMENT = Experiment(
    name="cost",
    figure="Fig. 4, right",
    title="The claim `cost`: a training step takes the time and memory of a plain network's.",
    about="""
    A training step of every method against that of the plain network, interleaved in one run:
    LeNet-5 with a batch of 128, and ResNet-34 with 100 classes. Post-hoc methods and SWAG have the
    plain network's step. Memory is counted: parameters, gradients, momentum, and the tensors that
    autograd saves; the copy of the prior that GVI and mean-field VI keep is not.
    """,
    caption="Time and memory of a training step of each method relative to the plain network",
    claims=("cost",),
    scales={
        "smoke": {"repeats": 1, "batch": 4, "large": False},
        "cpu": {},
        "paper": {"large_batch": 128},
    },
    minutes={"smoke": 0.1, "cpu": 6, "paper": 60},
    needs="nothing",
    compute=compute,
    verdicts=verdicts,
    draw=draw,
)
