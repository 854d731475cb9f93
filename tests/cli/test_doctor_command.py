import pytest

from tacit.cli import main
from tacit.studies.diagnosis import Finding

PATIENT = """
import torch, tacit

DATA = torch.randn(8, 4), torch.randint(2, (8,))
COLLAPSED = tacit.variational(torch.nn.Linear(4, 2), {"": tacit.LowRank(2, scale=1e-7)})


def make():
    return tacit.variational(torch.nn.Linear(4, 2), rank=2)


def make_trained():
    net = torch.nn.Sequential(torch.nn.Linear(200, 300), torch.nn.Linear(300, 300))
    model = tacit.variational(net, rank=20, likelihood=tacit.Categorical())
    optimizer = tacit.SGD(model, lr=0.01, deferred=True)
    model.likelihood.loss(model(WIDE[0]), WIDE[1]).backward()
    optimizer.step()
    OPTIMIZERS.append(optimizer)  # deferral ends with the optimizer
    return model.eval()


OPTIMIZERS = []
WIDE = torch.randn(8, 200), torch.randint(300, (8,))
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


def test_a_model_that_tacit_sgd_trains_is_examined(capsys):
    assert main(["doctor", "patient:make_trained", "--data", "patient:WIDE", "--quick"]) == 0
    assert "gradient norm" in capsys.readouterr().out


def test_names_are_shown_as_they_are(capsys, monkeypatch):
    finding = Finding("[bold]layer[/bold]", "1 [MiB]", "note", "see [/here]")
    monkeypatch.setattr("tacit.cli.doctor.environment", lambda trials: [finding])
    assert main(["doctor", "--quick"]) == 0
    printed = capsys.readouterr().out
    assert all(text in printed for text in (finding.what, finding.found, finding.advice))


@pytest.mark.parametrize("target", ["../patient:make", "./patient:make", "..:make", "a/b:make"])
def test_paths_of_modules_are_rejected(capsys, target):
    assert main(["doctor", target, "--quick"]) == 2
    message = capsys.readouterr().err
    assert f"received the path '{target}'; change to the folder of the module" in message
    assert len(message.splitlines()) == 1
