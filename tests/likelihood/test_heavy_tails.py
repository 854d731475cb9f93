"""Student-t and Laplace noise against SciPy and quadrature."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy import integrate, stats
from torch.testing import assert_close

import tacit
from tacit.likelihood import Laplace
from tacit.likelihood.predictive import RegressionPredictive, noise_shapes

GENERATOR = torch.Generator().manual_seed(0)
SHAPES = {
    "t3": (noise_shapes.StudentT(3), stats.t(3)),
    "t4": (noise_shapes.StudentT(4), stats.t(4)),
    "t7": (noise_shapes.StudentT(7), stats.t(7)),
    "t20": (noise_shapes.StudentT(20), stats.t(20)),
    "Laplace": (noise_shapes.Laplace(), stats.laplace()),
    "normal": (noise_shapes.NORMAL, stats.norm()),
}
shapes = pytest.mark.parametrize("kind", SHAPES)


def randn(*shape):
    return torch.randn(shape, generator=GENERATOR, dtype=torch.float64)


class TestShapes:
    @shapes
    def test_densities_and_probabilities_are_those_of_scipy(self, kind):
        ours, theirs = SHAPES[kind]
        z = torch.linspace(-40, 40, 161).double()
        assert_close(ours.log_density(z), torch.tensor(theirs.logpdf(z)), rtol=1e-12, atol=1e-12)
        assert_close(ours.cdf(z), torch.tensor(theirs.cdf(z)), rtol=0, atol=1e-15)
        assert ours.std == pytest.approx(theirs.std(), rel=1e-12)

    @shapes
    def test_quantiles_are_those_of_scipy(self, kind):
        ours, theirs = SHAPES[kind]
        q = torch.tensor([1e-4, 0.05, 0.3, 0.5, 0.7, 0.95, 0.999]).double()
        assert_close(ours.quantile(q), torch.tensor(theirs.ppf(q)), rtol=1e-9, atol=1e-12)

    @shapes
    def test_distances_are_expectations(self, kind):
        ours, theirs = SHAPES[kind]
        for z in (0.0, 1.3, -4.0):
            sides = (-np.inf, z), (z, np.inf)
            expected = sum(
                integrate.quad(lambda x, z=z: abs(x - z) * theirs.pdf(x), *side, epsabs=1e-12)[0]
                for side in sides
            )
            assert ours.distance(torch.tensor(z).double()).item() == pytest.approx(expected, 1e-7)

    @shapes
    def test_draws_have_the_distribution(self, kind):
        ours, theirs = SHAPES[kind]
        drawn = ours.sample(torch.zeros(20_000).double(), torch.Generator().manual_seed(0))
        assert stats.kstest(drawn.numpy(), theirs.cdf).pvalue > 1e-3


@shapes
@pytest.mark.parametrize("spread", [0.0, 1e-6, 0.01])
def test_crps_of_functions_that_nearly_agree_is_that_of_one(kind, spread):
    shape, _ = SHAPES[kind]
    y, many = randn(4), spread * randn(32, 4) + 0.3
    one = RegressionPredictive(many.mean(0, keepdim=True), torch.ones(1, 4).double(), None, shape)
    found = RegressionPredictive(many, torch.ones(32, 4).double(), None, shape).crps(y)
    assert_close(found, one.crps(y), rtol=2e-5, atol=10 * spread**2)


@shapes
@pytest.mark.parametrize(("size", "spread"), [(1, 1.0), (3, 5.0), (20, 0.1), (20, 10.0)])
class TestMixtures:
    def mixture(self, kind, size, spread):
        shape, theirs = SHAPES[kind]
        means, scales = spread * randn(size, 2), 0.1 + randn(size, 2).abs()
        return RegressionPredictive(means, scales, None, shape), theirs

    def test_crps_is_the_integral_of_the_squared_difference(self, kind, size, spread):
        p, theirs = self.mixture(kind, size, spread)
        y, found = randn(2), []
        for j in range(2):

            def squared(x, j=j):
                own = theirs.cdf((x - p.means[:, j].numpy()) / p.scales[:, j].numpy()).mean()
                return (own - (x >= y[j].item())) ** 2

            inner = sorted([*p.means[:, j].tolist(), y[j].item()])
            edges = [-np.inf, inner[0] - 20, *inner, inner[-1] + 20, np.inf]
            parts = (integrate.quad(squared, *part, limit=200)[0] for part in pairwise(edges))
            found.append(float(sum(parts)))
        assert_close(p.crps(y), torch.tensor(found).double(), rtol=2e-5, atol=1e-7)

    def test_density_quantiles_and_spread(self, kind, size, spread):
        p, theirs = self.mixture(kind, size, spread)
        y = randn(2)
        z = ((y - p.means) / p.scales).numpy()
        expected = np.log((theirs.pdf(z) / p.scales.numpy()).mean(0))
        assert_close(p.log_prob(y), torch.tensor(expected), rtol=1e-10, atol=1e-10)
        for q in (0.02, 0.5, 0.95):
            assert_close(p.cdf(p.quantile(q)), torch.full((2,), q).double())
        variance = p.means.var(0, correction=0) + theirs.var() * p.scales.square().mean(0)
        assert_close(p.std, variance.sqrt())
        drawn = p.sample(20_000, generator=torch.Generator().manual_seed(0))
        off = (drawn.median(0).values - p.quantile(0.5)).abs()
        assert (off < 0.06 * p.std).all()


LIKELIHOODS = {
    "StudentT": (lambda: tacit.StudentT(0.7, df=5), stats.t(5, scale=0.7)),
    "Laplace": (lambda: Laplace(0.7), stats.laplace(scale=0.7)),
    "Gaussian": (lambda: tacit.Gaussian(0.7), stats.norm(scale=0.7)),
}


class TestConstantScale:
    @pytest.mark.parametrize("kind", LIKELIHOODS)
    def test_loss_is_the_mean_negative_log_density(self, kind):
        make, theirs = LIKELIHOODS[kind]
        outputs, y = randn(6, 2), randn(6, 2)
        expected = -theirs.logpdf((y - outputs).numpy()).mean()
        assert make().double().loss(outputs, y).item() == pytest.approx(expected, rel=1e-6)
        several = torch.stack([outputs, outputs + 1])
        losses = [make().double().loss(each, y).item() for each in several]
        assert make().double().loss(several, y).item() == pytest.approx(np.mean(losses), rel=1e-6)

    @pytest.mark.parametrize("kind", ["StudentT", "Laplace"])
    def test_the_scale_of_one_function_is_that_of_maximum_likelihood(self, kind):
        likelihood, theirs = LIKELIHOODS[kind][0]().double(), LIKELIHOODS[kind][1]
        y = torch.tensor(theirs.rvs(size=4000, random_state=np.random.default_rng(0)))
        likelihood.fit_scale(torch.zeros(1, 4000).double(), y)
        fixed = {"fdf": 5, "floc": 0} if kind == "StudentT" else {"floc": 0}
        expected = getattr(stats, "t" if kind == "StudentT" else "laplace").fit(y.numpy(), **fixed)
        assert likelihood.scale.item() == pytest.approx(expected[-1], rel=1e-3)
        with torch.no_grad():
            likelihood.log_scale += 0.1
        assert likelihood.loss(torch.zeros(4000).double(), y) > -theirs.logpdf(y.numpy()).mean()

    @pytest.mark.parametrize("kind", LIKELIHOODS)
    def test_training_without_the_scale_finds_the_maximum_likelihood(self, kind):
        make, theirs = LIKELIHOODS[kind]
        y = torch.tensor(theirs.rvs(501, random_state=np.random.default_rng(1)))
        location = torch.zeros((), dtype=torch.float64, requires_grad=True)
        optimizer = torch.optim.LBFGS([location], lr=0.3, max_iter=200, tolerance_change=1e-14)
        likelihood = make().double()

        def closure():
            optimizer.zero_grad()
            loss = likelihood.training_loss(location.expand(501), y)
            loss.backward()
            return loss

        optimizer.step(closure)
        fits = {"StudentT": lambda: stats.t.fit(y.numpy(), fdf=5)[1],
                "Laplace": y.median().item, "Gaussian": y.mean().item}  # fmt: skip
        assert location.item() == pytest.approx(fits[kind](), abs=2e-3)

    def test_an_outlier_hardly_moves_the_predictions_of_student_t(self):
        x = torch.linspace(-1, 1, 60)[:, None]
        y = 2 * x[:, 0] + 0.1 * randn(60).float()
        y[50:55] += 40
        errors = {}
        for likelihood in (tacit.StudentT(), tacit.Gaussian()):
            torch.manual_seed(0)
            net = torch.nn.Linear(1, 1)
            tacit.fit(net, (x, y), likelihood=likelihood, epochs=300, progress=False)
            found = tacit.predict(net, x, likelihood=likelihood).mean
            errors[type(likelihood)] = (found - 2 * x[:, 0]).abs().max().item()
        assert errors[tacit.StudentT] < 0.2 < 3 < errors[tacit.Gaussian]

    def test_degrees_of_freedom_without_a_variance_are_refused(self):
        for make in (tacit.StudentT, tacit.HeteroscedasticStudentT):
            for df in (2, 1001):
                with pytest.raises(ValueError, match=f"from 3 to 1000, received {df}"):
                    make(df=df)
            with pytest.raises((ValueError, TypeError), match="df"):
                make(df=4.5)
        with pytest.raises(ValueError, match=r"Laplace\(scale\)"):
            Laplace(0.0)


class TestHeteroscedastic:
    def test_loss_is_the_mean_negative_log_density(self):
        outputs, y = randn(6, 2), randn(6)
        likelihood = tacit.HeteroscedasticStudentT(df=5).double()
        likelihood.set_units(1.0, 3.0)
        scale = 3 * (torch.nn.functional.softplus(outputs[:, 1]) + 1e-4)
        location = 1 + 3 * outputs[:, 0]
        expected = -stats.t(5).logpdf(((y - location) / scale).numpy()) + scale.log().numpy()
        assert likelihood.loss(outputs, y).item() == pytest.approx(expected.mean(), rel=1e-6)

    @pytest.mark.parametrize(("theirs", "expected"), [(stats.norm, {20}), (stats.t(3), {3, 4})])
    def test_the_degrees_of_freedom_are_chosen_with_the_scales(self, theirs, expected):
        y = torch.tensor(theirs.rvs(size=4000, random_state=np.random.default_rng(0)))
        likelihood = tacit.HeteroscedasticStudentT().double()
        likelihood.fit_scale(randn(4000, 2).mul(0)[None], y)
        assert int(likelihood.degrees) in expected
        assert likelihood.predictive(torch.zeros(1, 4000, 2).double()).coverage(y) == pytest.approx(
            0.9, abs=0.02
        )
        fixed = tacit.HeteroscedasticStudentT(df=6).double()
        fixed.fit_scale(randn(4000, 2).mul(0)[None], y)
        assert int(fixed.degrees) == 6

    def test_outputs_have_their_own_factors(self):
        for likelihood in (tacit.HeteroscedasticGaussian(), tacit.HeteroscedasticStudentT(df=9)):
            likelihood.set_units([0.0, 0.0], [1.0, 1.0])
            y = randn(3000, 2).float() * torch.tensor([0.1, 10.0])
            likelihood.fit_scale(torch.zeros(1, 3000, 4), y)
            found = likelihood.predictive(torch.zeros(1, 3000, 4)).coverage_by_output(y)
            assert_close(found, torch.full((2,), 0.9).double(), rtol=0, atol=0.02)

    def test_fit_predicts_noise_that_depends_on_the_input_with_outliers(self):
        torch.manual_seed(0)
        x = torch.rand(1500, 1)
        noise = torch.tensor(stats.t(3).rvs(1500, random_state=np.random.default_rng(0)))
        y = 100 + 10 * x[:, 0] + (0.2 + 2 * x[:, 0]) * noise.float()
        net = tacit.models.MLP(1, [32], 2)
        model = tacit.variational(net, likelihood=tacit.HeteroscedasticStudentT())
        tacit.fit(model, (x[:1000], y[:1000]), (x[1000:], y[1000:]), progress=False)
        found = tacit.predict(model, torch.tensor([[0.1], [0.9]]))
        ratio = found.scales.mean(0)[1] / found.scales.mean(0)[0]
        assert 3 < ratio < 7.5  # 2 / 0.4 = 5
        assert int(model.likelihood.degrees) <= 6


class TestCalibration:
    @pytest.mark.parametrize(
        "likelihood", [tacit.StudentT(), Laplace(), tacit.HeteroscedasticStudentT()]
    )
    def test_isotonic_regression_finds_skewed_noise(self, likelihood):
        columns = 2 if isinstance(likelihood, tacit.HeteroscedasticStudentT) else 1
        x = torch.zeros(2000, columns).double()
        y = torch.distributions.Exponential(torch.ones(())).sample((2000,)).double()
        found = tacit.calibrate(
            torch.nn.Identity(), (x, y), likelihood=likelihood.double(), method="isotonic"
        )
        assert found.nll < found.nll_before - 0.2
        prediction = likelihood.predictive(x[:1][None])
        for q in (0.05, 0.5, 0.9):
            assert (y <= prediction.quantile(q).item()).double().mean() == pytest.approx(
                q, abs=0.02
            )
        assert prediction.mean.item() == pytest.approx(y.mean().item(), abs=0.1)

    def test_calibrate_sets_the_scale(self):
        x, y = torch.zeros(500, 1), 3 * randn(500, 1).float()
        for likelihood in (tacit.StudentT(), Laplace(), tacit.StudentT(df=30)):
            found = tacit.calibrate(torch.nn.Identity(), (x, y), likelihood=likelihood)
            assert found.nll < found.nll_before
            assert found.coverage_90 == pytest.approx(0.9, abs=0.05)

    def test_joint_boxes_and_conformal_intervals(self):
        y = torch.tensor(stats.t(3).rvs((2000, 2), random_state=np.random.default_rng(0)))
        p = RegressionPredictive(
            torch.zeros(1, 2000, 2).double(), torch.ones(1, 2000, 2).double(), None, SHAPES["t3"][0]
        )
        generator = torch.Generator().manual_seed(0)
        assert p.coverage(y, joint=True, generator=generator) == pytest.approx(0.9, abs=0.02)
        assert tacit.conformal(p[:1000], y[:1000])(p[1000:]).coverage(y[1000:]) > 0.87


@pytest.mark.parametrize(
    "likelihood",
    [
        tacit.StudentT(df=6),
        Laplace(),
        tacit.HeteroscedasticStudentT(),
        tacit.HeteroscedasticStudentT(df=5),
    ],
    ids=["StudentT", "Laplace", "HeteroscedasticStudentT", "fixed df"],
)
def test_files_keep_them(likelihood, tmp_path):
    torch.manual_seed(0)
    x, y = torch.randn(80, 3), 5 * torch.randn(80)
    outputs = 2 if "Hetero" in type(likelihood).__name__ else 1
    model = tacit.variational(tacit.models.MLP(3, [8], outputs), likelihood=likelihood)
    tacit.fit(model, (x[:50], y[:50]), (x[50:], y[50:]), epochs=2, progress=False)
    loaded = tacit.load(tacit.save(model, tmp_path / "model.safetensors"))
    ours, theirs = (
        tacit.predict(each, x, generator=torch.Generator().manual_seed(0))
        for each in (model, loaded)
    )
    assert ours.noise == theirs.noise
    assert_close(ours.means, theirs.means)
    assert_close(ours.scales, theirs.scales)


def test_damaged_degrees_of_freedom_are_an_error():
    likelihood = tacit.HeteroscedasticStudentT()
    likelihood.degrees.fill_(10**9)
    with pytest.raises(ValueError, match="degrees: expected a whole number from 3 to 1000"):
        likelihood.predictive(torch.zeros(1, 2, 2))


def test_more_epochs_extend_a_run_that_chose_degrees_of_freedom(tmp_path):
    torch.manual_seed(0)
    x = torch.randn(60, 2)
    y = x[:, 0] + torch.randn(60)
    model = tacit.variational(
        tacit.models.MLP(2, [4], 2), likelihood=tacit.HeteroscedasticStudentT()
    )
    settings = {"checkpoint": tmp_path, "progress": False}
    tacit.fit(model, (x[:40], y[:40]), (x[40:], y[40:]), epochs=2, **settings)
    assert int(model.likelihood.degrees) != 4  # that of training, to which a new run would compare
    longer = tacit.fit(model, (x[:40], y[:40]), (x[40:], y[40:]), epochs=3, **settings)
    assert len(longer) == 3
