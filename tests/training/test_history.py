"""What a history shows."""

from tacit.training import History


def test_a_history_prints_its_end_and_the_best_epoch():
    rows = [{"epoch": 1, "loss": 0.5, "nll": 0.4}, {"epoch": 2, "loss": 0.25, "nll": 0.6}]
    expected = "History(2 epochs; best nll 0.4 in epoch 1; last row: epoch 2, loss 0.25, nll 0.6)"
    assert repr(History(rows)) == expected
    assert repr(History(rows[:1], "early stopping")).startswith("History(1 epochs, early stopping;")
    assert repr(History()) == "History(no epochs)"
