"""tacit.SGD takes the steps of torch.optim.SGD, whatever happens around it."""

import copy
import math
import os
import pickle
import signal

import pytest
import torch
from torch import nn
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint

import tacit
from tacit.training.optim import eligibility

LR = 0.02
EXACT = {"rtol": 1e-9, "atol": 1e-11}  # hundreds of steps in float64
SETTINGS = {
    "plain": {},
    "momentum": {"momentum": 0.9},
    "nesterov": {"momentum": 0.9, "nesterov": True},
    "dampening": {"momentum": 0.8, "dampening": 0.3},
    "maximize": {"momentum": 0.5, "maximize": True},
    "small momentum": {"momentum": 0.1},  # nothing is left of it after a turn
}


@pytest.fixture(autouse=True)
def _float64_and_lazy_from_the_first_number(monkeypatch):
    monkeypatch.setattr(eligibility, "WIDE", 0)
    monkeypatch.setattr(eligibility, "SMALL", 0)
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def train(model, optimizer, steps):
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(4, 5)).square().mean().backward()
        optimizer.step()


def make_model(draws=1, ranks=(6, 4)):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3))
    first, last = map(tacit.LowRank, ranks)
    return tacit.variational(
        net, {"0": first, "2": last}, draws=draws, parametrization=tacit.MaximalUpdate()
    )


class Pair:
    """A model under tacit.SGD, and another that follows it with the same noise under torch's."""

    def __init__(self, draws=1, ranks=(6, 4), weight_decay=0.0, **settings):
        self.model, self.other = make_model(draws, ranks), make_model(draws, ranks)
        self.ours = tacit.SGD(self.model, LR, **settings)
        self.torchs = torch.optim.SGD(self.other.param_groups(LR), lr=LR, **settings)
        for optimizer in self.both:
            for group in optimizer.param_groups:
                group["weight_decay"] = weight_decay  # of the factors too
        self.data = torch.Generator().manual_seed(1)

    @property
    def both(self):
        return self.ours, self.torchs

    def outputs(self, x):
        """The outputs of both, with the noise that tacit.SGD had drawn ahead."""
        output = self.model(x)
        count = self.model.draws
        block, first = list(self.model.deferral._passes.values())[-1]
        noise = {
            label: next(iter(factors.values())).directions.noise(first, count, x)
            for label, factors in block.layers.items()
        }
        weights = {
            f"{label}.{name}": sampled
            for label, distribution in self.other.distributions.items()
            for name, sampled in distribution.weights(noise[label]).items()
        }
        groups = x.chunk(count)
        parts = [
            self.other(part, weights={n: w[i] for n, w in weights.items()})
            for i, part in enumerate(groups)
        ]
        return output, torch.cat(parts)

    def backward(self, size=6):
        x = torch.randn(size, 5, generator=self.data)
        y = torch.randn(size, 3, generator=self.data)
        for output in self.outputs(x):
            (output - y).square().mean().backward()

    def zero_grad(self):
        for optimizer in self.both:
            optimizer.zero_grad()

    def take_step(self):
        for optimizer in self.both:
            optimizer.step()

    def step(self):
        self.zero_grad()
        self.backward()
        self.take_step()

    def step_eagerly(self, steps):
        """Steps with a generator, which are not lazy."""
        for step in range(steps):
            self.zero_grad()
            x = torch.randn(6, 5, generator=self.data)
            for model in (self.model, self.other):
                generator = torch.Generator().manual_seed(step)
                model(x, generator=generator).square().mean().backward()
            self.take_step()

    def check(self):
        named = dict(self.other.named_parameters())
        for name, parameter in self.model.named_parameters():
            assert_close(parameter, named[name], msg=lambda m, n=name: f"{n}: {m}", **EXACT)
            ours, torchs = self.ours.state[parameter], self.torchs.state[named[name]]
            assert_close(ours.get("momentum_buffer"), torchs.get("momentum_buffer"), **EXACT)


@pytest.mark.parametrize("draws", [1, 2])
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.parametrize("name", SETTINGS)
def test_hundreds_of_steps_with_a_schedule(name, weight_decay, draws):
    ranks = (6, 4) if draws == 1 else (12, 8)
    pair = Pair(draws, ranks, weight_decay, **SETTINGS[name])
    start = copy.deepcopy(dict(pair.model.named_parameters()))
    schedules = [torch.optim.lr_scheduler.CosineAnnealingLR(o, 200) for o in pair.both]
    blocks = set()
    for _ in range(200 if name != "maximize" else 40):
        pair.step()
        blocks.add(pair.model.deferral._block)
        for schedule in schedules:
            schedule.step()
    assert 2 <= len(blocks) < 20  # directions are kept for many steps
    pair.check()
    assert all(not torch.equal(p, start[n]) for n, p in pair.model.named_parameters())


def test_one_draw_is_unbiased_and_other_calls_are_as_ever():
    """Draws ahead are draws: their moments over many blocks are those of the distribution."""
    model = make_model()
    optimizer = tacit.SGD(model, LR)
    x = torch.randn(1, 5)
    outputs = torch.stack([model(x).detach() for _ in range(4000)])
    assert model.deferral is optimizer._deferred is not None
    expected = model(x, samples=20_000).detach()
    assert_close(outputs.mean(0), expected.mean(0), rtol=0, atol=0.05)
    assert_close(outputs.std(0), expected.std(0), rtol=0.05, atol=0)


@pytest.mark.parametrize("name", ["plain", "momentum", "nesterov"])
def test_linear_regression_ends_where_the_theory_says(name):
    """Theorem 1: directions that take turns keep of the prior what the data don't speak of."""
    torch.manual_seed(0)
    X, y = torch.randn(3, 8), torch.randn(3)
    net = nn.Linear(8, 1, bias=False)
    model = tacit.variational(net, {"": tacit.LowRank(4)})
    mean, factor = net.weight.detach().clone()[0], model.factors.weight.detach().clone()
    optimizer = tacit.SGD(model, 0.05 if name == "plain" else 0.01, **SETTINGS[name])
    for _ in range(4000):
        optimizer.zero_grad()
        (model(X).squeeze(1) - y).square().mean().backward()
        optimizer.step()
    assert model.deferral is not None
    expected = tacit.theory.regression.limit(X, y, tacit.theory.Normal(mean, factor.view(4, 8).T))
    assert_close(net.weight.detach()[0], expected.mean, rtol=0, atol=1e-6)
    assert_close(model.factors.weight.detach().view(4, 8).T, expected.factor, rtol=0, atol=1e-6)


def test_settings_may_change_in_the_middle():
    pair = Pair(momentum=0.9)
    for step in range(40):
        for optimizer in pair.both:
            for group in optimizer.param_groups:
                group["momentum"] = 0.0 if step % 7 == 3 else 0.9
                group["nesterov"] = step % 5 == 0
        pair.step()
    pair.check()


def test_momentum_may_begin_in_the_middle():
    for weight_decay in (0.0, 0.1):
        pair = Pair(weight_decay=weight_decay, dampening=0.3)
        for step in range(50):
            if step == 5:
                for optimizer in pair.both:
                    for group in optimizer.param_groups:
                        group["momentum"] = 0.9
            pair.step()
        pair.check()


def test_a_learning_rate_in_a_tensor_that_changes():
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


def test_every_tensor_in_a_group_of_its_own():
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


@pytest.mark.parametrize("passes", [2, 5, 150])
def test_gradient_accumulation(passes):
    """Also of so many passes that the directions change in between."""
    pair = Pair(momentum=0.9)
    for _ in range(40 if passes < 100 else 3):
        pair.zero_grad()
        for _ in range(passes):
            pair.backward()
        pair.take_step()
    pair.check()


def test_gradients_stay_until_they_are_dropped():
    """Steps without zero_grad, twice the same gradient, and a look at it after the step."""
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


def test_gradients_that_are_set_to_zero():
    pair = Pair(momentum=0.9)
    for step in range(20):
        for optimizer in pair.both:
            optimizer.zero_grad(set_to_none=False)
        if step % 5 != 4:  # then momentum alone
            pair.backward()
        if step % 3 == 0:
            pair.model.settle()
        pair.take_step()
    pair.check()


def test_zero_grad_of_the_model_is_no_look():
    pair = Pair(momentum=0.9)
    blocks = set()
    for _ in range(20):
        pair.model.zero_grad()
        pair.other.zero_grad()
        pair.backward()
        blocks.add(pair.model.deferral._block)
        pair.take_step()
    assert len(blocks) == 1
    pair.check()


def test_forward_before_zero_grad_forms_no_gradient():
    """The loop of many: when directions change, gradients of the step before are still there."""
    model = make_model()
    optimizer = tacit.SGD(model, LR, momentum=0.9)
    for _ in range(70):
        loss = model(torch.ones(4, 5)).square().mean()
        assert all(factor.grad is None for factor in model.unsettled_factors.parameters())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@pytest.mark.parametrize("rank", [4, 16])
@pytest.mark.parametrize("momentum", [0.5, 0.66, 0.9])
def test_single_precision_rounds_as_torch_does(momentum, rank):
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


def test_nesterov_in_torchs_foreach_changes_gradients():
    """In place, in the middle of a step: nobody has changed them behind our back."""
    pair = Pair(momentum=0.9, nesterov=True, foreach=True)
    for _ in range(20):
        pair.step()
    assert not pair.model.deferral._left
    pair.check()


def test_memory_is_given_back_when_somebody_looks():
    model = make_model()
    optimizer = tacit.SGD(model, LR, momentum=0.9)
    train(model, optimizer, 3)
    for _ in range(5):
        model(torch.ones(4, 5))
        model.settle()
    kept = [block for block, _ in model.deferral._passes.values()]
    assert len(kept) == 5
    for factor in (factor for block in kept for factor in block.factors):
        assert not factor._room
        assert factor._weight_room is None
        assert factor._rows.numel() == 0


def test_gradients_of_the_factors_only():
    pair = Pair(momentum=0.9)
    own = [[p for n, p in m.named_parameters() if n.startswith("factors")]
           for m in (pair.model, pair.other)]  # fmt: skip
    for _ in range(20):
        pair.zero_grad()
        outputs = pair.outputs(torch.randn(6, 5, generator=pair.data))
        for output, factors in zip(outputs, own, strict=True):
            output.square().mean().backward(inputs=factors)
        pair.take_step()
    pair.check()


def test_another_dtype_than_the_momentum():
    model = make_model()
    optimizer = tacit.SGD(model, LR, momentum=0.9)
    train(model, optimizer, 3)
    model.float()
    optimizer.zero_grad()
    model(torch.ones(4, 5, dtype=torch.float32)).square().mean().backward()
    optimizer.step()
    assert not optimizer.within_block


def test_hooks_go_with_the_optimizer():
    model = make_model()
    for _ in range(3):
        train(model, tacit.SGD(model, LR), 2)
    assert len(model.module[0].weight._post_accumulate_grad_hooks) == 1
    model.param_groups(LR)
    assert not model.module[0].weight._post_accumulate_grad_hooks


def test_clipping_what_is_not_finite():
    pair = Pair()
    for output in pair.outputs(torch.ones(4, 5)):
        (output * float("nan")).sum().backward()
    assert math.isnan(pair.ours.clip_grad_norm(1.0))
    nn.utils.clip_grad_norm_(pair.other.parameters(), 1.0)
    pair.take_step()
    assert all(p.isnan().all() for p in pair.model.parameters())


def test_clipping_what_is_accumulated():
    pair = Pair(momentum=0.9, ranks=(2, 3))
    for _ in range(40):
        pair.zero_grad()
        for _ in range(4):
            pair.backward()
        expected = nn.utils.clip_grad_norm_(pair.other.parameters(), 2.5)
        assert pair.ours.clip_grad_norm(2.5) == pytest.approx(float(expected))
        pair.take_step()
    pair.check()


@pytest.mark.parametrize("ours", [True, False], ids=["by the optimizer", "by torch"])
def test_clipping(ours):
    pair, norms = Pair(momentum=0.9), []
    for _ in range(40):
        pair.zero_grad()
        pair.backward()
        expected = nn.utils.clip_grad_norm_(pair.other.parameters(), 2.5)
        if ours:
            norm = pair.ours.clip_grad_norm(2.5)
            assert pair.model.deferral._block is not None
        else:
            norm = nn.utils.clip_grad_norm_(pair.model.parameters(), 2.5)
        assert float(norm) == pytest.approx(float(expected))
        norms.append(float(norm))
        pair.take_step()
    pair.check()
    assert min(norms) < 2.5 < max(norms)


LOOKS = {
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
    "param_groups": lambda pair: pair.ours.param_groups[0]["params"],
    "deepcopy of the optimizer": lambda pair: copy.deepcopy(pair.ours),
    "settle": lambda pair: pair.model.settle(),
    "children": lambda pair: list(pair.model.children()),
    "apply": lambda pair: pair.model.apply(lambda module: None),
    "repr": lambda pair: repr(pair.model),
}


@pytest.mark.parametrize("look", LOOKS)
def test_whoever_looks_finds_the_factors_up_to_date(look):
    pair = Pair(momentum=0.9)
    for step in range(30):
        pair.step()
        if step % 4 == 2:
            LOOKS[look](pair)
            kept, other = pair.model.unsettled_factors, pair.other.factors
            for mine, theirs in zip(kept.parameters(), other.parameters(), strict=True):
                assert_close(mine, theirs, **EXACT)
    pair.check()


@pytest.mark.parametrize("look", ["factors", "samples", "parent's parameters", "param_groups"])
def test_looking_between_forward_and_backward_and_step(look):
    pair = Pair(momentum=0.9)
    for step in range(20):
        pair.zero_grad()
        x = torch.randn(6, 5, generator=pair.data)
        output, other = pair.outputs(x)
        if step % 3 == 0:
            LOOKS[look](pair)
        output.square().mean().backward()
        other.square().mean().backward()
        if step % 4 == 0:
            LOOKS[look](pair)
            factors = zip(
                pair.model.unsettled_factors.parameters(),
                pair.other.factors.parameters(),
                strict=True,
            )
            for mine, theirs in factors:
                assert_close(mine.grad, theirs.grad, **EXACT)
        pair.take_step()
    pair.check()


def test_passes_without_backward_and_two_backwards_of_one():
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


def test_gradients_may_be_dropped():
    pair = Pair(momentum=0.9)
    for _ in range(20):
        pair.backward()
        pair.step()  # begins with zero_grad
        pair.backward()
        pair.model.zero_grad()
        pair.other.zero_grad()
        pair.take_step()  # of nothing
    pair.check()


def test_a_closure():
    pair = Pair()

    def closure():
        pair.backward()
        return 3.0

    assert pair.ours.step(closure) == 3.0
    pair.torchs.step()
    pair.check()


def test_gradients_by_another_way_too():
    """A regularizer looks at the factors, and gives them gradients of its own."""
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


@pytest.mark.parametrize("reentrant", [True, False])
def test_activation_checkpointing_uses_the_same_draw(reentrant):
    results = []
    for kept in (False, True):
        model = make_model()
        optimizer = tacit.SGD(model, LR, momentum=0.9)
        torch.manual_seed(3)
        x = torch.randn(6, 5, requires_grad=True)
        for _ in range(20):
            optimizer.zero_grad()
            output = checkpoint(model, x, use_reentrant=reentrant) if kept else model(x)
            output.square().mean().backward()
            optimizer.step()
        results.append(model.state_dict())
    assert_close(*results, **EXACT)


def test_a_state_that_is_loaded_is_the_state():
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


def test_state_may_come_from_torch_and_go_there():
    pair = Pair(momentum=0.9)
    for _ in range(5):
        pair.step()
    mine, theirs = copy.deepcopy((pair.ours.state_dict(), pair.torchs.state_dict()))
    pair.ours.load_state_dict(theirs)
    pair.torchs.load_state_dict(mine)
    for _ in range(15):
        pair.step()
    pair.check()


def test_a_copy_of_the_optimizer_takes_steps():
    for momentum in (0.0, 0.9):
        pair = Pair(momentum=momentum)
        pair.step()
        model, optimizer = pickle.loads(pickle.dumps((pair.model, pair.ours)))
        train(model, optimizer, 2)
        assert {group["fused"] for group in optimizer.param_groups} == {True}
        assert {group["fused"] for group in optimizer.state_dict()["param_groups"]} == {None}


def test_parameters_with_and_without_momentum_in_one_group():
    """Which torch's fused step can't: one of them was frozen in the beginning."""
    pair = Pair(momentum=0.9)
    for model in (pair.model, pair.other):
        model.module[0].bias.requires_grad_(False)
    pair.step_eagerly(3)
    for model in (pair.model, pair.other):
        model.module[0].bias.requires_grad_(True)
    pair.step_eagerly(3)
    pair.check()


def test_tensors_that_lie_in_other_ways():
    """Torch's fused step walks over memory: here it would mix up numbers."""
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


def test_a_graph_of_weights_from_before_a_step_is_noticed():
    model = make_model()
    optimizer = tacit.SGD(model, LR)
    x = torch.ones(4, 5)
    hidden = model.module[2](model.module[1](model.module[0](x)))
    model(x).square().mean().backward()
    optimizer.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        hidden.sum().backward()


def test_momentum_that_is_cleared_in_the_middle():
    pair = Pair(momentum=0.9)
    for step in range(40):
        pair.step()
        if step % 7 == 3:
            pair.model.settle()
            for optimizer in pair.both:
                optimizer.state.clear()
    pair.check()
    pair.ours.state.clear()  # behind the back of a block, which ends with it
    train(pair.model, pair.ours, 40)
    assert all(p.isfinite().all() for p in pair.model.parameters())


def test_draws_may_change_from_block_to_block():
    pair = Pair(draws=2, ranks=(12, 8), momentum=0.9)
    for step in range(40):
        pair.model.draws = pair.other.draws = 1 + step // 3 % 2
        pair.step()
    pair.check()


def test_a_factor_that_somebody_changes():
    """Through a reference from before: the change stays, and there is a warning."""
    model = make_model()
    optimizer = tacit.SGD(model, LR, momentum=0.9)
    factor = model.get_submodule("factors.0").weight
    train(model, optimizer, 3)
    with torch.no_grad():
        factor.fill_(0.1)
    with pytest.warns(UserWarning, match="a factor was changed through a reference from before"):
        model.settle()
    assert_close(model.factors.get_submodule("0").weight, torch.full_like(factor, 0.1))
    train(model, optimizer, 3)
    model.settle()


@pytest.mark.parametrize("which", ["param_groups", "parameters", "factors"])
def test_another_optimizer_takes_over(which):
    """Its steps are exact from the first on."""
    pair = Pair(momentum=0.9)
    for _ in range(3):
        pair.step()
    others = [
        torch.optim.Adam(
            {
                "param_groups": lambda model=model: model.param_groups(LR),
                "parameters": model.parameters,
                "factors": lambda model=model: model.factors.parameters(),
            }[which](),
            lr=LR,
        )
        for model in (pair.model, pair.other)
    ]
    torch.manual_seed(5)
    for _ in range(9):
        if which == "param_groups":
            torch.manual_seed(5)
            outputs = pair.model(torch.ones(4, 5)), None
            torch.manual_seed(5)
            outputs = outputs[0], pair.other(torch.ones(4, 5))
        elif pair.model.deferral._left:
            seeded = []
            for model in (pair.model, pair.other):
                torch.manual_seed(5)
                seeded.append(model(torch.ones(4, 5)))
            outputs = tuple(seeded)
        else:
            outputs = pair.outputs(torch.ones(4, 5))
        for optimizer, output in zip(others, outputs, strict=True):
            optimizer.zero_grad()
            output.square().mean().backward()
            optimizer.step()
    named = dict(pair.other.named_parameters())
    for name, parameter in pair.model.named_parameters():
        assert_close(parameter, named[name], **EXACT)


def test_a_batch_that_is_not_finite_may_be_skipped():
    pair = Pair(momentum=0.9)
    for step in range(20):
        if step % 5 == 3:
            for output in pair.outputs(torch.ones(4, 5)):
                (output * float("nan")).sum().backward()
            pair.zero_grad()
        pair.step()
    pair.check()


def test_gradients_of_some_parameters_only():
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


def test_a_graph_may_be_used_again_after_the_step():
    pair = Pair(momentum=0.9)
    for _ in range(20):
        losses = [o.mean() for o in pair.outputs(torch.randn(6, 5, generator=pair.data))]
        for _ in range(2):
            for optimizer, loss in zip(pair.both, losses, strict=True):
                optimizer.zero_grad()
                loss.backward(retain_graph=True)
                optimizer.step()
    pair.check()


def test_hooks_on_factors_fire():
    model = make_model()
    seen = []
    for factor in model.factors.parameters():
        factor.register_hook(seen.append)
    optimizer = tacit.SGD(model, LR)
    model(torch.ones(4, 5)).square().mean().backward()
    assert len(seen) == 4
    assert not optimizer.within_block


def test_hooks_of_the_step_run_once():
    torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=LR)
    pair, calls = Pair(), []
    pair.ours.register_step_post_hook(lambda *_: calls.append(1))
    pair.step()
    assert calls == [1]


def test_the_same_seed_again_is_the_same_draw():
    model = make_model()
    optimizer = tacit.SGD(model, LR, momentum=0.9)
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


def test_a_checkpointed_pass_whose_block_has_ended():
    results = []
    for kept in (False, True):
        model = make_model()
        optimizer = tacit.SGD(model, LR, momentum=0.9)
        torch.manual_seed(3)
        x = torch.randn(6, 5, requires_grad=True)
        for _ in range(20):
            optimizer.zero_grad()
            outputs = [
                checkpoint(model, x, use_reentrant=False) if kept else model(x) for _ in range(2)
            ]
            model.factors  # noqa: B018 - a look
            sum(output.square().mean() for output in outputs).backward()
            optimizer.step()
        results.append(model.state_dict())
    assert_close(*results, **EXACT)


def test_a_group_may_be_taken_away_or_added():
    model = make_model()
    optimizer = tacit.SGD(model, LR, momentum=0.9)
    left = dict.__getitem__(optimizer.param_groups.pop(), "params")
    extra = nn.Parameter(torch.ones(2))
    optimizer.add_param_group({"params": [extra], "lr": LR})
    before = copy.deepcopy(model.state_dict())
    for _ in range(5):
        optimizer.zero_grad()
        (model(torch.ones(4, 5)).square().mean() + extra.sum()).backward()
        optimizer.step()
    after = model.state_dict()
    names = [
        name for name, parameter in model.named_parameters() if any(parameter is p for p in left)
    ]
    assert [name for name in after if torch.equal(after[name], before[name])] == names
    assert names
    assert not torch.equal(extra, torch.ones(2))


def test_other_tensors_in_place_of_the_parameters():
    model = make_model()
    optimizer = tacit.SGD(model, LR, momentum=0.9)
    train(model, optimizer, 3)
    others = {n: p.detach().clone().requires_grad_() for n, p in model.named_parameters()}
    output = torch.func.functional_call(model, others, (torch.ones(4, 5),))
    output.square().mean().backward()
    assert all(tensor.grad is not None for tensor in others.values())
    optimizer.step()
    optimizer.state_dict()


def test_fabric_sees_what_the_optimizer_knows():
    from lightning_fabric import Fabric

    pair = Pair(momentum=0.9)
    fabric = Fabric(accelerator="cpu", devices=1, precision="64-true")
    model, optimizer = fabric.setup(pair.model, pair.ours)
    for _ in range(20):
        optimizer.zero_grad()
        pair.torchs.zero_grad()
        pair.backward()
        pair.backward()
        norm = fabric.clip_gradients(model, optimizer, max_norm=1.0)
        expected = nn.utils.clip_grad_norm_(pair.other.parameters(), 1.0)
        assert float(norm) == pytest.approx(float(expected))
        optimizer.step()
        pair.torchs.step()
    pair.check()


def test_frozen_means_and_factors_are_left_to_torch():
    for frozen in ("module.0.weight", "factors.0.weight"):
        model = make_model()
        model.get_parameter(frozen).requires_grad_(False)
        optimizer = tacit.SGD(model, LR)
        before = copy.deepcopy(model.state_dict())
        train(model, optimizer, 3)
        after = model.state_dict()
        assert [n for n in after if torch.equal(before[n], after[n])] == [frozen]


@pytest.mark.parametrize("draws", [1, 2])
def test_one_step_is_exact_in_a_convolution_with_channels_last(draws):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(2, 3, 3), nn.Flatten(), nn.Linear(48, 2))
    net = net.to(memory_format=torch.channels_last)
    model = tacit.variational(net, {"0": tacit.LowRank(9)}, draws=draws)
    optimizer = tacit.SGD(model, LR)
    start = model.factors.get_submodule("0").weight.detach().clone()
    x = torch.randn(4, 2, 6, 6).to(memory_format=torch.channels_last)
    model(x).square().mean().backward()
    factor = model.deferral._block.layers["0"]["weight"]
    z, gradients = factor.directions.noise(0, draws, x), factor.received[0].clone()
    assert_close(gradients.sum(0).view(3, 2, 3, 3), net[0].weight.grad)
    optimizer.step()
    lr = LR / 9
    expected = start - lr * (z.T @ gradients).view_as(start)
    assert_close(model.factors.get_submodule("0").weight, expected, **EXACT)


def test_under_autocast_factors_keep_their_precision():
    torch.set_default_dtype(torch.float32)
    results = []
    for enabled in (False, True):
        model = make_model()
        optimizer = tacit.SGD(model, LR, momentum=0.9)
        torch.manual_seed(3)
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            drawn = [model._training_weights((), None)["0.weight"] for _ in range(30)]
        assert optimizer.within_block
        results.append(torch.stack(drawn))
    assert_close(*results, rtol=0, atol=0)


def test_half_precision_with_a_loss_scale_goes_the_usual_way():
    torch.set_default_dtype(torch.float32)
    model = make_model()
    optimizer = tacit.SGD(model, LR)
    with torch.autocast("cpu", torch.float16):
        model(torch.ones(4, 5)).float().square().mean().backward()
    assert not optimizer.within_block
    assert all(factor.grad is not None for factor in model.factors.parameters())


def test_compiled_and_transformed_models_go_the_usual_way():
    model = make_model()
    optimizer = tacit.SGD(model, LR)
    x = torch.ones(4, 5)
    torch.compile(model, fullgraph=True, backend="eager")(x).square().mean().backward()
    assert all(factor.grad is not None for factor in model.factors.parameters())
    optimizer.step()
    parameters = {name: value.detach() for name, value in model.named_parameters()}

    def loss(parameters):
        return torch.func.functional_call(model, parameters, (x,)).square().mean()

    found = torch.func.grad(loss)(parameters)
    assert all(found[name].abs().sum() > 0 for name in found)


def test_small_layers_other_covariances_other_noise_and_many_draws_go_the_usual_way(monkeypatch):
    net = nn.Sequential(nn.Linear(5, 8), nn.Linear(8, 3))
    low, normal = {"0": tacit.LowRank(3)}, tacit.noise.Gaussian()
    for where, draws, noise in [
        ({"0": tacit.Diagonal()}, 1, normal),
        (low, 4, normal),
        (low, 1, tacit.noise.StudentT(5)),
    ]:
        model = tacit.variational(copy.deepcopy(net), where, draws=draws, noise=noise)
        optimizer = tacit.SGD(model, LR)
        model(torch.ones(4, 5)).sum().backward()
        assert not optimizer.within_block
    for threshold in ("SMALL", "WIDE"):
        monkeypatch.setattr(eligibility, threshold, 1000)
        model = make_model()
        optimizer = tacit.SGD(model, LR)
        model(torch.ones(4, 5)).sum().backward()
        assert not optimizer.within_block
        monkeypatch.setattr(eligibility, threshold, 0)


def test_a_dead_optimizer_is_no_optimizer():
    model = make_model()
    optimizer = tacit.SGD(model, LR)
    model(torch.ones(4, 5)).sum().backward()
    optimizer.step()
    assert optimizer.within_block
    del optimizer
    model.zero_grad()
    model(torch.ones(4, 5)).sum().backward()
    assert all(factor.grad is not None for factor in model.factors.parameters())


def test_gradients_of_gradients_are_refused():
    model = make_model()
    optimizer = tacit.SGD(model, LR)
    loss = model(torch.ones(4, 5)).square().mean()
    (found,) = torch.autograd.grad(loss, [model.module[0].weight], create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        found.sum().backward()
    assert optimizer.within_block


def test_a_plain_network_is_refused():
    with pytest.raises(TypeError, match="SGD: expected a variational model, received Linear"):
        tacit.SGD(nn.Linear(2, 2), LR)


def test_fit_stops_and_goes_on_with_the_same_bits(tmp_path, monkeypatch):
    """A stop within a block waits for its end: the run that goes on has the same blocks."""
    data = torch.randn(192, 5), torch.randint(3, (192,))

    def fit(model, **settings):
        return tacit.fit(
            model, data, epochs=3, lr=0.05, batch_size=4, draws=1, progress=False,
            likelihood=tacit.Categorical(), precision="64-true", **settings,
        )  # fmt: skip

    whole, parts, rest = make_model(), make_model(), make_model()
    fit(whole)
    assert whole.deferral is None
    steps, original = [], tacit.SGD.step

    def step(self, closure=None):
        found = original(self, closure)
        steps.append(self.within_block)
        if len(steps) == 3:
            os.kill(os.getpid(), signal.SIGINT)
        return found

    monkeypatch.setattr(tacit.SGD, "step", step)
    with pytest.raises(KeyboardInterrupt):
        fit(parts, checkpoint=tmp_path)
    assert steps[2]
    assert not steps[-1]
    assert 3 < len(steps) < 48  # of an epoch
    fit(rest, checkpoint=tmp_path)
    assert_close(rest.state_dict(), whole.state_dict(), rtol=0, atol=0)


def test_gradients_changed_through_old_references():
    """They would miss the factors: there is a warning, and then it is torch's SGD."""
    model = make_model()
    optimizer = tacit.SGD(model, LR, momentum=0.9)
    parameters = list(model.parameters())

    def clipped():
        for _ in range(5):
            optimizer.zero_grad()
            model(torch.ones(4, 5)).square().mean().backward()
            nn.utils.clip_grad_norm_(parameters, 1e-6)
            optimizer.step()

    with pytest.warns(UserWarning, match="gradients were changed through references"):
        clipped()
    optimizer.state.clear()  # the momentum of the first, unclipped step
    before = copy.deepcopy(model.factors.state_dict())
    clipped()
    assert_close(model.factors.state_dict(), before, rtol=0, atol=1e-6)


def test_gradients_dropped_through_old_references():
    model = make_model()
    optimizer = tacit.SGD(model, LR)
    parameters, before = list(model.parameters()), copy.deepcopy(model.state_dict())
    for _ in range(3):
        model(torch.ones(4, 5)).square().mean().backward()
        for parameter in parameters:
            parameter.grad = None
        optimizer.step()
    assert_close(model.state_dict(), before, rtol=0, atol=0)


def test_gradients_of_factors_by_autograd_grad_are_refused():
    model = make_model()
    tacit_sgd = tacit.SGD(model, LR)
    loss = model(torch.ones(4, 5)).square().mean()
    with pytest.raises(RuntimeError, match="come by backward"):
        torch.autograd.grad(loss, list(model.parameters()))
    assert tacit_sgd is not None
