import pytest

from tacit.cli import main

PATIENT = """
import torch, tacit

DATA = torch.randn(8, 4), torch.randint(2, (8,))
COLLAPSED = tacit.variational(torch.nn.Linear(4, 2), {"": tacit.LowRank(2, scale=1e-7)})


def make():
    return tacit.variational(torch.nn.Linear(4, 2), rank=2)
"""


@pytest.fixture(autouse=True)
def patient(tmp_path, monkeypatch):
    """A module of the user in the current folder."""
    (tmp_path / "patient.py").write_text(PATIENT)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)


def test_a_healthy_model_passes(capsys):
    assert main(["doctor", "patient:make", "--data", "patient:DATA", "--quick"]) == 0
    assert "gradient noise" in capsys.readouterr().out


def test_a_problem_sets_the_exit_code(capsys):
    assert main(["doctor", "patient:COLLAPSED", "--quick"]) == 3
    assert "collapsed" in capsys.readouterr().out


def test_data_require_a_model(capsys):
    assert main(["doctor", "--data", "patient:DATA", "--quick"]) == 2
    assert "--data: expected a model (MODULE:NAME) as well" in capsys.readouterr().err
