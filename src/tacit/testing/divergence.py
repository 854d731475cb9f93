"""Conformance suite for KL divergence, 2-Wasserstein distance and exact output variances."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from functools import partial
from typing import TypeAlias

import torch
from torch import Tensor
from torch.distributions import MultivariateNormal, kl_divergence
from torch.testing import assert_close

from tacit.weights.covariance import Covariance, Shapes, parameter_count

Case: TypeAlias = tuple[Covariance, Shapes, dict[str, Tensor]]
Factors: TypeAlias = Mapping[str, Tensor]


class DivergenceSuite(ABC):
    """The part of `CovarianceSuite` that compares two distributions of the same structure."""

    @abstractmethod
    def cases(self, dtype: torch.dtype = torch.float64) -> Iterator[Case]:
        """Yield each structure for each kind of layer, with the tensors of S."""

    @abstractmethod
    def reference(self, covariance: Covariance, factors: Factors, shapes: Shapes) -> Tensor:
        """Return Sigma, (P, P), from the definition, without using the structure."""

    def test_squared_distance_matches_the_definition(self) -> None:
        """Also for singular covariances, and for scales that differ by orders of magnitude."""
        for covariance, shapes, factors in self.cases():
            for given in (factors, _zero(factors), _zero_one(factors), _all_equal(factors)):
                for others in (_others(factors), _zero_one(_others(factors)), _zero(factors)):
                    for size in (1.0, 1e-8):
                        small = {name: size * factor for name, factor in given.items()}
                        root = _root(self.reference(covariance, small, shapes).detach())
                        Sigma0 = self.reference(covariance, others, shapes).detach()
                        nuclear = torch.linalg.svdvals(root @ _root(Sigma0)).sum()
                        expected = root.square().sum() + Sigma0.trace() - 2 * nuclear
                        found = covariance.squared_distance(small, others, shapes).detach()
                        scale = (root.square().sum() + Sigma0.trace()).item()
                        assert_close(found, expected, rtol=0, atol=1e-7 * scale + 1e-14)

    def test_squared_distance_gradients_match_finite_differences(self) -> None:
        for covariance, shapes, factors in self.cases():
            distance = partial(_distance, covariance, shapes, _others(factors), tuple(factors))
            assert torch.autograd.gradcheck(distance, tuple(factors.values()), fast_mode=True)

    def test_squared_distance_to_itself_is_zero_and_stationary(self) -> None:
        for covariance, shapes, factors in self.cases():
            distance = covariance.squared_distance(factors, _copy(factors), shapes)
            assert abs(distance.item()) < 1e-9 * covariance.trace(factors, shapes).item()
            for gradient in torch.autograd.grad(distance, list(factors.values())):
                assert_close(gradient, torch.zeros_like(gradient), atol=1e-7, rtol=0)

    def test_squared_distance_is_accurate_in_low_precision(self) -> None:
        for dtype, digits in ((torch.float32, 1e-10), (torch.bfloat16, 5e-2)):
            for covariance, shapes, factors in self.cases(dtype):
                distance = covariance.squared_distance(factors, _copy(factors), shapes).item()
                trace = covariance.trace(factors, shapes).item()
                assert abs(distance) <= digits * trace, (covariance, dtype, distance / trace)

    def test_squared_distance_of_singular_covariances_has_finite_gradients(self) -> None:
        for covariance, shapes, factors in self.cases():
            for change in (_zero, _zero_one, _all_equal):
                changed = change(factors)
                for others in (_others(factors), _copy(changed)):
                    distance = covariance.squared_distance(changed, others, shapes)
                    assert distance.isfinite()
                    for gradient in torch.autograd.grad(distance, list(changed.values())):
                        assert gradient.isfinite().all(), (covariance, change.__name__)

    def test_kl_matches_dense_gaussians_or_is_refused(self) -> None:
        for covariance, shapes, factors in self.cases():
            others = _others(factors)
            P = parameter_count(shapes)
            mean = torch.linspace(-1, 1, P, dtype=torch.float64)
            difference = _cut(mean, shapes)
            Sigma = self.reference(covariance, factors, shapes)
            if torch.linalg.matrix_rank(Sigma) < P:
                _check_refused(covariance, difference, factors, others, shapes)
                continue
            p = MultivariateNormal(
                torch.zeros(P, dtype=torch.float64), self.reference(covariance, others, shapes)
            )
            expected = kl_divergence(MultivariateNormal(mean, Sigma), p)
            ours = covariance.kl(difference, factors, others, shapes)
            assert_close(ours, expected, rtol=1e-6, atol=1e-8)
            tensors = list(factors.values())
            for a, b in zip(
                torch.autograd.grad(ours, tensors),
                torch.autograd.grad(expected, tensors),
                strict=True,
            ):
                assert_close(a, b, rtol=1e-5, atol=1e-7)
            zero = {name: torch.zeros_like(part) for name, part in difference.items()}
            itself = covariance.kl(zero, factors, _copy(factors), shapes)
            assert abs(itself.item()) < 1e-8

    def test_output_variance_matches_the_dense_covariance(self) -> None:
        generator = torch.Generator().manual_seed(0)
        for covariance, shapes, factors in self.cases():
            if shapes.get("weight", torch.Size()) != (3, 5):
                continue
            x = torch.randn(4, 5, generator=generator, dtype=torch.float64)
            ours = covariance.output_variance(factors, x, shapes)
            assert ours.shape == (4, 3)
            Sigma = self.reference(covariance, factors, shapes)
            P = parameter_count(shapes)
            # Outputs are linear in the parameters: at unit vectors they are the gradients.
            units = _cut(torch.eye(P, dtype=torch.float64), shapes)
            outputs = x @ units["weight"].mT + units["bias"][:, None, :]  # (P, B, out)
            expected = torch.einsum("pbc,pq,qbc->bc", outputs, Sigma, outputs)
            assert_close(ours, expected)


def _check_refused(
    covariance: Covariance, difference: Factors, factors: Factors, others: Factors, shapes: Shapes
) -> None:
    reason = ""
    try:
        covariance.kl(difference, factors, others, shapes)
    except ValueError as error:
        reason = str(error)
    assert "singular" in reason, f"{covariance} is singular, so its KL is infinite"


def _distance(
    covariance: Covariance,
    shapes: Shapes,
    others: Factors,
    names: tuple[str, ...],
    *tensors: Tensor,
) -> Tensor:
    return covariance.squared_distance(dict(zip(names, tensors, strict=True)), others, shapes)


def _others(factors: Factors) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(7)
    return {
        name: factor.detach()
        + 0.3 * torch.randn(factor.shape, generator=generator, dtype=factor.dtype)
        for name, factor in factors.items()
    }


def _copy(factors: Factors) -> dict[str, Tensor]:
    return {name: factor.detach().clone() for name, factor in factors.items()}


def _zero(factors: Factors) -> dict[str, Tensor]:
    return {name: torch.zeros_like(factor, requires_grad=True) for name, factor in factors.items()}


def _zero_one(factors: Factors) -> dict[str, Tensor]:
    changed = _copy(factors)
    for factor in changed.values():
        factor.view(-1)[:1] = 0
    return {name: factor.requires_grad_() for name, factor in changed.items()}


def _all_equal(factors: Factors) -> dict[str, Tensor]:
    changed = _copy(factors)
    for factor in changed.values():
        factor.view(-1)[:] = factor.view(-1)[0]
    return {name: factor.requires_grad_() for name, factor in changed.items()}


def _cut(flat: Tensor, shapes: Shapes) -> dict[str, Tensor]:
    """Split the last dimension, of length P, into the tensors of the layer."""
    parts = flat.split([shape.numel() for shape in shapes.values()], dim=-1)
    return {
        name: part.reshape((*flat.shape[:-1], *shape))
        for (name, shape), part in zip(shapes.items(), parts, strict=True)
    }


def _root(matrix: Tensor) -> Tensor:
    values, basis = torch.linalg.eigh(matrix)
    root: Tensor = (basis * values.clamp_min(0).sqrt()) @ basis.T
    return root
