"""Small networks for the tests, and helpers for calling them."""

import dataclasses
from itertools import pairwise

import torch
from torch import nn

from tacit._support.trees import tensors_in


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def mlp(*widths, dropout=0.0):
    layers = []
    for fan_in, fan_out in pairwise(widths):
        layers += [nn.Linear(fan_in, fan_out), nn.Tanh(), nn.Dropout(dropout)]
    return nn.Sequential(*layers[:-2])


def cnn(norm):
    return nn.Sequential(nn.Conv2d(1, 4, 3), norm(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 3))


class TwoInputs(nn.Module):
    """Takes a tensor and a keyword tensor, returns a dict."""

    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Linear(3, 4), nn.Linear(2, 4)

    def forward(self, x, *, context=None, scale=1.0):
        hidden = self.left(x) * scale
        return {"logits": hidden if context is None else hidden + self.right(context)}


@dataclasses.dataclass(frozen=True)
class Output:
    logits: torch.Tensor
    hidden: tuple[torch.Tensor, ...]
    name: str
    nothing: None = None


class Structured(nn.Module):
    """Takes a dict, returns a frozen dataclass with a tuple and with values that aren't tensors."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(3, 5), nn.Linear(5, 2)

    def forward(self, batch):
        hidden = self.first(batch["x"]).relu()
        return Output(self.last(hidden), (hidden, hidden**2), "structured")


class Tied(nn.Module):
    """A language model whose output layer is tied to its embedding."""

    def __init__(self, words=11, width=6):
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.body = nn.Linear(width, width)
        self.head = nn.Linear(width, words)
        self.head.weight = self.embedding.weight

    def forward(self, words):
        return self.head(self.body(self.embedding(words)).tanh())


class Branching(nn.Module):
    """Branches on the value of a tensor, which vmap can't do."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 2)

    def forward(self, x):
        y = self.linear(x)
        return y if y.sum().item() > 0 else -y


class Bare(nn.Module):
    """Parameters that belong to no layer, and a linear layer."""

    def __init__(self):
        super().__init__()
        self.token = nn.Parameter(torch.zeros(1, 1, 4))
        self.gain = nn.Parameter(torch.ones(()))
        self.linear = nn.Linear(4, 2)

    def forward(self, x):
        return self.linear(x + self.token) * self.gain


def force_loop(model):
    """Make the wrapped module read a value of its output, so that vmap can't run it."""
    model.module.register_forward_hook(_read_value)


def _read_value(_module, _args, output):
    tensors_in(output)[0].sum().item()
