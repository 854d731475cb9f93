r"""At which learning rates the default trains, beside the plain network.

    python -m benchmarks.default_rates

LeNet-5 on 5,000 images of Fashion-MNIST (SGD), an MLP on a table (SGD), and the transformer of
`benchmarks.default_small` (AdamW), from small rates to those at which the plain network fails. One
line per problem, rate, network and seed is appended to benchmarks/results/default_rates.jsonl;
finished ones are skipped.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

import tacit
from benchmarks import default_small as small
from tacit.data import Splits
from tacit.likelihood import Likelihood
from tacit.training import TrainingDivergedError

RESULTS = Path(__file__).parent / "results" / "default_rates.jsonl"
SEEDS, IMAGES = 3, 5000


@dataclass(frozen=True)
class RateProblem:
    """Data by seed, a network, and the rates to try."""

    load: Callable[[int], Splits]
    make_net: Callable[[Splits], nn.Module]
    likelihood: Callable[[], Likelihood]
    epochs: int
    rates: tuple[float, ...]
    optimizer: str = "sgd"


def clothes(seed: int) -> Splits:
    """Return images of Fashion-MNIST as tensors."""
    data = tacit.data.fashion_mnist()
    loaders = (
        torch.utils.data.DataLoader(part, batch_size=IMAGES)
        for part in (data.train, data.validation, data.test)
    )
    return Splits(*(tuple(next(iter(loader))) for loader in loaders))


PROBLEMS = {
    "Fashion-MNIST": RateProblem(
        clothes,
        lambda _: tacit.models.LeNet5(),
        tacit.Categorical,
        10,
        (0.02, 0.05, 0.1, 0.2, 0.4),
    ),
    "concrete": RateProblem(
        small.PROBLEMS["concrete"].load,
        small.PROBLEMS["concrete"].make_net,
        tacit.Gaussian,
        30,
        (0.005, 0.01, 0.02, 0.05, 0.1),
    ),
    "first_mark": RateProblem(
        small.marks,
        lambda _: small.Transformer(),
        tacit.Categorical,
        20,
        (0.0005, 0.001, 0.003, 0.01),
        "adamw",
    ),
}


def measure(problem: RateProblem, kind: str, lr: float, seed: int) -> dict[str, Any]:
    """Return the scores after training, {} if it diverged."""
    torch.manual_seed(seed)
    data, likelihood = problem.load(seed), problem.likelihood()
    net = problem.make_net(data)
    model = net if kind == "plain" else tacit.variational(net, likelihood=likelihood)
    try:
        tacit.fit(
            model,
            data.train,
            epochs=problem.epochs,
            lr=lr,
            likelihood=likelihood if kind == "plain" else None,
            optimizer=problem.optimizer,
            seed=seed,
            progress=False,
        )
    except TrainingDivergedError:
        return {}
    return {
        part: dict(tacit.evaluate(model, own, likelihood=likelihood))
        for part, own in (("train", data.train), ("test", data.test))
    }


def main() -> None:
    """Measure what is missing."""
    lines = RESULTS.read_text().splitlines() if RESULTS.exists() else []
    keys = ("problem", "network", "lr", "seed")
    done = {tuple(row[key] for key in keys) for row in map(json.loads, lines)}
    for name, problem in PROBLEMS.items():
        for lr in problem.rates:
            for seed in range(SEEDS):
                for kind in ("plain", "default"):
                    values = (name, kind, lr, seed)
                    if values in done:
                        continue
                    row: dict[str, Any] = dict(zip(keys, values, strict=True))
                    row |= measure(problem, kind, lr, seed)
                    with RESULTS.open("a") as file:
                        file.write(json.dumps(row) + "\n")
                    nll = row["test"]["nll"] if "test" in row else None
                    print(*values, nll, flush=True)


if __name__ == "__main__":
    main()
