r"""Regression tables with no setting touched, beside scikit-learn's regressors.

    python -m benchmarks.tables            # run what is missing
    python -m benchmarks.tables --report   # print the table of results

One line per table, method and split is appended to benchmarks/results/tables.jsonl; finished ones
are skipped. A split has 81 % training, 9 % validation (at least 20 rows) and 10 % test data. tacit
and the plain network are the network and the likelihood that `VariationalRegressor` and `tacit
train` use by default. They stop on the validation data and set their noise scale on them, the
random forest sets its noise scale on them, and the others train on both. The defaults of
`tacit.fit` were chosen on yacht, concrete, airfoil, wine_red, fish_toxicity and diabetes.
"""

from __future__ import annotations

import argparse
import json
import math
import time
import warnings
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_diabetes
from sklearn.ensemble import HistGradientBoostingRegressor, RandomForestRegressor
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from sklearn.linear_model import BayesianRidge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import Tensor

import tacit
from tacit._support.provenance import provenance
from tacit.data.cache import load
from tacit.data.uci_tables import TABLES, UCI
from tacit.likelihood import Likelihood
from tacit.likelihood.continuous import best_scale
from tacit.likelihood.predictive import Predictive, RegressionPredictive

RESULTS = Path(__file__).parent / "results" / "tables.jsonl"
NAMES = ("diabetes", *TABLES)
SPLITS = 10
GP_ROWS = 1000  # a Gaussian process takes cubic time
LEVELS = np.arange(0.05, 1, 0.1)  # of boosted quantiles; the outermost bound 90 % intervals

Data = tuple[Tensor, Tensor]
Scores = dict[str, float | None]


def split(name: str, seed: int) -> tuple[Data, Data, Data]:
    """Return training, validation and test data in their own units."""
    if name == "diabetes":
        found = load_diabetes()
        rows = torch.tensor(np.column_stack([found.data, found.target]))
    else:
        rows = load(UCI)[name].double()
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))
    test = len(rows) // 10
    held_out = test + max(20, (len(rows) - test) // 10)
    parts = order[held_out:], order[test:held_out], order[:test]
    train, validation, rest = ((rows[p, :-1].float(), rows[p, -1].float()) for p in parts)
    return train, validation, rest


def network(train: Data, outputs: int) -> torch.nn.Module:
    """Return the network of tacit and the plain network: that of `VariationalRegressor`."""
    return tacit.models.MLP(train[0].shape[1], [64, 64], outputs)


def tacit_default(train: Data, validation: Data, test: Data, seed: int) -> Scores:
    """Relative noise and Student-t residuals, the defaults, on the data as they are."""
    return _variational(tacit.HeteroscedasticStudentT(), 2, train, validation, test, seed)


def plain_network(train: Data, validation: Data, test: Data, seed: int) -> Scores:
    """The same network and likelihood without noise in the weights."""
    return _plain(tacit.HeteroscedasticStudentT(), 2, train, validation, test, seed)


def tacit_gaussian(train: Data, validation: Data, test: Data, seed: int) -> Scores:
    """Relative noise and Gaussian residuals of constant scale."""
    return _variational(tacit.Gaussian(), 1, train, validation, test, seed)


def plain_gaussian(train: Data, validation: Data, test: Data, seed: int) -> Scores:
    """The same without noise in the weights."""
    return _plain(tacit.Gaussian(), 1, train, validation, test, seed)


def _variational(
    likelihood: Likelihood, outputs: int, train: Data, validation: Data, test: Data, seed: int
) -> Scores:
    model = tacit.variational(network(train, outputs), likelihood=likelihood)
    tacit.fit(model, train, validation, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    return scores(tacit.predict(model, test[0], samples=64, generator=generator), test[1])


def _plain(
    likelihood: Likelihood, outputs: int, train: Data, validation: Data, test: Data, seed: int
) -> Scores:
    net = torch.nn.Sequential(tacit.models.Standardise.of(train[0]), network(train, outputs))
    tacit.fit(net, train, validation, likelihood=likelihood, seed=seed)
    return scores(tacit.predict(net, test[0], likelihood=likelihood), test[1])


def random_forest(train: Data, validation: Data, test: Data, seed: int) -> Scores:
    """The trees as functions, with a noise scale."""
    forest = RandomForestRegressor(random_state=seed).fit(*train)

    def trees(x: Tensor) -> Tensor:
        return torch.tensor(np.stack([tree.predict(x.numpy()) for tree in forest.estimators_]))

    held_out = trees(validation[0])[..., None]
    scale = best_scale(held_out, torch.ones_like(held_out), validation[1][:, None].double())
    outputs = trees(test[0])
    return scores(RegressionPredictive(outputs, scale.expand_as(outputs)), test[1])


def gaussian_process(train: Data, validation: Data, test: Data, seed: int) -> Scores:
    """A squared exponential kernel with a length scale for each column."""
    x, y = together(train, validation)
    kernel = ConstantKernel() * RBF(np.ones(x.shape[1])) + WhiteKernel(0.1)
    model = make_pipeline(
        StandardScaler(), GaussianProcessRegressor(kernel, normalize_y=True, random_state=seed)
    )
    model.fit(x[:GP_ROWS], y[:GP_ROWS])
    return scores(normal(*model.predict(test[0].numpy(), return_std=True)), test[1])


def bayesian_ridge(train: Data, validation: Data, test: Data, seed: int) -> Scores:
    """A Bayesian linear model."""
    model = make_pipeline(StandardScaler(), BayesianRidge())
    model.fit(*together(train, validation))
    return scores(normal(*model.predict(test[0].numpy(), return_std=True)), test[1])


def boosted_quantiles(train: Data, validation: Data, test: Data, seed: int) -> Scores:
    """Gradient boosting, one model for each quantile."""
    x, y = together(train, validation)
    inputs, wanted = test[0].numpy(), test[1].numpy()
    settings: dict[str, Any] = {"random_state": seed}
    center = HistGradientBoostingRegressor(**settings).fit(x, y).predict(inputs)
    quantiles = [
        HistGradientBoostingRegressor(loss="quantile", quantile=q, **settings)
        .fit(x, y)
        .predict(inputs)
        for q in LEVELS
    ]
    pinball = [
        np.maximum(q * (wanted - found), (q - 1) * (wanted - found)).mean()
        for q, found in zip(LEVELS, quantiles, strict=True)
    ]
    inside = (quantiles[0] <= wanted) & (wanted <= quantiles[-1])
    rmse = math.sqrt(np.square(center - wanted).mean())
    # CRPS is twice the integral of the pinball loss over the levels.
    return {
        "rmse": rmse,
        "nll": None,
        "crps": 2 * float(np.mean(pinball)),
        "coverage_90": float(inside.mean()),
    }


METHODS: dict[str, Callable[[Data, Data, Data, int], Scores]] = {
    "tacit": tacit_default,
    "plain network": plain_network,
    "tacit, Gaussian": tacit_gaussian,
    "plain network, Gaussian": plain_gaussian,
    "random forest": random_forest,
    "Gaussian process": gaussian_process,
    "boosted quantiles": boosted_quantiles,
    "Bayesian ridge": bayesian_ridge,
}


def together(train: Data, validation: Data) -> tuple[np.ndarray, np.ndarray]:
    """Return inputs and targets of both parts."""
    x, y = (torch.cat(parts).double().numpy() for parts in zip(train, validation, strict=True))
    return x, y


def normal(center: np.ndarray, std: np.ndarray) -> RegressionPredictive:
    """Return normal predictive distributions."""
    return RegressionPredictive(torch.tensor(center)[None], torch.tensor(std)[None])


def scores(prediction: Predictive, targets: Tensor) -> Scores:
    """Return the scores of predictions."""
    found = prediction.scores(targets)
    return {name: found[name] for name in ("rmse", "nll", "crps", "coverage_90")}


def measure(table: str, method: str, seed: int) -> dict[str, Any]:
    """Train a method on a split of a table and return its scores and its time."""
    torch.manual_seed(seed)
    parts = split(table, seed)
    start = time.perf_counter()
    found = METHODS[method](*parts, seed)
    seconds = time.perf_counter() - start
    return {"table": table, "method": method, "split": seed, **found, "seconds": seconds}


def run(path: Path, tables: list[str], splits: int) -> None:
    """Measure everything that is missing in a file, the first split of all tables first."""
    path.parent.mkdir(parents=True, exist_ok=True)
    done = {(r["table"], r["method"], r["split"]) for r in read(path)}
    made_by = provenance()
    for seed in range(splits):
        for table in tables:
            for method in METHODS:
                if (table, method, seed) in done:
                    continue
                row = measure(table, method, seed)
                with path.open("a") as file:
                    file.write(
                        json.dumps({**row, "threads": torch.get_num_threads(), **made_by}) + "\n"
                    )
                print(f"{table}, {method}, split {seed}: {row['seconds']:.0f} s", flush=True)


def read(path: Path) -> list[dict[str, Any]]:
    """Return the results in a file."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def report(path: Path) -> str:
    """Return the results as Markdown: means over splits, and the standard errors of the NLL."""
    rows = defaultdict(list)
    for row in read(path):
        rows[row["table"], row["method"]].append(row)
    lines = []
    for score, digits in (("nll", 3), ("rmse", 3), ("crps", 3), ("coverage_90", 2)):
        lines += [
            "",
            f"| {score} | " + " | ".join(METHODS) + " |",
            "| --- |" + " ---: |" * len(METHODS),
        ]
        for table in NAMES:
            cells = [_cell([r[score] for r in rows[table, method]], digits) for method in METHODS]
            lines.append(f"| {table} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _cell(values: list[float | None], digits: int) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return ""
    error = f" ± {stdev(known) / math.sqrt(len(known)):.{digits}f}" if len(known) > 1 else ""
    return f"{mean(known):.{digits}f}{error}"


def main() -> None:
    """Run the study, or print its results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--report", action="store_true", help="print the table of results")
    parser.add_argument("--tables", type=lambda text: text.split(","), default=list(NAMES))
    parser.add_argument("--splits", type=int, default=SPLITS)
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    if arguments.report:
        print(report(arguments.out))
        return
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", ConvergenceWarning)
    run(arguments.out, arguments.tables, arguments.splits)


if __name__ == "__main__":
    main()
