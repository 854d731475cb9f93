"""Tests of `training_bytes` are in tests/test_benchmarks.py."""

import pytest

from tacit.studies.timing import interleaved_seconds, ratio, repeated


def test_warm_up_calls_are_not_timed():
    calls = []
    functions = {name: lambda name=name: calls.append(name) for name in ("a", "b")}
    seconds = interleaved_seconds(functions, repeats=4, label="", warmup=2)
    assert {name: len(times) for name, times in seconds.items()} == {"a": 4, "b": 4}
    assert all(set(calls[i : i + 2]) == {"a", "b"} for i in range(0, 12, 2))  # interleaved
    assert len(calls) == 12


def test_a_repeated_function_is_called_several_times():
    calls = []
    repeated(lambda: calls.append(1), times=3)()
    assert len(calls) == 3


def test_the_ratio_is_that_of_the_medians():
    found = ratio({"a": [2.0, 4.0, 90.0], "b": [1.0, 2.0, 3.0]}, "a", "b", times=2)
    assert found["ratio"] == pytest.approx(2.0)
    assert (found["seconds"], found["anchor_seconds"]) == pytest.approx((2.0, 1.0))
    assert found["ratio_low"] <= found["ratio"] <= found["ratio_high"]
