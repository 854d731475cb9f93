import copy

import pytest
import torch
from torch import nn

import tacit
from nets import Tied, mlp
from tacit import Kronecker, LowRank


def net(width=32):
    return nn.Sequential(
        nn.Linear(4, width), nn.LayerNorm(width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(),
        nn.Linear(width, 2),
    )  # fmt: skip


class TestInitialize:
    def test_redraws_weights_and_zeroes_biases_in_place(self):
        plain = net(256)
        weight = plain[3].weight
        tacit.initialize(plain, tacit.MaximalUpdate(), generator=torch.Generator().manual_seed(0))
        assert plain[3].weight is weight
        assert weight.std().item() == pytest.approx(1 / 16, rel=0.02)
        assert plain[5].weight.std().item() == pytest.approx(1 / 256, rel=0.1)
        assert not plain[3].bias.any()
        assert torch.equal(plain[1].weight, torch.ones(256))

    def test_only_restricts_the_layers(self):
        plain = net()
        before = copy.deepcopy(plain.state_dict())
        tacit.initialize(plain, only=["3", "5.weight"])
        changed = {k for k, v in plain.state_dict().items() if not torch.equal(before[k], v)}
        assert changed == {"3.weight", "3.bias", "5.weight"}
        with pytest.raises(ValueError, match="only: no parameter matches 'head'. Parameters: 0.w"):
            tacit.initialize(plain, only=["head"])

    def test_a_generator_makes_it_reproducible(self):
        first, second = net(), net()
        for plain in (first, second):
            tacit.initialize(plain, generator=torch.Generator().manual_seed(0))
        assert all(
            torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True)
        )

    def test_a_variational_model_is_refused(self):
        with pytest.raises(TypeError, match="initialize: expected a plain network"):
            tacit.initialize(tacit.variational(net()))

    def test_variational_keeps_the_means(self):
        plain = net()
        before = copy.deepcopy(plain.state_dict())
        tacit.variational(plain, parametrization=tacit.MaximalUpdate())
        assert all(torch.equal(before[key], value) for key, value in plain.state_dict().items())


@pytest.mark.parametrize("optimizer", ["SGD", "Adam", "AdamW", "RMSprop"])
@pytest.mark.parametrize("variational", [False, True])
class TestParamGroups:
    def make(self, variational):
        parametrization = tacit.MaximalUpdate(base=net(8))
        if not variational:
            return net(), {"parametrization": parametrization}
        where = {"3": LowRank(3), "5": Kronecker(2, 2), "1": LowRank(2)}
        return tacit.variational(net(), where, parametrization=parametrization), {}

    def test_every_parameter_is_in_exactly_one_named_group(self, optimizer, variational):
        model, kwargs = self.make(variational)
        groups = tacit.param_groups(model, 0.1, optimizer.lower(), **kwargs)
        ids = [id(parameter) for group in groups for parameter in group["params"]]
        assert sorted(ids) == sorted(map(id, model.parameters()))
        assert len({group["name"] for group in groups}) == len(groups)

    def test_schedules_keep_ratios_and_every_parameter_trains(self, optimizer, variational):
        model, kwargs = self.make(variational)
        groups = tacit.param_groups(model, 1e-3, optimizer.lower(), **kwargs)
        before = copy.deepcopy(model.state_dict())
        stepper = getattr(torch.optim, optimizer)(groups)
        start = [group["lr"] for group in stepper.param_groups]
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(stepper, 10)
        for _ in range(3):
            stepper.zero_grad()
            model(torch.randn(8, 4)).square().mean().backward()
            stepper.step()
            schedule.step()
        now = [group["lr"] for group in stepper.param_groups]
        assert now[0] < start[0]
        assert [a / b for a, b in zip(now, start, strict=True)] == pytest.approx(
            [now[0] / start[0]] * len(now)
        )
        still = [n for n, v in model.named_parameters() if torch.equal(before[n], v)]
        assert still == []

    def test_optimizer_state_can_be_saved_and_loaded(self, optimizer, variational):
        model, kwargs = self.make(variational)
        constructor = getattr(torch.optim, optimizer)
        first, second = (
            constructor(tacit.param_groups(model, lr, optimizer.lower(), **kwargs))
            for lr in (0.1, 0.2)
        )
        model(torch.randn(8, 4)).sum().backward()
        first.step()
        second.load_state_dict(first.state_dict())
        assert [g["lr"] for g in second.param_groups] == [g["lr"] for g in first.param_groups]
        assert [g["name"] for g in second.param_groups] == [g["name"] for g in first.param_groups]

    def test_weight_decay_shrinks_all_means_equally_and_no_factors(self, optimizer, variational):
        model, kwargs = self.make(variational)
        groups = tacit.param_groups(model, 0.1, optimizer.lower(), weight_decay=1e-3, **kwargs)
        for group in groups:
            expected = 1e-4 if group["name"].startswith("means") else 0.0
            assert group["lr"] * group["weight_decay"] == pytest.approx(expected)


def test_a_second_parametrization_of_a_model_is_refused():
    with pytest.raises(ValueError, match="a variational model has its own parametrization"):
        tacit.param_groups(tacit.variational(net()), 0.1, parametrization=tacit.Standard())


@pytest.mark.parametrize("weight_decay", [-1.0, float("nan")])
def test_negative_or_nan_weight_decay_is_refused(weight_decay):
    with pytest.raises(ValueError, match="weight_decay: expected a number above 0"):
        tacit.param_groups(net(), 0.1, weight_decay=weight_decay)


class TestDescribe:
    def test_rows_and_table_of_a_plain_network(self):
        rows = tacit.describe(net(), tacit.MaximalUpdate())
        by_name = {row.name: row for row in rows}
        assert list(by_name) == [name for name, _ in net().named_parameters()]
        assert by_name["5.weight"].role == "output"
        assert by_name["5.weight"].std == pytest.approx(1 / 32)
        assert (by_name["0.weight"].sgd, by_name["0.weight"].adam) == (32, 1)
        assert all(word in str(rows) for word in ("5.weight", "output", "fan in", "lr SGD"))
        assert repr(rows) == str(rows)

    def test_a_printed_table_is_printed_once(self, capsys):
        rows = tacit.describe(net())
        assert capsys.readouterr().out == ""
        print(rows)  # noqa: T201 - what users do
        assert capsys.readouterr().out.count("0.weight") == 1

    def test_names_with_brackets_are_shown_as_they_are(self):
        assert "a[bold].weight" in str(tacit.describe(nn.ModuleDict({"a[bold]": nn.Linear(2, 2)})))

    def test_rows_of_a_variational_model(self):
        where = {"3": LowRank(4), "5": Kronecker(2, 2, scale=0.5)}
        model = tacit.variational(net(), where)
        rows = {row.name: row for row in tacit.describe(model)}
        assert set(rows) == {name for name, _ in model.named_parameters()}
        assert rows["factors.3.weight"].std == pytest.approx(32**-0.5 / 2)
        assert rows["factors.3.weight"].sgd == 1 / 4
        assert rows["factors.3.weight"].adam == 1 / 2
        assert rows["factors.5.weight_input"].std == pytest.approx(0.5 * 32**-0.5 * 2**-0.5)
        assert rows["factors.5.weight_output"].std == pytest.approx(2**-0.5)
        for name, parameter in model.named_parameters():
            assert rows[name].shape == tuple(parameter.shape)

    def test_single_layers_and_tied_layers_are_described(self):
        assert len(tacit.describe(tacit.variational(nn.Linear(3, 2)))) == 3
        assert len(tacit.describe(tacit.variational(nn.Linear(3, 2), rank=2))) == 4
        names = [
            row.name for row in tacit.describe(tacit.variational(Tied(), {"head": LowRank(2)}))
        ]
        assert "factors.head.weight" in names

    def test_standard_deviations_match_the_measured_ones(self):
        model = tacit.variational(
            mlp(50, 60, 70, 5), {"*": LowRank(6)}, parametrization=tacit.MaximalUpdate()
        )
        rows = {row.name: row.std for row in tacit.describe(model)}
        for layer in model.layers:
            name = f"factors.{layer.name}.weight"
            assert model.get_parameter(name).std().item() == pytest.approx(rows[name], rel=0.1)


class TestBadInput:
    @pytest.mark.parametrize(
        "call",
        [
            tacit.describe,
            tacit.initialize,
            lambda net, parametrization=None: tacit.param_groups(
                net, 0.1, parametrization=parametrization
            ),
        ],
        ids=["describe", "initialize", "param_groups"],
    )
    def test_networks_and_parametrizations(self, call):
        with pytest.raises(TypeError, match=r"expected a network \(an nn.Module\), received 5"):
            call(5)
        with pytest.raises(TypeError, match="expected a parametrization, .* received 'mup'"):
            call(nn.Linear(2, 2), "mup")

    def test_roles_and_names(self):
        with pytest.raises(TypeError, match="roles: expected a dict"):
            tacit.describe(nn.Linear(2, 2), tacit.MaximalUpdate(roles=5))
        with pytest.raises(TypeError, match="only: expected names or globs of layers, received 5"):
            tacit.initialize(nn.Linear(2, 2), only=5)
        with pytest.raises(ValueError, match="describe: a variational model has its own"):
            tacit.describe(tacit.variational(nn.Linear(2, 2)), tacit.Standard())

    def test_a_name_with_a_bracket_is_no_glob(self):
        net = nn.ModuleDict({"a[0]": nn.Linear(2, 2), "a0": nn.Linear(2, 2)})
        other = net["a0"].weight.clone()
        tacit.initialize(net, only=["a[0]"])
        assert torch.equal(net["a0"].weight, other)
        assert (net["a[0]"].bias == 0).all()
        rows = tacit.describe(net, tacit.MaximalUpdate(roles={"a[0]": "output"}))
        assert {row.name: row.role for row in rows}["a[0].weight"] == "output"
