"""tacit.SGD takes the steps of torch.optim.SGD with the same draws, for all of its settings."""

import copy

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import tacit
from training.optim.optimizer_pair import EXACT, LR, SETTINGS, Pair


@pytest.mark.parametrize("draws", [1, 2])
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.parametrize("name", SETTINGS)
def test_hundreds_of_steps_with_a_schedule_match_torch(name, weight_decay, draws):
    ranks = (6, 4) if draws == 1 else (12, 8)
    pair = Pair(draws, ranks, weight_decay, **SETTINGS[name])
    start = copy.deepcopy(dict(pair.model.named_parameters()))
    schedules = [torch.optim.lr_scheduler.CosineAnnealingLR(o, 200) for o in pair.both]
    blocks = 0
    for _ in range(200 if name != "maximize" else 40):
        pair.step()
        blocks += pair.ours.deferred_steps == 1  # the first step since the factors were settled
        for schedule in schedules:
            schedule.step()
    assert 2 <= blocks < 20  # each noise basis serves many steps
    pair.check()
    assert all(not torch.equal(p, start[n]) for n, p in pair.model.named_parameters())


def test_settings_may_change_between_steps():
    pair = Pair(momentum=0.9)
    for step in range(40):
        for optimizer in pair.both:
            for group in optimizer.param_groups:
                group["momentum"] = 0.0 if step % 7 == 3 else 0.9
                group["nesterov"] = step % 5 == 0
        pair.step()
    pair.check()


def test_momentum_may_be_switched_on_during_training():
    for weight_decay in (0.0, 0.1):
        pair = Pair(weight_decay=weight_decay, dampening=0.3)
        for step in range(50):
            if step == 5:
                for optimizer in pair.both:
                    for group in optimizer.param_groups:
                        group["momentum"] = 0.9
            pair.step()
        pair.check()


def test_the_learning_rate_may_be_a_tensor_that_changes():
    pair = Pair(momentum=0.9)
    for optimizer in pair.both:
        for group in optimizer.param_groups:
            group["lr"] = torch.tensor(group["lr"])
    schedules = [torch.optim.lr_scheduler.ExponentialLR(o, 0.9) for o in pair.both]
    for _ in range(40):
        pair.step()
        for schedule in schedules:
            schedule.step()
    pair.check()


def test_each_tensor_may_have_its_own_parameter_group():
    pair = Pair(momentum=0.9)
    for optimizer in pair.both:
        for group in list(optimizer.param_groups):
            parameters = dict.__getitem__(group, "params")
            while len(parameters) > 1:
                optimizer.add_param_group({**group, "params": [parameters.pop()]})
        for index, group in enumerate(optimizer.param_groups):
            group["lr"] *= 1 + 0.1 * index
    for _ in range(40):
        pair.step()
    pair.check()


def test_the_number_of_draws_may_change():
    pair = Pair(draws=2, ranks=(12, 8), momentum=0.9)
    for step in range(40):
        pair.model.draws = pair.other.draws = 1 + step // 3 % 2
        pair.step()
    pair.check()


@pytest.mark.parametrize("rank", [4, 16])
@pytest.mark.parametrize("momentum", [0.5, 0.66, 0.9])
def test_rounding_errors_in_single_precision_are_those_of_torch(momentum, rank):
    found = []
    for dtype in (torch.float32, torch.float64):
        pair = Pair(ranks=(rank, rank), momentum=momentum)
        for model in (pair.model, pair.other):
            model.to(dtype)
        for _ in range(40):
            pair.zero_grad()
            for output in pair.outputs(torch.randn(6, 5, generator=pair.data).to(dtype)):
                output.square().mean().backward()
            pair.take_step()
        found.append([_flat(pair.model), _flat(pair.other)])
    (ours, torchs), (exact, _) = found
    assert 0 < (torchs - exact).norm() < 1e-5 * exact.norm()
    assert (ours - exact).norm() < 1.3 * (torchs - exact).norm()


def _flat(model):
    return torch.cat([factor.detach().flatten() for factor in model.factors.parameters()]).double()


def test_foreach_with_nesterov_may_change_gradients_in_place():
    """Torch does so within a step; it must not be mistaken for a change by the user."""
    pair = Pair(momentum=0.9, nesterov=True, foreach=True)
    for _ in range(20):
        pair.step()
    assert pair.ours.deferred_steps == 20
    pair.check()


@pytest.mark.parametrize("draws", [1, 2])
def test_one_step_of_a_convolution_with_channels_last_matches_autograd(draws):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(2, 3, 3), nn.Flatten(), nn.Linear(48, 2))
    net = net.to(memory_format=torch.channels_last)
    model = tacit.variational(net, {"0": tacit.LowRank(9)}, draws=draws)
    other = copy.deepcopy(model)
    optimizer = tacit.SGD(model, LR, deferred=True)
    x = torch.randn(4, 2, 6, 6).to(memory_format=torch.channels_last)
    model(x).square().mean().backward()
    weights = other.distributions["0"].weights(optimizer.last_noise["0"])
    parts = [
        other(part, weights={f"0.{name}": sampled[i] for name, sampled in weights.items()})
        for i, part in enumerate(x.chunk(draws))
    ]
    torch.cat(parts).square().mean().backward()
    assert_close(net[0].weight.grad, other.module[0].weight.grad)
    optimizer.step()
    assert optimizer.deferred_steps == 1
    lr = LR / 9
    for name, factor in other.factors.named_parameters():
        expected = factor - lr * factor.grad
        assert_close(model.factors.get_parameter(name), expected, **EXACT)


def test_a_group_may_mix_parameters_with_and_without_momentum():
    """A parameter that was frozen at first has none; torch's fused step can't handle that."""
    pair = Pair(momentum=0.9)
    for model in (pair.model, pair.other):
        model.module[0].bias.requires_grad_(False)
    pair.step_without_deferral(3)
    for model in (pair.model, pair.other):
        model.module[0].bias.requires_grad_(True)
    pair.step_without_deferral(3)
    pair.check()


def test_a_momentum_in_another_memory_format_is_updated_correctly():
    """Torch's fused step ignores strides: here it would mix up elements."""
    results = []
    for optimizer_class in (tacit.SGD, torch.optim.SGD):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Conv2d(2, 3, 3), nn.Flatten(), nn.Linear(12, 2))
        model = tacit.variational(net, {"2": tacit.LowRank(2)})
        given = model if optimizer_class is tacit.SGD else model.param_groups(LR)
        optimizer = optimizer_class(given, lr=LR, momentum=0.9)
        x, generator = torch.randn(3, 2, 4, 4), torch.Generator()
        for step in range(4):
            if step == 2:
                net[0].to(memory_format=torch.channels_last)  # not its momentum
            optimizer.zero_grad()
            model(x, generator=generator.manual_seed(step)).square().mean().backward()
            optimizer.step()
        results.append(model.state_dict())
    assert_close(*results, **EXACT)
