"""Gradients under tacit.SGD: accumulated, dropped, clipped, partial, and from several sources."""

import math

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import tacit
from training.optim.optimizer_pair import EXACT, LR, Pair, make_model


@pytest.mark.parametrize("passes", [2, 5, 150])
def test_gradients_accumulate_over_passes(passes):
    """Including more passes than a block can have."""
    pair = Pair(momentum=0.9)
    for _ in range(40 if passes < 100 else 3):
        pair.zero_grad()
        for _ in range(passes):
            pair.backward()
        pair.take_step()
    pair.check()


def test_gradients_persist_until_they_are_dropped():
    """Steps without zero_grad, repeated steps, and access to gradients after a step."""
    pair = Pair(momentum=0.9)
    for step in range(60):
        if step % 3 == 0:
            pair.zero_grad()
        pair.backward()
        pair.take_step()
        if step % 7 == 0:
            pair.take_step()
        if step % 5 == 0:
            theirs = dict(pair.other.named_parameters())
            for name, parameter in pair.model.named_parameters():
                assert_close(parameter.grad, theirs[name].grad, **EXACT)
    pair.check()


def test_gradients_may_be_set_to_zero_instead_of_none():
    pair = Pair(momentum=0.9)
    for step in range(20):
        for optimizer in pair.both:
            optimizer.zero_grad(set_to_none=False)
        if step % 5 != 4:  # else momentum alone moves the parameters
            pair.backward()
        if step % 3 == 0:
            pair.model.settle()
        pair.take_step()
    pair.check()


def test_gradients_may_be_dropped_before_the_step():
    pair = Pair(momentum=0.9)
    for _ in range(20):
        pair.backward()
        pair.step()  # begins with zero_grad
        pair.backward()
        pair.model.zero_grad()
        pair.other.zero_grad()
        pair.take_step()  # without gradients
    pair.check()


def test_zero_grad_of_the_model_settles_and_is_exact():
    pair = Pair(momentum=0.9)
    for _ in range(20):
        pair.model.zero_grad()
        pair.other.zero_grad()
        pair.backward()
        pair.take_step()
    pair.check()


def test_a_forward_pass_before_zero_grad_is_exact():
    """The order of tacit.fit: gradients of the last step are still there when a block begins."""
    pair = Pair(momentum=0.9)
    deferred = 0
    for _ in range(70):
        outputs = pair.outputs(torch.randn(6, 5, generator=pair.data))
        pair.zero_grad()
        for output in outputs:
            output.square().mean().backward()
        pair.take_step()
        deferred += pair.ours.defers
    assert deferred == 70
    pair.check()


def test_a_batch_with_nan_gradients_may_be_skipped():
    pair = Pair(momentum=0.9)
    for step in range(20):
        if step % 5 == 3:
            for output in pair.outputs(torch.ones(4, 5)):
                (output * float("nan")).sum().backward()
            pair.zero_grad()
        pair.step()
    pair.check()


def test_a_closure_is_called_before_the_step():
    pair = Pair()

    def closure():
        pair.backward()
        return 3.0

    assert pair.ours.step(closure) == 3.0
    pair.torchs.step()
    pair.check()


@pytest.mark.parametrize("ours", [True, False], ids=["by the optimizer", "by torch"])
def test_clipping_matches_torch(ours):
    pair, norms = Pair(momentum=0.9), []
    for _ in range(40):
        pair.zero_grad()
        pair.backward()
        expected = nn.utils.clip_grad_norm_(pair.other.parameters(), 2.5)
        if ours:
            norm = pair.ours.clip_grad_norm(2.5)
            assert pair.ours.defers
        else:
            norm = nn.utils.clip_grad_norm_(pair.model.parameters(), 2.5)
        assert float(norm) == pytest.approx(float(expected))
        norms.append(float(norm))
        pair.take_step()
    pair.check()
    assert min(norms) < 2.5 < max(norms)


def test_clipping_accumulated_gradients_matches_torch():
    pair = Pair(momentum=0.9, ranks=(2, 3))
    for _ in range(40):
        pair.zero_grad()
        for _ in range(4):
            pair.backward()
        expected = nn.utils.clip_grad_norm_(pair.other.parameters(), 2.5)
        assert pair.ours.clip_grad_norm(2.5) == pytest.approx(float(expected))
        pair.take_step()
    pair.check()


def test_clipping_nan_gradients_gives_nan_as_in_torch():
    pair = Pair()
    for output in pair.outputs(torch.ones(4, 5)):
        (output * float("nan")).sum().backward()
    assert math.isnan(pair.ours.clip_grad_norm(1.0))
    nn.utils.clip_grad_norm_(pair.other.parameters(), 1.0)
    pair.take_step()
    assert all(p.isnan().all() for p in pair.model.parameters())


def test_fabric_clips_all_gradients():
    from lightning_fabric import Fabric

    pair = Pair(momentum=0.9)
    fabric = Fabric(accelerator="cpu", devices=1, precision="64-true")
    model, optimizer = fabric.setup(pair.model, pair.ours)
    for _ in range(20):
        optimizer.zero_grad()
        pair.torchs.zero_grad()
        pair.backward()
        pair.backward()
        pair.model.settle()  # Fabric takes the parameters from the optimizer
        norm = fabric.clip_gradients(model, optimizer, max_norm=1.0)
        expected = nn.utils.clip_grad_norm_(pair.other.parameters(), 1.0)
        assert float(norm) == pytest.approx(float(expected))
        optimizer.step()
        pair.torchs.step()
    pair.check()


def test_passes_may_have_no_backward_or_two():
    pair = Pair(momentum=0.9)
    for _ in range(20):
        pair.zero_grad()
        with torch.no_grad():
            pair.model(torch.ones(2, 5))
        pair.model(torch.ones(2, 5))
        for output in pair.outputs(torch.randn(6, 5, generator=pair.data)):
            output.square().mean().backward(retain_graph=True)
            output.mean().backward()
        pair.take_step()
    pair.check()


def test_a_graph_may_be_reused_after_the_step():
    pair = Pair(momentum=0.9)
    for _ in range(20):
        losses = [o.mean() for o in pair.outputs(torch.randn(6, 5, generator=pair.data))]
        for _ in range(2):
            for optimizer, loss in zip(pair.both, losses, strict=True):
                optimizer.zero_grad()
                loss.backward(retain_graph=True)
                optimizer.step()
    pair.check()


def test_backward_may_be_restricted_to_the_factors():
    pair = Pair(momentum=0.9)
    for _ in range(20):
        pair.zero_grad()
        outputs = pair.outputs(torch.randn(6, 5, generator=pair.data))
        for model, output in zip((pair.model, pair.other), outputs, strict=True):
            output.square().mean().backward(inputs=list(model.factors.parameters()))
        pair.take_step()
    pair.check()


def test_backward_may_be_restricted_to_some_means():
    pair = Pair(momentum=0.9)
    for _ in range(20):
        pair.zero_grad()
        models = pair.model, pair.other
        outputs = pair.outputs(torch.randn(6, 5, generator=pair.data))
        for model, output in zip(models, outputs, strict=True):
            loss = output.square().mean()
            torch.autograd.grad(loss, [model.module[0].weight], retain_graph=True)
            loss.backward(retain_graph=True, inputs=[model.module[0].bias])
            loss.backward()
        pair.take_step()
    pair.check()


def test_gradients_of_a_regularizer_are_added():
    """A regularizer accesses the factors and contributes gradients of its own."""
    pair = Pair(momentum=0.9)
    objectives = [tacit.GVI(m.prior(), 0.1) for m in (pair.model, pair.other)]
    for _ in range(20):
        pair.zero_grad()
        outputs = pair.outputs(torch.randn(6, 5, generator=pair.data))
        models = pair.model, pair.other
        for objective, output, model in zip(objectives, outputs, models, strict=True):
            objective(output.square().mean(), model, data_size=10).backward()
        pair.take_step()
    pair.check()


def test_second_derivatives_raise_an_error():
    model = make_model()
    optimizer = tacit.SGD(model, LR, deferred=True)
    loss = model(torch.ones(4, 5)).square().mean()
    (found,) = torch.autograd.grad(loss, [model.module[0].weight], create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        found.sum().backward()
    assert optimizer.within_block


def test_autograd_grad_of_factors_raises_an_error():
    model = make_model()
    optimizer = tacit.SGD(model, LR, deferred=True)
    loss = model(torch.ones(4, 5)).square().mean()
    assert optimizer.within_block
    with pytest.raises(RuntimeError, match=r"come from backward\(\)"):
        torch.autograd.grad(loss, list(model.parameters()))
