"""A plain and a variational network on handwritten digits, compared in a table and on a page.

On the command line: `tacit demo`.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Mapping
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from tacit import metrics
from tacit._support.console import print_table
from tacit.calling import variational
from tacit.data import Splits, digits, photo_patches
from tacit.inference import predict
from tacit.inference.calibration import calibrate
from tacit.likelihood import Categorical, Gaussian
from tacit.likelihood.predictive import ClassPredictive, RegressionPredictive
from tacit.studies import plots
from tacit.studies.estimates import CLEAR, auroc_difference, compared, mean_and_error
from tacit.studies.folders import check_folder
from tacit.studies.report import Page
from tacit.studies.supervision import Data
from tacit.training import fit
from tacit.weights.covariance import LowRank

PLAIN, OURS = "plain network", "tacit"
BATCH = 50
Rows = dict[str, dict[str, float]]
Predictions = dict[str, dict[str, ClassPredictive]]  # method -> kind of inputs -> predictions


def network() -> nn.Module:
    """Return an untrained MLP for 8x8 digits, with two hidden layers."""
    return nn.Sequential(
        nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10)
    )


def main(
    out: str | Path | None = "tacit-demo.html", epochs: int = 60, lr: float = 0.03, seed: int = 0
) -> Rows:
    """Train both networks, print the table, write the page and return the numbers of the table.

    Args:
        out: File of the page; None to write no page.
        epochs: Passes over the training data.
        lr: Learning rate.
        seed: Seed of initialization, batches and draws.

    Raises:
        ValueError: If the page can't be written to `out`; raised before training.
        TrainingDivergedError: If the loss is not finite.
    """
    if out is not None:
        _check_file(Path(out))
    splits = digits()
    test = splits.test
    inputs = foreign_inputs(test[0], seed)
    trained = {name: train(name, splits, epochs, lr, seed) for name in (PLAIN, OURS)}
    rows, predictions = {}, {}
    for name, found in trained.items():
        rows[name], predictions[name] = calibrate_and_predict(found, splits, inputs, seed)
    _print(rows)
    if out is not None:
        call = f"tacit.fit(model, train, epochs={epochs}, lr={lr}, batch_size={BATCH})"
        curve = regression(seed, steps=30 * epochs)
        path = write_page(out, rows, predictions, test, curve, call)
        Console().print(f"page: {path.resolve()}", soft_wrap=True, highlight=False)
    return rows


def _check_file(path: Path) -> None:
    """Raise ValueError if the path is a folder, or can't be created because a parent is a file."""
    if path.is_dir():
        raise ValueError(
            f"out: expected a file for the page, received the folder {path}; try "
            f"{path / 'tacit-demo.html'}."
        )
    check_folder("out", path.parent)


def foreign_inputs(x: Tensor, seed: int) -> dict[str, Tensor]:
    """Return the test images, noisy copies of them, and patches of photographs, by name."""
    generator = torch.Generator().manual_seed(seed)
    noisy = (x + 0.4 * torch.randn(x.shape, generator=generator)).clamp(0, 1)
    return {"digits": x, "noisy digits": noisy, "photographs": photo_patches(len(x))}


def train(
    name: str, splits: Splits, epochs: int, lr: float, seed: int
) -> tuple[nn.Module, Categorical, float]:
    """Train one network; return it with its likelihood and the seconds it took."""
    torch.manual_seed(seed)
    likelihood = Categorical()
    net = network()
    model = variational(net, likelihood=likelihood) if name == OURS else net
    importlib.import_module("lightning_fabric")  # seconds, which the first network would be charged
    start = time.perf_counter()
    fit(
        model, splits.train, epochs=epochs, lr=lr, batch_size=BATCH, likelihood=likelihood,
        seed=seed,
    )  # fmt: skip
    return model, likelihood, time.perf_counter() - start


def calibrate_and_predict(
    trained: tuple[nn.Module, Categorical, float],
    splits: Splits,
    inputs: Mapping[str, Tensor],
    seed: int,
) -> tuple[dict[str, float], dict[str, ClassPredictive]]:
    """Fit the temperature of a trained network.

    Returns:
        Its row of the table, and its predictions for each kind of input.
    """
    model, likelihood, seconds = trained
    generator = torch.Generator().manual_seed(seed)
    calibrate(model, splits.validation, likelihood=likelihood, generator=generator)
    found: dict[str, ClassPredictive] = {}
    for kind, x in inputs.items():
        prediction = predict(model, x, likelihood=likelihood, generator=generator)
        assert isinstance(prediction, ClassPredictive)
        found[kind] = prediction
    known, labels = found["digits"], splits.test[1]
    row = {
        "accuracy": metrics.accuracy(known.log_probs, labels),
        "NLL": metrics.nll(known.log_probs, labels),
        "ECE": metrics.ece(known.log_probs, labels),
        "Brier": metrics.brier(known.log_probs, labels),
        "AUROC noisy": metrics.auroc(known.entropy, found["noisy digits"].entropy),
        "AUROC photos": metrics.auroc(known.entropy, found["photographs"].entropy),
        "seconds": seconds,
        "parameters": float(sum(p.numel() for p in model.parameters())),
    }
    return row, found


def regression(
    seed: int, steps: int
) -> tuple[Tensor, RegressionPredictive, Tensor, Tensor, Tensor]:
    """Fit a curve with a gap in the data.

    Returns:
        A grid (B,), predictions on it, sampled functions on it (M, B), and the data: inputs and
        targets (N,).
    """
    torch.manual_seed(seed)
    x = torch.cat([torch.linspace(-1, -0.3, 40), torch.linspace(0.3, 1, 40)])
    y = torch.sin(4 * x) + 0.05 * torch.randn(80)
    net = nn.Sequential(nn.Linear(1, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
    likelihood = Gaussian(0.05, learn=False)
    model = variational(net, {"4": LowRank(20)}, likelihood=likelihood)
    fit(model, (x[:, None], y[:, None]), epochs=steps, lr=0.03, batch_size=80, seed=seed)
    grid = torch.linspace(-2, 2, 200)
    prediction = predict(model, grid[:, None], samples=100)
    assert isinstance(prediction, RegressionPredictive)
    flat = RegressionPredictive(prediction.means[..., 0], prediction.scales[..., 0])
    return grid, flat, flat.means[:20], x, y


def _print(rows: Rows) -> None:
    table = Table("", *next(iter(rows.values())), title="Digits, 797 test images")
    for name, row in rows.items():
        table.add_row(name, *_cells(row))
    print_table(table)


def _cells(row: Mapping[str, float]) -> list[str]:
    special = {"accuracy": "{:.1%}", "seconds": "{:.1f}", "parameters": "{:,.0f}"}
    return [special.get(name, "{:.3f}").format(value) for name, value in row.items()]


def conclusions(predictions: Predictions, labels: Tensor) -> str:
    """Return three sentences: which network is better at what, by how much, and how certain."""
    ours, plain = predictions[OURS], predictions[PLAIN]
    errors = [kinds["digits"].errors(labels) for kinds in (ours, plain)]

    def scored(name: str, sign: int, scale: float, form: str, unit: str) -> str:
        first, second = (sign * scale * found[name] for found in errors)
        difference, error = mean_and_error(first - second)
        values = " and ".join(f"{sign * x.mean().item():{form}}" for x in (first, second))
        return f"{values} ({compared(difference, error, OURS, PLAIN, form + unit)})"

    def detected(kind: str) -> str:
        negative = (ours["digits"].entropy, plain["digits"].entropy)
        positive = (ours[kind].entropy, plain[kind].entropy)
        difference, error = auroc_difference(negative, positive)
        pairs = zip(negative, positive, strict=True)
        values = " and ".join(f"{metrics.auroc(*pair):.3f}" for pair in pairs)
        return f"{values} for {kind} ({compared(difference, error, OURS, PLAIN, '.3f')})"

    return (
        f"For {OURS} and the {PLAIN} the accuracy on digits, in percent, is "
        f"{scored('accuracy', 1, 100, '.1f', ' points')} and the NLL "
        f"{scored('nll', -1, 1, '.3f', '')}. The AUROC of detection by entropy is "
        f"{detected('noisy digits')} and {detected('photographs')}. Uncertainties are standard "
        f"errors over images, for one training of each network; a difference is clear if it "
        f"exceeds {CLEAR} of them."
    )


def write_page(
    path: str | Path,
    rows: Rows,
    predictions: Predictions,
    test: Data,
    curve: tuple[Tensor, RegressionPredictive, Tensor, Tensor, Tensor],
    call: str,
) -> Path:
    """Write the page with the table, the figures and the call of `fit`; return its path."""
    images, labels = test[0].reshape(-1, 8, 8), test[1]
    known = {name: kinds["digits"] for name, kinds in predictions.items()}
    page = Page("Uncertainty of a plain and a variational network")
    page.text(conclusions(predictions, labels))
    page.text(
        "Two networks of the same architecture were trained on 900 handwritten digits with the "
        "same training loop. One is plain. The other (tacit) has a distribution over its weights; "
        "it was trained on the expected loss. The temperatures of both were fitted on the same 100 "
        "further images. Both are tested on 797 unseen digits, noisy copies of them, and "
        "photographs."
    )
    page.table(["", *next(iter(rows.values()))], [[n, *_cells(row)] for n, row in rows.items()])
    page.text(
        "NLL, ECE and Brier score: lower is better. AUROC: how well the entropy of the predictions "
        "separates noisy digits or photographs from digits; 0.5 is chance, 1 is perfect. In a "
        "network as small as this, fixed costs double the time of a step; in larger ones noise "
        "adds less.",
        soft=True,
    )  # fmt: skip
    page.heading("Calibration")
    page.figure(
        plots.plot_reliability(known, labels),
        "Accuracy against confidence. On the dashed line, predictions with 80 % confidence are "
        "correct 80 % of the time. Darker bars contain more predictions.",
    )
    page.figure(
        plots.plot_confidence(known, labels),
        "Confidence of correct and of wrong predictions.",
    )
    page.heading("Most and least certain images")
    page.figure(
        plots.plot_images(images, known[OURS], labels),
        "The images with the most and the least certain predictions of tacit, with predicted "
        "class and confidence; wrong predictions are red.",
    )
    page.heading("Selective prediction")
    page.figure(
        plots.plot_rejection(known, labels),
        "Accuracy of the remaining predictions when the least confident ones are rejected.",
    )
    page.heading("Foreign inputs")
    page.figure(
        plots.plot_entropy(predictions),
        "Entropy of the predictions for digits, noisy digits and photographs.",
    )
    page.heading("Regression")
    page.figure(
        plots.plot_fan(*curve),
        "Twenty functions sampled from a regression model, the predictive mean and the 90 % "
        "interval; the data are orange.",
    )
    page.heading("In code")
    page.code(
        "import tacit\n\n"
        "model = tacit.variational(net, likelihood=tacit.Categorical())\n"
        f"{call}\n"
        "tacit.calibrate(model, validation)\n"
        "prediction = tacit.predict(model, x)\n"
        "prediction.label, prediction.confidence, prediction.mutual_information"
    )
    return page.write(path)
