"""A model under tacit.SGD beside the same model under torch.optim.SGD, with the same noise."""

import torch
from torch import nn
from torch.testing import assert_close

import tacit

LR = 0.02
EXACT = {"rtol": 1e-9, "atol": 1e-11}  # hundreds of steps in float64
SETTINGS = {
    "plain": {},
    "momentum": {"momentum": 0.9},
    "nesterov": {"momentum": 0.9, "nesterov": True},
    "dampening": {"momentum": 0.8, "dampening": 0.3},
    "maximize": {"momentum": 0.5, "maximize": True},
    "small momentum": {"momentum": 0.1},  # vanishes before a row's next turn
}


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
    """A model under tacit.SGD, and a copy that follows with the same noise under torch's SGD."""

    def __init__(self, draws=1, ranks=(6, 4), weight_decay=0.0, **settings):
        self.model, self.other = make_model(draws, ranks), make_model(draws, ranks)
        self.ours = tacit.SGD(self.model, LR, deferred=True, **settings)
        self.torchs = torch.optim.SGD(self.other.param_groups(LR), lr=LR, **settings)
        for optimizer in self.both:
            for group in optimizer.param_groups:
                group["weight_decay"] = weight_decay  # for the factors too
        self.data = torch.Generator().manual_seed(1)

    @property
    def both(self):
        return self.ours, self.torchs

    def outputs(self, x):
        """The outputs of both models, with the noise that tacit.SGD drew."""
        output = self.model(x)
        noise = self.ours.last_noise
        weights = {
            f"{label}.{name}": sampled
            for label, distribution in self.other.distributions.items()
            for name, sampled in distribution.weights(noise[label]).items()
        }
        parts = [
            self.other(part, weights={n: w[i] for n, w in weights.items()})
            for i, part in enumerate(x.chunk(self.model.draws))
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

    def step_without_deferral(self, steps):
        """Take steps with a generator, which rules out deferral."""
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
