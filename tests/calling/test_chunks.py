import pytest
import torch
from torch import nn
from torch.testing import assert_close

import tacit
from tacit.calling import caller as functional
from tacit.calling.caller import SAMPLED_IMAGES, Caller


def net():
    return nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(3 * 16, 2))


X = torch.randn(8, 1, 6, 6, generator=torch.Generator().manual_seed(0))


def chunk(module, random, x=X):
    with torch.no_grad():
        return Caller({}).best_chunk(module.eval(), random, ((x,), {}))


def test_a_few_at_a_time_where_the_first_convolution_is_random():
    assert chunk(net(), {"0.weight"}) == SAMPLED_IMAGES // 8
    assert chunk(net(), {"0.weight"}, torch.zeros(32, 1, 6, 6)) == 1


def test_otherwise_within_a_budget_of_memory():
    """For the outputs of layers that depend on the weights: what comes before runs once."""
    assert chunk(net(), {"3.weight"}) == functional.MEMORY // (8 * 2 * 4)
    wide = nn.Sequential(nn.Linear(4, 50), nn.Linear(50, 30), nn.Linear(30, 2))
    for name, largest in {"0": 50, "1": 30, "2": 2}.items():
        found = chunk(wide, {f"{name}.weight"}, torch.zeros(8, 4))
        assert found == functional.MEMORY // (8 * largest * 4)


def test_with_gradients_memory_is_needed_anyway():
    assert Caller({}).best_chunk(net(), {"3.weight"}, ((X,), {})) is None
    assert Caller({}).best_chunk(net(), {"0.weight"}, ((X,), {})) == SAMPLED_IMAGES // 8


def test_the_budget_is_kept(monkeypatch):
    monkeypatch.setattr(functional, "MEMORY", 3 * 8 * 30 * 4)
    wide = nn.Sequential(nn.Linear(4, 30), nn.Linear(30, 2))
    model, seen = tacit.variational(wide).eval(), []
    wide[0].register_forward_hook(lambda _m, _x, output: seen.append(output.shape))
    with torch.no_grad():
        assert model(torch.randn(8, 4), samples=7).shape == (7, 8, 2)
    assert len(seen) == 1 + 3  # once to see how large they are; 3, 3 and 1 functions


@pytest.mark.parametrize("size", [1, 3, None])
def test_the_result_is_the_same(size):
    model = tacit.variational(net()).eval().double()
    weights = model.sample(5, generator=torch.Generator().manual_seed(0))
    x = X.double().repeat(100, 1, 1, 1)
    expected = model(x, weights=weights, chunk_size=5)
    with torch.no_grad():
        assert_close(model(x, weights=weights, chunk_size=size), expected)


def test_no_functions_at_a_time_are_refused():
    model = tacit.variational(net()).eval()
    with torch.no_grad(), pytest.raises(ValueError, match="chunk_size: expected"):
        model(X, samples=2, chunk_size=0)
