import pytest
import torch
from torch import nn
from torch.testing import assert_close

import tacit
from tacit import theory
from tacit.inference import rescaled_mean


def test_rescaled_mean_matches_the_theory():
    """With the factor of the limit of training, P_null S0, whose span is the null space."""
    torch.manual_seed(2)
    x = torch.randn(3, 6, dtype=torch.float64)
    null = theory.null_projection(x)
    model = tacit.variational(nn.Linear(6, 1, bias=False).double(), {"": tacit.FullRank()})
    prior, start = model.prior(), model.distributions[""].dense_mean().detach().clone()
    layer = model.distributions[""]
    with torch.no_grad():
        layer.factors["weight"].copy_((null @ layer.dense_factor()).T[:, None, :])
        layer.mean["weight"].copy_(5 * torch.randn(1, 6))
    found = rescaled_mean(model, prior, step=3000)
    q = theory.Normal(layer.dense_mean(), layer.dense_factor())
    expected = theory.classification.rescaled(q, 3000, null, start)
    assert_close(found.distributions[""].dense_mean().detach(), expected.mean)
    assert_close(found.distributions[""].dense_factor(), layer.dense_factor())
    assert found is not model


def test_fewer_than_three_steps_are_refused():
    model = tacit.variational(nn.Linear(6, 1), rank=2)
    with pytest.raises(ValueError, match="expected at least 3"):
        rescaled_mean(model, model.prior(), step=1)
