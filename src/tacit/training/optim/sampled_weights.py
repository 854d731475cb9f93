"""Sampled weights as an autograd function of the means and the rotated factors."""

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
    """mean + S z for all layers, with gradients for the means and the rotated factors.

    One function for all layers, since the overhead of a call matters in small networks.
    """

    @staticmethod
    def forward(
        ctx: Any, block: NoiseBlock, first: int, sample: tuple[int, ...], *tensors: Tensor
    ) -> tuple[Tensor, ...]:
        count, factors = math.prod(sample), block.factors
        means = tensors[: len(factors)]
        ctx.factors, ctx.first, ctx.sample = factors, first, sample
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
        factors, first = ctx.factors, ctx.first
        count = math.prod(ctx.sample)
        with own_precision(factors[0].values.device.type):
            for factor, gradient in zip(factors, gradients, strict=True):
                # `backward(inputs=...)` may exclude this factor.
                if gradient is not None and _accumulates(factor.accumulator):
                    factor.accumulate(first, gradient.reshape(count, -1))
        means = (g if g is None or not ctx.sample else g.sum(0) for g in gradients)
        return None, None, None, *means, *[None] * len(factors)


def _accumulates(node: Any) -> bool:
    """Return whether the current backward pass executes a node that accumulates a gradient."""
    try:
        return accumulates_gradient(node)
    except RuntimeError as error:
        raise RuntimeError(
            "tacit.SGD: gradients of the factors come from backward(), not from "
            "torch.autograd.grad, which needs torch.optim.SGD."
        ) from error
