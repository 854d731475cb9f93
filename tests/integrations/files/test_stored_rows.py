"""Columns and encoded rows on disk."""

import numpy as np
import pytest
import torch
from test_file_models import SETTINGS, write_table

from tacit.data.text_columns import values_of
from tacit.integrations.files import Settings, train_table
from tacit.integrations.files.stored_rows import StoredColumn, on_disk

CELLS = {
    "number": ["1.5", "", "-2", "7"],
    "date": ["2024-05-31", "2024-05-31T10:30:00", "", "1969-12-31"],
    "category": ["b", "a", "", "b"],
}


@pytest.mark.parametrize("kind", CELLS)
def test_columns_return_what_was_added(kind, tmp_path):
    values = values_of(CELLS[kind], kind, "x", range(4))
    column = StoredColumn.of(kind, 4, tmp_path)
    column.append(values[:3])
    column.append(values[3:])
    assert len(column) == 4
    for rows in (slice(None), np.array([3, 1, 1]), slice(2, 3)):
        np.testing.assert_array_equal(column[rows], values[rows])
        assert column[rows].dtype == values.dtype
    assert list(tmp_path.iterdir()) == []  # the file has no name


def test_arrays_on_disk_start_at_0_and_may_be_empty(tmp_path):
    found = on_disk((3, 2), np.float32, tmp_path)
    assert isinstance(found, np.memmap)
    assert not found.any()
    assert on_disk((0, 2), np.float32).shape == (0, 2)


def test_blocks_do_not_change_the_result(tmp_path, monkeypatch):
    path = write_table(tmp_path / "flats.csv")
    whole = train_table(path, "rent", hidden=(4,), settings=SETTINGS)
    monkeypatch.setattr("tacit.integrations.files.training.BLOCK", 7)
    monkeypatch.setattr("tacit.data.table_files.TableFile.chunks.__defaults__", (11,))
    parts = train_table(path, "rent", hidden=(4,), settings=SETTINGS)
    for name, value in whole.model.state_dict().items():
        assert torch.equal(value, parts.model.state_dict()[name])


def test_large_tables_hold_out_a_bounded_number_of_rows(tmp_path, monkeypatch):
    path, notes = write_table(tmp_path / "flats.csv", 1000), []
    monkeypatch.setattr("tacit.integrations.files.training.MOST_VALIDATION", 50)
    monkeypatch.setattr("tacit.integrations.files.training.MOST_SCORES", 40)
    settings = Settings(epochs=1, progress=False)
    train_table(path, "price", settings=settings, note=notes.append)
    assert "rows: 910 for training, 50 to end it, 40 for sets or intervals" in notes
