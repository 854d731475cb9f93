import pytest
import torch
from torch import nn
from torch.testing import assert_close

import tacit
from tacit.testing import CovarianceSuite
from tacit.testing.covariance import LAYERS, make_factors
from tacit.weights.covariance import parameter_count


class TestFullRank(CovarianceSuite):
    def covariances(self, shapes):
        return [tacit.FullRank()]

    def reference(self, covariance, factors, shapes):
        # E[w w^T] as a sum of outer products over the independent noise components.
        P = parameter_count(shapes)
        columns = [torch.cat([factors[name][k].reshape(-1) for name in shapes]) for k in range(P)]
        return sum(torch.outer(column, column) for column in columns)


@pytest.mark.parametrize("layer", LAYERS)
def test_full_rank_equals_low_rank_with_as_many_directions_as_parameters(layer):
    shapes = LAYERS[layer]
    low = tacit.LowRank(parameter_count(shapes))
    assert tacit.FullRank().factors(shapes) == low.factors(shapes)
    ours, theirs = make_factors(tacit.FullRank(), shapes), make_factors(low, shapes)
    z = torch.randn(3, parameter_count(shapes), dtype=torch.float64)
    for name in shapes:
        assert_close(
            tacit.FullRank().apply(ours, z, shapes)[name],
            low.apply(theirs, z, shapes)[name],
            rtol=0,
            atol=0,
        )


def test_a_large_layer_is_refused_with_the_memory_it_needs():
    net = nn.Sequential(nn.Linear(784, 512))
    with pytest.raises(ValueError, match=r"layer '0': .* 401,920 parameters takes 646\.2 GB"):
        tacit.variational(net, {"0": tacit.FullRank()})


def test_the_memory_limit_can_be_set():
    net = nn.Linear(100, 4)  # 404 parameters: 0.65 MB
    with pytest.raises(ValueError, match=r"limit of 0\.0005 GB"):
        tacit.variational(net, {"": tacit.FullRank(max_gigabytes=5e-4)})
    tacit.variational(net, {"": tacit.FullRank(max_gigabytes=1e-3)})
