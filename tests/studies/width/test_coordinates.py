import json
import math
import pickle
import statistics

import pytest
import torch
from torch import nn

import tacit
from tacit import (
    Diagonal,
    FullRank,
    Kronecker,
    LowRank,
    LowRankPlusDiagonal,
    RankOneSum,
    Relative,
)
from tacit.studies.width.coordinates import Change, CoordinateCheck

GENERATOR = torch.Generator().manual_seed(0)
DATA = torch.randn(16, 8, generator=GENERATOR), torch.randn(16, 1, generator=GENERATOR)


def plain(width):
    return nn.Sequential(
        nn.Linear(8, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1)
    )


def maker(parametrization, where=None):
    """Return a function from a width to a network; `where` maps a width to its random layers."""

    def make(width):
        net = plain(width)
        tacit.initialize(net, parametrization)
        if where is None:
            return net
        return tacit.variational(net, where(width), parametrization=parametrization, draws=8)

    return make


MU = tacit.MaximalUpdate()
STRUCTURES = {
    "low rank": lambda width: {"*": LowRank(4)},
    "diagonal": lambda width: {"*": Diagonal()},
    "low rank plus diagonal": lambda width: {"*": LowRankPlusDiagonal(4)},
    "kronecker": lambda width: {
        "0": Kronecker(3, width // 16),
        "2": Kronecker(width // 16, width // 16, scale=0.5),
        "4": Kronecker(width // 16, 1),
    },
    "rank-one sum": lambda width: {
        "0": RankOneSum(width // 16),
        "2": RankOneSum(width // 16, scale=0.5),
        "4": RankOneSum(width // 16),
    },
    "relative": lambda width: {"2": Relative(0.5, speed=1.0), "4": Relative(0.5, speed=1.0)},
    "full rank": lambda width: {"4": FullRank()},  # 4 TB in the hidden layer
}


def check(make, lr, optimizer, **kwargs):
    settings = {"steps": 3, "seeds": 6, "samples": 8, "progress": False, **kwargs}
    widths = settings.pop("widths", [64, 256, 1024])
    return tacit.coordinate_check(make, widths, DATA, lr=lr, optimizer=optimizer, **settings)


@pytest.mark.slow
@pytest.mark.parametrize(("optimizer", "lr"), [("sgd", 3e-3), ("adam", 5e-2)])
@pytest.mark.parametrize("structure", STRUCTURES)
def test_under_mup_features_move_equally_at_every_width(structure, optimizer, lr):
    """Slopes of the mean are near 0, unlike under SP in the test below.

    The change of the standard deviation never grows with the width. It may shrink: with one noise
    component per weight (diagonal, full rank), the noise of an output averages out over its inputs.
    """
    seeds = 3 if "diagonal" in structure else 6  # slow, and less noisy
    found = check(maker(MU, STRUCTURES[structure]), lr, optimizer, seeds=seeds)
    for layer in found.layers:
        assert abs(found.slope(layer)) < 0.3, str(found)
        std = found.slope(layer, "std")
        assert std < 0.3 or math.isnan(std), str(found)  # NaN in layers without noise


@pytest.mark.slow
def test_under_the_standard_parametrization_features_do_not_move_equally():
    found = check(maker(tacit.Standard(), STRUCTURES["low rank"]), 2e-3, "adam", seeds=2)
    assert not found.holds
    assert found.slope("2") > 0.7  # a hidden layer's change grows with its fan-in
    assert "mean features do not move equally" in str(found)


@pytest.mark.slow
def test_kronecker_noise_of_fixed_rank_needs_a_scale_that_falls_with_the_width():
    """The limitation stated in the docstring of Kronecker, and its remedy."""
    with pytest.raises(ValueError, match="layer '2': under muP .* would make training diverge"):
        maker(MU, lambda width: {"2": Kronecker(4, 4)})(1024)

    def where(width):
        return {"2": Kronecker(4, 4, scale=0.5 * (64 / width) ** 0.5)}

    assert check(maker(MU, where), 3e-3, "sgd").slope("2", "std") < 0.2


@pytest.mark.slow
@pytest.mark.parametrize(("optimizer", "lr"), [("sgd", 3e-3), ("adam", 5e-2)])
def test_all_ranks_move_features_equally(optimizer, lr):
    """The claim `rank-scaling`: ranks 1, 4, 16 and 64 move features equally.

    A step on S moves S z by (z . z')/R times what the same step on the mean would, which is 1 for
    rank 1 and falls to 0 for high ranks; hence the factor of about 2. With the learning rate of the
    mean it would be z . z', 8 times as much for rank 64.
    """
    changes = {}
    for rank in (1, 4, 16, 64):
        make = maker(MU, lambda width, rank=rank: {"*": LowRank(rank)})
        found = check(make, lr, optimizer, widths=[64, 128], seeds=12)
        for layer in found.layers:
            moved = [c.mean for c in found.changes if c.layer == layer and c.step == 3]
            changes.setdefault(layer, []).append(statistics.fmean(moved))
    for moved in changes.values():
        assert max(moved) < 2.3 * min(moved), changes


def test_plain_networks_have_no_standard_deviation():
    found = tacit.coordinate_check(
        maker(MU), [64, 128], DATA, parametrization=MU, steps=2, seeds=1, progress=False
    )
    assert {change.std for change in found.changes} == {0.0}
    assert len(found.changes) == 2 * 2 * 3  # widths, steps, layers
    assert found.layers == ["0", "2", "4"]


def test_slopes_are_powers_of_the_width():
    changes = [
        Change("fc", width, seed, 1, mean=width**0.5, std=3.0, start=1.0)
        for width in (8, 16, 64)
        for seed in (0, 1)
    ]
    found = CoordinateCheck(tuple(changes), tolerance=0.25)
    assert found.slope("fc") == pytest.approx(0.5)
    assert found.slope("fc", "std") == pytest.approx(0.0)
    assert not found.holds


def test_divergence_is_null_in_json(tmp_path):
    changes = [Change("fc", w, 0, 1, mean=math.inf, std=math.nan, start=1.0) for w in (8, 16)]
    found = CoordinateCheck(tuple(changes), tolerance=0.25)
    assert math.isnan(found.slope("fc"))
    assert not found.holds
    saved = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert saved["changes"][0]["mean"] is None
    found.plot(tmp_path / "diverged.png")


def test_features_that_do_not_move_fail_the_check():
    found = tacit.coordinate_check(
        maker(MU), [4, 8], DATA, parametrization=MU, lr=1e-30, seeds=1, steps=1, progress=False
    )
    assert not found.holds
    assert "does not move" in str(found)


def test_divergence_is_reported():
    changes = [Change("fc", w, 0, 1, mean=math.inf, std=math.nan, start=1.0) for w in (8, 16)]
    assert str(CoordinateCheck(tuple(changes), 0.25)).startswith("training diverged")


def test_a_tied_output_layer_is_a_layer_of_its_own():
    class Tied(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.embedding = nn.Embedding(8, width)
            self.head = nn.Linear(width, 8, bias=False)
            self.head.weight = self.embedding.weight

        def forward(self, x):
            return self.head(self.embedding(x))

    data = torch.arange(8), torch.arange(8)
    found = tacit.coordinate_check(Tied, [4, 8], data, seeds=1, steps=1, progress=False)
    assert found.layers == ["embedding", "head"]
    with pytest.warns(UserWarning, match="'head' is tied to the embedding 'embedding'"):
        tacit.initialize(Tied(8), tacit.MaximalUpdate())


def test_slopes_of_unknown_layers_and_quantities_are_rejected():
    found = tacit.coordinate_check(maker(MU), [4, 8], DATA, seeds=1, steps=1, progress=False)
    for wrong in (("9", "mean"), ("0", "sdt")):
        with pytest.raises(ValueError, match="expected one of 0, 2, 4 and mean or std"):
            found.slope(*wrong)


def test_no_hooks_are_left_on_the_networks():
    nets = []

    def make(width):
        nets.append(plain(width))
        return nets[-1]

    tacit.coordinate_check(make, [4, 8], DATA, seeds=1, steps=1, progress=False)
    pickle.dumps(nets)  # fails for local functions, such as the hooks


def test_invalid_arguments_are_rejected():
    with pytest.raises(ValueError, match="widths: expected at least two different widths"):
        tacit.coordinate_check(plain, [8, 8], DATA)
    with pytest.raises(ValueError, match="optimizer: expected one of sgd, .* received 'lion'"):
        tacit.coordinate_check(plain, [8, 16], DATA, optimizer="lion")
    for name in ("seeds", "samples"):
        with pytest.raises(ValueError, match=f"{name}: expected an integer of at least 1"):
            tacit.coordinate_check(plain, [8, 16], DATA, progress=False, **{name: 0})
    with pytest.raises(ValueError, match="the same number of parameters"):
        tacit.coordinate_check(lambda width: plain(8), [8, 16], DATA, progress=False)
    with pytest.raises(ValueError, match="steps: expected an integer of at least 1"):
        tacit.coordinate_check(plain, [8, 16], DATA, steps=0, progress=False)
