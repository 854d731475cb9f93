"""Measuring side by side: interleaved, on warm code, medians; memory counted in bytes."""

from __future__ import annotations

import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from rich.progress import track
from torch import Tensor, nn


def interleaved_seconds(
    runs: dict[str, Callable[[], None]], repeats: int, label: str, warmup: int = 3
) -> dict[str, list[float]]:
    """Return the seconds of each run, taken in turn so that the machine's moods hit all alike.

    The order is reversed every other time: a run is slower after one that leaves cold caches.
    """
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for repeat in track(range(warmup + repeats), description=label, transient=True):
        for name in runs if repeat % 2 else reversed(runs):
            start = time.perf_counter()
            runs[name]()
            if repeat >= warmup:
                seconds[name].append(time.perf_counter() - start)
    return seconds


def ratio(seconds: Mapping[str, list[float]], name: str, anchor: str) -> dict[str, float]:
    """Return medians, their ratio, and the quartiles of the ratios of neighbouring runs."""
    ours, theirs = statistics.median(seconds[name]), statistics.median(seconds[anchor])
    pairs = [a / b for a, b in zip(seconds[name], seconds[anchor], strict=True)]
    low, _, high = statistics.quantiles(pairs, n=4)
    return {
        "seconds": ours,
        "anchor_seconds": theirs,
        "ratio": ours / theirs,
        "ratio_low": low,
        "ratio_high": high,
    }


def training_bytes(model: nn.Module, loss: Callable[[], Tensor]) -> int:
    """Return the bytes of a training step: parameters, gradients, momentum and activations.

    Activations are what autograd saves for the backward pass, each storage once, without those of
    the parameters. Counted, not sampled, so it is the same on every machine.
    """
    parameters = sum(p.numel() * p.element_size() for p in model.parameters())
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}
    saved: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss()
    return 3 * parameters + sum(saved.values())


def environment() -> dict[str, Any]:
    """Return what a reader needs to know about the machine."""
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
    }


def save(path: Path, **results: Any) -> None:
    """Write results with their environment as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"environment": environment(), **results}, indent=2) + "\n")
