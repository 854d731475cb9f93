"""Small networks of many kinds for the tests."""

import dataclasses
from itertools import pairwise

import torch
from torch import nn


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
    """Takes a dict, returns a frozen dataclass with a tuple and with things that are no tensors."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(3, 5), nn.Linear(5, 2)

    def forward(self, batch):
        hidden = self.first(batch["x"]).relu()
        return Output(self.last(hidden), (hidden, hidden**2), "structured")


class Tied(nn.Module):
    """A language model whose output layer is its embedding."""

    def __init__(self, words=11, width=6):
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.body = nn.Linear(width, width)
        self.head = nn.Linear(width, words)
        self.head.weight = self.embedding.weight

    def forward(self, words):
        return self.head(self.body(self.embedding(words)).tanh())


class Branching(nn.Module):
    """vmap can't run it: it looks at a value."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 2)

    def forward(self, x):
        y = self.linear(x)
        return y if y.sum().item() > 0 else -y


class Bare(nn.Module):
    """Parameters that belong to no layer, beside one that does."""

    def __init__(self):
        super().__init__()
        self.token = nn.Parameter(torch.zeros(1, 1, 4))
        self.gain = nn.Parameter(torch.ones(()))
        self.linear = nn.Linear(4, 2)

    def forward(self, x):
        return self.linear(x + self.token) * self.gain


def force_loop(model, loop=True):
    """Let samples and draws of a variational model run in a loop instead of under vmap."""
    kinds = [(cut, training) for cut in (False, True) for training in (False, True)]
    model._caller.obstacles = dict.fromkeys(kinds, "a test") if loop else {}
