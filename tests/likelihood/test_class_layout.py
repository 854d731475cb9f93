"""The class dimension of logits: given, determined by targets, or refused."""

import copy

import pytest
import torch
from torch.nn import functional as F
from torch.testing import assert_close

from tacit import Categorical

GENERATOR = torch.Generator().manual_seed(0)
SHAPES = {"sequences": (5,), "images": (5, 6), "volumes": (2, 5, 6)}


def randn(*shape):
    return torch.randn(shape, generator=GENERATOR, dtype=torch.float64)


def randint(high, *shape):
    return torch.randint(high, shape, generator=GENERATOR)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("samples", [(), (7,)], ids=["plain", "sampled"])
class TestBothOrders:
    def test_the_loss_is_that_of_torch(self, shape, samples):
        logits, labels = randn(*samples, 4, 3, *shape), randint(3, 4, *shape)
        each = logits if samples else logits[None]
        expected = torch.stack([F.cross_entropy(one, labels) for one in each]).mean()
        last = logits.movedim(len(samples) + 1, -1)
        for known in (None, 1):
            assert_close(Categorical(class_dim=known).loss(logits, labels), expected)
        for known in (None, -1):
            assert_close(Categorical(class_dim=known).loss(last, labels), expected)
        assert_close(Categorical().loss(logits, labels[..., None]), expected)

    def test_gradients_are_those_of_torch(self, shape, samples):
        logits, labels = randn(*samples, 4, 3, *shape).requires_grad_(), randint(3, 4, *shape)
        (found,) = torch.autograd.grad(Categorical().loss(logits, labels), logits)
        each = logits if samples else logits[None]
        loss = torch.stack([F.cross_entropy(one, labels) for one in each]).mean()
        (expected,) = torch.autograd.grad(loss, logits)
        assert_close(found, expected)

    def test_predictions_have_classes_last(self, shape, samples):
        logits, labels = randn(*(samples or (1,)), 4, 3, *shape), randint(3, 4, *shape)
        second, last = Categorical(), Categorical()
        moved = logits.movedim(2, -1)
        second.find_class_dim(logits, labels)
        last.find_class_dim(moved, labels)
        found, expected = second.predictive(logits), last.predictive(moved)
        assert_close(found.probs, logits.softmax(2).mean(0).movedim(1, -1))
        assert found.probs.shape == (4, *shape, 3)
        assert_close(found.probs, expected.probs)
        assert found.scores(labels) == expected.scores(labels)


class TestDetermining:
    def test_it_is_remembered(self):
        likelihood = Categorical()
        likelihood.loss(randn(4, 3, 8, 6), randint(3, 4, 8, 6))
        assert "class_dim=1" in repr(likelihood)
        for kept in (likelihood, copy.deepcopy(likelihood)):
            assert kept.predictive(randn(2, 4, 3, 8, 6)).probs.shape == (4, 8, 6, 3)
            assert kept.predictive(randn(2, 4, 3, 5)).probs.shape == (4, 5, 3)
            assert kept.class_dim is None  # what was given
        other = Categorical()
        other.load_state_dict(likelihood.state_dict())
        assert other.predictive(randn(2, 4, 3, 5)).probs.shape == (4, 5, 3)

    def test_single_labels_determine_nothing(self):
        likelihood = Categorical()
        likelihood.loss(randn(4, 3), randint(3, 4))
        likelihood.loss(randn(4, 3), randint(3, 4, 1))
        likelihood.loss(randn(5, 4, 3), randint(3, 4))
        assert likelihood.found_class_dim == 0
        for dim in (1, -1):
            given = Categorical(class_dim=dim)
            logits, labels = randn(4, 3), randint(3, 4)
            assert_close(given.loss(logits, labels), F.cross_entropy(logits, labels))
            assert_close(given.predictive(logits[None]).probs, logits.softmax(-1))

    @pytest.mark.parametrize("samples", [None, False, True])
    def test_two_fitting_dimensions_are_refused(self, samples):
        logits = randn(*((2,) if samples else ()), 4, 3, 3, 3)
        labels = randint(3, 4, 3, 3)
        with pytest.raises(
            ValueError, match=r"two dimensions that may be .*class_dim=1.*class_dim"
        ):
            Categorical().loss(logits, labels, samples=samples)
        with pytest.raises(ValueError, match="two dimensions that may be"):
            Categorical(["a", "b", "c"]).loss(logits, labels, samples=samples)
        flat = logits.flatten(0, 1) if samples else logits
        repeated = labels.repeat(2, 1, 1) if samples else labels
        for dim, expected in (
            (1, F.cross_entropy(flat, repeated)),
            (-1, F.cross_entropy(flat.movedim(-1, 1), repeated)),
        ):
            assert_close(Categorical(class_dim=dim).loss(logits, labels, samples=samples), expected)

    def test_a_change_is_refused(self):
        likelihood = Categorical()
        likelihood.loss(randn(4, 3, 8), randint(3, 4, 8))
        with pytest.raises(
            ValueError, match="dimension -1, but it was dimension 1 in the data seen"
        ):
            likelihood.loss(randn(4, 8, 3), randint(3, 4, 8))
        with pytest.raises(ValueError, match="in dimension 1, but class_dim is -1. Use one order"):
            Categorical(class_dim=-1).loss(randn(4, 3, 8), randint(3, 4, 8))
        # Outputs that fit both are read in the known order.
        logits, labels = randn(4, 3, 3), randint(3, 4, 3)
        assert_close(likelihood.loss(logits, labels), F.cross_entropy(logits, labels))

    def test_predictions_without_it_are_refused(self):
        for outputs in (randn(2, 4, 5, 3), randn(2, 4, 5, 6, 3)):
            with pytest.raises(ValueError, match="no targets to tell them by. Pass Categorical"):
                Categorical().predictive(outputs)
        with pytest.raises(ValueError, match="class dimension: both have 3 entries. Pass"):
            Categorical(range(3)).predictive(randn(2, 4, 3, 8, 3))

    @pytest.mark.parametrize(
        "likelihood",
        [Categorical(["a", "b", "c"]), Categorical(class_weights=[1, 2, 3]), Categorical()],
        ids=["names", "weights", "temperatures"],
    )
    def test_the_number_of_classes_determines_it(self, likelihood):
        if likelihood.class_names is None and likelihood.class_weights is None:
            likelihood.set_temperature(torch.ones(3))
        assert likelihood.predictive(randn(2, 4, 5, 6, 3)).probs.shape == (4, 5, 6, 3)
        assert likelihood.predictive(randn(2, 4, 3, 5, 6)).probs.shape == (4, 5, 6, 3)
        with pytest.raises(ValueError, match=r"expected 6 \w+, received 3; the outputs have"):
            likelihood.predictive(randn(2, 4, 5, 5, 6))

    @pytest.mark.parametrize("wrong", [0, 2, -2, True, 1.0, "1"])
    def test_other_dimensions(self, wrong):
        with pytest.raises(ValueError, match="class_dim: expected 1, -1 or None, received"):
            Categorical(class_dim=wrong)

    def test_targets_that_dont_fit(self):
        for labels in (
            randint(3, 4, 6, 8),
            randint(3, 4),
            randint(3, 3, 8, 6),
            randint(3, 5, 8, 6),
        ):
            with pytest.raises(
                ValueError, match=r"\(4, 3, 8, 6\) and targets of shape .* don't fit"
            ):
                Categorical().loss(randn(4, 3, 8, 6), labels)
        with pytest.raises(ValueError, match=r"For one-hot targets pass targets.argmax\(class_dim"):
            Categorical().loss(randn(4, 3, 8, 6), randint(2, 4, 3, 8, 6))
        with pytest.raises(ValueError, match=r"For one-hot targets pass targets.argmax\(class_dim"):
            Categorical().loss(randn(2, 4, 3), randint(2, 4, 3))


class TestIgnoredLabels:
    @pytest.mark.parametrize("index", [-100, 255, 1])
    @pytest.mark.parametrize("weights", [None, [1.0, 2.0, 0.5]])
    @pytest.mark.parametrize("smoothing", [0.0, 0.2])
    def test_the_loss_is_that_of_torch(self, index, weights, smoothing):
        logits, labels = randn(4, 3, 5, 6), randint(3, 4, 5, 6)
        labels[torch.rand(4, 5, 6, generator=GENERATOR) < 0.3] = index
        likelihood = Categorical(
            class_weights=weights, label_smoothing=smoothing, ignore_index=index
        )
        expected = F.cross_entropy(
            logits, labels, ignore_index=index, label_smoothing=smoothing,
            weight=None if weights is None else torch.tensor(weights, dtype=torch.float64),
        )  # fmt: skip
        assert_close(likelihood.loss(logits, labels), expected)
        assert_close(likelihood.loss(logits.expand(2, 4, 3, 5, 6), labels), expected)

    def test_metrics_are_those_of_the_rest(self):
        logits, labels = randn(2, 4, 3, 5, 6), randint(3, 4, 5, 6)
        kept = torch.rand(4, 5, 6, generator=GENERATOR) < 0.6
        found = Categorical(class_dim=1, ignore_index=-100).predictive(logits)
        rest = Categorical().predictive(logits.movedim(2, -1)[:, kept])
        scores, expected = found.scores(labels.masked_fill(~kept, -100)), rest.scores(labels[kept])
        assert {name: scores[name] for name in expected} == pytest.approx(dict(expected))

    def test_calibration_sees_the_rest(self):
        logits, labels = randn(2, 4, 3, 5), randint(3, 4, 5)
        kept = torch.rand(4, 5, generator=GENERATOR) < 0.6
        likelihood = Categorical(class_dim=1, ignore_index=-1)
        found, classes = likelihood.as_classes(logits, labels.masked_fill(~kept, -1))
        assert_close(found, logits.movedim(2, -1)[:, kept])
        assert_close(classes, labels[kept])
        with pytest.raises(ValueError, match="calibrate: all labels are -1, which is ignored"):
            likelihood.as_classes(logits, torch.full((4, 5), -1))

    def test_only_ignored_labels(self):
        likelihood = Categorical(class_dim=1, ignore_index=-1)
        with pytest.raises(ValueError, match="ignore_index: all targets of a batch are -1"):
            likelihood.loss(randn(4, 3, 5), torch.full((4, 5), -1))
        with pytest.raises(ValueError, match="there are no scores; .* or all labels are ignored"):
            likelihood.predictive(randn(1, 4, 3, 5)).scores(torch.full((4, 5), -1))
        weighted = Categorical(class_weights=[1.0, 0.0], ignore_index=0)
        with pytest.raises(ValueError, match="all targets of a batch are of classes with weight 0"):
            weighted.loss(randn(2, 2), torch.tensor([0, 1]))

    def test_other_labels_out_of_range(self):
        with pytest.raises(ValueError, match="label -1 is out of range"):
            Categorical(ignore_index=-100).loss(randn(2, 3), torch.tensor([-100, -1]))
        # -100 in 8 bits is 156.
        with pytest.raises(ValueError, match="label 156 is out of range"):
            Categorical(ignore_index=-100).loss(randn(2, 3), torch.tensor([156, 1]).byte())

    @pytest.mark.parametrize("wrong", [True, 1.0, "1"])
    def test_other_types(self, wrong):
        with pytest.raises(TypeError, match="ignore_index: expected an integer or None, received"):
            Categorical(ignore_index=wrong)
