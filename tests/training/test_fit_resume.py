"""A resumed run of tacit.fit gives the same bits as an uninterrupted one."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.testing import assert_close
from torch.utils.data import DataLoader, TensorDataset

import tacit
from training.fit_problem import X, Y, fit, make_model, weights


def test_a_finished_run_is_not_repeated_and_can_be_extended(tmp_path):
    first = make_model()
    fit(first, epochs=2, checkpoint=tmp_path)
    again = make_model()
    assert len(fit(again, epochs=2, checkpoint=tmp_path)) == 2
    assert_close(weights(again), weights(first), rtol=0, atol=0)
    longer, whole = make_model(), make_model()
    fit(longer, epochs=4, checkpoint=tmp_path)
    fit(whole, epochs=4)
    assert_close(weights(longer), weights(whole), rtol=0, atol=0)


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "nadam"])
@pytest.mark.parametrize("loader", [False, True])
def test_resuming_gives_the_same_bits(optimizer, loader, tmp_path):
    """Even if the data use the random numbers of NumPy and torch."""

    class Noisy(torch.utils.data.Dataset):
        def __len__(self):
            return 96

        def __getitem__(self, i):
            return X[i] + np.random.rand() + torch.rand(1), Y[i]

    def data():
        return DataLoader(Noisy(), batch_size=16, shuffle=True) if loader else Noisy()

    whole, parts = make_model(), make_model()
    np.random.seed(0)
    fit(whole, data(), epochs=4, optimizer=optimizer, lr=0.01)
    np.random.seed(0)
    fit(parts, data(), epochs=2, optimizer=optimizer, lr=0.01, checkpoint=tmp_path)
    np.random.seed(5)
    parts = make_model()
    fit(parts, data(), epochs=4, optimizer=optimizer, lr=0.01, checkpoint=tmp_path)
    assert_close(weights(parts), weights(whole), rtol=0, atol=0)


def test_resuming_with_a_loader_that_has_its_own_generator(tmp_path):
    def data():
        generator = torch.Generator().manual_seed(7)
        return DataLoader(TensorDataset(X, Y), 16, shuffle=True, generator=generator)

    whole, parts = make_model(), make_model()
    fit(whole, data(), epochs=4)
    fit(make_model(), data(), epochs=2, checkpoint=tmp_path)
    fit(parts, data(), epochs=4, checkpoint=tmp_path)
    assert_close(weights(parts), weights(whole), rtol=0, atol=0)


def test_early_stopping_continues_after_a_resume(tmp_path):
    data = (X[:20], Y[:20]), (X[20:], Y[20:])
    settings = {"early_stopping": 3, "lr": 0.1}
    whole, parts = make_model(), make_model()
    history = fit(whole, *data, epochs=200, **settings)
    fit(parts, *data, epochs=4, checkpoint=tmp_path, **settings)
    parts = make_model()
    again = fit(parts, *data, epochs=200, checkpoint=tmp_path, **settings)
    assert again["nll"] == history["nll"]
    assert_close(weights(parts), weights(whole), rtol=0, atol=0)


def test_persistent_workers_raise_an_error(tmp_path):
    loader = DataLoader(TensorDataset(X, Y), 16, num_workers=1, persistent_workers=True)
    with pytest.raises(ValueError, match="persistent_workers=True keep random states"):
        fit(make_model(), loader, checkpoint=tmp_path)


def test_a_checkpoint_of_another_run_raises_an_error(tmp_path):
    fit(make_model(), epochs=1, checkpoint=tmp_path)
    with pytest.raises(ValueError, match=r"it had lr 0.05, now 0.1; seed 0, now 1"):
        fit(make_model(), epochs=1, checkpoint=tmp_path, lr=0.1, seed=1)
    new, again = make_model(), make_model()
    fit(make_model(), epochs=5, checkpoint=tmp_path)
    fit(new, epochs=2, checkpoint=tmp_path, lr=0.1, resume="never")
    assert len(fit(again, epochs=2, checkpoint=tmp_path, lr=0.1)) == 2
    assert_close(weights(again), weights(new), rtol=0, atol=0)


def test_a_checkpoint_of_another_model_raises_an_error(tmp_path):
    fit(make_model(), epochs=1, checkpoint=tmp_path)
    with pytest.raises(ValueError, match=r"doesn't fit the model: '.*' is \("):
        fit(make_model(outputs=3), epochs=2, checkpoint=tmp_path)


def test_another_objective_or_schedule_raises_an_error(tmp_path):
    def model():
        torch.manual_seed(0)
        net = nn.Linear(4, 2)
        return tacit.variational(net, {"": tacit.Diagonal()}, likelihood=tacit.Categorical())

    first = model()
    fit(first, epochs=1, checkpoint=tmp_path, objective=tacit.GVI(first.prior(), 1.0))
    again = model()
    history = fit(again, epochs=2, checkpoint=tmp_path, objective=tacit.GVI(again.prior(), 1.0))
    assert len(history) == 2
    moved = again.prior()
    for change in ({"objective": tacit.GVI(moved, 1.0)}, {"schedule": "cosine"}, {}):
        with pytest.raises(ValueError, match="belongs to another run: it had"):
            fit(model(), epochs=3, checkpoint=tmp_path, **change)


def test_extending_a_run_with_a_schedule_raises_an_error(tmp_path):
    fit(make_model(), epochs=2, checkpoint=tmp_path, schedule="cosine")
    with pytest.raises(ValueError, match="it had epochs 2, now 4"):
        fit(make_model(), epochs=4, checkpoint=tmp_path, schedule="cosine")
