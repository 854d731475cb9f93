"""Comparison with other packages: a training step, and prediction with a random last layer.

python -m benchmarks.peers [--smoke] [--out benchmarks/results/peers.json]

`make bench-peers` installs them into a separate folder; packages not installed are skipped. All are
used as documented, with one sample per step, on the same network and batch.
"""

from __future__ import annotations

import argparse
import copy
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import tacit
from benchmarks.measure import save, show
from tacit.studies.timing import interleaved_seconds, ratio, repeated

BATCH, SIZE, SEED = 128, 50_000, 0
PRIOR = {
    "prior_mu": 0.0, "prior_sigma": 1.0, "posterior_mu_init": 0.0, "posterior_rho_init": -3.0,
    "type": "Reparameterization", "moped_enable": False, "moped_delta": 0.5,
}  # fmt: skip

Step = Callable[[], object]


def network() -> nn.Sequential:
    """Return MLP 784-512-512-10 of torch's own layers, which all packages support."""
    return nn.Sequential(
        nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)
    )


def descent(model: nn.Module, loss: Callable[[], Tensor], optimizer: Any = None) -> Step:
    """Return a step of SGD."""
    stepper = optimizer or torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)

    def step() -> None:
        stepper.zero_grad()
        loss().backward()
        stepper.step()

    return step


def plain(x: Tensor, y: Tensor) -> Step:
    """Train the plain network."""
    net = network()
    return descent(net, lambda: F.cross_entropy(net(x), y))


def ours(x: Tensor, y: Tensor) -> Step:
    """Train tacit with rank 10 in the first and 20 in the last layer, one draw."""
    model = tacit.variational(network(), {"0": tacit.LowRank(10), "4": tacit.LowRank(20)})
    return descent(
        model, lambda: F.cross_entropy(model(x), y), tacit.SGD(model, 1e-3, 0.9, deferred=True)
    )


def ours_in_all_layers(x: Tensor, y: Tensor) -> Step:
    """Train tacit with all layers random, with rank 3."""
    model = tacit.variational(network(), rank=3, draws=8)
    return descent(
        model, lambda: F.cross_entropy(model(x), y), tacit.SGD(model, 1e-3, 0.9, deferred=True)
    )


def bayesian_torch(x: Tensor, y: Tensor) -> Step:
    """Train bayesian-torch: all layers mean-field, by its converter."""
    conversion = import_module("bayesian_torch.models.dnn_to_bnn")
    net = network()
    conversion.dnn_to_bnn(net, PRIOR)
    return descent(net, lambda: F.cross_entropy(net(x), y) + conversion.get_kl_loss(net) / SIZE)


def blitz(x: Tensor, y: Tensor) -> Step:
    """Train blitz: all layers mean-field, built of its own layers."""
    layer = import_module("blitz.modules").BayesianLinear
    collect = import_module("blitz.losses").kl_divergence_from_nn
    net = nn.Sequential(layer(784, 512), nn.ReLU(), layer(512, 512), nn.ReLU(), layer(512, 10))
    return descent(net, lambda: F.cross_entropy(net(x), y) + collect(net) / SIZE)


def ivon(x: Tensor, y: Tensor) -> Step:
    """Train all weights with IVON's optimizer."""
    net = network()
    optimizer = import_module("ivon").IVON(net.parameters(), lr=0.1, ess=SIZE)

    def step() -> None:
        with optimizer.sampled_params(train=True):
            optimizer.zero_grad()
            F.cross_entropy(net(x), y).backward()
        optimizer.step()

    return step


TRAINING: dict[str, Callable[[Tensor, Tensor], Step]] = {
    "tacit, first and last layer": ours,
    "tacit, all layers, 8 draws": ours_in_all_layers,
    "bayesian-torch": bayesian_torch,
    "blitz-bayesian-pytorch": blitz,
    "ivon-opt": ivon,
}


def made(name: str, make: Callable[[], Step]) -> dict[str, Step]:
    """Return a package's function under its name, or nothing if it is not installed."""
    try:
        return {name: make()}
    except ImportError as error:
        print(f"skipped: {name} ({error})")
        return {}


def laplace_prediction(net: nn.Module, x: Tensor, y: Tensor) -> Step:
    """Return laplace-torch's closed-form prediction for a last layer, after a fit."""
    made = import_module("laplace").Laplace(
        net, "classification", subset_of_weights="last_layer", hessian_structure="kron"
    )
    with torch.enable_grad():
        made.fit(torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), BATCH))
    return lambda: made(x, link_approx="probit")


def predictions(x: Tensor, y: Tensor) -> dict[str, Step]:
    """Return a plain pass, 32 samples and exact logits of a random last layer, and Laplace."""
    net = network().eval()
    model = tacit.variational(copy.deepcopy(net), {"4": tacit.LowRank(20)}).eval()
    laplace = partial(laplace_prediction, copy.deepcopy(net), x, y)
    return {
        "plain": lambda: net(x),
        "tacit, 32 samples": lambda: model(x, samples=32),
        "tacit, exact logits": lambda: tacit.moments.output_moments(model, x),
        **made("laplace-torch, probit", laplace),
    }


def measured(runs: Mapping[str, Step], repeats: int, label: str) -> dict[str, dict[str, float]]:
    """Return the ratios to the plain network, measured interleaved."""
    seconds = interleaved_seconds(runs, repeats, label)
    return {f"{label}: {name}": ratio(seconds, name, "plain") for name in runs if name != "plain"}


def main() -> None:
    """Measure, print the table and save the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--smoke", action="store_true", help="few repeats, to check that it runs")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/peers.json"))
    arguments = parser.parse_args()
    torch.manual_seed(SEED)
    x, y = torch.randn(BATCH, 784), torch.randint(10, (BATCH,))
    steps = {"plain": plain(x, y)}
    for name, make in TRAINING.items():
        steps |= made(name, partial(make, x, y))
    repeats = 1 if arguments.smoke else 20
    bursts = {name: repeated(step, 1 if arguments.smoke else 32) for name, step in steps.items()}
    rows = measured(bursts, repeats, "training step")
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        rows |= measured(predictions(x, y), repeats, "prediction")
    found = {name.partition(": ")[2].partition(",")[0] for name in rows} - {"tacit"}
    save(arguments.out, seed=SEED, versions={name: version(name) for name in found}, rows=rows)
    show(rows)


if __name__ == "__main__":
    main()
