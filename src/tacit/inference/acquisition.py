"""Active learning: which inputs of a pool to label next."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler

from tacit._support import checks
from tacit.data.batches import Batches
from tacit.inference.functions import likelihood_of, predict
from tacit.inference.scores import by_example
from tacit.likelihood import DiscreteLikelihood, Likelihood


def acquire(
    model: nn.Module,
    pool: Any,
    k: int,
    *,
    by: str | None = None,
    power: float | None = None,
    samples: int = 32,
    likelihood: Likelihood | None = None,
    batch_size: int = 1024,
    chunk_size: int | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Return the indices of k inputs of a pool to label next, the most uncertain first.

    The k most uncertain inputs tend to resemble each other. With `power` they are drawn at random
    instead, without replacement and with probabilities proportional to score^power (Kirsch et al.,
    2023, "power acquisition"): the k largest values of power log(score) + Gumbel noise. That costs
    nothing beyond the scores, and avoids near-duplicates.

    Args:
        model: A variational model, a plain network, or a predictor from `tacit.methods`.
        pool: Inputs in any form that `tacit.predict` takes; targets are ignored. A DataLoader must
            not shuffle.
        k: Number of inputs to select.
        by: Score of the predictions, larger for less certain ones: for classes and binary targets
            "margin" (the default), "entropy", "mutual_information" (BALD, Houlsby et al., 2011),
            "max_prob", "expected_entropy" or "energy"; for regression "epistemic_std" (the
            default), "std" or "aleatoric_std". "random" for a uniform choice. Several targets per
            example count by the mean of their scores.
        power: Exponent of power acquisition; None for the k largest scores. Scores must not be
            negative.
        samples: Number of functions.
        likelihood: Likelihood of the outputs; the model's own by default.
        batch_size: Inputs per forward pass.
        chunk_size: Number of functions to run at a time, to bound memory.
        generator: Source of randomness, for drawing the functions and the inputs.

    Returns:
        Distinct indices, (k,), on the CPU. Ties go to the smaller index.

    Raises:
        ValueError: If the pool has fewer than k inputs, or the predictions have no such score.

    Examples:
        >>> import tacit, torch
        >>> net = torch.nn.Linear(1, 1)
        >>> pool = torch.tensor([[-9.0], [0.0], [9.0]]) - net.bias.item() / net.weight.item()
        >>> tacit.acquire(net, pool, 1, likelihood=tacit.Bernoulli())
        tensor([1])
    """
    likelihood = likelihood_of(model, likelihood)
    batches = Batches("pool", pool, batch_size, targets=False)
    _check_order(batches.loader)
    if checks.positive_integer("k", k) > batches.size:
        raise ValueError(f"k: expected at most {batches.size}, the size of the pool; received {k}.")
    if power is not None:
        checks.positive_number("power", power)
    if by is None:
        by = "margin" if isinstance(likelihood, DiscreteLikelihood) else "epistemic_std"
    if by == "random":
        return _largest(_uniform(batches.size, generator), k)
    predictions = predict(
        model, pool, samples=samples, likelihood=likelihood, batch_size=batch_size,
        chunk_size=chunk_size, stream=True, generator=generator,
    )  # fmt: skip
    scores = torch.cat([by_example(p.uncertainty(by)).double().cpu() for p in predictions])
    if scores.isnan().any():
        raise ValueError("acquire: some predictions are NaN.")
    return _largest(scores if power is None else _perturbed(scores, by, power, generator), k)


def _largest(scores: Tensor, k: int) -> Tensor:
    return scores.argsort(descending=True, stable=True)[:k]


def _perturbed(scores: Tensor, by: str, power: float, generator: torch.Generator | None) -> Tensor:
    """Return power log(score) + Gumbel noise.

    Scores of 0, whose logarithm is infinite, count as the smallest number: they come last, in
    random order.
    """
    if (scores < 0).any():
        raise ValueError(
            f"power: expected scores of at least 0, received {scores.min().item():.4g} by {by!r}; "
            "choose another score."
        )
    gumbel = -(-_uniform(len(scores), generator).log()).log()
    return power * scores.clamp_min(torch.finfo(scores.dtype).tiny).log() + gumbel


def _uniform(size: int, generator: torch.Generator | None) -> Tensor:
    """Return random numbers above 0 and below 1 in double precision, on the CPU."""
    device = "cpu" if generator is None else generator.device
    # From a seed: not all devices have double precision.
    seed = int(torch.randint(2**62, (), generator=generator, device=device))
    drawn = torch.rand(size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return drawn.clamp_min(torch.finfo(torch.float64).tiny)


def _check_order(loader: DataLoader[Any] | None) -> None:
    """Raise ValueError if the order of a DataLoader is not that of its dataset."""
    if loader is None:
        return
    sampler, batches = loader.sampler, loader.batch_sampler
    # With a batch sampler of the user's, torch still sets a sequential sampler, and ignores it.
    if batches is not None and type(batches) is not BatchSampler:
        sampler = batches
    if not isinstance(sampler, SequentialSampler):
        raise ValueError(
            "pool: expected a DataLoader in the order of its dataset, to which the indices refer; "
            f"received one with a {type(sampler).__name__}. Pass the dataset, or shuffle=False."
        )
