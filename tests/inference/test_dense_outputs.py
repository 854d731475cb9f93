"""Segmentation from training to evaluation: discs and squares, told apart by brightness."""

import math

import pytest
import torch
from sklearn.metrics import jaccard_score
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close
from torch.utils.data import DataLoader, TensorDataset

import tacit
from tacit import metrics
from tacit.inference import scores as scores_module

HEIGHT, WIDTH, IGNORED = 12, 10, 255
NAMES = ("ground", "disc", "square")


def shapes(count, seed=0):
    """Images with a disc and a square of different brightness, and the class of each pixel."""
    random = torch.Generator().manual_seed(seed)
    rows, columns = torch.meshgrid(torch.arange(HEIGHT), torch.arange(WIDTH), indexing="ij")
    y0, y1 = HEIGHT * torch.rand(2, count, 1, 1, generator=random)
    x0, x1 = WIDTH * torch.rand(2, count, 1, 1, generator=random)
    labels = torch.zeros(count, HEIGHT, WIDTH).long()
    labels[(rows - y0).square() + (columns - x0).square() < 9] = 1
    labels[torch.maximum((rows - y1).abs(), (columns - x1).abs()) < 2.5] = 2
    images = labels + 0.4 * torch.randn(labels.shape, generator=random)
    return images[:, None], labels


def segmenter(likelihood, seed=0):
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 3, 3, padding=1))
    return tacit.variational(net, likelihood=likelihood)


@pytest.fixture(scope="module")
def trained():
    """A model that was told nothing about the order of its outputs."""
    likelihood = tacit.Categorical(NAMES, ignore_index=IGNORED)
    model = segmenter(likelihood)
    x, y = shapes(80)
    y[:, 0] = IGNORED
    tacit.fit(model, (x, y), shapes(20, seed=1), epochs=6, lr=0.1, batch_size=10)
    return model


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def test_it_learns_to_segment(trained):
    x, y = shapes(40, seed=2)
    found = tacit.evaluate(trained, (x, y), batch_size=16, generator=seeded())
    assert found["accuracy"] > 0.9
    assert found["miou"] > 0.6
    prediction = tacit.predict(trained, x, generator=seeded())
    assert prediction.probs.shape == (40, HEIGHT, WIDTH, 3)
    assert found == pytest.approx(dict(prediction.scores(y)))
    answers = y.flatten(), prediction.label.flatten()
    each = jaccard_score(*answers, average=None)
    assert found["iou_square"] == pytest.approx(each[2])
    assert found["miou"] == pytest.approx(jaccard_score(*answers, average="macro"))
    correct = prediction.label == y
    error = metrics.calibration_error(prediction.confidence.flatten(), correct.flatten())
    assert found["ece"] == pytest.approx(error, rel=1e-4)


@pytest.mark.parametrize("options", [{}, {"scope": "mean"}, {"per_class": True}], ids=str)
def test_calibration(trained, options):
    x, y = shapes(30, seed=3)
    y[:, :, 0] = IGNORED
    found = tacit.calibrate(trained, (x, y), generator=seeded(), **options)
    assert found.examples == 30 * HEIGHT * (WIDTH - 1)
    assert found.nll <= found.nll_before
    scores = tacit.evaluate(trained, (x, y), generator=seeded())
    assert scores["nll"] == pytest.approx(found.nll, rel=1e-3)
    trained.likelihood.set_temperature(1.0)


def test_the_order_of_the_outputs_changes_nothing(trained):
    x, y = shapes(10, seed=4)
    last = nn.Sequential(tacit.deterministic(trained), Last())
    for net in (tacit.deterministic(trained), last):
        likelihood = tacit.Categorical()
        found = tacit.evaluate(net, (x, y), likelihood=likelihood)
        expected = F.cross_entropy(tacit.deterministic(trained)(x), y).item()
        assert found["nll"] == pytest.approx(expected, rel=1e-5)
        assert tacit.predict(net, x, likelihood=likelihood).probs.shape == (10, HEIGHT, WIDTH, 3)


class Last(nn.Module):
    def forward(self, logits):
        return logits.movedim(1, -1)


def test_foreign_images_are_ranked_by_their_mean_entropy(trained):
    x, y = shapes(20, seed=5)
    others = 3 * torch.rand(30, 1, HEIGHT, WIDTH, generator=seeded())
    found = tacit.evaluate(trained, (x, y), foreign=others, generator=seeded())
    entropies = [
        tacit.predict(trained, given, generator=seeded()).entropy.mean((1, 2))
        for given in (x, others)
    ]
    assert found["ood_auroc"] == pytest.approx(metrics.auroc(*entropies))
    assert found["ood_auroc"] > 0.9


def test_many_pixels_take_bounded_memory(trained, monkeypatch):
    class Small(metrics.Streaming):
        def __init__(self):
            super().__init__(limit=1000)
            made.append(self)

    made = []
    x, y = shapes(60, seed=6)
    expected = tacit.evaluate(trained, (x, y), batch_size=10, generator=seeded())
    monkeypatch.setattr(scores_module, "Streaming", Small)
    sizes = []
    for count in (20, 60):
        found = tacit.evaluate(trained, (x[:count], y[:count]), batch_size=10, generator=seeded())
        kept = [piece for pieces in made[-1]._pieces.values() for piece in pieces]
        assert not kept
        sizes.append(sum(t.numel() for t in (*made[-1]._sums.values(), *made[-1]._folded.values())))
    assert sizes[0] == sizes[1]
    for name, value in expected.items():
        rough = name in ("adaptive_ece", "aurc")
        assert found[name] == pytest.approx(value, rel=1e-9, abs=2e-3 if rough else 0)


class TestConformal:
    def test_sets_contain_the_class_at_each_position(self, trained):
        x, y = shapes(40, seed=7)
        sets = tacit.conformal(tacit.predict(trained, x, generator=seeded()), y, level=0.9)
        assert sets.thresholds.shape == (HEIGHT, WIDTH, 1)
        new, truth = shapes(40, seed=8)
        found = sets(tacit.predict(trained, new, generator=seeded()))
        assert found.members.shape == (40, HEIGHT, WIDTH, 3)
        assert found.coverage(truth) > 0.87

    @pytest.mark.parametrize("score", ["lac", "aps", "raps"])
    def test_positions_without_labels_dont_count(self, trained, score):
        x, y = shapes(30, seed=9)
        kept = torch.rand(y.shape, generator=seeded()) < 0.7
        kept[:, 2, 3] = torch.arange(30) < 15
        kept[:, 0, 0] = False
        kept[:, 4, 5] = torch.arange(30) < 8
        prediction = tacit.predict(trained, x, generator=seeded())
        targets = y.masked_fill(~kept, IGNORED)
        sets = tacit.conformal(prediction, targets, level=0.9, score=score, allow_empty=True)
        # A position has the threshold of the images that are labelled there.
        alone = prediction[:15]
        reference = tacit.conformal(alone, y[:15], level=0.9, score=score)
        assert_close(sets.thresholds[2, 3], reference.thresholds[2, 3])
        assert (sets.thresholds[[0, 4], [0, 5]] == math.inf).all()  # 0 and 8 labels are too few
        found = sets(prediction)
        assert found.members[:, [0, 4], [0, 5]].all()
        inside = found.members.gather(-1, y[..., None])[..., 0]
        assert found.coverage(targets) == pytest.approx(inside[kept].double().mean().item())

    def test_too_few_labels_everywhere(self, trained):
        x, y = shapes(30, seed=9)
        y[5:] = IGNORED
        with pytest.raises(ValueError, match="conformal: a level of 0.9 needs at least 9"):
            tacit.conformal(tacit.predict(trained, x), y, level=0.9)

    def test_ignored_labels_of_single_predictions(self):
        torch.manual_seed(0)
        logits, labels = torch.randn(60, 3), torch.randint(3, (60,))
        likelihood = tacit.Categorical(ignore_index=1)
        given = likelihood.predictive(logits[None])
        kept = labels != 1
        found = tacit.conformal(given, labels, 0.8)
        expected = tacit.conformal(given[kept], labels[kept], 0.8)
        assert_close(found.thresholds, expected.thresholds)
        with pytest.raises(ValueError, match="calibration examples of class 1, received 0"):
            tacit.conformal(given, labels, 0.8, by_class=True)


class TestSelect:
    def test_one_position_of_each_image_is_used(self, trained):
        x, y = shapes(400, seed=10)
        prediction = tacit.predict(trained, x, samples=4, generator=seeded())
        rule = prediction.select(y, risk=0.1, generator=seeded())
        assert 0 < rule.coverage <= 1
        new, truth = shapes(100, seed=11)
        others = tacit.predict(trained, new, samples=4, generator=seeded())
        answered = rule(others)
        assert answered.shape == truth.shape
        assert (others.label != truth)[answered].double().mean() < 0.1
        again = prediction.select(y, risk=0.1, generator=seeded())
        assert again == rule

    def test_only_labels_that_count(self):
        torch.manual_seed(0)
        labels = torch.randint(3, (300, 7))
        logits = 5 * F.one_hot(labels, 3).float()
        labels[:, :6] = (labels[:, :6] + 1) % 3  # wrong
        prediction = tacit.Categorical(class_dim=-1, ignore_index=-1).predictive(logits[None])
        with pytest.raises(ValueError, match="select: no threshold keeps the error rate"):
            prediction.select(labels, risk=0.1)
        labels[:, :6] = -1
        labels[100:200] = -1  # nothing to draw
        rule = prediction.select(labels, risk=0.1)
        assert (rule.coverage, rule.error) == (1.0, 0.0)

    def test_one_label_per_example_needs_no_randomness(self):
        labels = torch.arange(200) % 2
        logits = 4 * F.one_hot(labels, 2).float()
        flat = tacit.Categorical().predictive(logits[None]).select(labels, risk=0.1)
        one = tacit.Categorical(class_dim=-1).predictive(logits[None, :, None])
        assert one.select(labels[:, None], risk=0.1) == flat


class TestTraining:
    def test_a_finished_run_knows_the_order_too(self, tmp_path):
        x, y = shapes(16)
        for _ in range(2):  # the second reads the checkpoint and takes no step
            model = segmenter(tacit.Categorical())
            tacit.fit(model, (x, y), epochs=1, lr=0.05, batch_size=8, checkpoint=tmp_path)
            assert tacit.predict(model, x, samples=2).probs.shape == (16, HEIGHT, WIDTH, 3)
        # What training found is no change of its settings.
        history = tacit.fit(model, (x, y), epochs=2, lr=0.05, batch_size=8, checkpoint=tmp_path)
        assert len(history) == 2

    def test_square_images_with_as_many_classes_are_refused(self):
        x, y = torch.randn(8, 1, 3, 3), torch.randint(3, (8, 3, 3))
        with pytest.raises(ValueError, match=r"two dimensions that may be .*class_dim=1"):
            tacit.fit(segmenter(tacit.Categorical()), (x, y), epochs=1, lr=0.05)
        model = segmenter(tacit.Categorical(class_dim=1))
        tacit.fit(model, (x, y), (x, y), epochs=1, lr=0.05)

    def test_validation_labels_out_of_range(self):
        x, y = shapes(8)
        wrong = y.clone()
        wrong[5, 3, 3] = 3
        with pytest.raises(ValueError, match="validation: .*label 3 is out of range"):
            tacit.fit(segmenter(tacit.Categorical()), (x, y), (x, wrong), epochs=1, lr=0.05)

    def test_samples_of_the_loss(self):
        x, y = shapes(8)
        model = segmenter(tacit.Categorical())
        history = tacit.fit(model, (x, y), epochs=1, lr=0.05, samples=2, batch_size=4)
        assert math.isfinite(history["loss"][0])

    def test_a_loader_and_a_likelihood_that_sees_another_order(self, trained):
        x, y = shapes(8)
        loader = DataLoader(TensorDataset(x, y), batch_size=3)
        found = tacit.evaluate(trained, loader, generator=seeded())
        assert found == pytest.approx(tacit.evaluate(trained, (x, y), generator=seeded()), rel=1e-4)
        with pytest.raises(ValueError, match="it was dimension 1 in the data seen before"):
            tacit.evaluate(nn.Sequential(trained, Last()), (x, y), likelihood=trained.likelihood)


def test_forecasts_of_several_steps():
    torch.manual_seed(0)
    x = torch.randn(64, 4)
    model = tacit.variational(nn.Linear(4, 6), likelihood=tacit.Gaussian(0.3))
    y = x @ torch.randn(4, 6) + 0.3 * torch.randn(64, 6)
    tacit.fit(model, (x, y), epochs=20, lr=0.05, batch_size=16)
    found = tacit.evaluate(model, (x, y), generator=seeded())
    prediction = tacit.predict(model, x, generator=seeded())
    squares = (prediction.mean - y).square().mean(0)
    assert [found[f"rmse_{t}"] for t in range(6)] == pytest.approx(
        squares.sqrt().tolist(), rel=1e-4
    )
    assert prediction.sample(5).shape == (5, 64, 6)
    low, high = prediction.interval(0.9, joint=True)
    assert (high - low > prediction.interval(0.9)[1] - prediction.interval(0.9)[0]).all()
