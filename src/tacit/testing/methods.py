"""What every method must do: inherit, say how to make one, and pytest does the rest."""

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
from tacit.methods import Method, load, save

LEARNED: dict[type, dict[tuple[int, torch.dtype], Predictor]] = {}


class MethodSuite(ABC):
    """Tests for a method; a subclass whose name begins with Test says how to make it.

    Examples:
        >>> from tacit.methods import Standard
        >>> class TestStandard(MethodSuite):
        ...     def method(self):
        ...         return Standard()
    """

    post_hoc = False
    """Whether the accuracy must be exactly that of the plain network."""
    epochs, lr = 20, 0.05
    regression = True
    """Whether the method takes numbers as targets too."""

    @abstractmethod
    def method(self) -> Method:
        """Return the method, with settings for a small task."""

    def net(self) -> nn.Module:
        """Return a new network with 2 inputs and 3 outputs."""
        return nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 3))

    def data(self, seed: int = 0, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
        """Return three clouds of points, and which of them each is from."""
        generator = torch.Generator().manual_seed(seed)
        labels = torch.arange(150) % 3
        angles = 2 * torch.pi * labels / 3
        centres = 2 * torch.stack([angles.cos(), angles.sin()], -1)
        points = centres + torch.randn(150, 2, generator=generator)
        return points.to(dtype), labels

    def learned(self, seed: int = 0, dtype: torch.dtype = torch.float32) -> Predictor:
        """Return what the method learns from the clouds; trained once, for several tests."""
        known = LEARNED.setdefault(type(self), {})
        if (seed, dtype) not in known:
            known[seed, dtype] = self.train(seed, dtype)
        return known[seed, dtype]

    def train(self, seed: int = 0, dtype: torch.dtype = torch.float32) -> Predictor:
        """Return what the method learns from the clouds."""
        return self.method().fit(
            lambda: self.net().to(dtype), self.data(0, dtype), self.data(1, dtype),
            epochs=self.epochs, lr=self.lr, batch_size=25, seed=seed, progress=False,
        )  # fmt: skip

    def predicted(self, predictor: Predictor) -> ClassPredictive:
        """Return predictions for points that were not trained on."""
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

    def test_predictions_are_probabilities(self) -> None:
        found = self.predicted(self.learned())
        torch.testing.assert_close(found.probs.sum(-1), torch.ones(150))
        assert found.entropy.isfinite().all()
        assert (found.mutual_information >= 0).all()

    def test_the_same_seed_gives_the_same(self) -> None:
        learned = self.learned(), self.train(), self.train(seed=1)
        one, two, other = (self.predicted(predictor).probs for predictor in learned)
        assert torch.equal(one, two)
        assert not torch.equal(one, other)

    def test_the_global_generator_stays_as_it_was(self) -> None:
        state = torch.get_rng_state()
        self.train()
        assert torch.equal(torch.get_rng_state(), state)

    def test_double_precision(self) -> None:
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
    def test_saved_and_loaded(self, tmp_path: Path, dtype: torch.dtype) -> None:
        predictor = self.learned(dtype=dtype)
        path = save(predictor, tmp_path / "predictor.safetensors")
        loaded = load(path, self.net)
        assert torch.equal(self.predicted(loaded).probs, self.predicted(predictor).probs)
        assert loaded.cost == predictor.cost

    def test_what_it_cost(self) -> None:
        cost = self.learned().cost
        assert cost is not None
        assert cost.parameters >= 99
        assert cost.seconds > 0
        assert not cost.peak_bytes < 0

    def test_the_batch_size_of_predictions_doesnt_matter(self) -> None:
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

    def test_numbers(self) -> None:
        if not self.regression:
            pytest.skip("for classes only")
        generator = torch.Generator().manual_seed(0)
        x = 2 * torch.rand(200, 1, generator=generator) - 1
        y = torch.sin(3 * x) + 0.1 * torch.randn(200, 1, generator=generator)
        predictor = self.method().fit(
            lambda: nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 1)), (x, y), (x, y),
            likelihood=Gaussian(0.1, learn=False), epochs=60, lr=5e-4, batch_size=20,
            progress=False,
        )  # fmt: skip
        assert evaluate(predictor, (x, y), samples=16)["rmse"] < 0.25

    def test_accuracy_is_kept_by_what_is_done_afterwards(self) -> None:
        if not self.post_hoc:
            pytest.skip("it trains in its own way")
        from tacit.methods import Standard

        arguments = {"epochs": self.epochs, "lr": self.lr, "batch_size": 25, "progress": False}
        data = (self.net, self.data(0), self.data(1))
        plain = self.predicted(Standard().fit(*data, **arguments))  # type: ignore[arg-type]
        found = self.predicted(self.method().fit(*data, **arguments))  # type: ignore[arg-type]
        assert torch.equal(found.label, plain.label)
        assert not torch.equal(found.probs, plain.probs)
