"""Which layers' updates can be deferred, and for which deferral is faster."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from tacit._support.private_torch import (
    has_gradient_hooks,
    running_backward,
    saved_tensor_hooks,
    transforms_active,
)
from tacit.calling.usage import inside_checkpoint
from tacit.training.optim.rotated_factors import MOMENTUM
from tacit.weights.covariance import LowRank
from tacit.weights.distribution import Distribution
from tacit.weights.noise import Gaussian

WIDE = 500_000  # minimum factor size for which deferral pays off
SMALL = 50_000  # minimum factor size of further layers, once a model defers at all


def has_wide_layers(distributions: Iterable[Distribution], draws: int) -> bool:
    """Return whether deferral pays off for some layer."""
    return any(_is_faster(distribution, draws, size=WIDE) for distribution in distributions)


def eligible_layers(
    distributions: Mapping[str, Distribution], draws: int, optimizer: torch.optim.SGD | None
) -> dict[str, Distribution]:
    """Return the layers whose updates this optimizer can defer, and for which that is faster.

    Args:
        distributions: Distributions of the random layers.
        draws: Number of draws of the weights per forward pass.
        optimizer: The optimizer; layers with factors that it doesn't update are not eligible.
    """
    if optimizer is None or not _ordinary_call():
        return {}
    own = {id(p) for group in optimizer.param_groups for p in group["params"]}
    return {
        label: distribution
        for label, distribution in distributions.items()
        if _is_faster(distribution, draws, SMALL)
        and all(id(S) in own for S in distribution.factors.values())
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
    momenta = [optimizer.state.get(S, {}).get(MOMENTUM) for S in factors]
    return all(map(_is_plain, (*distribution.mean.values(), *factors))) and all(
        S.is_contiguous()
        and not has_gradient_hooks(S)
        and (v is None or (v.dtype, v.device, v.is_contiguous()) == (S.dtype, S.device, True))
        for S, v in zip(factors, momenta, strict=True)
    )


def _is_plain(tensor: Tensor) -> bool:
    """Return whether a tensor is trained in single or double precision, not under float16."""
    kind = tensor.device.type
    half = torch.is_autocast_enabled(kind) and torch.get_autocast_dtype(kind) == torch.float16
    dtypes = torch.float32, torch.float64
    return tensor.requires_grad and tensor.is_leaf and tensor.dtype in dtypes and not half


def _ordinary_call() -> bool:
    """Return whether no inference mode, transform, process group or CUDA capture is active.

    Nor activation checkpointing, which would have to repeat the draws.
    """
    if torch.is_inference_mode_enabled() or transforms_active():
        return False
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return False
    if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
        return False
    # Cheap necessary conditions of checkpointing, before the slower search of the call stack.
    plain = saved_tensor_hooks() is None and torch.is_grad_enabled() and running_backward() == -1
    return plain or not inside_checkpoint()
