"""The benchmarks run; what they measure is not a test."""

import json
import sys
from importlib import import_module

import pytest

import tacit
from benchmarks import page, step_time
from tacit.models import ResNet18
from tacit.training.optim import eligibility

pytestmark = pytest.mark.xdist_group("benchmarks")  # one run serves all tests

BENCHMARKS = {
    "step_time": {"ranks", "rows"},
    "floors": {"ranks", "rows"},
    "scaling": {"curves"},
    "inference": {"curves", "rows", "large"},
    "peers": {"versions", "rows"},  # of those that are installed
}


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """The folder of a short run of all benchmarks."""
    folder = tmp_path_factory.mktemp("results")
    with pytest.MonkeyPatch.context() as patch:
        for threshold in ("WIDE", "SMALL"):
            patch.setattr(
                eligibility, threshold, getattr(eligibility, threshold)
            )  # one of them sets it
        for name in (*BENCHMARKS, "directions", "active_learning", "foreign_scores"):
            patch.setattr(sys, "argv", [name, "--smoke", "--out", str(folder / f"{name}.json")])
            import_module(f"benchmarks.{name}").main()
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("name", BENCHMARKS)
def test_each_saves_ratios(results, name):
    saved = json.loads((results / f"{name}.json").read_text())
    assert set(saved) == {"arguments", "environment", "seed"} | BENCHMARKS[name]
    rows = [*saved.get("rows", {}).values()]
    for curves in saved.get("curves", {}).values():
        for points in curves.values():
            rows += [points] if "ratio" in points else points.values()
    assert rows
    assert all(row["ratio"] > 0 for row in rows)


@pytest.mark.slow
def test_what_is_learned_is_compared(results):
    learned = json.loads((results / "directions.json").read_text())["learned"]
    assert len(learned) == 5
    for scores in learned.values():
        assert set(scores) == {"error", "nll", "trace"}
        for row in scores.values():
            assert row["difference"] == pytest.approx(row["turns"] - row["independent"])


@pytest.mark.slow
def test_scores_of_foreign_inputs_are_compared(results):
    saved = json.loads((results / "foreign_scores.json").read_text())
    assert set(saved) == {"arguments", "environment", "seeds", "runs", "rows"}
    assert {"ood_auroc", "ood_auroc_distance"} <= set(saved["rows"]["noise, noise"])


@pytest.mark.slow
def test_ways_to_choose_labels_are_compared(results):
    saved = json.loads((results / "active_learning.json").read_text())
    assert set(saved) == {"arguments", "environment", "settings", "accuracies", "rows"}
    for way, row in saved["rows"].items():
        assert list(row["accuracy"]) == ["12", "16", "20"]
        runs = saved["accuracies"][way]
        assert row["accuracy"]["20"] == pytest.approx(sum(run[-1] for run in runs) / len(runs))
    assert saved["rows"]["random"]["mean_gain"] == 0


@pytest.mark.slow
def test_the_page_shows_them_all(results, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["page", "--results", str(results)])
    page.main()
    text = (results / "index.md").read_text()
    for part in (
        "A training step",
        "LeNet-5, by hand",
        "How a training step grows",
        "What is learned with directions that take turns",
        "Predictions",
        "Other packages",
    ):
        assert f"## {part}" in text
    assert len(list(results.glob("index-*.png"))) == 4
    assert "<img" in (results / "index.html").read_text()


def test_the_page_starts_with_three_sentences_on_the_saved_ratios():
    rows = {
        f"training step, A, batch 8{step_time.DEFAULT}": (1.2, 1.1, 1.3),
        f"training step, A, batch 8{step_time.DROPOUT}": (1.4, 1.3, 1.5),
        f"training step, B{step_time.DEFAULT}": (2.0, 1.9, 2.1),
        "training step, B": (9.0, 9.0, 9.0),
        "prediction, B, 32 samples": (3.0, 2.0, 4.0),
    }
    keys = ("ratio", "ratio_low", "ratio_high")
    text = page.summary({name: dict(zip(keys, row, strict=True)) for name, row in rows.items()})
    takes = "takes, as a multiple of the plain network's time,"
    assert text == (
        f"A training step of the default {takes} 1.20 (1.10 to 1.30) for A, batch 8; "
        "2.00 (1.90 to 2.10) for B. "
        f"A training step with dropout in the same layers {takes} 1.40 (1.30 to 1.50) for A, "
        "batch 8. "
        f"A prediction {takes} 3.00 (2.00 to 4.00) for B, 32 samples."
    )


def test_memory_of_a_resnet_is_within_a_twentieth():
    assert step_time.memory(ResNet18, step_time.variational)["ratio"] < 1.05
    assert step_time.memory(ResNet18, tacit.variational)["ratio"] < 1.05
