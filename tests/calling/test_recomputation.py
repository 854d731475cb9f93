"""Activation checkpointing inside a module with noise in activation space."""

import copy
import gc
import pickle

import pytest
import torch
from torch import nn
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint

import tacit
from tacit import Kronecker, LowRank, RankOneSum, Relative

X = torch.randn(6, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


class Checkpointed(nn.Module):
    """Two layers and dropout, recomputed in the backward pass, and a last layer."""

    def __init__(self, reentrant=False, recompute=True, rate=0.3, **settings):
        super().__init__()
        torch.manual_seed(0)
        self.inner = nn.Sequential(
            nn.Linear(4, 8), nn.ReLU(), nn.Dropout(rate), nn.Linear(8, 8), nn.ReLU()
        )
        self.last = nn.Linear(8, 3)
        self.recompute = recompute
        self.settings = {"use_reentrant": reentrant, **settings}
        self.double()

    def forward(self, x):
        hidden = checkpoint(self.inner, x, **self.settings) if self.recompute else self.inner(x)
        return self.last(hidden)


def relative(net, covariance=None):
    where = dict.fromkeys(["*inner.?", "last"], covariance or Relative(0.5))
    return tacit.variational(net, where, generator=torch.Generator().manual_seed(0))


def gradients(model, passes=2):
    """Return the gradients of a sum over several calls, as in gradient accumulation."""
    x = X.clone().requires_grad_()
    model(x)  # the first call tries how the module uses its weights
    model.zero_grad()
    torch.manual_seed(1)
    sum(model(k * x).square().sum() for k in range(1, passes + 1)).backward()
    return [x.grad, *(parameter.grad for parameter in model.parameters())]


@pytest.mark.parametrize(
    "covariance",
    [Relative(0.5), RankOneSum(2), Kronecker(2, 2)],
    ids=lambda covariance: type(covariance).__name__,
)
@pytest.mark.parametrize("reentrant", [False, True])
def test_gradients_are_those_without_checkpointing(reentrant, covariance):
    plain = relative(Checkpointed(recompute=False), covariance)
    assert_close(gradients(relative(Checkpointed(reentrant), covariance)), gradients(plain))


def test_a_layer_that_is_used_twice_has_the_same_noise():
    class Twice(Checkpointed):
        def forward(self, x):
            hidden = super().forward(x)
            return hidden + super().forward(2 * x)

    expected = gradients(relative(Twice(recompute=False, rate=0.0)))
    assert_close(gradients(relative(Twice(rate=0.0))), expected)


def test_a_pass_with_the_means_is_recomputed_with_the_means():
    model = relative(Checkpointed())
    kept = model(X)  # its graph is alive
    torch.manual_seed(1)
    x = X.clone().requires_grad_()
    model.module(x).square().sum().backward()
    found = x.grad
    torch.manual_seed(1)
    x = X.clone().requires_grad_()
    model.module.recompute = False
    model.module(x).square().sum().backward()
    assert_close(found, x.grad)
    assert kept.grad_fn is not None


def test_nothing_is_kept_longer_than_the_graph():
    model = relative(Checkpointed())
    output = model(X)
    parameters = vars(model.module.inner[0])["_parameters"]
    assert len(parameters.weights) == 1
    del output
    gc.collect()
    assert len(parameters.weights) == 0


def test_copies_and_pickles_have_ordinary_parameters():
    model = relative(Checkpointed())
    model(X).sum().backward()
    for copied in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert type(vars(copied.module.inner[0])["_parameters"]) is dict


def test_calls_that_recomputations_cannot_tell_apart_are_refused():
    model = relative(Checkpointed(rate=0.0))
    generator = torch.Generator().manual_seed(0)
    first = model(X, generator=generator)
    with pytest.raises(RuntimeError, match="same state of PyTorch's global generator"):
        model(X, generator=generator)
    assert first.grad_fn is not None


def test_checkpointing_that_does_not_restore_the_random_state_is_refused():
    with pytest.raises(RuntimeError, match="used inside activation checkpointing"):
        relative(Checkpointed(preserve_rng_state=False))(X)


def test_samples_in_weight_space_are_refused():
    model = tacit.variational(Checkpointed(), {"*inner.?": LowRank(2)})
    with pytest.raises(RuntimeError, match="used inside activation checkpointing"):
        model(X)


def test_a_module_with_checkpointing_enabled_is_accepted_for_relative_noise_only():
    net = Checkpointed()
    net.is_gradient_checkpointing = True  # as Hugging Face models set it
    with pytest.raises(ValueError, match="whose noise can be recomputed"):
        tacit.variational(net, {"last": LowRank(2)})
    assert relative(net).draws == "each"
