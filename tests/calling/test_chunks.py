"""How many sampled functions run at a time if chunk_size is left out."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import tacit
from tacit.calling import caller
from tacit.calling.caller import IMAGES_PER_CHUNK, Caller


def net():
    return nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(3 * 16, 2))


X = torch.randn(8, 1, 6, 6, generator=torch.Generator().manual_seed(0))


def best_chunk(module, random, x=X):
    with torch.no_grad():
        return Caller({}).best_chunk(module.eval(), random, ((x,), {}))


def test_chunks_are_small_if_the_first_layer_is_a_random_convolution():
    assert best_chunk(net(), {"0.weight"}) == IMAGES_PER_CHUNK // 8
    assert best_chunk(net(), {"0.weight"}, torch.zeros(32, 1, 6, 6)) == 1


def test_otherwise_the_largest_output_that_depends_on_the_weights_fits_in_memory():
    assert best_chunk(net(), {"3.weight"}) == caller.CPU_OUTPUT_BYTES // (8 * 2 * 4)
    wide = nn.Sequential(nn.Linear(4, 50), nn.Linear(50, 30), nn.Linear(30, 2))
    for name, largest in {"0": 50, "1": 30, "2": 2}.items():
        found = best_chunk(wide, {f"{name}.weight"}, torch.zeros(8, 4))
        assert found == caller.CPU_OUTPUT_BYTES // (8 * largest * 4)


def test_with_gradients_memory_does_not_limit_the_chunk():
    assert Caller({}).best_chunk(net(), {"3.weight"}, ((X,), {})) is None
    assert Caller({}).best_chunk(net(), {"0.weight"}, ((X,), {})) == IMAGES_PER_CHUNK // 8


def test_samples_run_in_chunks_within_the_memory_limit(monkeypatch):
    monkeypatch.setattr(caller, "CPU_OUTPUT_BYTES", 3 * 8 * 30 * 4)
    wide = nn.Sequential(nn.Linear(4, 30), nn.Linear(30, 2))
    model, seen = tacit.variational(wide, tacit.every_layer).eval(), []
    wide[0].register_forward_hook(lambda _m, _x, output: seen.append(output.shape))
    with torch.no_grad():
        assert model(torch.randn(8, 4), samples=7).shape == (7, 8, 2)
    assert len(seen) == 1 + 3  # a trial run for the output's size; chunks of 3, 3 and 1


@pytest.mark.parametrize("size", [1, 3, None])
def test_the_chunk_size_does_not_change_the_outputs_of_a_cnn(size):
    model = tacit.variational(net()).eval().double()
    weights = model.sample(5, generator=torch.Generator().manual_seed(0))
    x = X.double().repeat(100, 1, 1, 1)
    expected = model(x, weights=weights, chunk_size=5)
    with torch.no_grad():
        assert_close(model(x, weights=weights, chunk_size=size), expected)


def test_a_chunk_size_of_zero_is_refused():
    model = tacit.variational(net()).eval()
    with torch.no_grad(), pytest.raises(ValueError, match="chunk_size: expected"):
        model(X, samples=2, chunk_size=0)
