"""Conformance suite for methods."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from tacit.inference import evaluate, predict
from tacit.inference.functions import Predictor
from tacit.likelihood import Gaussian
from tacit.likelihood.predictive import ClassPredictive
from tacit.methods import Method, Standard, load, save

LEARNED: dict[type, dict[tuple[int, torch.dtype], Predictor]] = {}


class MethodSuite(ABC):
    """Tests that pytest collects from a subclass, which defines `method`.

    Examples:
        >>> from tacit.methods import Standard
        >>> class TestStandard(MethodSuite):
        ...     def method(self):
        ...         return Standard()
    """

    post_hoc = False
    """Whether the method only adjusts a trained plain network, so that accuracy is unchanged."""
    epochs, lr = 20, 0.05
    """Settings with which the method learns the clusters."""
    regression_epochs, regression_lr = 60, 0.01
    """Settings with which it learns a sine, with Adam."""
    regression = True
    """Whether the method supports regression."""

    @abstractmethod
    def method(self) -> Method:
        """Return the method, with settings for a small problem."""

    def net(self) -> nn.Module:
        """Return a new network with 2 inputs and 3 outputs."""
        return nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 3))

    def data(self, seed: int = 0, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
        """Return points from three Gaussian clusters, (150, 2), and the labels of the clusters."""
        generator = torch.Generator().manual_seed(seed)
        labels = torch.arange(150) % 3
        angles = 2 * torch.pi * labels / 3
        centres = 2 * torch.stack([angles.cos(), angles.sin()], -1)
        points = centres + torch.randn(150, 2, generator=generator)
        return points.to(dtype), labels

    def learned(self, seed: int = 0, dtype: torch.dtype = torch.float32) -> Predictor:
        """Return the predictor trained on the clusters; cached, as several tests use it."""
        known = LEARNED.setdefault(type(self), {})
        if (seed, dtype) not in known:
            known[seed, dtype] = self.train(seed, dtype)
        return known[seed, dtype]

    def train(self, seed: int = 0, dtype: torch.dtype = torch.float32) -> Predictor:
        """Train the method on the clusters and return the predictor."""
        return self.method().fit(
            lambda: self.net().to(dtype), self.data(0, dtype), self.data(1, dtype),
            epochs=self.epochs, lr=self.lr, batch_size=25, seed=seed, progress=False,
        )  # fmt: skip

    def predicted(self, predictor: Predictor) -> ClassPredictive:
        """Return predictions for held-out points."""
        like = next(predictor.parameters())
        x = self.data(2)[0].to(like)
        generator = torch.Generator().manual_seed(0)
        found = predict(predictor, x, samples=8, generator=generator)
        assert isinstance(found, ClassPredictive)
        return found

    def test_it_learns(self) -> None:
        predictor = self.learned()
        scores = evaluate(predictor, self.data(2), generator=torch.Generator().manual_seed(0))
        assert scores["accuracy"] > 0.85
        assert scores["nll"] < 0.45

    def test_predictions_are_probability_distributions(self) -> None:
        found = self.predicted(self.learned())
        torch.testing.assert_close(found.probs.sum(-1), torch.ones(150))
        assert found.entropy.isfinite().all()
        assert (found.mutual_information >= 0).all()

    def test_training_is_determined_by_the_seed(self) -> None:
        learned = self.learned(), self.train(), self.train(seed=1)
        one, two, other = (self.predicted(predictor).probs for predictor in learned)
        assert torch.equal(one, two)
        assert not torch.equal(one, other)

    def test_training_leaves_the_global_generator_untouched(self) -> None:
        state = torch.get_rng_state()
        self.train()
        assert torch.equal(torch.get_rng_state(), state)

    def test_double_precision_is_kept(self) -> None:
        assert self.predicted(self.learned(dtype=torch.float64)).probs.dtype == torch.float64

    def test_data_with_nan_are_refused(self) -> None:
        x, y = self.data()
        x[3] = torch.nan
        with pytest.raises(ValueError, match="not finite"):
            self.method().fit(self.net, (x, y), self.data(1), epochs=1, lr=0.1, progress=False)

    def test_a_network_instead_of_a_function_is_refused(self) -> None:
        with pytest.raises(TypeError, match="make_net: expected a function that makes a network"):
            self.method().fit(self.net(), self.data(), self.data(1), epochs=1, lr=0.1)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_a_loaded_predictor_predicts_the_same(self, tmp_path: Path, dtype: torch.dtype) -> None:
        predictor = self.learned(dtype=dtype)
        path = save(predictor, tmp_path / "predictor.safetensors")
        loaded = load(path, self.net)
        assert torch.equal(self.predicted(loaded).probs, self.predicted(predictor).probs)
        assert loaded.cost == predictor.cost

    def test_the_cost_of_training_is_recorded(self) -> None:
        cost = self.learned().cost
        assert cost is not None
        assert cost.parameters >= 99
        assert cost.seconds > 0

    def test_predictions_dont_depend_on_the_batch_size(self) -> None:
        predictor = self.learned()
        x = self.data(2)[0]
        found = [
            predict(
                predictor, x, samples=8, batch_size=size, generator=torch.Generator().manual_seed(0)
            )
            for size in (7, 150)
        ]
        assert all(isinstance(prediction, ClassPredictive) for prediction in found)
        torch.testing.assert_close(found[0].probs, found[1].probs)  # type: ignore[attr-defined]

    def test_regression(self) -> None:
        if not self.regression:
            pytest.skip("classification only")
        generator = torch.Generator().manual_seed(0)
        x = 2 * torch.rand(200, 1, generator=generator) - 1
        y = torch.sin(3 * x) + 0.1 * torch.randn(200, 1, generator=generator)
        predictor = self.method().fit(
            lambda: nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 1)), (x, y), (x, y),
            likelihood=Gaussian(0.1, learn=False), epochs=self.regression_epochs,
            lr=self.regression_lr, batch_size=20, optimizer="adam", progress=False,
        )  # fmt: skip
        rmse = evaluate(predictor, (x, y), samples=16)["rmse"]
        assert rmse < 0.25, f"rmse {rmse:.3f}: try other regression_epochs and regression_lr"

    def test_post_hoc_methods_keep_the_predicted_labels(self) -> None:
        if not self.post_hoc:
            pytest.skip("not a post-hoc method")
        arguments = {"epochs": self.epochs, "lr": self.lr, "batch_size": 25, "progress": False}
        data = (self.net, self.data(0), self.data(1))
        plain = self.predicted(Standard().fit(*data, **arguments))  # type: ignore[arg-type]
        found = self.predicted(self.method().fit(*data, **arguments))  # type: ignore[arg-type]
        assert torch.equal(found.label, plain.label)
        assert not torch.equal(found.probs, plain.probs)
