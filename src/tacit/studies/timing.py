"""Time and memory of competing functions: interleaved calls after a warm-up, medians, ratios."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Mapping

from rich.progress import Progress
from torch import Tensor, nn
from torch.profiler import profile

BOOTSTRAPS = 1000


def interleaved_seconds(
    calls: Mapping[str, Callable[[], object]], repeats: int, label: str, warmup: int = 3
) -> dict[str, list[float]]:
    """Return the seconds of each function per repeat, interleaved so that load affects all equally.

    The order is random in each repeat, since a function is slower after one that evicts the cache.

    Args:
        calls: Functions to time, by name.
        repeats: Number of timed calls per function.
        label: Label of the progress bar.
        warmup: Number of untimed calls per function beforehand, at most `repeats`.
    """
    rng = random.Random(0)
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    warmup = min(warmup, repeats)
    # Refreshed manually: a refresh thread would compete with the timed functions.
    with Progress(auto_refresh=False, transient=True) as progress:
        task = progress.add_task(label, total=warmup + repeats)
        for repeat in range(warmup + repeats):
            for name in rng.sample(list(calls), len(calls)):
                start = time.perf_counter()
                calls[name]()
                if repeat >= warmup:
                    seconds[name].append(time.perf_counter() - start)
            progress.update(task, advance=1, refresh=repeat % 20 == 0)
    return seconds


def repeated(call: Callable[[], object], times: int) -> Callable[[], None]:
    """Return a function that calls `call` several times, for costs that vary between calls.

    `tacit.SGD` draws new directions once in several steps, a cost that a median over single steps
    would miss.
    """

    def call_repeatedly() -> None:
        for _ in range(times):
            call()

    return call_repeatedly


def ratio(
    seconds: Mapping[str, list[float]], name: str, anchor: str, times: int = 1
) -> dict[str, float]:
    """Return two medians and their ratio, with a 95 % bootstrap interval over repeats.

    Args:
        seconds: From `interleaved_seconds`.
        name: Name of the numerator.
        anchor: Name of the denominator.
        times: Number of calls per repeat, as given to `repeated`.
    """
    pairs = list(zip(seconds[name], seconds[anchor], strict=True))
    rng = random.Random(0)
    ratios = sorted(_ratio_of_medians(rng.choices(pairs, k=len(pairs))) for _ in range(BOOTSTRAPS))
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

    Activations are what a forward pass allocates and still holds when it ends, by torch's own
    accounting. Hooks on saved tensors would disable the model's recomputation of activations.
    The count is exact, so it is the same on every machine.
    """
    parameters = sum(p.numel() * p.element_size() for p in model.parameters())
    loss()  # excludes what the first call verifies and caches
    with profile(profile_memory=True) as recorded:
        held = loss()
    device = "self_cpu_memory_usage" if held.device.type == "cpu" else "self_device_memory_usage"
    activations: int = sum(getattr(event, device) for event in recorded.key_averages())
    return 3 * parameters + activations
