"""What is decided about a table, and errors by line and column."""

import numpy as np
import pytest

from tacit.integrations.files.training_table import read_training_table


@pytest.fixture
def written(tmp_path):
    """Return a function that writes columns as a CSV and returns its path."""

    def write(**columns):
        rows = zip(*columns.values(), strict=True)
        lines = [",".join(columns), *(",".join(map(str, row)) for row in rows)]
        path = tmp_path / "table.csv"
        path.write_text("\n".join(lines) + "\n")
        return path

    return write


NUMBERS = [i / 7 for i in range(40)]
LABELS = ["no", "yes"] * 20


def read(path, target="y", **settings):
    notes = []
    return read_training_table(path, target, note=notes.append, **settings), "\n".join(notes)


def test_texts_are_classes(written):
    table, notes = read(written(x=NUMBERS, y=LABELS))
    assert table.classes == ("no", "yes")
    assert table.targets.tolist() == [0, 1] * 20
    np.testing.assert_array_equal(table.columns["x"][:], NUMBERS)
    assert "task: classification of y, 2 classes; --task changes this" in notes
    assert "column x: numbers" in notes


def test_few_whole_numbers_are_classes_and_2_is_the_same_as_2_0(written):
    table, _ = read(written(x=NUMBERS, y=["2", "2.0", "10", "10"] * 10))
    assert table.classes == ("10", "2")
    assert (table.targets == 1).sum() == 20


@pytest.mark.parametrize("y", [NUMBERS, list(range(40))], ids=["real", "many whole"])
def test_other_numbers_are_regressed(written, y):
    table, notes = read(written(x=LABELS, y=y))
    assert table.classes == ()
    np.testing.assert_array_equal(table.targets, y)
    assert "task: regression of y" in notes


def test_the_task_can_be_chosen(written):
    table, notes = read(written(x=NUMBERS, y=[0, 1] * 20), task="regression")
    assert table.classes == ()
    assert "--task changes" not in notes


def test_columns_of_codes_can_be_categories(written):
    table, _ = read(written(code=["01", "02"] * 20, y=LABELS), categories=["code"])
    assert table.columns["code"][0] == "01"


def test_identifiers_empty_columns_and_ignored_ones_are_left_out(written):
    count = 120
    path = written(
        name=[f"n{i}" for i in range(count)], empty=[""] * count, other=range(count),
        x=range(count), y=["no", "yes"] * 60,
    )  # fmt: skip
    table, notes = read(path, ignore=["other"])
    assert list(table.columns) == ["x"]
    assert "column name: 120 distinct texts in 120 rows, probably an identifier" in notes
    assert "column empty: no values, left out" in notes


@pytest.mark.parametrize(
    ("columns", "settings", "message"),
    [
        ({"x": NUMBERS}, {}, r"has no column 'y'; its columns are x\."),
        ({"x": NUMBERS, "y": LABELS}, {"ignore": ["z"]}, "has no column 'z'"),
        ({"x": NUMBERS, "y": LABELS}, {"ignore": ["y"]}, "'y' is the target"),
        ({"x": NUMBERS, "y": LABELS}, {"ignore": ["x"]}, "has no column to predict 'y' from"),
        (
            {"x": NUMBERS, "y": [*LABELS[:38], "", "NA"]},
            {},
            "the target 'y' has no value in line 40, 41 of .*Remove these lines",
        ),
        ({"x": range(40), "y": [*["a"] * 12, *[""] * 28]}, {}, "22, 23 and 18 more of"),
        ({"x": NUMBERS, "y": ["a"] * 40}, {}, "same value, 'a', in every row"),
        ({"x": NUMBERS, "y": [f"c{i}" for i in range(40)]}, {}, "expected several rows of each"),
        ({"x": NUMBERS, "y": ["2024-01-31"] * 40}, {}, "holds dates"),
        (
            {"x": NUMBERS, "y": LABELS},
            {"task": "regression"},
            "a target of numbers; 'y' has 'no' in line 2.*--task classification",
        ),
        (
            {"x": [*NUMBERS[:39], "?"], "y": LABELS},
            {},
            r"line 41 of .*column 'x': '\?' is not a number, but 39 of 40 values are.*--ignore x",
        ),
        ({"x": [], "y": []}, {}, "has no rows below the names"),
    ],
)
def test_bad_tables_are_refused(written, columns, settings, message):
    with pytest.raises(ValueError, match=message):
        read(written(**columns), **settings)


def test_decimal_commas_between_semicolons(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text("x;y\n" + "1,5;no\n2,25;yes\n" * 10)
    table, _ = read(path)
    assert table.columns["x"][:2].tolist() == [1.5, 2.25]
