import sys

import pytest

from tacit import demo


def test_demo_learns_and_prints_its_table(capsys):
    rows = demo.main(epochs=10)
    assert list(rows) == ["plain network", "variational, mean weights", "variational, 32 samples"]
    assert all(row["accuracy"] > 0.9 for row in rows.values())
    assert "32 samples" in capsys.readouterr().out


def test_without_scikit_learn_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(SystemExit, match="pip install scikit-learn"):
        demo.digits()
