import pytest
import torch
from torch import nn
from torch.testing import assert_close

import tacit
from tacit.functional import SAMPLED_IMAGES, best_chunk


def net():
    return nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(3 * 16, 2))


X = torch.randn(8, 1, 6, 6, generator=torch.Generator().manual_seed(0))


def chunk(module, random, x=X):
    with torch.no_grad():
        return best_chunk(module, random, ((x,), {}))


def test_a_few_at_a_time_where_the_first_convolution_is_random():
    assert chunk(net(), {"0.weight"}) == SAMPLED_IMAGES // 8
    assert chunk(net(), {"0.weight"}, torch.zeros(5000, 1, 6, 6)) == 1


def test_all_at_once_otherwise():
    assert chunk(net(), {"3.weight"}) is None  # what comes before runs once
    assert chunk(nn.Sequential(nn.Linear(4, 2)), {"0.weight"}, torch.zeros(8, 4)) is None
    assert best_chunk(net(), {"0.weight"}, ((X,), {})) is None  # with gradients


@pytest.mark.parametrize("size", [1, 3, None])
def test_the_result_is_the_same(size):
    model = tacit.variational(net()).eval().double()
    weights = model.sample(5, generator=torch.Generator().manual_seed(0))
    x = X.double().repeat(100, 1, 1, 1)
    expected = model(x, weights=weights)  # with gradients: all at once
    with torch.no_grad():
        assert_close(model(x, weights=weights, chunk_size=size), expected)


def test_no_functions_at_a_time_are_refused():
    model = tacit.variational(net()).eval()
    with torch.no_grad(), pytest.raises(ValueError, match="chunk_size: expected"):
        model(X, samples=2, chunk_size=0)
