import itertools

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import tacit
from nets import generator, mlp
from tacit import Relative, theory
from tacit.calling.moments import output_moments
from tacit.testing import CovarianceSuite
from tacit.theory import Normal
from tacit.weights.divergence import kl, squared_wasserstein


class TestRelative(CovarianceSuite):
    def covariances(self, shapes):
        if all(len(shape) < 2 for shape in shapes.values()):
            return []
        shape = next(iter(shapes.values()))
        grouped = [Relative(groups=2)] if shape[0] % 2 == 0 else []
        return [Relative(), Relative(axis=0), *grouped]

    def reference(self, covariance, factors, shapes):
        """S has one column per unit, with the entries of the weight that leave the unit."""
        name = next(iter(shapes))
        rows = list(itertools.product(*map(range, shapes[name])))
        units = [unit_of(covariance, shapes[name], row) for row in rows]
        same = torch.tensor([[i == j for j in units] for i in units])
        entries = factors[name].flatten()
        rest = sum(shape.numel() for shape in shapes.values()) - len(rows)
        return nn.functional.pad(entries[:, None] * entries * same, (0, rest, 0, rest))


def unit_of(covariance, shape, index):
    """Return the input unit of an entry of a weight."""
    if covariance.axis == 0:
        return index[0]
    group = index[0] // (shape[0] // covariance.groups)
    return group * shape[1] + index[1]


LAYERS = {
    "linear": lambda: nn.Linear(5, 3),
    "convolution": lambda: nn.Conv2d(3, 2, (2, 1)),
    "grouped": lambda: nn.Conv1d(6, 4, 2, groups=2),
    "depthwise": lambda: nn.Conv2d(3, 6, 2, groups=3),
    "transposed": lambda: nn.ConvTranspose2d(2, 3, 2),
    "grouped transposed": lambda: nn.ConvTranspose1d(4, 6, 2, groups=2),
    "embedding": lambda: nn.Embedding(4, 3),
}


def make_model(layer):
    torch.manual_seed(0)
    model = tacit.variational(LAYERS[layer]().double(), {"": Relative()})
    with torch.no_grad():
        model.factors.weight.uniform_(0.1, 1.0)
    return model


@pytest.mark.parametrize("layer", LAYERS)
def test_the_covariance_has_a_block_s2_m_mT_for_each_input_unit(layer):
    model = make_model(layer)
    own, m, s = model.layers[0].covariance, model.module.weight, model.factors.weight
    units = getattr(model.module, "in_channels", getattr(model.module, "in_features", 3))
    assert s.shape == (units,)
    indices = list(itertools.product(*map(range, m.shape)))
    P = sum(parameter.numel() for parameter in model.module.parameters())
    expected = torch.zeros(P, P, dtype=torch.float64)
    for (a, i), (b, j) in itertools.product(enumerate(indices), repeat=2):
        if (unit := unit_of(own, m.shape, i)) == unit_of(own, m.shape, j):
            expected[a, b] = s[unit] ** 2 * m[i] * m[j]
    assert_close(model.distributions[""].dense_covariance(), expected)


@pytest.mark.parametrize("layer", [name for name in LAYERS if name != "embedding"])
def test_weights_with_noise_are_noise_in_the_inputs_of_the_layer(layer):
    # w = mean (1 + s z) applied to x is the layer with the mean, applied to x (1 + s z).
    model = make_model(layer)
    distribution, net = model.distributions[""], model.module
    z = distribution.draw_noise(generator=generator())
    shape = (2, len(z), *[5] * (net.weight.ndim - 2))
    x = torch.randn(shape, dtype=torch.float64)
    factor = (1 + model.factors.weight * z).view(-1, *[1] * (net.weight.ndim - 2))
    assert_close(model(x, weights=distribution.weights(z)), net(x * factor))


@pytest.mark.parametrize("layer", LAYERS)
def test_the_wasserstein_distance_agrees_with_the_reference_in_theory(layer):
    model = make_model(layer)
    prior = model.prior()
    assert squared_wasserstein(model, prior)[""].item() == pytest.approx(0, abs=1e-12)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.5 * torch.randn_like(parameter)
    q, p = (
        Normal(d.dense_mean(), d.dense_factor())
        for d in (model.distributions[""], prior.distributions[""])
    )
    ours = squared_wasserstein(model, prior)[""]
    assert ours.item() == pytest.approx(theory.squared_wasserstein(q, p), rel=1e-6)
    assert all(g.isfinite().all() for g in torch.autograd.grad(ours, list(model.parameters())))


def test_the_kl_divergence_is_refused():
    model = make_model("linear")
    with pytest.raises(ValueError, match=r"KL: infinite, because the covariance of Relative\("):
        kl(model, model.prior())


def test_output_moments_are_those_of_samples():
    model = tacit.variational(mlp(4, 6, 3).double(), {"3": Relative(0.5)}).eval()
    x = torch.randn(5, 4, dtype=torch.float64)
    mean, variance = output_moments(model, x)
    samples = model(x, samples=20_000, generator=generator())
    error = samples.std(0) / 20_000**0.5
    assert ((samples.mean(0) - mean).abs() <= 5 * error).all()
    squares = (samples - mean).square()
    assert ((squares.mean(0) - variance).abs() <= 5 * squares.std(0) / 20_000**0.5).all()


def factor_rates(model, optimizer="sgd", **settings):
    groups = model.param_groups(lr=0.1, optimizer=optimizer, **settings)
    rates = {id(p): group["lr"] for group in groups for p in group["params"]}
    return [rates[id(factor)] for factor in model.factors.parameters()]


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_factors_train_at_their_speed_times_the_base_rate(optimizer):
    where = {"0": Relative(), "3": Relative(speed=0.5)}
    model = tacit.variational(mlp(4, 8, 3), where)
    assert factor_rates(model, optimizer) == pytest.approx([0.001, 0.05])
    assert factor_rates(model, optimizer, factor_speed=2.0) == pytest.approx([0.2, 0.2])


def test_factor_speed_also_scales_the_rates_of_other_structures():
    model = tacit.variational(mlp(4, 8, 3), {"0": tacit.LowRank(4), "3": Relative()})
    assert factor_rates(model) == pytest.approx([0.025, 0.025, 0.001])
    assert factor_rates(model, factor_speed=0.1) == pytest.approx([0.0025, 0.0025, 0.01])


def test_under_mup_the_rate_of_sgd_grows_with_the_inputs_as_that_of_a_bias_does():
    def rates(width, optimizer):
        net = mlp(4, width, width, 3)
        parametrization = tacit.MaximalUpdate(base=mlp(4, 64, 64, 3))
        model = tacit.variational(net, {"*": Relative()}, parametrization=parametrization)
        return factor_rates(model, optimizer)

    narrow, wide = rates(64, "sgd"), rates(256, "sgd")
    assert [b / a for a, b in zip(narrow, wide, strict=True)] == pytest.approx([1, 4, 4])
    assert rates(64, "adam") == pytest.approx(rates(256, "adam"))


@pytest.mark.parametrize("speed", [-1.0, float("nan")])
def test_a_negative_factor_speed_is_refused(speed):
    model = tacit.variational(mlp(4, 3), {"0": Relative()})
    with pytest.raises(ValueError, match="factor_speed: expected a number of at least 0"):
        model.param_groups(lr=0.1, factor_speed=speed)


def test_factor_speed_zero_keeps_the_prior_in_sgd_and_fit():
    x, y = torch.randn(32, 4), torch.randint(3, (32,))
    model = tacit.variational(mlp(4, 8, 3), {"*": Relative()}, likelihood=tacit.Categorical())
    before = [parameter.detach().clone() for parameter in model.parameters()]
    optimizer = tacit.SGD(model, lr=0.1, factor_speed=0.0)
    model(x).square().sum().backward()
    optimizer.step()
    tacit.fit(model, (x, y), epochs=1, lr=0.1, factor_speed=0.0)
    unchanged = [torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True)]
    assert unchanged == [False] * 4 + [True] * 2


def test_describe_shows_one_factor_per_unit():
    model = tacit.variational(mlp(4, 8, 3), {"*": Relative(0.5)})
    rows = {row.name: row for row in model.scaling_rows()}
    assert rows["factors.3.weight"].shape == (8,)
    assert rows["factors.3.weight"].std == 0.5
    assert "factors.3.bias" not in rows
    assert "factors.3.weight" in str(tacit.describe(model))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.down = nn.Conv2d(2, 4, 2, groups=2)
        self.up = nn.ConvTranspose2d(4, 2, 2, groups=2)

    def forward(self, x):
        return self.up(self.down(x).relu())


def test_saved_models_keep_axis_groups_and_functions(tmp_path):
    model = tacit.variational(Net(), {"*": Relative(0.4, speed=0.1)})
    tacit.save(model, tmp_path / "model")
    loaded = tacit.load(tmp_path / "model", Net())
    settings = [layer.covariance for layer in loaded.layers]
    assert settings == [Relative(0.4, 0.1, axis=1, groups=2), Relative(0.4, 0.1, axis=0)]
    assert loaded.draws == "each"
    x = torch.randn(3, 2, 5, 5)
    ours, theirs = (m(x, samples=3, generator=generator()) for m in (model, loaded))
    assert torch.equal(ours, theirs)


def test_a_layer_without_a_matrix_is_refused():
    with pytest.raises(ValueError, match=r"layer '1': Relative: expected a weight of two dimensio"):
        tacit.variational(nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2)), {"*": Relative()})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"scale": 0.0}, r"Relative\(scale\): expected a number above 0"),
        ({"speed": -1.0}, r"Relative\(speed\): expected a number of at least 0"),
        ({"groups": 0}, r"Relative\(groups\): expected an integer of at least 1"),
        ({"axis": 2}, r"Relative\(axis\): expected 0 or 1, received 2"),
    ],
)
def test_bad_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        Relative(**settings)


def test_groups_that_do_not_divide_the_outputs_are_refused():
    with pytest.raises(ValueError, match="groups that divides the 5 outputs of weight, received 3"):
        tacit.variational(nn.Linear(4, 5), {"": Relative(axis=1, groups=3)})
    own = nn.Linear(4, 5)
    own.groups = 3  # of something else
    with pytest.raises(ValueError, match="Set axis and groups of Relative"):
        tacit.variational(own, {"": Relative()})
    assert tacit.variational(own, {"": Relative(axis=1)})(torch.ones(2, 4)).shape == (2, 5)
