"""Calibration of real targets, and isotonic regression."""

import copy
import math

import numpy as np
import pytest
import torch
from sklearn.isotonic import IsotonicRegression
from torch import nn
from torch.nn import functional as F

import tacit
from tacit.inference.isotonic import distribution_map, pooled

NET = nn.Identity()


def numbers(size=1000, outputs=(), noise=None, seed=0):
    """Return predictions, and targets with noise of scale 0.3, Gaussian by default."""
    generator = torch.Generator().manual_seed(seed)
    x, z = torch.randn(2, size, *outputs, generator=generator, dtype=torch.float64)
    return x, x + 0.3 * (z if noise is None else noise(z))


def skewed(z):
    return z.exp() - math.exp(0.5)


def calibrated(pair, likelihood=None, **kwargs):
    likelihood = tacit.Gaussian() if likelihood is None else likelihood
    return tacit.calibrate(NET, pair, likelihood=likelihood, **kwargs), likelihood


class TestScale:
    def test_it_is_the_standard_deviation_of_the_errors(self):
        x, y = numbers()
        found, likelihood = calibrated((x, y))
        # The prior, worth 5 examples, has its optimum at the same scale.
        assert likelihood.scale.item() == pytest.approx(
            (y - x).square().mean().sqrt().item(), rel=1e-4
        )
        assert found.method == "scale"
        assert found.nll < found.nll_before
        assert found.coverage_90_before > 0.99
        assert found.coverage_90 == pytest.approx(0.9, abs=0.03)
        assert found.examples == 1000
        assert found.temperature is found.scope is None
        scores = tacit.evaluate(NET, (x, y), likelihood=likelihood)
        assert scores["nll"] == pytest.approx(found.nll, rel=1e-5)
        assert scores["coverage_90"] == pytest.approx(found.coverage_90)

    def test_a_factor_corrects_predicted_scales(self):
        x, y = numbers()
        raw = torch.full_like(x, math.log(math.expm1(0.6 - 1e-4)))  # twice the true scale
        likelihood = tacit.HeteroscedasticGaussian()
        outputs = torch.stack([x, raw], -1)
        found, _ = calibrated((outputs, y), likelihood)
        assert likelihood.factor.item() == pytest.approx(0.5, rel=0.05)
        assert found.coverage_90 == pytest.approx(0.9, abs=0.03)

    def test_again_it_changes_nothing(self):
        pair = numbers(40)
        first, likelihood = calibrated(pair)
        scale = likelihood.scale.item()
        again, _ = calibrated(pair, likelihood)
        assert likelihood.scale.item() == pytest.approx(scale, rel=1e-4)
        assert again.nll <= again.nll_before == pytest.approx(first.nll, rel=1e-6)

    def test_a_fixed_scale_is_refused(self):
        with pytest.raises(ValueError, match=r"scale of Gaussian\(learn=False\) is fixed"):
            calibrated(numbers(), tacit.Gaussian(learn=False))

    def test_functions_of_a_variational_model_count(self):
        torch.manual_seed(0)
        model = tacit.variational(nn.Linear(1, 1), rank=1, likelihood=tacit.Gaussian(scale=3.0))
        x = torch.randn(300, 1)
        with torch.no_grad():
            y = model.module(x) + 0.2 * torch.randn(300, 1)
        generator = torch.Generator().manual_seed(0)
        found = tacit.calibrate(model, (x, y), generator=generator)
        prediction = tacit.predict(model, x, generator=generator.manual_seed(0))
        assert prediction.scores(y)["nll"] == pytest.approx(found.nll, rel=1e-4)


class TestDistributions:
    @pytest.mark.parametrize("size", [1000, 4000])
    def test_it_learns_the_shape_of_the_noise(self, size):
        found, likelihood = calibrated(numbers(size, noise=skewed), method="isotonic")
        scaled, plain = calibrated(numbers(size, noise=skewed))
        assert found.nll < scaled.nll - 0.1
        new = numbers(2000, noise=skewed, seed=1)
        ours, theirs = (tacit.evaluate(NET, new, likelihood=each) for each in (likelihood, plain))
        assert ours["nll"] < theirs["nll"] - 0.1
        assert ours["crps"] < theirs["crps"]
        assert ours["coverage_90"] == pytest.approx(0.9, abs=0.03)
        prediction = likelihood.predictive(new[0][None])
        for level in (0.1, 0.5, 0.8):
            below = (new[1] <= prediction.quantile(level)).double().mean().item()
            assert below == pytest.approx(level, abs=0.04)

    def test_the_map_is_the_empirical_distribution_at_its_knots(self):
        u = numbers(900)[0].sigmoid() ** 2
        x, y = distribution_map(u, 50).knots.unbind()
        assert len(x) == 31  # 30 segments with about 30 values each
        inner = slice(1, -1)
        counts = (u[:, None] <= x[inner]).sum(0)
        torch.testing.assert_close(y[inner], counts / 901.0, check_dtype=False)
        assert counts.diff().min() >= 29

    def test_calibrated_predictions_are_kept_exactly(self):
        likelihoods = []
        for seed in range(40):
            found, likelihood = calibrated(
                numbers(200, seed=seed), tacit.Gaussian(0.3, learn=False), method="isotonic"
            )
            likelihoods.append(likelihood)
            if likelihood.knots is None:
                assert found.nll == found.nll_before
        # Rejected by a test at 5 %: at most 7 of 40 with probability 0.998.
        assert sum(each.knots is not None for each in likelihoods) <= 7

    def test_each_output_has_its_own_map(self):
        x, y = numbers(500, (2,))
        y[:, 1] = x[:, 1] + skewed((y - x)[:, 1] / 0.3)
        _, likelihood = calibrated(
            (x, y), tacit.Gaussian([0.3, 2.0], learn=False), method="isotonic"
        )
        first, second = likelihood.recalibration.knots
        assert torch.equal(first[0], first[1])  # the identity
        assert (second[0] - second[1]).abs().max() > 0.05
        _, single = calibrated(
            (x[:, 1], y[:, 1]), tacit.Gaussian(2.0, learn=False), method="isotonic"
        )
        torch.testing.assert_close(second, single.knots)

    def test_constant_predictions_become_the_distribution_of_the_targets(self):
        _, y = numbers(2000, noise=skewed)
        _, likelihood = calibrated((torch.zeros(2000, 1).double(), y), method="isotonic")
        prediction = likelihood.predictive(torch.zeros(1, 1, 1).double())
        for q in (0.05, 0.3, 0.9):
            found = prediction.quantile(q).item()
            assert (y <= found).double().mean().item() == pytest.approx(q, abs=0.02)

    def test_bad_data_are_refused_and_change_nothing(self):
        x, y = numbers(200)
        with pytest.raises(
            ValueError, match="isotonic needs at least 100 .* examples, received 99"
        ):
            calibrated((x[:99], y[:99]), method="isotonic")
        with pytest.raises(ValueError, match="scale needs at least 10 .* examples, received 9"):
            calibrated((x[:9], y[:9]))
        missing = y.clone()
        missing[3] = math.nan
        with pytest.raises(ValueError, match="some targets are not finite"):
            calibrated((x, missing))
        likelihood = tacit.Gaussian(scale=5.0)
        constant = torch.zeros(200, 1).double(), (torch.arange(200) % 4).double()
        with pytest.raises(ValueError, match="at least 50 distinct .* received 4"):
            calibrated(constant, likelihood, method="isotonic")
        assert likelihood.scale.item() == pytest.approx(5.0)
        assert likelihood.knots is None
        with pytest.raises(ValueError, match="round to 0 or 1. Let calibrate set the noise scale"):
            calibrated((x, y), tacit.Gaussian(0.01, learn=False), method="isotonic")


class TestClasses:
    def data(self, size=600, classes=3, seed=0):
        generator = torch.Generator().manual_seed(seed)
        logits = 2 * torch.randn(size, classes, generator=generator, dtype=torch.float64)
        labels = torch.multinomial(logits.softmax(-1), 1, generator=generator)[:, 0]
        return (3 * logits).float().double(), labels  # a network's inputs become single precision

    def test_it_equals_scikit_learn(self):
        logits, labels = self.data()
        likelihood = tacit.Categorical()
        found = tacit.calibrate(NET, (logits, labels), likelihood=likelihood, method="isotonic")
        p, new = logits.softmax(-1), self.data(seed=1)[0].softmax(-1)
        columns, low = [], 1 / 602
        for k in range(3):
            theirs = IsotonicRegression(y_min=low, y_max=1 - low, out_of_bounds="clip")
            theirs.fit(p[:, k].numpy(), (labels == k).double().numpy())
            columns.append(torch.from_numpy(theirs.predict(new[:, k].numpy())))
        expected = torch.stack(columns, -1)
        expected = expected / expected.sum(-1, keepdim=True)
        torch.testing.assert_close(likelihood.predictive(new.log()[None]).probs, expected)
        assert found.nll < found.nll_before
        assert found.nll_before == pytest.approx(F.cross_entropy(logits, labels).item())
        scores = tacit.evaluate(NET, (logits, labels), likelihood=likelihood)
        assert scores["nll"] == pytest.approx(found.nll)

    @pytest.mark.parametrize("shape", [(400,), (400, 1), (200, 2)])
    @pytest.mark.parametrize("soft", [False, True])
    def test_binary_targets_equal_scikit_learn(self, shape, soft):
        generator = torch.Generator().manual_seed(0)
        logits = (2 * torch.randn(shape, generator=generator)).double()
        draws = torch.rand(shape, generator=generator, dtype=torch.float64) < logits.sigmoid()
        targets = 0.9 * draws.double() if soft else draws
        likelihood = tacit.Bernoulli()
        found = tacit.calibrate(
            NET, (4 * logits, targets), likelihood=likelihood, method="isotonic"
        )
        theirs = IsotonicRegression(y_min=1 / 402, y_max=401 / 402, out_of_bounds="clip")
        p = (4 * logits).sigmoid().flatten().numpy()
        theirs.fit(p, targets.double().flatten().numpy())
        ours = likelihood.predictive(4 * logits[None]).probs.flatten().numpy()
        np.testing.assert_allclose(ours, theirs.predict(p), rtol=1e-9)
        assert found.nll < found.nll_before
        assert found.examples == 400

    def test_several_labels_equal_the_flattened_problem(self):
        logits, labels = self.data()
        one, several = tacit.Categorical(), tacit.Categorical(class_dim=-1)
        first = tacit.calibrate(NET, (logits, labels), likelihood=one, method="isotonic")
        pair = logits.reshape(200, 3, 3), labels.reshape(200, 3)
        second = tacit.calibrate(NET, pair, likelihood=several, method="isotonic")
        assert first == second
        assert torch.equal(one.knots, several.knots)
        probs = several.predictive(pair[0][None]).probs
        torch.testing.assert_close(probs.reshape(600, 3), one.predictive(logits[None]).probs)

    def test_functions_are_combined_before_the_map(self):
        logits, labels = self.data(400)
        model = tacit.variational(
            nn.Linear(3, 3), {"": tacit.LowRank(2, scale=0.5)}, likelihood=tacit.Categorical()
        ).double()
        generator = torch.Generator().manual_seed(0)
        found = tacit.calibrate(model, (logits, labels), method="isotonic", generator=generator)
        prediction = tacit.predict(model, logits, generator=generator.manual_seed(0))
        assert prediction.scores(labels)["nll"] == pytest.approx(found.nll, rel=1e-6)
        torch.testing.assert_close(prediction.probs.sum(-1), torch.ones(400).double())

    def test_constant_predictions_become_the_frequencies(self):
        labels = torch.arange(120) % 3 % 2
        likelihood = tacit.Categorical()
        pair = torch.tensor([[3.0, 1.0]]).expand(120, 2), labels
        tacit.calibrate(NET, pair, likelihood=likelihood, method="isotonic")
        probs = likelihood.predictive(torch.tensor([[[3.0, 1.0], [-5.0, 5.0]]])).probs
        torch.testing.assert_close(probs, torch.tensor([[2 / 3, 1 / 3]] * 2))

    def test_correct_predictions_keep_some_doubt(self):
        labels = torch.arange(200) % 2
        likelihood = tacit.Categorical()
        logits = 100 * F.one_hot(labels, 2).double()
        tacit.calibrate(NET, (logits, labels), likelihood=likelihood, method="isotonic")
        confidence = likelihood.predictive(logits[None]).confidence
        torch.testing.assert_close(confidence, torch.full_like(confidence, 201 / 202))

    def test_every_class_needs_examples(self):
        logits, labels = self.data()
        named = tacit.Categorical(class_names=["cat", "dog", "owl"])
        with pytest.raises(ValueError, match=r"at least 10 of every class; .* class owl \(0\)"):
            tacit.calibrate(NET, (logits, labels % 2), likelihood=named, method="isotonic")
        with pytest.raises(ValueError, match="isotonic needs at least 100 .* targets, received 60"):
            tacit.calibrate(NET, (logits[:60], labels[:60]), likelihood=named, method="isotonic")
        negative = torch.zeros(120, dtype=torch.long)
        with pytest.raises(ValueError, match=r"fewer of class 1 \(0\)"):
            tacit.calibrate(
                NET, (logits[:120, 0], negative), likelihood=tacit.Bernoulli(), method="isotonic"
            )


def test_pooling_has_the_least_squared_error():
    rng = np.random.default_rng(0)
    y, w = rng.normal(size=50).cumsum() * rng.choice([1, -1]), rng.uniform(0.1, 2, 50)
    expected = IsotonicRegression().fit_transform(np.arange(50), y, sample_weight=w)
    np.testing.assert_allclose(pooled(y, w), expected, atol=1e-12)


@pytest.mark.parametrize(
    ("likelihood", "method", "match"),
    [
        (tacit.Gaussian(), "temperature", "expected scale or isotonic for Gaussian, received 't"),
        (tacit.Categorical(), "scale", "expected temperature, vector or isotonic for Cat"),
        (tacit.Categorical(), "platt", "expected temperature, vector, scale, isotonic; received '"),
    ],
)  # fmt: skip
def test_methods_that_do_not_fit_the_likelihood_are_refused(likelihood, method, match):
    with pytest.raises(ValueError, match=match):
        tacit.calibrate(NET, numbers(20), likelihood=likelihood, method=method)


def test_other_arguments_are_refused():
    with pytest.raises(ValueError, match="scope: applies to temperatures only, received 'mean'"):
        calibrated(numbers(20), scope="mean")

    class Own(tacit.likelihood.Likelihood):
        loss = predictive = None

    with pytest.raises(TypeError, match="expected a Categorical, Bernoulli, Gaussian or Heteros"):
        calibrated(numbers(20), Own())


def models():
    """Return a model of classes and one of numbers, with the data that calibrated them."""
    torch.manual_seed(0)
    x = torch.randn(300, 2)
    labels = (x[:, 0] > 0).long()
    classes = tacit.variational(nn.Linear(2, 2), rank=1, likelihood=tacit.Categorical())
    y = x[:, :1].exp()
    real = tacit.variational(nn.Linear(2, 1), rank=1, likelihood=tacit.Gaussian())
    return {"classes": (classes, (x, labels)), "numbers": (real, (x, y))}


@pytest.mark.parametrize("kind", ["classes", "numbers"])
class TestLifeOfAMap:
    def test_it_is_saved_and_loaded(self, kind, tmp_path):
        model, data = models()[kind]
        tacit.calibrate(model, data, method="isotonic")
        assert model.likelihood.knots is not None
        net = nn.Linear(2, 2 if kind == "classes" else 1)
        other = tacit.load(tacit.save(model, tmp_path / "m.safetensors"), net)
        assert torch.equal(other.likelihood.knots, model.likelihood.knots)
        ours, theirs = (
            tacit.predict(m, data[0], generator=torch.Generator().manual_seed(0)).to_numpy()
            for m in (model, other)
        )
        assert all((ours[name] == theirs[name]).all() for name in ours)

    def test_another_model_loads_it_with_the_state(self, kind):
        model, data = models()[kind]
        other = models()[kind][0]
        tacit.calibrate(model, data, method="isotonic")
        other.load_state_dict(model.state_dict())
        assert torch.equal(other.likelihood.knots, model.likelihood.knots)
        other.load_state_dict(models()[kind][0].state_dict())
        assert other.likelihood.knots is None

    def test_it_keeps_its_precision(self, kind):
        model, data = models()[kind]
        tacit.calibrate(model, data, method="isotonic")
        before = model.likelihood.knots.clone()
        model.to(torch.bfloat16)
        assert torch.equal(model.likelihood.knots, before)
        assert tacit.evaluate(model, data, samples=2)["nll"] < 3

    def test_predictors_of_methods_keep_it(self, kind, tmp_path):
        model, data = models()[kind]
        predictor = tacit.methods.Standard().fit(
            lambda: nn.Linear(2, 2 if kind == "classes" else 1), data, epochs=1, lr=0.01,
            likelihood=model.likelihood, progress=False,
        )  # fmt: skip
        tacit.calibrate(predictor, data, method="isotonic")
        tacit.methods.save(predictor, tmp_path / "p.safetensors")
        other = tacit.methods.load(tmp_path / "p.safetensors", lambda: copy.deepcopy(predictor.net))
        assert torch.equal(other.likelihood.knots, predictor.likelihood.knots)

    def test_a_damaged_map_is_not_loaded(self, kind, tmp_path):
        model, data = models()[kind]
        tacit.calibrate(model, data, method="isotonic")
        model.likelihood.knots = model.likelihood.knots.flip(-1)
        with pytest.raises(ValueError, match="'likelihood.knots' is damaged: .* nondecreasing"):
            tacit.save(model, tmp_path / "m.safetensors")

    def test_another_calibration_or_training_removes_it(self, kind):
        model, data = models()[kind]
        tacit.calibrate(model, data, method="isotonic")
        tacit.calibrate(model, data)
        assert model.likelihood.knots is None
        tacit.calibrate(model, data, method="isotonic")
        tacit.fit(model, data, epochs=1, lr=0.01, progress=False)
        assert model.likelihood.knots is None
