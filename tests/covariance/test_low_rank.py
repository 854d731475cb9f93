import itertools

import pytest
import torch
from torch import nn

import tacit
from tacit.covariance import parameter_count
from tacit.testing import CovarianceSuite


class TestLowRank(CovarianceSuite):
    def covariances(self, shapes):
        P = parameter_count(shapes)
        return [tacit.LowRank(rank) for rank in (1, min(2, P), P)]

    def reference(self, covariance, factors, shapes):
        # One parameter after the other: its row of S are its entries in all directions.
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


@pytest.mark.parametrize("rank", [0, -1])
def test_rank_below_one_is_refused(rank):
    with pytest.raises(ValueError, match=r"LowRank\(rank\): expected an integer of at least 1"):
        tacit.LowRank(rank)


@pytest.mark.parametrize("rank", [2.0, True, "3"])
def test_rank_must_be_an_integer(rank):
    with pytest.raises(TypeError, match=r"LowRank\(rank\): expected an integer of at least 1"):
        tacit.LowRank(rank)


@pytest.mark.parametrize("scale", [0, -1.0, float("nan"), float("inf")])
def test_scale_must_be_positive_and_finite(scale):
    with pytest.raises(ValueError, match=r"LowRank\(scale\): expected a number above 0"):
        tacit.LowRank(1, scale=scale)


def test_rank_above_the_parameters_is_refused_with_both_numbers():
    net = nn.Sequential(nn.Linear(3, 2))
    with pytest.raises(ValueError, match=r"layer '0': LowRank: .* parameters, 8; received 9"):
        tacit.variational(net, {"0": tacit.LowRank(9)})
