"""The tables of docs/explanation/findings.md show the saved results."""

import json
from pathlib import Path
from statistics import mean

import pytest

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs/explanation/findings.md").read_text()
STUDY = "benchmarks.default_study."


def rows(heading):
    """Return the rows of the first table below a heading, as cells by the first cell."""
    lines = PAGE.split(f"## {heading}\n")[1].split("---: |\n", 1)[1].split("\n\n")[0].splitlines()
    cells = [[cell.strip(" *") for cell in line.strip("|").split("|")] for line in lines]
    return {first: rest for first, *rest in cells}


def seeds(folder, method, data="fashion_mnist"):
    """Return the results of a method, one for each seed."""
    paths = sorted((ROOT / "results" / folder).glob(f"{data}-sp-{method}-?.json"))
    assert len(paths) >= 2, f"{folder}: {method}"
    return [json.loads(path.read_text()) for path in paths]


def quality(folder, method, count=None):
    """Return error in %, NLL and corrupted NLL, as the page shows them, of the first seeds."""
    found = seeds(folder, method)[:count]
    error = mean(100 * (1 - seed["test"]["accuracy"]) for seed in found)
    nll = mean(seed["test"]["nll"] for seed in found)
    corrupted = mean(mean(c["nll"] for c in seed["corrupted"].values()) for seed in found)
    return [f"{error:.1f}", f"{nll:.3f}".lstrip("0"), f"{corrupted:.2f}"]


@pytest.mark.parametrize(
    ("row", "method"),
    [
        ("plain network, temperature", "temperature_scaling"),
        ("first and last layer", f"{STUDY}paper"),
        ("all layers, rank 3", f"{STUDY}low_rank"),
        ("relative noise", f"{STUDY}default"),
    ],
)
def test_structures(row, method):
    table = rows("Noise in proportion to the weights")
    [shown] = [cells for name, cells in table.items() if name.startswith(row)]
    assert shown[:3] == quality("default_study", method)


@pytest.mark.parametrize(
    ("row", "column", "folder", "method"),
    [
        (".5, 0 (fixed)", 0, "default_study", f"{STUDY}relative_fixed"),
        (".5, .001", 0, "default_study_050", f"{STUDY}default"),
        (".5, .001", 1, "default_all_images_050", f"{STUDY}default"),
        (".35, .001", 0, "default_study_035", f"{STUDY}default"),
        (".35, .001", 1, "default_all_images_035", f"{STUDY}default"),
        (".5, .01 †", 1, "default_variants", "variants.fast"),
        (".35, .01", 0, "default_study", f"{STUDY}default"),
        (".35, .01", 1, "default_all_images", f"{STUDY}default"),
        ("no noise", 0, "default_study", "temperature_scaling"),
        ("no noise", 1, "default_all_images", "temperature_scaling"),
    ],
)
def test_speeds(row, column, folder, method):
    shown = rows("How fast the prior is forgotten")[row][column]
    assert shown.split(" / ") == quality(folder, method)


@pytest.mark.parametrize(
    ("row", "method"),
    [
        ("the default", f"{STUDY}default"),
        ("the paper's recipe", f"{STUDY}paper"),
        ("MC dropout .1", f"{STUDY}dropout_10"),
        ("SWAG", "swag"),
        ("deep ensemble", "deep_ensemble"),
    ],
)
def test_averaging(row, method):
    for shown, data in zip(
        rows("Averaging predictions")[row], ("fashion_mnist", "mnist"), strict=True
    ):
        found = [seed["averaging"] for seed in seeds("default_study", method, data)]
        nll = [mean(ways[way]["nll"] for ways in found) for way in ("log_probs", "probs")]
        assert shown.split(", ") == [f"{value:.3f}".lstrip("0") for value in nll]


@pytest.mark.parametrize(
    ("row", "method"),
    [("plain network, temperature", "temperature_scaling"), ("the default", f"{STUDY}default")],
)
def test_averaged_iterates(row, method):
    """Both columns are of the seeds that were also trained without averages."""
    count = len(seeds("default_not_averaged", method))
    table = rows("Averaged iterates")
    for shown, folder in zip(table[row], ("default_not_averaged", "default_study"), strict=True):
        assert shown.split(" / ") == quality(folder, method, count)
