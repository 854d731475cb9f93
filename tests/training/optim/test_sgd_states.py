"""States, copies and parameter groups of tacit.SGD, and other optimizers of the same model."""

import copy
import pickle

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import tacit
from training.optim.optimizer_pair import EXACT, LR, Pair, make_model, train


def test_loading_a_state_discards_deferred_updates():
    pair = Pair(momentum=0.9)
    start = copy.deepcopy((pair.model.state_dict(), pair.torchs.state_dict()))
    for _ in range(3):
        pair.step()
    assert pair.ours.within_block
    pair.model.load_state_dict(start[0])
    assert_close(pair.model.state_dict(), start[0], rtol=0, atol=0)
    nn.Sequential(pair.model).load_state_dict({f"0.{n}": v for n, v in start[0].items()})
    pair.ours.load_state_dict(start[1])
    pair.other.load_state_dict(start[0])
    pair.torchs.load_state_dict(start[1])
    for _ in range(20):
        pair.step()
    pair.check()


def test_states_are_exchangeable_with_torch():
    pair = Pair(momentum=0.9)
    for _ in range(5):
        pair.step()
    mine, theirs = copy.deepcopy((pair.ours.state_dict(), pair.torchs.state_dict()))
    pair.ours.load_state_dict(theirs)
    pair.torchs.load_state_dict(mine)
    for _ in range(15):
        pair.step()
    pair.check()


def test_a_pickled_copy_of_the_optimizer_works():
    for momentum in (0.0, 0.9):
        pair = Pair(momentum=momentum)
        pair.step()
        model, optimizer = pickle.loads(pickle.dumps((pair.model, pair.ours)))
        train(model, optimizer, 2)
        assert {group["fused"] for group in optimizer.param_groups} == {True}
        assert {group["fused"] for group in optimizer.state_dict()["param_groups"]} == {None}


def test_the_momentum_may_be_cleared_during_training():
    pair = Pair(momentum=0.9)
    for step in range(40):
        pair.step()
        if step % 7 == 3:
            pair.model.settle()
            for optimizer in pair.both:
                optimizer.state.clear()
    pair.check()
    pair.ours.state.clear()  # without settling: this ends the block
    train(pair.model, pair.ours, 40)
    assert all(p.isfinite().all() for p in pair.model.parameters())


@pytest.mark.parametrize("between", ["steps", "backward and step"])
def test_a_momentum_set_during_deferral_replaces_the_deferred_one(between):
    """As in torch; until then the state has no momentum that would be out of date."""
    pair = Pair(momentum=0.9)
    named = dict(pair.other.named_parameters())
    for step in range(20):
        pair.zero_grad()
        pair.backward()
        factors = pair.model.unsettled_factors.named_parameters()
        for name, factor in factors if step % 6 == 4 else ():
            assert "momentum_buffer" not in pair.ours.state[factor]
            other = named[f"factors.{name}"]
            if between == "steps":
                pair.take_step()
            for optimizer, key in ((pair.ours, factor), (pair.torchs, other)):
                optimizer.state[key]["momentum_buffer"] = torch.ones_like(other.detach())
            break
        pair.take_step()
    pair.check()


def test_parameter_groups_may_be_removed_and_added():
    model = make_model()
    optimizer = tacit.SGD(model, LR, deferred=True, momentum=0.9)
    removed = dict.__getitem__(optimizer.param_groups.pop(), "params")
    extra = nn.Parameter(torch.ones(2))
    optimizer.add_param_group({"params": [extra], "lr": LR})
    before = copy.deepcopy(model.state_dict())
    for _ in range(5):
        optimizer.zero_grad()
        (model(torch.ones(4, 5)).square().mean() + extra.sum()).backward()
        optimizer.step()
    after = model.state_dict()
    names = [
        name for name, parameter in model.named_parameters() if any(parameter is p for p in removed)
    ]
    assert [name for name in after if torch.equal(after[name], before[name])] == names
    assert names
    assert not torch.equal(extra, torch.ones(2))


@pytest.mark.parametrize("which", ["parameters", "factors"])
def test_another_optimizer_takes_over_only_after_deferral_has_ended(which):
    """From then on it is exact."""
    pair = Pair(momentum=0.9)
    for _ in range(3):
        pair.step()
    others = [
        torch.optim.Adam(
            {
                "parameters": model.parameters,
                "factors": lambda model=model: model.factors.parameters(),
            }[which](),
            lr=LR,
        )
        for model in (pair.model, pair.other)
    ]
    outputs = pair.outputs(torch.ones(4, 5))
    assert pair.ours.defers
    outputs[0].square().mean().backward()
    with pytest.raises(RuntimeError, match="has not applied all updates"):
        others[0].step()
    pair.model.defer_to(None)
    pair.model.zero_grad()
    for _ in range(9):
        for model, optimizer in zip((pair.model, pair.other), others, strict=True):
            torch.manual_seed(5)
            optimizer.zero_grad()
            model(torch.ones(4, 5)).square().mean().backward()
            optimizer.step()
        assert not pair.ours.defers
    named = dict(pair.other.named_parameters())
    for name, parameter in pair.model.named_parameters():
        assert_close(parameter, named[name], **EXACT)


def test_asking_for_parameter_groups_does_not_end_deferral():
    model = make_model()
    optimizer = tacit.SGD(model, LR, deferred=True)
    train(model, optimizer, 2)
    model.param_groups(LR)
    train(model, optimizer, 2)
    assert optimizer.defers


def test_step_hooks_run_once_per_step():
    torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=LR)
    pair, calls = Pair(), []
    pair.ours.register_step_post_hook(lambda *_: calls.append(1))
    pair.step()
    assert calls == [1]
