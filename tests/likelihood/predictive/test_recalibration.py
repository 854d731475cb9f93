"""Recalibrated distributions against their definition, G = R(F), on a fine grid."""

import math

import numpy as np
import pytest
import scipy.stats
import torch

from tacit.likelihood.predictive import ClassPredictive, ProbabilityMap, RegressionPredictive
from tacit.likelihood.predictive.noise_shapes import NORMAL, Laplace, StudentT

KNOTS = torch.tensor(
    [
        [[0, 0.1, 0.3, 0.8, 1, 1], [0, 0.3, 0.4, 0.6, 1, 1]],  # the last knot is repeated
        [[0, 0.05, 0.5, 0.9, 0.95, 1], [0, 0.01, 0.3, 0.8, 0.99, 1]],
    ],
    dtype=torch.float64,
)


SHAPES = {"normal": NORMAL, "student": StudentT(5), "laplace": Laplace()}


def predictions(knots=KNOTS, spread=2.0, functions=5, noise=NORMAL):
    generator = torch.Generator().manual_seed(0)
    means = spread * torch.randn(functions, 4, 2, generator=generator, dtype=torch.float64)
    scales = 0.1 + torch.rand(functions, 4, 2, generator=generator, dtype=torch.float64)
    recalibration = None if knots is None else ProbabilityMap(knots)
    return RegressionPredictive(means, scales, recalibration, noise)


def on_a_grid(prediction, i, d, knots=KNOTS, points=400_001):
    """Return a fine grid, and F and G on it, for output d of example i."""
    means, scales = prediction.means[:, i, d], prediction.scales[:, i, d]
    y = torch.linspace(-15, 15, points, dtype=torch.float64).numpy()
    if prediction.noise != NORMAL:
        y = np.sinh(y * 0.7)  # up to 18,000, for the tails
    theirs = {
        NORMAL: scipy.stats.norm,
        StudentT(5): scipy.stats.t(5),
        Laplace(): scipy.stats.laplace,
    }
    P = theirs[prediction.noise].cdf
    F = sum(P((y - m) / s) for m, s in zip(means.numpy(), scales.numpy(), strict=True)) / len(means)
    x, values = (part.unique().numpy() for part in knots[d])
    return y, F, np.interp(F, x, values)


@pytest.mark.parametrize(
    ("noise", "functions", "i", "d"),
    [
        (NORMAL, 5, 0, 0),
        (NORMAL, 5, 1, 1),
        (StudentT(5), 5, 0, 0),
        (StudentT(5), 12, 1, 1),
        (Laplace(), 5, 1, 1),
    ],
)
def test_moments_and_crps_are_of_the_same_distribution(i, d, noise, functions):
    prediction = predictions(noise=noise, functions=functions)
    tolerance = 1e-8 if noise == NORMAL else 3e-7  # of the grid
    y, _, G = on_a_grid(prediction, i, d)
    middle, mass = (y[1:] + y[:-1]) / 2, np.diff(G)
    mean = (middle * mass).sum()
    assert prediction.mean[i, d].item() == pytest.approx(mean, abs=tolerance)
    std = math.sqrt((mass * (middle - mean) ** 2).sum())
    assert prediction.std[i, d].item() == pytest.approx(std, abs=tolerance)
    for target in (-14.0, -0.7, 0.31, 14.0):
        at = np.searchsorted(y, target)
        pieces = np.concatenate([G[: at + 1] ** 2, (1 - G[at:]) ** 2])
        grid = np.concatenate([y[: at + 1], y[at:]])
        expected = np.trapezoid(pieces, grid)
        found = prediction.crps(torch.full((4, 2), y[at], dtype=torch.float64))[i, d].item()
        accuracy = {"abs": 1e-6} if noise == NORMAL or functions < 8 else {"rel": 2e-5}
        assert found == pytest.approx(expected, **accuracy)


@pytest.mark.parametrize("noise", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize(("i", "d"), [(2, 0), (3, 1)])
def test_density_cdf_and_quantiles_are_of_the_same_distribution(i, d, noise):
    prediction = predictions(noise=noise)
    y, _, G = on_a_grid(prediction, i, d)
    for k in range(120_000, 280_000, 20_017):
        values = torch.full((4, 2), y[k], dtype=torch.float64)
        assert prediction.cdf(values)[i, d].item() == pytest.approx(G[k], abs=1e-12)
        slope = (G[k + 1] - G[k - 1]) / (y[k + 1] - y[k - 1])
        density = prediction.log_prob(values)[i, d].exp().item()
        assert density == pytest.approx(slope, abs=1e-6)
    for q in (0.001, 0.05, 0.5, 0.93):
        found = prediction.quantile(q)
        torch.testing.assert_close(prediction.cdf(found), torch.full_like(found, q))
        assert found[i, d].item() == pytest.approx(np.interp(q, G, y), abs=1e-3)
    low, high = prediction.interval(0.8)
    assert torch.equal(low, prediction.quantile((1 - 0.8) / 2))
    inside = prediction.coverage(torch.stack([low[:2], high[2:] + 1]).reshape(4, 2), 0.8)
    assert inside == 0.5


@pytest.mark.parametrize("noise", SHAPES.values(), ids=SHAPES)
def test_variances_of_function_and_target_add_up_to_the_total(noise):
    """The joint density of function i and target y is R'(F(y)) f_i(y) / M."""
    prediction, i, d = predictions(noise=noise), 1, 0
    y, F, _ = on_a_grid(prediction, i, d, points=100_001)
    slope = prediction.recalibration.slope(torch.from_numpy(F)[:, None].expand(-1, 2))[:, d].numpy()
    m, s = prediction.means[:, i, d].numpy()[:, None], prediction.scales[:, i, d].numpy()[:, None]
    density = noise.log_density(torch.from_numpy((y - m) / s)).exp().numpy()
    joint = slope * density / (s * len(m)) * np.gradient(y)
    weight, mean = joint.sum(1), (joint * y).sum()
    own = (joint * y).sum(1) / weight
    epistemic = math.sqrt((weight * (own - mean) ** 2).sum())
    aleatoric = math.sqrt((joint * (y - own[:, None]) ** 2).sum())
    assert prediction.epistemic_std[i, d].item() == pytest.approx(epistemic, rel=1e-4)
    assert prediction.aleatoric_std[i, d].item() == pytest.approx(aleatoric, rel=1e-4)


def test_the_identity_changes_nothing():
    identity = KNOTS.clone()
    identity[:, 1] = identity[:, 0]
    plain, mapped = predictions(None), predictions(identity)
    targets = torch.randn(4, 2, generator=torch.Generator().manual_seed(1)).double()
    for name in ("mean", "std", "epistemic_std", "aleatoric_std"):
        torch.testing.assert_close(getattr(mapped, name), getattr(plain, name))
    for name in ("log_prob", "cdf", "crps"):
        found, expected = getattr(mapped, name)(targets), getattr(plain, name)(targets)
        torch.testing.assert_close(found, expected, atol=1e-6, rtol=0)
    torch.testing.assert_close(mapped.quantile(0.1), plain.quantile(0.1))


@pytest.mark.parametrize("noise", [1e-2, 1e-4])
def test_the_crps_of_widely_spread_functions_is_within_its_bound(noise):
    means = torch.linspace(-3, 3, 8, dtype=torch.float64)[:, None]
    scales = torch.full_like(means, noise)
    prediction = RegressionPredictive(means, scales, ProbabilityMap(KNOTS[0]))
    y, _, G = on_a_grid(
        RegressionPredictive(means[..., None], scales[..., None]), 0, 0, KNOTS[:1], 3_000_001
    )
    at = np.searchsorted(y, 0.5)
    expected = np.trapezoid(np.where(np.arange(len(y)) < at, G**2, (1 - G) ** 2), y)
    panel = 2.0 / 16  # the widest gap between knots is below 2
    assert prediction.crps([y[at]]).item() == pytest.approx(expected, abs=0.1 * panel)


def test_predictions_are_sliced_and_moved_with_their_map():
    prediction = predictions()
    torch.testing.assert_close(prediction[1:3].mean, prediction.mean[1:3])
    single = prediction.to(torch.float32)
    assert single.mean.dtype == torch.float32
    assert single.recalibration.knots.dtype == torch.float64
    targets = torch.zeros(4, 2)
    torch.testing.assert_close(single.crps(targets), prediction.crps(targets).float())
    scores = single.scores(targets)
    expected = -prediction.log_prob(targets).mean().item()
    assert scores["nll"] == pytest.approx(expected, rel=1e-4)
    assert single.errors(targets)["crps"].shape == (4, 2)
    empty = prediction[:0]
    assert empty.mean.shape == empty.crps(torch.zeros(0, 2)).shape == (0, 2)


def test_maps_of_classes_are_normalised():
    x = torch.tensor([[[0.0, 1.0], [0.1, 0.5]], [[0.0, 1.0], [0.2, 0.4]]])
    p = torch.tensor([[0.25, 0.75]], dtype=torch.float64)
    mapped = np.array([0.2, 0.35])
    prediction = ClassPredictive(p.log()[None], recalibration=ProbabilityMap(x))
    np.testing.assert_allclose(prediction.probs[0], mapped / mapped.sum(), rtol=1e-6)
    with pytest.raises(ValueError, match=r"maps of 3 classes, received maps of shape \(2,\)"):
        ClassPredictive(torch.zeros(1, 1, 3), recalibration=ProbabilityMap(x)).probs  # noqa: B018


def test_bad_maps_are_refused():
    with pytest.raises(ValueError, match=r"knots of shape \(..., 2, K\) .* received \(3, 2\)"):
        ProbabilityMap(torch.zeros(3, 2))
    for wrong in ([[0, 1], [1, 0]], [[0, 2], [0, 1]], [[0, math.nan], [0, 1]]):
        with pytest.raises(ValueError, match="expected nondecreasing numbers from 0 to 1"):
            ProbabilityMap(torch.tensor(wrong, dtype=torch.float64))
    means, scales = torch.zeros(1, 3, 2), torch.ones(1, 3, 2)
    with pytest.raises(ValueError, match=r"expected maps of shape \(2,\), one for each output"):
        RegressionPredictive(means, scales, ProbabilityMap(KNOTS[0]))
    flat = KNOTS.clone()
    flat[0, 1, 1] = flat[0, 1, 2]
    with pytest.raises(ValueError, match="expected strictly increasing maps from 0 to 1"):
        RegressionPredictive(means, scales, ProbabilityMap(flat))
    with pytest.raises(ValueError, match="recalibration: expected scales above 0"):
        RegressionPredictive(means, 0 * scales, ProbabilityMap(KNOTS))


@pytest.mark.parametrize("noise", SHAPES.values(), ids=SHAPES)
def test_paths_have_the_recalibrated_distribution_and_the_dependence_of_the_functions(noise):
    plain, mapped = predictions(None, noise=noise), predictions(noise=noise)
    before, after = (
        p.sample(3000, generator=torch.Generator().manual_seed(1)) for p in (plain, mapped)
    )
    for drawn, prediction in ((before, plain), (after, mapped)):
        levels = torch.stack([prediction.cdf(path) for path in drawn[:500]])[:, 2].T
        for values in levels:  # uniform
            assert scipy.stats.kstest(values.numpy(), "uniform").pvalue > 1e-3
    # The order of the draws of each target stays, and with it their dependence.
    assert torch.equal(before.argsort(0), after.argsort(0))


def test_joint_intervals_of_recalibrated_predictions_contain_their_share_of_paths():
    prediction = predictions(noise=StudentT(5))
    generator = torch.Generator().manual_seed(0)
    low, high = prediction.interval(0.8, joint=True, draws=2000, generator=generator)
    drawn = prediction.sample(2000, generator=generator)
    inside = ((low <= drawn) & (drawn <= high)).all(-1).double().mean(0)
    assert ((inside - 0.8).abs() < 5 * math.sqrt(2 * 0.8 * 0.2 / 2000)).all()


def test_selection_among_several_labels_uses_the_recalibrated_confidences():
    generator = torch.Generator().manual_seed(0)
    logits = 4 * torch.randn(1, 400, 2, 2, dtype=torch.float64, generator=generator)
    knots = torch.tensor([[0.0, 1.0], [0.45, 0.55]], dtype=torch.float64)
    labels = logits[0].argmax(-1)
    prediction = ClassPredictive(logits, recalibration=ProbabilityMap(knots.expand(2, 2, 2)))
    assert prediction.confidence.max() < 0.56
    rule = prediction.select(labels, risk=0.1, generator=generator)
    assert rule(prediction).any()


@pytest.mark.parametrize("knots", [KNOTS, None])
def test_one_output_has_the_distribution_that_it_had_among_several(knots):
    prediction = predictions(knots)
    for index in (0, 1, -1):
        one = prediction.output(index)
        assert one.mean.shape == (4,)
        for found, of_all in (
            (one.std, prediction.std),
            (one.quantile(0.3), prediction.quantile(0.3)),
        ):
            torch.testing.assert_close(found, of_all[:, index])
    with pytest.raises(IndexError, match="output: index 2 is out of range for 2 outputs"):
        prediction.output(2)
    with pytest.raises(ValueError, match="output: expected several outputs"):
        prediction.output(0).output(0)
