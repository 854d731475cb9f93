"""Rescaling of trained means, whose norm grows like log t (Theorem 2)."""

from __future__ import annotations

import copy
import math

import torch
from torch import Tensor

from tacit._support import checks
from tacit.calling import Variational
from tacit.weights import Prior

SPAN = 0.05  # directions of S shorter than this, relative to the longest, count as collapsed


def rescaled_mean(model: Variational, prior: Prior, step: int) -> Variational:
    """Return a copy of a model with the means of its random layers rescaled as in Theorem 2.

    Theorem 2: along gradient descent the mean grows like log t, so mu_t / log t converges, to the
    max-margin vector in the linear case. The component that the data don't determine is added back
    as P_null mu0. At convergence the columns of S span that null space (all of it at full rank), so
    P_null comes from a QR decomposition of S. `calibrate(scope="mean")` estimates the divisor from
    data instead.

    Args:
        model: A trained model.
        prior: The model at initialization, from `model.prior()` before training.
        step: Number of training steps t, at least 3.

    Examples:
        >>> import tacit, torch
        >>> x = torch.randn(50, 4, generator=torch.manual_seed(0))
        >>> likelihood = tacit.Bernoulli()
        >>> model = tacit.variational(torch.nn.Linear(4, 1), rank=4, likelihood=likelihood)
        >>> prior = model.prior()
        >>> history = tacit.fit(model, (x, x[:, 0] > 0), epochs=20, lr=0.1, batch_size=50)
        >>> rescaled = tacit.inference.rescaled_mean(model, prior, step=20)
        >>> tacit.predict(rescaled, x)
        BinaryPredictive(50 examples, 32 functions)
    """
    if checks.positive_integer("step", step) < 3:
        raise ValueError(f"step: expected at least 3, where log t is above 1; received {step}.")
    copied = copy.deepcopy(model)
    with torch.no_grad():
        for label, layer in copied.distributions.items():
            basis = _span(layer.dense_factor())
            kept = basis @ (basis.T @ prior.distributions[label].dense_mean().to(basis))
            rescaled = layer.dense_mean() / math.log(step) + kept
            sizes = [mean.numel() for mean in layer.mean.values()]
            for mean, part in zip(layer.mean.values(), rescaled.split(sizes), strict=True):
                mean.copy_(part.reshape(mean.shape))
    return copied


def _span(factor: Tensor) -> Tensor:
    """Return an orthonormal basis of the span of S, (P, K), without collapsed directions."""
    basis, triangle = torch.linalg.qr(factor)
    left, values, _ = torch.linalg.svd(triangle)
    kept: Tensor = basis @ left[:, values > SPAN * values.max()]
    return kept
