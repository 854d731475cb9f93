import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, TensorDataset

import tacit


class Given(nn.Module):
    """A network whose outputs are its inputs."""

    def forward(self, x):
        return x


def data(n=400, classes=5, scale=1.0, seed=0, dtype=torch.float32):
    """Logits whose best temperature is about `scale`: labels are drawn from softmax(logits)."""
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(n, classes, generator=generator)
    labels = torch.multinomial(logits.softmax(-1), 1, generator=generator)[:, 0]
    return (scale * logits).to(dtype), labels


def calibrate(pair, *, class_dim=None, **kwargs):
    likelihood = tacit.Categorical(class_dim=class_dim)
    return tacit.calibrate(Given(), pair, likelihood=likelihood, **kwargs), likelihood


def test_it_finds_the_best_temperature():
    pair = data(scale=3.0)
    found, likelihood = calibrate(pair)
    assert likelihood.temperature.item() == pytest.approx(found.temperature)
    assert found.temperature == pytest.approx(3.0, rel=0.15)
    nlls = {
        T: F.cross_entropy(pair[0].double() / T, pair[1]).item()
        for T in [found.temperature * (1 + d) for d in (-0.01, 0.0, 0.01)]
    }
    assert min(nlls, key=nlls.get) == found.temperature
    assert found.nll == pytest.approx(nlls[found.temperature])
    assert found.nll_before == pytest.approx(F.cross_entropy(pair[0].double(), pair[1]).item())
    assert found.examples == 400


@pytest.mark.parametrize("scale", [0.02, 0.2, 1.0, 50.0])
@pytest.mark.parametrize("n", [10, 400])
def test_the_temperature_is_bounded_and_never_worse(scale, n):
    pair = data(n=n, scale=scale)
    found, _ = calibrate(pair)
    assert found.nll <= found.nll_before
    assert 0.01 <= found.temperature <= 100
    if n == 400:
        assert found.temperature == pytest.approx(scale, rel=0.2)


@pytest.mark.parametrize("shape", [(400,), (400, 1), (200, 2)])
def test_it_finds_the_temperature_of_binary_targets(shape):
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(400, generator=generator)
    answers = (torch.rand(400, generator=generator) < logits.sigmoid()).long()
    likelihood = tacit.Bernoulli()
    pair = (3 * logits).reshape(shape), answers.reshape(shape)
    found = tacit.calibrate(Given(), pair, likelihood=likelihood)
    assert found.temperature == pytest.approx(3.0, rel=0.2)
    assert found.nll < found.nll_before
    nll = tacit.evaluate(Given(), pair, likelihood=likelihood)["nll"]
    assert nll == pytest.approx(found.nll, rel=1e-5)


def test_few_data_all_right_or_all_wrong_move_it_little():
    labels = torch.arange(4).repeat(5)
    logits = torch.eye(4).repeat(5, 1) * 3
    right, _ = calibrate((logits, labels))
    assert 0.3 < right.temperature < 0.6
    wrong, _ = calibrate((logits, (labels + 1) % 4))
    assert 5 < wrong.temperature < 50
    many, _ = calibrate((logits.repeat(1000, 1), labels.repeat(1000)))
    assert many.temperature < 0.3  # the prior matters less with more data


def test_a_temperature_at_its_bound_warns():
    labels = torch.arange(4).repeat(5000)
    with pytest.warns(UserWarning, match="the temperature is at its bound, 100"):
        found, _ = calibrate((torch.eye(4).repeat(5000, 1) * 100, (labels + 1) % 4))
    assert 90 < found.temperature < 101


def test_per_class_undoes_a_distortion_of_each_class():
    torch.manual_seed(0)
    true = torch.randn(20000, 3, dtype=torch.float64) * 2
    labels = torch.distributions.Categorical(logits=true).sample()
    scales, shift = torch.tensor([3.0, 1.0, 0.5]).double(), torch.tensor([0.0, 1.0, -2.0]).double()
    likelihood = tacit.Categorical()
    distorted = (true - shift) * scales
    one = tacit.calibrate(nn.Identity(), (distorted, labels), likelihood=likelihood)
    found = tacit.calibrate(
        nn.Identity(), (distorted, labels), likelihood=likelihood, per_class=True
    )
    assert found.nll < one.nll < one.nll_before
    optimum = F.cross_entropy(true, labels).item()
    assert found.nll == pytest.approx(optimum, abs=1e-3)
    assert found.nll <= optimum + 1e-9
    # Offsets are determined up to a constant.
    torch.testing.assert_close(likelihood.temperature, scales.float(), atol=0, rtol=0.1)
    offset = likelihood.offset - likelihood.offset[0]
    torch.testing.assert_close(offset, shift.float(), atol=0.15, rtol=0)
    likelihood.set_temperature(1.0)
    assert likelihood.offset == 0


def test_per_class_needs_examples_of_every_class():
    logits, labels = torch.randn(40, 3), torch.arange(40) % 2
    with pytest.raises(ValueError, match="the validation data have no examples of class 2"):
        tacit.calibrate(
            nn.Identity(), (logits, labels), likelihood=tacit.Categorical(), per_class=True
        )


def test_per_class_with_few_data_stays_near_the_single_temperature():
    torch.manual_seed(0)
    labels = torch.arange(30) % 10
    logits = torch.randn(30, 10) + 2 * F.one_hot(labels, 10)
    likelihood = tacit.Categorical()
    one = tacit.calibrate(nn.Identity(), (logits, labels), likelihood=likelihood)
    found = tacit.calibrate(nn.Identity(), (logits, labels), likelihood=likelihood, per_class=True)
    assert found.nll <= one.nll
    assert likelihood.offset.abs().max() < 2
    assert (likelihood.temperature / one.temperature).log().abs().max() < 1.5


def test_per_class_of_binary_targets_is_refused():
    with pytest.raises(ValueError, match="per_class: expected a Categorical likelihood"):
        tacit.calibrate(
            nn.Identity(), (torch.randn(8), torch.arange(8) % 2), likelihood=tacit.Bernoulli(),
            per_class=True,
        )  # fmt: skip


def test_data_of_a_single_class_give_a_moderate_temperature():
    found, _ = calibrate((torch.tensor([[1.0, 0.0]] * 6), torch.zeros(6, dtype=torch.long)))
    assert 0.1 < found.temperature < 1


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_it_finds_the_temperature_of_half_precision_logits(dtype):
    found, _ = calibrate(data(scale=3.0, dtype=dtype))
    assert found.temperature == pytest.approx(3.0, rel=0.2)


@pytest.mark.parametrize("averaging", ["log_probs", "probs", "logits"])
@pytest.mark.parametrize("scope", ["logits", "mean"])
def test_calibration_of_a_variational_model(scope, averaging):
    torch.manual_seed(0)
    x, labels = data(scale=3.0)
    model = tacit.variational(
        nn.Linear(5, 5),
        {"": tacit.LowRank(3, scale=0.2)},
        likelihood=tacit.Categorical(averaging=averaging),
    )
    with torch.no_grad():
        model.module.weight.copy_(torch.eye(5))
    generator = torch.Generator().manual_seed(0)
    found = tacit.calibrate(model, (x, labels), scope=scope, generator=generator)
    assert found.scope == model.likelihood.scope == scope
    assert found.nll <= found.nll_before
    assert found.temperature > 1.5
    # Predictions use the temperature.
    again = tacit.predict(model, x, generator=generator.manual_seed(0)).scores(labels)
    assert again["nll"] == pytest.approx(found.nll, rel=1e-4)


@pytest.mark.parametrize("kind", ["pair", "column", "loader", "dataset"])
def test_it_takes_exactly_one_pass_over_any_data(kind):
    x, y = data()
    seen = []

    class Counted(Dataset):
        def __len__(self):
            return len(x)

        def __getitem__(self, i):
            seen.append(i)
            return x[i], y[i]

    source = {
        "pair": (x.numpy(), y.numpy()),
        "column": (x, y[:, None]),
        "loader": DataLoader(TensorDataset(x, y), batch_size=64),
        "dataset": Counted(),
    }[kind]
    calls = []

    class Watched(Given):
        def forward(self, x):
            calls.append(len(x))
            return x

    likelihood = tacit.Categorical()
    found = tacit.calibrate(Watched(), source, likelihood=likelihood, batch_size=128)
    assert sum(calls) == 400
    assert found.temperature == pytest.approx(calibrate((x, y))[0].temperature)
    if kind == "dataset":
        assert sorted(seen) == list(range(400))


def test_bad_input_is_refused():
    x, y = data(n=5)
    with pytest.raises(TypeError, match="temperatures are for Categorical and Bernoulli"):
        tacit.calibrate(Given(), (x, y), likelihood=tacit.Gaussian())
    for pair, match in (
        ((x, y[:3]), "one target for each input"),
        ((x[:, :2], torch.zeros(5, 3, dtype=torch.long)), "don't fit"),
        ((x * math.nan, y), "validation: some inputs are not finite"),
        ((x, y + 5), "label . is out of range"),
    ):
        with pytest.raises(ValueError, match=match):
            calibrate(pair)

    class Broken(Given):
        def forward(self, x):
            return x / 0

    with pytest.raises(ValueError, match="outputs are not finite"):
        tacit.calibrate(Broken(), (x, y), likelihood=tacit.Categorical())
    with pytest.raises(ValueError, match="scope: expected logits or mean"):
        calibrate((x, y), scope="all")


@pytest.mark.parametrize("shape", [(200, 3), (150, 4), (40, 5, 3)], ids=["D = C", "D != C", "2-D"])
def test_several_labels_per_example_equal_the_flattened_problem(shape):
    torch.manual_seed(0)
    logits = 4 * torch.randn(*shape, 3)
    labels = torch.distributions.Categorical(logits=logits / 4).sample()
    found, _ = calibrate((logits, labels), class_dim=-1)
    expected, _ = calibrate((logits.reshape(-1, 3), labels.flatten()))
    assert found == expected
    second, _ = calibrate((logits.movedim(-1, 1), labels), class_dim=1)
    assert second == expected
    assert found.temperature == pytest.approx(4.0, rel=0.2)
    each, likelihood = calibrate((logits.movedim(-1, 1), labels), per_class=True, class_dim=1)
    flat, reference = calibrate((logits.reshape(-1, 3), labels.flatten()), per_class=True)
    assert each.nll == pytest.approx(flat.nll)
    torch.testing.assert_close(likelihood.temperature, reference.temperature)


@pytest.mark.parametrize("shape", [(400,), (200, 2)])
def test_it_finds_the_temperature_of_soft_binary_targets(shape):
    logits = 2 * torch.randn(shape, generator=torch.Generator().manual_seed(0))
    pair, likelihood = (3 * logits, logits.sigmoid()), tacit.Bernoulli()
    found = tacit.calibrate(Given(), pair, likelihood=likelihood)
    assert found.temperature == pytest.approx(3.0, rel=0.02)
    before = F.binary_cross_entropy_with_logits(pair[0].double(), pair[1].double()).item()
    assert found.nll_before == pytest.approx(before)
    scores = tacit.evaluate(Given(), pair, likelihood=likelihood)
    assert scores["nll"] == pytest.approx(found.nll, rel=1e-5)


def test_binary_targets_out_of_range_are_refused():
    with pytest.raises(ValueError, match="Bernoulli: target 2.0 is out of range"):
        tacit.calibrate(
            Given(), (torch.zeros(3), torch.tensor([0.0, 1.0, 2.0])), likelihood=tacit.Bernoulli()
        )
