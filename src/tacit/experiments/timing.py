"""Measuring side by side: interleaved, on warm code, medians; memory counted in bytes."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Mapping

import torch
from rich.progress import Progress
from torch import Tensor, nn

BOOTSTRAPS = 1000


def interleaved_seconds(
    runs: Mapping[str, Callable[[], object]], repeats: int, label: str, warmup: int = 3
) -> dict[str, list[float]]:
    """Return the seconds of each run, taken in turn so that the machine's moods hit all alike.

    The order is random each time: a run is slower after one that leaves cold caches.
    """
    chance = random.Random(0)
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    # Refreshed by hand: a thread that draws the bar would take time from what is measured.
    warmup = min(warmup, repeats)
    with Progress(auto_refresh=False, transient=True) as progress:
        task = progress.add_task(label, total=warmup + repeats)
        for repeat in range(warmup + repeats):
            for name in chance.sample(list(runs), len(runs)):
                start = time.perf_counter()
                runs[name]()
                if repeat >= warmup:
                    seconds[name].append(time.perf_counter() - start)
            progress.update(task, advance=1, refresh=repeat % 20 == 0)
    return seconds


def repeated(run: Callable[[], object], times: int) -> Callable[[], None]:
    """Return a run that is made several times, for what is not the same each time.

    `tacit.SGD` takes new directions once in many steps: a median of single steps would not see it.
    """

    def all_of_them() -> None:
        for _ in range(times):
            run()

    return all_of_them


def ratio(
    seconds: Mapping[str, list[float]], name: str, anchor: str, times: int = 1
) -> dict[str, float]:
    """Return the medians and their ratio with a 95 % interval, by the bootstrap over repeats.

    Args:
        seconds: Of each run.
        name: Of the run in question.
        anchor: Of the run to compare with.
        times: How many times each was made together.
    """
    pairs = list(zip(seconds[name], seconds[anchor], strict=True))
    chance = random.Random(0)
    ratios = sorted(
        _ratio_of_medians(chance.choices(pairs, k=len(pairs))) for _ in range(BOOTSTRAPS)
    )
    return {
        "seconds": statistics.median(seconds[name]) / times,
        "anchor_seconds": statistics.median(seconds[anchor]) / times,
        "ratio": _ratio_of_medians(pairs),
        "ratio_low": ratios[round(0.025 * BOOTSTRAPS)],
        "ratio_high": ratios[round(0.975 * BOOTSTRAPS) - 1],
    }


def _ratio_of_medians(pairs: list[tuple[float, float]]) -> float:
    return statistics.median(a for a, _ in pairs) / statistics.median(b for _, b in pairs)


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
