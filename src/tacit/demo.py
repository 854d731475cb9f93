"""A plain and a variational network on scikit-learn's digits, trained by the same plain loop.

Run it with `python -m tacit.demo`.
"""

from __future__ import annotations

import argparse

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import nn
from torch.nn import functional as F

from tacit import metrics
from tacit.data import digits
from tacit.pairs import Data
from tacit.variational import variational


def network() -> nn.Module:
    """Return a network with two hidden layers."""
    return nn.Sequential(
        nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10)
    )


def train(
    model: nn.Module, optimizer: torch.optim.Optimizer, data: Data, epochs: int, label: str
) -> None:
    """Minimise the cross-entropy: an ordinary loop, the same for both networks."""
    x, y = data
    model.train()
    for _ in track(range(epochs), description=f"{label:12}"):
        for batch in torch.randperm(len(x)).split(50):
            loss = F.cross_entropy(model(x[batch]), y[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    model.eval()


def main(epochs: int = 60, lr: float = 0.03, seed: int = 0) -> dict[str, dict[str, float]]:
    """Train both networks, print the table and return its numbers."""
    torch.manual_seed(seed)
    train_set, (x, y) = digits()
    plain = network()
    train(plain, torch.optim.SGD(plain.parameters(), lr, momentum=0.9), train_set, epochs, "plain")
    model = variational(network(), draws=10)
    optimizer = torch.optim.SGD(model.param_groups(lr), momentum=0.9)
    train(model, optimizer, train_set, epochs, "variational")
    with torch.no_grad():
        predictions = {
            "plain network": F.log_softmax(plain(x), -1),
            "variational, mean weights": F.log_softmax(model(x), -1),
            # The mean of the log-probabilities of 32 networks, normalised again.
            "variational, 32 samples": F.log_softmax(
                F.log_softmax(model(x, samples=32), -1).mean(0), -1
            ),
        }
    rows = {
        name: {
            "accuracy": metrics.accuracy(log_probs, y),
            "NLL": metrics.nll(log_probs, y),
            "ECE": metrics.ece(log_probs, y),
        }
        for name, log_probs in predictions.items()
    }
    _print(rows)
    return rows


def _print(rows: dict[str, dict[str, float]]) -> None:
    table = Table("", "accuracy", "NLL", "ECE", title="Digits, 797 test images")
    for name, row in rows.items():
        table.add_row(name, f"{row['accuracy']:.1%}", f"{row['NLL']:.4f}", f"{row['ECE']:.4f}")
    Console().print(table)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--lr", type=float, default=0.03)
    parser.add_argument("--seed", type=int, default=0)
    main(**vars(parser.parse_args()))
