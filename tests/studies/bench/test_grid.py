from dataclasses import replace
from functools import partial

import pytest
from tiny_cells import ONE

import tacit
from tacit.methods import ImplicitBiasVI
from tacit.studies.bench import PROBLEMS, Cell, make_grid
from tacit.studies.bench.grid import describe


def test_the_first_seed_of_all_cells_comes_first():
    cells = make_grid(["digits", "mnist"], ["standard", "swag"], ["sp", "mup"], seeds=2, epochs=3)
    assert len(cells) == 16
    assert [cell.seed for cell in cells] == [0] * 8 + [1] * 8
    assert len({cell.name for cell in cells}) == 16
    assert all(cell.epochs == 3 for cell in cells)
    assert (
        len({cell.network for cell in cells[:4]}) == 4
    )  # no two cells train the same network at the same time
    assert len(make_grid(["digits", "digits"], ["standard"], ["sp"], seeds=1)) == 1


def test_the_default_learning_rate_is_the_problems():
    assert ONE.lr == PROBLEMS["digits"].lr["sp"]
    assert replace(ONE, lr=0.5).lr == 0.5


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"data": "nist"}, "data: expected one of digits, mnist"),
        ({"method": "magic"}, "method: expected one of standard"),
        ({"parametrization": "np"}, "parametrization: expected one of sp, mup"),
        ({"seed": -1}, "seed: expected an integer"),
        ({"epochs": 0}, "epochs: expected an integer"),
        ({"lr": 0.0}, "lr: expected a number above 0"),
        ({"test_size": 0}, "test_size: expected an integer"),
        ({"validation_size": 0}, "validation_size: expected an integer"),
    ],
)
def test_invalid_settings_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        replace(ONE, **change)


def test_descriptions_are_the_same_in_every_process():
    assert describe(ImplicitBiasVI(tacit.first_and_last)) == (
        "ImplicitBiasVI(where=first_and_last, rank=None, samples=1, draws=None, "
        "averaging='probs', calibrated=True)"
    )
    method = ImplicitBiasVI(partial(tacit.every_layer, scale=0.25))
    assert "where=every_layer(scale=0.25)" in describe(method)


def test_width_is_dropped_for_networks_without_one():
    assert replace(ONE, width=8).width is None
    assert Cell("cifar10", "standard", width=8).width == 8
