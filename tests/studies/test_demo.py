from tacit.studies import demo


def test_both_networks_learn_and_the_table_is_printed(capsys):
    rows = demo.main(None, epochs=10)
    assert list(rows) == [demo.PLAIN, demo.OURS]
    for row in rows.values():
        assert row["accuracy"] > 0.9
        assert row["AUROC photos"] > 0.8
        assert 0 < row["Brier"] < 0.2
    printed = capsys.readouterr().out
    assert all(name in printed for name in ("AUROC noisy", "parameters", demo.PLAIN))
