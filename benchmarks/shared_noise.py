"""Variance of a batch's gradient: examples that share random numbers against independent noise.

    python -m benchmarks.shared_noise

With `draws="each"`, examples take overlapping windows of one row of random numbers. The ratio of
the total variances over repeated passes on the same batch, for trained networks and several
batches of Fashion-MNIST.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import tacit
from benchmarks.measure import save
from tacit.calling import Variational
from tacit.models import MLP, LeNet5
from tacit.weights import distribution

NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "LeNet-5": LeNet5,
    "MLP 784-512-512-10": lambda: MLP(784, (512, 512), 10),
}
BATCH, LR, EPOCHS = 128, 0.05, 4


@contextmanager
def independent_noise() -> Iterator[None]:
    """Draw a number for every component of every example."""
    rows, distribution.ROWS = distribution.ROWS, BATCH
    try:
        yield
    finally:
        distribution.ROWS = rows


def gradient(model: Variational, x: Tensor, y: Tensor) -> Tensor:
    """Return the gradient of a batch's loss as one vector."""
    loss = F.cross_entropy(model(x), y)
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))])


def variance(gradients: list[Tensor]) -> tuple[float, float]:
    """Return the total variance of vectors, and its standard error."""
    count = len(gradients)
    mean = torch.stack(gradients).mean(0)
    squares = torch.stack([(g - mean).square().sum() for g in gradients]) * count / (count - 1)
    return squares.mean().item(), squares.std().item() / count**0.5


def compare(model: Variational, x: Tensor, y: Tensor, repeats: int) -> dict[str, float]:
    """Return the ratio of the variances on a batch, with its standard error."""
    shared, independent = [], []
    for _ in range(repeats):
        shared.append(gradient(model, x, y))
        with independent_noise():
            independent.append(gradient(model, x, y))
    (ours, error), (theirs, their_error) = variance(shared), variance(independent)
    ratio = ours / theirs
    return {
        "ratio": ratio,
        "error": ratio * ((error / ours) ** 2 + (their_error / theirs) ** 2) ** 0.5,
    }


def main() -> None:
    """Measure, print and save."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batches", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=300)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/shared_noise.json"))
    arguments = parser.parse_args()
    torch.manual_seed(0)
    loader = torch.utils.data.DataLoader(tacit.data.fashion_mnist().train, batch_size=10_000)
    x, y = next(iter(loader))
    rows: dict[str, Any] = {}
    for name, make_net in NETWORKS.items():
        inputs = x if name == "LeNet-5" else x.flatten(1)
        model = tacit.variational(make_net(), likelihood=tacit.Categorical())
        tacit.fit(model, (inputs, y), epochs=EPOCHS, lr=LR, progress=False)
        model.train()
        for i in range(arguments.batches):
            batch = torch.randperm(len(inputs))[:BATCH]
            row = compare(model, inputs[batch], y[batch], arguments.repeats)
            rows[f"{name}, batch {i}"] = row
            print(f"{name}, batch {i}: {row['ratio']:.3f} ± {row['error']:.3f}", flush=True)
    save(arguments.out, rows=rows)


if __name__ == "__main__":
    main()
