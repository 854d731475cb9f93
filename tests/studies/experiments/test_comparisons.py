"""Verdicts of experiments that compare methods: on made-up numbers."""

import pytest

from tacit.methods import Method
from tacit.studies.bench import METHODS as BENCH_METHODS
from tacit.studies.bench import make_grid
from tacit.studies.bench.grid import Cell, problem_of
from tacit.studies.experiments import corruptions, gvi_comparison, in_distribution
from tacit.studies.experiments.comparison import (
    MEAN_FIELD,
    NAMES,
    OURS,
    PAPER,
    Comparison,
    compare,
)
from tacit.studies.experiments.comparison import compute as compute_comparison
from tacit.studies.experiments.scoring import means

FULL = {"epochs": 200, "train_size": None}
GOOD = {"error": 5.0, "nll": 0.10, "ece": 0.01}
METHODS = {
    "standard": {"error": 5.0, "nll": 0.20, "ece": 0.05},
    "temperature_scaling": {"error": 5.0, "nll": 0.12, "ece": 0.01},
    "laplace_grid": {"error": 5.0, "nll": 0.13, "ece": 0.02},
    MEAN_FIELD: {"error": 5.5, "nll": 0.22, "ece": 0.02},
    "deep_ensemble": {"error": 4.0, "nll": 0.09, "ece": 0.01},
    PAPER: GOOD,
    OURS: GOOD,
}


def states(module, results, arguments=FULL):
    return {v.subject: v.holds for v in module.verdicts(results, arguments) if not v.ours}


def comparison(seeds=5, data=("mnist",), **changed):
    """Return results of a comparison, in which seeds differ by 1 % alike for all methods."""
    rows = []
    for name in data:
        for method, three in METHODS.items():
            for seed in range(seeds):
                scale = 1 + 0.01 * (seed % 3)
                found = {n: v * scale for n, v in {**three, **changed.get(method, {})}.items()}
                corrupted = {f"corrupted_{n}": 4 * value for n, value in found.items()}
                corrupted |= {} if method in NAMES else {"corrupted_error": 4.1 * found["error"]}
                if method == "deep_ensemble":
                    corrupted |= {"corrupted_nll": 0.5, "corrupted_ece": 0.1}
                ways = {
                    f"averaging/{way}/{kind}": found["nll"]
                    for way in ("log_probs", "probs")
                    for kind in ("nll", "tempered_nll")
                }
                rows.append(
                    {"data": name, "parametrization": "sp", "method": method, "seed": seed,
                     "numbers": {**found, **corrupted, **ways, **changed.get(f"{method}+", {})}}
                )  # fmt: skip
    return {"rows": rows}


class TestInDistribution:
    def test_it_can_hold(self):
        found = states(in_distribution, comparison())
        assert list(found.values()) == [True] * 6

    def test_smaller_runs_decide_nothing(self):
        smaller = FULL | {"epochs": 20}
        assert set(states(in_distribution, comparison(), smaller).values()) == {None}
        found = states(in_distribution, comparison(seeds=1))
        assert set(found.values()) == {None}

    def test_our_own_questions_are_decided_at_any_size(self):
        verdicts = in_distribution.verdicts(comparison(data=("fashion_mnist",)), {"epochs": 2})
        assert all(verdict.ours for verdict in verdicts)
        assert {verdict.holds for verdict in verdicts} == {True}

    @pytest.mark.parametrize(
        ("name", "worse", "part"),
        [
            ("error", 6.0, "test error similar to the standard network"),
            ("nll", 0.25, "NLL improved over the standard network"),
            ("ece", 0.06, "among the best calibrated"),
        ],
    )
    def test_a_worse_number_does_not_hold(self, name, worse, part):
        found = states(in_distribution, comparison(**{PAPER: GOOD | {name: worse}}))
        assert found[f"the paper's recipe: {part}"] is False

    def test_a_difference_as_large_as_that_of_two_seeds_is_not_decided(self):
        found = comparison()
        for row in found["rows"]:
            if row["method"] == PAPER:
                row["numbers"]["error"] += 0.4 * (row["seed"] % 2)
        part = "the paper's recipe: test error similar to the standard network"
        assert states(in_distribution, found)[part] is None

    def test_the_other_methods(self):
        moved = comparison(temperature_scaling=METHODS["temperature_scaling"] | {"error": 5.5})
        found = states(in_distribution, moved)
        assert found["post-hoc methods leave the error unchanged"] is False
        better = comparison(**{MEAN_FIELD: GOOD})
        found = states(in_distribution, better)
        assert found["Laplace or mean-field VI sometimes increase the NLL"] is False

    def test_averaging(self):
        found = comparison(**{f"{PAPER}+": {"averaging/probs/tempered_nll": 0.05}})
        assert states(in_distribution, found)["the paper's recipe"] is False
        lacks = comparison()
        for row in lacks["rows"]:
            del row["numbers"]["averaging/probs/tempered_nll"]
        verdicts = in_distribution.verdicts(lacks, FULL)
        found = [v for v in verdicts if v.claim == "averaging"]
        assert {v.lacking for v in found} == {"the run lacks a temperature for each averaging"}


def test_corruptions():
    error, nll, ece = (
        f"the paper's recipe: {part}"
        for part in (
            "smaller error than all but ensembles", "better NLL than ensembles",
            "better ECE than ensembles",
        )
    )  # fmt: skip
    assert states(corruptions, comparison()) == {error: True, nll: True, ece: True}
    better = comparison(temperature_scaling=GOOD | {"error": 4.0})
    assert states(corruptions, better)[error] is False
    assert states(corruptions, comparison(**{PAPER: GOOD | {"nll": 0.2}}))[nll] is False
    assert set(states(corruptions, comparison(), {"epochs": 20}).values()) == {None}


def test_verdicts_name_the_training_runs_that_they_lack():
    results = comparison()
    wanted = {
        **FULL, "data": ["mnist"], "parametrizations": ["sp", "mup"],
        "methods": [name for name in METHODS if name not in (MEAN_FIELD, OURS)],
        "slow_methods": [f"any.module:{MEAN_FIELD}"],
    }  # fmt: skip
    found = [v for v in in_distribution.verdicts(results, wanted) if not v.ours]
    assert {v.lacking for v in found} == {"no training runs of mnist mup"}
    wanted["parametrizations"] = ["sp"]
    assert {v.holds for v in in_distribution.verdicts(results, wanted)} == {True}
    results["rows"] = [row for row in results["rows"] if row["method"] not in (MEAN_FIELD, OURS)]
    found = {v.subject: v for v in in_distribution.verdicts(results, wanted)}
    assert found["the paper's recipe: NLL improved over the standard network"].holds is True
    lacking = f"no training runs of {MEAN_FIELD} (mnist sp)"
    assert found["the paper's recipe: among the best calibrated"].lacking == lacking
    assert not any(subject.startswith("tacit's") for subject in found)
    found = corruptions.verdicts(results, wanted)
    assert [v.lacking for v in found] == [lacking, "", ""]
    results["rows"] = [row for row in results["rows"] if row["method"] == PAPER]
    for module in (in_distribution, corruptions):
        assert {v.holds for v in module.verdicts(results, wanted) if v.claim != "averaging"} == {
            None
        }


def test_finished_training_runs_of_a_bench_are_judged(tmp_path):
    sizes = {"epochs": 1, "train_size": 64, "test_size": 20, "corrupted_size": 1, "samples": 1}
    cells = make_grid(["digits"], ["standard", "temperature_scaling"], ["sp"], 2, **sizes)
    compare(tmp_path / "cells", cells[:1], 1)
    given = {
        "kinds": ("error",), "data": ("digits",), "methods": ("standard", "temperature_scaling"),
        "parametrizations": ("sp",), "seeds": 2, "jobs": 1, "folder": tmp_path / "any", **sizes,
    }  # fmt: skip
    with pytest.raises(ValueError, match="--cells: expected a pattern of names like 'digits-sp-"):
        compute_comparison(**given, cells="")
    found = compute_comparison(**given, bench=str(tmp_path / "cells"), cells="")
    assert [(row["method"], row["seed"]) for row in found["rows"]] == [("standard", 0)]
    assert found["trained"].startswith("1 of 4 training runs, with numbers of seeds: digits, sp,")
    found = compute_comparison(**given, bench=str(tmp_path / "cells"), cells="*-1")
    assert sorted((row["method"], row["seed"]) for row in found["rows"]) == [
        ("standard", 0), ("standard", 1), ("temperature_scaling", 1)
    ]  # fmt: skip


def test_gvi():
    def results(data="mnist", seeds=5, **changed):
        return {
            "rows": [
                {"data": data, "parametrization": "sp", "method": method, "seed": seed,
                 "numbers": {
                     name: (value + changed.get(method, {}).get(name, 0)) * (1 + 0.01 * (seed % 2))
                     for name, value in GOOD.items()
                 }}
                for method in ("implicit", *gvi_comparison.STRENGTHS)
                for seed in range(seeds)
            ]
        }  # fmt: skip

    def judged(found, arguments=FULL):
        return [v.holds for v in gvi_comparison.verdicts(found, arguments)]

    assert judged(results()) == [True, True]
    assert judged(results(seeds=2)) == [None, None]
    assert judged(results(data="fashion_mnist")) == [None, None]
    assert judged(results(), {"epochs": 20}) == [None, None]
    assert judged(results(strength_10={"error": -1.0})) == [False, True]
    assert judged(results(strength_10={"nll": -0.05})) == [True, False]
    assert judged(results(strength_10={"nll": -0.05, "error": 4.0})) == [True, True]


def test_failed_training_runs_are_named(tmp_path, monkeypatch):
    class Broken(Method):
        def learn(self, task):
            raise ArithmeticError("on purpose")

    monkeypatch.setitem(BENCH_METHODS, "swag", Broken())
    cells = make_grid(["digits"], ["swag"], ["sp"], 1, epochs=1, train_size=64)
    with pytest.raises(RuntimeError, match="digits-sp-swag-0 failed; run again to retry"):
        compare(tmp_path, cells, 1)


def test_slow_methods_have_fewer_seeds(tmp_path):
    found = compute_comparison(
        ("error",), ("digits",), ("standard",), ("sp",), seeds=2, epochs=1, train_size=64,
        test_size=20, corrupted_size=1, samples=1, slow_methods=("temperature_scaling",),
        slow_seeds=1, jobs=1, folder=tmp_path / "any",
    )  # fmt: skip
    assert [row["method"] for row in found["rows"]].count("temperature_scaling") == 1
    assert len(found["rows"]) == 3


def test_the_problems_and_methods_at_the_papers_scale_are_found():
    for experiment in (in_distribution.EXPERIMENT, corruptions.EXPERIMENT):
        scale = experiment.scales["paper"]
        for method in (*scale["methods"], *scale["slow_methods"]):
            for data in (*scale["data"], "cifar10", "cifar100", "tiny_imagenet"):
                name = data if data == "mnist" else f"{Comparison.__module__}:{data}"
                assert problem_of(Cell(name, method, lr=scale["lr"])).lr


def test_means_of_rows():
    rows = [{"a": 1, "x": 1.0}, {"a": 1, "x": 3.0}, {"a": 2, "x": None}]
    assert means(rows, ("a",), "x") == {(1,): 2.0, (2,): float("inf")}
