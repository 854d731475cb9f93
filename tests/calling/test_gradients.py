"""Gradients of one draw against a dense reference, of the expected loss against closed forms."""

import pytest
import torch
from torch import nn
from torch.func import functional_call
from torch.nn import functional as F
from torch.testing import assert_close

import tacit
from nets import mlp
from tacit import Diagonal, FullRank, Kronecker, LowRank, LowRankPlusDiagonal, RankOneSum

STRUCTURES = [
    *(LowRank(3), FullRank(), Diagonal(), Kronecker(3, 2), LowRankPlusDiagonal(2)),
    RankOneSum(3),
]


def dense_factor(covariance, factors):
    """Assemble S of a layer with weight and bias by hand from its factors."""
    match covariance:
        case LowRank() | FullRank():
            return torch.cat([factors["weight"].flatten(1), factors["bias"]], dim=1).T
        case Diagonal():
            return torch.cat([factors["weight"].flatten(), factors["bias"]]).diag()
        case LowRankPlusDiagonal():
            low = torch.cat([factors["weight"].flatten(1), factors["bias"]], dim=1).T
            diagonal = [factors["weight_diagonal"].flatten(), factors["bias_diagonal"]]
            return torch.cat([low, torch.cat(diagonal).diag()], dim=1)
        case Kronecker():
            # W_ij = sum_rs B_ir Z_rs A_js: the rows of the weight, then the bias.
            B = factors["weight_output"].T
            weight, bias = factors["weight_input"], factors["bias_input"]
            of_weight = torch.einsum("ir,sj->ijrs", B, weight).flatten(2).flatten(0, 1)
            of_bias = torch.einsum("ir,s->irs", B, bias).flatten(1)
            return torch.cat([of_weight, of_bias])
        case RankOneSum():
            B = factors["weight_output"].T
            of_weight = torch.einsum("ir,rj->ijr", B, factors["weight_input"]).flatten(0, 1)
            return torch.cat([of_weight, B * factors["bias_input"]])


def gradients(loss, model):
    found = torch.autograd.grad(loss, list(model.parameters()))
    return dict(zip([name for name, _ in model.named_parameters()], found, strict=True))


@pytest.mark.parametrize("covariance", STRUCTURES, ids=lambda c: type(c).__name__)
def test_one_draw_equals_autograd_through_a_dense_weight(covariance):
    """The reference uses w = mean + S z with a hand-made dense S in hand-written layers."""
    model = tacit.variational(mlp(4, 5, 3).double(), {"0": covariance, "3": covariance})
    x, y = torch.randn(7, 4, dtype=torch.float64), torch.randint(3, (7,))
    seed = torch.Generator().manual_seed(5)
    ours = gradients(F.cross_entropy(model(x, draws=1, generator=seed), y), model)

    seed = torch.Generator().manual_seed(5)
    layers = []
    for distribution in model.distributions.values():
        K = distribution.covariance.noise_size(distribution.shapes)
        z = torch.randn(K, dtype=torch.float64, generator=seed)
        S = dense_factor(covariance, distribution.factors)
        w = torch.cat([t.flatten() for t in distribution.mean.values()]) + S @ z
        out, fan_in = distribution.mean["weight"].shape
        layers.append((w[: out * fan_in].reshape(out, fan_in), w[out * fan_in :]))
    hidden = torch.tanh(x @ layers[0][0].T + layers[0][1])
    theirs = gradients(F.cross_entropy(hidden @ layers[1][0].T + layers[1][1], y), model)
    assert ours.keys() == theirs.keys()
    for name in ours:
        assert_close(ours[name], theirs[name])


class TestQuadraticLoss:
    """mean_n (x_n^T w - y_n)^2 / 2 for w ~ N(mu, S S^T), whose expected gradient is known.

    E[loss] = mean (x^T mu - y)^2 / 2 + mean |S^T x|^2 / 2, hence the gradients
    H mu - X^T y / N and H S with H = X^T X / N.
    """

    B, P, R = 16, 5, 3

    @pytest.fixture
    def problem(self):
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(self.B, self.P, dtype=torch.float64, generator=generator)
        y = torch.randn(self.B, 1, dtype=torch.float64, generator=generator)
        net = nn.Linear(self.P, 1, bias=False).double()
        return tacit.variational(net, {"": LowRank(self.R)}), x, y

    def expected(self, model, x, y):
        mu, S = model.module.weight[0], model.factors.weight[:, 0].T  # (P,), (P, R)
        H = x.T @ x / len(x)
        return {
            "module.weight": (H @ mu - (x.T @ y)[:, 0] / len(x))[None],
            "factors.weight": (H @ S).T[:, None],
        }

    def sampled(self, model, x, y, n=4000, **kwargs):
        """Gradients of n independent estimates of the expected loss, stacked."""
        parameters = {name: value.detach() for name, value in model.named_parameters()}

        def loss(parameters):
            return (functional_call(model, parameters, (x,), kwargs) - y).square().mean() / 2

        each = torch.func.vmap(lambda _: torch.func.grad(loss)(parameters), randomness="different")
        return each(torch.zeros(n))

    @pytest.mark.parametrize(
        "kwargs", [{}, {"samples": 4}, {"draws": 4}, {"draws": 5}, {"draws": 16}], ids=str
    )
    def test_the_gradient_is_unbiased(self, problem, kwargs):
        model, x, y = problem
        estimates = self.sampled(model, x, y, **kwargs)
        for name, expected in self.expected(model, x, y).items():
            error = estimates[name].std(0) / len(estimates[name]) ** 0.5
            assert ((estimates[name].mean(0) - expected).abs() < 5 * error).all(), name

    def test_draws_and_samples_reduce_the_variance_of_the_gradient(self, problem):
        """Groups are independent: K draws have 1/K of the groups' mean variance.

        Measured here, relative to one draw per batch: 0.22 for 8 draws, 0.125 for 8 samples.
        """
        model, _, _ = problem
        x = torch.randn(64, self.P, dtype=torch.float64)
        y = torch.randn(64, 1, dtype=torch.float64)

        def total_variance(x, y, **kwargs):
            estimates = self.sampled(model, x, y, n=8000, **kwargs)
            return sum(float(gradient.var(0).sum()) for gradient in estimates.values())

        one, samples = total_variance(x, y), total_variance(x, y, samples=8)
        draws = total_variance(x, y, draws=8)
        groups = zip(x.split(8), y.split(8), strict=True)
        expected = sum(total_variance(*group) for group in groups) / 64
        # A variance estimated from 8000 gradients has a relative standard deviation of 2.4 %.
        assert draws == pytest.approx(expected, rel=0.15)
        assert samples == pytest.approx(one / 8, rel=0.15)
        assert draws < 0.3 * one


def test_with_frozen_means_only_the_factors_are_trained():
    model = tacit.variational(mlp(4, 8, 3))
    for parameter in model.module.parameters():
        parameter.requires_grad_(False)
    model(torch.randn(5, 4)).sum().backward()
    assert all(parameter.grad is None for parameter in model.module.parameters())
    assert all(factor.grad is not None for factor in model.factors.parameters())
    optimizer = torch.optim.SGD(model.param_groups(lr=0.1), momentum=0.9)
    optimizer.step()


def test_means_can_be_frozen_layer_by_layer():
    model = tacit.variational(mlp(4, 8, 3))
    model.module[0].requires_grad_(False)
    model(torch.randn(5, 4)).sum().backward()
    assert model.module[0].weight.grad is None
    assert model.module[3].weight.grad is not None


def test_accumulated_gradients_are_the_sum_over_calls():
    model = tacit.variational(mlp(4, 8, 3).double())
    x = torch.randn(8, 4, dtype=torch.float64)
    whole = gradients(
        sum(model(part, generator=torch.Generator().manual_seed(i)).sum()
            for i, part in enumerate(x.split(4))),
        model,
    )  # fmt: skip
    for i, part in enumerate(x.split(4)):
        model(part, generator=torch.Generator().manual_seed(i)).sum().backward()
    for name, parameter in model.named_parameters():
        assert_close(parameter.grad, whole[name])


def test_torch_func_computes_per_example_gradients():
    model = tacit.variational(mlp(4, 8, 3))
    parameters = {name: value.detach() for name, value in model.named_parameters()}
    x, y = torch.randn(6, 4), torch.randint(3, (6,))

    def loss(parameters, x, y):
        return F.cross_entropy(functional_call(model, parameters, (x[None],)), y[None])

    each = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0), randomness="different")
    for name, gradient in each(parameters, x, y).items():
        assert gradient.shape == (6, *parameters[name].shape)
        assert gradient.isfinite().all()


def test_gradients_reach_means_and_factors_through_samples_and_weights():
    model = tacit.variational(mlp(4, 8, 3))
    x = torch.randn(5, 4)
    for output in (model(x, samples=3), model(x, weights=model.sample(3)), model(x, draws=2)):
        model.zero_grad()
        output.square().sum().backward()
        assert all(parameter.grad.abs().sum() > 0 for parameter in model.parameters())


@pytest.mark.parametrize("kwargs", [{"samples": 3}, {"draws": 3}], ids=str)
def test_attention_has_gradients_in_eval_mode(kwargs):
    """Its fast path in eval mode has no derivative, and does not notice that one is needed."""
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    net = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
    model = tacit.variational(net, {"*": LowRank(2)}).eval()
    x = torch.linspace(-1, 1, 96).reshape(4, 3, 8)
    model(x, **kwargs).square().sum().backward()
    assert all(factor.grad.isfinite().all() for factor in model.factors.parameters())
    assert model.call_notes == [] or "draws" in kwargs
    assert torch.backends.mha.get_fastpath_enabled()
