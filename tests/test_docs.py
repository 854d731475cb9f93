"""The code of the README and of the docs runs, and does what the text says."""

import json
import re
from pathlib import Path

import pytest

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


NEED_DATA = [page for page in PAGES if blocks(page, "py")]


@pytest.mark.data
@pytest.mark.parametrize("page", NEED_DATA, ids=lambda page: page.name)
def test_code_that_needs_real_data_runs(page, capsys):
    run(page, "py")
    accuracy = float(re.search(r"accuracy +([\d.]+)", capsys.readouterr().out)[1])
    assert accuracy > 0.98


def test_the_readme_shows_the_thing_working_in_few_lines():
    first = blocks(ROOT / "README.md")[0]
    assert len([line for line in first.splitlines() if line.strip()]) <= 20


def test_the_readme_shows_the_measured_costs():
    rows = json.loads((ROOT / "benchmarks/results/step_time.json").read_text())["rows"]
    text = (ROOT / "README.md").read_text()
    assert [
        name for name, row in rows.items() if f"| {name} | {row['ratio']:.2f} |" not in text
    ] == []


def test_the_readme_lists_the_rooms_in_the_order_of_their_imports():
    tree = (ROOT / "README.md").read_text().split("## Repository layout")[1].split("tests/  ")[0]
    assert re.findall(r"^  (\w+)/", tree, flags=re.MULTILINE) == ROOMS
