"""Tables as numbers: each kind of column, missing values, unknown categories, JSON."""

import json
import math
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal

import numpy as np
import pandas as pd
import pytest

import tacit
from tacit.data import TableEncoder


def frame():
    return pd.DataFrame(
        {
            "age": [31.0, 54.0, np.nan, 20.0],
            "city": ["Rome", "Oslo", "Rome", None],
            "size": pd.Categorical([2, 1, 2, 2]),
            "since": pd.to_datetime(["2020-01-01", "2020-01-03", None, "2020-01-11"]),
            "paid": [True, False, True, True],
        }
    )


def test_every_kind_of_column():
    encoder = TableEncoder.fit(frame())
    assert encoder.features == [
        *("age", "age missing"),
        *("city=Oslo", "city=Rome", "city missing"),
        *("size=1", "size=2"),
        *("since", "since missing"),
        "paid",
    ]
    expected = [
        [31, 0, 0, 1, 0, 0, 1, -2, 0, 1],
        [54, 0, 1, 0, 0, 1, 0, 0, 0, 0],
        [31, 1, 0, 1, 0, 0, 1, 0, 1, 1],
        [20, 0, 0, 0, 1, 0, 1, 8, 0, 1],
    ]
    found = encoder.transform(frame())
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, expected)


def test_agrees_with_the_transformers_of_scikit_learn():
    from sklearn.compose import make_column_transformer
    from sklearn.impute import SimpleImputer
    from sklearn.preprocessing import OneHotEncoder

    rng = np.random.default_rng(0)
    table = pd.DataFrame(
        {"a": rng.normal(size=50), "b": rng.choice(["x", "y", "z"], 50), "c": rng.normal(size=50)}
    )
    table.loc[rng.random(50) < 0.3, "a"] = np.nan
    new = table.iloc[::-1].assign(b=["x", "unknown"] * 25)
    reference = make_column_transformer(
        (SimpleImputer(strategy="median", add_indicator=True), ["a"]),
        (OneHotEncoder(handle_unknown="ignore", sparse_output=False), ["b"]),
        ("passthrough", ["c"]),
    ).fit(table)
    found = TableEncoder.fit(table).transform(new, np.float64)
    np.testing.assert_allclose(found, reference.transform(new))


def test_columns_are_found_by_name():
    encoder = TableEncoder.fit(frame())
    mixed = frame()[["paid", "since", "age", "size", "city"]].assign(further=1)
    np.testing.assert_array_equal(encoder.transform(mixed), encoder.transform(frame()))


def test_values_that_training_did_not_have():
    encoder = TableEncoder.fit({"a": [1.0, 2.0, 6.0], "b": ["x", "y", "x"]})
    new = encoder.transform({"a": [math.nan, 4.0], "b": [None, "z"]})
    np.testing.assert_array_equal(new, [[2, 0, 0], [4, 0, 0]])


@pytest.mark.parametrize(
    ("column", "kind", "values"),
    [
        ([1, None, True], "number", [1, 1, 1]),
        ([Decimal("0.5"), 2.5], "number", [0.5, 2.5]),
        (pd.Series([1, None, 4], dtype="Int64"), "number", [1, 2.5, 4]),
        (pd.Series([True, None], dtype="boolean"), "number", [1, 1]),
        (pd.Series([0.5, None], dtype="Float64"), "number", [0.5, 0.5]),
        ([date(2020, 1, 1), date(2020, 1, 3)], "date", [-1, 1]),
        ([datetime(2020, 1, 1), None, np.datetime64("2020-01-03")], "date", [-1, 0, 1]),
        ([pd.NaT, np.datetime64("NaT"), datetime(2020, 1, 1)], "date", [0, 0, 0]),
        (pd.date_range("2020-01-01", periods=2, tz="Asia/Tokyo"), "date", [-0.5, 0.5]),
        (np.array(["b", "a"]), "category", [0, 1]),
        (pd.Series(["b", None], dtype="string"), "category", [1, 0]),
        (["1", 1, 1.0, 2.5, True], "category", [1, 1, 1, 0, 0]),
        ([None, None], "category", None),
        (np.array([math.nan, math.nan]), "number", [0, 0]),
    ],
    ids=str,
)
def test_kinds_of_columns(column, kind, values):
    encoder = TableEncoder.fit({"a": column})
    assert encoder.columns[0].kind == kind
    found = encoder.transform({"a": column})
    if values is not None:
        np.testing.assert_array_equal(found[:, 0], values)


def test_times_with_and_without_a_zone_are_utc():
    tokyo = datetime(2020, 1, 1, 9, tzinfo=timezone(timedelta(hours=9)))
    encoder = TableEncoder.fit({"a": [tokyo, datetime(2020, 1, 1)]})
    np.testing.assert_array_equal(encoder.transform({"a": [tokyo]}), [[0]])


def test_dates_keep_their_precision():
    dates = pd.to_datetime(["2020-01-01 00:00:00", "2020-01-01 00:00:01", "2020-01-01 00:00:02"])
    found = TableEncoder.fit({"a": dates}).transform({"a": dates})
    np.testing.assert_allclose(found[:, 0] * 86_400, [-1, 0, 1])


def test_categories_are_the_same_with_and_without_missing_values():
    """pandas makes floats of whole categories if some are missing."""
    encoder = TableEncoder.fit({"a": pd.Series(pd.Categorical([1, 2]))})
    found = encoder.transform({"a": pd.Series(pd.Categorical([1, None, 2]))})
    np.testing.assert_array_equal(found, [[1, 0], [0, 0], [0, 1]])


def test_the_most_frequent_categories_are_kept():
    values = ["a", "b", "b", "c", "c", "d"]
    encoder = TableEncoder.fit({"x": values}, most_categories=3)
    assert encoder.columns[0].categories == ("a", "b", "c")
    assert encoder.transform({"x": ["d"]}).sum() == 0


def test_arrays_have_numbered_columns():
    x = np.array([[1.0, math.nan], [3.0, 5.0]])
    encoder = TableEncoder.fit(x)
    assert encoder.features == ["0", "1", "1 missing"]
    np.testing.assert_array_equal(encoder.transform(x), [[1, 5, 1], [3, 5, 0]])
    assert TableEncoder.fit(pd.DataFrame(x)) == encoder


def test_the_description_is_json():
    encoder = TableEncoder.fit(frame())
    again = TableEncoder.from_dict(json.loads(json.dumps(encoder.to_dict())))
    assert again == encoder
    assert again.transform(frame()[:0]).shape == (0, 10)


COLUMN = {"name": "a", "kind": "number", "missing": False, "fill": 0.0, "categories": []}


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ([], "expected columns with distinct names"),
        ([COLUMN, COLUMN], "expected columns with distinct names"),
        ([{**COLUMN, "kind": "text"}], "expected one of number, date, category"),
        ([{**COLUMN, "fill": math.nan}], "expected a number"),
        ([{**COLUMN, "categories": ["x"]}], "only columns of categories"),
        ([{"name": "a"}], "'kind' is missing"),
    ],
)
def test_descriptions_are_checked(columns, message):
    with pytest.raises(ValueError, match=message):
        TableEncoder.from_dict({"columns": columns})


@pytest.mark.parametrize(
    ("table", "error", "message"),
    [
        ([[1, 2]], TypeError, "expected a pandas DataFrame, a dict of columns or an array of two"),
        ({}, ValueError, "at least one column and one row"),
        ({"a": []}, ValueError, "at least one column and one row"),
        ({"a": [1], "b": [1, 2]}, ValueError, "columns of the same length"),
        ({1: [1], "1": [2]}, ValueError, "several columns have the name 1"),
        ({"a": [{}]}, TypeError, "column 'a': expected numbers, dates or strings, received dict"),
        ({"a": [1.0, math.inf]}, ValueError, "column 'a': expected finite numbers"),
        ({"a": np.ones((2, 2))}, TypeError, "columns of one dimension"),
    ],
)
def test_tables_that_are_refused(table, error, message):
    with pytest.raises(error, match=message):
        TableEncoder.fit(table)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"age": ["old"] * 4}, TypeError, "column 'age': expected number values, received 'old'"),
        ({"since": [1, 2, 3, 4]}, TypeError, "column 'since': expected date values, received 1"),
        ({"age": [1e300] * 4}, ValueError, "column 'age': some numbers are too large for float32"),
        ({"city": [date(2020, 1, 1)] * 4}, TypeError, "column 'city': expected category values"),
    ],
)
def test_other_kinds_of_values_than_in_training(change, error, message):
    encoder = TableEncoder.fit(frame())
    with pytest.raises(error, match=message):
        encoder.transform(frame().assign(**change))


def test_missing_columns_are_named():
    encoder = TableEncoder.fit(frame())
    with pytest.raises(ValueError, match="the columns age, paid are missing. Expected .* city"):
        encoder.transform(frame().drop(columns=["age", "paid"]))


def test_most_categories_is_checked():
    with pytest.raises(ValueError, match="most_categories"):
        tacit.data.TableEncoder.fit({"a": ["x"]}, most_categories=0)


def test_identifiers_are_left_out_with_a_warning():
    names = [f"c{i:03d}" for i in range(60)]
    table = pd.DataFrame({"id": names, "age": np.arange(60.0), "half": names[:30] * 2})
    with pytest.warns(UserWarning, match="'id': 60 distinct texts in 60 rows.*left out") as caught:
        encoder = TableEncoder.fit(table)
    assert len(caught) == 1
    assert encoder.features == ["age", *(f"half={name}" for name in names[:30])]
    assert TableEncoder.from_dict(encoder.to_dict()) == encoder
    new = table.assign(id="another")
    np.testing.assert_array_equal(encoder.transform(new), encoder.transform(table))
    kept = TableEncoder.fit(table[["id"]].astype("category"))
    assert len(kept.features) == 60


def test_dates_in_texts_are_advised_to_be_converted():
    days = pd.Series(pd.date_range("2024-01-01", periods=60)).dt.strftime("%Y-%m-%d")
    table = pd.DataFrame({"day": days, "age": np.arange(60.0)})
    with pytest.warns(UserWarning, match="'day'.*left out.*dates by pandas.to_datetime"):
        assert TableEncoder.fit(table).features == ["age"]
    assert "day" in TableEncoder.fit(table.assign(day=pd.to_datetime(table["day"]))).features


def test_a_table_of_identifiers_alone_is_refused():
    names = [f"c{i:03d}" for i in range(60)]
    with pytest.warns(UserWarning, match="left out"), pytest.raises(ValueError, match="id, key"):
        TableEncoder.fit({"id": names, "key": names})
