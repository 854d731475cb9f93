from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.testing import assert_close

import tacit
from tacit.methods import SWAG
from tacit.methods.network_cache import NetworkCache
from tacit.methods.swag import Path, flat, named
from tacit.methods.task import Task


def make_path(deviations, variance=None):
    net = nn.Linear(3, 2).double()
    mean = flat(net)
    variance = torch.zeros_like(mean) if variance is None else variance
    return Path(net, tacit.Categorical(), mean, variance, deviations, 0.5), mean


def draws(path, count, seed=0):
    generator = torch.Generator().manual_seed(seed)
    names = path.draw(generator)
    found = [path.draw(generator) for _ in range(count)]
    return torch.stack([torch.cat([w[name].flatten() for name in names]) for w in found])


def test_draws_have_the_covariance_of_the_paper():
    """Half the diagonal plus half of D^T D / (K - 1), jointly over all tensors."""
    torch.manual_seed(0)
    deviations = torch.randn(4, 8, dtype=torch.float64)
    variance = torch.rand(8, dtype=torch.float64)
    path, mean = make_path(deviations, variance)
    drawn = draws(path, 40_000) - mean
    expected = 0.5 * (torch.diag(variance) + deviations.T @ deviations / 3)
    found = drawn.T @ drawn / len(drawn)
    spread = expected.diag()
    error = (spread.outer(spread) + expected.square()).sqrt() / 200
    assert ((found - expected).abs() < 5 * error).all()
    # One low-rank z for all tensors: weights and biases are correlated.
    assert (found[:6, 6:].abs() > 10 * error[:6, 6:]).any()


def test_flattening_and_naming_are_inverse():
    net = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    net[0].bias.requires_grad_(False)
    weights = named(net, flat(net))
    assert list(weights) == ["0.weight", "1.weight", "1.bias"]
    for name, tensor in weights.items():
        assert_close(tensor, net.get_parameter(name).detach())


def test_every_draw_has_its_own_batch_norm_statistics(tmp_path):
    torch.manual_seed(0)
    x, y = 3 + 2 * torch.randn(120, 4), torch.arange(120) % 2

    def net():
        return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 2))

    predictor = SWAG(samples=3).fit(net, (x, y), epochs=6, lr=0.1, batch_size=120, progress=False)
    stored = predictor.tensors()
    for i in range(3):
        start = f"kept.{i}."
        kept = {n.removeprefix(start): t for n, t in stored.items() if n.startswith(start)}
        inside = nn.functional.linear(x, kept["0.weight"], kept["0.bias"])
        assert_close(kept["1.running_mean"], inside.mean(0), atol=1e-4, rtol=1e-4)
        assert_close(kept["1.running_var"], inside.var(0), atol=1e-4, rtol=1e-3)
    assert tacit.predict(predictor, x, samples=3).logits.shape == (3, 120, 2)
    loaded = tacit.methods.load(tacit.methods.save(predictor, tmp_path / "p.safetensors"), net)
    before, after = (tacit.predict(p, x, samples=3).logits for p in (predictor, loaded))
    assert torch.equal(before, after)
    moved = loaded.to(torch.float64)  # all tensors, those of the stored functions too
    assert {t.dtype for t in moved.tensors().values() if t.is_floating_point()} == {torch.float64}
    after = tacit.predict(moved, x.double(), samples=3).logits
    assert_close(after, before.double(), atol=1e-4, rtol=1e-4)
    with pytest.raises(ValueError, match=r"samples: expected at most 3, .* SWAG\(samples=4\)"):
        tacit.predict(predictor, x, samples=4)


def test_only_the_second_half_of_training_counts():
    x, y = torch.randn(40, 2), torch.arange(40) % 2
    seen = []
    predictor = SWAG(rank=3).fit(
        lambda: nn.Linear(2, 2), (x, y), epochs=10, lr=0.1, batch_size=20, progress=False,
        callbacks=[lambda row, model: seen.append(flat(model).clone()) or None],
    )  # fmt: skip
    late = torch.stack(seen[5:])
    assert_close(predictor.mean, late.mean(0))
    assert_close(predictor.variance, late.var(0, correction=0), atol=1e-6, rtol=1e-3)
    assert_close(predictor.deviations, late[-3:] - late.mean(0))


def test_a_chunk_size_does_not_change_the_functions():
    path, _ = make_path(torch.randn(4, 8, dtype=torch.float64), torch.rand(8).double())
    x = torch.randn(5, 3, dtype=torch.float64)
    first, second = (
        tacit.predict(
            path, x, samples=6, batch_size=2, chunk_size=size,
            generator=torch.Generator().manual_seed(0),
        ).logits
        for size in (None, 1)
    )  # fmt: skip
    assert torch.equal(first, second)
    assert not torch.allclose(first[0], first[1])


def test_training_that_stops_before_weights_are_collected_is_refused():
    x, y = torch.randn(40, 2), torch.arange(40) % 2
    with pytest.raises(ValueError, match="SWAG: training stopped in the first half"):
        SWAG().fit(
            lambda: nn.Linear(2, 2), (x, y), (x, 1 - y), epochs=200, lr=1.0, batch_size=20,
            progress=False, early_stopping=1,
        )  # fmt: skip


def test_an_interrupted_run_resumes_with_the_weights_collected_before(tmp_path):
    torch.manual_seed(0)
    data = torch.randn(64, 4), torch.arange(64) % 2
    same = {"epochs": 6, "lr": 0.05, "progress": False}

    class Killed(Exception):
        pass

    def kill(row, model):
        if row["epoch"] == 5:
            raise Killed

    whole = SWAG().fit(lambda: nn.Linear(4, 2), data, **same)
    with pytest.raises(Killed):
        SWAG().fit(lambda: nn.Linear(4, 2), data, **same, checkpoint=tmp_path, callbacks=[kill])
    found = SWAG().fit(lambda: nn.Linear(4, 2), data, **same, checkpoint=tmp_path)
    for name in ("mean", "variance", "deviations"):
        assert torch.equal(getattr(found, name), getattr(whole, name))
    again = SWAG().fit(
        lambda: nn.Linear(4, 2), data, **same | {"lr": 0.1}, checkpoint=tmp_path, resume="never"
    )
    assert not torch.equal(again.mean, whole.mean)


def test_its_network_is_the_plain_network_of_other_methods(tmp_path):
    torch.manual_seed(0)
    data = torch.randn(64, 4), torch.arange(64) % 2
    task = Task(
        lambda: nn.Linear(4, 2), data, None, tacit.Categorical(), None, 0,
        {"epochs": 4, "lr": 0.05, "progress": False}, NetworkCache(tmp_path),
    )  # fmt: skip
    SWAG().fit_task(task)
    cached = task.trained()
    plain = replace(task, networks=None).trained()
    assert torch.equal(cached.weight, plain.weight)


def test_a_number_of_epochs_is_needed():
    data = torch.randn(8, 4), torch.zeros(8, dtype=torch.long)
    with pytest.raises(ValueError, match="SWAG: expected a number of epochs"):
        SWAG().fit(lambda: nn.Linear(4, 2), data, data, epochs=None, lr=0.01, progress=False)


def test_a_numpy_scale_is_a_python_number():
    assert type(SWAG(scale=np.float32(0.5)).scale) is float
