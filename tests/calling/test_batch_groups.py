"""All groups in one ordinary pass: only where outputs are those of one call per group."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import tacit
from nets import generator
from tacit.models import MLP, LeNet5, ResNet18

ONE_PASS = "draws in train mode run in one pass"
NOT_ONE_PASS = "draws in train mode do not run in one pass"


def call_by_group(model, x, draws):
    """The slow reference: one call per group, each with its own sampled weights."""
    weights = model.sample(draws, generator=generator(1))
    parts = enumerate(x.chunk(draws))
    return torch.cat(
        [model(part, weights={n: w[k] for n, w in weights.items()}) for k, part in parts]
    )


class Tokens(nn.Module):
    """Linear layers on (batch, time, features)."""

    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(5, 8), nn.LayerNorm(8), nn.Linear(8, 3)

    def forward(self, x):
        return self.last(self.norm(self.first(x)).relu().mean(1))


class TimeFirst(nn.Module):
    """Linear layers on (time, batch, features), although inputs have the batch first."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(5, 8), nn.Linear(8, 3)

    def forward(self, x):
        return self.last(self.first(x.transpose(0, 1)).relu().mean(0))


class Normalised(nn.Module):
    """Uses a weight outside of its layer."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(5, 3)

    def forward(self, x):
        return self.fc(x) / self.fc.weight.norm()


class Convolutions(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Conv2d(2, 4, 3, padding=1, bias=False)
        self.b = nn.Conv2d(4, 6, 3, stride=2, dilation=2, groups=2, padding="valid")
        self.c = nn.Conv2d(6, 3, 2, padding=1, padding_mode="circular")

    def forward(self, x):
        return self.c(self.b(self.a(x).relu()).relu()).flatten(1)


def images():
    return torch.randn(8, 2, 9, 9)


CASES = {
    "MLP": (lambda: MLP(5, (8,), 3), lambda: torch.randn(8, 5), True),
    "tokens": (Tokens, lambda: torch.randn(8, 6, 5), True),
    "convolutions": (Convolutions, images, True),
    "channels last": (
        lambda: Convolutions().to(memory_format=torch.channels_last),
        lambda: images().to(memory_format=torch.channels_last),
        True,
    ),
    "LeNet-5": (LeNet5, lambda: torch.randn(8, 1, 28, 28), True),
    "ResNet-18": (lambda: ResNet18(width=4, norm="group"), lambda: torch.randn(4, 3, 16, 16), True),
    "time first": (TimeFirst, lambda: torch.randn(8, 6, 5), False),
    "time first, as long as the batch": (TimeFirst, lambda: torch.randn(8, 8, 5), False),
    "weight used twice": (Normalised, lambda: torch.randn(8, 5), False),
    "one-dimensional": (
        lambda: nn.Sequential(nn.Conv1d(2, 3, 3), nn.ReLU()), lambda: torch.randn(8, 2, 9), False,
    ),
    "batch norm": (
        lambda: nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4)), lambda: torch.randn(8, 5), None,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_outputs_and_gradients_are_those_of_one_call_per_group(name):
    make, data, one_pass = CASES[name]
    torch.manual_seed(0)
    model = tacit.variational(make(), rank=2, draws=4).double()
    x, results = data().double(), []
    for call in (
        lambda: model(x, generator=generator(1)),
        lambda: call_by_group(model, x, draws=4),
    ):
        model.zero_grad()
        output = call()
        output.square().mean().backward()
        results.append([output, *(p.grad.clone() for p in model.parameters())])
    assert_close(*results)
    assert model.call_notes == {True: [ONE_PASS], False: [NOT_ONE_PASS], None: []}[one_pass]


@pytest.mark.parametrize("tensor", ["weight", "bias"])
def test_a_single_tensor_of_a_layer_may_be_random(tensor):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(5, 4), nn.Tanh())
    model = tacit.variational(net, {f"0.{tensor}": tacit.LowRank(2)}, draws=4)
    x = torch.randn(8, 5)
    assert_close(model(x, generator=generator(1)), call_by_group(model, x, draws=4))
    assert model.call_notes == [ONE_PASS]


def test_a_batch_of_uneven_groups_does_not_end_the_use_of_one_pass():
    model = tacit.variational(MLP(5, (8,), 3), draws=4)
    for size in (8, 10, 12):
        assert model(torch.randn(size, 5)).shape == (size, 3)
        assert model.call_notes == [ONE_PASS]


class Coupled(nn.Module):
    """Subtracts the mean over the batch, in train mode only."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(5, 3)
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x):
        self.count += 1
        h = self.fc(x)
        return h - h.mean(0) if self.training else h


class Zero(nn.Module):
    """Its head is initialized with zeros, so the output says nothing about other layers."""

    def __init__(self):
        super().__init__()
        self.fc, self.head = nn.Linear(5, 4), nn.Linear(4, 3)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, x):
        return self.head(self.fc(x).softmax(0))


def test_a_module_that_couples_examples_does_not_run_in_one_pass():
    model = tacit.variational(Coupled(), draws=4)
    model(torch.randn(8, 5))
    assert model.call_notes == [NOT_ONE_PASS]


def test_the_trial_restores_buffers():
    module = Coupled().eval()
    model = tacit.variational(module)
    model(torch.randn(8, 5), draws=4)
    assert float(module.count) == 1


def test_outputs_of_zero_leave_the_decision_to_a_later_call():
    model = tacit.variational(Zero(), {"fc": tacit.LowRank(2)}, draws=4)
    model(torch.randn(8, 5))
    assert model.call_notes == []
    model.module.head.weight.data.normal_()
    model(torch.randn(8, 5))
    assert model.call_notes == [NOT_ONE_PASS]


def test_a_scalar_in_the_output_is_refused():
    class Scalar(nn.Linear):
        def forward(self, x):
            h = super().forward(x)
            return h, h.mean()

    model = tacit.variational(Scalar(5, 3), draws=4)
    with pytest.raises(ValueError, match="first dimension is the batch"):
        model(torch.randn(8, 5))


def test_dropout_is_active_and_the_modes_of_submodules_are_kept():
    net = nn.Sequential(nn.Linear(5, 200), nn.Dropout(0.5), nn.Identity())
    model = tacit.variational(net, draws=4)
    net[2].eval()
    output = model(torch.randn(8, 5))
    assert 0.3 < float((output == 0).float().mean()) < 0.7
    assert [part.training for part in net] == [True, True, False]
    assert model.call_notes == [ONE_PASS]


def test_a_tied_embedding_does_not_run_in_one_pass():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.out = nn.Embedding(7, 4), nn.Linear(4, 7, bias=False)
            self.out.weight = self.embed.weight

        def forward(self, x):
            return self.out(self.embed(x))

    model = tacit.variational(Tied(), ["embed"], rank=2, draws=2)
    assert model(torch.randint(7, (4, 3))).shape == (4, 3, 7)
    assert model.call_notes == [NOT_ONE_PASS]


def test_a_wrong_call_raises_the_error_of_the_module_in_groups():
    model = tacit.variational(nn.Linear(5, 3), draws=2)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="mat|size|shape"):
            model(torch.randn(4, 6))
        model(torch.randn(4, 5))
    assert model.call_notes == [ONE_PASS]


def test_groups_run_under_autocast():
    model = tacit.variational(MLP(5, (8,), 3), draws=2)
    with torch.autocast("cpu", torch.bfloat16):
        output = model(torch.randn(4, 5))
    assert output.dtype == torch.bfloat16
    output.float().sum().backward()
