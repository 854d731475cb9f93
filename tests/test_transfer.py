import json
import math

import pytest
import torch
from torch import nn

import tacit
from tacit.transfer import LearningRateTransfer, Trial

GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(256, 8, generator=GENERATOR)
DATA = X, X[:, :1] * X[:, 1:2] + X[:, 2:3].abs()


def maker(parametrization, where=None):
    def make(width):
        net = nn.Sequential(
            nn.Linear(8, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1)
        )
        tacit.initialize(net, parametrization)
        if where is None:
            return net
        return tacit.variational(net, where, parametrization=parametrization)

    return make


def trials(losses, start=1.0):
    """Trials from a table: width -> losses for the learning rates 0.1, 0.2, ..."""
    return tuple(
        Trial(width, 0.1 * (i + 1), 0, start, loss)
        for width, row in losses.items()
        for i, loss in enumerate(row)
    )


class TestResult:
    def test_regret_is_the_share_of_the_gain_that_is_lost(self):
        found = LearningRateTransfer(trials({8: [0.5, 0.2, 0.4], 16: [0.2, 0.4, 0.9]}), 8, 0.05)
        assert found.lr == pytest.approx(0.2)
        assert found.best(16) == pytest.approx(0.1)
        assert found.regret(8) == 0
        assert found.regret(16) == pytest.approx((0.4 - 0.2) / (1 - 0.2))
        assert not found.transferred
        assert "does not transfer" in str(found)
        assert "25.0 % of the gain is lost" in str(found)

    def test_little_regret_counts_as_transferred(self):
        found = LearningRateTransfer(trials({8: [0.5, 0.2, 0.4], 16: [0.2, 0.21, 0.9]}), 8, 0.05)
        assert found.transferred
        assert "transfers from width 8" in str(found)
        assert "edge" not in str(found)

    def test_seeds_are_averaged(self):
        rows = trials({8: [0.5, 0.2]}) + trials({8: [0.1, 0.6]})
        found = LearningRateTransfer(rows, 8, 0.05)
        assert found.loss(8, 0.1) == pytest.approx(0.3)
        assert found.lr == pytest.approx(0.1)

    def test_divergence_is_infinite_regret_and_valid_json(self, tmp_path):
        found = LearningRateTransfer(trials({8: [0.5, 0.2], 16: [0.2, math.inf]}), 8, 0.05)
        assert found.regret(16) == math.inf
        assert not found.transferred
        saved = json.loads(json.dumps(found.to_dict(), allow_nan=False))
        assert saved["trials"][-1]["loss"] is None
        assert saved["regret"] == {"8": 0.0, "16": None}
        found.plot(tmp_path / "diverged.png")
        assert (tmp_path / "diverged.png").stat().st_size > 0

    def test_nothing_learned_is_no_transfer(self):
        found = LearningRateTransfer(trials({8: [3.0, 2.0], 16: [3.0, 2.0]}), 8, 0.05)
        assert not found.transferred

    def test_a_best_rate_at_the_edge_is_said(self):
        found = LearningRateTransfer(trials({8: [0.1, 0.2], 16: [0.1, 0.2]}), 8, 0.05)
        assert "at the edge of the grid" in str(found)


@pytest.mark.slow
@pytest.mark.parametrize("where", [None, {"2": tacit.LowRank(4), "4": tacit.LowRank(4)}])
def test_the_rate_transfers_under_mup_and_not_under_sp(where):
    """The claim `lr-transfer`, from width 32 to 256 with Adam."""
    found = {}
    for name, parametrization in {
        "mup": tacit.MaximalUpdate(base=maker(tacit.Standard())(32)),
        "sp": tacit.Standard(),
    }.items():
        found[name] = tacit.transfer_learning_rate(
            maker(parametrization, where),
            DATA,
            small=32,
            large=256,
            grid=[2.0**power for power in range(-8, -3)],
            optimizer="adam",
            steps=200,
            parametrization=parametrization if where is None else None,
            progress=False,
        )
    assert found["mup"].regret(256) < 0.1, str(found["mup"])
    # The wide network is worse with the small one's rate, and needs a smaller one.
    assert found["sp"].loss(256, found["sp"].lr) > 2 * found["mup"].loss(256, found["mup"].lr)


def test_runs_are_reproducible_and_diverge_without_harm():
    runs = [
        tacit.transfer_learning_rate(
            maker(tacit.Standard(), {"4": tacit.LowRank(2)}), DATA, small=4, large=[8, 16],
            grid=[1e-2, 1e4], steps=3, seeds=2, progress=False,
        )
        for _ in range(2)
    ]  # fmt: skip
    assert runs[0] == runs[1]
    assert len(runs[0].trials) == 3 * 2 * 2
    assert runs[0].loss(8, 1e4) > runs[0].loss(8, 1e-2)


def test_classes_get_the_cross_entropy_and_validation_data_count():
    labels = (DATA[1][:, 0] > 0).long()
    net = nn.Linear(8, 2)
    with torch.no_grad():
        expected = nn.functional.cross_entropy(net(X[:10]), labels[:10])
    found = tacit.transfer_learning_rate(
        lambda width: net, (X, labels), validation=(X[:10], labels[:10]), small=1, large=2,
        grid=[1e-9, 1e-8], steps=1, progress=False,
    )  # fmt: skip
    assert found.trials[0].start == pytest.approx(expected.item())


@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        ({"large": []}, ValueError, "large: expected one width at least"),
        ({"large": [4, 8]}, ValueError, "large: expected widths other than 4"),
        ({"small": 0}, ValueError, "small: expected an integer of at least 1"),
        ({"grid": [0.1]}, ValueError, "grid: expected at least two learning rates"),
        ({"grid": [0.1, -1]}, ValueError, "grid: expected a number above 0"),
        ({"steps": 0}, ValueError, "steps: expected an integer"),
        ({"batch_size": 0}, ValueError, "batch_size: expected an integer"),
        ({"seeds": 0}, ValueError, "seeds: expected an integer"),
        ({"optimizer": "lion"}, ValueError, "optimizer: expected one of"),
        ({"data": X}, TypeError, "data: expected a pair of tensors"),
        ({"data": (X, DATA[1][:5])}, ValueError, "received 256 inputs and 5 targets"),
        ({"validation": (X,)}, TypeError, "data: expected a pair of tensors"),
    ],
)
def test_bad_input(change, error, match):
    arguments = {"data": DATA, "small": 4, "large": 8, "progress": False, **change}
    with pytest.raises(error, match=match):
        tacit.transfer_learning_rate(maker(tacit.Standard()), **arguments)
