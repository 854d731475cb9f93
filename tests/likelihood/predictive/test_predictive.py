import math
import sys

import numpy as np
import pytest
import torch
from lightning_fabric.utilities.apply_func import move_data_to_device
from scipy import integrate, stats
from torch.testing import assert_close

from tacit.likelihood.predictive import BinaryPredictive, ClassPredictive, RegressionPredictive

GENERATOR = torch.Generator().manual_seed(0)


def randn(*shape):
    return torch.randn(shape, generator=GENERATOR, dtype=torch.float64)


class TestClasses:
    def test_averagings_match_their_definitions(self):
        logits = randn(7, 4, 3)
        probs = logits.softmax(-1)
        assert_close(ClassPredictive(logits, "probs").probs, probs.mean(0))
        assert_close(ClassPredictive(logits, "logits").probs, logits.mean(0).softmax(-1))
        geometric = probs.log().mean(0).exp()
        expected = geometric / geometric.sum(-1, keepdim=True)
        assert_close(ClassPredictive(logits, "log_probs").probs, expected)

    def test_uncertainties_match_their_definitions(self):
        logits = randn(7, 4, 3)
        p, q = ClassPredictive(logits, "probs"), logits.softmax(-1).numpy()
        assert_close(p.entropy, torch.from_numpy(stats.entropy(q.mean(0), axis=-1)))
        expected = torch.from_numpy(stats.entropy(q, axis=-1)).mean(0)
        assert_close(p.expected_entropy, expected)
        assert_close(p.mutual_information, p.entropy - expected)
        assert (p.mutual_information >= 0).all()
        assert_close(p.confidence, p.probs.max(-1).values)
        assert p.label.tolist() == p.probs.argmax(-1).tolist()

    def test_one_function_has_no_epistemic_uncertainty(self):
        p = ClassPredictive(randn(1, 4, 3))
        assert_close(p.mutual_information, torch.zeros(4).double(), atol=1e-12, rtol=0)
        assert_close(p.entropy, p.expected_entropy)

    def test_extreme_logits_have_zero_entropy_not_nan(self):
        p = ClassPredictive(torch.tensor([[[0.0, -1e6]]]))
        assert p.entropy.item() == 0
        assert p.mutual_information.item() == 0

    def test_indexing_keeps_the_batch_dimension(self):
        p = ClassPredictive(randn(7, 4, 3), class_names=("a", "b", "c"))
        assert len(p) == 4
        assert len(p[1:3]) == 2
        assert len(p[-1]) == 1
        assert_close(p[-1].probs, p.probs[-1:])
        assert_close(p[torch.tensor([2, 0])].probs, p.probs[[2, 0]])
        assert_close(p[p.confidence > 0].probs, p.probs)
        assert p[1].class_names == ("a", "b", "c")
        assert len(list(p)) == 4  # iteration stops at the end of the batch
        assert len(p[np.int64(2)]) == 1
        with pytest.raises(IndexError, match="index 4 is out of range for 4 predictions"):
            p[4]

    def test_attributes_are_cached_and_frozen(self):
        p = ClassPredictive(randn(2, 4, 3))
        assert p.probs is p.probs
        with pytest.raises(AttributeError):
            p.logits = randn(2, 4, 3)

    def test_export_to_arrays_and_data_frames(self, monkeypatch):
        p = ClassPredictive(randn(2, 4, 3), class_names=("cat", "dog", "fish"))
        arrays = p.to_numpy()
        assert isinstance(arrays["probs"], np.ndarray)
        assert arrays["probs"].shape == (4, 3)
        frame = p.to_frame()
        assert len(frame) == 4
        assert {"probs_cat", "probs_fish", "label", "mutual_information"} <= set(frame.columns)
        assert p.label_names == [("cat", "dog", "fish")[i] for i in p.label.tolist()]
        assert frame["label_name"].tolist() == p.label_names
        several = ClassPredictive(randn(2, 4, 5, 3), class_names=p.class_names).to_frame()
        assert {"probs_0_cat", "probs_4_fish", "label_4"} <= set(several.columns)
        monkeypatch.setitem(sys.modules, "pandas", None)
        with pytest.raises(ModuleNotFoundError, match="pip install pandas"):
            p.to_frame()

    def test_scores_match_hand_computed_values(self):
        logits = torch.tensor([[[2.0, 0.0], [0.0, 1.0]]])
        scores = ClassPredictive(logits).scores(torch.tensor([[0], [0]]))
        assert scores["accuracy"] == 0.5
        expected = (math.log(1 + math.exp(-2)) + math.log(1 + math.exp(1))) / 2
        assert scores["nll"] == pytest.approx(expected, rel=1e-6)

    def test_logits_without_samples_are_refused(self):
        with pytest.raises(ValueError, match=r"\(samples, batch, classes\), received \(4, 3\)"):
            ClassPredictive(randn(4, 3))


class TestBinary:
    def test_it_agrees_with_two_classes(self):
        logits = randn(7, 4)
        p = BinaryPredictive(logits, "probs")
        assert_close(p.probs, logits.sigmoid().mean(0))
        two = ClassPredictive(torch.stack([torch.zeros_like(logits), logits], -1), "probs")
        assert_close(p.mutual_information, two.mutual_information)
        assert p.label.tolist() == (p.probs > 0.5).tolist()
        assert len(p[0]) == 1
        assert set(p.to_numpy()) == set(p.columns)

    def test_several_targets_per_example(self):
        p = BinaryPredictive(randn(7, 4, 2))
        assert p.probs.shape == p.entropy.shape == (4, 2)
        assert "probs_1" in p.to_frame()
        assert p.scores(torch.ones(4, 2))["nll"] > 0
        assert p.label_names == [[str(i) for i in range(2) if row[i]] for row in p.label]
        with pytest.raises(ValueError, match=r"label_names: expected targets .* \(4, 2, 2\)"):
            _ = BinaryPredictive(randn(7, 4, 2, 2)).label_names

    def test_named_targets_are_columns(self):
        p = BinaryPredictive(randn(7, 4, 2), names=("red", "round"))
        expected = {f"{column}_{name}" for column in p.columns for name in ("red", "round")}
        frame = p.to_frame()
        assert set(frame.columns) == expected
        assert_close(torch.tensor(frame["probs_round"]), p.probs[:, 1])
        assert p[1:].names == p.to(torch.float32).names == ("red", "round")

    def test_energy_depends_on_the_size_of_the_logit_only(self):
        logits = randn(7, 4)
        p = BinaryPredictive(logits)
        assert_close(p.energy, -(2 * torch.cosh(logits / 2)).log().mean(0))
        assert_close(p.energy, BinaryPredictive(-logits).energy)
        halves = ClassPredictive(torch.stack([-logits / 2, logits / 2], -1))
        assert_close(p.energy, halves.energy)


class TestRegression:
    def prediction(self, M=5, B=3):
        return RegressionPredictive(randn(M, B), 0.2 + randn(M, B).abs())

    def mixture(self, p, b):
        parts = [stats.norm(m, s) for m, s in zip(p.means[:, b], p.scales[:, b], strict=True)]
        return lambda name, x: np.mean([getattr(part, name)(x) for part in parts])

    def test_moments_match_the_mixture(self):
        p = self.prediction()
        expected = p.scales.square().mean(0) + p.means.var(0, correction=0)
        assert_close(p.std, expected.sqrt())
        assert_close(p.mean, p.means.mean(0))
        assert_close(p.std.square(), p.epistemic_std.square() + p.aleatoric_std.square())

    def test_density_and_cdf_match_the_mixture(self):
        p, y = self.prediction(), randn(3)
        for b in range(3):
            of = self.mixture(p, b)
            assert p.log_prob(y)[b].item() == pytest.approx(math.log(of("pdf", y[b].item())))
            assert p.cdf(y)[b].item() == pytest.approx(of("cdf", y[b].item()))

    @pytest.mark.parametrize("q", [0.01, 0.3, 0.5, 0.95])
    def test_quantiles_invert_the_cdf(self, q):
        p = self.prediction()
        assert_close(
            p.cdf(p.quantile(q)), torch.full((3,), q, dtype=torch.float64), atol=1e-10, rtol=0
        )

    def test_the_quantile_of_a_single_gaussian(self):
        p = RegressionPredictive(torch.zeros(1, 1).double(), torch.ones(1, 1).double())
        assert p.quantile(0.975).item() == pytest.approx(stats.norm.ppf(0.975))

    def test_intervals_have_the_nominal_coverage(self):
        p = RegressionPredictive(torch.zeros(4, 20_000), torch.ones(4, 20_000))
        targets = torch.randn(20_000, generator=torch.Generator().manual_seed(0))
        for level in (0.5, 0.9):
            error = math.sqrt(level * (1 - level) / 20_000)
            assert abs(p.coverage(targets, level) - level) < 5 * error

    def test_crps_matches_its_defining_integral(self):
        p, y = self.prediction(), randn(3)
        for b in range(3):
            of, target = self.mixture(p, b), y[b].item()
            below = integrate.quad(lambda x, of=of: of("cdf", x) ** 2, -30, target)[0]
            above = integrate.quad(lambda x, of=of: (1 - of("cdf", x)) ** 2, target, 30)[0]
            assert p.crps(y)[b].item() == pytest.approx(below + above, rel=1e-6)

    def test_without_noise_crps_is_that_of_an_ensemble(self):
        p = RegressionPredictive(randn(5, 3), torch.zeros(5, 3).double())
        y = randn(3)
        pairs = (p.means[:, None] - p.means[None]).abs().mean((0, 1))
        assert_close(p.crps(y), (p.means - y).abs().mean(0) - pairs / 2)
        assert p.aleatoric_std.abs().max() == 0
        assert (p.quantile(0.5) <= p.means.amax(0)).all()

    def test_bad_levels_and_shapes_are_refused(self):
        p = self.prediction()
        for bad in (0.0, 1.0, 2):
            with pytest.raises(ValueError, match="between 0 and 1"):
                p.quantile(bad)
            with pytest.raises(ValueError, match="between 0 and 1"):
                p.interval(bad)
        assert_close(p.crps(randn(3)[:, None] * 0), p.crps(torch.zeros(3).double()))
        for call in (p.crps, p.cdf, p.scores):
            with pytest.raises(ValueError, match=r"targets: expected the shape \(3,\), received"):
                call(randn(3, 2))
        with pytest.raises(ValueError, match="means and scales of the same shape"):
            RegressionPredictive(randn(2, 3), randn(2, 4))

    def test_indexing_and_export_to_data_frames(self):
        p = self.prediction()
        assert_close(p[1].mean, p.mean[1:2])
        assert list(p.to_frame().columns) == list(p.columns)


@pytest.mark.parametrize("missing", [math.nan, math.inf])
def test_scores_of_missing_targets_are_refused(missing):
    p = RegressionPredictive(torch.zeros(3, 2), torch.ones(3, 2))
    for score in (p.scores, p.coverage, p.coverage_by_output):
        with pytest.raises(ValueError, match=r"targets: some are not finite .*; leave them out"):
            score([0.0, missing])


def test_large_scales_dont_overflow():
    scales = torch.rand(32, 4, 1).mul(60).exp()
    prediction = RegressionPredictive(torch.randn(32, 4, 1), scales)
    assert (prediction.crps(torch.zeros(4, 1)) >= 0).all()


def test_frames_name_every_entry_of_several_labels():
    p = ClassPredictive(randn(2, 4, 3, 2), class_names=("cat", "dog"))
    frame = p.to_frame()
    assert [n for n in frame.columns if n.startswith("probs")] == [
        "probs_0_cat", "probs_0_dog", "probs_1_cat", "probs_1_dog", "probs_2_cat", "probs_2_dog",
    ]  # fmt: skip
    assert [n for n in frame.columns if n.startswith("label")] == ["label_0", "label_1", "label_2"]
    assert_close(torch.tensor(frame["probs_2_dog"].to_numpy()), p.probs[:, 2, 1])
    with pytest.raises(ValueError, match="class_names: expected distinct names, received a more"):
        ClassPredictive(randn(2, 4, 2), class_names=("a", "a"))


def test_soft_binary_targets_give_the_expectation_over_the_answers():
    p, t = BinaryPredictive(randn(3, 2, 2)), torch.tensor([[0.3, 1.0], [0.0, 0.5]])
    found, scores = p.errors(t), p.scores(t)
    for i in range(4):
        no, yes = (p.errors(torch.full((2, 2), each)) for each in (0.0, 1.0))
        for name, values in found.items():
            w = t.flatten()[i].double()
            assert_close(values[i], (1 - w) * no[name][i] + w * yes[name][i])
    # Copies of the examples with hard answers in these proportions give the same metrics.
    copies = torch.arange(4).repeat_interleave(10)
    answers = torch.arange(10).repeat(4) < (10 * t.flatten()[copies]).round()
    hard = BinaryPredictive(p.logits.reshape(3, 4)[:, copies]).scores(answers)
    for name in ("nll", "accuracy", "ece", "brier", "classwise_ece"):
        assert scores[name] == pytest.approx(hard[name], rel=1e-6)
    certain = BinaryPredictive(torch.tensor([[1e6, -1e6, 0.0]]))
    assert certain.errors(torch.tensor([1.0, 0.0, 0.5]))["nll"].isfinite().all()


def every_kind():
    return (
        ClassPredictive(randn(3, 4, 2), "probs", ("a", "b")), BinaryPredictive(randn(3, 4)),
        RegressionPredictive(randn(3, 4), randn(3, 4).abs()),
    )  # fmt: skip


class TestUncertainty:
    @pytest.mark.parametrize("averaging", ["probs", "log_probs", "logits"])
    @pytest.mark.parametrize("shape", [(7, 4, 3), (7, 4, 5, 3), (1, 4, 2)])
    def test_scores_of_classes_match_their_definitions(self, averaging, shape):
        p = ClassPredictive(randn(*shape), averaging)
        probs = p.probs.sort(-1, descending=True).values
        expected = {
            "entropy": -(p.probs * p.probs.log()).sum(-1),
            "mutual_information": p.mutual_information,
            "expected_entropy": p.expected_entropy,
            "max_prob": 1 - probs[..., 0],
            "margin": 1 - (probs[..., 0] - probs[..., 1]),
            "energy": -p.logits.exp().sum(-1).log().mean(0),
        }
        assert list(expected) == list(p.uncertainties)
        for name, values in expected.items():
            assert p.uncertainty(name).shape == p.label.shape
            assert_close(p.uncertainty(name), values)

    def test_scores_of_binary_targets_are_those_of_two_classes(self):
        p = BinaryPredictive(randn(7, 4, 2))
        assert list(p.uncertainties) == list(ClassPredictive.uncertainties)
        for name in set(p.uncertainties) - {"energy"}:
            assert_close(p.uncertainty(name), p.two_classes.uncertainty(name))
        assert_close(p.uncertainty("max_prob"), torch.minimum(p.probs, 1 - p.probs))

    def test_scores_of_a_regression(self):
        p = RegressionPredictive(randn(3, 4), randn(3, 4).abs())
        assert list(p.uncertainties) == ["std", "epistemic_std", "aleatoric_std"]
        for name in p.uncertainties:
            assert_close(p.uncertainty(name), getattr(p, name))

    def test_confident_predictions_keep_their_order(self):
        p = ClassPredictive(torch.tensor([[[30.0, 0.0], [40.0, 0.0], [50.0, 0.0]]]))
        assert (p.confidence == 1).all()
        for name in ("max_prob", "margin", "energy", "entropy"):
            first, second, third = p.uncertainty(name).tolist()
            assert first > second > third

    def test_a_single_class_is_certain(self):
        p = ClassPredictive(randn(3, 4, 1))
        assert p.uncertainty("max_prob").tolist() == [0.0] * 4
        assert p.uncertainty("margin").unique().tolist() == [1.0]

    @pytest.mark.parametrize("p", every_kind(), ids=lambda p: type(p).__name__)
    def test_other_names_are_refused(self, p):
        first = next(iter(p.uncertainties))
        with pytest.raises(ValueError, match=f"uncertainty: expected one of {first}, .*'variance'"):
            p.uncertainty("variance")


@pytest.mark.parametrize("p", every_kind(), ids=lambda p: type(p).__name__)
class TestMoving:
    def test_a_dtype_and_a_device(self, p):
        moved = p.to(torch.float32)
        assert type(moved) is type(p)
        for name in p.columns:
            expected = getattr(p, name)
            assert_close(getattr(moved, name).double(), expected.double(), atol=1e-5, rtol=1e-5)
        assert getattr(moved, "class_names", None) == getattr(p, "class_names", None)

    def test_lightning_moves_it(self, p):
        moved = move_data_to_device({"prediction": [p]}, torch.device("meta"))["prediction"][0]
        assert getattr(moved, p.columns[0]).device.type == "meta"
        assert len(moved) == len(p)

    def test_targets_in_arrays_and_lists(self, p):
        y = torch.tensor([0, 1, 1, 0])
        expected = p.scores(y)
        assert p.scores(y.numpy()) == expected
        assert p.scores(y.tolist()) == expected
        for wrong in (None, "abcd"):
            with pytest.raises(TypeError, match="targets: expected a tensor, an array or a list"):
                p.scores(wrong)


class TestWithoutNoise:
    def test_log_densities_are_never_nan(self):
        p = RegressionPredictive(torch.tensor([[0.0, 1.0], [0.0, 2.0]]), torch.zeros(2, 2))
        found = p.log_prob(torch.tensor([0.0, 1.5]))
        assert found[0].isfinite()
        assert found[0] > 80
        assert found[1] == -math.inf
        scores = p.scores(torch.tensor([0.0, 1.5]))
        assert scores["nll"] == math.inf
        assert not any(math.isnan(value) for value in scores.values())

    def test_noisy_functions_beside_noiseless_ones(self):
        p = RegressionPredictive(torch.tensor([[0.0], [1.0]]), torch.tensor([[0.0], [1.0]]))
        expected = stats.norm.logpdf(0.5, 1.0) - math.log(2)
        assert p.log_prob(torch.tensor([0.5])).item() == pytest.approx(expected, rel=1e-6)

    def test_the_cdf_is_a_step_that_includes_the_prediction(self):
        p = RegressionPredictive(torch.tensor([[0.0], [1.0]]), torch.zeros(2, 1))
        for value, expected in ((-1e-6, 0.0), (0.0, 0.5), (0.9, 0.5), (1.0, 1.0)):
            assert p.cdf(torch.tensor([value])).item() == expected
        assert p.quantile(0.5).item() == pytest.approx(0.0, abs=1e-6)
        assert p.quantile(0.51).item() == pytest.approx(1.0)

    def test_gradients_are_finite(self):
        means = randn(5, 3).requires_grad_()
        scales = torch.zeros(5, 3).double().requires_grad_()
        p = RegressionPredictive(means, scales)
        for value in (p.log_prob(means[0].detach()), p.crps(randn(3)), p.cdf(randn(3))):
            for gradient in torch.autograd.grad(value.sum(), (means, scales), allow_unused=True):
                assert gradient is None or gradient.isfinite().all()

    def test_negative_scales_are_refused(self):
        with pytest.raises(ValueError, match="expected scales of at least 0, received -1"):
            RegressionPredictive(torch.zeros(2, 3), -torch.ones(2, 3))


def test_half_precision_is_scored_in_single_precision():
    p = RegressionPredictive(randn(5, 3), 0.5 + randn(5, 3).abs()).to(torch.bfloat16)
    expected = p.to(torch.float32).scores(torch.zeros(3))
    assert p.scores(torch.zeros(3)) == expected
