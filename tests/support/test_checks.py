import json
import math

import numpy as np
import pytest
import torch

from tacit._support import checks


@pytest.mark.parametrize("value", [3, np.int64(3), np.uint8(3)])
def test_positive_integers_become_python_integers(value):
    found = checks.positive_integer("n", value)
    assert type(found) is int
    assert found == 3


@pytest.mark.parametrize("value", [0.5, np.float32(0.5), np.float64(0.5)])
def test_numbers_become_python_numbers(value):
    for check in (checks.positive_number, checks.probability):
        found = check("x", value)
        assert type(found) is float
        assert found == 0.5
    assert checks.positive_number("x", np.int64(2)) == 2.0


@pytest.mark.parametrize(
    ("check", "wrong_type", "wrong_value", "expected"),
    [
        (checks.positive_integer, [True, 1.0, "1", None, np.bool_(True)], [0, -1], "of at least 1"),
        (
            checks.positive_number,
            [True, "1", None, 1j],
            [0, -1, math.nan, math.inf, 10**400, np.float32("inf"), np.float32("nan")],
            "number above 0",
        ),
        (checks.probability, [True, "1", None], [-0.1, 1.1, math.nan, 10**400], "from 0 to 1"),
    ],
)
def test_other_values_are_refused(check, wrong_type, wrong_value, expected):
    for value in wrong_type:
        with pytest.raises(TypeError, match=f"x: expected .*{expected}, received"):
            check("x", value)
    for value in wrong_value:
        with pytest.raises(ValueError, match=f"x: expected .*{expected}, received"):
            check("x", value)


def test_a_number_must_exceed_its_bound():
    assert checks.positive_number("df", 2.1, above=2) == 2.1
    with pytest.raises(ValueError, match=r"df: expected a number above 2, received 2\."):
        checks.positive_number("df", 2, above=2)


def test_non_finite_numbers_become_null():
    data = {"a": math.nan, "b": math.inf, "c": 1.5, "d": 2, "e": "text", "f": None}
    found = {name: checks.finite_or_none(value) for name, value in data.items()}
    assert json.dumps(found, allow_nan=False)
    assert found == {"a": None, "b": None, "c": 1.5, "d": 2, "e": "text", "f": None}


def test_sample_shapes():
    assert checks.sample_shape("samples", 3) == (3,)
    assert checks.sample_shape("samples", np.int64(3)) == (3,)
    assert checks.sample_shape("samples", (2, 3)) == (2, 3)
    assert checks.sample_shape("samples", torch.Size([2])) == (2,)
    assert checks.sample_shape("samples", ()) == ()
    for wrong in (0, (2, 0)):
        with pytest.raises(ValueError, match="samples: expected an integer of at least 1"):
            checks.sample_shape("samples", wrong)
    with pytest.raises(TypeError, match=r"samples: expected .* received 1\.5"):
        checks.sample_shape("samples", 1.5)
