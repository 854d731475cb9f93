"""Closed-form mean and variance of the outputs of a random last layer."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tacit._support.names import join
from tacit._support.private_torch import version
from tacit.calling.caller import Caller
from tacit.calling.model import Variational
from tacit.calling.usage import tied_names
from tacit.weights.noise import Gaussian


def output_moments(
    model: Variational, *args: Any, generator: torch.Generator | None = None, **kwargs: Any
) -> tuple[Tensor, Tensor]:
    """Return mean and variance of the outputs over the weights of the last layer, an `nn.Linear`.

    Given the layer's inputs, its outputs W x + b are Gaussian, so an expected loss can be computed
    from their moments instead of estimated. The weights of other random layers are drawn once in
    train mode, and are the means in eval mode.

    Args:
        model: A model whose last operation is a random `nn.Linear`.
        *args: Arguments of the wrapped module.
        generator: Source of randomness for the other random layers.
        **kwargs: Keyword arguments of the wrapped module.

    Returns:
        Means and variances of the outputs, both of shape (..., outputs).

    Raises:
        ValueError: If the model's output is not the output of a random linear layer.

    Examples:
        >>> import tacit, torch
        >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
        >>> model = tacit.variational(net, {"2": tacit.LowRank(5)}).eval()
        >>> x = torch.randn(6, 4)
        >>> mean, variance = output_moments(model, x)
        >>> torch.equal(mean, model(x)), variance.shape
        (True, torch.Size([6, 2]))
    """
    name = _last_layer(model)
    seen: list[tuple[Tensor, Tensor, int | Tensor]] = []
    hook = model.module.get_submodule(name).register_forward_hook(
        lambda _, inputs, output: seen.append((inputs[0], output, _stamp(output)))
    )
    args = model.prepared(args)
    drawn = model.sample(generator=generator) if model.training else {}
    others = {key: value for key, value in drawn.items() if key.rpartition(".")[0] != name}
    try:
        output = Caller(tied_names(model.module)).call(model.module, others, (args, kwargs))
    finally:
        hook.remove()
    if len(seen) != 1 or output is not seen[0][1] or _changed(output, seen[0][2]):
        raise ValueError(
            "output_moments: the model's output must be the unmodified output of its last random "
            f"layer, {name!r}: no activation, view or squeeze after it."
        )
    features = seen[0][0].reshape(-1, seen[0][0].shape[-1])
    variance = torch.zeros_like(output)
    for layer, distribution in zip(model.layers, model.distributions.values(), strict=True):
        if layer.name == name:
            part = layer.covariance.output_variance(distribution.resolved, features, layer.shapes)
            variance = variance + part.reshape(output.shape)
    return output, variance


def _stamp(output: Tensor) -> int | Tensor:
    """Return a record for `_changed`; inference tensors have no version counter."""
    return output.clone() if output.is_inference() else version(output)


def _changed(output: Tensor, stamp: int | Tensor) -> bool:
    """Return whether a tensor was changed in place since its stamp."""
    if isinstance(stamp, Tensor):
        return not torch.equal(output, stamp)
    return version(output) != stamp


def expected_squared_error(mean: Tensor, variance: Tensor, target: Tensor) -> Tensor:
    """Return E[(target - f)^2] over outputs f with these moments, averaged over all entries.

    It equals (target - mean)^2 + variance, the exact expectation of `F.mse_loss`.

    Args:
        mean: Means of the outputs, (...), for instance from `output_moments`.
        variance: Their variances, (...).
        target: Targets, (...).

    Returns:
        The mean over all entries, a scalar.

    Raises:
        ValueError: If the shapes differ.

    Examples:
        >>> import torch
        >>> mean, variance = torch.tensor([1.0, 2.0]), torch.tensor([0.5, 0.1])
        >>> expected_squared_error(mean, variance, torch.tensor([1.0, 3.0]))  # (0.5 + 1.1) / 2
        tensor(0.8000)
    """
    if not target.shape == mean.shape == variance.shape:
        raise ValueError(
            "expected_squared_error: expected mean, variance and targets of the same shape, "
            f"received {tuple(mean.shape)}, {tuple(variance.shape)} and {tuple(target.shape)}."
        )
    return F.mse_loss(mean, target) + variance.mean()


def cross_entropy_bound(mean: Tensor, variance: Tensor, target: Tensor) -> Tensor:
    """Return an upper bound on E[cross-entropy] over Gaussian logits, averaged over examples.

    By Jensen's inequality E[log sum_c exp(f_c)] <= log sum_c exp(mean_c + variance_c / 2), with
    equality if all variances are 0.

    Args:
        mean: Means of the logits, (..., C).
        variance: Variances of the logits, (..., C).
        target: Classes, integers of shape (...).

    Returns:
        The bound, a scalar.

    Raises:
        ValueError: If the shapes don't match.

    Examples:
        >>> import torch
        >>> mean, target = torch.tensor([[2.0, 0.0]]), torch.tensor([0])
        >>> certain = cross_entropy_bound(mean, torch.zeros(1, 2), target)  # the cross-entropy
        >>> uncertain = cross_entropy_bound(mean, torch.ones(1, 2), target)
        >>> print(f"{certain:.3f} {uncertain:.3f}")
        0.127 0.627
    """
    if mean.shape != variance.shape or target.shape != mean.shape[:-1]:
        raise ValueError(
            "cross_entropy_bound: expected mean and variance of shape (..., C), classes of shape "
            f"(...); received {tuple(mean.shape)}, {tuple(variance.shape)} and "
            f"{tuple(target.shape)}."
        )
    chosen = mean.gather(-1, target.long().unsqueeze(-1)).squeeze(-1)
    return (torch.logsumexp(mean + variance / 2, -1) - chosen).mean()


def _last_layer(model: Variational) -> str:
    """Return the name of the last random layer, or raise if its outputs aren't Gaussian."""
    if not isinstance(model, Variational):
        raise TypeError(
            f"output_moments: expected a variational model, received {type(model).__name__}."
        )
    name = model.layers[-1].name
    layer = model.module.get_submodule(name)
    if type(layer) is not nn.Linear:
        raise ValueError(
            "output_moments: expected a random nn.Linear as the last layer; the last random layer "
            f"is {name!r}, of type {type(layer).__name__}."
        )
    if not isinstance(model.noise, Gaussian):
        raise ValueError(f"output_moments: expected Gaussian noise, received {model.noise}.")
    tied = tied_names(model.module).keys() & {join(name, tensor) for tensor in ("weight", "bias")}
    if tied:
        raise ValueError(
            f"output_moments: {', '.join(tied)} is tied and used elsewhere in the model, so the "
            "outputs are not linear in it."
        )
    return name
