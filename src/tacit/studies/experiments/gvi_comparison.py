"""The expected loss alone against an explicit 2-Wasserstein regularizer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tacit._support.figures import saved
from tacit.methods import GeneralizedVI, ImplicitBiasVI
from tacit.studies.experiments.comparison import Comparison, compare
from tacit.studies.experiments.experiment import Experiment
from tacit.studies.experiments.verdict import Verdict
from tacit.weights import first_and_last

STRENGTHS = {"strength_1": 1.0, "strength_10": 10.0, "strength_100": 100.0, "strength_1000": 1e3}
SIMILAR = 1.1  # largest ratio of similar scores

implicit = ImplicitBiasVI(first_and_last, draws=1, averaging="log_probs", calibrated=False)
strength_1, strength_10, strength_100, strength_1000 = (
    GeneralizedVI(strength, first_and_last, draws=1) for strength in STRENGTHS.values()
)


def compute(
    data: str = "fashion_mnist",
    seeds: int = 3,
    epochs: int = 20,
    lr: float | None = None,
    train_size: int | None = 10_000,
    test_size: int | None = 5_000,
    jobs: int = -1,
    folder: Path = Path("results/gvi_comparison"),
) -> dict[str, Any]:
    """Train without and with each strength; return error, NLL and ECE on test images."""
    names = [f"{__name__}:{name}" for name in ("implicit", *STRENGTHS)]
    rows = compare(
        folder / "cells", [data], names, ["sp"], seeds, jobs,
        epochs=epochs, lr=lr, train_size=train_size, test_size=test_size, corrupted_size=1,
    )  # fmt: skip
    for row in rows:
        row["method"] = row["method"].rpartition(":")[2]
        row["numbers"] = {name: row["numbers"][name] for name in ("error", "nll", "ece")}
    return {"rows": rows}


def verdicts(results: dict[str, Any]) -> list[Verdict]:
    """Return the verdicts on the claim."""
    found = Comparison(results["rows"])
    ratios = {
        quantity: {
            strength: next(iter(found.ratios(name, "implicit", quantity).values()))
            for name, strength in STRENGTHS.items()
        }
        for quantity in ("error", "nll", "ece")
    }
    harmless = [s for s, ratio in ratios["error"].items() if ratio <= SIMILAR]
    no_better = all(ratio >= 1 / SIMILAR for ratio in ratios["error"].values())
    no_gain = all(ratios[name][s] >= 1 / SIMILAR for name in ("nll", "ece") for s in harmless)
    decided = found.seeds >= 3
    return [
        Verdict(
            "wide-gvi",
            holds if decided else None,
            "ratios to the expected loss alone: "
            + "; ".join(
                f"{name} " + ", ".join(f"{r:.2f} (strength {s:g})" for s, r in ratios[name].items())
                for name in names
            ),
            criterion,
            subject,
        )
        for subject, names, holds, criterion in (
            (
                "error",
                ("error",),
                no_better,
                f"at least {1 / SIMILAR:.2f} at every strength: similar or worse",
            ),
            (
                "NLL and ECE",
                ("nll", "ece"),
                no_gain,
                f"at least {1 / SIMILAR:.2f} at every strength with a ratio of errors of at most "
                f"{SIMILAR:g}: no better where the error does not suffer",
            ),
        )
    ]


def draw(results: dict[str, Any], folder: Path) -> None:
    """Draw error, NLL and ECE against the strength from saved results."""
    from matplotlib.figure import Figure

    found = Comparison(results["rows"])
    setting = found.settings[0]
    figure = Figure(figsize=(10, 3.2), layout="constrained")
    for axis, quantity in zip(figure.subplots(1, 3), ("error", "nll", "ece"), strict=True):
        for strength, name in zip(STRENGTHS.values(), STRENGTHS, strict=True):
            values = found.values(setting, name, quantity).values()
            axis.plot([strength] * len(values), list(values), "o", color="tab:blue")
        axis.plot(
            list(STRENGTHS.values()),
            [found.mean(setting, name, quantity) for name in STRENGTHS],
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
    claims=("wide-gvi",),
    scales={
        "smoke": {
            "data": "digits", "seeds": 1, "epochs": 1, "train_size": 50, "test_size": 20, "jobs": 1,
        },
        "cpu": {},
        "paper": {"data": "mnist", "seeds": 5, "epochs": 200, "lr": 0.005, "train_size": None},
    },
    minutes={"smoke": 0.3, "cpu": 10, "paper": 900},
    needs="Fashion-MNIST; paper: MNIST",
    compute=compute,
    verdicts=verdicts,
    draw=draw,
)  # fmt: skip
