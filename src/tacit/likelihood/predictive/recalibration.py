"""Increasing maps of predicted probabilities: isotonic recalibration."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class ProbabilityMap:
    """Increasing, piecewise-linear maps of probabilities, one for each output or class.

    They are constant outside their knots, and stay in double precision when predictions are moved
    to another dtype.

    Args:
        knots: Arguments and values, (..., 2, K), both nondecreasing. A map with fewer knots repeats
            its last one.

    Examples:
        >>> import torch
        >>> squeezed = ProbabilityMap(torch.tensor([[0.0, 0.5, 1.0], [0.0, 0.8, 1.0]]))
        >>> squeezed(torch.tensor([0.25, 0.75])), squeezed.inverse(0.9)
        (tensor([0.4000, 0.9000]), tensor(0.7500, dtype=torch.float64))
    """

    knots: Tensor

    def __post_init__(self) -> None:
        shape = tuple(self.knots.shape)
        if len(shape) < 2 or shape[-2] != 2 or shape[-1] < 2:
            raise ValueError(
                "ProbabilityMap: expected knots of shape (..., 2, K) with K of at least 2, "
                f"received {shape}."
            )
        inside = (self.knots >= 0) & (self.knots <= 1)
        if not (inside.all() and (self.knots.diff(dim=-1) >= 0).all()):  # NaN included
            raise ValueError("ProbabilityMap: expected nondecreasing numbers from 0 to 1.")

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the maps, () for a single one."""
        return tuple(self.knots.shape[:-2])

    def __call__(self, probs: Tensor) -> Tensor:
        """Return the mapped probabilities, (B, ...)."""
        x, y = self._arguments_and_values(probs)
        found = interpolated(probs.movedim(0, -1), x, y)
        return found.movedim(-1, 0).to(probs.dtype)

    def normalised(self, log_probs: Tensor) -> Tensor:
        """Return log-probabilities of classes, (..., C), from their mapped probabilities.

        The maps of the classes are independent of each other, so their sum is normalised (Zadrozny
        and Elkan, 2002).
        """
        if self.shape != log_probs.shape[-1:]:
            raise ValueError(
                f"recalibration: expected maps of {log_probs.shape[-1]} classes, received maps of "
                f"shape {self.shape}."
            )
        probs = log_probs.double().exp()
        mapped = self(probs.reshape(-1, probs.shape[-1])).reshape(probs.shape)
        return (mapped / mapped.sum(-1, keepdim=True)).log().to(log_probs.dtype)

    def slope(self, probs: Tensor) -> Tensor:
        """Return the derivatives at probabilities, (B, ...); at a knot, the one on its left."""
        x, y = self._arguments_and_values(probs)
        right = _right_ends(probs.movedim(0, -1).double(), x)
        found = y.diff(dim=-1) / x.diff(dim=-1)
        return found.gather(-1, right - 1).movedim(-1, 0).to(probs.dtype)

    def inverse(self, q: float | Tensor) -> Tensor:
        """Return the probabilities that are mapped to q, in double precision.

        Args:
            q: One probability, for a result of shape (...), or several, (B, ...), for (B, ...).
        """
        x, y = self._arguments_and_values(self.knots)
        if not isinstance(q, Tensor):
            return interpolated(x.new_full((*self.shape, 1), q), y, x)[..., 0]
        x, y = x.to(q.device), y.to(q.device)
        return interpolated(q.movedim(0, -1), y, x).movedim(-1, 0)

    def _arguments_and_values(self, like: Tensor) -> tuple[Tensor, Tensor]:
        x, y = self.knots.to(like.device, torch.float64).unbind(-2)
        return x.contiguous(), y.contiguous()


def _right_ends(values: Tensor, x: Tensor) -> Tensor:
    """Return the indices of the right ends of the segments (left, right] with the values."""
    return torch.searchsorted(x, values.contiguous()).clamp(1, x.shape[-1] - 1)


def interpolated(values: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Return the linear interpolation at values (..., N) between knots (..., K)."""
    values = values.double()
    right = _right_ends(values, x)
    (x0, x1), (y0, y1) = ((t.gather(-1, right - 1), t.gather(-1, right)) for t in (x, y))
    share = (values - x0) / (x1 - x0).clamp_min(torch.finfo(x.dtype).tiny)
    return y0 + share.clamp(0, 1) * (y1 - y0)
