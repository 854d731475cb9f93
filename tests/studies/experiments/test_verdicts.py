"""Verdicts of experiments on theory and width: on saved numbers, and on worse ones."""

import copy
import json
from pathlib import Path

import pytest

from tacit.studies.experiments import coordinate_check, linear_theory, loss_landscape, lr_transfer

RESULTS = Path(__file__).parents[3] / "results"


def saved(name):
    return json.loads((RESULTS / name / "results.json").read_text())["results"]


def states(module, results):
    return [verdict.holds for verdict in module.EXPERIMENT.verdicts(results)]


def test_linear_theory_can_fail():
    results = saved("linear_theory")
    assert states(linear_theory, results) == [True] * 4
    worse = copy.deepcopy(results)
    worse["trajectory"]["trained_mean"][50] += 1e-3
    worse["error_and_variance"]["error"][50] *= 1.01
    worse["margin"]["direction"][-1] = 1.0
    worse["margin"]["variance"][-1] = 1.0
    assert states(linear_theory, worse) == [False] * 4
    closer = copy.deepcopy(results)
    closer["distances"]["others"][3] = 0.1
    assert states(linear_theory, closer)[0] is False


def test_short_runs_leave_asymptotic_claims_undecided():
    results = linear_theory.compute(**linear_theory.EXPERIMENT.scales["smoke"])
    assert states(linear_theory, results) == [None, True, None, None]
    assert states(loss_landscape, loss_landscape.compute(steps=4)) == [None]


def test_the_landscape_can_fail():
    results = saved("loss_landscape")
    results["distributions"][-1]["mean"][0] += 0.1
    assert states(loss_landscape, results) == [False]


def test_the_coordinate_check_can_fail():
    results = saved("coordinate_check")
    results["deterministic_mup"]["slopes"]["0"]["mean"] = 0.5
    assert states(coordinate_check, results)[0] is False
    results = saved("coordinate_check")
    for layer in results["variational_mup"]["slopes"].values():
        layer["std"] = 0.1
    assert states(coordinate_check, results) == [True, True]


@pytest.mark.parametrize(
    ("sp", "mup", "holds"),
    [(-2, 0, True), (-2, 1, True), (0, 0, False), (-2, -2, False), (-2, 2, False)],
)
def test_the_best_rate_can_move(sp, mup, holds):
    def row(name, width, power, best):
        far = abs(power - best)
        numbers = {"loss": 1.0 + far, "nll": 1.0 + far, "error": 0.1 + far}
        return {"parametrization": name, "width": width, "lr": 2.0**power, "seed": 0, **numbers}

    rows = [
        row(name, width, power, -4 + shift * place / 2)
        for name, shift in (("sp", sp), ("mup", mup))
        for place, width in enumerate((64, 128, 256))
        for power in range(-8, 1)
    ]
    mup_rate, sp_rate, mup_cost, sp_cost, _ = states(lr_transfer, {"rows": rows, "smallest": 64})
    assert (mup_rate and sp_rate) is holds
    assert mup_cost is (mup == 0)
    assert sp_cost is (sp != 0)
