from datetime import datetime, timezone

import numpy as np
import pytest

from tacit.data.text_columns import Survey, is_date, is_number, values_of


def survey(cells, **settings):
    found = Survey("x", **settings)
    found.add(cells, range(2, len(cells) + 2))
    return found


@pytest.mark.parametrize("cell", ["1", "-1.5", "+.5", "1e-3", "7."])
def test_numbers(cell):
    assert is_number(cell)
    assert values_of([cell], "number", "x", [2]) == [float(cell)]


@pytest.mark.parametrize("cell", ["", "inf", "nan", "1_000", "1,5", "1e999", "a", "٣x"])
def test_what_is_not_a_number(cell):
    assert not is_number(cell)


def test_decimal_commas():
    assert is_number("1,5", comma=True)
    assert values_of(["1,5", "2"], "number", "x", [2, 3], comma=True).tolist() == [1.5, 2]


@pytest.mark.parametrize(
    ("cell", "expected"),
    [
        ("2024-05-31", datetime(2024, 5, 31, tzinfo=timezone.utc)),
        ("2024-05-31 10:30", datetime(2024, 5, 31, 10, 30, tzinfo=timezone.utc)),
        ("2024-05-31T10:30:15.25Z", datetime(2024, 5, 31, 10, 30, 15, 250_000, timezone.utc)),
        ("2024-05-31T10:30:15+02:00", datetime(2024, 5, 31, 8, 30, 15, tzinfo=timezone.utc)),
    ],
)
def test_dates(cell, expected):
    assert is_date(cell)
    (found,) = values_of([cell], "date", "x", [2])
    assert found == np.datetime64(expected.replace(tzinfo=None), "us")


@pytest.mark.parametrize("cell", ["31.05.2024", "2024-13-01", "2024", "05/31/2024"])
def test_what_is_not_a_date(cell):
    assert not is_date(cell)


def test_missing_values_of_each_kind():
    assert np.isnan(values_of(["NA"], "number", "x", [2]))[0]
    assert np.isnat(values_of([""], "date", "x", [2]))[0]
    assert values_of(["null", "b"], "category", "x", [2, 3]).tolist() == [None, "b"]


@pytest.mark.parametrize(
    ("kind", "cell", "expected"), [("number", "?", "a number"), ("date", "soon", "a date")]
)
def test_other_values_are_named_by_line_and_column(kind, cell, expected):
    with pytest.raises(ValueError, match=rf"line 7, column 'x': expected {expected}.*'{cell}"):
        values_of(["", cell], kind, "x", [6, 7])


def test_kinds_are_decided_by_all_values():
    assert survey(["1", "", "2.5"]).kind == "number"
    assert survey(["2024-05-31", "NA"]).kind == "date"
    assert survey(["1", "b"]).kind == "category"
    assert survey(["", ""]).kind == "category"


def test_a_few_other_values_among_numbers_are_remembered():
    found = survey([*map(str, range(30)), "?"])
    assert found.kind == "number"
    assert found.odd == (32, "?")


def test_missing_values_are_counted_and_the_first_lines_kept():
    found = survey(["1", *[""] * 20])
    assert found.missing == 20
    assert found.gaps == list(range(3, 13))


def test_identifiers_have_a_text_for_each_row_or_too_many():
    assert survey([f"id{i}" for i in range(200)]).is_identifier
    assert survey([f"id{i % 1500}" for i in range(5000)]).is_identifier
    assert not survey([f"id{i % 90}" for i in range(200)]).is_identifier
    assert not survey([str(i) for i in range(2000)]).is_identifier  # numbers
