"""Invalid settings are refused when a structure is constructed or fitted to a layer."""

import pytest

import tacit
from tacit.testing.covariance import LAYERS

STRUCTURES = {
    tacit.LowRank: {"rank": 2},
    tacit.FullRank: {},
    tacit.Diagonal: {},
    tacit.Kronecker: {"input_rank": 2, "output_rank": 2},
    tacit.LowRankPlusDiagonal: {"rank": 2},
}


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("scale", [0, -1.0, float("nan"), float("inf")])
def test_scale_must_be_positive_and_finite(structure, scale):
    message = rf"{structure.__name__}\(scale\): expected a number above 0, received"
    with pytest.raises(ValueError, match=message):
        structure(**STRUCTURES[structure], scale=scale)


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("scale", ["1", True, None])
def test_scale_must_be_a_number(structure, scale):
    with pytest.raises(TypeError, match=rf"{structure.__name__}\(scale\): expected a number"):
        structure(**STRUCTURES[structure], scale=scale)


RANKS = [(structure, name) for structure, ranks in STRUCTURES.items() for name in ranks]


@pytest.mark.parametrize(("structure", "name"), RANKS)
@pytest.mark.parametrize("rank", [0, -3])
def test_rank_must_be_at_least_one(structure, name, rank):
    message = rf"{structure.__name__}\({name}\): expected an integer of at least 1, received {rank}"
    with pytest.raises(ValueError, match=message):
        structure(**{**STRUCTURES[structure], name: rank})


@pytest.mark.parametrize(("structure", "name"), RANKS)
@pytest.mark.parametrize("rank", [2.0, True, "3"])
def test_rank_must_be_an_integer(structure, name, rank):
    with pytest.raises(TypeError, match=rf"{structure.__name__}\({name}\): expected an integer"):
        structure(**{**STRUCTURES[structure], name: rank})


@pytest.mark.parametrize("structure", [tacit.LowRank, tacit.LowRankPlusDiagonal])
def test_rank_must_not_exceed_the_number_of_parameters(structure):
    message = f"{structure.__name__}: the rank can be at most the number of parameters, 18"
    with pytest.raises(ValueError, match=message):
        structure(19).factors(LAYERS["linear"])


def test_the_memory_limit_must_be_positive():
    with pytest.raises(ValueError, match=r"FullRank\(max_gigabytes\): expected a number above 0"):
        tacit.FullRank(max_gigabytes=0)
