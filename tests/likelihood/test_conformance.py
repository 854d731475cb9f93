"""The library's likelihoods pass the suite for likelihoods of one's own."""

import pytest
import torch
from torch.nn import functional as F

import tacit
from tacit.testing import LikelihoodSuite


class TestCategorical(LikelihoodSuite):
    def likelihood(self):
        return tacit.Categorical()

    def outputs(self, count, generator):
        return torch.randn(count, 3, generator=generator, dtype=torch.float64)

    def targets(self, count, generator):
        return torch.randint(3, (count,), generator=generator)


class TestAveragedLogProbabilities(TestCategorical):
    def likelihood(self):
        return tacit.Categorical(averaging="log_probs")


class TestDense(TestCategorical):
    def likelihood(self):
        return tacit.Categorical(class_dim=1)

    def outputs(self, count, generator):
        return torch.randn(count, 3, 5, 4, generator=generator, dtype=torch.float64)

    def targets(self, count, generator):
        return torch.randint(3, (count, 5, 4), generator=generator)


class TestBernoulli(TestCategorical):
    def likelihood(self):
        return tacit.Bernoulli()

    def outputs(self, count, generator):
        return torch.randn(count, 2, generator=generator, dtype=torch.float64)

    def targets(self, count, generator):
        return torch.randint(2, (count, 2), generator=generator).double()


class Numbers(LikelihoodSuite):
    outputs_per_target = 1

    def outputs(self, count, generator):
        size = 2 * self.outputs_per_target
        return torch.randn(count, size, generator=generator, dtype=torch.float64)

    def targets(self, count, generator):
        return torch.randn(count, 2, generator=generator, dtype=torch.float64)


class TestGaussian(Numbers):
    def likelihood(self):
        return tacit.Gaussian(0.7)


class TestFixedGaussian(Numbers):
    def likelihood(self):
        return tacit.Gaussian(0.7, learn=False)


class TestStudentT(Numbers):
    def likelihood(self):
        return tacit.StudentT(0.7)


class TestLaplace(Numbers):
    def likelihood(self):
        return tacit.likelihood.Laplace(0.7)


class TestHeteroscedasticGaussian(Numbers):
    outputs_per_target = 2

    def likelihood(self):
        return tacit.HeteroscedasticGaussian()


class TestHeteroscedasticStudentT(TestHeteroscedasticGaussian):
    def likelihood(self):
        return tacit.HeteroscedasticStudentT()


def test_the_suite_finds_a_loss_without_its_constant():
    class Wrong(tacit.Gaussian):
        def loss(self, outputs, targets, *, samples=None):
            return F.mse_loss(outputs, targets.expand_as(outputs))

    class TestWrong(TestGaussian):
        def likelihood(self):
            return Wrong(0.7)

    with pytest.raises(AssertionError, match="not close"):
        TestWrong().test_the_nll_of_one_function_is_the_loss()


def test_the_suite_finds_a_state_that_is_not_saved():
    class Wrong(tacit.Categorical):
        factor = 1.0

        def set_temperature(self, temperature, scope="logits", offset=None):
            self.factor = temperature

        def predictive(self, outputs):
            return super().predictive(outputs / self.factor)

    class TestWrong(TestCategorical):
        def likelihood(self):
            return Wrong()

    with pytest.raises(AssertionError, match="not close"):
        TestWrong().test_its_state_is_restored()
