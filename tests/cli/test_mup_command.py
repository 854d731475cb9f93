import json
import subprocess
import sys

import pytest

from tacit.cli import main

MINE = """
import torch
from torch import nn

import tacit

MUP = tacit.MaximalUpdate()
X = torch.randn(32, 4, generator=torch.Generator().manual_seed(0))
PAIR = X, X.sum(1, keepdim=True)


def data():
    return PAIR


def make_net(width):
    net = nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, 1))
    tacit.initialize(net, MUP)
    return net


def make_model(width):
    return tacit.variational(make_net(width), ["2"], rank=2, parametrization=MUP)
"""


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """Name of a module of the user, different in each test since modules stay imported."""
    name = f"mine_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return name


CHECK = ["--widths", "64,256", "--lr", "0.001", "--seeds", "2", "--steps", "2"]
TRANSFER = ["--small", "4", "--large", "8,16", "--grid", "0.001,0.01", "--steps", "5"]


def test_check_tells_parametrizations_apart(mine, capsys, tmp_path):
    command = ["mup", "check", f"{mine}:make_net", "--data", f"{mine}:data", *CHECK]
    assert main([*command, "--parametrization", "mup", "--out", "found"]) == 0
    assert "mean features move equally at every width" in capsys.readouterr().out
    saved = json.loads((tmp_path / "found/coordinate_check.json").read_text())
    assert saved["holds"] is True
    assert (tmp_path / "found/coordinate_check.png").stat().st_size > 0
    # Initialized for muP but trained with the learning rates of SP.
    assert main([*command, "--parametrization", "sp"]) == 3


def test_transfer_saves_its_trials_and_a_figure(mine, capsys, tmp_path):
    command = ["mup", "transfer", f"{mine}:make_model", "--data", f"{mine}:PAIR", *TRANSFER]
    code = main([*command, "--validation", f"{mine}:data", "--out", "found"])
    assert "from width 4" in capsys.readouterr().out
    saved = json.loads((tmp_path / "found/learning_rate_transfer.json").read_text())
    assert code == (0 if saved["transferred"] else 3)
    assert saved["arguments"]["small"] == 4
    assert {trial["width"] for trial in saved["trials"]} == {4, 8, 16}
    assert (tmp_path / "found/learning_rate_transfer.png").stat().st_size > 0


def test_the_program_exits_with_the_verdict(mine):
    command = [sys.executable, "-m", "tacit", "mup", "transfer", f"{mine}:make_model"]
    done = subprocess.run(
        [*command, "--data", f"{mine}:data", *TRANSFER], capture_output=True, text=True
    )
    assert done.returncode in (0, 3), done.stderr
    assert "from width 4" in done.stdout


@pytest.mark.parametrize(
    ("net", "options", "match"),
    [
        ("{mine}", [], "expected module:name"),
        ("nowhere:make_net", [], "there is no module 'nowhere'"),
        ("{mine}:nothing", [], "has no 'nothing'"),
        ("{mine}:make_net", ["--parametrization", "mupp"], "expected sp, mup, ntp or module:name"),
        (
            "{mine}:make_net",
            ["--parametrization", "{mine}:data"],
            "to be a Parametrization, received tuple",
        ),
        ("{mine}:make_net", ["--optimizer", "lion"], "optimizer: expected one of"),
        ("{mine}:make_net", ["--widths", "8"], "at least two different widths"),
        ("{mine}.py:make_net", [], "there is no module '{mine}.py' here (without .py: {mine}:make"),
        ("{mine}.sub:make_net", [], "there is no module"),
        ("{mine}:X", [], "expected a function from a width to a network"),
        ("{mine}:make_net", ["--out", "{mine}.py"], "--out: "),
    ],
)
def test_invalid_arguments_are_reported_in_one_line(mine, capsys, net, options, match):
    arguments = [argument.replace("{mine}", mine) for argument in (net, *options)]
    assert main(["mup", "check", "--data", f"{mine}:data", *arguments]) == 2
    message = capsys.readouterr().err
    assert match.replace("{mine}", mine) in message
    assert len(message.splitlines()) == 1


def test_a_custom_parametrization_is_loaded(mine):
    command = ["mup", "check", f"{mine}:make_net", "--data", f"{mine}:data", *CHECK]
    assert main([*command, "--parametrization", f"{mine}:MUP"]) == 0


def test_a_failing_import_in_the_users_module_propagates(tmp_path, monkeypatch):
    (tmp_path / "needs_more.py").write_text("import something_not_installed\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="something_not_installed"):
        main(["mup", "check", "needs_more:make_net", "--data", "needs_more:data"])


def test_errors_in_the_users_code_propagate(mine, tmp_path):
    (tmp_path / f"{mine}_wrong.py").write_text("def make(width):\n    raise ValueError('mine')\n")
    with pytest.raises(ValueError, match="mine"):
        main(["mup", "check", f"{mine}_wrong:make", "--data", f"{mine}:data"])


@pytest.mark.parametrize("option", ["--widths", "--seeds", "--lr"])
def test_malformed_numbers_are_rejected(mine, capsys, option):
    with pytest.raises(SystemExit) as stop:
        main(["mup", "check", f"{mine}:make_net", "--data", f"{mine}:data", option, "8 x"])
    assert stop.value.code == 2
    assert "8 x" in capsys.readouterr().err
