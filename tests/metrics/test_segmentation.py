"""Intersection over union against sets of positions and against scikit-learn."""

import math

import pytest
import torch
from sklearn.metrics import confusion_matrix as sklearn_confusion
from sklearn.metrics import jaccard_score

from tacit import metrics
from tacit.likelihood.predictive import BinaryPredictive, ClassPredictive


def example(classes=4, shape=(3, 8, 6), seed=0):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(classes, shape, generator=generator)
    predicted = torch.randint(classes, shape, generator=generator)
    return torch.where(torch.rand(shape, generator=generator) < 0.6, labels, predicted), labels


def naive_iou(predicted, labels, k):
    """Intersection over union of two sets of positions."""
    found = {i for i, value in enumerate(predicted.flatten().tolist()) if value == k}
    true = {i for i, value in enumerate(labels.flatten().tolist()) if value == k}
    return len(found & true) / len(found | true) if found | true else math.nan


def test_against_sets_and_scikit_learn():
    predicted, labels = example()
    confusion = metrics.confusion_matrix(predicted, labels, 4)
    assert (confusion.numpy() == sklearn_confusion(labels.flatten(), predicted.flatten())).all()
    each = metrics.class_iou(confusion).tolist()
    assert each == pytest.approx([naive_iou(predicted, labels, k) for k in range(4)])
    assert each == pytest.approx(
        jaccard_score(labels.flatten(), predicted.flatten(), average=None).tolist()
    )
    expected = jaccard_score(labels.flatten(), predicted.flatten(), average="macro")
    assert metrics.miou(confusion) == pytest.approx(expected)


def test_classes_that_dont_occur_dont_count():
    predicted, labels = example(classes=2)
    confusion = metrics.confusion_matrix(predicted, labels, 3)
    assert metrics.class_iou(confusion).isnan().tolist() == [False, False, True]
    assert metrics.miou(confusion) == pytest.approx(
        jaccard_score(labels.flatten(), predicted.flatten(), average="macro")
    )
    never = metrics.confusion_matrix([0, 2], [0, 0], 3)  # 2 is predicted, but never true
    assert metrics.class_iou(never).tolist() == pytest.approx([0.5, math.nan, 0], nan_ok=True)


def test_matrices_of_batches_add_up():
    predicted, labels = example()
    parts = [metrics.confusion_matrix(p, y, 4) for p, y in zip(predicted, labels, strict=True)]
    assert (sum(parts) == metrics.confusion_matrix(predicted, labels, 4)).all()


def test_scores_of_dense_predictions():
    predicted, labels = example(classes=3)
    logits = 3 * torch.nn.functional.one_hot(predicted, 3).double()
    found = ClassPredictive(logits[None], class_names=("sky", "road", "car")).scores(labels)
    confusion = metrics.confusion_matrix(predicted, labels, 3)
    assert found["miou"] == pytest.approx(metrics.miou(confusion))
    assert found["iou_road"] == pytest.approx(naive_iou(predicted, labels, 1))
    assert found["accuracy"] == pytest.approx((predicted == labels).double().mean().item())
    assert "iou_2" in ClassPredictive(logits[None]).scores(labels)
    flat = ClassPredictive(logits.flatten(0, -2)[None]).scores(labels.flatten())
    assert not any("iou" in name for name in flat)
    assert {name: found[name] for name in flat} == pytest.approx(dict(flat))


def test_many_classes_have_no_confusion_matrix():
    logits = torch.randn(1, 2, 3, 1001, generator=torch.Generator().manual_seed(0))
    assert "miou" not in ClassPredictive(logits).scores(torch.zeros(2, 3).long())


def test_binary_images_have_one_but_several_binary_targets_dont():
    logits = torch.randn(2, 4, 5, 6, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(120).reshape(4, 5, 6) % 2
    found = BinaryPredictive(logits)
    expected = naive_iou(found.label.long(), labels, 1)
    assert found.scores(labels)["iou_1"] == pytest.approx(expected)
    assert "miou" not in BinaryPredictive(logits.flatten(2)).scores(labels.flatten(1))


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (
            lambda: metrics.confusion_matrix([0, 3], [0, 1], 3),
            "predicted: expected integers from 0",
        ),
        (lambda: metrics.confusion_matrix([0, 1], [-1, 1], 3), "labels: expected .* from -1 to 1"),
        (lambda: metrics.confusion_matrix([0.5], [0], 3), "predicted: .*received torch.float64"),
        (
            lambda: metrics.confusion_matrix([[0], [1]], [0, 1], 3),
            "expected predictions and labels",
        ),
        (lambda: metrics.class_iou(torch.zeros(2, 3)), r"expected a matrix of shape \(C, C\)"),
        (lambda: metrics.miou([1, 2]), r"expected a matrix of shape \(C, C\), received \(2,\)"),
    ],
)
def test_bad_input(call, match):
    with pytest.raises(ValueError, match=match):
        call()
