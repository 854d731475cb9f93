"""Conformance suite for covariance structures."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import io
import math
import pickle
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from functools import partial

import torch
from torch import Tensor, nn
from torch.testing import assert_close

from tacit.calling import variational
from tacit.testing.divergence import Case, DivergenceSuite
from tacit.weights.covariance import Covariance, Shapes, parameter_count
from tacit.weights.distribution import Distribution
from tacit.weights.noise import Gaussian

LAYERS: dict[str, dict[str, torch.Size]] = {
    "linear": {"weight": torch.Size([3, 5]), "bias": torch.Size([3])},
    "convolution": {"weight": torch.Size([2, 3, 2, 1]), "bias": torch.Size([2])},
    "embedding": {"weight": torch.Size([4, 2])},
    "norm": {"weight": torch.Size([4]), "bias": torch.Size([4])},
    "token": {"token": torch.Size([1, 2, 3])},
    "scalar": {"gain": torch.Size([])},
}


class CovarianceSuite(DivergenceSuite):
    """Tests that pytest collects from a subclass, which defines `covariances` and `reference`.

    In both, `shapes` are the shapes of a layer's tensors. `factors` are the tensors of S that
    `Covariance.resolve` returns: the trained ones, unless S depends on the mean.

    Examples:
        >>> import torch, tacit
        >>> class TestLowRank(CovarianceSuite):
        ...     def covariances(self, shapes):
        ...         return [tacit.LowRank(1)]
        ...
        ...     def reference(self, covariance, factors, shapes):
        ...         R = covariance.rank
        ...         S = torch.cat([factors[name].reshape(R, -1) for name in shapes], dim=1).T
        ...         return S @ S.T
        >>> TestLowRank().test_dense_matches_the_definition()
    """

    @abstractmethod
    def covariances(self, shapes: Shapes) -> list[Covariance]:
        """Return structures for a layer: the smallest possible, one in between, the largest.

        An empty list for a layer that the structure doesn't support.
        """

    @abstractmethod
    def reference(
        self, covariance: Covariance, factors: Mapping[str, Tensor], shapes: Shapes
    ) -> Tensor:
        """Return Sigma, (P, P), from the definition, without using the structure."""

    def cases(self, dtype: torch.dtype = torch.float64) -> Iterator[Case]:
        """Yield each structure for each kind of layer, with the tensors of S."""
        for covariance, shapes, trained in self.trained_cases(dtype):
            S = covariance.resolve(make_mean(shapes, dtype=dtype), trained)
            yield covariance, shapes, {n: t.detach().requires_grad_() for n, t in S.items()}

    def trained_cases(self, dtype: torch.dtype = torch.float64) -> Iterator[Case]:
        """Yield each structure for each kind of layer, with initialized factors."""
        for shapes in LAYERS.values():
            for covariance in self.covariances(shapes):
                yield covariance, shapes, make_factors(covariance, shapes, dtype=dtype)

    def test_settings_are_frozen_and_comparable(self) -> None:
        for covariance, _, _ in self.cases():
            assert covariance == copy.deepcopy(covariance)
            assert hash(covariance) == hash(copy.deepcopy(covariance))
            with contextlib.suppress(dataclasses.FrozenInstanceError):
                covariance.scale = 2.0
                raise AssertionError(f"{covariance} is not frozen")

    def test_factor_names_start_with_a_tensor_of_the_layer(self) -> None:
        for covariance, shapes, _ in self.cases():
            for name in covariance.factors(shapes):
                assert any(name.startswith(tensor) for tensor in shapes), name

    def test_apply_returns_sample_shape_plus_tensor_shape(self) -> None:
        for covariance, shapes, factors in self.cases():
            for sample in ((), (5,), (2, 3)):
                z = torch.randn(*sample, covariance.noise_size(shapes), dtype=torch.float64)
                result = covariance.apply(factors, z, shapes)
                assert {name: part.shape for name, part in result.items()} == {
                    name: torch.Size((*sample, *shape)) for name, shape in shapes.items()
                }

    def test_shift_adds_what_apply_returns(self) -> None:
        for covariance, shapes, factors in self.trained_cases():
            mean = make_mean(shapes)
            S = covariance.resolve(mean, factors)
            for sample in ((), (5,), (2, 3)):
                z = torch.randn(*sample, covariance.noise_size(shapes), dtype=torch.float64)
                shifted = covariance.shift(mean, factors, z, shapes)
                for name, deviation in covariance.apply(S, z, shapes).items():
                    assert_close(shifted[name], mean[name] + deviation)

    def test_apply_is_linear_and_agrees_across_batches(self) -> None:
        for covariance, shapes, factors in self.cases():
            a, b = torch.randn(2, covariance.noise_size(shapes), dtype=torch.float64)
            batched = covariance.apply(factors, torch.stack([a, b]), shapes)
            sum_ = covariance.apply(factors, 2 * a - b, shapes)
            for name in shapes:
                assert_close(covariance.apply(factors, a, shapes)[name], batched[name][0])
                assert_close(sum_[name], 2 * batched[name][0] - batched[name][1])

    def test_dense_matches_the_definition(self) -> None:
        for covariance, shapes, factors in self.cases():
            expected = self.reference(covariance, factors, shapes)
            assert_close(covariance.dense(factors, shapes), expected)
            assert_close(covariance.trace(factors, shapes), expected.trace())

    def test_samples_have_the_right_mean_and_covariance(self, draws: int = 20_000) -> None:
        """Within 5.5 standard errors of products of Gaussians, for every pair of parameters."""
        for covariance, shapes, factors in self.trained_cases():
            layer = Distribution(make_mean(shapes), factors, covariance, Gaussian(), shapes)
            generator = torch.Generator().manual_seed(0)
            weights = layer.weights(layer.draw_noise((draws,), generator=generator))
            flat = torch.cat([weights[name].reshape(draws, -1) for name in shapes], dim=1)
            deviation = flat - layer.dense_mean()
            Sigma = self.reference(covariance, layer.resolved, shapes).detach()
            variances = Sigma.diagonal()
            error = (variances / draws).sqrt()
            assert (deviation.mean(0).abs() <= 5.5 * error).all()
            error = ((variances[:, None] * variances + Sigma**2) / draws).sqrt()
            assert ((deviation.T @ deviation / draws - Sigma).abs() <= 5.5 * error).all()

    def test_initial_variance_is_the_scale_squared(self, redraws: int = 400) -> None:
        """At every rank: the mean variance over redraws, within 6 standard errors.

        All entries of the mean have their initial scale, for noise relative to the mean. Tensors
        without a factor have no noise.
        """
        for unscaled, shapes, factors in self.trained_cases():
            covariance = dataclasses.replace(unscaled, scale=2.0)  # type: ignore[type-var]
            scales = {name: 0.1 * (i + 1) for i, name in enumerate(shapes)}
            mean = {
                name: torch.full(shape, scales[name], dtype=torch.float64)
                for name, shape in shapes.items()
            }
            noisy = [name for name in shapes if any(f.startswith(name) for f in factors)]
            generator = torch.Generator().manual_seed(0)
            relative = []
            for _ in range(redraws):
                covariance.initialize(factors, scales, shapes, generator=generator)
                S = covariance.resolve(mean, factors)
                variances = self.reference(covariance, S, shapes).detach().diagonal()
                parts = variances.split([shape.numel() for shape in shapes.values()])
                found = dict(zip(shapes, parts, strict=True))
                relative.append([float(found[n].mean()) / (2 * scales[n]) ** 2 for n in noisy])
            sample = torch.tensor(relative, dtype=torch.float64)
            error = sample.std(0) / math.sqrt(redraws) + 1e-12
            assert ((sample.mean(0) - 1).abs() <= 6 * error).all(), (covariance, sample.mean(0))

    def test_gradients_match_the_definition(self) -> None:
        for covariance, shapes, factors in self.cases():
            P = parameter_count(shapes)
            weight = torch.randn(P, P, dtype=torch.float64)
            tensors = list(factors.values())
            ours = torch.autograd.grad((weight * covariance.dense(factors, shapes)).sum(), tensors)
            reference = self.reference(covariance, factors, shapes)
            theirs = torch.autograd.grad((weight * reference).sum(), tensors)
            for a, b in zip(ours, theirs, strict=True):
                assert_close(a, b)
            ours = torch.autograd.grad(covariance.trace(factors, shapes), tensors)
            theirs = torch.autograd.grad(
                self.reference(covariance, factors, shapes).trace(), tensors
            )
            for a, b in zip(ours, theirs, strict=True):
                assert_close(a, b)

    def test_gradients_of_apply_match_finite_differences(self) -> None:
        for covariance, shapes, factors in self.cases():
            z = torch.randn(2, covariance.noise_size(shapes), dtype=torch.float64)

            apply = partial(_apply_flat, covariance, shapes, tuple(factors), z)
            assert torch.autograd.gradcheck(apply, tuple(factors.values()), fast_mode=True)

    def test_every_factor_has_a_learning_rate(self) -> None:
        for covariance, shapes, factors in self.trained_cases():
            scales, rates = dict.fromkeys(shapes, 0.5), dict.fromkeys(shapes, 0.1)
            for family in ("sgd", "adam"):
                given = covariance.learning_rates(shapes, scales, rates, family)
                assert given.keys() == factors.keys()
                assert all(0 < rate < math.inf for rate in given.values())

    def test_zero_factors_give_zero_noise_and_finite_gradients(self) -> None:
        for covariance, shapes, factors in self.cases():
            with torch.no_grad():
                for factor in factors.values():
                    factor.zero_()
            z = torch.randn(covariance.noise_size(shapes), dtype=torch.float64)
            parts = covariance.apply(factors, z, shapes)
            assert all(bool((part == 0).all()) for part in parts.values())
            total = torch.stack([part.sum() for part in parts.values()]).sum()
            for gradient in torch.autograd.grad(total, list(factors.values())):
                assert gradient.isfinite().all()

    def test_apply_keeps_dtype_and_device(self) -> None:
        # On the meta device, operations with a stray CPU tensor fail.
        for dtype in (torch.float32, torch.float64, torch.bfloat16):
            for covariance, shapes, factors in self.cases(dtype):
                for device in ("cpu", "meta"):
                    moved = {name: factor.detach().to(device) for name, factor in factors.items()}
                    z = torch.zeros(2, covariance.noise_size(shapes), dtype=dtype, device=device)
                    for part in covariance.apply(moved, z, shapes).values():
                        assert part.dtype == dtype
                        assert part.device.type == device

    def test_model_survives_state_dict_deepcopy_and_pickle(self) -> None:
        x = torch.randn(4, 5)
        for covariance in self.covariances(LAYERS["linear"]):
            model = variational(nn.Linear(5, 3), {"": covariance})
            expected = self._sampled(model, x)
            other = variational(nn.Linear(5, 3), {"": covariance})
            other.load_state_dict(model.state_dict())
            stream = io.BytesIO()
            pickle.dump(model, stream)
            stream.seek(0)
            for same in (other, copy.deepcopy(model), pickle.load(stream)):
                assert torch.equal(self._sampled(same, x), expected)

    @staticmethod
    def _sampled(model: nn.Module, x: Tensor) -> Tensor:
        output: Tensor = model(x, samples=3, generator=torch.Generator().manual_seed(1))
        return output


def _apply_flat(
    covariance: Covariance, shapes: Shapes, names: tuple[str, ...], z: Tensor, *tensors: Tensor
) -> tuple[Tensor, ...]:
    factors = dict(zip(names, tensors, strict=True))
    return tuple(covariance.apply(factors, z, shapes).values())


def make_factors(
    covariance: Covariance, shapes: Shapes, *, seed: int = 0, dtype: torch.dtype = torch.float64
) -> dict[str, Tensor]:
    """Return initialized factors of a layer, with requires_grad set."""
    factors = {
        name: torch.zeros(factor.shape, dtype=dtype, requires_grad=True)
        for name, factor in covariance.factors(shapes).items()
    }
    scales = dict.fromkeys(shapes, 0.5)
    covariance.initialize(factors, scales, shapes, generator=torch.Generator().manual_seed(seed))
    return factors


def make_mean(
    shapes: Shapes, *, seed: int = 1, dtype: torch.dtype = torch.float64
) -> dict[str, Tensor]:
    """Return a random mean of a layer."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
        for name, shape in shapes.items()
    }
