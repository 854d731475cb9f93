"""Mixtures whose distribution function F is mapped to R(F).

Between the knots p_k of the map R the density of the mixture, f, becomes s_k f with the slope s_k.
So the moments are sums of the components' partial moments between the quantiles at the knots, in
closed form. Means and scales are (M, B), one mixture for each of B examples; results have no
gradients.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from tacit.likelihood.predictive import mixture
from tacit.likelihood.predictive.noise_shapes import NORMAL, NoiseShape
from tacit.likelihood.predictive.recalibration import ProbabilityMap, interpolated

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
def moments(means: Tensor, scales: Tensor, knots: Tensor, noise: NoiseShape = NORMAL) -> Moments:
    """Return mean and standard deviations.

    Args:
        means: (M, B).
        scales: (M, B), above 0.
        knots: Knots of each example's map, (B, 2, K).
        noise: Shape of the components.
    """
    found = [_moments(*block, noise) for block in _blocks(means, scales, knots)]
    if not found:
        empty = means.new_zeros(0)
        return Moments(empty, empty, empty)
    return Moments(*(torch.cat(parts) for parts in zip(*found, strict=True)))


@torch.no_grad()
def crps(
    means: Tensor,
    scales: Tensor,
    knots: Tensor,
    mean: Tensor,
    targets: Tensor,
    noise: NoiseShape = NORMAL,
) -> Tensor:
    """Return E|Y - t| - E|Y - Y'| / 2 for draws Y, Y' from each mapped mixture, (B,).

    The first term is E[Y] - t plus twice the integral of G = R(F) up to t, in closed form. The
    second is the integral of G (1 - G), by Gauss-Legendre quadrature between the knots; for noise
    that isn't Gaussian see `mixture.between_edges`.

    Args:
        means: (M, B).
        scales: (M, B), above 0.
        knots: Knots of each example's map, (B, 2, K).
        mean: Means of the mapped mixtures, (B,).
        targets: t, (B,).
        noise: Shape of the components.
    """
    # Between edges, all pairs of functions are evaluated together.
    size = mixture.block_size(means) if noise == NORMAL else mixture.pair_block_size(means)
    found = []
    for i, (m, s, own) in enumerate(_blocks(means, scales, knots, size)):
        t = targets[i * size : i * size + m.shape[1]].double()
        edges = _quantiles(m, s, own, noise)
        below = _below(m, s, own, edges, t, noise)
        if noise == NORMAL:
            between = _half_mean_distance(m, s, own, edges)
        else:
            between = mixture.between_edges(m, s, noise, _reshaping(m, own, edges))
        found.append(2 * below - t - between)
    return (mean.double() + torch.cat(found)).clamp_min(0).to(means) if found else mean


@torch.no_grad()
def mapped(
    values: Tensor, means: Tensor, scales: Tensor, recalibration: ProbabilityMap, noise: NoiseShape
) -> Tensor:
    """Return draws of the mixtures as draws of the mapped mixtures, at the same probabilities.

    Where F has the value p at a draw, R(F) has it at the result. Draws of several outputs keep
    their dependence, which is that of their probabilities.

    Args:
        values: Draws, (n, B, ...).
        means: (M, B, ...).
        scales: (M, B, ...), above 0.
        recalibration: The maps, one for each output, (...).
        noise: Shape of the components.
    """
    wide, found = (means.double(), scales.double()), []
    for drawn in values.split(max(1, mixture.block_size(means) // max(1, means[0].numel()))):
        # Several draws of the same examples are examples of their own.
        m, s = (part.repeat(1, len(drawn), *[1] * (part.ndim - 2)) for part in wide)
        probabilities = mixture.cdf(drawn.double().flatten(0, 1), m, s, noise)
        levels = recalibration.inverse(probabilities).flatten()
        found.append(mixture.quantile(levels, m.flatten(1), s.flatten(1), noise))
    return torch.cat(found).reshape(values.shape).to(values)


def _blocks(
    means: Tensor, scales: Tensor, knots: Tensor, size: int | None = None
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    size = mixture.block_size(means) if size is None else size
    for start in range(0, means.shape[1], size):
        columns = slice(start, start + size)
        yield means[:, columns].double(), scales[:, columns].double(), knots[columns].double()


def _quantiles(means: Tensor, scales: Tensor, knots: Tensor, noise: NoiseShape) -> Tensor:
    """Return the mixtures' quantiles at the inner knots, (K - 2, B); infinite at repeated ones."""
    edges = [means.new_empty(0, means.shape[1])]
    for q in knots[:, 0, 1:-1].unbind(-1):
        found = mixture.quantile(torch.where(q < 1, q, 0.5), means, scales, noise)
        edges.append(torch.where(q < 1, found, torch.inf)[None])
    return torch.cat(edges)


def _segments(knots: Tensor, edges: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield slope, value at F = 0 and right end of the pieces of R, each (B,).

    The right end of the last one, and of pieces between repeated knots, whose slope is 0, is
    infinite.
    """
    x, y = knots.movedim(-1, 0).unbind(-1)  # (K, B) each
    ends = torch.cat([edges, torch.full_like(x[:1], torch.inf)])
    for k, end in enumerate(ends):
        width = x[k + 1] - x[k]
        slope = torch.where(width > 0, (y[k + 1] - y[k]) / width.clamp_min(1e-300), 0.0)
        yield slope, y[k] - slope * x[k], end


def _moments(
    means: Tensor, scales: Tensor, knots: Tensor, noise: NoiseShape
) -> tuple[Tensor, Tensor, Tensor]:
    dtype, centre = means.dtype, means.mean(0)
    m = means - centre  # smaller rounding errors
    edges = _quantiles(m, scales, knots, noise)
    whole = torch.ones_like(m), m, m.square() + (noise.std * scales).square()
    sums = before = [torch.zeros_like(m) for _ in range(3)]
    for slope, _, end in _segments(knots, edges):
        last = end.isinf()
        inner = _partial_moments(m, scales, end.masked_fill(last, 0.0), noise)
        after = [torch.where(last, w, part) for w, part in zip(whole, inner, strict=True)]
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


def _partial_moments(
    means: Tensor, scales: Tensor, x: Tensor, noise: NoiseShape
) -> tuple[Tensor, Tensor, Tensor]:
    """Return E[X^r 1(X <= x)] of each component for r = 0, 1, 2, each (M, B)."""
    probability, first, second = noise.partial_moments((x - means) / scales)
    return (
        probability,
        means * probability + scales * first,
        means.square() * probability + 2 * means * scales * first + scales.square() * second,
    )


def _below(
    means: Tensor, scales: Tensor, knots: Tensor, edges: Tensor, t: Tensor, noise: NoiseShape
) -> Tensor:
    """Return the integrals of G = R(F) from minus infinity to t, (B,).

    On a piece of R with slope s, G is s F plus a constant, 0 on the first one. F has the integral
    s (z P(z) - E[Z 1(Z <= z)]) for noise Z with distribution function P.
    """

    def integral(value: Tensor) -> Tensor:
        z = (value - means) / scales
        probability, first, _ = noise.partial_moments(z)
        found: Tensor = (scales * (z * probability - first)).mean(0)
        return found

    total, before = torch.zeros_like(t), torch.zeros_like(t)
    start: Tensor | None = None
    for slope, offset, end in _segments(knots, edges):
        stop = torch.minimum(end, t)
        after = integral(stop)
        total = total + slope * (after - before)
        if start is not None:
            total = total + offset * (stop - start)
        start, before = stop, after
    return total


def _reshaping(means: Tensor, knots: Tensor, inner: Tensor) -> mixture.Reshaping:
    """Return the maps of a block for `mixture.between_edges`."""
    x, y = (part.contiguous() for part in knots.unbind(-2))  # (B, K) each
    slopes = (y.diff() / x.diff().clamp_min(1e-300)).masked_fill(x.diff() == 0, 0)
    last = (x < 1).sum(-1, keepdim=True) - 1  # the piece before repeated knots
    return mixture.Reshaping(
        lambda probability: interpolated(probability.mT, x, y).mT,
        torch.where(inner.isinf(), means[0], inner),
        (slopes[:, 0], slopes.gather(-1, last)[:, 0]),
    )


def _half_mean_distance(means: Tensor, scales: Tensor, knots: Tensor, inner: Tensor) -> Tensor:
    """Return the integrals of G (1 - G) for Gaussian noise, (B,).

    The integrand is smooth between knots. Panels narrower than twice the smallest noise scale have
    errors near rounding. With wider ones, where functions spread widely, the error is below a few
    hundredths of a panel's width times the change of G over it, since G is increasing.
    """
    low, high = (means - TAIL * scales).amin(0), (means + TAIL * scales).amax(0)
    nodes, weights = (
        torch.as_tensor(values, dtype=torch.float64, device=means.device)
        for values in np.polynomial.legendre.leggauss(NODES)
    )
    total, smallest, start = torch.zeros_like(low), scales.amin(0), low
    for slope, offset, end in _segments(knots, inner):
        stop = end.clamp(low, high)
        span = stop - start
        panels = int((span / (WIDTH * smallest)).max().clamp(1, PANELS).ceil().item())
        half = span / panels / 2
        for panel in range(panels):
            middle = start + (2 * panel + 1) * half
            for node, weight in zip(nodes, weights, strict=True):
                G = offset + slope * mixture.cdf(middle + node * half, means, scales)  # noqa: N806
                total = total + weight * half * G * (1 - G)
        start = stop
    return total
