import pytest
import torch
from torch import nn

import tacit
from tacit.studies.diagnosis import _noise_finding, diagnose, environment

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
def test_trials_work_in_this_environment():
    found = by_name(environment())
    assert found["torch"].found.startswith(torch.__version__.split("+")[0])
    assert found["two processes (gloo)"].found == "works"
    assert "cores" in found["threads"].found
    assert "torch.compile" in found


def test_a_failed_trial_is_a_note(monkeypatch):
    monkeypatch.setattr("tacit.studies.diagnosis.DDP", "raise OSError('no sockets here')")
    monkeypatch.setattr("tacit.studies.diagnosis.COMPILE", "")
    found = by_name(environment())
    assert found["two processes (gloo)"].verdict == "note"
    assert "no sockets here" in found["two processes (gloo)"].found
    assert found["torch.compile"].found == "works"


def test_a_missing_package_is_a_problem(monkeypatch):
    monkeypatch.setattr("tacit.studies.diagnosis.PACKAGES", ("no-such-package",))
    found = by_name(environment(trials=False))["no-such-package"]
    assert (found.found, found.verdict) == ("missing", "problem")
    assert found.advice == "pip install no-such-package"


class TestModel:
    def test_a_healthy_model_has_no_problem(self):
        found = by_name(diagnose(make_model(), (X, Y)))
        assert {finding.verdict for finding in found.values()} <= {"ok", "note"}
        size = sum(p.numel() for p in make_model().parameters())
        assert f"{size:,} parameters" in found["memory per step"].found
        assert f"{12 * size / 2**20:,.1f} MiB" in found["memory per step"].found

    @pytest.mark.parametrize(("scale", "word"), [(1e-6, "collapsed"), (1e3, "far above")])
    def test_extreme_variances_are_problems(self, scale, word):
        finding = by_name(diagnose(make_model(scale)))["2"]
        assert finding.verdict == "problem"
        assert word in finding.advice

    def test_non_finite_factors_are_a_problem(self):
        model = make_model()
        with torch.no_grad():
            model.factors.get_submodule("2").bias.fill_(float("inf"))
        finding = by_name(diagnose(model))["2"]
        assert finding.verdict == "problem"
        assert "not finite" in finding.advice

    def test_dominant_gradient_noise_is_a_note(self):
        model = make_model(scale=30.0)
        finding = by_name(diagnose(model, (X, Y), lr=0.5))["gradient noise"]
        assert finding.verdict == "note"
        assert "use a learning rate below 0.5, or draws=8" in finding.advice
        assert model.training

    def test_more_draws_are_recommended_only_to_models_with_one(self):
        gradients = torch.tensor([[1.0], [-1.0]])
        advice = {single: _noise_finding(gradients, 0.5, single=single).advice for single in (1, 0)}
        assert advice[1] == f"{advice[0]}, or draws=8"

    def test_plain_networks_are_rejected(self):
        with pytest.raises(TypeError, match="expected a variational model, received Linear"):
            diagnose(nn.Linear(2, 2))

    def test_a_model_that_tacit_sgd_trains_is_not_changed(self):
        net = nn.Sequential(
            nn.Linear(200, 300), nn.ReLU(), nn.Dropout(), nn.Linear(300, 300), nn.BatchNorm1d(300)
        )
        model = tacit.variational(net, rank=20, likelihood=tacit.Categorical())
        optimizer = tacit.SGD(model, lr=0.01, deferred=True)
        x, y = torch.randn(16, 200), torch.randint(300, (16,))
        model.likelihood.loss(model(x), y).backward()
        optimizer.step()
        assert model.deferral is not None
        model.eval()
        net[2].train()
        modes = {name: part.training for name, part in model.named_modules()}
        state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        random_state = torch.get_rng_state()
        found = by_name(diagnose(model, (x, y)))
        assert "gradient norm" in found["gradient noise"].found
        assert {name: part.training for name, part in model.named_modules()} == modes
        assert all(torch.equal(model.state_dict()[name], state[name]) for name in state)
        assert torch.equal(torch.get_rng_state(), random_state)
        assert model.deferral is not None

    def test_modes_stay_if_the_model_fails(self):
        model = make_model().eval()
        with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
            diagnose(model, (X[:, :3], Y))
        assert not any(part.training for part in model.modules())
