"""Distance of inputs from the training data, in the features of a layer."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from tacit._support import checks
from tacit.data.batches import Batch, Batches
from tacit.inference.features import features_at, output_layer
from tacit.likelihood import DiscreteLikelihood

ROUNDING = 1e-12  # a variance below this fraction of the second moment is a rounding error


@dataclass(frozen=True, eq=False, repr=False)
class FeatureDistance:
    """Distances of inputs from the training data, made by `feature_distance`.

    Attributes:
        model: The model whose features are compared.
        layer: Name of the layer.
        inputs: Whether the features are the inputs of the layer, instead of its outputs.
        means: Mean features of each class, or of all data, (C, F).
        covariance: Covariance of the features within classes, after shrinkage, (F, F).
        shrinkage: Weight of the multiple of the identity in it.

    Examples:
        >>> import tacit, torch
        >>> x = torch.randn(200, 2, generator=torch.manual_seed(0))
        >>> data = x, (x[:, 0] > 0).long()
        >>> distance = tacit.inference.feature_distance(torch.nn.Linear(2, 2), data)
        >>> near, far = distance(torch.tensor([[0.5, 0.5], [50.0, 50.0]]))
        >>> distance.means.shape, bool(far > 10 * near)
        (torch.Size([2, 2]), True)
    """

    model: nn.Module
    layer: str
    inputs: bool
    means: Tensor
    covariance: Tensor
    shrinkage: float

    def __repr__(self) -> str:
        side, (classes, size) = "input" if self.inputs else "output", self.means.shape
        return f"FeatureDistance({side} of {self.layer!r}, features={size}, means={classes})"

    def __call__(self, data: Any, *, batch_size: int = 1024) -> Tensor:
        """Return the distance of each input, (B,), in double precision on the CPU.

        Args:
            data: Inputs in any form that `tacit.predict` takes; targets are ignored.
            batch_size: Inputs per forward pass.
        """
        checks.positive_integer("batch_size", batch_size)
        batches = Batches("data", data, batch_size, targets=False)
        return torch.cat([self.of_batch(batch) for batch in batches.epoch()])

    def of_batch(self, batch: Batch) -> Tensor:
        """Return the distance of each input of a batch, (B,)."""
        with features_at(self.model, self.layer, inputs=self.inputs) as features:
            found = self._whiten(features(batch))
        # By products of matrices, the faster way, small distances would lose digits.
        exact = "donot_use_mm_for_euclid_dist"
        to_means: Tensor = torch.cdist(found, self._whitened_means, compute_mode=exact)
        return to_means.amin(1)

    @cached_property
    def _factor(self) -> Tensor:
        """L of the covariance L L^T."""
        factor: Tensor = torch.linalg.cholesky(self.covariance)
        return factor

    @cached_property
    def _whitened_means(self) -> Tensor:
        return self._whiten(self.means)

    def _whiten(self, features: Tensor) -> Tensor:
        """Return L^-1 f for each f: Mahalanobis distances become Euclidean."""
        found: Tensor = torch.linalg.solve_triangular(self._factor, features.T, upper=False)
        return found.T


def feature_distance(
    model: nn.Module, data: Any, layer: str | None = None, *, batch_size: int = 1024
) -> FeatureDistance:
    """Return the Mahalanobis distance from training data in a layer's features (Lee et al., 2018).

    The features of class c are taken as Gaussian, with a mean of their own and a covariance S that
    all classes share. The distance of features f is min_c sqrt((f - mean_c)^T S^-1 (f - mean_c)).
    If targets are not labels, as in regression, all data have one mean.

    Means and covariance are sums over one pass, in double precision; memory doesn't grow with the
    data. S is the empirical covariance shrunk towards a multiple of the identity with the same
    trace, S = (1 - r) E + r (tr E / F) I, which makes it invertible; r is that of the oracle
    approximating shrinkage (Chen et al., 2010), without its terms in 2 / F, as in scikit-learn.

    The model runs with its mean weights, in eval mode, without gradients. After further training,
    call this function again: the features have changed.

    Args:
        model: A variational model, a plain network, or a predictor of a single network from
            `tacit.methods`.
        data: Training data: inputs and targets, in any form that `tacit.evaluate` takes. Integer
            targets, one per example, are labels, unless the model's likelihood is continuous.
        layer: Name of the layer whose outputs are the features, as in `net.named_modules()`;
            features of several positions are averaged: over H and W for (B, C, H, W), over T for
            (B, T, F). By default the features are the inputs of the linear layer whose output is
            the network's.
        batch_size: Examples per forward pass.

    Returns:
        A function from inputs to distances, (B,); also a score for `tacit.evaluate(foreign=...)`.

    Raises:
        ValueError: If there is no such layer, it is not called once per forward pass, or its
            features don't vary.

    Examples:
        >>> import torch
        >>> x = torch.randn(200, 2, generator=torch.Generator().manual_seed(0))
        >>> distance = feature_distance(torch.nn.Linear(2, 1), (x, x.sum(1)))
        >>> distance
        FeatureDistance(input of '', features=2, means=1)
        >>> distance(torch.tensor([[0.0, 0.0], [9.0, 9.0]])).round()
        tensor([ 0., 13.], dtype=torch.float64)
    """
    batches = Batches("data", data, checks.positive_integer("batch_size", batch_size))
    inputs = layer is None
    if layer is None:
        layer = output_layer(model, next(batches.epoch()))
    own = getattr(model, "likelihood", None)
    discrete = own is None or isinstance(own, DiscreteLikelihood)
    moments, ignored = Moments(), getattr(own, "ignore_index", None)
    with features_at(model, layer, inputs=inputs) as features:
        for batch in batches.epoch():
            found, labels = features(batch), _labels(batch.targets) if discrete else None
            if labels is not None and ignored is not None:
                kept = labels != ignored
                found, labels = found[kept.to(found.device)], labels[kept]
            if len(found):
                moments.update(found, labels)
    if not moments.count:
        raise ValueError("data: all labels are to be ignored.")
    covariance, shrinkage = moments.covariance()
    return FeatureDistance(model, layer, inputs, moments.means(), covariance, shrinkage)


class Moments:
    """Class means and a shared covariance, summed over batches.

    Sums are relative to the mean of the first batch: in E[f f^T] - E[f] E[f]^T a large mean would
    cost digits.
    """

    def __init__(self) -> None:
        self.count = 0
        self._classes: dict[int, tuple[int, Tensor]] = {}  # number and sum of the features
        self._products: Tensor | None = None
        self._origin: Tensor | None = None

    def update(self, features: Tensor, labels: Tensor | None) -> None:
        """Add features (B, F) with their labels (B,), or None for a single class."""
        if self._origin is None or self._products is None:
            self._origin = features.mean(0)
            self._products = features.new_zeros(features.shape[1], features.shape[1])
        shifted = features - self._origin
        self._products += shifted.T @ shifted
        labels = torch.zeros(len(features), dtype=torch.long) if labels is None else labels
        for label in labels.unique().tolist():
            own = shifted[labels == label]
            count, total = self._classes.get(label, (0, 0.0))
            self._classes[label] = count + len(own), total + own.sum(0)
        self.count += len(features)

    def means(self) -> Tensor:
        """Return the mean of each class, (C, F), in the order of the labels."""
        assert self._origin is not None
        return self._origin + self._shifted_means()

    def covariance(self) -> tuple[Tensor, float]:
        """Return the covariance within classes, (F, F), shrunk to be invertible, and how much.

        Raises:
            ValueError: If all features are the same within each class.
        """
        assert self._products is not None
        sizes = torch.tensor([count for count, _ in self._sorted()], dtype=torch.float64)
        means = self._shifted_means()
        empirical = (self._products - (sizes[:, None] * means).T @ means) / self.count
        size, scale = len(empirical), empirical.diagonal().mean().item()
        if not scale > ROUNDING * self._products.diagonal().mean().item() / self.count:
            raise ValueError(
                "feature_distance: the features of the layer are not finite, or don't vary within "
                "classes; pass more examples, or choose another layer."
            )
        square = empirical.square().mean().item()
        excess = (self.count + 1) * (square - scale**2 / size)
        shrinkage = min((square + scale**2) / excess, 1.0) if excess > 0 else 1.0
        shrunk = (1 - shrinkage) * empirical
        shrunk.diagonal().add_(shrinkage * scale)
        return shrunk, shrinkage

    def _sorted(self) -> list[tuple[int, Tensor]]:
        return [self._classes[label] for label in sorted(self._classes)]

    def _shifted_means(self) -> Tensor:
        return torch.stack([total / count for count, total in self._sorted()])


def _labels(targets: Any) -> Tensor | None:
    """Return integer targets, one per example, as labels (B,); None for all others."""
    if not isinstance(targets, Tensor) or targets.is_floating_point() or targets.is_complex():
        return None
    flat = targets.reshape(len(targets), -1)
    return flat[:, 0].cpu().long() if flat.shape[1] == 1 else None
