"""Which layers' updates can be deferred, and for which deferral is faster."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from tacit._support.private_torch import has_gradient_hooks, transforms_active
from tacit.training.optim.rotated_factors import MOMENTUM
from tacit.weights.covariance import LowRank
from tacit.weights.distribution import Distribution
from tacit.weights.noise import Gaussian

WIDE = 500_000  # minimum factor size for which deferral pays off
SMALL = 50_000  # minimum factor size of further layers, once a model defers at all


def parameter_ids(optimizer: torch.optim.Optimizer) -> set[int]:
    """Return the identities of an optimizer's parameters, without settling them."""
    return {id(p) for group in map(dict, optimizer.param_groups) for p in group["params"]}


def has_wide_layers(distributions: Iterable[Distribution], draws: int) -> bool:
    """Return whether deferral pays off for some layer."""
    return any(_is_faster(distribution, draws, size=WIDE) for distribution in distributions)


def eligible_layers(
    distributions: Mapping[str, Distribution], draws: int, optimizer: torch.optim.SGD
) -> dict[str, Distribution]:
    """Return the layers whose updates this optimizer can defer, and for which that is faster.

    Args:
        distributions: Distributions of the random layers.
        draws: Number of draws of the weights per forward pass.
        optimizer: The optimizer; layers with factors that it doesn't update are not eligible.
    """
    wide = {n: d for n, d in distributions.items() if _is_faster(d, draws, SMALL)}
    own = parameter_ids(optimizer) if wide else set()
    return {
        label: distribution
        for label, distribution in wide.items()
        if all(id(S) in own for S in distribution.factors.values())
        and _is_exact(distribution, optimizer)
    }


def _is_faster(distribution: Distribution, draws: int, size: int) -> bool:
    covariance = distribution.covariance
    return (
        isinstance(covariance, LowRank)
        and isinstance(distribution.noise, Gaussian)
        and covariance.rank >= 2 * draws  # a step updates one row per draw
        and sum(S.numel() for S in distribution.factors.values()) >= size
    )


def _is_exact(distribution: Distribution, optimizer: torch.optim.SGD) -> bool:
    """Return whether deferral gives exactly the updates of torch's SGD."""
    factors = distribution.factors.values()
    return all(
        tensor.requires_grad and tensor.is_leaf and tensor.dtype in (torch.float32, torch.float64)
        for tensor in (*distribution.mean.values(), *factors)
    ) and all(
        S.is_contiguous()
        and not has_gradient_hooks(S)
        and _momentum_matches(optimizer.state.get(S, {}), S)
        for S in factors
    )


def _momentum_matches(state: Mapping[str, Any], factor: Tensor) -> bool:
    """Return whether the momentum, if any, has the dtype, device and layout of its factor."""
    momentum = state.get(MOMENTUM)
    return momentum is None or (
        momentum.dtype == factor.dtype
        and momentum.device == factor.device
        and momentum.is_contiguous()
    )


def ordinary_call(device: str) -> bool:
    """Return whether no inference mode, transform, float16, CUDA capture or process group is on."""
    distributed = torch.distributed
    return not (
        torch.is_inference_mode_enabled()
        or transforms_active()
        or (torch.is_autocast_enabled(device) and torch.get_autocast_dtype(device) == torch.float16)
        or (distributed.is_available() and distributed.is_initialized())
        or (device == "cuda" and torch.cuda.is_current_stream_capturing())
    )
