"""Inputs to label next."""

import math

import pytest
import torch
from several_inputs import Items
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import tacit
from tacit.methods.learned import Members

X = torch.randn(40, 4, generator=torch.Generator().manual_seed(0))
SCORES = ["entropy", "mutual_information", "expected_entropy", "max_prob", "margin", "energy"]


def make_model(likelihood=None, outputs=3):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, outputs))
    return tacit.variational(net, {"2": tacit.LowRank(2)}, likelihood=likelihood)


def seeded(seed=1):
    return torch.Generator().manual_seed(seed)


class Given(nn.Module):
    """A network whose outputs are its inputs."""

    def forward(self, x):
        return x


class Column(nn.Module):
    """A network whose output is one of its inputs."""

    def __init__(self, i):
        super().__init__()
        self.i = i

    def forward(self, x):
        return x[:, self.i]


@pytest.mark.parametrize("by", SCORES)
def test_the_largest_scores_come_first(by):
    model = make_model(tacit.Categorical())
    scores = tacit.predict(model, X, generator=seeded()).uncertainty(by)
    found = tacit.acquire(model, X, 7, by=by, batch_size=9, generator=seeded())
    assert found.tolist() == scores.argsort(descending=True)[:7].tolist()
    assert model.training


@pytest.mark.parametrize(
    ("likelihood", "by"),
    [
        (tacit.Categorical(), "margin"),
        (tacit.Bernoulli(), "margin"),
        (tacit.Gaussian(), "epistemic_std"),
        (tacit.HeteroscedasticGaussian(), "epistemic_std"),
    ],
    ids=lambda given: type(given).__name__,
)
def test_the_default_score_is_averaged_over_targets(likelihood, by):
    model = make_model(likelihood, outputs=4)
    scores = tacit.predict(model, X, generator=seeded()).uncertainty(by)
    expected = scores.reshape(40, -1).mean(1).argsort(descending=True)[:5]
    assert tacit.acquire(model, X, 5, generator=seeded()).tolist() == expected.tolist()


def test_inputs_that_functions_disagree_on_are_chosen_by_mutual_information():
    pool = torch.tensor([[0.0, 0.0], [6.0, -6.0], [9.0, 9.0]])  # logits of two functions
    model = Members([Column(0), Column(1)], tacit.Bernoulli())
    assert tacit.acquire(model, pool, 1, by="expected_entropy").item() == 0
    assert tacit.acquire(model, pool, 1, by="mutual_information").item() == 1


@pytest.mark.parametrize("settings", [{"by": "random"}, {"power": 1.0}, {"by": "margin"}])
def test_choices_are_distinct_and_repeat_with_the_generator(settings):
    model = make_model(tacit.Categorical())
    first, again = (tacit.acquire(model, X, 40, generator=seeded(), **settings) for _ in range(2))
    assert first.equal(again)
    assert sorted(first.tolist()) == list(range(40))
    other = tacit.acquire(model, X, 40, generator=seeded(2), **settings)
    assert not other.equal(first)


def test_power_acquisition_draws_in_proportion_to_the_scores():
    p = torch.tensor([0.02, 0.1, 0.3, 0.5])
    pool, likelihood = (p / (1 - p)).log(), tacit.Bernoulli()
    repeats = 1500
    for power in (1.0, 2.0):
        expected = (p.double() ** power) / (p.double() ** power).sum()
        drawn = torch.cat(
            [
                tacit.acquire(
                    Given(), pool, 1, by="max_prob", power=power, likelihood=likelihood,
                    generator=seeded(seed),
                )
                for seed in range(repeats)
            ]
        )  # fmt: skip
        found = drawn.bincount(minlength=4) / repeats
        error = (expected * (1 - expected) / repeats).sqrt()
        assert ((found - expected).abs() < 4 * error).all()


def test_inputs_without_uncertainty_come_last_in_random_order():
    logits = torch.zeros(8, 2)
    logits[:6, 0] = 1e6
    orders = {
        tuple(
            tacit.acquire(
                Given(), logits, 8, power=1.0, likelihood=tacit.Categorical(), generator=seeded(i)
            ).tolist()
        )
        for i in range(5)
    }
    assert all(set(order[:2]) == {6, 7} for order in orders)
    assert len({order[2:] for order in orders}) > 1


def test_ties_go_to_the_smaller_index():
    found = tacit.acquire(Given(), torch.zeros(9, 2), 4, likelihood=tacit.Categorical())
    assert found.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "pool",
    [
        X.numpy(),
        (X, torch.zeros(40)),
        TensorDataset(X, torch.zeros(40)),
        Items([(x, 0) for x in X]),
        DataLoader(X, batch_size=7),
    ],
    ids=["array", "pair", "dataset", "items", "loader"],
)
def test_pools_of_any_form(pool):
    model = make_model(tacit.Categorical())
    expected = tacit.acquire(model, X, 5, generator=seeded())
    assert tacit.acquire(model, pool, 5, generator=seeded()).equal(expected)


def test_a_plain_network():
    found = tacit.acquire(nn.Linear(4, 3), X, 5, by="margin", likelihood=tacit.Categorical())
    assert len(set(found.tolist())) == 5


def test_bad_arguments_are_refused():
    model = make_model(tacit.Categorical())
    for k in (0, -1):
        with pytest.raises(ValueError, match="k: expected an integer of at least 1"):
            tacit.acquire(model, X, k)
    with pytest.raises(ValueError, match="k: expected at most 40, the size of the pool; received"):
        tacit.acquire(model, X, 41)
    with pytest.raises(ValueError, match="uncertainty: expected one of entropy, .* 'std'"):
        tacit.acquire(model, X, 4, by="std")
    with pytest.raises(ValueError, match="expected one of std, .*; received 'entropy'"):
        tacit.acquire(make_model(tacit.Gaussian()), X, 4, by="entropy")
    with pytest.raises(ValueError, match="power: expected a number above 0, received 0"):
        tacit.acquire(model, X, 4, power=0)
    with pytest.raises(ValueError, match="power: expected scores of at least 0, received .* by 'e"):
        tacit.acquire(model, X, 4, by="energy", power=1.0)
    with pytest.raises(ValueError, match="pool: expected a DataLoader in the order .* RandomSamp"):
        tacit.acquire(model, DataLoader(X, batch_size=4, shuffle=True), 4)
    with pytest.raises(ValueError, match="two dimensions that may be the class dimension"):
        tacit.acquire(Given(), torch.zeros(4, 3, 2), 1, likelihood=tacit.Categorical())
    with pytest.raises(ValueError, match="acquire: some predictions are NaN"):
        tacit.acquire(
            nn.Linear(4, 2).requires_grad_(False).apply(lambda m: m.weight.fill_(math.nan)),
            X, 4, likelihood=tacit.Categorical(),
        )  # fmt: skip


def test_a_batch_sampler_of_the_users_is_refused():
    class Shuffled(torch.utils.data.BatchSampler):
        pass

    data = torch.utils.data.TensorDataset(torch.randn(8, 2))
    sampler = Shuffled(torch.utils.data.RandomSampler(data), 4, drop_last=False)
    loader = torch.utils.data.DataLoader(data, batch_sampler=sampler)
    net = torch.nn.Linear(2, 2)
    with pytest.raises(ValueError, match="pool: expected a DataLoader in the order .* Shuffled"):
        tacit.acquire(net, loader, 2, likelihood=tacit.Categorical())
