"""Conformance suite for likelihoods."""

from __future__ import annotations

from abc import ABC, abstractmethod

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from tacit.likelihood import ContinuousLikelihood, DiscreteLikelihood, Likelihood

EXAMPLES, FUNCTIONS = 6, 4
LARGE = 10.0  # times the usual outputs


class LikelihoodSuite(ABC):
    """Tests that pytest collects from a subclass, which defines `likelihood`, `outputs`, `targets`.

    The strongest is that with one function the NLL of the prediction is the loss: the two are
    written separately.

    Examples:
        >>> import tacit, torch
        >>> class TestCategorical(LikelihoodSuite):
        ...     def likelihood(self):
        ...         return tacit.Categorical()
        ...
        ...     def outputs(self, count, generator):
        ...         return torch.randn(count, 3, generator=generator, dtype=torch.float64)
        ...
        ...     def targets(self, count, generator):
        ...         return torch.randint(3, (count,), generator=generator)
        >>> TestCategorical().test_the_nll_of_one_function_is_the_loss()
    """

    @abstractmethod
    def likelihood(self) -> Likelihood:
        """Return a new likelihood, with settings whose loss is the plain NLL."""

    @abstractmethod
    def outputs(self, count: int, generator: torch.Generator) -> Tensor:
        """Return random outputs of a network for some examples, (count, ...), in float64."""

    @abstractmethod
    def targets(self, count: int, generator: torch.Generator) -> Tensor:
        """Return random targets of some examples, (count, ...)."""

    def case(self, functions: int = FUNCTIONS) -> tuple[Likelihood, Tensor, Tensor]:
        """Return a likelihood, outputs of several functions, (M, B, ...), and targets, (B, ...)."""
        generator = torch.Generator().manual_seed(0)
        outputs = [self.outputs(EXAMPLES, generator) for _ in range(functions)]
        likelihood = self.likelihood().double()
        return likelihood, torch.stack(outputs), self.targets(EXAMPLES, generator)

    def test_the_loss_is_the_mean_over_functions(self) -> None:
        likelihood, outputs, targets = self.case()
        each = torch.stack([likelihood.loss(own, targets) for own in outputs])
        assert_close(likelihood.loss(outputs, targets), each.mean())
        assert_close(likelihood.loss(outputs, targets, samples=True), each.mean())
        assert_close(likelihood.loss(outputs[0], targets, samples=False), each[0])

    def test_the_loss_has_the_precision_of_the_outputs(self) -> None:
        likelihood, outputs, targets = self.case()
        if targets.is_floating_point():
            targets = targets.float()
        assert likelihood.float().loss(outputs.float(), targets).dtype == torch.float32

    def test_gradients_match_finite_differences(self) -> None:
        likelihood, outputs, targets = self.case()
        outputs.requires_grad_()
        torch.autograd.gradcheck(lambda given: likelihood.loss(given, targets), outputs)

    def test_gradients_at_large_outputs_are_finite(self) -> None:
        likelihood, outputs, targets = self.case()
        for loss in (likelihood.loss, likelihood.training_loss):
            given = (LARGE * outputs).requires_grad_()
            (gradient,) = torch.autograd.grad(loss(given, targets), given)
            assert gradient.isfinite().all()

    def test_the_nll_of_one_function_is_the_loss(self) -> None:
        likelihood, outputs, targets = self.case(functions=1)
        nll = likelihood.predictive(outputs).scores(targets)["nll"]
        assert_close(nll, likelihood.loss(outputs, targets).item())

    def test_averaging_functions_does_not_increase_the_nll(self) -> None:
        # Jensen's inequality, for averaged probabilities; averages of log-probabilities are
        # normalised by a constant of at most 1.
        likelihood, outputs, targets = self.case()
        nll = likelihood.predictive(outputs).scores(targets)["nll"]
        assert nll <= likelihood.loss(outputs, targets).item() + 1e-9

    def test_predictions_do_not_depend_on_the_order_of_functions(self) -> None:
        likelihood, outputs, targets = self.case()
        scores, same = (
            likelihood.predictive(o).scores(targets) for o in (outputs, outputs.flip(0))
        )
        for name, value in scores.items():
            assert_close(value, same[name])

    def test_predictions_of_an_example_do_not_depend_on_the_others(self) -> None:
        likelihood, outputs, targets = self.case()
        together = likelihood.predictive(outputs)
        assert len(together) == EXAMPLES
        for i in range(EXAMPLES):
            alone = likelihood.predictive(outputs[:, i : i + 1])
            expected = alone.errors(targets[i : i + 1])
            for name, values in together[i].errors(targets[i : i + 1]).items():
                assert_close(values, expected[name])

    def test_targets_that_do_not_fit_are_refused(self) -> None:
        likelihood, outputs, targets = self.case()
        with pytest.raises(ValueError, match=r"\d"):
            likelihood.loss(outputs, targets[1:])
        with pytest.raises(ValueError, match=r"\d"):
            likelihood.loss(outputs[0], targets[1:])

    def test_targets_in_a_column_are_not_broadcast(self) -> None:
        likelihood, outputs, targets = self.case(functions=EXAMPLES)
        try:
            found = likelihood.loss(outputs, targets[:, None])
        except ValueError:
            return
        assert_close(found, likelihood.loss(outputs, targets))

    def test_its_state_is_restored(self) -> None:
        likelihood, outputs, targets = self.case()
        if isinstance(likelihood, ContinuousLikelihood):
            likelihood.set_units(2.0, 3.0)
            likelihood.fit_scale(outputs, targets)
        elif isinstance(likelihood, DiscreteLikelihood):
            likelihood.set_temperature(2.0)
        other = self.likelihood().double()
        other.load_state_dict(likelihood.state_dict())
        assert_close(other.loss(outputs, targets), likelihood.loss(outputs, targets))
        expected = likelihood.predictive(outputs).scores(targets)
        for name, value in other.predictive(outputs).scores(targets).items():
            assert_close(value, expected[name])
