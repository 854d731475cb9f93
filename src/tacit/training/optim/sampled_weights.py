"""Sampled weights as a function of autograd, whose gradients go to means and rotated factors."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from tacit._support.private_torch import accumulates_gradient
from tacit.training.optim.rotated_factors import NoiseBlock
from tacit.weights.distribution import laid_out, own_precision


class SampledWeights(torch.autograd.Function):
    """mean + S z of all layers; its gradient goes to the means, and to the turned factors.

    One function for all of them: what it takes to call one counts in small networks.
    """

    @staticmethod
    def forward(
        ctx: Any, block: NoiseBlock, first: int, sample: tuple[int, ...], *tensors: Tensor
    ) -> tuple[Tensor, ...]:
        count, factors = math.prod(sample), block.factors
        means = tensors[: len(factors)]
        ctx.place, ctx.sample = (factors, first), sample
        ctx.set_materialize_grads(False)
        weights = []
        for factor, mean in zip(factors, means, strict=True):
            sampled = factor.weights(mean, first, count)
            sampled = sampled.view(*sample, *mean.shape)
            weights.append(laid_out(sampled, mean) if mean.ndim == 4 else sampled)
        return tuple(weights)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        factors, first = ctx.place
        count = math.prod(ctx.sample)
        with own_precision(factors[0].parameter.device.type):
            for factor, gradient in zip(factors, gradients, strict=True):
                # Not if somebody asks for gradients of other parameters only.
                if gradient is not None and _accumulates(factor.accumulator):
                    factor.receive(first, gradient.reshape(count, -1))
        means = (g if g is None or not ctx.sample else g.sum(0) for g in gradients)
        return None, None, None, *means, *[None] * len(factors)


def _accumulates(node: Any) -> bool:
    """Return whether the backward pass that runs now accumulates a parameter's gradient."""
    try:
        return accumulates_gradient(node)
    except RuntimeError as error:
        raise RuntimeError(
            "tacit.SGD: gradients of the factors come by backward(), not by torch.autograd.grad; "
            "use torch.optim.SGD for it."
        ) from error
