from tacit import demo


def test_demo_learns_and_prints_its_table(capsys):
    rows = demo.main(epochs=10)
    assert list(rows) == ["plain network", "variational, mean weights", "variational, 32 samples"]
    assert all(row["accuracy"] > 0.9 for row in rows.values())
    assert "32 samples" in capsys.readouterr().out
