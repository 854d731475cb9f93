"""Groups in one ordinary pass: the same as the careful way, or not done."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import tacit
from tacit.models import MLP, LeNet5, ResNet18


class Tokens(nn.Module):
    """Linear layers on (batch, time, features)."""

    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(5, 8), nn.LayerNorm(8), nn.Linear(8, 3)

    def forward(self, x):
        return self.last(self.norm(self.first(x)).relu().mean(1))


class Turned(nn.Module):
    """The same with time first: the first dimension that its layers see is not the batch."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(5, 8), nn.Linear(8, 3)

    def forward(self, x):
        return self.last(self.first(x.transpose(0, 1)).relu().mean(0))


class Looks(nn.Module):
    """Uses a weight in another way than its layer does."""

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


def photos():
    return torch.randn(8, 2, 9, 9)


CASES = {
    "MLP": (lambda: MLP(5, (8,), 3), lambda: torch.randn(8, 5), True),
    "tokens": (Tokens, lambda: torch.randn(8, 6, 5), True),
    "convolutions": (Convolutions, photos, True),
    "channels last": (
        lambda: Convolutions().to(memory_format=torch.channels_last),
        lambda: photos().to(memory_format=torch.channels_last),
        True,
    ),
    "LeNet-5": (LeNet5, lambda: torch.randn(8, 1, 28, 28), True),
    "ResNet-18": (lambda: ResNet18(width=4, norm="group"), lambda: torch.randn(4, 3, 16, 16), True),
    "time first": (Turned, lambda: torch.randn(8, 6, 5), False),
    "time first, as long as the batch": (Turned, lambda: torch.randn(8, 8, 5), False),
    "another use": (Looks, lambda: torch.randn(8, 5), False),
    "one-dimensional": (
        lambda: nn.Sequential(nn.Conv1d(2, 3, 3), nn.ReLU()), lambda: torch.randn(8, 2, 9), False,
    ),
    "batch norm": (
        lambda: nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4)), lambda: torch.randn(8, 5), None,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_outputs_and_gradients_are_those_of_the_careful_way(name):
    make, data, folds = CASES[name]
    torch.manual_seed(0)
    model = tacit.variational(make(), rank=2, draws=4).double()
    x, results = data().double(), []
    for known in ({}, {True: False}):
        model._caller.groupable = dict(known)
        model.zero_grad()
        output = model(x, generator=torch.Generator().manual_seed(1))
        output.square().mean().backward()
        results.append([output, *(p.grad.clone() for p in model.parameters())])
        if not known:
            assert model._caller.groupable.get(True) is folds
    assert_close(*results)


@pytest.mark.parametrize("tensor", ["weight", "bias"])
def test_one_random_tensor_of_a_layer(tensor):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(5, 4), nn.Tanh())
    model = tacit.variational(net, {f"0.{tensor}": tacit.LowRank(2)}, draws=4)
    x, results = torch.randn(8, 5), []
    for known in ({}, {True: False}):
        model._caller.groupable = dict(known)
        results.append(model(x, generator=torch.Generator().manual_seed(1)))
    assert_close(*results)


def test_uneven_groups_and_other_batches_afterwards():
    model = tacit.variational(MLP(5, (8,), 3), draws=4)
    assert model(torch.randn(8, 5)).shape == (8, 3)
    assert model._caller.groupable == {True: True}
    assert model(torch.randn(10, 5)).shape == (10, 3)
    assert model(torch.randn(12, 5)).shape == (12, 3)
    assert model._caller.groupable == {True: True}


class Coupled(nn.Module):
    """Looks at the whole batch, in train mode only."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(5, 3)
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x):
        self.count += 1
        h = self.fc(x)
        return h - h.mean(0) if self.training else h


class Zero(nn.Module):
    """A head that starts at zero says nothing about what is before it."""

    def __init__(self):
        super().__init__()
        self.fc, self.head = nn.Linear(5, 4), nn.Linear(4, 3)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, x):
        return self.head(self.fc(x).softmax(0))


def test_what_couples_examples_is_seen_in_train_mode():
    model = tacit.variational(Coupled(), draws=4)
    model(torch.randn(8, 5))
    assert model._caller.groupable == {True: False}


def test_the_trial_leaves_buffers():
    module = Coupled().eval()
    model = tacit.variational(module)
    model(torch.randn(8, 5), draws=4)
    assert float(module.count) == 1  # those of the trial are taken back


def test_outputs_that_dont_tell_are_not_trusted():
    model = tacit.variational(Zero(), {"fc": tacit.LowRank(2)}, draws=4)
    model(torch.randn(8, 5))
    assert model._caller.groupable == {}
    model.module.head.weight.data.normal_()
    model(torch.randn(8, 5))
    assert model._caller.groupable == {True: False}


def test_a_scalar_in_the_output_is_refused_as_ever():
    class Scalar(nn.Linear):
        def forward(self, x):
            h = super().forward(x)
            return h, h.mean()

    model = tacit.variational(Scalar(5, 3), draws=4)
    with pytest.raises(ValueError, match="first dimension is the batch"):
        model(torch.randn(8, 5))


def test_dropout_is_on_and_the_modes_are_left():
    net = nn.Sequential(nn.Linear(5, 200), nn.Dropout(0.5), nn.Identity())
    model = tacit.variational(net, draws=4)
    net[2].eval()
    output = model(torch.randn(8, 5))
    assert 0.3 < float((output == 0).float().mean()) < 0.7
    assert [part.training for part in net] == [True, True, False]
    assert model._caller.groupable == {True: True}


def test_tied_weights_go_the_careful_way():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.out = nn.Embedding(7, 4), nn.Linear(4, 7, bias=False)
            self.out.weight = self.embed.weight

        def forward(self, x):
            return self.out(self.embed(x))

    model = tacit.variational(Tied(), ["embed"], rank=2, draws=2)
    assert model(torch.randint(7, (4, 3))).shape == (4, 3, 7)
    assert model._caller.groupable == {True: False}


def test_a_wrong_call_has_the_modules_own_error():
    model = tacit.variational(nn.Linear(5, 3), draws=2)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="mat|size|shape"):
            model(torch.randn(4, 6))
        model(torch.randn(4, 5))
    assert model._caller.groupable == {True: True}


def test_under_autocast():
    model = tacit.variational(MLP(5, (8,), 3), draws=2)
    with torch.autocast("cpu", torch.bfloat16):
        output = model(torch.randn(4, 5))
    assert output.dtype == torch.bfloat16
    output.float().sum().backward()
