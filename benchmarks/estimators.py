r"""The estimators for scikit-learn, no setting touched, beside scikit-learn's, on twelve tables.

    python -m benchmarks.estimators            # run what is missing
    python -m benchmarks.estimators --report   # print the tables of results

One line per table, method and split is appended to benchmarks/results/estimators.jsonl; finished
ones are skipped. At most 1,000 rows of a table, drawn with the seed of the split, are used by all
methods alike: 80 % to train, 20 % to test, by class for classes. Networks and Gaussian processes
get standardised inputs, and targets. Boosting and `MLPRegressor` predict no uncertainty: theirs is
the root mean squared error on a tenth of the training rows, which they are not trained on. Time is
CPU time of training and prediction, on one thread.
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
from statistics import mean
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn import datasets
from sklearn.compose import TransformedTargetRegressor
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import GaussianProcessClassifier, GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from tacit._support.provenance import provenance
from tacit.data.cache import load
from tacit.data.uci_tables import UCI
from tacit.integrations.sklearn import VariationalClassifier, VariationalRegressor
from tacit.likelihood.predictive import ClassPredictive, Predictive, RegressionPredictive

RESULTS = Path(__file__).parent / "results" / "estimators.jsonl"
CLASSES = ("iris", "wine", "breast_cancer", "digits", "wine_white_good")
NUMBERS = ("diabetes", "airfoil", "concrete", "power_plant", "protein", "wine_red", "yacht")
SPLITS, ROWS = 3, 1000
CLASS_SCORES = {"accuracy": 3, "nll": 3, "ece": 3, "seconds": 1}
NUMBER_SCORES = {"rmse": 3, "nll": 3, "coverage_90": 2, "seconds": 1}

Array: TypeAlias = NDArray[Any]
Data: TypeAlias = tuple[Array, Array]
Method: TypeAlias = Callable[[Data, Array, int], Predictive]


def rows_of(table: str) -> Data:
    """Return inputs and targets of a table in their own units."""
    if table in ("iris", "wine", "breast_cancer", "digits", "diabetes"):
        x, y = getattr(datasets, f"load_{table}")(return_X_y=True)
        return x, y
    found = load(UCI)[table.removesuffix("_good")].double().numpy()
    x, y = found[:, :-1], found[:, -1]
    return x, (y >= 6).astype(int) if table == "wine_white_good" else y


def split(table: str, seed: int) -> tuple[Data, Data]:
    """Return training and test data."""
    x, y = rows_of(table)
    if len(y) > ROWS:
        kept = np.random.default_rng(seed).permutation(len(y))[:ROWS]
        x, y = x[kept], y[kept]
    labels = y if table in CLASSES else None
    train_x, test_x, train_y, test_y = train_test_split(
        x, y, test_size=0.2, random_state=seed, stratify=labels
    )
    return (train_x, train_y), (test_x, test_y)


def tacit_classes(train: Data, test: Array, seed: int) -> Predictive:
    """`VariationalClassifier()`."""
    return VariationalClassifier(random_state=seed).fit(*train).predictive(test)


def boosted_classes(train: Data, test: Array, seed: int) -> Predictive:
    """`HistGradientBoostingClassifier()`."""
    return _classes(HistGradientBoostingClassifier(random_state=seed).fit(*train), test)


def mlp_classes(train: Data, test: Array, seed: int) -> Predictive:
    """`MLPClassifier()`."""
    return _classes(make_pipeline(StandardScaler(), MLPClassifier(random_state=seed)), test, train)


def gp_classes(train: Data, test: Array, seed: int) -> Predictive:
    """`GaussianProcessClassifier` with a squared exponential kernel, classes one against rest."""
    kernel = ConstantKernel() * RBF(math.sqrt(test.shape[1]))
    model = GaussianProcessClassifier(kernel, random_state=seed)
    return _classes(make_pipeline(StandardScaler(), model), test, train)


def tacit_numbers(train: Data, test: Array, seed: int) -> Predictive:
    """`VariationalRegressor()`."""
    return VariationalRegressor(random_state=seed).fit(*train).predictive(test)


def boosted_numbers(train: Data, test: Array, seed: int) -> Predictive:
    """`HistGradientBoostingRegressor()`."""
    return _numbers(HistGradientBoostingRegressor(random_state=seed), train, test, seed)


def mlp_numbers(train: Data, test: Array, seed: int) -> Predictive:
    """`MLPRegressor()`."""
    model = TransformedTargetRegressor(
        MLPRegressor(random_state=seed), transformer=StandardScaler()
    )
    return _numbers(make_pipeline(StandardScaler(), model), train, test, seed)


def gp_numbers(train: Data, test: Array, seed: int) -> Predictive:
    """`GaussianProcessRegressor`, squared exponential, a length scale for each column, noise."""
    kernel = ConstantKernel() * RBF(np.ones(test.shape[1])) + WhiteKernel(0.1)
    model = GaussianProcessRegressor(kernel, normalize_y=True, random_state=seed)
    pipeline = make_pipeline(StandardScaler(), model).fit(*train)
    return _normal(*pipeline.predict(test, return_std=True))


METHODS: dict[str, tuple[Method, Method]] = {
    "tacit": (tacit_classes, tacit_numbers),
    "HistGradientBoosting": (boosted_classes, boosted_numbers),
    "MLP": (mlp_classes, mlp_numbers),
    "GaussianProcess": (gp_classes, gp_numbers),
}


def _classes(model: Any, test: Array, train: Data | None = None) -> Predictive:
    fitted = model if train is None else model.fit(*train)
    probs = torch.tensor(fitted.predict_proba(test)).clamp_min(1e-9)
    return ClassPredictive(probs.log()[None])


def _numbers(model: Any, train: Data, test: Array, seed: int) -> Predictive:
    x, held_out, y, wanted = train_test_split(*train, test_size=0.1, random_state=seed)
    model.fit(x, y)
    error = math.sqrt(np.square(model.predict(held_out) - wanted).mean())
    return _normal(model.predict(test), np.full(len(test), error))


def _normal(center: Array, std: Array) -> Predictive:
    return RegressionPredictive(torch.tensor(center)[None], torch.tensor(std)[None])


def measure(table: str, method: str, seed: int) -> dict[str, Any]:
    """Train a method on a split of a table and return its scores and its CPU time."""
    train, test = split(table, seed)
    numbers = table in NUMBERS
    start = time.process_time()
    prediction = METHODS[method][numbers](train, test[0], seed)
    seconds = time.process_time() - start
    found = prediction.scores(torch.tensor(test[1]))
    names = [name for name in (NUMBER_SCORES if numbers else CLASS_SCORES) if name != "seconds"]
    scores = {name: found[name] for name in names}
    return {"table": table, "method": method, "split": seed, **scores, "seconds": seconds}


def run(path: Path, tables: list[str], splits: int) -> None:
    """Measure everything that is missing in a file, the first split of all tables first."""
    path.parent.mkdir(parents=True, exist_ok=True)
    done = {(row["table"], row["method"], row["split"]) for row in read(path)}
    made_by = provenance()
    for seed in range(splits):
        for table in tables:
            for method in METHODS:
                if (table, method, seed) in done:
                    continue
                row = measure(table, method, seed)
                with path.open("a") as file:
                    file.write(json.dumps({**row, **made_by}) + "\n")
                print(f"{table}, {method}, split {seed}: {row['seconds']:.1f} s", flush=True)


def read(path: Path) -> list[dict[str, Any]]:
    """Return the results in a file."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def report(path: Path) -> str:
    """Return the results as Markdown: means over splits, the scores of a method in a cell."""
    rows = defaultdict(list)
    for row in read(path):
        rows[row["table"], row["method"]].append(row)
    lines = []
    for tables, scores in ((CLASSES, CLASS_SCORES), (NUMBERS, NUMBER_SCORES)):
        lines += ["", f"| {', '.join(scores)} | splits | {' | '.join(METHODS)} |"]
        lines += ["| --- | ---: |" + " ---: |" * len(METHODS)]
        for table in tables:
            counts = [len(rows[table, method]) for method in METHODS]
            # Splits that all methods have: the same data for all of them.
            shared = range(min(counts))
            cells = [
                ", ".join(
                    f"{mean(r[score] for r in rows[table, method] if r['split'] in shared):.{n}f}"
                    for score, n in scores.items()
                )
                for method in METHODS if shared
            ]  # fmt: skip
            lines.append(f"| {table} | {len(shared)} | {' | '.join(cells)} |")
    return "\n".join(lines[1:])


def main() -> None:
    """Run the study, or print its results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--report", action="store_true", help="print the tables of results")
    names = [*CLASSES, *NUMBERS]
    parser.add_argument("--tables", type=lambda text: text.split(","), default=names)
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
