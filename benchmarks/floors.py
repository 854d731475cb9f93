"""Cost of random weights in a LeNet-5 that is written by hand, without tacit.

python -m benchmarks.floors [--smoke] [--out benchmarks/results/floors.json]

Any implementation on top of torch has to sample four tensors and train four more, and, for eight
draws, to run the first convolution on eight parts of the batch, each with its own filters.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.measure import save, show
from benchmarks.step_time import RANKS, in_fresh_processes, training_step, variational
from tacit.models import LeNet5
from tacit.studies.timing import interleaved_seconds, ratio

BATCH, DRAWS, SEED, REPEATS = (128, 1, 28, 28), 8, 0, 200
ROWS = {
    "tacit": "tacit, one draw",
    "hand": "one draw, by hand",
    "tacit_8": "tacit, draws=8",
    "parts": "no draw, but the first convolution in 8 parts",
}


class InParts(nn.Module):
    """A convolution on parts of the batch with equal filters, which torch can't know are equal."""

    def __init__(self, layer: nn.Conv2d) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        """Return the output of the convolution."""
        layer = self.layer
        channels_last = layer.weight.movedim(1, -1) * torch.ones(DRAWS, 1, 1, 1, 1)
        filters = channels_last.movedim(-1, 2).unbind()
        biases = (torch.ones(DRAWS, 1) * layer.get_parameter("bias")).unbind()
        parts = zip(x.chunk(DRAWS), filters, biases, strict=True)
        return torch.cat([F.conv2d(part, w, b, padding=layer.padding) for part, w, b in parts])


def by_hand(x: Tensor, y: Tensor) -> Callable[[], None]:
    """Return a training step with a random first and last layer, without tacit."""
    net = LeNet5()
    layers = net[0], net[-1]
    places = [(layer, name) for layer in layers for name in ("weight", "bias")]
    means = [getattr(layer, name) for layer, name in places]
    ranks = [rank for rank in RANKS for _ in range(2)]
    factors = [
        nn.Parameter(0.01 * torch.randn(r, *m.shape)) for r, m in zip(ranks, means, strict=True)
    ]
    groups: list[dict[str, Any]] = [
        {"params": list(net.parameters())},
        *({"params": factors[i : i + 2], "lr": 1e-3 / ranks[i]} for i in (0, 2)),
    ]
    optimizer = torch.optim.SGD(groups, lr=1e-3, momentum=0.9, fused=True)

    def step() -> None:
        noise = [torch.randn(1, rank) for rank in RANKS]
        for i, (layer, name) in enumerate(places):
            flat = torch.addmm(means[i].reshape(1, -1), noise[i // 2], factors[i].flatten(1))
            layer._parameters[name] = (
                flat.view(-1, *layer.kernel_size, 1).movedim(-1, 1)  # as channels last
                if means[i].ndim == 4
                else flat.view(means[i].shape)
            )
        loss = F.cross_entropy(net(x), y)
        for (layer, name), mean in zip(places, means, strict=True):
            layer._parameters[name] = mean
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def seconds(repeats: int) -> dict[str, list[float]]:
    """Return the seconds of training steps, measured interleaved."""
    torch.manual_seed(SEED)
    x, y = torch.randn(BATCH), torch.randint(10, BATCH[:1])
    parts = LeNet5()
    parts[0] = InParts(parts[0])
    steps = {
        "plain": training_step(LeNet5(), x, y),
        "tacit": training_step(variational(LeNet5()), x, y),
        "hand": by_hand(x, y),
        "tacit_8": training_step(variational(LeNet5(), DRAWS), x, y),
        "parts": training_step(parts, x, y),
    }
    return interleaved_seconds(steps, repeats, "LeNet-5")


def main() -> None:
    """Measure, print the table and save the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--smoke", action="store_true", help="few repeats, to check that it runs")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/floors.json"))
    arguments = parser.parse_args()
    found = seconds(1) if arguments.smoke else in_fresh_processes(seconds, REPEATS)
    rows = {name: ratio(found, kind, "plain") for kind, name in ROWS.items()}
    save(arguments.out, seed=SEED, ranks=RANKS, rows=rows)
    show(rows, "LeNet-5, batch 128, over plain")


if __name__ == "__main__":
    main()
