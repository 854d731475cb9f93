"""Intervals over seeds, and decisions from them."""

import math

import pytest

from tacit.studies.experiments.evidence import (
    all_of,
    any_of,
    higher,
    interval,
    lower,
    no_different,
    no_higher,
    no_lower,
    paired,
    shortfall,
    student_t,
    within,
)
from tacit.studies.experiments.verdict import UNCERTAIN, Verdict


def test_intervals_are_students():
    assert student_t(0.95, 4) == pytest.approx(2.7764, abs=1e-4)  # tables
    assert student_t(0.95, 1) == pytest.approx(12.706, abs=1e-3)
    found = interval([1.0, 2.0, 3.0])
    half = 4.3027 / math.sqrt(3)
    assert (found.low, found.high) == pytest.approx((2 - half, 2 + half), abs=1e-3)
    assert interval([1.0, 2.0, 3.0], comparisons=5).high > found.high


def test_too_few_or_missing_numbers_decide_nothing():
    for values in ([1.0], [], [1.0, None], [1.0, math.nan], [1.0, math.inf]):
        found = interval(values)
        assert lower(found) is higher(found) is None
        assert no_different(found) is None
        assert "seed" in str(found)


def test_runs_that_all_diverge_decide():
    assert higher(interval([math.inf, math.inf])) is True
    assert no_higher(interval([math.inf] * 2)) is False


def test_decisions():
    below, apart, around = (interval(v) for v in ([-1.0, -1.1], [2.0, 2.1], [-1.0, 1.0] * 3))
    assert (lower(below), lower(apart), lower(around)) == (True, False, None)
    assert (higher(below), higher(apart), higher(around)) == (False, True, None)
    assert (no_higher(below), no_higher(apart), no_higher(around)) == (True, False, True)
    assert (no_lower(below), no_lower(apart), no_lower(around)) == (False, True, True)
    assert (no_different(below), no_different(apart), no_different(around)) == (False, False, True)
    few = interval([-1.0, 1.0])
    assert no_higher(few) is no_lower(few) is no_different(few) is None
    assert within(apart, 5.0) is True
    assert within(apart, 0.5) is False
    assert within(around, 0.5) is None
    assert within(around, math.nan) is None


def test_pairs_are_of_common_seeds():
    assert paired({0: 1.0, 1: 2.0, 2: 9.0}, {0: 0.5, 1: 1.5}).mean == 0.5


def test_parts_are_joined():
    assert all_of([True, True]) is True
    assert all_of([True, None]) is all_of([]) is None
    assert all_of([None, False]) is False
    assert any_of([False, None, True]) is True
    assert any_of([False, None]) is None
    assert any_of([False, False]) is False


def test_what_a_run_lacks_is_said():
    paper = {"epochs": 200, "train_size": None}
    assert shortfall({"epochs": 200, "train_size": None}, paper) == ""
    found = shortfall({"epochs": 20, "train_size": 10_000}, paper)
    assert found == "epochs 20 instead of 200, train size 10,000 instead of all"


def test_a_run_that_lacks_something_decides_nothing_but_says_its_trend():
    found = Verdict("cost", False, "1", "2", lacking="one seed")
    assert found.holds is None
    assert found.reason == ("not decided at this scale: one seed; in this run it does not hold")
    assert Verdict("cost", None, "1", "2").lacking == UNCERTAIN
    assert Verdict("cost", True, "1", "2").reason == "holds"
