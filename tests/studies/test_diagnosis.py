import pytest
import torch
from torch import nn

import tacit
from tacit.cli import main
from tacit.studies.diagnosis import diagnose, environment

X = torch.randn(32, 4, generator=torch.Generator().manual_seed(0))
Y = (X[:, 0] > 0).long()


def make_model(scale=1.0):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
    where = {"2": tacit.LowRank(4, scale=scale)}
    return tacit.variational(net, where, likelihood=tacit.Categorical())


def by_name(findings):
    return {finding.what: finding for finding in findings}


@pytest.mark.slow
def test_environment_tries_things_out():
    found = by_name(environment())
    assert found["torch"].found.startswith(torch.__version__.split("+")[0])
    assert found["two processes (gloo)"].found == "works"
    assert "cores" in found["threads"].found
    assert "torch.compile" in found


def test_a_trial_that_fails_is_a_note(monkeypatch):
    monkeypatch.setattr("tacit.studies.diagnosis.DDP", "raise OSError('no sockets here')")
    monkeypatch.setattr("tacit.studies.diagnosis.COMPILE", "")
    found = by_name(environment())
    assert found["two processes (gloo)"].verdict == "note"
    assert "no sockets here" in found["two processes (gloo)"].found
    assert found["torch.compile"].found == "works"


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setattr("tacit.studies.diagnosis.PACKAGES", ("matplotlib-not-there",))
    found = by_name(environment(trials=False))["matplotlib-not-there"]
    assert (found.found, found.verdict) == ("missing", "problem")
    assert found.advice == "pip install matplotlib-not-there"


class TestModel:
    def test_a_healthy_one(self):
        found = by_name(diagnose(make_model(), (X, Y)))
        assert {finding.verdict for finding in found.values()} <= {"ok", "note"}
        size = sum(p.numel() for p in make_model().parameters())
        assert f"{size:,} parameters" in found["memory of a step"].found
        assert f"{12 * size / 2**20:,.1f} MiB" in found["memory of a step"].found

    @pytest.mark.parametrize(("scale", "word"), [(1e-6, "collapsed"), (1e3, "far above")])
    def test_variances(self, scale, word):
        finding = by_name(diagnose(make_model(scale)))["2"]
        assert finding.verdict == "problem"
        assert word in finding.advice

    def test_factors_that_are_not_finite(self):
        model = make_model()
        with torch.no_grad():
            model.factors.get_submodule("2").bias.fill_(float("inf"))
        finding = by_name(diagnose(model))["2"]
        assert (finding.verdict, "not finite" in finding.advice) == ("problem", True)

    def test_noise_that_dominates_the_gradient(self):
        model = make_model(scale=30.0)
        finding = by_name(diagnose(model, (X, Y), lr=0.5))["gradient noise"]
        assert finding.verdict == "note"
        assert "smaller learning rate than 0.5, or draws=8" in finding.advice
        assert model.training

    def test_something_else(self):
        with pytest.raises(TypeError, match="expected a variational model, received Linear"):
            diagnose(nn.Linear(2, 2))


def test_as_a_command(tmp_path, monkeypatch, capsys):
    (tmp_path / "patient.py").write_text(
        "import torch, tacit\n"
        "DATA = torch.randn(8, 4), torch.randint(2, (8,))\n"
        "def make():\n"
        "    return tacit.variational(torch.nn.Linear(4, 2), rank=2)\n"
        "ILL = tacit.variational(torch.nn.Linear(4, 2), {'': tacit.LowRank(2, scale=1e-7)})\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    assert main(["doctor", "patient:make", "--data", "patient:DATA", "--quick"]) == 0
    assert "gradient noise" in capsys.readouterr().out
    assert main(["doctor", "patient:ILL", "--quick"]) == 3
    assert "collapsed" in capsys.readouterr().out
    assert main(["doctor", "--data", "patient:DATA", "--quick"]) == 2
