"""The distribution of one layer's parameters, w = mean + S z."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from tacit.weights.covariance import ActivationNoise, Covariance, Shapes
from tacit.weights.noise import Noise

ROWS = 8  # of random numbers that the examples of a batch share
SHARED = 2**15  # minimum number of components for sharing random numbers to pay off


@dataclass(frozen=True, eq=False)
class Distribution:
    """A joint distribution over the tensors of one layer, with given mean and Sigma = S S^T.

    A view: it holds the trained tensors themselves, not copies.

    Args:
        mean: The layer's tensors by name, for instance weight and bias.
        factors: The tensors from which `covariance` builds S.
        covariance: The structure of S.
        noise: The distribution of z.
        shapes: The shapes of the layer's tensors by name.
        padding: Rows that are always equal to the mean's: name of an embedding's weight -> rows.

    Examples:
        >>> import tacit, torch
        >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
        >>> layer = tacit.variational(net, {"2": tacit.Diagonal()}).distributions["2"]
        >>> layer.mean["weight"].shape, layer.dense_covariance().shape
        (torch.Size([2, 8]), torch.Size([18, 18]))
        >>> weights = layer.weights(layer.draw_noise((32,)))
        >>> weights["weight"].shape
        torch.Size([32, 2, 8])
    """

    mean: Mapping[str, Tensor]
    factors: Mapping[str, Tensor]
    covariance: Covariance
    noise: Noise
    shapes: Shapes
    padding: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    @property
    def resolved(self) -> Mapping[str, Tensor]:
        """The tensors of S: the factors, unless S depends on the mean."""
        return self.covariance.resolve(self.mean, self.factors)

    def draw_noise(
        self, shape: tuple[int, ...] = (), *, generator: torch.Generator | None = None
    ) -> Tensor:
        """Draw z of shape (*shape, K)."""
        size = self.covariance.noise_size(self.shapes)
        like = next(iter(self.mean.values()))
        return self.noise.sample((*shape, size), like=like, generator=generator)

    def weights(self, z: Tensor) -> dict[str, Tensor]:
        """Return mean + S z for each tensor of the layer, of shape (*z.shape[:-1], *shape)."""
        with own_precision(z.device.type):
            weights = self.covariance.shift(self.mean, self.factors, z, self.shapes)
        for name, mean in self.mean.items():
            if mean.ndim == 4:
                weights[name] = laid_out(weights[name], mean)
        return self.with_padding(weights) if self.padding else weights

    def in_activation_space(
        self, z: Tensor, signs: Tensor | None = None
    ) -> Mapping[str, ActivationNoise]:
        """Return the noise of each tensor in a form that acts on activations.

        Args:
            z: Noise, (*sample, K).
            signs: Signs of its components, (K,), if z is without them.
        """
        with own_precision(z.device.type):
            factors: Mapping[str, Tensor] | None = self.factors
            if signs is not None:
                factors = self.covariance.flip_columns(self.factors, signs, self.shapes)
            if signs is None or factors is None:
                z, factors = z if signs is None else z * signs, self.factors
            return self.covariance.in_activation_space(factors, z, self.shapes)

    def with_padding(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return sampled weights with the mean's padding rows, which torch doesn't train either."""
        padded = dict(weights)
        for name, row in ((name, row) for name, rows in self.padding.items() for row in rows):
            own = self.mean[name][row].expand(padded[name].select(-2, row).shape)
            padded[name] = padded[name].select_scatter(own, -2, row)
        return padded

    def trace(self) -> Tensor:
        """Return the trace of Sigma, the sum of the parameters' variances."""
        return self.covariance.trace(self.resolved, self.shapes)

    def dense_mean(self) -> Tensor:
        """Return the mean as one vector of length P, the tensors concatenated."""
        return torch.cat([tensor.flatten() for tensor in self.mean.values()])

    def dense_factor(self) -> Tensor:
        """Return S of shape (P, K); only for small layers."""
        return self.covariance.dense_factor(self.resolved, self.shapes)

    def dense_covariance(self) -> Tensor:
        """Return Sigma of shape (P, P); only for small layers."""
        return self.covariance.dense(self.resolved, self.shapes)


@dataclass(frozen=True, eq=False)
class ExampleNoise:
    """The noise z of a layer for each example of a batch.

    Args:
        rows: Numbers of each example, (examples, K). Examples may share memory.
        signs: Signs of the components, (K,), the same for all examples; None if rows have theirs.
    """

    rows: Tensor
    signs: Tensor | None

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Tensor:
        """Return z of an example, (K,)."""
        row = self.rows[index]
        return row if self.signs is None else row * self.signs

    @property
    def z(self) -> Tensor:
        """The noise of all examples, (examples, K)."""
        return self.rows if self.signs is None else self.rows * self.signs


def draw_noise(
    distributions: Mapping[str, Distribution],
    shape: tuple[int, ...],
    generator: torch.Generator | None,
) -> dict[str, Tensor]:
    """Draw the noise of some layers: label -> (*shape, K)."""
    return {
        label: distribution.draw_noise(shape, generator=generator)
        for label, distribution in distributions.items()
    }


def draw_noise_per_example(
    distributions: Mapping[str, Distribution], size: int, generator: torch.Generator | None
) -> dict[str, ExampleNoise]:
    """Draw the noise of some layers for each example of a batch, by label.

    All layers are drawn together, and examples take overlapping windows of one row of random
    numbers: see `_windows`.
    """
    alike: dict[tuple[int, torch.dtype, torch.device], list[str]] = defaultdict(list)
    for label, distribution in distributions.items():
        like = next(iter(distribution.mean.values()))
        alike[id(distribution.noise), like.dtype, like.device].append(label)
    noise: dict[str, ExampleNoise] = {}
    for labels in alike.values():
        own = [distributions[label] for label in labels]
        sizes = [d.covariance.noise_size(d.shapes) for d in own]
        drawn = _windows(own[0], size, sum(sizes), generator)
        rows = drawn.rows.split(sizes, dim=1)
        signs = [None] * len(own) if drawn.signs is None else drawn.signs.split(sizes)
        noise.update(zip(labels, map(ExampleNoise, rows, signs), strict=True))
    return noise


def _windows(
    distribution: Distribution, size: int, width: int, generator: torch.Generator | None
) -> ExampleNoise:
    """Draw noise for each example, (size, width), from about `ROWS` rows of random numbers.

    Each example's components are independent and have the distribution of the family. Different
    examples share numbers, but for different components, so their noise is uncorrelated component
    by component. Sums over components would not be: where all terms have one sign, as in an output
    far from 0, those of neighbours are nearly equal, and the variance of a batch's gradient grew
    13-fold with 1,024 examples. A random sign for each component removes that. Sums of squares of
    neighbours are still correlated, which narrow networks with similar inputs notice: there, and
    where noise is not symmetric, all numbers are drawn. `benchmarks/shared_noise.py` compares the
    variances of gradients.
    """
    like = next(iter(distribution.mean.values()))
    step = min(width, -(-ROWS * width // max(size, 1)))
    if step == width or size * width < SHARED or not distribution.noise.symmetric:
        z = distribution.noise.sample((size, width), like=like, generator=generator)
        return ExampleNoise(z, None)
    drawn = (2 * width + (size - 1) * step,)
    z = distribution.noise.sample(drawn, like=like, generator=generator)
    signs = torch.copysign(z.new_ones(()), z[:width])
    return ExampleNoise(z[width:].unfold(0, width, step), signs)


def own_precision(device: str) -> AbstractContextManager[Any]:
    """Return a context that disables autocast, for sampling weights in their own precision.

    bfloat16 has too few digits for small deviations from the mean.
    """
    if torch.is_autocast_enabled(device):
        return torch.autocast(device, enabled=False)
    return nullcontext()


def laid_out(sampled: Tensor, mean: Tensor) -> Tensor:
    """Return a convolution's sampled weights in the memory format of their mean.

    mean + S z already has it, except where a dimension has size 1, such as the channel of grayscale
    images. There any stride is valid, and convolutions infer the wrong format from it. With a
    random first convolution this cuts a training step of LeNet-5 to two thirds of the time.
    """
    if sampled.stride()[-4:] == mean.stride():
        return sampled
    out, channels, height, width = mean.shape
    last = sampled.is_contiguous() and mean.is_contiguous(memory_format=torch.channels_last)
    if not last or (channels > 1 and height * width > 1):
        return sampled
    return sampled.view(*sampled.shape[:-4], out, height, width, channels).movedim(-1, -3)
