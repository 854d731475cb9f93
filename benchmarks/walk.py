"""How many files of tacit a reader has to open to follow one call, by `sys.setprofile`.

    python -m benchmarks.walk

A file counts if one of its functions is called. Imports don't count.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

import tacit
from tacit.calling.arguments import Draws
from tacit.studies.bench import Cell, measure

ROOT = Path(tacit.__file__).parent


def visited(call: Callable[[], object]) -> list[str]:
    """Return the files of tacit whose functions run during a call."""
    found = set()

    def note(frame: FrameType, event: str, _: Any) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and frame.f_code.co_name != "<module>" and ROOT in path.parents:
            found.add(str(path.relative_to(ROOT)))

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return sorted(found)


def training_step(draws: Draws | None = None) -> list[str]:
    """Return the files that a training step by hand visits: the loop of the README.

    Not the first step, which also tries how the module uses its weights.
    """
    net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 3))
    model = tacit.variational(net, draws=draws)
    optimizer = torch.optim.SGD(model.param_groups(lr=0.01), momentum=0.9)
    x, y = torch.randn(16, 8), torch.randint(3, (16,))

    def step() -> None:
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    step()
    return visited(step)


def prediction() -> list[str]:
    """Return the files that `tacit.predict` visits."""
    net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 3))
    model = tacit.variational(net, likelihood=tacit.Categorical())
    predict = tacit.predict  # imported on first access
    return visited(lambda: predict(model, torch.randn(16, 8)))


def bench_cell(method: str) -> list[str]:
    """Return the files that one training of `tacit bench` and its evaluation visit."""
    cell = Cell(
        "digits", method, epochs=1, train_size=100, test_size=20, corrupted_size=2, samples=2
    )
    return visited(lambda: measure(cell, None, {}))


def main() -> None:
    """Print the number of files, and their names."""
    walks = {
        "training step, a draw for each example": training_step(),
        "training step, 1 draw": training_step(draws=1),
        "training step, 8 draws": training_step(draws=8),
        "predict": prediction(),
        "bench cell, standard": bench_cell("standard"),
        "bench cell, implicit_bias_vi": bench_cell("implicit_bias_vi"),
    }
    for name, files in walks.items():
        print(f"{name}: {len(files)} files\n  " + "\n  ".join(files))


if __name__ == "__main__":
    main()
