import math

import pytest
import torch
from scipy import stats

from tacit import metrics
from tacit.studies.estimates import auroc_difference, compared, mean_and_error


def test_mean_and_standard_error():
    values = torch.tensor([1.0, 2.0, 4.0, 9.0])
    assert mean_and_error(values) == pytest.approx((4.0, stats.sem(values.numpy())))
    assert math.isnan(mean_and_error(values[:1])[1])


def test_the_difference_of_two_aurocs():
    generator = torch.Generator().manual_seed(0)
    negative = [torch.randint(9, (30,), generator=generator) for _ in range(2)]
    positive = [3 + torch.randint(9, (20,), generator=generator) for _ in range(2)]
    first, second = (metrics.auroc(n, p) for n, p in zip(negative, positive, strict=True))
    found, _ = auroc_difference(tuple(negative), tuple(positive))
    assert found == pytest.approx(first - second)


def test_its_standard_error_is_the_spread_over_data_sets():
    generator = torch.Generator().manual_seed(0)

    def scores(count, shift):  # two correlated scores of the same examples
        shared = torch.randn(count, generator=generator)
        noise = torch.randn(2, count, generator=generator)
        return shared + noise[0] + shift, shared + 0.5 * noise[1] + shift

    found = torch.tensor(
        [auroc_difference(scores(60, 0.0), scores(40, 1.0)) for _ in range(400)],
        dtype=torch.float64,
    )
    spread = found[:, 0].std().item()  # known to 1 / sqrt(800), 3.5 %
    assert found[:, 1].square().mean().sqrt().item() == pytest.approx(spread, rel=0.14)


def test_only_differences_of_more_than_two_standard_errors_are_clear():
    assert compared(0.5, 0.2, "a", "b", ".1f points") == "a better by 0.5 ± 0.2 points"
    assert compared(-0.5, 0.2, "a", "b", ".2f") == "b better by 0.50 ± 0.20"
    assert compared(0.4, 0.2, "a", "b", ".1f") == "no clear difference, 0.4 ± 0.2"
    assert compared(0.4, math.nan, "a", "b", ".1f").startswith("no clear difference")
