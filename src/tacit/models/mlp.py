"""The multilayer perceptron."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

from torch import nn

from tacit._support import checks
from tacit.models.base import Stack


class MLP(Stack):
    """A multilayer perceptron with ReLU; inputs are flattened.

    Args:
        inputs: Number of input features.
        hidden: Width of each hidden layer.
        outputs: Number of outputs.

    Examples:
        >>> import torch
        >>> MLP(64, [128, 128], 10)(torch.zeros(2, 1, 8, 8)).shape
        torch.Size([2, 10])
    """

    def __init__(self, inputs: int, hidden: Sequence[int], outputs: int) -> None:
        if not isinstance(hidden, Iterable):
            raise TypeError(f"MLP(hidden): expected a list of widths, received {hidden!r}.")
        sizes = [checks.positive_integer("MLP", size) for size in (inputs, *hidden, outputs)]
        layers: list[nn.Module] = [nn.Flatten()]
        for fan_in, fan_out in pairwise(sizes):
            layers += [nn.Linear(fan_in, fan_out), nn.ReLU()]
        super().__init__(*layers[:-1])
        first, *widths, last = sizes  # Python integers, even if given as NumPy integers
        self.arguments = {"inputs": first, "hidden": widths, "outputs": last}
