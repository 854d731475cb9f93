"""Mixtures with equal weights: quantiles and the mean distance of two draws.

The components are Gaussians, or have the shape of other noise; see `noise_shapes`.

Means and scales are (M, B), one mixture for each of B examples. A scale of 0 is a point mass.
Examples are processed in blocks, which bounds the memory of intermediate results.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from tacit.likelihood.predictive.noise_shapes import NORMAL, NoiseShape

BLOCK = 2**18  # entries of an intermediate result; 1 MB in single precision fits into the cache
EDGE_BLOCK = 2**17  # divided by the square of the number of functions, examples of a block
STEPS = 200  # bound on the steps to a quantile; most need fewer than 10
# Accuracy of distances: standard deviations after which a Gaussian counts as 0, and the step of the
# trapezoidal rule in units of the noise scale, whose error is about exp(-(pi / step)^2).
DOUBLE = 9.0, 0.5  # errors of 1e-19 and 7e-18
SINGLE = 6.0, 0.75  # errors of 1e-9 and 2e-8
# Of other shapes: Gauss-Legendre nodes between two edges; edges in units of the scale, for few and
# for many functions.
FINE = 6, (0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)
COARSE = 4, (0.0, 2.0, 8.0, 64.0)
MANY = 8


def standardised(values: Tensor, means: Tensor, scales: Tensor) -> tuple[Tensor, Tensor]:
    """Return (values - means) / scales, 0 for point masses, and a mask of the point masses.

    Gradients at point masses are 0, not NaN.
    """
    point = scales < torch.finfo(scales.dtype).tiny
    z = (values - means) / scales.masked_fill(point, 1)
    return z.masked_fill(point, 0), point


def cdf(values: Tensor, means: Tensor, scales: Tensor, noise: NoiseShape = NORMAL) -> Tensor:
    """Return the mixtures' distribution functions at values (B,)."""
    z, point = standardised(values, means, scales)
    steps = (values >= means).to(z.dtype)
    probability: Tensor = torch.where(point, steps, noise.cdf(z)).mean(0)
    return probability


def quantile(
    q: float | Tensor, means: Tensor, scales: Tensor, noise: NoiseShape = NORMAL
) -> Tensor:
    """Return the q-quantiles, (B,): the smallest values at which the CDF is at least q.

    Args:
        q: One probability, or one for each mixture, (B,), between 0 and 1.
        means: (M, B).
        scales: (M, B).
        noise: Shape of the components.
    """
    with torch.no_grad():
        levels = torch.as_tensor(q, dtype=torch.float64, device=means.device)
        levels = levels.expand(means.shape[1:])
        parts = zip(_parts(levels, means), _blocks(means, scales), strict=True)
        found = [_quantile(own, m, s, noise) for own, (m, s) in parts]
    return torch.cat(found) if found else means.new_zeros(0)


def _quantile(levels: Tensor, means: Tensor, scales: Tensor, noise: NoiseShape) -> Tensor:
    """Solve cdf(x) = q by Newton's method within a bracket, with bisection where it is slow.

    A Newton step is taken if it stays in the bracket and is at most half of the step before, so
    convergence is never slower than that of bisection.
    """
    eps = torch.finfo(means.dtype).eps
    q, single = levels.to(means), noise.quantile(levels).to(means)
    own = means + scales * single
    # The mixture's quantile lies between the extreme quantiles of its components.
    low, high = own.amin(0), own.amax(0)
    width = high - low
    precise = 4 * eps * torch.maximum(low.abs(), high.abs())
    variance = means.var(0, correction=0) + scales.square().mean(0)
    x = means.mean(0) + single * variance.sqrt()
    x = torch.where((low < x) & (x < high), x, (low + high) / 2)
    before, settled = width, torch.zeros_like(x, dtype=torch.bool)
    for _ in range(STEPS):
        settled = settled | ~(high - low > precise)  # at step 1 for a single function; NaN included
        if settled.all():
            break
        z, point = standardised(x, means, scales)
        probability = torch.where(point, (x >= means).to(z.dtype), noise.cdf(z)).mean(0)
        density = (noise.log_density(z).exp() / scales.masked_fill(point, math.inf)).mean(0)
        step = (probability - q) / density
        # Where the CDF is flat, steps are large and a residual at rounding level proves nothing.
        exact = ((probability - q).abs() <= 4 * eps * q) & (step.abs() <= eps**0.5 * width)
        below = probability < q
        low = torch.where(below & ~settled, x, low)
        high = torch.where(below | settled, high, x)
        newton, middle = x - step, (low + high) / 2
        taken = (low < newton) & (newton < high) & (step.abs() <= before / 2)
        following = torch.where(taken, newton, middle)
        before = (following - x).abs()
        # An exact point still takes its Newton step, which corrects the last half of the digits.
        done = exact & ~settled
        x = torch.where(settled, x, torch.where(done & ~taken, x, following))
        low, high = torch.where(done, x, low), torch.where(done, x, high)
    return torch.where(high - low > precise, x, (low + high) / 2)


def half_mean_distance(means: Tensor, scales: Tensor, noise: NoiseShape = NORMAL) -> Tensor:
    """Return E|X - X'| / 2 for two independent draws from each mixture, (B,).

    It equals the integral of F (1 - F), where F is the mixture's CDF. F is smooth on the scale of
    the smallest noise scale s, so the trapezoidal rule converges geometrically: with a step of
    s / 2 its error is about exp(-4 pi^2) = 7e-18. Where the means spread so widely that this needs
    more nodes than there are functions, near pairs of functions are summed instead: both take far
    less time than all M^2 pairs. For noise of another shape see `between_edges`.
    """
    if noise != NORMAL:
        size = pair_block_size(means)
        blocks = [between_edges(m, s, noise) for m, s in _blocks(means, scales, size)]
        return torch.cat(blocks) if blocks else means.new_zeros(0)
    means = means - means.detach().mean(0)  # distances don't change, rounding errors are smaller
    with torch.no_grad():
        _, nodes, _ = _grid(means, scales)
        smooth = nodes <= len(means)  # not where a scale is 0, or NaN
        # Blocks of examples that need about as many nodes.
        order = torch.where(smooth, nodes, math.inf).argsort()
        count = int(smooth.sum())
    found = []
    kinds: tuple[tuple[Tensor, Callable[..., Tensor]], ...] = (
        (order[:count], _integral), (order[count:], _near_pairs),
    )  # fmt: skip
    for rows, function in kinds:
        found += [function(m, s) for m, s in _blocks(means[:, rows], scales[:, rows])]
    together = torch.cat(found) if found else means.new_zeros(0)
    return together[order.argsort()]


def _integral(means: Tensor, scales: Tensor) -> Tensor:
    """Return the integral of F (1 - F) by the trapezoidal rule."""
    with torch.no_grad():
        low, nodes, span = _grid(means, scales)
        intervals = int(nodes.max().item())
        step = span / intervals
    inverse = 1 / (scales * math.sqrt(2))
    total = torch.zeros_like(low)
    for k in range(1, intervals):  # F (1 - F) is 0 at both ends
        # F = (1 + e) / 2 with e the mean of erf, so F (1 - F) = (1 - e^2) / 4.
        e = torch.erf((low + k * step - means) * inverse).mean(0)
        total = total + (1 - e.square())
    return total * step / 4


def _grid(means: Tensor, scales: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return start, number of intervals and length of the trapezoidal rule, each (B,)."""
    tail, step = _accuracy(means)
    low = (means - tail * scales).amin(0)
    span = (means + tail * scales).amax(0) - low
    return low, (span / (step * scales.amin(0))).ceil(), span


def _accuracy(values: Tensor) -> tuple[float, float]:
    return DOUBLE if values.dtype == torch.float64 else SINGLE


def _near_pairs(means: Tensor, scales: Tensor) -> Tensor:
    """Return the mean over pairs of E|X_i - X_j| / 2 from the sorted means.

    Without noise it is a weighted sum of the sorted means. Noise adds to a pair at distance d
    2 s (phi(d / s) - d / s Phi(-d / s)) with s^2 = s_i^2 + s_j^2, which vanishes in the tail, so
    only neighbours up to some lag count. A function paired with itself gives 2 s_i / sqrt(pi).
    """
    size = len(means)
    means, order = means.sort(0)
    scales = scales.gather(0, order)
    ranks = torch.arange(1 - size, size, 2).to(means)[:, None]
    total = (ranks * means).sum(0) + scales.sum(0) / math.sqrt(math.pi)
    tail, _ = _accuracy(means)
    reach = tail * math.sqrt(2) * scales.detach().amax(0)
    for lag in range(1, size):
        distance = means[lag:] - means[:-lag]
        if not (distance.detach() < reach).any():
            break
        # hypot has no derivative at (0, 0).
        points = (scales[lag:] == 0) & (scales[:-lag] == 0)
        s = torch.hypot(scales[lag:].masked_fill(points, 1), scales[:-lag]).masked_fill(points, 0)
        z, _ = standardised(distance, torch.zeros_like(distance), s)
        z = z.clamp_max(40)  # all terms are 0 there; z may be infinite
        density = torch.exp(-0.5 * z.square()) / math.sqrt(2 * math.pi)
        upper = torch.erfc(z / math.sqrt(2)) / 2
        total = total + (2 * s * (density - z * upper)).sum(0)
    return total / size**2


@dataclass(frozen=True, eq=False)
class Reshaping:
    """A map of the distribution functions F of mixtures, for `between_edges`.

    Args:
        apply: Maps values of F, (E, B).
        edges: Quantiles where the slope changes, (K, B).
        slopes: Slopes at F = 0 and at F = 1, each (B,).
    """

    apply: Callable[[Tensor], Tensor]
    edges: Tensor
    slopes: tuple[Tensor, Tensor]


def between_edges(
    means: Tensor, scales: Tensor, noise: NoiseShape, reshaping: Reshaping | None = None
) -> Tensor:
    """Return the integral of F (1 - F) by Gauss-Legendre quadrature between edges.

    Edges are the means and points to both sides of them, so that the integrand is smooth in
    between, at any scale. In the tails beyond them, where F (1 - F) is F or 1 - F to a relative
    error of 1e-4 or less, its integral has a closed form.

    Args:
        means: (M, B).
        scales: (M, B).
        noise: Shape of the components.
        reshaping: Replaces F by a map of it.
    """
    nodes, distances = FINE if len(means) < MANY else COARSE
    edges = (means + scales * _offsets(distances, means)[:, None]).flatten(0, 1)
    if len(means) >= MANY:  # functions that nearly agree have nearly the same few edges
        middle = means.mean(0) + scales.mean(0) * _offsets(FINE[1], means)
        edges = torch.cat([edges, middle])
    if reshaping is not None:
        edges = torch.cat([edges, reshaping.edges])
    edges = edges.sort(0).values  # (E, B)
    half, middle = edges.diff(dim=0) / 2, (edges[1:] + edges[:-1]) / 2
    total = torch.zeros_like(edges[0])
    for node, weight in zip(*np.polynomial.legendre.leggauss(nodes), strict=True):
        points = (middle + float(node) * half)[:, None]  # (E - 1, 1, B)
        F = _cdf_at(points, means, scales, noise)  # noqa: N806
        if reshaping is not None:
            F = reshaping.apply(F)  # noqa: N806
        total = total + float(weight) * (half * F * (1 - F)).sum(0)
    for side, (sign, end) in enumerate(((-1, edges[0]), (1, edges[-1]))):
        z, point = standardised(sign * (end - means), torch.zeros_like(means), scales)
        beyond = (scales * (noise.distance(z) - z) / 2).masked_fill(point, 0).mean(0)
        total = total + (beyond if reshaping is None else reshaping.slopes[side] * beyond)
    return total


def _offsets(distances: tuple[float, ...], like: Tensor) -> Tensor:
    """Return distances to both sides of 0, (E, 1)."""
    found = torch.tensor(distances).to(like)
    return torch.cat([-found[1:], found])[:, None]


def _cdf_at(points: Tensor, means: Tensor, scales: Tensor, noise: NoiseShape) -> Tensor:
    z, point = standardised(points, means, scales)
    steps = (points >= means).to(z.dtype)
    found: Tensor = torch.where(point, steps, noise.cdf(z)).mean(1)
    return found


def block_size(means: Tensor) -> int:
    """Return the number of examples of a block."""
    return max(1, BLOCK // max(1, len(means)))


def pair_block_size(means: Tensor) -> int:
    """Return the number of examples of a block whose functions are evaluated at each other."""
    return max(1, EDGE_BLOCK // max(1, len(means)) ** 2)


def _parts(values: Tensor, means: Tensor) -> list[Tensor]:
    """Return values (B,) in the blocks of the means."""
    return list(values.split(block_size(means))) if len(values) else []


def _blocks(
    means: Tensor, scales: Tensor, size: int | None = None
) -> Iterator[tuple[Tensor, Tensor]]:
    size = block_size(means) if size is None else size
    for start in range(0, means.shape[1], size):
        yield means[:, start : start + size], scales[:, start : start + size]
