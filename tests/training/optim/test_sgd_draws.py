"""The draws of tacit.SGD: their distribution, and when they are repeated."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint

import tacit
from training.optim.optimizer_pair import EXACT, LR, SETTINGS, make_model, train


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


def test_a_repeated_seed_repeats_the_draw():
    model = make_model()
    optimizer = tacit.SGD(model, LR, deferred=True, momentum=0.9)
    train(model, optimizer, 3)
    outputs = []
    for _ in range(3):
        torch.manual_seed(9)
        outputs.append(model(torch.ones(4, 5)))
        outputs[-1].square().mean().backward()
    model.settle()
    torch.manual_seed(9)
    outputs.append(model(torch.ones(4, 5)))
    for output in outputs[1:]:
        assert_close(output, outputs[0], **EXACT)


@pytest.mark.parametrize("reentrant", [True, False])
def test_activation_checkpointing_recomputes_with_the_same_draw(reentrant):
    results = []
    for kept in (False, True):
        model = make_model()
        optimizer = tacit.SGD(model, LR, deferred=True, momentum=0.9)
        torch.manual_seed(3)
        x = torch.randn(6, 5, requires_grad=True)
        for _ in range(20):
            optimizer.zero_grad()
            output = checkpoint(model, x, use_reentrant=reentrant) if kept else model(x)
            output.square().mean().backward()
            optimizer.step()
        results.append(model.state_dict())
    assert_close(*results, **EXACT)


def test_a_pass_can_be_recomputed_after_its_block_was_settled():
    results = []
    for kept in (False, True):
        model = make_model()
        optimizer = tacit.SGD(model, LR, deferred=True, momentum=0.9)
        torch.manual_seed(3)
        x = torch.randn(6, 5, requires_grad=True)
        for _ in range(20):
            optimizer.zero_grad()
            outputs = [
                checkpoint(model, x, use_reentrant=False) if kept else model(x) for _ in range(2)
            ]
            model.settle()
            sum(output.square().mean() for output in outputs).backward()
            optimizer.step()
        results.append(model.state_dict())
    assert_close(*results, **EXACT)


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
