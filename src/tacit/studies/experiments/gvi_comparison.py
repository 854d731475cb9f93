"""The expected loss alone against an explicit 2-Wasserstein regularizer."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tacit._support.figures import saved
from tacit.methods import GeneralizedVI, ImplicitBiasVI
from tacit.studies.bench import make_grid
from tacit.studies.experiments.cells import CELLS
from tacit.studies.experiments.comparison import DATA, SIZE, Comparison, compare, short
from tacit.studies.experiments.evidence import (
    SEEDS,
    all_of,
    any_of,
    higher,
    listed,
    lower,
    no_lower,
    shortfall,
)
from tacit.studies.experiments.experiment import Experiment
from tacit.studies.experiments.verdict import Verdict
from tacit.weights import first_and_last

STRENGTHS = {
    "strength_1": 1.0, "strength_10": 10.0, "strength_100": 100.0, "strength_1000": 1e3,
    "strength_10000": 1e4,
}  # fmt: skip
KEPT = [f"{prefix}{name}" for prefix in ("", "corrupted_") for name in ("error", "nll", "ece")]

implicit = ImplicitBiasVI(first_and_last, draws=1, averaging="log_probs", calibrated=False)
strength_1, strength_10, strength_100, strength_1000, strength_10000 = (
    GeneralizedVI(strength, first_and_last, draws=1) for strength in STRENGTHS.values()
)


def compute(
    data: str = "fashion_mnist",
    seeds: int = 3,
    epochs: int = 20,
    lr: float | None = None,
    train_size: int | None = 10_000,
    test_size: int | None = 5_000,
    corrupted_size: int | None = 500,
    jobs: int = -1,
    folder: Path = Path("results/gvi_comparison"),
) -> dict[str, Any]:
    """Train without and with each strength; return error, NLL and ECE, also under corruptions."""
    names = [f"{__name__}:{name}" for name in ("implicit", *STRENGTHS)]
    cells = make_grid(
        [data], names, ["sp"], seeds, epochs=epochs, lr=lr, train_size=train_size,
        test_size=test_size, corrupted_size=corrupted_size,
    )  # fmt: skip
    rows = compare(folder / CELLS, cells, jobs)
    for row in rows:
        row["numbers"] = {name: row["numbers"][name] for name in KEPT}
    return {"rows": rows}


def verdicts(results: dict[str, Any], arguments: Mapping[str, Any]) -> list[Verdict]:
    """Return the verdicts on the claim, on test images and on corrupted ones."""
    found = Comparison(results["rows"])
    setting = found.settings[0]
    lacking = shortfall(arguments, SIZE)
    if short(setting[0]) not in DATA:
        lacking = f"{short(setting[0])}, not the paper's data{lacking and ', '}{lacking}"
    strengths = {n: s for n, s in STRENGTHS.items() if n in found.methods(setting)}
    judged = []
    for prefix, where in (("", "test images"), ("corrupted_", "corrupted images")):
        if f"{prefix}error" not in found.rows[0]["numbers"]:
            continue
        changes = {
            quantity: {
                f"strength {strength:g}": found.difference(
                    setting, name, "implicit", f"{prefix}{quantity}", len(strengths)
                )
                for name, strength in strengths.items()
            }
            for quantity in ("error", "nll", "ece")
        }
        error = changes["error"]
        least = min(each.mean for each in error.values())
        gains = {
            at: any_of(lower(changes[quantity][at]) for quantity in ("nll", "ece"))
            for at, each in error.items()
            if higher(each) is not True
        }
        judged += [
            Verdict(
                "wide-gvi",
                all_of(no_lower(each) for each in error.values()),
                f"error minus that of the expected loss alone, in points: {listed(error)}",
                "below 0 at no strength, over seeds (intervals right together with 95 %)",
                f"{where}: the error is similar or worse at every strength",
                f"{least:+.2f} points at least",
                lacking,
            ),
            Verdict(
                "wide-gvi",
                None if not gains else all_of(_negated(gain, found) for gain in gains.values()),
                "minus that of the expected loss alone: "
                + "; ".join(f"{name.upper()} {listed(changes[name])}" for name in ("nll", "ece")),
                "neither is below 0, over seeds, at a strength that does not increase the error",
                f"{where}: NLL and ECE are better only where the error is worse",
                f"{min(each.mean for each in changes['nll'].values()):+.3f} NLL at least",
                lacking,
            ),
        ]
    return judged


def _negated(gain: bool | None, found: Comparison) -> bool | None:
    """Return whether there is no gain; no visible gain is decided with the paper's seeds only."""
    if gain is None:
        enough = len(found.values(found.settings[0], "implicit", "error")) >= SEEDS
        return True if enough else None
    return not gain


def draw(results: dict[str, Any], folder: Path) -> None:
    """Draw error, NLL and ECE against the strength from saved results."""
    from matplotlib.figure import Figure

    found = Comparison(results["rows"])
    setting = found.settings[0]
    figure = Figure(figsize=(10, 3.2), layout="constrained")
    strengths = {n: s for n, s in STRENGTHS.items() if n in found.methods(setting)}
    for axis, quantity in zip(figure.subplots(1, 3), ("error", "nll", "ece"), strict=True):
        for strength, name in zip(strengths.values(), strengths, strict=True):
            values = found.values(setting, name, quantity).values()
            axis.plot([strength] * len(values), list(values), "o", color="tab:blue")
        axis.plot(
            list(strengths.values()),
            [found.mean(setting, name, quantity) for name in strengths],
            color="tab:blue",
            label="with W2 regularizer",
        )
        axis.axhline(
            found.mean(setting, "implicit", quantity), color="black", label="expected loss alone"
        )
        axis.set(xscale="log", xlabel="strength", title=f"test {quantity}")
        axis.legend(fontsize="small")
    for ending in ("pdf", "png"):
        saved(figure, folder / f"gvi_comparison.{ending}")


EXPERIMENT = Experiment(
    name="gvi_comparison",
    title="The claim `wide-gvi`: an explicit regularizer is no better than the implicit one.",
    about="""
    The supplement's comparison with generalized variational inference: the same random weights
    (first and last layer, one draw) trained on the expected loss alone, and with strength / N times
    the squared 2-Wasserstein distance to the prior, for several strengths. LeNet-5 on 10,000 images
    of Fashion-MNIST, 20 epochs, without temperature scaling. The training runs are saved in the
    subfolder `cells` of the results; an interrupted run resumes.
    """,
    figure="supplement, comparison with GVI",
    caption="Test error, NLL and ECE of each seed, and means over seeds, against the strength of "
    "the regularizer; black: without it",
    claims=("wide-gvi",),
    scales={
        "smoke": {
            "data": "digits", "seeds": 1, "epochs": 1, "train_size": 50, "test_size": 20,
            "corrupted_size": 2, "jobs": 1,
        },
        "cpu": {},
        "paper": {
            "data": "mnist", "seeds": 5, "epochs": 200, "lr": 0.005, "train_size": None,
            "test_size": None, "corrupted_size": None,
        },
    },
    minutes={"smoke": 0.3, "cpu": 10, "paper": 360},
    needs="Fashion-MNIST; paper: MNIST",
    compute=compute,
    verdicts=verdicts,
    draw=draw,
)  # fmt: skip
