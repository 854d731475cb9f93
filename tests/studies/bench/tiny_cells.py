"""Cells that train in a second, and made-up results."""

import json

from tacit.studies.bench import Cell

TINY = {"epochs": 2, "batch_size": 32, "train_size": 160, "test_size": 20, "samples": 2}
ONE = Cell("digits", "standard", **TINY)


def without_cost(path):
    """Return a saved result without its times, which differ between runs."""
    found = json.loads(path.read_text())
    return {name: value for name, value in found.items() if name != "cost"}


def fake(method, seed, nll):
    """Return a result as `read_results` does, with numbers made up from an NLL."""
    three = {"nll": nll, "accuracy": 0.9, "ece": 0.01, "aurc": 0.02}
    return {
        "cell": Cell("mnist", method, "sp", seed),
        "method": method,
        "test": three,
        "corrupted": {"fog": three, "shear": {**three, "nll": 3 * nll}},
        "foreign": {"quickdraw": {"auroc": 1 - nll / 10}},
        "averaging": {"probs": three, "log_probs": {**three, "nll": 2 * nll}},
        "cost": {"seconds": 10.0 * nll, "parameters": 1000, "peak_bytes": None},
    }


FAKES = [
    fake(method, seed, nll + 0.001 * seed**2 * sign)
    for method, nll, sign in (
        ("implicit_bias_vi", 0.3, 1), ("standard", 0.4, -1), ("deep_ensemble", 0.2, -1),
        ("swag", 0.3, -1),
    )
    for seed in range(3)
]  # fmt: skip
