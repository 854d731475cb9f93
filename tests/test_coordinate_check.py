import json
import math
import statistics
import sys

import pytest
import torch
from torch import nn

import tacit
from tacit import Diagonal, Kronecker, LowRank, LowRankPlusDiagonal
from tacit.coordinate_check import Change, CoordinateCheck
from tacit.experiments import coordinate_check as experiment

GENERATOR = torch.Generator().manual_seed(0)
DATA = torch.randn(16, 8, generator=GENERATOR), torch.randn(16, 1, generator=GENERATOR)


def plain(width):
    return nn.Sequential(
        nn.Linear(8, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1)
    )


def maker(parametrization, where=None):
    def make(width):
        net = plain(width)
        tacit.initialize(net, parametrization)
        if where is None:
            return net
        return tacit.variational(net, where, parametrization=parametrization, draws=16)

    return make


MU = tacit.MaximalUpdate(base=plain(64))
STRUCTURES = {
    "low rank": {"*": LowRank(4)},
    "diagonal": {"*": Diagonal()},
    "low rank plus diagonal": {"*": LowRankPlusDiagonal(4)},
    "kronecker": {"0": Kronecker(3, 4), "2": Kronecker(4, 4), "4": Kronecker(4, 1)},
}


def check(make, lr, optimizer, **kwargs):
    settings = {"steps": 3, "seeds": 2, "samples": 4, "progress": False, **kwargs}
    widths = [64, 256, 1024]
    return tacit.coordinate_check(make, widths, DATA, lr=lr, optimizer=optimizer, **settings)


def growth(found, layer, of="mean"):
    """The change at the largest width over that at the smallest, medians over seeds."""
    last = max(change.step for change in found.changes)
    by_width = {}
    for change in found.changes:
        if change.layer == layer and change.step == last:
            by_width.setdefault(change.width, []).append(getattr(change, of))
    return statistics.median(by_width[max(by_width)]) / statistics.median(by_width[min(by_width)])


@pytest.mark.slow
@pytest.mark.parametrize(("optimizer", "lr"), [("sgd", 3e-3), ("adam", 2e-3)])
@pytest.mark.parametrize("structure", STRUCTURES)
def test_under_mup_no_change_grows_with_width(structure, optimizer, lr):
    """Width 64 to 1024. Under SP some grow 16 times and more, or diverge: the test below."""
    found = check(maker(MU, STRUCTURES[structure]), lr, optimizer, seeds=3)
    for layer in found.layers:
        assert growth(found, layer) < 4, str(found)
        assert growth(found, layer, "std") < 4, str(found)


@pytest.mark.slow
def test_under_the_standard_parametrization_they_do_not():
    mu = check(maker(MU, STRUCTURES["low rank"]), 2e-3, "adam")
    sp = check(maker(tacit.Standard(), STRUCTURES["low rank"]), 2e-3, "adam")
    assert mu.holds, str(mu)
    assert not sp.holds
    assert growth(sp, "2") > 10  # a hidden layer's change grows with its fan-in
    assert "mean features do not move alike" in str(sp)


def test_plain_networks_have_no_deviation():
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


def test_divergence_shows_and_is_valid_json(tmp_path):
    changes = [Change("fc", w, 0, 1, mean=math.inf, std=math.nan, start=1.0) for w in (8, 16)]
    found = CoordinateCheck(tuple(changes), tolerance=0.25)
    assert math.isnan(found.slope("fc"))
    assert not found.holds
    saved = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert saved["changes"][0]["mean"] is None
    found.plot(tmp_path / "diverged.png")


def test_the_networks_are_left_without_hooks():
    nets = []

    def make(width):
        nets.append(plain(width))
        return nets[-1]

    tacit.coordinate_check(make, [4, 8], DATA, seeds=1, steps=1, progress=False)
    assert not any(layer._forward_hooks for net in nets for layer in net.modules())


def test_bad_input():
    with pytest.raises(ValueError, match="widths: expected at least two different widths"):
        tacit.coordinate_check(plain, [8, 8], DATA)
    with pytest.raises(ValueError, match="optimizer: expected sgd, adam or adamw, received 'lion'"):
        tacit.coordinate_check(plain, [8, 16], DATA, optimizer="lion")
    with pytest.raises(ValueError, match="steps: expected an integer of at least 1"):
        tacit.coordinate_check(plain, [8, 16], DATA, steps=0, progress=False)


def test_experiment_writes_json_and_four_figures(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["coordinate_check", "--smoke", "--out", str(tmp_path)])
    experiment.main()
    saved = json.loads((tmp_path / "results.json").read_text())
    names = {f"{kind}_{p}" for kind in ("deterministic", "variational") for p in ("sp", "mup")}
    assert set(saved["results"]) == names
    assert {path.name for path in tmp_path.glob("*.p*")} == {
        f"{name}.{ending}" for name in names for ending in ("pdf", "png")
    }
