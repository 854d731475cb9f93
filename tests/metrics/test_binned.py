"""Metrics from sums in bins of confidence against those of single examples."""

import pytest
import torch

from tacit import metrics
from tacit.likelihood.predictive import ClassPredictive, RegressionPredictive
from tacit.metrics import binned


def answers(size=3000, seed=0, sharpness=4.0):
    generator = torch.Generator().manual_seed(seed)
    logits = sharpness * torch.randn(size, 3, generator=generator, dtype=torch.float64)
    confidence = logits.softmax(-1).amax(-1)
    correct = torch.rand(size, generator=generator) < confidence**1.5
    return confidence, correct.double()


@pytest.mark.parametrize("sharpness", [0.5, 4.0, 20.0])
def test_errors_from_bins(sharpness):
    confidence, correct = answers(sharpness=sharpness)
    sums = binned.confidence_sums(confidence, correct)
    # The fine bins refine the 15 bins: the same number.
    expected = metrics.calibration_error(confidence, correct)
    assert binned.binned_calibration_error(sums) == pytest.approx(expected, rel=1e-9)
    expected = metrics.calibration_error(confidence, correct, adaptive=True)
    found = binned.binned_calibration_error(sums, adaptive=True)
    assert found == pytest.approx(expected, abs=2e-3)
    assert binned.binned_aurc(sums) == pytest.approx(metrics.aurc(confidence, correct), abs=2e-4)


def test_tied_confidences_lose_nothing():
    generator = torch.Generator().manual_seed(0)
    confidence = torch.tensor([0.35, 0.5, 0.8, 0.95, 1 - 1e-7], dtype=torch.float64)
    confidence = confidence[torch.randint(5, (500,), generator=generator)]
    correct = (torch.rand(500, generator=generator) < confidence).double()
    sums = binned.confidence_sums(confidence, correct)
    adaptive = metrics.calibration_error(confidence, correct, adaptive=True)
    assert binned.binned_calibration_error(sums, adaptive=True) == pytest.approx(adaptive, rel=1e-9)
    assert binned.binned_aurc(sums) == pytest.approx(metrics.aurc(confidence, correct), rel=1e-9)


def test_edges_of_the_bins():
    confidence = torch.cat([torch.arange(16).double() / 15, torch.tensor([0.3, 1.0])])
    correct = torch.arange(18).double() % 2
    sums = binned.confidence_sums(confidence, correct)
    expected = metrics.calibration_error(confidence, correct)
    assert binned.binned_calibration_error(sums) == pytest.approx(expected, rel=1e-9)
    perfect = binned.confidence_sums(torch.ones(5).double(), torch.ones(5).double())
    assert binned.binned_calibration_error(perfect, adaptive=True) == 0
    assert binned.binned_aurc(perfect) == 0


def batches(count, seed=0):
    generator = torch.Generator().manual_seed(seed)
    for _ in range(count):
        logits = 3 * torch.randn(2, 4, 8, 6, 3, generator=generator)
        labels = torch.randint(3, (4, 8, 6), generator=generator)
        labels[:, ::2] = logits.mean(0).argmax(-1)[:, ::2]
        yield ClassPredictive(logits), labels


def entries(collected):
    """Number of stored entries."""
    lists = [piece for pieces in collected._pieces.values() for piece in pieces]
    sums = [*collected._sums.values(), *collected._folded.values()]
    return sum(tensor.numel() for tensor in (*lists, *sums))


def test_beyond_the_limit_memory_doesnt_grow_and_metrics_agree():
    exact, bounded, stored = metrics.Streaming(), metrics.Streaming(limit=300), []
    for prediction, labels in batches(20):
        given = prediction.errors(labels), prediction.sums(labels)
        exact.update(*given)
        bounded.update(*given)
        stored.append(entries(bounded))
    assert len(set(stored[2:])) == 1
    assert entries(exact) > 2 * stored[-1]
    found, expected = bounded.compute(), exact.compute()
    assert list(found) == list(expected)
    for name, value in expected.items():
        rough = name in ("adaptive_ece", "aurc")
        assert found[name] == pytest.approx(value, rel=1e-9, abs=2e-3 if rough else 0)
    with pytest.raises(KeyError, match="no score 'confidence' is kept for each .* more than 300"):
        bounded["confidence"]


def test_below_the_limit_scores_are_kept():
    collected = metrics.Streaming(limit=192)
    ((prediction, labels),) = batches(1)
    collected.update(prediction.errors(labels))
    assert len(collected["nll"]) == 192
    collected.update({}, uncertainties={"entropy": torch.ones(500)})  # one per input: always kept
    assert len(collected.uncertainties["entropy"]) == 500
    with pytest.raises(ValueError, match="limit: expected"):
        metrics.Streaming(limit=0)


class TestSeveralOutputs:
    def prediction(self, *shape, size=30):
        generator = torch.Generator().manual_seed(0)
        means = torch.randn(4, size, *shape, generator=generator, dtype=torch.float64)
        targets = 2 * torch.randn(size, *shape, generator=generator, dtype=torch.float64)
        return RegressionPredictive(means, torch.ones_like(means) / 2), targets

    @pytest.mark.parametrize("limit", [10, 10**6])
    @pytest.mark.parametrize("shape", [(3,), (2, 2)])
    def test_each_output_has_metrics(self, shape, limit):
        prediction, targets = self.prediction(*shape)
        collected = metrics.Streaming(limit)
        for rows in torch.arange(30).split(7):
            collected.update(prediction[rows].errors(targets[rows]))
        found = collected.compute()
        squares = (prediction.mean - targets).square().mean(0)
        for index in torch.cartesian_prod(*map(torch.arange, shape)).reshape(-1, len(shape)):
            name, at = "_".join(map(str, index.tolist())), tuple(index)
            assert found[f"rmse_{name}"] == pytest.approx(squares[at].sqrt().item())
            expected = prediction.coverage_by_output(targets)[at].item()
            assert found[f"coverage_90_{name}"] == pytest.approx(expected)
        assert found["rmse"] == pytest.approx(squares.mean().sqrt().item())

    @pytest.mark.parametrize("shape", [(), (1,), (21,)])
    def test_one_or_many_outputs_have_none(self, shape):
        prediction, targets = self.prediction(*shape)
        assert set(prediction.scores(targets)) == {
            "nll", "rmse", "crps", "coverage_90", "interval_score_90",
        }  # fmt: skip

    def test_sequences_of_several_lengths_have_none(self):
        collected = metrics.Streaming()
        for length in (2, 3):
            prediction, targets = self.prediction(length)
            collected.update(prediction.errors(targets))
        assert "rmse_0" not in collected.compute()
