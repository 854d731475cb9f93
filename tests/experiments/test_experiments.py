"""Every experiment runs in its smoke setting, writes valid JSON and draws from it."""

import importlib
import json
import pkgutil
import subprocess
import sys

import pytest

from tacit import experiments
from tacit.experiments.runner import run

NAMES = [module.name for module in pkgutil.iter_modules(experiments.__path__)]
FIGURES = {
    "coordinate_check": {
        f"{kind}_{parametrization}"
        for kind in ("deterministic", "variational")
        for parametrization in ("sp", "mup")
    },
    "linear_theory": {"linear_theory"},
    "loss_landscape": {"loss_landscape"},
    "lr_transfer": {"lr_transfer"},
}


def test_every_experiment_is_tested():
    assert set(NAMES) - {"runner"} == set(FIGURES)


@pytest.mark.parametrize("name", FIGURES)
def test_smoke(name, tmp_path):
    run(importlib.import_module(f"tacit.experiments.{name}"), ["--smoke", "--out", str(tmp_path)])
    saved = json.loads((tmp_path / "results.json").read_text())
    assert saved["results"]
    assert {"arguments", "versions", "commit"} < saved.keys()
    assert {path.name for path in tmp_path.glob("*.p*")} == {
        f"{figure}.{ending}" for figure in FIGURES[name] for ending in ("pdf", "png")
    }


def test_as_a_program(tmp_path):
    command = [sys.executable, "-m", "tacit.experiments.coordinate_check", "--smoke"]
    subprocess.run([*command, "--out", tmp_path], check=True, capture_output=True)
    assert (tmp_path / "results.json").exists()
