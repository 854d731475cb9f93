"""Deferred updates are settled before any access; stale references are detected where possible."""

import copy
import pickle
import weakref

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import tacit
from training.optim.optimizer_pair import EXACT, LR, Pair, make_model, train

ACCESSES = {
    "factors": lambda pair: pair.model.factors,
    "parameters": lambda pair: list(pair.model.parameters()),
    "state_dict": lambda pair: pair.model.state_dict(),
    "distributions": lambda pair: pair.model.distributions,
    "samples": lambda pair: pair.model(torch.ones(2, 5), samples=2),
    "generator": lambda pair: pair.model(torch.ones(2, 5), generator=torch.Generator()),
    "deepcopy": lambda pair: copy.deepcopy(pair.model),
    "pickle": lambda pair: pickle.dumps(pair.model),
    "to": lambda pair: pair.model.to(torch.float64),
    "inference": lambda pair: torch.inference_mode()(pair.model)(torch.ones(2, 5)),
    "optimizer": lambda pair: pair.ours.state_dict(),
    "parent": lambda pair: nn.Sequential(pair.model).state_dict(),
    "parent's parameters": lambda pair: list(nn.Sequential(pair.model).parameters()),
    "deepcopy of the optimizer": lambda pair: copy.deepcopy(pair.ours),
    "settle": lambda pair: pair.model.settle(),
    "children": lambda pair: list(pair.model.children()),
    "apply": lambda pair: pair.model.apply(lambda module: None),
    "repr": lambda pair: repr(pair.model),
}


@pytest.mark.parametrize("access", ACCESSES)
def test_access_finds_settled_factors(access):
    pair = Pair(momentum=0.9)
    for step in range(30):
        pair.step()
        if step % 4 == 2:
            ACCESSES[access](pair)
            kept, other = pair.model.unsettled_factors, pair.other.factors
            for mine, theirs in zip(kept.parameters(), other.parameters(), strict=True):
                assert_close(mine, theirs, **EXACT)
    pair.check()


@pytest.mark.parametrize("access", ["factors", "samples", "parent's parameters"])
def test_access_between_forward_backward_and_step_is_exact(access):
    pair = Pair(momentum=0.9)
    for step in range(20):
        pair.zero_grad()
        x = torch.randn(6, 5, generator=pair.data)
        output, other = pair.outputs(x)
        if step % 3 == 0:
            ACCESSES[access](pair)
        output.square().mean().backward()
        other.square().mean().backward()
        if step % 4 == 0:
            ACCESSES[access](pair)
            factors = zip(
                pair.model.unsettled_factors.parameters(),
                pair.other.factors.parameters(),
                strict=True,
            )
            for mine, theirs in factors:
                assert_close(mine.grad, theirs.grad, **EXACT)
        pair.take_step()
    pair.check()


def test_settling_frees_the_memory_of_deferral():
    model = make_model()
    optimizer = tacit.SGD(model, LR, deferred=True, momentum=0.9)
    train(model, optimizer, 3)
    output = model(torch.ones(4, 5))  # its graph knows the rotated factors
    rows = optimizer._deferred.layers["0"]["weight"]._rows
    rotated = [weakref.ref(rows.values), weakref.ref(rows.momenta)]
    del rows
    assert all(tensor() is not None for tensor in rotated)
    model.settle()
    assert all(tensor() is None for tensor in rotated)
    output.sum().backward()
    assert all(factor.grad is not None for factor in model.factors.parameters())


USES = {
    "reading": lambda factor: factor + 1,
    "averaging": lambda factor: torch.zeros(1).lerp(factor, 0.1),
    "changing": lambda factor: factor.fill_(0.1),
    "editing data": lambda factor: factor.data.fill_(0.1),
    "clipping": lambda factor: nn.utils.clip_grad_norm_([factor], 1e-6),
    "dropping its gradient": lambda factor: setattr(factor, "grad", None),
    "logging its gradient": lambda factor: factor.grad.norm(),
    "printing": repr,
    "another optimizer": lambda factor: torch.optim.Adam([factor], lr=LR),
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_a_factor_kept_from_earlier_cannot_be_used_until_it_is_settled(use):
    model = make_model()
    optimizer = tacit.SGD(model, LR, deferred=True, momentum=0.9)
    factor = model.get_submodule("factors.0").weight
    train(model, optimizer, 3)
    model(torch.ones(4, 5)).square().mean().backward()
    with torch.no_grad(), pytest.raises(RuntimeError, match="has not applied all updates"):
        use(factor)
    model.settle()
    assert type(factor) is nn.Parameter
    assert factor.grad.isfinite().all()


def test_by_default_kept_references_are_what_torch_makes_of_them():
    """Clipping, dropping and averaging through a kept list, as with `torch.optim.SGD`."""
    models = [make_model(), make_model()]
    models[1].load_state_dict(models[0].state_dict())
    optimizers = [
        tacit.SGD(models[0], LR, momentum=0.9),
        torch.optim.SGD(models[1].param_groups(LR), lr=LR, momentum=0.9),
    ]
    averages = []
    for model, optimizer in zip(models, optimizers, strict=True):
        parameters = list(model.parameters())
        average = [parameter.detach().clone() for parameter in parameters]
        torch.manual_seed(0)
        for _ in range(6):
            for parameter in parameters:
                parameter.grad = None
            model(torch.ones(4, 5)).square().mean().backward()
            nn.utils.clip_grad_norm_(parameters, 0.1)
            optimizer.step()
            for kept, parameter in zip(average, parameters, strict=True):
                kept.lerp_(parameter.detach(), 0.1)
        averages.append(average)
    assert not optimizers[0].defers
    assert_close(averages[0], averages[1], **EXACT)
    assert_close(models[0].state_dict(), models[1].state_dict(), **EXACT)


def test_autograd_detects_a_graph_of_weights_from_before_a_step():
    model = make_model()
    optimizer = tacit.SGD(model, LR, deferred=True)
    x = torch.ones(4, 5)
    hidden = model.module[2](model.module[1](model.module[0](x)))
    model(x).square().mean().backward()
    optimizer.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        hidden.sum().backward()


def test_functional_call_gives_gradients_to_the_tensors_passed_in():
    model = make_model()
    optimizer = tacit.SGD(model, LR, deferred=True, momentum=0.9)
    train(model, optimizer, 3)
    others = {n: p.detach().clone().requires_grad_() for n, p in model.named_parameters()}
    output = torch.func.functional_call(model, others, (torch.ones(4, 5),))
    output.square().mean().backward()
    assert all(tensor.grad is not None for tensor in others.values())
    optimizer.step()
    optimizer.state_dict()


def test_gradients_are_formed_after_the_optimizer_is_deleted():
    model = make_model()
    optimizer = tacit.SGD(model, LR, deferred=True)
    model(torch.ones(4, 5)).sum().backward()
    optimizer.step()
    assert optimizer.within_block
    del optimizer
    model.zero_grad()
    model(torch.ones(4, 5)).sum().backward()
    assert all(factor.grad is not None for factor in model.factors.parameters())
