"""Arguments of metrics: arrays and lists give the values of tensors, other objects a TypeError."""

import inspect

import numpy as np
import pytest
import torch

from tacit import metrics

LOG_PROBS = torch.tensor([[0.7, 0.3], [0.4, 0.6], [0.9, 0.1]], dtype=torch.float64).log()
LABELS = torch.tensor([0, 1, 1])
SCORES = torch.tensor([0.3, 0.9, 0.5], dtype=torch.float64)
CORRECT = torch.tensor([True, False, True])
CALLS = {
    "accuracy": (LOG_PROBS, LABELS),
    "among_first": (LOG_PROBS, LABELS, 1),
    "aurc": (SCORES, CORRECT),
    "auroc": (SCORES, SCORES + 0.1),
    "aupr": (SCORES, SCORES + 0.1),
    "brier": (LOG_PROBS, LABELS),
    "calibration_error": (SCORES, CORRECT),
    "class_iou": (torch.tensor([[2, 1], [0, 3]]),),
    "classwise_ece": (LOG_PROBS, LABELS),
    "classwise_gaps": (LOG_PROBS, LABELS),
    "confusion_matrix": (LABELS, LABELS, 2),
    "coverage": (SCORES, SCORES + 1, SCORES),
    "ece": (LOG_PROBS, LABELS),
    "fpr95": (SCORES, SCORES + 0.1),
    "interval_score": (SCORES, SCORES + 1, SCORES),
    "miou": (torch.tensor([[2, 1], [0, 3]]),),
    "nll": (LOG_PROBS, LABELS),
    "reliability": (SCORES, CORRECT),
    "rmse": (SCORES, SCORES + 1),
    "selective_accuracy": (SCORES, CORRECT),
}


def test_every_metric_is_listed():
    assert set(CALLS) == {n for n in metrics.__all__ if inspect.isfunction(getattr(metrics, n))}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("convert", [lambda t: t.numpy()[::-1][::-1], lambda t: t.tolist()])
def test_arrays_and_lists_give_the_values_of_tensors(name, convert):
    metric, given = getattr(metrics, name), CALLS[name]
    arguments = [convert(each) if isinstance(each, torch.Tensor) else each for each in given]
    torch.testing.assert_close(metric(*arguments), metric(*given), equal_nan=True)


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("wrong", [None, "abc", {"a": 1}, [1, "a"], object()])
def test_other_objects_are_refused(name, wrong):
    metric, given = getattr(metrics, name), CALLS[name]
    for i in range(min(2, len(given))):
        arguments = [*given]
        arguments[i] = wrong
        with pytest.raises(TypeError, match="expected a tensor, an array or a list of numbers"):
            metric(*arguments)


def test_negative_strides_and_read_only_arrays():
    scores = SCORES.numpy()[::-1]
    assert metrics.rmse(scores, scores) == 0
    fixed = np.broadcast_to(np.float64(0.5), (3,))
    assert metrics.rmse(fixed, fixed) == 0


def test_levels_and_bins_of_another_type_are_refused():
    with pytest.raises(TypeError, match="level: expected a number between 0 and 1, received 'x'"):
        metrics.interval_score(SCORES, SCORES, SCORES, "x")
    with pytest.raises(TypeError, match="bins: expected an integer of at least 1, received 'x'"):
        metrics.classwise_gaps(LOG_PROBS, LABELS, "x")


def test_unsigned_integers_do_not_wrap_around():
    low, high, target = (np.array([value], dtype=np.uint8) for value in (5, 9, 1))
    assert metrics.interval_score(low, high, target).item() == pytest.approx(4 + 20 * 4)


@pytest.mark.parametrize("correct", [[2, 3], [-1, 0], [float("nan"), 1]])
def test_correctness_is_from_0_to_1(correct):
    with pytest.raises(ValueError, match="correct: expected 0 or 1 for each example"):
        metrics.aurc([0.5, 0.6], correct)


def test_complex_numbers_are_refused():
    with pytest.raises(TypeError, match="mean: expected real numbers, received torch.complex128"):
        metrics.rmse([1j], [0j])
