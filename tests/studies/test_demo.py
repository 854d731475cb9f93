from tacit.calling import Variational
from tacit.inference import calibration
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


def test_both_networks_have_a_temperature(monkeypatch):
    calibrated = []

    def calibrate(model, validation, **kwargs):
        found = calibration.calibrate(model, validation, **kwargs)
        calibrated.append(
            (isinstance(model, Variational), found.examples, kwargs["likelihood"].temperature)
        )
        return found

    monkeypatch.setattr(demo, "calibrate", calibrate)
    demo.main(None, epochs=1)
    assert [entry[:2] for entry in calibrated] == [(False, 100), (True, 100)]
    assert all(temperature != 1 for *_, temperature in calibrated)
