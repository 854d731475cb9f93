"""Verdicts of experiments that compare: on made-up numbers."""

import copy
import math

import pytest

from tacit.methods import Method
from tacit.studies.bench import METHODS as BENCH_METHODS
from tacit.studies.bench.grid import Cell, problem_of
from tacit.studies.experiments import (
    corruptions,
    cost,
    gvi_comparison,
    implicit_vs_explicit,
    in_distribution,
    linear_claims,
    nll_overfitting,
    rank_scaling,
    single_sample,
)
from tacit.studies.experiments.comparison import NAMES, OURS, PAPER, Comparison, compare
from tacit.studies.experiments.scoring import means

GOOD = {"error": 5.0, "nll": 0.10, "ece": 0.01}
METHODS = {
    "standard": {"error": 5.0, "nll": 0.20, "ece": 0.05},
    "temperature_scaling": {"error": 5.0, "nll": 0.12, "ece": 0.01},
    "laplace_grid": {"error": 5.1, "nll": 0.13, "ece": 0.02},
    "mean_field_vi": {"error": 5.5, "nll": 0.22, "ece": 0.02},
    "deep_ensemble": {"error": 4.0, "nll": 0.09, "ece": 0.01},
    PAPER: GOOD,
    OURS: GOOD,
}


def states(module, results):
    return [verdict.holds for verdict in module.EXPERIMENT.verdicts(results)]


def comparison(seeds=3, **changed):
    """Return results of a comparison; `changed` are the numbers of methods on Fashion-MNIST."""
    rows = []
    for data in ("mnist", "fashion_mnist"):
        for method, three in METHODS.items():
            three = changed.get(method, three) if data == "fashion_mnist" else three
            corrupted = {f"corrupted_{name}": 4 * value for name, value in three.items()}
            corrupted |= {} if method in NAMES else {"corrupted_error": 4.1 * three["error"]}
            if method == "deep_ensemble":
                corrupted |= {"corrupted_nll": 0.5, "corrupted_ece": 0.1}
            ways = {f"averaging/{way}/nll": three["nll"] for way in ("log_probs", "probs")}
            rows += [
                {"data": data, "parametrization": "sp", "method": method, "seed": seed,
                 "numbers": {**three, **corrupted, **ways}}
                for seed in range(seeds)
            ]  # fmt: skip
    return {"rows": rows}


class TestInDistribution:
    def test_it_can_hold(self):
        assert states(in_distribution, comparison()) == [True] * 7
        assert states(in_distribution, comparison(seeds=2)) == [None] * 7

    @pytest.mark.parametrize(("name", "worse"), [("error", 6.0), ("nll", 0.19), ("ece", 0.049)])
    @pytest.mark.parametrize("kind", ["worse", "nan", "none"])
    def test_one_setting_is_enough_to_fail(self, name, worse, kind):
        results = comparison()
        for row in results["rows"]:
            if (row["data"], row["method"]) == ("fashion_mnist", PAPER):
                row["numbers"][name] = {"worse": worse, "nan": math.nan, "none": None}[kind]
        found = states(in_distribution, results)
        assert found[0] is False
        assert found[2] is True  # the verdict on the other recipe

    def test_methods_after_training(self):
        results = comparison(temperature_scaling=METHODS["temperature_scaling"] | {"error": 5.3})
        assert states(in_distribution, results)[4] is False
        results = comparison()
        for row in results["rows"]:
            if row["method"] == "mean_field_vi":
                row["numbers"]["nll"] = 0.19
        assert states(in_distribution, results)[5] is False

    def test_averaging(self):
        results = comparison()
        results["rows"][-1]["numbers"]["averaging/probs/nll"] *= 1.5
        assert states(in_distribution, results)[6] is False


def test_corruptions_can_fail():
    assert states(corruptions, comparison()) == [True] * 4
    results = comparison(temperature_scaling=GOOD | {"error": 4.0})
    assert states(corruptions, results) == [False, True, False, True]
    results = comparison(**{OURS: GOOD | {"nll": 0.2}})
    assert states(corruptions, results) == [True, True, True, False]


def test_a_missing_method_is_an_error():
    results = comparison()
    rows = [row for row in results["rows"] if row["method"] != "deep_ensemble"]
    with pytest.raises(Exception, match="at least one data point"):
        in_distribution.EXPERIMENT.verdicts({"rows": rows})


def test_failed_training_runs_are_named(tmp_path, monkeypatch):
    class Broken(Method):
        def learn(self, task):
            raise ArithmeticError("on purpose")

    monkeypatch.setitem(BENCH_METHODS, "swag", Broken())
    with pytest.raises(RuntimeError, match="digits-sp-swag-0 failed; run again to retry"):
        compare(tmp_path, ["digits"], ["swag"], ["sp"], 1, 1, epochs=1, train_size=64)


def test_the_problems_at_the_papers_scale_are_found():
    for experiment in (in_distribution.EXPERIMENT, corruptions.EXPERIMENT):
        for data in experiment.scales["paper"]["data"]:
            assert problem_of(Cell(data, "standard")).lr


def test_the_number_of_seeds_is_the_smallest():
    rows = comparison()["rows"]
    assert Comparison(rows).seeds == 3
    assert Comparison(rows[1:]).seeds == 2


def test_gvi_can_be_better():
    def results(**changed):
        return {
            "rows": [
                {"data": "mnist", "parametrization": "sp", "method": method, "seed": seed,
                 "numbers": changed.get(method, GOOD)}
                for method in ("implicit", *gvi_comparison.STRENGTHS)
                for seed in range(3)
            ]
        }  # fmt: skip

    assert states(gvi_comparison, results()) == [True, True]
    assert states(gvi_comparison, results(strength_10=GOOD | {"error": 4.0})) == [False, True]
    assert states(gvi_comparison, results(strength_10=GOOD | {"nll": 0.05})) == [True, False]
    harmed = GOOD | {"nll": 0.05, "error": 9.0}
    assert states(gvi_comparison, results(strength_10=harmed)) == [True, True]


def test_single_sample_can_fail():
    def results(change=lambda row: {}):
        rows = []
        for optimizer in single_sample.MOMENTA:
            for way in single_sample.WAYS:
                chosen = 0.01 if way == "M=1" else 0.1
                for lr in (0.001, 0.01, 0.1, 1.0):
                    for step in (100, 300, 600):
                        nll = 0.2 + 10 / step + abs(math.log10(lr / chosen))
                        row = {"optimizer": optimizer, "way": way, "lr": lr, "step": step,
                               "nll": nll, "validation": nll, "error": nll}  # fmt: skip
                        rows += [{**row, "seed": seed, **change(row)} for seed in range(2)]
        return {"rows": rows}

    assert states(single_sample, results()) == [True] * 6
    slow = results(lambda row: {"nll": row["nll"] * 1.2} if row["way"] == "M=1" else {})
    assert states(single_sample, slow) == [False, True, True] * 2
    noisy = results(lambda row: {"nll": row["nll"] * 1.2} if row["way"] == "8 draws" else {})
    assert states(single_sample, noisy) == [True, True, False] * 2
    alike = results(lambda row: {"nll": 0.2, "validation": 0.2})
    assert states(single_sample, alike) == [True, False, True] * 2
    diverged = results(lambda row: {"nll": None} if row["way"] == "M=8" else {})
    assert states(single_sample, diverged) == [False] * 6


def test_cost_can_fail():
    def row(time, memory):
        return {"ratio": time, "ratio_low": time, "ratio_high": time, "memory_ratio": memory}

    good = {cost.PLAIN: row(1, 1), cost.PAPER: row(1.05, 1.1), cost.ENSEMBLE: row(5, 1)}
    assert states(cost, {"LeNet-5": good, "ResNet-34": good}) == [True]
    assert states(cost, {"LeNet-5": good}) == [None]
    for worse in (row(1.2, 1.1), row(1.0, 1.3)):
        results = {"LeNet-5": good, "ResNet-34": {**good, cost.PAPER: worse}}
        assert states(cost, results) == [False]


def test_the_fits_can_fail():
    def fit(std_at_data, far, error):
        prior = {"std_at_data": [1.0], "std": [2.0, 2.0], "error_at_data": 1.0}
        trained = {"std_at_data": [std_at_data], "std": [far, far], "error_at_data": error}
        return {"prior": prior, "trained": trained}

    good = {"steps": 2000, "noise": 0.1, "y": [-1.0, 1.0], "ibvi": fit(0.05, 1.5, 0.01),
            "gvi": fit(0.1, 1.5, 0.1), "kl": fit(0.3, 1.5, 0.2)}  # fmt: skip
    assert states(implicit_vs_explicit, good) == [True] * 3
    off = {**good, "ibvi": fit(0.05, 1.5, 1.0)}
    assert states(implicit_vs_explicit, off) == [False, True, True]
    forgets = {**good, "ibvi": fit(0.05, 0.1, 0.01)}
    assert states(implicit_vs_explicit, forgets) == [True, False, True]
    collapses = {**good, "kl": fit(0.04, 1.5, 0.1)}
    assert states(implicit_vs_explicit, collapses) == [True, True, False]
    assert states(implicit_vs_explicit, {**good, "steps": 3}) == [None] * 3


def test_overfitting_can_fail():
    def rows(raw, norm):
        return {
            "rows": [
                {"step": step, "error": 0.1, "raw": raw(math.log(step)), "rescaled": 0.3,
                 "tempered": 0.2, "norm": norm(math.log(step))}
                for step in (round(1.5**k) for k in range(2, 26))
            ]
        }  # fmt: skip

    assert states(nll_overfitting, rows(lambda s: s, lambda s: s)) == [True] * 4
    assert states(nll_overfitting, rows(lambda s: 1.0, lambda s: s))[0] is False
    assert states(nll_overfitting, rows(lambda s: s, math.exp))[3] is False


def test_rank_scaling_can_fail():
    def results(scaled, same):
        return {
            "rows": [
                {"way": way, "rank": rank, "moves": [power(rank)]}
                for way, power in (("scaled", scaled), ("same", same))
                for rank in (1, 4, 8, 16, 64)
            ]
        }

    flat, grows = (lambda rank: 1.0), (lambda rank: rank**0.5)
    assert states(rank_scaling, results(flat, grows)) == [True]
    assert states(rank_scaling, results(grows, grows)) == [False]
    assert states(rank_scaling, results(flat, flat)) == [False]


def test_linear_claims_can_fail():
    results = linear_claims.compute(decades=2)
    results["generalized"] = {"steps": [100, 1000, 10_000], "gaps": [1.0, 0.5, 0.3], "factor": 0.0}
    results["null_space"] = {"steps": [1000, 10_000], "distances": [0.1, 0.05], "dimension": 4}
    assert states(linear_claims, results) == [True] * 6
    worse = copy.deepcopy(results)
    worse["limit"][0] += 1e-3
    worse["flow"]["errors"][3] *= 1.01
    worse["subspaces"]["parts"] *= 1.01
    worse["generalized"]["gaps"][-1] = 0.6
    worse["null_space"]["dimension"] = 5
    worse["strengths"]["1e-06"] = 0.1
    assert states(linear_claims, worse) == [False] * 6


def test_means_of_rows():
    rows = [{"a": 1, "x": 1.0}, {"a": 1, "x": 3.0}, {"a": 2, "x": None}]
    assert means(rows, ("a",), "x") == {(1,): 2.0, (2,): math.inf}
