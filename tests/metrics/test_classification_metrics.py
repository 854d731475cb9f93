import math

import pytest
import torch
from sklearn.metrics import brier_score_loss, roc_auc_score
from torch.nn import functional as F

from tacit import metrics


def test_against_hand_computed_values():
    probs = torch.tensor([[0.7, 0.2, 0.1], [0.3, 0.4, 0.3], [0.1, 0.1, 0.8], [0.5, 0.3, 0.2]])
    labels = torch.tensor([0, 0, 2, 1])
    assert metrics.accuracy(probs.log(), labels) == 0.5
    expected = -(math.log(0.7) + math.log(0.3) + math.log(0.8) + math.log(0.3)) / 4
    assert metrics.nll(probs.log(), labels) == pytest.approx(expected)
    # Each of the confidences 0.7, 0.4, 0.8, 0.5 is alone in its bin of width 0.1.
    expected = (0.3 + 0.4 + 0.2 + 0.5) / 4
    assert metrics.ece(probs.log(), labels, bins=10) == pytest.approx(expected, abs=1e-6)


def test_one_bin_is_the_gap_between_accuracy_and_confidence():
    log_probs = F.log_softmax(torch.randn(50, 4), -1)
    labels = torch.randint(4, (50,))
    gap = abs(metrics.accuracy(log_probs, labels) - log_probs.exp().max(-1).values.mean().item())
    assert metrics.ece(log_probs, labels, bins=1) == pytest.approx(gap, abs=1e-6)


def test_against_a_loop_over_bins():
    log_probs = F.log_softmax(3 * torch.randn(500, 5, dtype=torch.float64), -1)
    labels = torch.randint(5, (500,))
    confidence, predicted = log_probs.exp().max(-1)
    total = 0.0
    for b in range(15):
        inside = (confidence > b / 15) & (confidence <= (b + 1) / 15)
        if inside.any():
            right = (predicted == labels)[inside].double().mean()
            total += float(inside.double().mean() * (right - confidence[inside].mean()).abs())
    assert metrics.ece(log_probs, labels) == pytest.approx(total)


def test_certainty_is_in_the_last_bin():
    log_probs = torch.tensor([[0.0, -math.inf], [0.0, -math.inf]])
    assert metrics.ece(log_probs, torch.tensor([0, 0])) == 0.0
    assert metrics.ece(log_probs, torch.tensor([0, 1])) == 0.5


@pytest.mark.parametrize("metric", [metrics.accuracy, metrics.nll, metrics.ece])
@pytest.mark.parametrize("shape", [(6, 1), (5,), (6, 3)])
def test_labels_of_another_shape_are_refused(metric, shape):
    log_probs = F.log_softmax(torch.randn(6, 3), -1)
    with pytest.raises(ValueError, match=r"labels of shape \(B,\), received \(6, 3\) and"):
        metric(log_probs, torch.zeros(shape, dtype=torch.long))


def test_bins():
    with pytest.raises(ValueError, match="bins: expected an integer of at least 1"):
        metrics.ece(torch.tensor([[0.5, 0.5]]).log(), torch.tensor([0]), bins=0)


@pytest.mark.parametrize("metric", [metrics.nll, metrics.ece])
def test_logits_are_refused(metric):
    with pytest.raises(ValueError, match="apply log_softmax to logits first"):
        metric(torch.randn(6, 3), torch.zeros(6, dtype=torch.long))


def test_brier_and_auroc_agree_with_scikit_learn():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(50, 3, generator=generator)
    labels = torch.randint(3, (50,), generator=generator)
    probs = logits.softmax(-1)
    expected = sum(
        brier_score_loss((labels == c).int().numpy(), probs[:, c].double().numpy())
        for c in range(3)
    )
    assert metrics.brier(logits.log_softmax(-1), labels) == pytest.approx(expected, rel=1e-6)
    scores = torch.randint(6, (80,), generator=generator).float()  # with ties
    truth = torch.rand(80, generator=generator) < 0.3
    found = metrics.auroc(scores[~truth], scores[truth])
    assert found == pytest.approx(roc_auc_score(truth.numpy(), scores.numpy()))


def test_auroc_of_no_scores():
    with pytest.raises(ValueError, match="auroc: expected two non-empty vectors of scores"):
        metrics.auroc(torch.zeros(0), torch.ones(3))


@pytest.mark.parametrize("wrong", [1.5, -0.1])
def test_confidences_that_are_no_probabilities_are_refused(wrong):
    with pytest.raises(ValueError, match="confidence: expected values from 0 to 1"):
        metrics.reliability(torch.tensor([0.5, wrong]), torch.tensor([True, False]))
