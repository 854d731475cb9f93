r"""The study of `benchmarks.default_study` on tables and with a transformer.

    python -m benchmarks.default_small

Each method trains on the same steps, with averaged iterates; one line per problem, method and seed
is appended to benchmarks/results/default_small.jsonl; finished ones are skipped.
Regression tables have an MLP and SGD; the transformer, with AdamW, has to find out which of two
marks comes first in a sequence of random symbols.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

import tacit
from benchmarks import default_study as study
from tacit.data import Splits
from tacit.likelihood import Likelihood
from tacit.methods import DeepEnsemble, Method, Standard, TemperatureScaling

RESULTS = Path(__file__).parent / "results" / "default_small.jsonl"
SEEDS = 3
SYMBOLS, LENGTH, WIDTH = 16, 16, 32
EPOCHS = {"airfoil": 100, "concrete": 100, "yacht": 200, "power_plant": 20, "wine_white": 30}
METHODS: dict[str, Method] = {
    "plain": Standard(),
    "default": study.default,
    "dropout_05": study.dropout_05,
    "dropout_10": study.dropout_10,
    "dropout_20": study.dropout_20,
}
TRANSFORMER_ONLY: dict[str, Method] = {
    "low_rank": study.low_rank,
    "paper": study.paper,
    "ensemble": DeepEnsemble(5),
}  # for the transformer only


@dataclass(frozen=True)
class SmallProblem:
    """Data by seed, a network, and how it is trained."""

    load: Callable[[int], Splits]
    make_net: Callable[[Splits], nn.Module]
    likelihood: Likelihood
    epochs: int
    lr: float
    optimizer: str = "sgd"


class Transformer(nn.Module):
    """A classifier of sequences: embedding, two encoder layers, mean over positions."""

    def __init__(self) -> None:
        super().__init__()
        self.symbols = nn.Embedding(SYMBOLS, WIDTH)
        self.positions = nn.Parameter(0.02 * torch.randn(LENGTH, WIDTH))
        layer = nn.TransformerEncoderLayer(
            WIDTH, 4, 2 * WIDTH, dropout=0.0, batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, 2)

    def forward(self, sequences: Tensor) -> Tensor:
        encoded: Tensor = self.encoder(self.symbols(sequences) + self.positions)
        logits: Tensor = self.head(encoded.mean(1))
        return logits


def marks(seed: int, sizes: tuple[int, ...] = (2000, 1000, 2000)) -> Splits:
    """Return sequences of random symbols with marks 0 and 1; the label is the one that is first."""
    generator = torch.Generator().manual_seed(seed)
    parts = []
    for size in sizes:
        x = torch.randint(2, SYMBOLS, (size, LENGTH), generator=generator)
        places = torch.rand(size, LENGTH, generator=generator).topk(2).indices
        x.scatter_(1, places, torch.tensor([0, 1]).expand(size, 2))
        parts.append((x, (places[:, 1] < places[:, 0]).long()))
    return Splits(*parts)


def table(name: str) -> SmallProblem:
    """Return a regression table with an MLP."""
    return SmallProblem(
        lambda seed: tacit.data.uci(name, seed=seed),
        lambda data: tacit.models.MLP(data.train[0].shape[1], [64, 64], 1),
        tacit.Gaussian(),
        EPOCHS.get(name, 60),
        0.05,
    )


PROBLEMS = {
    "first_mark": SmallProblem(
        marks, lambda _: Transformer(), tacit.Categorical(), 30, 0.001, "adamw"
    ),
    **{
        name: table(name)
        for name in ("airfoil", "concrete", "yacht", "power_plant", "wine_red", "wine_white")
    },
}


def measure(problem: str, method: str, seed: int) -> dict[str, object]:
    """Train a method on a problem and return its scores."""
    task = PROBLEMS[problem]
    data = task.load(seed)
    own = {**METHODS, **TRANSFORMER_ONLY}[method]
    if method == "plain" and isinstance(task.likelihood, tacit.Categorical):
        own = TemperatureScaling()
    predictor = own.fit(
        lambda: task.make_net(data),
        data.train,
        data.validation,
        epochs=task.epochs,
        lr=task.lr,
        likelihood=task.likelihood,
        seed=seed,
        optimizer=task.optimizer,
        average=0.5,
        progress=False,
    )
    on_test = dict(tacit.evaluate(predictor, data.test))
    on_train = tacit.evaluate(predictor, data.train)
    return {
        "problem": problem,
        "method": method,
        "seed": seed,
        "test": on_test,
        "train_nll": on_train["nll"],
        "seconds": predictor.cost and predictor.cost.seconds,
    }


def main() -> None:
    """Measure what is missing."""
    lines = RESULTS.read_text().splitlines() if RESULTS.exists() else []
    done = {(row["problem"], row["method"], row["seed"]) for row in map(json.loads, lines)}
    for problem in PROBLEMS:
        for seed in range(SEEDS):
            for method in {**METHODS, **(TRANSFORMER_ONLY if problem == "first_mark" else {})}:
                if (problem, method, seed) not in done:
                    row = measure(problem, method, seed)
                    with RESULTS.open("a") as file:
                        file.write(json.dumps(row) + "\n")
                    print(row, flush=True)


if __name__ == "__main__":
    main()
