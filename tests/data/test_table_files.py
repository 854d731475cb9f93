import sys
from datetime import date, time

import numpy as np
import pandas
import pytest

from tacit.data.table_files import open_table


@pytest.fixture
def written(tmp_path):
    """Return a function that writes a file and returns its path."""

    def write(content, name="table.csv"):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


def columns(path):
    (chunk,) = open_table(path).chunks()
    return chunk.columns


@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_separators_are_detected(written, separator):
    path = written(f'a{separator}"b c"\n1{separator}x\n2{separator}y\n')
    assert columns(path) == {"a": ["1", "2"], "b c": ["x", "y"]}
    assert open_table(path).separator == separator


def test_commas_within_another_separator_are_text(written):
    assert columns(written("size, m;name, first\n1,5;x\n")) == {
        "size, m": ["1,5"],
        "name, first": ["x"],
    }


def test_a_byte_order_mark_and_windows_lines_are_read(written):
    assert columns(written(b"\xef\xbb\xbfa,b\r\n1,2\r\n")) == {"a": ["1"], "b": ["2"]}


def test_a_single_column_has_no_separator(written):
    assert columns(written("a\n1\n2\n")) == {"a": ["1", "2"]}


def test_lines_count_blank_lines_and_quoted_newlines(written):
    path = written('a,b\n1,"x\ny"\n\n2,z\n')
    (chunk,) = open_table(path).chunks()
    assert list(chunk.lines) == [2, 5]
    assert chunk.columns["b"] == ["x\ny", "z"]


def test_chunks_are_bounded(written):
    path = written("a\n" + "\n".join(map(str, range(7))))
    chunks = list(open_table(path).chunks(3))
    assert [len(chunk.lines) for chunk in chunks] == [3, 3, 1]
    assert [text for chunk in chunks for text in chunk.columns["a"]] == list("0123456")


def test_columns_without_a_name_are_left_out(written):
    path = written(",a,\n0,1,\n")
    assert columns(path) == {"a": ["1"]}
    assert open_table(path).unnamed == 2


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is empty: expected a first line"),
        ("\n\n", "is empty"),
        ("1,2\n3,4\n", "expected the names of the columns in the first line, received numbers: 1"),
        ("a,b,a\n1,2,3\n", "several columns are named a"),
        (b"a,b\ncaf\xe9,1\n", "is not in UTF-8"),
    ],
)
def test_files_without_a_usable_header_are_refused(written, content, message):
    with pytest.raises(ValueError, match=message):
        open_table(written(content))


def test_ragged_rows_are_named_by_line(written):
    path = written("a,b\n1,2\n3\n")
    with pytest.raises(ValueError, match=r"line 3 of .*table.csv has 1 values, expected 2 as in"):
        list(open_table(path).chunks())


def test_an_open_quote_is_named_by_its_line(written):
    path = written('a,b\n1,2\n3,4\n5,"6\n7,8\n')
    with pytest.raises(ValueError, match=r"line 4 of .* can't be read: unexpected end of data"):
        list(open_table(path).chunks())


def test_a_missing_file_is_reported(tmp_path):
    with pytest.raises(FileNotFoundError, match="there is no file"):
        open_table(tmp_path / "none.csv")


def test_parquet_is_read_like_a_csv(tmp_path):
    frame = pandas.DataFrame(
        {
            "a": [1.5, np.nan],
            "n": [1, 2],
            "big": [2**60, None],
            "b": [" x", None],
            "k": pandas.Categorical(["u", "v"]),
            "t": [True, None],
            "c": [date(2024, 5, 31), None],
            "d": pandas.to_datetime(["2024-05-31 10:00", None]).astype("datetime64[ns]"),
            "z": pandas.to_datetime(["2024-05-31 10:00", None]).tz_localize("Europe/Rome"),
        },
        index=["first", "second"],
    ).astype({"big": "Int64", "t": "boolean"})
    frame.to_parquet(tmp_path / "table.parquet")
    table = open_table(tmp_path / "table.parquet")
    assert (table.names, table.unnamed) == (
        ("a", "n", "big", "b", "k", "t", "c", "d", "z"),
        1,
    )
    (chunk,) = table.chunks()
    assert list(chunk.lines) == [1, 2]
    assert chunk.columns == {
        "a": ["1.5", ""],
        "n": ["1", "2"],
        "big": [str(2**60), ""],
        "b": ["x", ""],
        "k": ["u", "v"],
        "t": ["True", ""],
        "c": ["2024-05-31", ""],
        "d": ["2024-05-31T10:00:00", ""],
        "z": ["2024-05-31T10:00:00+02:00", ""],
    }


def test_parquet_is_read_in_chunks(tmp_path):
    frame = pandas.DataFrame({"a": range(10), "b": list("abcdefghij")})
    frame.to_parquet(tmp_path / "table.pq", row_group_size=4)
    chunks = list(open_table(tmp_path / "table.pq").chunks(3))
    assert max(len(chunk.lines) for chunk in chunks) <= 3
    assert [line for chunk in chunks for line in chunk.lines] == list(range(1, 11))
    assert [cell for chunk in chunks for cell in chunk.columns["b"]] == list("abcdefghij")


@pytest.mark.parametrize(
    ("values", "kind"), [([[1, 2]], "list"), ([b"x"], "binary"), ([time(10, 30)], "time64")]
)
def test_parquet_columns_of_other_types_are_refused(tmp_path, values, kind):
    pandas.DataFrame({"a": [1], "b": values}).to_parquet(tmp_path / "table.parquet")
    with pytest.raises(ValueError, match=rf"column 'b': expected numbers, .* received {kind}"):
        open_table(tmp_path / "table.parquet")


def test_a_damaged_parquet_file_is_reported(written):
    with pytest.raises(ValueError, match=r"table.parquet can't be read as Parquet: "):
        open_table(written("not Parquet", "table.parquet"))


def test_parquet_without_pyarrow_is_explained(written, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ValueError, match=r"needs pyarrow: pip install 'tacit-torch\[parquet\]'"):
        open_table(written("", "table.parquet"))
