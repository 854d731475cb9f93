"""The outputs of a random last layer without sampling it: mean and variance in closed form."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tacit.functional import Caller, tied_names
from tacit.variational import Variational


def output_moments(
    model: Variational, *args: Any, generator: torch.Generator | None = None, **kwargs: Any
) -> tuple[Tensor, Tensor]:
    """Return mean and variance of the outputs over the last layer, an `nn.Linear`.

    Given the layer's inputs, its outputs W x + b are Gaussian: what a loss needs of them can be
    computed instead of estimated. Other random layers are drawn once in train mode, and are at
    their mean in eval mode.

    Args:
        model: A model whose last operation is a random `nn.Linear`.
        *args: Arguments of the wrapped module.
        generator: Source of randomness for the other random layers.
        **kwargs: Keyword arguments of the wrapped module.

    Returns:
        Means and variances of the outputs, of the same shape (..., outputs).

    Raises:
        ValueError: If the model's output is not that of a random linear layer.
    """
    name = _last_layer(model)
    seen: list[tuple[Tensor, Tensor]] = []
    hook = model.module.get_submodule(name).register_forward_hook(
        lambda _, inputs, output: seen.append((inputs[0], output))
    )
    drawn = model.sample(generator=generator) if model.training else {}
    others = {key: value for key, value in drawn.items() if key.rpartition(".")[0] != name}
    try:
        output = Caller(tied_names(model.module)).one(model.module, others, (args, kwargs))
    finally:
        hook.remove()
    if len(seen) != 1 or output is not seen[0][1]:
        raise ValueError(
            f"output_moments: the output of the model is not that of its last layer, {name!r}."
        )
    features, variance = seen[0][0].flatten(0, -2), torch.zeros_like(output)
    for layer, distribution in zip(model.layers, model.distributions.values(), strict=True):
        if layer.name == name:
            part = layer.covariance.output_variance(distribution.factors, features, layer.shapes)
            variance = variance + part.reshape(output.shape)
    return output, variance


def expected_squared_error(mean: Tensor, variance: Tensor, target: Tensor) -> Tensor:
    """Return E[(target - f)^2] over outputs f with these moments, averaged over all entries.

    It is (target - mean)^2 + variance: the expectation of `F.mse_loss`, exactly.
    """
    if target.shape != mean.shape:
        raise ValueError(
            f"expected_squared_error: expected targets of shape {tuple(mean.shape)}, received "
            f"{tuple(target.shape)}."
        )
    return F.mse_loss(mean, target) + variance.mean()


def cross_entropy_bound(mean: Tensor, variance: Tensor, target: Tensor) -> Tensor:
    """Return an upper bound of E[cross-entropy] over Gaussian logits, averaged over examples.

    By Jensen's inequality E[log sum_c exp(f_c)] <= log sum_c exp(mean_c + variance_c / 2). It is
    the expected cross-entropy where the variances are 0.

    Args:
        mean: Means of the logits, (B, C).
        variance: Their variances, (B, C).
        target: Classes, (B,).
    """
    chosen = mean.gather(-1, target[:, None]).squeeze(-1)
    return (torch.logsumexp(mean + variance / 2, -1) - chosen).mean()


def _last_layer(model: Variational) -> str:
    name = model.layers[-1].name
    layer = model.module.get_submodule(name)
    if type(layer) is not nn.Linear:
        raise ValueError(
            "output_moments: expected a random nn.Linear as the last layer; the last random layer "
            f"is {name!r}, of type {type(layer).__name__}."
        )
    return name
