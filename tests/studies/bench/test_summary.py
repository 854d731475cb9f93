import math

import pytest
import torch
from scipy import stats
from tiny_cells import FAKES

from tacit.studies.bench import summarize
from tacit.studies.bench.summary import estimate, p_value, student_t_within


@pytest.mark.parametrize("freedom", range(1, 13))
@pytest.mark.parametrize("t", [0.0, 0.1, 1.0, 2.7, 40.0])
def test_students_t(t, freedom):
    assert student_t_within(t, freedom) == pytest.approx(1 - 2 * stats.t.sf(t, freedom), abs=1e-12)


def test_estimates_against_scipy():
    generator = torch.Generator().manual_seed(0)
    one, two = torch.randn(2, 5, generator=generator, dtype=torch.float64).tolist()
    found = estimate(dict(enumerate(one)), dict(enumerate(two)))
    assert found.mean == pytest.approx(sum(one) / 5)
    assert found.error == pytest.approx(stats.sem(one))
    assert found.p == pytest.approx(stats.ttest_rel(one, two).pvalue)
    assert found.difference == pytest.approx((sum(one) - sum(two)) / 5)
    # Only common seeds are compared.
    part = estimate(dict(enumerate(one)), {0: two[0], 3: two[3], 9: 1.0})
    pairs = [one[0], one[3]], [two[0], two[3]]
    assert part.p == pytest.approx(stats.ttest_rel(*pairs).pvalue)


def test_too_few_seeds():
    assert math.isnan(estimate({0: 1.0}).error)
    assert estimate({0: 1.0}, {0: 2.0}).p is None
    assert estimate({0: 1.0}, {1: 2.0}).difference is None
    assert p_value([0.0, 0.0]) == 1
    assert p_value([0.5, 0.5]) == 0
    assert math.isnan(estimate({0: 1.0, 1: math.nan}).mean)


def test_rows():
    rows = {row.method: row.numbers for row in summarize(FAKES)}
    assert rows["standard"]["error"].mean == pytest.approx(10)
    assert rows["standard"]["corrupted_nll"].mean == pytest.approx(2 * rows["standard"]["nll"].mean)
    assert rows["standard"]["corrupted/shear/nll"].mean > 1
    assert rows["standard"]["nll"].p < 0.05 < rows["swag"]["nll"].p
    assert rows["implicit_bias_vi"]["nll"].p is None
