"""Verdicts of experiments on theory: on computed numbers, and on worse ones."""

import copy

import pytest

from tacit.studies.experiments import linear_claims, linear_theory, loss_landscape

LR = {"lr": 0.3}


def states(module, results, arguments):
    return [verdict.holds for verdict in module.verdicts(results, arguments)]


@pytest.fixture(scope="module")
def theory():
    return linear_theory.compute(decades=3, minimizers=50)


def test_linear_theory(theory):
    assert states(linear_theory, theory, LR) == [True] * 6
    worse = copy.deepcopy(theory)
    worse["trajectory"]["trained_mean"][50] += 1e-3
    worse["error_and_variance"]["error"][50] *= 1.01
    worse["error_and_variance"]["trace"][50] += 1.0
    worse["margin"]["direction"][-1] = 1.0
    worse["margin"]["scale"][-1] = 9.0
    worse["margin"]["variance"][-1] = 1.0
    assert states(linear_theory, worse, LR) == [False] * 6
    closer = copy.deepcopy(theory)
    closer["distances"]["others"][3] = 0.1
    assert states(linear_theory, closer, LR)[0] is False


def test_short_runs_leave_limits_undecided(theory):
    short = linear_theory.compute(**linear_theory.EXPERIMENT.scales["smoke"])
    assert states(linear_theory, short, LR) == [True, True, True, None, None, None]
    del theory["error_and_variance"]["trace"], theory["margin"]["scale"]
    found = linear_theory.verdicts(theory, LR)
    assert [verdict.lacking for verdict in found if verdict.holds is None] == [
        "the run lacks the traces", "the run lacks the norms of the means",
    ]  # fmt: skip


def test_the_landscape():
    results = loss_landscape.compute()
    assert states(loss_landscape, results, {"lr": 0.15}) == [True]
    results["distributions"][-1]["mean"][0] += 0.1
    assert states(loss_landscape, results, {"lr": 0.15}) == [False]


def test_linear_claims():
    results = linear_claims.compute(decades=2)
    results["generalized"] = {"steps": [100, 1000, 10_000], "gaps": [1.0, 0.7, 0.53], "factor": 0.0}
    results["null_space"] = {"steps": [1000, 10_000], "distances": [0.1, 0.05], "dimension": 4}
    assert states(linear_claims, results, {}) == [True] * 6
    worse = copy.deepcopy(results)
    worse["limit"][0] += 1e-3
    worse["flow"]["errors"][3] *= 1.01
    worse["subspaces"]["parts"] *= 1.01
    worse["generalized"]["gaps"][-1] = 0.9
    worse["null_space"]["dimension"] = 5
    worse["strengths"]["1e-06"] = 0.1
    assert states(linear_claims, worse, {}) == [False] * 6
    short = linear_claims.compute(**linear_claims.EXPERIMENT.scales["smoke"])
    assert [v.claim for v in linear_claims.verdicts(short, {}) if v.holds is None] == [
        "ensemble-equivalence", "classification-generalized", "null-space-by-qr",
    ]  # fmt: skip
