"""tacit.fit stops early, on a callback, on divergence and on signals."""

import os
import signal
import threading

import pytest
import torch
from torch import nn
from torch.testing import assert_close
from torch.utils.data import TensorDataset

import tacit
from tacit.training import TrainingDivergedError
from tacit.training.checkpoints import read_newest
from training.fit_problem import X, Y, fit, make_model, weights


def test_early_stopping_restores_the_best_epoch():
    model = make_model()
    history = fit(model, (X[:20], Y[:20]), (X[20:], Y[20:]), epochs=200, early_stopping=3, lr=0.1)
    best = min(range(len(history)), key=history["nll"].__getitem__)
    assert history.stopped == "early stopping"
    assert len(history) == best + 1 + 3
    shorter = make_model()
    again = fit(shorter, (X[:20], Y[:20]), (X[20:], Y[20:]), epochs=best + 1, lr=0.1)
    assert again["nll"][-1] == pytest.approx(history["nll"][best])
    assert_close(weights(model), weights(shorter), rtol=0, atol=0)


def test_a_callback_that_returns_true_stops_training():
    history = fit(make_model(), epochs=9, callbacks=[lambda row, _: row["epoch"] == 2])
    assert (len(history), history.stopped) == (2, "callback")


def test_divergence_raises_an_error_and_resets_the_model():
    model = make_model()
    fit(model, epochs=1)
    before = weights(model)
    with pytest.raises(TrainingDivergedError, match="Try a smaller learning rate than 1e"):
        fit(model, lr=1e30)
    assert_close(weights(model), before, rtol=0, atol=0)
    # Also if the diverging step is the last of an epoch.
    with pytest.raises(TrainingDivergedError, match="not finite|loss is"):
        fit(model, lr=1e18, batch_size=96, epochs=9)
    assert_close(weights(model), before, rtol=0, atol=0)


def test_a_loss_that_is_nan_before_any_training_is_not_blamed_on_the_learning_rate():
    class Logarithm(nn.Linear):
        def forward(self, x):
            return super().forward(x).log()

    net = Logarithm(4, 2)
    before = {name: value.clone() for name, value in net.state_dict().items()}
    data = torch.randn(16, 4), torch.zeros(16, dtype=torch.long)
    with pytest.raises(TrainingDivergedError, match="before any training.*log.*unchanged"):
        tacit.fit(net, data, likelihood=tacit.Categorical(), epochs=1, progress=False)
    assert_close(net.state_dict(), before, rtol=0, atol=0)


def test_a_table_of_classes_that_diverges_is_advised_to_be_standardised():
    torch.manual_seed(0)
    x = 1e20 * torch.rand(64, 4)
    model = tacit.variational(tacit.models.MLP(4, [8], 2), likelihood=tacit.Categorical())
    data = x, (x[:, 0] > 5e19).long()
    with pytest.raises(TrainingDivergedError, match="or standardise=True for columns"):
        tacit.fit(model, data, epochs=2, batch_size=8, progress=False)
    history = tacit.fit(model, data, epochs=9, batch_size=8, standardise=True, progress=False)
    assert history["loss"][-1] < 0.7
    images = x.reshape(-1, 1, 2, 2)
    model = tacit.variational(tacit.models.MLP(4, [8], 2), likelihood=tacit.Categorical())
    with pytest.raises(TrainingDivergedError, match=r"or more draws\. The"):
        tacit.fit(model, (images, data[1]), epochs=2, batch_size=8, progress=False)


@pytest.mark.parametrize("average", [0.0, 1.0])
def test_nan_among_the_validation_predictions_is_divergence(average):
    torch.manual_seed(0)
    net = nn.Linear(4, 2)
    before = {name: value.clone() for name, value in net.state_dict().items()}
    x, y = torch.randn(16, 4), torch.zeros(16, dtype=torch.long)
    validation = (torch.full((4, 4), 3e38), y[:4])
    with pytest.raises(TrainingDivergedError, match="Predictions of validation data are NaN"):
        tacit.fit(
            net, (x, y), validation, likelihood=tacit.Categorical(), epochs=1, lr=100.0,
            average=average, progress=False,
        )  # fmt: skip
    assert_close(net.state_dict(), before, rtol=0, atol=0)


def test_a_loss_that_ends_far_above_its_minimum_warns():
    x = torch.randn(64, 4)
    net = nn.Linear(4, 1)
    rates = iter([1.0] * 20 + [1e6] * 4)
    with pytest.warns(UserWarning, match=r"fit: the loss ended at .*, after .* in epoch"):
        tacit.fit(
            net, (x, x[:, :1]), likelihood=tacit.Gaussian(1.0, learn=False), epochs=6, lr=0.01,
            momentum=0.0, batch_size=16, schedule=lambda part: next(rates, 1.0), progress=False,
        )  # fmt: skip


class Interrupting(torch.utils.data.Dataset):
    """The data; the process receives a signal when the n-th example is loaded."""

    def __init__(self, n, number):
        self.left, self.number = n, number

    def __len__(self):
        return len(X)

    def __getitem__(self, i):
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), self.number)
        return X[i], Y[i]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_after_the_step_and_leaves_a_checkpoint(number, tmp_path, capsys):
    ends = KeyboardInterrupt if number == signal.SIGINT else SystemExit
    with pytest.raises(ends):
        fit(make_model(), Interrupting(40, number), checkpoint=tmp_path)
    assert "stopped after step 3 of 18; run again to resume" in capsys.readouterr().err
    assert read_newest(tmp_path).data["done"] == 3  # the current step was completed
    whole, rest = make_model(), make_model()
    fit(whole, TensorDataset(X, Y))
    history = fit(rest, TensorDataset(X, Y), checkpoint=tmp_path)
    assert history.stopped == "epochs"
    assert_close(weights(rest), weights(whole), rtol=0, atol=0)


def test_a_signal_in_the_last_step_of_an_epoch_stops_after_the_epoch(tmp_path):
    with pytest.raises(SystemExit) as stop:
        fit(make_model(), Interrupting(96, signal.SIGTERM), checkpoint=tmp_path)
    assert stop.value.code == 143
    assert read_newest(tmp_path).data["epoch"] == 1
    whole, rest = make_model(), make_model()
    fit(whole, TensorDataset(X, Y))
    assert len(fit(rest, TensorDataset(X, Y), checkpoint=tmp_path)) == 3
    assert_close(weights(rest), weights(whole), rtol=0, atol=0)


def test_training_works_outside_the_main_thread():
    found = []
    thread = threading.Thread(target=lambda: found.append(fit(make_model(), epochs=1)))
    thread.start()
    thread.join()
    assert len(found[0]) == 1
