import numpy as np
import pytest

from tacit.data.splits import stratified


def test_each_group_is_held_out_in_proportion():
    groups = np.repeat([0, 1, 2], [600, 300, 100])
    held_out = stratified(groups, 0.1, 20, seed=0)
    assert np.bincount(groups[held_out]) == pytest.approx([60, 30, 10], abs=1)
    assert not (held_out == stratified(groups, 0.1, 20, seed=1)).all()


def test_few_rows_hold_out_a_quarter_at_most_and_never_the_last_of_a_group():
    groups = np.array([0] * 38 + [1, 2])
    held_out = stratified(groups, 0.1, 20, seed=0)
    assert held_out.sum() == 10
    assert not held_out[38:].any()
