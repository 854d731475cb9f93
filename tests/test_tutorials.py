"""The tutorials run at a small size, and their pages show the scripts as they are."""

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SCRIPTS = sorted((ROOT / "docs" / "examples").glob("*.py"))


@pytest.fixture(scope="module")
def renderer():
    spec = importlib.util.spec_from_file_location("render", ROOT / "docs" / "render.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_tutorial_runs(script, renderer):
    source = renderer.small(script.read_text())
    for is_text, body, _, figures in renderer.run(source, script.stem):
        if not is_text:
            assert len(figures) == body.count("# alt: ")


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_page_shows_the_script(script, renderer):
    assert renderer.is_current(script), "run python docs/render.py"


def test_pages_of_other_cells_are_not_current(renderer, tmp_path, monkeypatch):
    monkeypatch.setattr(renderer, "PAGES", tmp_path)
    script = tmp_path / "own.py"
    cells = ["# %% [markdown]\n# Text.\n", "# %%\nprint(1)\n", "# %%\nprint(2)\n"]
    script.write_text("".join(cells))
    assert not renderer.is_current(script)
    renderer.render(script)
    assert renderer.is_current(script)
    for others in (cells[:2], cells[1:], [cells[0], cells[2], cells[1]], [*cells, cells[2]]):
        script.write_text("".join(others))
        assert not renderer.is_current(script)


def test_small_sizes_replace_values(renderer):
    assert renderer.small("a = f(1)  # small: 2\nb = 3\n") == "a = 2\nb = 3\n"
    assert renderer.shown("# alt: x\na = f(1)  # small: 2") == "a = f(1)"


def test_figures_are_those_opened_or_named(renderer):
    source = "\n".join((
        "# %%",
        "from matplotlib import pyplot as plt",
        "from matplotlib.figure import Figure",
        "opened, axes = plt.subplots()",
        "named = Figure()",
        "# %%",
        "second = Figure()",
        "# %% [markdown]",
        "# Text.",
    ))  # fmt: skip
    found = [figures for *_, figures in renderer.run(source, "figures")]
    assert [len(figures) for figures in found] == [2, 1, 0]
