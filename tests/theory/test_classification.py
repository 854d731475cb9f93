"""Linear classification claims: training by the library against closed forms from the theory."""

import itertools
import math

import pytest
import torch
from sklearn.svm import SVC
from torch import nn
from torch.testing import assert_close

import tacit
from tacit import theory
from tacit.calling.moments import output_moments
from tacit.theory import Normal, classification

P, LR = 6, 0.05
SPANNING, NOT_SPANNING = 2, 0  # seeds of problems where the support vectors (don't) span the data


def problem(seed):
    generator = torch.Generator().manual_seed(seed)
    X = torch.randn(4, P, generator=generator, dtype=torch.float64)
    return X, torch.tensor([1.0, -1.0, 1.0, -1.0], dtype=torch.float64)


def linear_model(rank=3, mean=1.0):
    torch.manual_seed(0)
    net = nn.Linear(P, 1, bias=False).double()
    with torch.no_grad():
        net.weight *= mean
    return tacit.variational(net, {"": tacit.LowRank(rank)})


def state(model):
    distribution = model.distributions[""]
    return Normal(distribution.dense_mean(), distribution.dense_factor())


def exact_loss(model, X, y):
    mean, variance = output_moments(model, X)
    return torch.exp(-y * mean[:, 0] + variance[:, 0] / 2).sum()


def train(model, X, y, steps):
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    for _ in range(steps):
        optimizer.zero_grad()
        exact_loss(model, X, y).backward()
        optimizer.step()
        yield state(model)


def at_decades(iterates, last):
    """Return the iterates at steps 10, 100, ... up to `last`."""
    wanted = {10**k for k in range(1, 10) if 10**k <= last}
    return {t: q for t, q in enumerate(itertools.islice(iterates, last), 1) if t in wanted}


class TestLoss:
    def test_agrees_with_the_library_and_with_draws(self):
        X, y = problem(0)
        model = linear_model()
        ours = classification.expected_loss(X, y, state(model))
        assert exact_loss(model, X, y).item() == pytest.approx(ours, rel=1e-12)
        draws = model(X, samples=200_000)[..., 0]
        losses = torch.exp(-y * draws).sum(1)
        error = losses.std() / math.sqrt(len(losses))
        assert abs(losses.mean() - ours) < 5 * error

    def test_gradients_agree_with_autograd(self):
        X, y = problem(0)
        mean = torch.randn(P, dtype=torch.float64, requires_grad=True)
        factor = torch.randn(P, 2, dtype=torch.float64, requires_grad=True)
        exponent = -y * (X @ mean) + (X @ factor).square().sum(1) / 2
        expected = torch.autograd.grad(exponent.exp().sum(), [mean, factor])
        for ours, theirs in zip(
            classification.gradients(X, y, Normal(mean, factor)), expected, strict=True
        ):
            assert_close(ours, theirs)


class TestMaxMargin:
    @pytest.mark.parametrize("seed", range(6))
    def test_agrees_with_scikit_learn(self, seed):
        """SVC has a bias; mirroring the data makes it 0."""
        X, y = problem(seed)
        solution = classification.max_margin(X, y)
        both, labels = torch.cat([X, -X]), torch.cat([y, -y])
        svc = SVC(kernel="linear", C=1e8, tol=1e-10).fit(both.numpy(), labels.numpy())
        assert_close(solution.vector, torch.from_numpy(svc.coef_[0].copy()), atol=1e-5, rtol=1e-5)

    @pytest.mark.parametrize("seed", range(6))
    def test_satisfies_its_optimality_conditions(self, seed):
        X, y = problem(seed)
        solution = classification.max_margin(X, y)
        margins = y * (X @ solution.vector)
        assert (margins >= 1 - 1e-12).all()
        assert (solution.dual > 0).all()
        assert_close(margins[solution.support], torch.ones_like(solution.dual))
        combined = (y[:, None] * X)[solution.support].T @ solution.dual
        assert_close(combined, solution.vector)
        assert solution.spans == (len(solution.support) == 4)

    @pytest.mark.parametrize("size", [1e-10, 1e-6, 1e6])
    def test_doesnt_depend_on_the_units(self, size):
        X, y = problem(0)
        expected, found = classification.max_margin(X, y), classification.max_margin(size * X, y)
        assert_close(size * found.vector, expected.vector)
        assert_close(size**2 * found.dual, expected.dual)

    def test_no_data(self):
        with pytest.raises(ValueError, match="expected at least one data point, received none"):
            classification.max_margin(torch.zeros(0, 3), torch.zeros(0))

    def test_data_that_are_not_separable(self):
        X = torch.tensor([[1.0, 0.0], [-1.0, 0.0]])
        with pytest.raises(ValueError, match="not linearly separable"):
            classification.max_margin(X, torch.ones(2))


class TestTheLibraryDescends:
    @pytest.mark.parametrize("rank", [3, P])
    @pytest.mark.parametrize("seed", [SPANNING, NOT_SPANNING])
    def test_every_iterate_agrees_with_the_theory(self, seed, rank):
        """This lets the tests below use the closed-form gradients in place of the library."""
        X, y = problem(seed)
        model = linear_model(rank)
        theirs = classification.gradient_descent(X, y, state(model), LR)
        ours = list(train(model, X, y, 1000))
        assert len(ours) >= 1000
        for a, b in zip(ours, theirs, strict=False):  # theirs don't end
            assert_close(a.mean, b.mean, atol=1e-10, rtol=0)
            assert_close(a.factor, b.factor, atol=1e-10, rtol=0)

    @pytest.mark.slow
    def test_max_margin_collapse_and_null_space(self):
        """Claims `classification-max-margin` and `classification-collapse`, by the library."""
        X, y = problem(SPANNING)
        model = linear_model()
        prior, solution = state(model), classification.max_margin(X, y)
        found = at_decades(train(model, X, y, 10_000), 10_000)
        null = theory.null_projection(X)
        variances = []
        for q in found.values():
            assert (null @ (q.factor - prior.factor)).norm() < 1e-12
            assert (null @ (q.mean - prior.mean)).norm() < 1e-12
            variances.append(q.predict(X)[1])
        assert solution.spans
        on, w = theory.range_projection(X), solution.vector / solution.vector.norm()
        errors = [(on @ q.mean / (on @ q.mean).norm() - w).norm() for q in found.values()]
        assert errors[-1] < 0.6 * errors[0]
        assert all(after < before for before, after in itertools.pairwise(errors))
        for before, after in itertools.pairwise(variances):
            assert (after < 0.5 * before).all()


@pytest.fixture(scope="module")
def decades():
    """Return iterates of closed-form gradient descent at powers of 10, for both problems."""
    found = {}
    for seed, last in ((SPANNING, 10_000), (NOT_SPANNING, 100_000)):
        X, y = problem(seed)
        prior = state(linear_model())
        iterates = classification.gradient_descent(X, y, prior, LR)
        found[seed] = X, y, prior, at_decades(iterates, last)
    return found


@pytest.mark.slow
class TestDecadesOfSteps:
    def test_the_error_of_the_direction_falls_like_one_over_log_t(self, decades):
        for X, y, _, found in decades.values():
            solution = classification.max_margin(X, y)
            on, w = theory.range_projection(X), solution.vector
            directions, scales = [], []
            for t, q in found.items():
                mean = on @ q.mean
                directions.append((mean / mean.norm() - w / w.norm()).norm() * math.log(t))
                scales.append((mean / math.log(t) - w).norm() * math.log(t))
            # Errors times log t settle, though log t grows by a quarter or more in a decade.
            assert directions[-1] < 1.1 * directions[-2]
            assert scales[-1] < 1.05 * scales[-2]

    def test_the_residual_stays_bounded(self, decades):
        for X, y, _, found in decades.values():
            sizes = [classification.residual(q, t, X, y, LR).norm() for t, q in found.items()]
            assert all(after < before for before, after in itertools.pairwise(sizes))

    def test_rescaled_iterates_approach_the_limit(self, decades):
        X, y, prior, found = decades[SPANNING]
        end, null = classification.limit(X, y, prior), theory.null_projection(X)
        gaps = []
        for t, q in found.items():
            ours = classification.rescaled(q, t, null, prior.mean)
            gaps.append((ours.mean - end.mean).norm() * math.log(t))
        assert gaps[-1] < 1.05 * gaps[-2]
        assert (ours.factor - end.factor).norm() < 0.02

    def test_projected_iterates_approach_it_if_the_support_does_not_span(self, decades):
        """Claim `classification-generalized`."""
        X, y, prior, found = decades[NOT_SPANNING]
        assert not classification.max_margin(X, y).spans
        end = classification.project_to_support(classification.limit(X, y, prior), X, y)
        null = theory.null_projection(X)
        gaps = []
        for t, q in found.items():
            ours = classification.rescaled(q, t, null, prior.mean)
            ours = classification.project_to_support(ours, X, y)
            gaps.append((ours.mean - end.mean).norm() * math.log(t))
        assert gaps[-1] < 1.05 * gaps[-2]
        assert (ours.factor - end.factor).norm() < 0.02
        # Data outside the span of the support vectors keep variance: the assumption is needed.
        support = classification.max_margin(X, y).support.tolist()
        other = ({0, 1, 2, 3} - set(support)).pop()
        variance = q.predict(X)[1]
        assert variance[other] > 100 * variance[support].max()

    def test_the_null_space_is_found_by_qr_of_the_factor(self, decades):
        """Claim `null-space-by-qr`."""
        X, y, _, _ = decades[SPANNING]
        prior = state(linear_model(rank=P))
        q = at_decades(classification.gradient_descent(X, y, prior, LR), 10_000)[10_000]
        found = theory.null_projection_from_factor(q.factor, tolerance=0.05)
        assert found.trace().item() == pytest.approx(2)
        assert (found - theory.null_projection(X)).norm() < 0.05


def test_bad_input():
    X, y = problem(0)
    prior = state(linear_model())
    with pytest.raises(ValueError, match=r"labels \+1 or -1"):
        classification.limit(X, (y + 1) / 2, prior)
    with pytest.raises(ValueError, match="expected a step of at least 2"):
        classification.rescaled(prior, 1, theory.null_projection(X), prior.mean)
