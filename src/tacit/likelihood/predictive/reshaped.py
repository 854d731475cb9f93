"""Mixtures of Gaussians whose distribution function F is mapped to R(F).

Between the knots p_k of the map R the density of the mixture, f, becomes s_k f with the slope s_k.
So the moments are sums of the Gaussians' partial moments between the quantiles at the knots, in
closed form. Means and scales are (M, B), one mixture for each of B examples; results have no
gradients.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from tacit.likelihood.predictive import mixture

TAIL = 9.0  # standard deviations after which a Gaussian counts as 0
# Gauss-Legendre nodes of a panel; its width, in noise scales, for an error below 1e-9; the largest
# number of panels between two knots, which bounds the cost if functions spread widely.
NODES, WIDTH, PANELS = 8, 2.0, 16


@dataclass(frozen=True, eq=False)
class Moments:
    """Moments of the joint distribution of function and target, each (B,).

    The mapped mixture is the marginal of the density s(F(y)) f_i(y) / M of function i and target y,
    to which the law of total variance applies.
    """

    mean: Tensor
    epistemic_std: Tensor
    aleatoric_std: Tensor


@torch.no_grad()
def moments(means: Tensor, scales: Tensor, knots: Tensor) -> Moments:
    """Return mean and standard deviations.

    Args:
        means: (M, B).
        scales: (M, B), above 0.
        knots: Knots of each example's map, (B, 2, K).
    """
    found = [_moments(*block) for block in _blocks(means, scales, knots)]
    if not found:
        empty = means.new_zeros(0)
        return Moments(empty, empty, empty)
    return Moments(*(torch.cat(parts) for parts in zip(*found, strict=True)))


@torch.no_grad()
def crps(means: Tensor, scales: Tensor, knots: Tensor, mean: Tensor, targets: Tensor) -> Tensor:
    """Return E|Y - t| - E|Y - Y'| / 2 for draws Y, Y' from each mapped mixture, (B,).

    The first term is E[Y] - t plus twice the integral of G = R(F) up to t, in closed form. The
    second is the integral of G (1 - G), by Gauss-Legendre quadrature between the knots.

    Args:
        means: (M, B).
        scales: (M, B), above 0.
        knots: Knots of each example's map, (B, 2, K).
        mean: Means of the mapped mixtures, (B,).
        targets: t, (B,).
    """
    size, found = mixture.block_size(means), []
    for i, (m, s, own) in enumerate(_blocks(means, scales, knots)):
        t = targets[i * size : i * size + m.shape[1]].double()
        edges, slopes = _quantiles(m, s, own), _slopes(own)
        below = _below(m, s, own, edges, slopes, t)
        found.append(2 * below - t - _half_mean_distance(m, s, own, edges, slopes))
    return (mean.double() + torch.cat(found)).clamp_min(0).to(means) if found else mean


def _blocks(
    means: Tensor, scales: Tensor, knots: Tensor
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    size = mixture.block_size(means)
    for start in range(0, means.shape[1], size):
        columns = slice(start, start + size)
        yield means[:, columns].double(), scales[:, columns].double(), knots[columns].double()


def _quantiles(means: Tensor, scales: Tensor, knots: Tensor) -> Tensor:
    """Return the mixtures' quantiles at the knots, (K, B); the ends are beyond the tails."""
    low, high = (means - TAIL * scales).amin(0), (means + TAIL * scales).amax(0)
    edges = [low]
    for q in knots[:, 0, 1:-1].unbind(-1):
        found = mixture.quantile(torch.where(q < 1, q, 0.5), means, scales)
        edges.append(torch.where(q < 1, found, high).clamp(low, high))  # repeated knots are 1
    return torch.stack([*edges, high])


def _slopes(knots: Tensor) -> Tensor:
    """Return the slopes between the knots, (K - 1, B); 0 between repeated knots."""
    x, y = knots.diff(dim=-1).unbind(-2)
    return (y / x).masked_fill(x == 0, 0).movedim(-1, 0)


def _density(z: Tensor) -> Tensor:
    return torch.exp(-0.5 * z.square()) / math.sqrt(2 * math.pi)


def _moments(means: Tensor, scales: Tensor, knots: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    dtype, centre = means.dtype, means.mean(0)
    m = means - centre  # smaller rounding errors
    edges, slopes = _quantiles(m, scales, knots), _slopes(knots)
    sums = before = [torch.zeros_like(m) for _ in range(3)]
    for k, slope in enumerate(slopes):
        after = [*_partial_moments(m, scales, edges[k + 1])]
        sums = [s + slope * (a - b) for s, a, b in zip(sums, after, before, strict=True)]
        before = after
    weight, first, second = sums
    total = weight.sum(0)
    mean = first.sum(0) / total
    # A function without weight has no conditional moments, and no share in the sums.
    own = first / weight.clamp_min(torch.finfo(dtype).tiny)
    epistemic = (weight * (own - mean).square()).sum(0) / total
    aleatoric = (second - weight * own.square()).sum(0) / total
    return centre + mean, epistemic.sqrt(), aleatoric.clamp_min(0).sqrt()


def _partial_moments(means: Tensor, scales: Tensor, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return E[X^r 1(X <= x)] of each Gaussian for r = 0, 1, 2, each (M, B)."""
    z = (x - means) / scales
    probability, density = torch.special.ndtr(z), _density(z)
    first = means * probability - scales * density
    second = (means.square() + scales.square()) * probability - scales * (x + means) * density
    return probability, first, second


def _below(
    means: Tensor, scales: Tensor, knots: Tensor, edges: Tensor, slopes: Tensor, t: Tensor
) -> Tensor:
    """Return the integrals of G = R(F) from minus infinity to t, (B,).

    Between knots G = y_k + s_k (F - x_k), and F has the integral s (z Phi(z) + phi(z)).
    """
    x, y = knots.movedim(-1, 0).unbind(-1)  # (K, B) each

    def integral(value: Tensor) -> Tensor:
        z = (value - means) / scales
        found: Tensor = (scales * (z * torch.special.ndtr(z) + _density(z))).mean(0)
        return found

    total, start, before = torch.zeros_like(t), edges[0], torch.zeros_like(t)
    for k, slope in enumerate(slopes):
        # Beyond its end the last segment has slope s and F = 1 there, so it continues to t.
        stop = t if k + 1 == len(slopes) else torch.minimum(edges[k + 1], t)
        stop = torch.maximum(stop, start)
        after = integral(stop)
        inside = (y[k] - slope * x[k]) * (stop - start) + slope * (after - before)
        total = total + torch.where(t > start, inside, 0.0)
        start, before = stop, after
    return total


def _half_mean_distance(
    means: Tensor, scales: Tensor, knots: Tensor, edges: Tensor, slopes: Tensor
) -> Tensor:
    """Return the integrals of G (1 - G), (B,).

    The integrand is smooth between knots. Panels narrower than twice the smallest noise scale have
    errors near rounding. With wider ones, where functions spread widely, the error is below a few
    hundredths of a panel's width times the change of G over it, since G is increasing.
    """
    x, y = knots.movedim(-1, 0).unbind(-1)
    nodes, weights = (
        torch.as_tensor(values, dtype=torch.float64, device=means.device)
        for values in np.polynomial.legendre.leggauss(NODES)
    )
    total, smallest = torch.zeros_like(edges[0]), scales.amin(0)
    for k, slope in enumerate(slopes):
        span = edges[k + 1] - edges[k]
        panels = int((span / (WIDTH * smallest)).max().clamp(1, PANELS).ceil().item())
        half = span / panels / 2
        for panel in range(panels):
            middle = edges[k] + (2 * panel + 1) * half
            for node, weight in zip(nodes, weights, strict=True):
                F = mixture.cdf(middle + node * half, means, scales)  # noqa: N806
                G = y[k] + slope * (F - x[k])  # noqa: N806
                total = total + weight * half * G * (1 - G)
    return total
