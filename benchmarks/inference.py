"""Cost of predictions: many samples, exact moments, compilation, and a corrupted test set.

python -m benchmarks.inference [--smoke] [--out benchmarks/results/inference.json]
"""

from __future__ import annotations

import argparse
import copy
import multiprocessing
import resource
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import tacit
from benchmarks.measure import save, show
from tacit.models import MLP, LeNet5, ResNet18
from tacit.studies.bench.problems import large_digits
from tacit.studies.timing import interleaved_seconds, ratio

COUNTS = (1, 2, 4, 8, 16, 32, 64)
SEED = 0
LIMIT = 2 * 2**30  # bytes

Curve = dict[str, dict[str, float]]


def call(function: Callable[..., object], x: Tensor, **settings: int) -> Callable[[], None]:
    """Return a function that makes a call in inference mode."""

    @torch.inference_mode()
    def run() -> None:
        function(x, **settings)

    return run


def over_samples(
    net: nn.Module, where: object, x: Tensor, repeats: int, counts: tuple[int, ...] = COUNTS
) -> Curve:
    """Return the time of M sampled passes relative to one plain pass, for each M."""
    net = net.eval()
    model = tacit.variational(copy.deepcopy(net), where).eval()  # type: ignore[arg-type]
    runs = {str(count): call(model, x, samples=count) for count in counts}
    seconds = interleaved_seconds({"plain": call(net, x), **runs}, repeats, "samples")
    return {name: ratio(seconds, name, "plain") for name in runs}


def exact(repeats: int) -> dict[str, float]:
    """Return the time of exact Gaussian logits, last layer random, relative to a plain pass."""
    net, x = ResNet18().eval(), torch.randn(8, 3, 32, 32)
    model = tacit.variational(net, {"fc": tacit.LowRank(20)}).eval()
    moments = partial(tacit.moments.output_moments, model)
    runs = {"plain": call(net, x), "exact": call(moments, x)}
    return ratio(interleaved_seconds(runs, repeats, "exact moments"), "exact", "plain")


def accelerated(repeats: int) -> dict[str, dict[str, float]]:
    """Return the time of compiled, and of autocast, sampled passes relative to eager float32."""
    net, x = MLP(784, (512, 512), 10).eval(), torch.randn(256, 784)
    model = tacit.variational(net, tacit.every_layer).eval()
    compiled = torch.compile(model)
    plain = call(model, x, samples=32)

    def lower() -> None:
        with torch.autocast("cpu", torch.bfloat16):
            plain()

    runs = {"plain": plain, "compiled": call(compiled, x, samples=32), "bfloat16": lower}
    seconds = interleaved_seconds(runs, repeats, "compiled")
    return {name: ratio(seconds, name, "plain") for name in ("compiled", "bfloat16")}


def corrupted_test_set(small: bool, queue: Any) -> None:
    """Predict corrupted MNIST with 32 samples; put seconds and peak memory into the queue."""
    model = tacit.variational(LeNet5(), likelihood=tacit.Categorical())
    test = large_digits().test[:20] if small else tacit.data.mnist().test
    names = tacit.data.CORRUPTIONS["mnist"]
    pixels = torch.cat([tacit.data.corrupt(test.pixels, name, kind="mnist") for name in names])
    images = replace(test, pixels=pixels, targets=test.targets.repeat(len(names)))
    start = time.perf_counter()
    found = tacit.predict(model, images, samples=32)
    seconds = time.perf_counter() - start
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    queue.put({"images": len(found), "total_seconds": seconds, "bytes": most, "limit": LIMIT})


def in_a_process(small: bool) -> dict[str, float]:
    """Run `corrupted_test_set` in a separate process, so that its peak memory is its own."""
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=corrupted_test_set, args=(small, queue))
    process.start()
    found: dict[str, float] = queue.get()
    process.join()
    return found


def main() -> None:
    """Measure, print the tables and save the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--smoke", action="store_true", help="few repeats, to check that it runs")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/inference.json"))
    arguments = parser.parse_args()
    torch.manual_seed(SEED)
    few = arguments.smoke
    counts = COUNTS[:2] if few else COUNTS
    repeats = 1 if few else 30
    last = {"fc": tacit.LowRank(20)}
    photos, digits = torch.randn(8, 3, 32, 32), torch.randn(256, 1, 28, 28)
    curves = {
        "ResNet-18, last layer": over_samples(ResNet18(), last, photos, repeats, counts),
        "LeNet-5, all layers": over_samples(LeNet5(), tacit.every_layer, digits, repeats, counts),
        "MLP, all layers": over_samples(
            MLP(784, (512, 512), 10), tacit.every_layer, digits.flatten(1), repeats, counts
        ),
    }
    rows = {"exact logits, ResNet-18, last layer": exact(repeats)}
    faster = {} if few else accelerated(repeats)  # compiling takes most of a minute
    rows |= {f"32 samples, MLP, {name} over not": row for name, row in faster.items()}
    large = in_a_process(few)
    save(arguments.out, seed=SEED, curves=curves, rows=rows, large=large)
    for name, points in curves.items():
        show(points, name)
    show(rows)
    print(
        f"{large['images']:,.0f} images, 32 samples: {large['total_seconds']:.0f} s, "
        f"{large['bytes'] / 2**20:.0f} MiB"
    )


if __name__ == "__main__":
    main()
