"""Every experiment runs at the scale "smoke", writes valid JSON and draws from it."""

import importlib
import json
import pkgutil
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from tacit.cli import main
from tacit.studies import experiments
from tacit.studies.experiments.claims import CLAIMS
from tacit.studies.experiments.page import saved_folder, write_page
from tacit.studies.experiments.registry import EXPERIMENTS, find_experiment
from tacit.studies.experiments.reproduction import judge, read_saved, redraw

pytestmark = pytest.mark.xdist_group("experiments")  # one run serves all tests

FIGURES = {
    "coordinate_check": {
        f"{kind}_{parametrization}"
        for kind in ("deterministic", "variational")
        for parametrization in ("sp", "pytorch", "mup")
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
    "single_sample": {"error", "nll", "samples", "small_rate"},
}
KNOWN = {  # at the scale "cpu" most trainings are too small to decide
    "implicit_vs_explicit": [False, True, True, True],
    "single_sample": [None] * 9,
    "lr_transfer": [None] * 5,
    "in_distribution": [None] * 5 + [True] + [None] * 9 + [True, None, None, True, None],
    "corruptions": [None] * 5 + [False] * 4 + [None, None, False],
    "nll_overfitting": [False, True, False, True, False],
    "coordinate_check": [True, True] + [None, True] * 2 + [True, None] * 3 + [True],
    "gvi_comparison": [None] * 2,
}


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    """The folder of `tacit reproduce all --scale smoke`, run once for all tests."""
    folder = tmp_path_factory.mktemp("experiments")
    assert main(["reproduce", "all", "--scale", "smoke", "--out", str(folder)]) == 0
    return folder


def figure_files(folder):
    return {path.name for path in folder.glob("*.p*")}


def test_every_experiment_is_registered_and_tested():
    names = [module.name for module in pkgutil.iter_modules(experiments.__path__)]
    modules = {name: importlib.import_module(f"{experiments.__name__}.{name}") for name in names}
    found = {name: m.EXPERIMENT for name, m in modules.items() if hasattr(m, "EXPERIMENT")}
    assert found == EXPERIMENTS
    assert found.keys() == FIGURES.keys()


@pytest.mark.parametrize("name", FIGURES)
def test_smoke(name, out):
    experiment = find_experiment(name)
    saved = json.loads((out / name / "results.json").read_text())
    assert saved["results"]
    assert {"arguments", "versions", "commit", "scale"} < saved.keys()
    assert experiment.title
    assert all(experiment.paragraphs)
    assert experiment.needs
    found = experiment.verdicts(saved["results"], saved["arguments"])
    assert {"folder", "jobs"}.isdisjoint(saved["arguments"])
    assert saved["hours"] > 0
    assert all(verdict.lacking for verdict in found if verdict.holds is None)
    assert {verdict.claim for verdict in found} == set(experiment.claims)
    assert figure_files(out / name) == {
        f"{figure}.{ending}" for figure in FIGURES[name] for ending in ("pdf", "png")
    }


def test_every_claim_has_a_verdict():
    assert {claim for found in EXPERIMENTS.values() for claim in found.claims} == set(CLAIMS)


def test_incomplete_scales_and_unknown_claims_are_refused():
    experiment = EXPERIMENTS["cost"]
    with pytest.raises(ValueError, match=r"scales\): expected smoke, cpu, paper; received smoke\."):
        replace(experiment, scales={"smoke": {}})
    with pytest.raises(ValueError, match=r"minutes\): expected smoke, cpu, paper; received cpu\."):
        replace(experiment, minutes={"cpu": 1})
    with pytest.raises(ValueError, match=r"claims\): expected some of .*; received free-lunch\."):
        replace(experiment, claims=("cost", "free-lunch"))


def test_paragraphs_are_single_lines():
    about = "\n    One\n    paragraph.\n\n    Another.\n    "
    assert replace(EXPERIMENTS["cost"], about=about).paragraphs == ["One paragraph.", "Another."]


def test_the_page_of_all(out):
    text = (out / "index.html").read_text()
    assert text.count("<img") == sum(map(len, FIGURES.values()))
    assert all(f"tacit reproduce {name} --scale smoke" in text for name in FIGURES)
    assert "error-equals-variance-sgd (error and variance): holds." in text
    assert "rank-scaling: not decided at this scale: 2 ranks" in text
    assert re.search(r"<p>\d+ of the 20 claims of the paper hold in these runs", text)
    assert "differ by nan" not in text  # of a single seed
    captions = re.findall("<figcaption>(.*?)</figcaption>", text)
    assert len(set(captions)) == len(captions)
    markdown = (out / "index.md").read_text()
    assert all(statement in markdown for statement in CLAIMS.values())
    root = Path(__file__).parents[3]
    for name, experiment in EXPERIMENTS.items():
        source = f"src/tacit/studies/experiments/{name}.py"
        assert f"Code: {source}." in text
        assert (root / source).exists()
        assert all(paragraph in markdown for paragraph in experiment.paragraphs)


def test_results_at_the_papers_scale_replace_smaller_ones(out, tmp_path):
    for folder, scale in (("rank_scaling", "smoke"), ("paper/rank_scaling", "paper")):
        shutil.copytree(out / "rank_scaling", tmp_path / folder)
        path = tmp_path / folder / "results.json"
        saved = json.loads(path.read_text())
        path.write_text(json.dumps({**saved, "scale": scale}))
    text = write_page(tmp_path).with_suffix(".md").read_text()
    assert "tacit reproduce rank_scaling --scale paper --out results/paper" in text
    assert "(paper/rank_scaling/rank_scaling.png)" in text
    assert "--scale smoke" not in text


def test_figures_are_drawn_again_from_saved_numbers(out, tmp_path):
    saved = read_saved(out / "loss_landscape")
    (tmp_path / "results.json").write_text(json.dumps(saved))
    redraw(EXPERIMENTS["loss_landscape"], tmp_path)
    assert figure_files(tmp_path) == {"loss_landscape.pdf", "loss_landscape.png"}


@pytest.mark.parametrize("name", FIGURES)
def test_verdicts_of_the_committed_results(name):
    folder = saved_folder(Path(__file__).parents[3] / "results", name)
    if folder is None:
        pytest.skip("no committed results")
    found = judge(find_experiment(name), folder)
    # Undecided and failed claims are listed, so that no verdict changes unnoticed.
    assert [verdict.holds for verdict in found] == KNOWN.get(name, [True] * len(found))
