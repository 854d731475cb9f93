"""Modules with structured inputs and outputs, buffers, and parameters outside of layers."""

import pytest
import torch
from torch import nn

import tacit
from nets import Bare, Output, Structured, TwoInputs, force_loop
from tacit import Diagonal, LowRank

X = torch.linspace(-1, 1, 24).reshape(6, 4)


def test_tensors_may_be_keyword_arguments_and_outputs_dicts():
    model = tacit.variational(TwoInputs(), ["left", "right"], rank=2)
    context = torch.randn(6, 2)
    output = model(X[:, :3], context=context, scale=2.0, samples=5)
    assert set(output) == {"logits"}
    assert output["logits"].shape == (5, 6, 4)
    assert model(X[:, :3], draws=2)["logits"].shape == (6, 4)


@pytest.mark.parametrize("loop", [False, True])
def test_inputs_may_be_dicts_and_outputs_dataclasses(loop):
    model = tacit.variational(Structured())
    if loop:
        force_loop(model)
    output = model({"x": X[:, :3], "id": "a"}, samples=4, chunk_size=3)
    assert bool(model.call_notes) == loop
    assert isinstance(output, Output)
    assert output.logits.shape == (4, 6, 2)
    assert [tuple(h.shape) for h in output.hidden] == [(4, 6, 5), (4, 6, 5)]
    assert (output.name, output.nothing) == ("structured", None)
    grouped = model({"x": X[:, :3]}, draws=4)
    assert grouped.logits.shape == (6, 2)


def test_an_output_that_does_not_depend_on_random_weights_is_repeated():
    model = tacit.variational(Structured(), {"last": LowRank(2)})
    output = model({"x": X[:, :3]}, samples=4)
    assert torch.equal(output.hidden[0][0], output.hidden[0][3])


def test_packed_sequences_are_accepted():
    packed = nn.utils.rnn.pack_sequence([torch.randn(3, 4), torch.randn(2, 4)])

    class Last(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = nn.GRU(4, 5)

        def forward(self, packed):
            return self.rnn(packed)[1]

    model = tacit.variational(Last())
    assert model(packed, samples=6).shape == (6, 1, 2, 5)
    with torch.no_grad():
        assert model.eval()(packed, samples=6).shape == (6, 1, 2, 5)


@pytest.mark.parametrize("returned", [torch.distributions.Normal, lambda y, s: object()])
def test_outputs_that_cannot_be_stacked_are_refused_by_type(returned):
    class Opaque(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 3)

        def forward(self, x):
            return returned(self.linear(x), torch.ones(3))

    model = tacit.variational(Opaque())
    name = type(model(X)).__name__  # a single draw may return anything
    with pytest.raises(ValueError, match=f"module returned a {name}, which can't be stacked"):
        model(X, samples=2)


def test_numbers_that_differ_between_samples_are_refused():
    class Number(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 3)

        def forward(self, x):
            y = self.linear(x)
            return y, y.sum().item()

    with pytest.raises(ValueError, match="for two samples; let it return a tensor"):
        tacit.variational(Number())(X, samples=2)


def test_a_module_that_replaces_a_buffer_runs_in_a_loop():
    class Average(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 3)
            self.register_buffer("average", torch.zeros(3))

        def forward(self, x):
            y = self.linear(x)
            self.average = 0.9 * self.average + 0.1 * y.detach().mean(0)
            return y

    model = tacit.variational(Average())
    assert model(X, samples=5).shape == (5, 6, 3)
    assert model.module.average.shape == (3,)
    assert torch.equal(model.eval()(X), model.module(X))
    assert "forward replaces the buffer 'average'" in repr(model)


def test_parameters_outside_of_layers_can_be_random():
    model = tacit.variational(Bare(), {"token": LowRank(2), "gain": Diagonal()})
    assert model(torch.randn(2, 3, 4), samples=5).shape == (5, 2, 3, 2)
