"""Every entry of the scaling tables, and agreement of the parametrizations where they coincide."""

import re

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close

import tacit
from nets import mlp
from tacit import Diagonal, FullRank, Kronecker, LowRank, LowRankPlusDiagonal
from tacit.scaling import Parametrization, optimizer_family

IN, WIDTH, BASE, OUT = 5, 64, 16, 3


def net(width=WIDTH):
    layers = (nn.Linear(IN, width), nn.ReLU(), nn.Linear(width, width), nn.LayerNorm(width))
    return nn.Sequential(*layers, nn.Linear(width, OUT))


# Table 3 of Tensor Programs V: variance, learning rate under SGD and under Adam.
TABLE_3 = {
    "0.weight": ("input", 1 / IN, WIDTH, 1.0),
    "0.bias": ("vector", 1.0, WIDTH, 1.0),
    "2.weight": ("hidden", 1 / WIDTH, 1.0, 1 / WIDTH),
    "2.bias": ("vector", 1.0, WIDTH, 1.0),
    "3.weight": ("vector", 1.0, WIDTH, 1.0),
    "3.bias": ("vector", 1.0, WIDTH, 1.0),
    "4.weight": ("output", 1 / WIDTH**2, 1 / WIDTH, 1 / WIDTH),
    "4.bias": ("scalar", 1.0, 1.0, 1.0),
}
RATIO = WIDTH / BASE
# Relative to a base: the standard parametrization at the base width, scaled as in the table.
RELATIVE = {
    "0.weight": ("input", 1 / IN, RATIO, 1.0),
    "0.bias": ("vector", 1 / IN, RATIO, 1.0),
    "2.weight": ("hidden", 1 / WIDTH, 1.0, 1 / RATIO),
    "2.bias": ("vector", 1 / BASE, RATIO, 1.0),
    "3.weight": ("vector", 1 / BASE, RATIO, 1.0),
    "3.bias": ("vector", 1 / BASE, RATIO, 1.0),
    "4.weight": ("output", 1 / BASE / RATIO**2, 1 / RATIO, 1 / RATIO),
    "4.bias": ("scalar", 1 / BASE, 1.0, 1.0),
}


@pytest.mark.parametrize(
    ("parametrization", "table"),
    [(tacit.MaximalUpdate(), TABLE_3), (tacit.MaximalUpdate(base=net(BASE)), RELATIVE)],
    ids=["without a base", "with a base"],
)
def test_maximal_update_matches_the_table(parametrization, table):
    tensors = parametrization.parameters_of(net())
    assert list(tensors) == list(table)
    for name, (role, variance, sgd, adam) in table.items():
        assert tensors[name].role == role, name
        assert parametrization.std(tensors[name]) ** 2 == pytest.approx(variance), name
        assert parametrization.learning_rate(tensors[name], "sgd") == pytest.approx(sgd), name
        for optimizer in ("adam", "AdamW"):
            given = parametrization.learning_rate(tensors[name], optimizer)
            assert given == pytest.approx(adam), name


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_standard_and_neural_tangent_match_their_formulas(optimizer):
    for name, tensor in tacit.Standard().parameters_of(net()).items():
        fan_in = tensor.fans.fan_in
        assert tacit.Standard().std(tensor) == pytest.approx(fan_in**-0.5)
        assert tacit.Standard().learning_rate(tensor, optimizer) == 1
        assert tacit.NeuralTangent().std(tensor) == pytest.approx(fan_in**-0.5)
        power = {"sgd": -1, "adam": -0.5}[optimizer] if "weight" in name and name[0] != "3" else 0
        given = tacit.NeuralTangent().learning_rate(tensor, optimizer)
        assert given == pytest.approx(fan_in**power), name


@pytest.mark.parametrize("structure", [LowRank(2), Diagonal(), Kronecker(2, 2), FullRank()])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_at_the_base_width_maximal_update_is_standard_to_the_last_bit(structure, optimizer):
    models = []
    for parametrization in (tacit.Standard(), tacit.MaximalUpdate(base=net(BASE))):
        plain = net(BASE)
        tacit.initialize(plain, parametrization, generator=torch.Generator().manual_seed(0))
        models.append(
            tacit.variational(
                plain,
                {"2": structure, "4": structure},
                parametrization=parametrization,
                generator=torch.Generator().manual_seed(1),
            )
        )
    first, second = (model.state_dict() for model in models)
    assert all(torch.equal(first[name], second[name]) for name in first)
    first, second = (
        [(group["name"], group["lr"]) for group in model.param_groups(0.1, optimizer)]
        for model in models
    )
    assert first == second


def test_neural_tangent_trains_like_a_network_with_its_forward_multiplier():
    """Lemma J.1: initialization and learning rate replace the multiplier exactly."""

    class Multiplied(nn.Module):
        def __init__(self, weights):
            super().__init__()
            self.weights = nn.ParameterList(weights)

        def forward(self, x):
            for i, weight in enumerate(self.weights):
                x = x @ weight.T * weight.shape[1] ** -0.5
                x = x.tanh() if i < 2 else x
            return x

    plain = nn.Sequential(
        nn.Linear(3, 32, bias=False), nn.Tanh(), nn.Linear(32, 32, bias=False), nn.Tanh(),
        nn.Linear(32, 1, bias=False),
    ).double()  # fmt: skip
    tacit.initialize(plain, tacit.NeuralTangent())
    weights = [layer.weight for layer in plain if isinstance(layer, nn.Linear)]
    explicit = Multiplied([w.detach() * w.shape[1] ** 0.5 for w in weights])
    groups = tacit.param_groups(plain, 0.5, parametrization=tacit.NeuralTangent())
    x, y = torch.randn(8, 3).double(), torch.randn(8, 1).double()
    optimizers = [
        torch.optim.SGD(groups, momentum=0.9),
        torch.optim.SGD(explicit.parameters(), lr=0.5, momentum=0.9),
    ]
    for _ in range(20):
        for model, optimizer in zip((plain, explicit), optimizers, strict=True):
            optimizer.zero_grad()
            F.mse_loss(model(x), y).backward()
            optimizer.step()
    assert_close(plain(x), explicit(x), atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("parametrization", [tacit.Standard(), tacit.NeuralTangent()], ids=str)
def test_outputs_have_the_same_scale_at_every_width(parametrization):
    x = torch.randn(64, IN)
    for width in (64, 256, 1024):
        plain = mlp(IN, width, width, OUT)
        tacit.initialize(plain, parametrization)
        assert 0.2 < plain(x).std() < 1.2


RANKS = {"sgd": lambda rank: 1 / rank, "adam": lambda rank: rank**-0.5}


@pytest.mark.parametrize("optimizer", RANKS)
@pytest.mark.parametrize("rank", [1, 4, 16])
@pytest.mark.parametrize(
    "parametrization", [tacit.Standard(), tacit.MaximalUpdate(), tacit.NeuralTangent()], ids=str
)
def test_factors_scale_with_the_rank(parametrization, rank, optimizer):
    where = {"2": LowRank(rank), "0": LowRankPlusDiagonal(rank), "4": Diagonal()}
    model = tacit.variational(net(), where, parametrization=parametrization)
    rates = {entry.name: entry.factor for entry in model.entries(optimizer)}
    by_rank = RANKS[optimizer](rank)
    for name in ("weight", "bias"):
        assert rates[f"factors.2.{name}"] == pytest.approx(rates[f"module.2.{name}"] * by_rank)
        assert rates[f"factors.0.{name}"] == pytest.approx(rates[f"module.0.{name}"] * by_rank)
        assert rates[f"factors.0.{name}_diagonal"] == rates[f"module.0.{name}"]
        assert rates[f"factors.4.{name}"] == rates[f"module.4.{name}"]
    assert model.factors.get_submodule("2").weight.std().item() == pytest.approx(
        parametrization.std(parametrization.parameters_of(net())["2.weight"]) * rank**-0.5, rel=0.15
    )


class TestRoles:
    def test_roles_are_inferred_by_position(self):
        module = nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 4), nn.Linear(4, 9))
        roles = {n: t.role for n, t in tacit.MaximalUpdate().parameters_of(module).items()}
        assert roles == {
            "0.weight": "input",
            "1.weight": "hidden",
            "1.bias": "vector",
            "2.weight": "output",
            "2.bias": "scalar",
        }

    def test_roles_can_be_set_explicitly(self):
        roles = {"2": "output", "4.weight": "hidden"}
        tensors = tacit.MaximalUpdate(roles=roles).parameters_of(net())
        assert tensors["2.weight"].role == "output"
        assert tensors["2.bias"].role == "vector"  # a layer's name stands for its weights
        assert tensors["4.weight"].role == "hidden"

    def test_a_pattern_without_a_match_is_refused(self):
        with pytest.raises(ValueError, match="roles: no parameter matches 'head'. Parameters: 0.w"):
            tacit.MaximalUpdate(roles={"head": "output"}).parameters_of(net())

    def test_an_unknown_role_is_refused(self):
        expected = re.escape("roles['4']: expected input, hidden, output, vector, scalar; received")
        with pytest.raises(ValueError, match=expected):
            tacit.MaximalUpdate(roles={"4": "readout"}).parameters_of(net())

    def test_a_base_of_another_architecture_is_refused(self):
        with pytest.raises(ValueError, match="only one of the two has: 3.bias, 3.weight, 4.bias"):
            tacit.MaximalUpdate(base=nn.Sequential(*list(net(BASE))[:3])).parameters_of(net())


@pytest.mark.parametrize("optimizer", ["lbfgs", "muon", None])
def test_an_optimizer_of_unknown_scaling_is_refused(optimizer):
    with pytest.raises(ValueError, match="How learning rates scale with width is known only"):
        tacit.param_groups(net(), 0.1, optimizer)
    with pytest.raises(ValueError, match="optimizer: expected one of sgd, asgd, adam"):
        optimizer_family(optimizer)


def test_other_types_are_refused_as_parametrization():
    with pytest.raises(TypeError, match=r"parametrization: expected tacit\.Standard\(\)"):
        tacit.variational(net(), parametrization="mup")
    with pytest.raises(TypeError, match="abstract"):
        Parametrization()
