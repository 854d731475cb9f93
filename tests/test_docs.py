"""The code of the README and of the docs runs, and does what the text says."""

import argparse
import json
import re
import runpy
import shlex
from pathlib import Path
from statistics import mean

import pytest

from tacit.cli.entry import COMMANDS
from test_architecture import ROOMS

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(page, label="python"):
    text = page.read_text()
    return re.findall(rf"^```{label}\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)


def run(page, label="python"):
    """Run the Python blocks of a page one after another, as a reader would; return the names."""
    names = {"__name__": "page"}
    for block in blocks(page, label):
        exec(compile(block, str(page), "exec"), names)
    return names


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page)], ids=lambda p: p.name)
def test_code_runs(page, capsys):
    names = run(page)
    printed = capsys.readouterr().out
    if page.name == "README.md":
        at_data, outside, far_away = names["functions"].std(0).flatten().tolist()
        comment = re.search(r"less they agree: (.*)", page.read_text())[1]
        shown = [float(number) for number in comment.split(",")]
        assert [at_data, outside, far_away] == pytest.approx(shown, rel=0.5)
        assert names["loss"] < 0.01
    if page.name == "quickstart.md":
        shown = re.findall(r"```text\n(.*?)```", page.read_text(), flags=re.DOTALL)
        assert shown[0] in printed
        accuracy = float(re.search(r"accuracy ([\d.]+)%", printed)[1])
        assert accuracy > 94


def commands(page):
    """Return the commands of tacit in the shell blocks of a page, as lists of arguments."""
    lines = "".join(blocks(page, "sh")).replace("\\\n", " ").splitlines()
    found = [shlex.split(line, comments=True) for line in lines]
    return [arguments[1:] for arguments in found if arguments[:1] == ["tacit"]]


@pytest.mark.parametrize("page", [page for page in PAGES if commands(page)], ids=lambda p: p.name)
def test_commands_have_the_arguments_that_are_shown(page):
    parser = argparse.ArgumentParser()
    names = parser.add_subparsers()
    for command in COMMANDS:
        command.add_to(names)
    for arguments in commands(page):
        assert callable(parser.parse_args(arguments).command)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_programs_and_results_that_are_named_exist(page):
    text = page.read_text()
    modules = re.findall(r"python\s+-m\s+benchmarks\.([a-z_]+)", text)
    assert [name for name in modules if not (ROOT / f"benchmarks/{name}.py").exists()] == []
    paths = re.findall(r"`((?:benchmarks/)?results/[a-z0-9_./-]+)`", text)
    assert [path for path in paths if not [*ROOT.glob(path), *ROOT.glob(f"{path}.*")]] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_linked_files_are_in_the_repository(page):
    """The site has its own check; this is for those who read the pages in a clone."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    links = re.findall(r"\]\(([^)\s#:]+)(?:#[^)]*)?\)", text)
    assert [link for link in links if not (page.parent / link).exists()] == []


NEED_DATA = [page for page in PAGES if blocks(page, "py")]


@pytest.mark.data
@pytest.mark.parametrize("page", NEED_DATA, ids=lambda page: page.name)
def test_code_that_needs_real_data_runs(page, capsys):
    run(page, "py")
    accuracy = float(re.search(r"accuracy +([\d.]+)", capsys.readouterr().out)[1])
    assert accuracy > 0.98


def test_the_readme_shows_the_thing_working_in_few_lines():
    first = blocks(ROOT / "README.md")[0]
    assert len([line for line in first.splitlines() if line.strip()]) <= 10


def test_the_pages_show_the_measured_costs():
    rows = json.loads((ROOT / "benchmarks/results/step_time.json").read_text())["rows"]
    ratios = {name: f"{row['ratio']:.2f}" for name, row in rows.items()}
    text = (ROOT / "docs" / "cost.md").read_text()
    assert [name for name, ratio in ratios.items() if f"| {name} | {ratio} |" not in text] == []
    prices = {line.split("|")[1].strip(" *"): line.split("|")[2].strip() for line in readme_table()}
    case = "training step, LeNet-5, batch 128, "
    default = ratios[f"{case}the default: relative noise, a draw for each example"]
    dropout = ratios[f"{case}plain network with torch's dropout in the same layers"]
    assert (prices["tacit's default"], prices["dropout, rate .1"]) == (default, dropout)


def test_the_flow_chart_is_that_of_its_script():
    script = ROOT / "docs/images/recipes.py"
    assert script.with_suffix(".svg").read_text() == runpy.run_path(str(script))["draw"]()


METHODS = {
    "plain network": "temperature_scaling",
    "dropout, rate .1": "benchmarks.default_study.dropout_10",
    "tacit's default": "benchmarks.default_study.default",
    "ensemble of five": "deep_ensemble",
}


def readme_table():
    text = (ROOT / "README.md").read_text().split("| ---: |\n")[1].split("\n\n")[0]
    return text.splitlines()


@pytest.mark.parametrize("row", readme_table(), ids=lambda row: row.split("|")[1].strip(" *"))
def test_the_readme_shows_the_measured_quality(row):
    name, _, *shown = [cell.strip(" *") for cell in row.strip("|").split("|")]
    found = []
    for data in ("mnist", "fashion_mnist"):
        paths = (ROOT / "results/default_study").glob(f"{data}-sp-{METHODS[name]}-?.json")
        seeds = [json.loads(path.read_text()) for path in paths]
        assert len(seeds) == 3
        error = mean(100 * (1 - seed["test"]["accuracy"]) for seed in seeds)
        corrupted = mean(mean(c["nll"] for c in seed["corrupted"].values()) for seed in seeds)
        nll = mean(seed["test"]["nll"] for seed in seeds)
        found += [f"{error:.1f}", f"{nll:.3f}".lstrip("0"), f"{corrupted:.2f}".lstrip("0")]
    assert shown == found


def test_contributing_lists_the_rooms_in_the_order_of_their_imports():
    text = (ROOT / "CONTRIBUTING.md").read_text()
    assert re.findall(r"^\| `(\w+)` \|", text, flags=re.MULTILINE) == ROOMS
