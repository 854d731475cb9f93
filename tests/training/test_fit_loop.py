"""tacit.fit is a plain training loop: steps, draws, optimizers, objectives, schedules, progress."""

import io
import math

import pytest
import torch
from rich.console import Console
from torch import nn
from torch.testing import assert_close

import tacit
from tacit.training.checkpoints import read_newest
from training.fit_problem import X, Y, fit, make_model, weights


def test_training_improves_the_model_and_records_a_history():
    model = make_model()
    history = fit(model, validation=(X, Y), epochs=10)
    assert len(history) == 10
    assert history["accuracy"][-1] > 0.9
    assert history["nll"][-1] < history["nll"][0]
    assert history["epoch"] == list(range(1, 11))
    assert history.stopped == "epochs"
    with pytest.raises(KeyError, match="no quantity 'auc'. Recorded quantities: epoch, loss"):
        history["auc"]


def test_the_result_is_that_of_a_plain_loop():
    """With one draw of the weights and torch's SGD, in the data order that the seed gives."""
    model, other = make_model(), make_model()
    fit(model, epochs=2, seed=3, draws=1)
    optimizer = torch.optim.SGD(other.param_groups(0.05), lr=0.05, momentum=0.9)
    torch.manual_seed((3 + 1) * 2_000_003)
    for epoch in range(2):
        generator = torch.Generator().manual_seed(3 * 1_000_003 + epoch)
        for rows in torch.randperm(96, generator=generator).split(16):
            loss = nn.functional.cross_entropy(other(X[rows]), Y[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    assert_close(weights(model), weights(other), rtol=0, atol=0)


@pytest.mark.parametrize("kwargs", [{"samples": 4}, {"draws": 4}, {"draws": 500}])
def test_training_works_with_samples_and_draws(kwargs):
    assert fit(make_model(), **kwargs)["loss"][-1] < 0.7


def test_the_default_is_8_draws():
    def trained(**kwargs):
        model = make_model()
        fit(model, epochs=1, **kwargs)
        return weights(model)

    assert torch.equal(trained(), trained(draws=8))
    assert not torch.equal(trained(), trained(draws=1))
    assert torch.equal(trained(samples=2), trained(samples=2, draws=1))


def test_draws_override_those_of_the_model():
    several, one = make_model(draws=4), make_model()
    fit(several, epochs=1, draws=1)
    fit(one, epochs=1, draws=1)
    assert torch.equal(weights(several), weights(one))


def test_the_default_is_one_draw_if_the_batch_is_not_first():
    layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0)  # (T, B, 4)
    model = tacit.variational(layer, ["linear1"], rank=2, likelihood=tacit.Gaussian())
    fit(model, (X[:16, None], X[:16, None]), epochs=1)
    with pytest.raises(ValueError, match="has batch_first=False; use draws=1"):
        fit(model, (X[:16, None], X[:16, None]), epochs=1, draws=2)


def test_the_default_draws_are_those_of_the_model_and_one_with_batch_norm():
    def trained(make, **kwargs):
        torch.manual_seed(0)
        model = make()
        fit(model, epochs=1, likelihood=tacit.Categorical(), **kwargs)
        return weights(model)

    def batch_norm():
        net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))
        return tacit.variational(net, tacit.every_layer)

    def four_draws():
        return tacit.variational(nn.Linear(4, 2), rank=2, draws=4)

    assert torch.equal(trained(batch_norm), trained(batch_norm, draws=1))
    assert not torch.equal(trained(batch_norm), trained(batch_norm, draws=8))
    assert torch.equal(trained(four_draws), trained(four_draws, draws=4))
    assert not torch.equal(trained(four_draws), trained(four_draws, draws=8))


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw", "rmsprop"])
def test_optimizers_by_name(optimizer):
    assert math.isfinite(fit(make_model(), optimizer=optimizer, lr=0.01)["loss"][-1])


@pytest.mark.parametrize("kind", [tacit.ELBO, tacit.GVI])
def test_objectives_with_a_prior(kind):
    torch.manual_seed(0)
    model = tacit.variational(
        nn.Linear(4, 2), {"": tacit.Diagonal()}, likelihood=tacit.Categorical()
    )
    settings = {"strength": 1.0} if kind is tacit.GVI else {}
    objective = kind(model.prior(), **settings)
    assert math.isfinite(fit(model, objective=objective)["loss"][-1])


def test_schedules_keep_the_ratios_of_learning_rates(tmp_path):
    seen = []

    def watch(row, model):
        seen.append(row["lr"])

    fit(make_model(), schedule="cosine", epochs=4, callbacks=[watch])
    assert seen == sorted(seen, reverse=True)
    assert seen[-1] < 0.01
    model = make_model()
    fit(model, schedule=lambda part: 1 + part, epochs=2, callbacks=[watch], checkpoint=tmp_path)
    assert seen[-1] > 0.05
    rates = [group["lr"] for group in read_newest(tmp_path).data["optimizer"]["groups"]]
    expected = [group["lr"] for group in model.param_groups(seen[-1])]
    assert len(set(rates)) == 2  # means, and factors of rank 4
    assert rates == pytest.approx(expected)


def test_training_in_double_precision():
    model = make_model().double()
    fit(model, (X.double(), Y), precision="64-true")
    assert weights(model).dtype == torch.float64


def test_training_in_mixed_precision():
    assert math.isfinite(fit(make_model(), precision="bf16-mixed")["loss"][-1])


def test_the_global_generator_of_torch_is_preserved():
    model = make_model()
    before = torch.get_rng_state()
    fit(model, epochs=1)
    assert torch.equal(torch.get_rng_state(), before)


def test_the_history_can_be_plotted(tmp_path):
    history = fit(make_model(), validation=(X, Y))
    history.plot(tmp_path / "history.png", "training")
    assert (tmp_path / "history.png").stat().st_size > 0


def test_progress_in_a_terminal_shows_loss_metrics_and_time(monkeypatch):
    stream = io.StringIO()
    terminal = Console(file=stream, force_terminal=True, width=120)
    monkeypatch.setattr("rich.console.Console", lambda stderr: terminal)
    fit(make_model(), validation=(X, Y), epochs=3)
    shown = stream.getvalue()
    assert "epoch 3/3" in shown
    assert all(word in shown for word in ("loss", "nll", "accuracy", "0:00:"))


def test_progress_is_silent_without_a_terminal(capfd):
    fit(make_model(), validation=(X, Y))
    assert capfd.readouterr() == ("", "")
