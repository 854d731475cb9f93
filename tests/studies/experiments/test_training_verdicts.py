"""Verdicts of experiments that train networks of their own: on made-up numbers."""

import copy
import math
from typing import ClassVar

import pytest

from tacit.studies.experiments import (
    coordinate_check,
    cost,
    implicit_vs_explicit,
    lr_transfer,
    nll_overfitting,
    rank_scaling,
    single_sample,
)

SEEDS = range(5)


def states(module, results, arguments=None):
    return [v.holds for v in module.verdicts(results, arguments or {}) if not v.ours]


def jitter(seed):
    return 1 + 0.01 * (seed % 3)


class TestSingleSample:
    SIZE: ClassVar = {"steps": 21_100, "train_size": 54_000}

    def results(self, *, gap=0.0, best=0.03, momentum=0.9, noise=0.0, seeds=SEEDS):
        """Errors that are least at `best` for M=1 and at 0.1 for others, and fall with M."""
        rows = []
        for name in single_sample.MOMENTA:
            scale = momentum if "momentum" in name else 1.0
            shift = best if name == "SGD" else best / 3
            for way, more in (("M=1", 1), ("M=2", 0.1), ("M=4", 0.02), ("M=8", 0), ("8 draws", 0)):
                chosen = shift if way == "M=1" else 0.1
                for lr in (0.003, 0.01, 0.03, 0.1):
                    for step in (10_000, 21_100):
                        for s in seeds:
                            far = abs(math.log10(lr / chosen))
                            error = 0.05 * scale * jitter(s) + 0.01 * far * (more + (lr > 0.05))
                            error += (gap if way == "M=1" else 0.0) + noise * (s % 2)
                            rows.append({
                                "optimizer": name, "way": way, "lr": lr, "step": step, "seed": s,
                                "error": error if lr != 0.003 else 0.08 * scale + more * gap,
                                "validation": 0.1 + far, "nll": error,
                            })  # fmt: skip
        return {"rows": rows}

    def judged(self, results, size=None):
        verdicts = single_sample.verdicts(results, size or self.SIZE)
        return {v.subject: v.holds for v in verdicts}

    def test_it_can_hold(self):
        assert set(self.judged(self.results()).values()) == {True}

    def test_a_gap_does_not_hold(self):
        found = self.judged(self.results(gap=0.01))
        assert found["SGD: one sample trains as well as eight"] is False
        assert found["at a rate of 0.003 the gap vanishes with more steps"] is False

    def test_a_larger_rate_for_one_sample_does_not_hold(self):
        found = self.judged(self.results(best=0.31))
        assert found["SGD: fewer samples need a smaller rate"] is None  # the same rate
        rows = self.results()["rows"]
        for row in rows:
            row["validation"] = abs(math.log(row["lr"] / (0.1 if row["way"] == "M=1" else 0.003)))
        assert self.judged({"rows": rows})["SGD: fewer samples need a smaller rate"] is False

    def test_worse_with_momentum_does_not_hold(self):
        found = self.judged(self.results(momentum=1.5))
        text = "momentum improves generalization, and few samples then need a smaller rate"
        assert found[text] is False

    def test_smaller_runs_and_few_seeds_decide_nothing(self):
        found = single_sample.verdicts(self.results(), self.SIZE | {"steps": 780})
        assert {v.holds for v in found if not v.ours} == {None}
        assert set(self.judged(self.results(seeds=range(1))).values()) == {None}

    def test_a_sentence_is_judged_on_seeds_whose_trainings_are_finished(self):
        rows = self.results()["rows"]
        finished = [row for row in rows if row["way"] == "M=1" or row["lr"] == 0.003]
        arguments = self.SIZE | {"rates": (0.003, 0.01, 0.03, 0.1)}
        found = single_sample.verdicts({"rows": finished}, arguments)
        assert {v.subject: v.holds for v in found if v.holds is not None} == {
            "at a rate of 0.003 the gap vanishes with more steps": True
        }
        assert "no seed has all training runs that are compared" in {v.lacking for v in found}
        fewer = [row for row in finished if row["seed"] < 3 or row["way"] == "M=1"]
        (small,) = (
            v for v in single_sample.verdicts({"rows": fewer}, arguments) if "0.003" in v.subject
        )
        assert small.holds is None  # three seeds

    def test_figures_of_a_part_of_the_trainings(self, tmp_path):
        rows = [row for row in self.results()["rows"] if row["way"] == "M=8" and row["lr"] < 0.03]
        single_sample.draw({"rows": [r for r in rows if r["optimizer"] == "SGD"]}, tmp_path)
        names = {"error", "nll", "samples", "small_rate"}
        assert {path.stem for path in tmp_path.iterdir()} == names

    def test_runs_that_diverge_have_the_error_of_chance(self):
        results = self.results()
        for row in results["rows"]:
            if row["way"] == "M=1":
                row |= {"error": None, "validation": None, "nll": None}
        assert self.judged(results)["SGD: one sample trains as well as eight"] is False


class TestRateTransfer:
    SIZE: ClassVar = {"epochs": 20, "train_size": None}

    def results(self, sp=-2, mup=0, better=0.9, seeds=range(3)):
        """Losses and errors whose best power of 2 moves by `sp` and `mup` over the widths."""
        rows = []
        for name, shift, scale in (("sp", sp, 1.0), ("mup", mup, better)):
            for place, width in enumerate((128, 512, 2048)):
                for power in range(-8, 1):
                    far = abs(power - (-4 + shift * place / 2))
                    for s in seeds:
                        numbers = dict.fromkeys(("loss", "nll", "error"), (scale + far) * jitter(s))
                        rows.append({"parametrization": name, "width": width, "lr": 2.0**power,
                                     "seed": s, **numbers})  # fmt: skip
        return {"rows": rows, "smallest": 128}

    def judged(self, results, size=None):
        return states(lr_transfer, results, size or self.SIZE)

    def test_it_can_hold(self):
        assert self.judged(self.results()) == [True] * 5

    @pytest.mark.parametrize(
        ("changed", "expected"),
        [
            ({"sp": 0}, [None, True, None, True, True]),  # SP transfers as well
            ({"sp": 2}, [False, True, True, True, True]),
            ({"mup": -2}, [True, False, True, False, True]),
            ({"better": 1.5}, [True, True, True, True, False]),
        ],
    )
    def test_it_can_fail(self, changed, expected):
        assert self.judged(self.results(**changed)) == expected

    def test_smaller_runs_and_single_seeds_decide_nothing(self):
        assert self.judged(self.results(), self.SIZE | {"epochs": 8}) == [None] * 5
        assert self.judged(self.results(seeds=range(1))) == [None] * 5


class TestOverfitting:
    def results(self, raw=1.0, rescaled=0.0, tempered=0.0, error=0.0, seeds=SEEDS, last=25):
        """Rows in which quantities rise linearly in log t by these slopes, from a minimum."""
        return {
            "rows": [
                {"seed": s, "step": round(1.5**k), "error": 0.1 + error * k,
                 "raw": 0.2 + raw * abs(k - 10) * jitter(s),
                 "rescaled": 0.3 + rescaled * k * jitter(s),
                 "tempered": 0.2 + tempered * k * jitter(s), "norm": k + 0.1 * ((k + s) % 5)}
                for s in seeds for k in range(2, last)
            ]
        }  # fmt: skip

    def test_it_can_hold_and_fail(self):
        def judged(**changed):
            return states(nll_overfitting, self.results(**changed))

        assert judged() == [True] * 4
        assert judged(error=0.01) == [False, True, True, True]
        assert judged(rescaled=0.1) == [True, False, True, True]
        assert judged(tempered=0.1)[2:] == [False, False]
        assert judged(seeds=range(1)) == [None] * 4
        assert judged(last=12) == [None] * 4

    def test_the_norm_is_our_question(self):
        *_, norm = nll_overfitting.verdicts(self.results(), {})
        assert norm.ours
        assert norm.holds is True
        rows = self.results()["rows"]
        for row in rows:
            row["norm"] = row["norm"] ** 3 * jitter(row["seed"])
        *_, norm = nll_overfitting.verdicts({"rows": rows}, {})
        assert norm.holds is False


class TestFits:
    def results(self, seeds=SEEDS, **changed):
        """Errors and standard deviations of each fit: at the data, and away from them."""
        numbers = {
            "ibvi": (0.01, 0.05, 1.0), "ensemble": (0.01, 0.05, 1.0), "gvi": (0.1, 0.1, 1.0),
            "linearised": (0.01, 0.05, 1.0), "kl": (0.2, 0.3, 1.5), **changed,
        }  # fmt: skip
        return {
            "steps": 6000,
            "seeds": [
                {
                    name: {"error": error * jitter(s), "data": data, "away": away * jitter(s + 1)}
                    for name, (error, data, away) in numbers.items()
                }
                for s in seeds
            ],
        }

    def test_they_can_hold_and_fail(self):
        def judged(**changed):
            return states(implicit_vs_explicit, self.results(**changed))

        assert judged() == [True] * 4
        assert judged(ibvi=(0.1, 0.05, 1.0)) == [False, True, True, True]
        assert judged(ibvi=(0.01, 0.05, 0.01)) == [True, False, False, True]
        assert judged(ibvi=(0.01, 0.05, 0.5)) == [True, True, False, True]
        assert judged(kl=(0.2, 0.01, 1.5)) == [True, True, True, False]
        assert judged(seeds=range(1)) == [None] * 4
        assert states(implicit_vs_explicit, self.results() | {"steps": 3}) == [None] * 4

    def test_the_linearised_network_keeps_its_prior_at_time_0_and_fits_at_the_end(self):
        prior = implicit_vs_explicit.make_model(32, implicit_vs_explicit.LowRank(20), 0)
        begin, end = (
            implicit_vs_explicit.spreads(implicit_vs_explicit.linearised(prior, 200, time))
            for time in (1e-9, 1e5)
        )
        assert end["error"] < 0.1 < begin["error"]
        assert end["data"] < 0.1 * begin["data"]

    def test_an_ensemble_fits(self):
        prior = implicit_vs_explicit.make_model(32, implicit_vs_explicit.LowRank(20), 0)
        start, end = (
            implicit_vs_explicit.ensemble(prior, 3, steps, 0.1)["error_at_data"]
            for steps in (1, 200)
        )
        assert end < start / 2


def test_cost():
    def row(time, memory, width=0.01):
        return {"ratio": time, "ratio_low": time - width, "ratio_high": time + width,
                "memory_ratio": memory}  # fmt: skip

    good = {
        cost.PLAIN: row(1, 1), cost.PAPER: row(1.1, 1.05), cost.OURS: row(1.0, 1.0),
        "GVI": row(1.3, 1.1), cost.ENSEMBLE: row(5, 1),
    }  # fmt: skip
    assert states(cost, {"LeNet-5": good, "ResNet-34": good}) == [True] * 3
    assert states(cost, {"LeNet-5": good}) == [None] * 3
    for changed, expected in (
        ({cost.PAPER: row(1.4, 1.05)}, [False, True, True]),
        ({cost.PAPER: row(1.4, 1.05, 0.5)}, [True, True, True]),  # the interval contains 1
        ({cost.PAPER: row(1.1, 1.3)}, [True, False, True]),
        ({cost.ENSEMBLE: row(4, 1)}, [True, True, False]),
    ):
        assert states(cost, {"LeNet-5": good, "ResNet-34": good | changed}) == expected


def test_rank_scaling():
    def results(scaled, same, seeds=SEEDS, ranks=(1, 4, 8, 16, 64)):
        return {
            "rows": [
                {"way": way, "rank": rank,
                 "moves": [power(rank) * (1 + 0.1 * ((s + rank // 4) % 3)) for s in seeds]}
                for way, power in (("scaled", scaled), ("same", same))
                for rank in ranks
            ]
        }  # fmt: skip

    flat, grows = (lambda rank: 1.0), (lambda rank: rank**0.5)
    assert states(rank_scaling, results(flat, grows)) == [True]
    assert states(rank_scaling, results(grows, grows)) == [False]
    assert states(rank_scaling, results(flat, flat)) == [None]
    assert states(rank_scaling, results(flat, grows, seeds=range(1))) == [None]
    assert states(rank_scaling, results(flat, grows, ranks=(1, 4))) == [None]


class TestCoordinateCheck:
    def results(self, sp=lambda width: 1 / width, mup=lambda width: 1.0, seeds=SEEDS):
        """Changes of the features as a function of the width."""
        found = {}
        for kind in ("deterministic", "variational"):
            for name, change in (("sp", sp), ("mup", mup)):
                rows = [
                    {"layer": layer, "width": width, "seed": s, "step": step,
                     "mean": (value := change(width) and change(width) * step * jitter(s + width)),
                     "std": value, "start": 1.0}
                    for layer in "02" for width in (8, 16, 32) for s in seeds for step in (1, 2)
                ]  # fmt: skip
                slopes = {layer: {"mean": 0.0, "std": 0.0} for layer in "02"}
                found[f"{kind}_{name}"] = {"changes": rows, "slopes": slopes, "tolerance": 0.25}
        return found

    def test_it_can_hold_and_fail(self):
        assert states(coordinate_check, self.results()) == [True] * 6
        less = self.results(mup=lambda width: 1e-3)
        assert states(coordinate_check, less) == [False, True] * 3
        unsteady = self.results(mup=lambda width: width**2)
        assert states(coordinate_check, unsteady) == [True, False] * 3
        assert states(coordinate_check, self.results(seeds=range(1))) == [None] * 6

    def test_both_constants_of_the_standard_parametrization_are_references(self):
        results = self.results(sp=lambda width: 2.0)
        for kind in ("deterministic", "variational"):
            results[f"{kind}_pytorch"] = self.results()[f"{kind}_sp"]
        found = coordinate_check.verdicts(results, {})
        assert [v.holds for v in found if "PyTorch" in v.subject] == [True] * 6
        assert [v.holds for v in found if v.subject.endswith("SP")][::2] == [False] * 3
        assert {"PyTorch" in v.subject for v in found if not v.ours} == {True, False}

    def test_runs_that_diverge_are_less_stable(self):
        results = self.results(sp=lambda width: 1.0 if width > 8 else None)
        assert states(coordinate_check, results)[1::2] == [True] * 3

    def test_the_slope_is_our_question(self):
        *_, slope = coordinate_check.verdicts(self.results(), {})
        assert slope.ours
        assert slope.holds is True
        worse = copy.deepcopy(self.results())
        worse["deterministic_mup"]["slopes"]["0"]["mean"] = 0.5
        *_, slope = coordinate_check.verdicts(worse, {})
        assert slope.holds is False
