"""Metrics against torchmetrics, scikit-learn and values computed by hand."""

import numpy as np
import pytest
import torch
from sklearn.metrics import (
    accuracy_score,
    average_precision_score,
    log_loss,
    roc_auc_score,
    top_k_accuracy_score,
)
from torch.nn import functional as F

from tacit import metrics


@pytest.fixture(scope="module")
def torchmetrics():
    return pytest.importorskip("torchmetrics", reason="a dependency of PyTorch Lightning")


def example(classes=7, size=400, seed=0, sharpness=2.0):
    generator = torch.Generator().manual_seed(seed)
    logits = sharpness * torch.randn(size, classes, generator=generator, dtype=torch.float64)
    labels = torch.randint(classes, (size,), generator=generator)
    labels[::2] = logits.argmax(-1)[::2]
    return F.log_softmax(logits, -1), labels


@pytest.mark.parametrize("decimals", [0, 1, 6])
def test_average_precision_against_scikit_learn(decimals):
    generator = torch.Generator().manual_seed(0)
    negative, positive = (
        (torch.randn(size, generator=generator, dtype=torch.float64) + shift).round(
            decimals=decimals
        )
        for size, shift in ((300, 0.0), (200, 0.7))
    )
    expected = average_precision_score(np.arange(500) >= 300, torch.cat([negative, positive]))
    assert metrics.aupr(negative, positive) == pytest.approx(expected, rel=1e-12)


def test_average_precision_of_ties_is_the_share_of_the_positive_class():
    assert metrics.aupr(torch.zeros(30), torch.zeros(10)) == 0.25
    assert metrics.aupr([0.1, 0.2], [0.3]) == 1


@pytest.mark.parametrize("classes", [2, 7])
def test_classification_against_torchmetrics(torchmetrics, classes):
    log_probs, labels = example(classes)
    functional = torchmetrics.functional.classification
    probs = log_probs.exp()
    for k in (1, 2):
        expected = functional.multiclass_accuracy(probs, labels, classes, average="micro", top_k=k)
        assert metrics.accuracy(log_probs, labels, k) == pytest.approx(expected.item(), abs=1e-6)
    for bins in (1, 15, 30):
        expected = functional.multiclass_calibration_error(
            probs, labels, classes, n_bins=bins, norm="l1"
        )
        assert metrics.ece(log_probs, labels, bins) == pytest.approx(expected.item(), abs=1e-6)


def test_detection_against_torchmetrics(torchmetrics):
    generator = torch.Generator().manual_seed(0)
    negative = torch.randn(300, generator=generator).round(decimals=1)  # with ties
    positive = torch.randn(200, generator=generator).round(decimals=1) + 1
    scores, truth = torch.cat([negative, positive]), torch.arange(500) >= 300
    functional = torchmetrics.functional.classification
    # A linear map to probabilities; a sigmoid would merge some distinct scores.
    probs = (scores.double() + 10) / 20
    expected = functional.binary_auroc(probs, truth.long())
    assert metrics.auroc(negative, positive) == pytest.approx(expected.item(), abs=1e-6)
    assert metrics.auroc(negative, positive) == pytest.approx(
        roc_auc_score(truth.numpy(), scores.numpy())
    )
    false, true, _ = functional.binary_roc(probs, truth.long())
    best = false[true >= 0.95].min().item()
    assert metrics.fpr95(negative, positive) == pytest.approx(best)


def test_regression_against_torchmetrics(torchmetrics):
    mean, targets = torch.randn(50, dtype=torch.float64), torch.randn(50, dtype=torch.float64)
    expected = torchmetrics.functional.mean_squared_error(mean, targets, squared=False)
    assert metrics.rmse(mean, targets) == pytest.approx(expected.item())


def test_against_scikit_learn():
    log_probs, labels = example()
    probs = log_probs.exp().numpy()
    assert metrics.nll(log_probs, labels) == pytest.approx(log_loss(labels.numpy(), probs))
    assert metrics.accuracy(log_probs, labels) == accuracy_score(labels, probs.argmax(-1))
    top = top_k_accuracy_score(labels.numpy(), probs, k=3, labels=np.arange(7))
    assert metrics.accuracy(log_probs, labels, 3) == pytest.approx(top)


def test_adaptive_bins_by_hand():
    confidence = torch.tensor([0.3, 0.5, 0.6, 0.9, 0.95, 0.99])
    correct = torch.tensor([False, True, True, True, False, True])
    # Three bins of two: (0.4, 0.5), (0.75, 1), (0.97, 0.5).
    expected = (0.1 + 0.25 + 0.47) / 3
    found = metrics.calibration_error(confidence, correct, 3, adaptive=True)
    assert found == pytest.approx(expected)


def test_adaptive_bins_have_equal_sizes():
    confidence, correct = torch.rand(100), torch.rand(100) > 0.5
    bins = metrics.reliability(confidence, correct, 7, adaptive=True)
    assert bins.size.sum() == 100
    assert bins.size.max() - bins.size.min() <= 1
    assert bins.confidence.sort().values.equal(bins.confidence)
    assert metrics.calibration_error(confidence, correct, 1) == pytest.approx(
        metrics.calibration_error(confidence, correct, 1, adaptive=True)
    )


def test_more_adaptive_bins_than_examples():
    confidence, correct = torch.tensor([0.5, 0.8]), torch.tensor([True, False])
    found = metrics.calibration_error(confidence, correct, 15, adaptive=True)
    assert found == pytest.approx((0.5 + 0.8) / 2)


def test_classwise_against_a_loop():
    log_probs, labels = example()
    probs, total = log_probs.exp(), 0.0
    for k in range(7):
        for b in range(15):
            inside = (probs[:, k] > b / 15) & (probs[:, k] <= (b + 1) / 15)
            if inside.any():
                gap = (labels[inside] == k).double().mean() - probs[inside, k].mean()
                total += float(inside.double().mean() * gap.abs()) / 7
    assert metrics.classwise_ece(log_probs, labels) == pytest.approx(total)


def test_selective_accuracy_by_hand():
    confidence = torch.tensor([0.2, 0.9, 0.5, 0.5])
    correct = torch.tensor([False, True, False, True])
    # The ties at 0.5 come in either order, so after two examples the accuracy is 1/2 or 1.
    expected = torch.tensor([1.0, 1.5 / 2, 2 / 3, 2 / 4], dtype=torch.float64)
    torch.testing.assert_close(metrics.selective_accuracy(confidence, correct), expected)
    assert metrics.aurc(confidence, correct) == pytest.approx(1 - expected.mean().item())


def test_ties_are_the_mean_over_orders():
    generator = torch.Generator().manual_seed(0)
    confidence = torch.randint(0, 4, (40,), generator=generator).double()
    correct = torch.rand(40, generator=generator) > 0.4
    areas = []
    for _ in range(4000):
        jitter = confidence + 0.5 * torch.rand(40, generator=generator)
        areas.append(metrics.aurc(jitter, correct))
    error = np.std(areas) / np.sqrt(len(areas))
    assert metrics.aurc(confidence, correct) == pytest.approx(np.mean(areas), abs=4 * error)


def test_an_uninformative_confidence_gives_the_error_rate():
    correct = torch.rand(100) > 0.3
    assert metrics.aurc(torch.ones(100), correct) == pytest.approx(1 - correct.double().mean())


class TestEdges:
    def test_one_class(self):
        log_probs, labels = torch.zeros(4, 1), torch.zeros(4, dtype=torch.long)
        assert metrics.ece(log_probs, labels) == 0
        assert metrics.classwise_ece(log_probs, labels) == 0
        assert metrics.accuracy(log_probs, labels) == 1

    def test_probability_zero(self):
        log_probs = torch.tensor([[0.0, -torch.inf]])
        assert metrics.classwise_ece(log_probs, torch.tensor([0])) == 0
        assert metrics.nll(log_probs, torch.tensor([1])) == torch.inf

    def test_fpr95_of_disjoint_or_equal_scores(self):
        assert metrics.fpr95(torch.zeros(5), torch.ones(5)) == 0
        assert metrics.fpr95(torch.ones(5), torch.zeros(5)) == 1
        assert metrics.fpr95(torch.ones(5), torch.ones(5)) == 1

    def test_fpr95_needs_exactly_95_of_100(self):
        positive = torch.cat([torch.zeros(5), torch.ones(95)])
        assert metrics.fpr95(torch.full((3,), 0.5), positive) == 0

    @pytest.mark.parametrize("metric", [metrics.auroc, metrics.fpr95])
    def test_empty_or_nan_scores(self, metric):
        with pytest.raises(ValueError, match="expected two non-empty vectors of scores"):
            metric(torch.zeros(0), torch.zeros(3))
        with pytest.raises(ValueError, match="some scores are NaN"):
            metric(torch.tensor([torch.nan]), torch.zeros(3))

    @pytest.mark.parametrize("metric", [metrics.aurc, metrics.calibration_error])
    def test_shapes(self, metric):
        with pytest.raises(ValueError, match=r"both of shape \(B,\); received \(3,\) and \(3, 1\)"):
            metric(torch.zeros(3), torch.zeros(3, 1))

    def test_k_above_the_number_of_classes(self):
        with pytest.raises(ValueError, match="k: expected at most 2 classes, received 3"):
            metrics.accuracy(torch.zeros(1, 2), torch.tensor([0]), 3)

    def test_regression(self):
        with pytest.raises(ValueError, match="of the same shape, received"):
            metrics.rmse(torch.zeros(3), torch.zeros(3, 1))
        with pytest.raises(ValueError, match="level: expected a number between 0 and 1"):
            metrics.interval_score(torch.zeros(1), torch.ones(1), torch.ones(1), 1.0)


def test_the_interval_score_prefers_the_true_quantiles():
    y = torch.randn(20000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    scores = {
        z: metrics.interval_score(torch.full_like(y, -z), torch.full_like(y, z), y).mean().item()
        for z in (1.2, 1.6449, 2.1)
    }
    assert min(scores, key=scores.get) == 1.6449
    low, high = torch.full_like(y, -1.6449), torch.full_like(y, 1.6449)
    assert metrics.coverage(low, high, y) == pytest.approx(0.9, abs=0.01)
