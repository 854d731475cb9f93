"""Every experiment runs in its smoke setting, writes valid JSON and draws from it."""

import importlib
import json
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

from tacit import experiments
from tacit.cli import main
from tacit.experiments import page

NAMES = [module.name for module in pkgutil.iter_modules(experiments.__path__)]
FIGURES = {
    "coordinate_check": {
        f"{kind}_{parametrization}"
        for kind in ("deterministic", "variational")
        for parametrization in ("sp", "mup")
    },
    "corruptions": {"digits_sp", "digits_sp_ece", "digits_sp_error", "digits_sp_nll"},
    "cost": {"cost"},
    "gvi_comparison": {"gvi_comparison"},
    "implicit_vs_explicit": {"implicit_vs_explicit"},
    "in_distribution": {"digits_sp"},
    "linear_claims": {"linear_claims"},
    "linear_theory": {"linear_theory"},
    "loss_landscape": {"loss_landscape"},
    "lr_transfer": {"lr_transfer"},
    "nll_overfitting": {"nll_overfitting"},
    "rank_scaling": {"rank_scaling"},
    "single_sample": {"error", "nll"},
}
KNOWN = {
    "cost": [False],  # LeNet-5 1.11 times, 1.05 to 1.16; 1.1 asked
    "implicit_vs_explicit": [False, False, True],  # off by 11 %, 24 % of the prior kept
    "in_distribution": [False, False, True, False, True, True, False],
    "corruptions": [False, False, True, False],  # the paper's recipe, twice; NLL of ensembles
    "coordinate_check": [True, False],  # the standard deviations' slopes
    "gvi_comparison": [True, False],  # a regularizer lowers NLL and ECE
    "lr_transfer": [True, False, True, False, True],  # SP is not worse off at these widths
    "single_sample": [False, False, False, False, True, False],  # ratios of 1.07 to 1.2
    "nll_overfitting": [True, True, True, False],  # the norm grows faster than log t
}
HELPERS = {"compared", "page", "runner", "scoring", "timing", "verdict"}


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    """The folder of `tacit reproduce all --scale smoke`, run once for all tests."""
    folder = tmp_path_factory.mktemp("experiments")
    assert main(["reproduce", "all", "--scale", "smoke", "--out", str(folder)]) == 0
    return folder


def test_every_experiment_is_tested():
    assert set(NAMES) - HELPERS == set(FIGURES)


@pytest.mark.parametrize("name", FIGURES)
def test_smoke(name, out):
    module = importlib.import_module(f"tacit.experiments.{name}")
    saved = json.loads((out / name / "results.json").read_text())
    assert saved["results"]
    assert {"arguments", "versions", "commit", "scale"} < saved.keys()
    assert module.SCALES.keys() == module.MINUTES.keys() == {"smoke", "cpu", "paper"}
    assert module.NEEDS
    found = module.verdicts(saved["results"])
    assert {verdict.claim for verdict in found} == set(module.CLAIMS)
    assert {path.name for path in (out / name).glob("*.p*")} == {
        f"{figure}.{ending}" for figure in FIGURES[name] for ending in ("pdf", "png")
    }


def test_every_claim_has_a_verdict():
    found = {claim for name in FIGURES for claim in page.experiment(name).CLAIMS}
    assert found == set(page.STATEMENTS)


def test_the_page_of_all(out):
    assert set(page.EXPERIMENTS) == set(FIGURES)
    text = (out / "index.html").read_text()
    assert text.count("<img") == sum(map(len, FIGURES.values()))
    assert all(f"tacit reproduce {name} --scale smoke" in text for name in FIGURES)
    assert "error-equals-variance-sgd: holds." in text
    assert "rank-scaling: not decided at this scale." in text


@pytest.mark.parametrize("name", FIGURES)
def test_verdicts_of_the_committed_results(name):
    path = Path(__file__).parents[2] / "results" / name / "results.json"
    if not path.exists():
        pytest.skip("there are no results of it here")
    module = importlib.import_module(f"tacit.experiments.{name}")
    found = module.verdicts(json.loads(path.read_text())["results"])
    # What is known to fail is known here too, so that nothing changes its verdict unnoticed.
    assert [verdict.holds for verdict in found] == KNOWN.get(name, [True] * len(found))


def test_as_a_program(tmp_path):
    command = [sys.executable, "-m", "tacit.experiments.coordinate_check", "--scale=smoke"]
    subprocess.run([*command, "--out", tmp_path], check=True, capture_output=True)
    assert (tmp_path / "results.json").exists()
