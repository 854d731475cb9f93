import json
import math

import pytest
import torch
from torch import nn

import tacit
from tacit.studies.width.transfer import LearningRateTransfer, Trial

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


def trials(losses):
    """Return trials from a table: width -> losses for the learning rates 0.1, 0.2, ..."""
    return tuple(
        Trial(width, 0.1 * (i + 1), 0, loss)
        for width, row in losses.items()
        for i, loss in enumerate(row)
    )


class TestResult:
    def test_excess_is_relative_to_the_best_loss(self):
        found = LearningRateTransfer(trials({8: [0.5, 0.2, 0.4], 16: [0.2, 0.4, 0.9]}), 8, 0.25)
        assert found.lr == pytest.approx(0.2)
        assert found.best(16) == pytest.approx(0.1)
        assert found.excess(8) == 0
        assert found.excess(16) == pytest.approx(1.0)  # twice the loss
        assert not found.transferred
        assert "does not transfer" in str(found)
        assert "100.0 % more" in str(found)

    def test_an_excess_within_the_tolerance_counts_as_transferred(self):
        found = LearningRateTransfer(trials({8: [0.5, 0.2, 0.4], 16: [0.9, 0.21, 0.2]}), 8, 0.25)
        assert found.transferred
        assert "transfers from width 8" in str(found)

    def test_excess_of_negative_losses_is_positive(self):
        found = LearningRateTransfer(trials({8: [0.5, -2.0], 16: [-2.0, -1.0]}), 8, 0.25)
        assert found.excess(16) == pytest.approx(0.5)

    def test_seeds_are_averaged(self):
        rows = trials({8: [0.5, 0.2]}) + trials({8: [0.1, 0.6]})
        found = LearningRateTransfer(rows, 8, 0.05)
        assert found.loss(8, 0.1) == pytest.approx(0.3)
        assert found.lr == pytest.approx(0.1)

    def test_divergence_is_infinite_and_null_in_json(self, tmp_path):
        found = LearningRateTransfer(trials({8: [0.5, 0.2], 16: [0.2, math.inf]}), 8, 0.25)
        assert found.excess(16) == math.inf
        assert not found.transferred
        saved = json.loads(json.dumps(found.to_dict(), allow_nan=False))
        assert saved["trials"][-1]["loss"] is None
        assert saved["excess"] == {"8": 0.0, "16": None}
        found.plot(tmp_path / "diverged.png")
        assert (tmp_path / "diverged.png").stat().st_size > 0

    def test_if_all_runs_diverge_no_rate_is_best(self):
        found = LearningRateTransfer(trials({8: [math.inf] * 2, 16: [math.inf] * 2}), 8, 0.25)
        assert not found.transferred
        assert str(found) == "all runs of width 8 diverged: try smaller learning rates"

    def test_a_best_rate_at_the_edge_is_reported_for_every_width(self):
        found = LearningRateTransfer(trials({8: [0.3, 0.1, 0.2], 16: [0.1, 0.2, 0.3]}), 8, 0.25)
        assert found.at_edge == [16]
        assert "at the edge of the grid for width 16" in str(found)


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
            grid=[2.0**power for power in range(-9, -3)],
            optimizer="adam",
            steps=100,
            seeds=1,
            tolerance=0.5,
            parametrization=parametrization if where is None else None,
            progress=False,
        )
    assert found["mup"].transferred, str(found["mup"])
    assert not found["sp"].transferred, str(found["sp"])
    assert found["sp"].best(256) < found["sp"].lr


def test_runs_are_reproducible_and_may_diverge():
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


def test_integer_targets_use_cross_entropy_on_the_validation_data():
    labels = (DATA[1][:, 0] > 0).int()[:, None]  # (B, 1) and int32
    nets = []

    def make(width):
        nets.append(nn.Sequential(nn.Linear(8, width), nn.Linear(width, 2)))
        return nets[-1]

    found = tacit.transfer_learning_rate(
        make, (X.numpy(), labels), validation=(X[:10], labels[:10]), small=1, large=2,
        grid=[1e-9, 1e-8], steps=1, progress=False,
    )  # fmt: skip
    with torch.no_grad():
        expected = nn.functional.cross_entropy(nets[-1](X[:10]), labels[:10, 0].long())
    assert found.trials[-1].loss == pytest.approx(expected.item())


def test_targets_that_would_broadcast_are_rejected():
    with pytest.raises(ValueError, match=r"squared error: outputs of shape \(64, 3\) and targets"):
        tacit.transfer_learning_rate(
            lambda width: nn.Sequential(nn.Linear(8, width), nn.Linear(width, 3)), DATA,
            small=1, large=2, progress=False,
        )  # fmt: skip


def test_the_global_random_state_is_restored():
    torch.manual_seed(0)
    before = torch.get_rng_state()
    tacit.transfer_learning_rate(
        maker(tacit.Standard()), DATA, small=2, large=4, grid=[0.1, 0.2], steps=1, progress=False
    )
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        ({"large": []}, ValueError, "large: expected at least one width"),
        ({"large": [4, 8]}, ValueError, "large: expected widths other than 4"),
        ({"small": 0}, ValueError, "small: expected an integer of at least 1"),
        ({"grid": [0.1]}, ValueError, "grid: expected at least two learning rates"),
        ({"grid": [0.1, -1]}, ValueError, "grid: expected a number above 0"),
        ({"steps": 0}, ValueError, "steps: expected an integer"),
        ({"batch_size": 0}, ValueError, "batch_size: expected an integer"),
        ({"seeds": 0}, ValueError, "seeds: expected an integer"),
        ({"optimizer": "lion"}, ValueError, "optimizer: expected one of"),
        ({"samples": 0}, ValueError, "samples: expected an integer"),
        ({"tolerance": -1}, ValueError, "tolerance: expected a number above 0"),
        ({"data": X}, TypeError, "data: expected a pair, inputs and targets; received Tensor"),
        ({"data": (X, DATA[1][:5])}, ValueError, r"received shapes \(256, 8\) and \(5, 1\)"),
        ({"data": (X[:0], X[:0])}, ValueError, "data: there are no examples"),
        (
            {"data": (X, "y")},
            TypeError,
            "data: expected tensors or arrays, received str",
        ),
        ({"validation": (X,)}, TypeError, "validation: expected a pair"),
        (
            {"make_net": lambda w: None},
            TypeError,
            "expected an nn.Module for width 4, received None",
        ),
        ({"make_net": nn.Linear(8, 1)}, TypeError, "expected a function from a width"),
        ({"make_net": lambda w: nn.Linear(8, 1)}, ValueError, "the same number of parameters, 9"),
    ],
)
def test_invalid_arguments_are_rejected(change, error, match):
    arguments = {
        "make_net": maker(tacit.Standard()), "data": DATA, "small": 4, "large": 8,
        "progress": False, **change,
    }  # fmt: skip
    with pytest.raises(error, match=match):
        tacit.transfer_learning_rate(**arguments)
