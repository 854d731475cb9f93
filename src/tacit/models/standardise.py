"""Inputs of a table in units of their own spread."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Standardise(nn.Module):
    """A layer without parameters: (x - mean) / std, column by column.

    `tacit.fit` puts one in front of a variational model of a table. Put it in front of a plain
    network yourself.

    Args:
        mean: Means of the columns, (D,).
        std: Their standard deviations, (D,), above 0.

    Examples:
        >>> import torch
        >>> x = torch.tensor([[1.0, 900.0], [3.0, 1100.0]])
        >>> net = torch.nn.Sequential(Standardise.of(x), torch.nn.Linear(2, 1))
        >>> net[0](x)
        tensor([[-1., -1.],
                [ 1.,  1.]])
    """

    mean: Tensor
    std: Tensor

    def __init__(self, mean: Tensor, std: Tensor) -> None:
        super().__init__()
        mean, std = (
            torch.as_tensor(value, dtype=torch.get_default_dtype()) for value in (mean, std)
        )
        if mean.ndim != 1 or mean.shape != std.shape or not (std > 0).all():
            raise ValueError(
                "Standardise: expected means and positive standard deviations of the same shape "
                f"(D,), received shapes {tuple(mean.shape)} and {tuple(std.shape)}."
            )
        self.register_buffer("mean", mean)
        self.register_buffer("std", std)

    @classmethod
    def of(cls, x: Tensor) -> Standardise:
        """Return the layer for a table, (B, D); constant columns become 0."""
        x = torch.as_tensor(x)
        if x.ndim != 2 or not len(x):
            raise ValueError(
                f"Standardise.of: expected a table, (B, D), received {tuple(x.shape)}."
            )
        x = x if x.is_floating_point() else x.double()
        mean, std = x.double().mean(0), x.double().std(0, correction=0)
        return cls(mean, column_units(mean, std, x.dtype))

    def forward(self, x: Tensor) -> Tensor:
        """Return the standardised columns.

        Raises:
            ValueError: If the number of columns is another.
        """
        if x.shape[-1:] != self.mean.shape:
            raise ValueError(
                f"inputs: expected {len(self.mean)} columns, as in training, received the shape "
                f"{tuple(x.shape)}."
            )
        return (x - self.mean) / self.std

    def extra_repr(self) -> str:
        """Return the number of columns."""
        return f"{len(self.mean)} columns"


def column_units(mean: Tensor, std: Tensor, dtype: torch.dtype) -> Tensor:
    """Return standard deviations of columns to divide by, for constant columns their sizes.

    The size of a constant column is its absolute value, at least 1. Divided by 1, another value
    than in training could be millions of units away, and the network multiplies it by weights that
    it has never trained.
    """
    return torch.where(is_constant(mean, std, dtype), mean.abs().clamp_min(1), std)


def positive_std(mean: Tensor, std: Tensor, dtype: torch.dtype) -> Tensor:
    """Return standard deviations to divide by: 1 for values that are constant up to rounding."""
    return torch.where(is_constant(mean, std, dtype), torch.ones_like(std), std)


def is_constant(mean: Tensor, std: Tensor, dtype: torch.dtype) -> Tensor:
    """Return whether a standard deviation is 0 up to rounding of the values."""
    return std <= torch.finfo(dtype).eps * mean.abs()
