"""The draws of tacit.SGD: their distribution, and recomputed activations."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint

import tacit
from training.optim.optimizer_pair import EXACT, LR, SETTINGS, Pair, make_model, train


def test_draws_have_the_moments_of_the_distribution():
    """Over many noise bases, and compared with independent draws."""
    model = make_model()
    optimizer = tacit.SGD(model, LR, deferred=True)
    x = torch.randn(1, 5)
    outputs = torch.stack([model(x).detach() for _ in range(4000)])
    assert optimizer.defers
    expected = model(x, samples=20_000).detach()
    assert_close(outputs.mean(0), expected.mean(0), rtol=0, atol=0.05)
    assert_close(outputs.std(0), expected.std(0), rtol=0.05, atol=0)


@pytest.mark.parametrize("name", ["plain", "momentum", "nesterov"])
def test_linear_regression_converges_to_the_limit_of_the_theory(name):
    """Theorem 1: directions that the data don't determine keep their prior covariance."""
    torch.manual_seed(0)
    X, y = torch.randn(3, 8), torch.randn(3)
    net = nn.Linear(8, 1, bias=False)
    model = tacit.variational(net, {"": tacit.LowRank(4)})
    mean, factor = net.weight.detach().clone()[0], model.factors.weight.detach().clone()
    optimizer = tacit.SGD(model, 0.05 if name == "plain" else 0.01, deferred=True, **SETTINGS[name])
    for _ in range(4000):
        optimizer.zero_grad()
        (model(X).squeeze(1) - y).square().mean().backward()
        optimizer.step()
    assert optimizer.defers
    expected = tacit.theory.regression.limit(X, y, tacit.theory.Normal(mean, factor.view(4, 8).T))
    assert_close(net.weight.detach()[0], expected.mean, rtol=0, atol=1e-6)
    assert_close(model.factors.weight.detach().view(4, 8).T, expected.factor, rtol=0, atol=1e-6)


def test_a_repeated_seed_within_a_step_raises_an_error():
    """Recomputed activations would have other weights."""
    model = make_model()
    optimizer = tacit.SGD(model, LR, deferred=True, momentum=0.9)
    train(model, optimizer, 3)
    for _ in range(2):
        torch.manual_seed(9)
        model(torch.ones(4, 5)).square().mean().backward()
        optimizer.step()
    torch.manual_seed(9)
    model(torch.ones(4, 5))
    for again in range(2):
        if again:
            model.settle()
        torch.manual_seed(9)
        with pytest.raises(RuntimeError, match="deferred draws can't be repeated"):
            model(torch.ones(4, 5))


def outputs_of(model, x, call):
    """The outputs of two passes, the first one followed by a change of the noise basis, if any."""
    first = call(model, x)
    model.settle()
    return first, call(model, x)


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointed_activations_are_not_deferred(reentrant):
    """Recomputed with the same draw: equal to training by torch without checkpointing."""
    results = []
    for kept in (False, True):
        model = make_model()
        optimizer = tacit.SGD(model, LR, deferred=True, momentum=0.9)
        torch.manual_seed(3)
        x = torch.randn(6, 5, requires_grad=True)
        train(model, optimizer, 3)
        assert optimizer.defers
        if not kept:
            model.defer_to(None)

        def call(model, x, kept=kept):
            return checkpoint(model, x, use_reentrant=reentrant) if kept else model(x)

        for _ in range(20):
            optimizer.zero_grad()
            sum(output.square().mean() for output in outputs_of(model, x, call)).backward()
            optimizer.step()
            assert not optimizer.defers
        results.append(model.state_dict())
    assert_close(*results, **EXACT)


def test_checkpointed_and_deferred_passes_may_alternate():
    pair = Pair(momentum=0.9)
    for _ in range(20):
        pair.step()
        pair.zero_grad()
        for model in (pair.model, pair.other):
            torch.manual_seed(5)
            output = checkpoint(model, torch.ones(6, 5), use_reentrant=False)
            output.square().mean().backward()
        pair.take_step()
    pair.check()


def test_draws_keep_their_precision_under_autocast():
    torch.set_default_dtype(torch.float32)
    results = []
    for enabled in (False, True):
        model = make_model()
        optimizer = tacit.SGD(model, LR, deferred=True, momentum=0.9)
        drawn = []
        model.module[0].register_forward_pre_hook(
            lambda layer, _, drawn=drawn: drawn.append(layer.weight.detach().clone())
        )
        torch.manual_seed(3)
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            for _ in range(30):
                model(torch.ones(4, 5))
        assert optimizer.within_block
        results.append(torch.stack(drawn))
    assert_close(*results, rtol=0, atol=0)
