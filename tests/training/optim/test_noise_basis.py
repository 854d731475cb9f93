"""Noise along random orthonormal directions that take turns."""

import math

import numpy as np
import pytest
import torch
from scipy import stats
from torch.testing import assert_close

from tacit.training.optim.momentum import DeferredRows
from tacit.training.optim.noise_basis import MIN_BLOCK_DRAWS, NoiseBasis, block_draws


def make(rank, seed=0):
    return NoiseBasis(rank, torch.Generator().manual_seed(seed))


def noise(noise_basis, first, count):
    return noise_basis.noise(range(first, first + count), torch.zeros(1, dtype=torch.float64))


@pytest.mark.parametrize("rank", [1, 2, 7])
def test_each_direction_takes_its_turn(rank):
    noise_basis = make(rank)
    identity = torch.eye(rank, dtype=torch.float64)
    assert_close(noise_basis.basis @ noise_basis.basis.T, identity)
    turn = noise(noise_basis, 3, rank)
    assert_close(turn @ turn.T, torch.diag(turn.square().sum(1)))
    again = noise(noise_basis, 3 + rank, rank)
    cosines = torch.cosine_similarity(turn, again)
    assert_close(cosines.abs(), torch.ones(rank, dtype=torch.float64))


def test_draws_do_not_depend_on_the_order_of_access():
    first, second = make(3), make(3)
    late = noise(first, 500, 2)
    assert_close(torch.cat([noise(second, i, 1) for i in range(502)])[500:], late)


@pytest.mark.parametrize("rank", [1, 2, 5])
@pytest.mark.parametrize("draw", [0, 9])
def test_a_draw_is_standard_normal(rank, draw):
    """Over many bases: a component, the squared length, products and angles of components."""
    z = torch.cat([noise(make(rank, seed), draw, 1) for seed in range(3000)])
    assert stats.kstest(z[:, 0].numpy(), "norm").pvalue > 0.001
    assert stats.kstest(z.square().sum(1).numpy(), stats.chi2(rank).cdf).pvalue > 0.001
    if rank > 1:
        products = z[:, 0] * z[:, 1]
        assert abs(products.mean()) < 4 * products.std() / math.sqrt(len(z))
        angle = torch.atan2(z[:, 0], z[:, 1]).numpy()
        assert stats.kstest(angle, stats.uniform(-math.pi, 2 * math.pi).cdf).pvalue > 0.001


def test_signs_of_consecutive_draws_are_independent():
    noise_basis = make(1)
    signs = np.sign([noise_basis.length(draw) for draw in range(2000)])
    assert abs(signs.mean()) < 4 / math.sqrt(2000)
    assert abs((signs[1:] * signs[:-1]).mean()) < 4 / math.sqrt(2000)


def test_rows_are_stored_as_they_will_be_at_their_next_turn():
    """With constant settings: a forward pass needs no momentum, and a step two operations."""
    rows = DeferredRows(torch.zeros(4, 1), momenta=torch.ones(4, 1))
    group = {
        "lr": 0.1, "momentum": 0.9, "weight_decay": 0.0, "dampening": 0.0, "nesterov": False,
        "maximize": False,
    }  # fmt: skip
    for step in range(12):
        row = step % 4
        v, q = rows.momenta[row].clone(), rows.transitions[row, 1, 1]
        rows.step(group, {row: (1.0, torch.ones(1))})
        if step >= 4:
            assert rows.current((step + 1) % 4) == (1.0, 0.0)
            assert rows.transitions[row, 1, 1] == pytest.approx(q * 0.9)
            assert rows.momenta[row] == pytest.approx(v + 1 / (q * 0.9))  # not multiplied out
    assert rows.current(1)[1] != 0.0  # before its turn


def test_a_basis_serves_at_least_two_turns():
    assert block_draws(3) == MIN_BLOCK_DRAWS
    assert block_draws(100) == 200
