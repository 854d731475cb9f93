"""Abstention: the error rate among the answered is bounded with the stated probability."""

import pytest
import torch
from scipy.stats import binom

from nets import generator
from tacit.likelihood.predictive import BinaryPredictive, ClassPredictive
from tacit.likelihood.predictive.abstention import COVERAGES, abstention, binomial_tail


def problem(count, seed):
    """Return confidences, and outcomes that are right with probability confidence^2."""
    random = generator(seed)
    scores = 0.5 + 0.5 * torch.rand(count, generator=random, dtype=torch.float64)
    return scores, torch.rand(count, generator=random, dtype=torch.float64) < scores**2


def true_risk(threshold):
    """Return 1 - E[c^2 | c >= threshold] for c uniform on (0.5, 1)."""
    return 1 - (1 - threshold**3) / (3 * (1 - threshold))


def test_the_risk_is_bounded_with_the_stated_probability():
    rules = [abstention(*problem(500, seed), risk=0.3, confidence=0.8) for seed in range(300)]
    exceeded = torch.tensor([true_risk(rule.threshold) > 0.3 for rule in rules]).double().mean()
    assert exceeded <= 0.2
    # Not only by answering next to nothing: 0.3 is the risk of the most confident 60 %.
    assert sum(rule.coverage for rule in rules) / len(rules) > 0.3


def test_more_risk_answers_more():
    coverages = [abstention(*problem(2000, 0), risk, 0.95).coverage for risk in (0.2, 0.3, 0.41)]
    assert coverages == sorted(coverages)
    assert coverages[0] < coverages[-1]


def test_ties_are_answered_together():
    scores = torch.tensor([0.9] * 300 + [0.6] * 300)
    correct = torch.tensor([True] * 300 + [False] * 300)
    rule = abstention(scores, correct, 0.05, 0.95)
    assert (rule.coverage, rule.error) == (0.5, 0.0)
    assert rule.threshold == pytest.approx(0.6, abs=1e-5)


@pytest.mark.parametrize(("count", "errors", "risk"), [(10, 0, 0.1), (300, 7, 0.02), (50, 50, 0.3)])
def test_thebinomial_tail_is_scipys(count, errors, risk):
    assert binomial_tail(count, errors, risk) == pytest.approx(binom.cdf(errors, count, risk))


def test_predictions_of_classes_and_of_binary_targets():
    labels = torch.randint(3, (800,), generator=generator())
    noise = torch.randn(2, 800, 3, generator=generator(1))
    logits = 6 * torch.eye(3)[labels] + noise
    assert ClassPredictive(logits).select(labels, risk=0.02).coverage == 1.0
    logits[:, :200] = noise[:, :200]  # uncertain, and most of them wrong
    rule = ClassPredictive(logits).select(labels, risk=0.02)
    assert 0.65 <= rule.coverage <= 0.75
    assert rule(ClassPredictive(torch.zeros(1, 4, 3))).tolist() == [False] * 4
    binary = BinaryPredictive(8.0 * (labels > 0).float()[None] - 4)
    assert binary.select(labels > 0, risk=0.02)(binary).all()


def test_too_few_examples_are_refused_with_the_number_needed():
    scores, correct = torch.rand(100), torch.ones(100, dtype=torch.bool)
    with pytest.raises(ValueError, match=r"below 0.01 with probability 0.95. At least 597 confid"):
        abstention(scores, correct, 0.01, 0.95)
    needed = torch.ones(597)
    assert abstention(needed, needed > 0, 0.01, 0.95).coverage == 1
    assert COVERAGES == 20
    with pytest.raises(ValueError, match=r"select\(risk\): expected a number between 0 and 1"):
        abstention(scores, correct, 0.0, 0.95)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equal_examples_are_not_answered_by_rounding(dtype):
    labels = torch.arange(400) % 2
    logits = 5 * torch.eye(2, dtype=dtype)[labels]
    logits[:100] = torch.tensor([1.0, 0.0], dtype=dtype)  # uncertain, and half of them wrong
    rule = ClassPredictive(logits[None]).select(labels, risk=0.05)
    again = rule(ClassPredictive(logits[None] * (1 + 4 * torch.finfo(dtype).eps)))
    assert again.tolist() == [False] * 100 + [True] * 300


def test_soft_targets_are_refused():
    prediction = BinaryPredictive(torch.full((1, 400), -4.0))
    with pytest.raises(ValueError, match="received soft targets"):
        prediction.select(torch.full((400,), 0.9), risk=0.05)
