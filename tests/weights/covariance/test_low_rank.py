import itertools

import pytest
import torch
from torch import nn

import tacit
from tacit.testing import CovarianceSuite
from tacit.weights.covariance import parameter_count


class TestLowRank(CovarianceSuite):
    def covariances(self, shapes):
        P = parameter_count(shapes)
        return [tacit.LowRank(rank) for rank in (1, min(2, P), P)]

    def reference(self, covariance, factors, shapes):
        # Row by row: the row of S for a parameter holds its entries in all directions.
        rows = [
            factors[name][(slice(None), *index)]
            for name, shape in shapes.items()
            for index in itertools.product(*map(range, shape))
        ]
        S = torch.stack(rows)
        return S @ S.T


def test_weight_and_bias_are_jointly_distributed():
    model = tacit.variational(nn.Linear(3, 2), {"": tacit.LowRank(2)}).double()
    Sigma = model.distributions[""].dense_covariance()
    assert (Sigma[:6, 6:].abs() > 1e-8).all()


def test_a_rank_above_the_number_of_parameters_is_refused_with_both_numbers():
    net = nn.Sequential(nn.Linear(3, 2))
    with pytest.raises(ValueError, match=r"layer '0': LowRank: .* parameters, 8; received 9"):
        tacit.variational(net, {"0": tacit.LowRank(9)})
