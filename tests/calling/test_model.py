import copy
import pickle
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint

import tacit
from nets import Bare, Branching, Output, Structured, Tied, TwoInputs, cnn, force_loop, mlp
from tacit import Diagonal, FullRank, Kronecker, LowRank, LowRankPlusDiagonal
from tacit.calling import Variational


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.fixture
def model():
    return tacit.variational(mlp(4, 8, 3), {"0": LowRank(3), "3": LowRank(2)})


X = torch.linspace(-1, 1, 24).reshape(6, 4)


class TestModes:
    def test_train_mode_draws_afresh_and_keeps_the_shape(self, model):
        first, second = model(X), model(X)
        assert first.shape == (6, 3)
        assert not torch.equal(first, second)

    def test_train_mode_is_one_function_for_the_whole_batch(self, model):
        row = X[:1].repeat(5, 1)
        output = model(row)
        assert torch.equal(output, output[:1].expand(5, 3))

    def test_eval_mode_is_the_module_to_the_last_bit(self, model):
        model.eval()
        assert torch.equal(model(X), model.module(X))
        assert torch.equal(model(X), model(X))

    @pytest.mark.parametrize("training", [True, False])
    def test_samples_lead_in_either_mode_and_differ(self, model, training):
        output = model.train(training)(X, samples=8)
        assert output.shape == (8, 6, 3)
        assert len({tuple(row.flatten().tolist()) for row in output}) == 8

    def test_one_sample_keeps_the_leading_dimension(self, model):
        assert model(X, samples=1).shape == (1, 6, 3)

    @pytest.mark.parametrize("kwargs", [{}, {"samples": 3}, {"draws": 2}])
    def test_a_generator_reproduces(self, model, kwargs):
        first, second, other = (model(X, generator=generator(s), **kwargs) for s in (5, 5, 6))
        assert torch.equal(first, second)
        assert not torch.equal(first, other)

    def test_the_mean_over_many_samples_of_a_linear_model_is_its_mean(self):
        model = tacit.variational(nn.Linear(4, 2).double())
        n = 20_000
        output = model(X.double(), samples=n, generator=generator())
        error = output.std(0) / n**0.5
        assert ((output.mean(0) - model.module(X.double())).abs() < 5 * error).all()

    def test_zero_factors_are_the_plain_network(self, model):
        for factor in model.factors.parameters():
            nn.init.zeros_(factor)
        assert torch.equal(model(X), model.module(X))
        assert_close(model(X, samples=2), model.module(X).expand(2, 6, 3))

    @pytest.mark.parametrize(
        "noise", [tacit.noise.Laplace(), tacit.noise.StudentT(5)], ids=["laplace", "student"]
    )
    def test_other_noise(self, noise):
        model = tacit.variational(mlp(4, 8, 3), noise=noise)
        gaussian = copy.deepcopy(model)
        gaussian.noise = tacit.noise.Gaussian()
        same, other = (m(X, samples=2, generator=generator()) for m in (model, gaussian))
        assert not torch.equal(same, other)
        assert torch.equal(same, model(X, samples=2, generator=generator()))


class TestSample:
    def test_names_and_shapes(self, model):
        for shape, leading in ((5, (5,)), ((2, 3), (2, 3)), ((), ())):
            sample = model.sample(shape)
            assert {name: tuple(t.shape) for name, t in sample.items()} == {
                "0.weight": (*leading, 8, 4),
                "0.bias": (*leading, 8),
                "3.weight": (*leading, 3, 8),
                "3.bias": (*leading, 3),
            }

    def test_weights_give_the_same_functions_on_other_inputs(self, model):
        weights = model.sample(5)
        together = model(X, weights=weights)
        assert together.shape == (5, 6, 3)
        assert torch.equal(together, model(X, weights=weights))
        assert_close(model(X[:2], weights=weights), together[:, :2])

    def test_samples_are_the_weights_of_the_same_generator(self, model):
        weights = model.sample(4, generator=generator(3))
        assert_close(model(X, weights=weights), model(X, samples=4, generator=generator(3)))

    def test_leading_shapes(self, model):
        weights = model.sample((2, 3))
        grid = model(X, weights=weights)
        assert grid.shape == (2, 3, 6, 3)
        one = {name: tensor[1, 2] for name, tensor in weights.items()}
        assert_close(model(X, weights=one), grid[1, 2])

    def test_every_covariance_at_once(self):
        where = {
            "0": LowRank(2),
            "3": Diagonal(),
            "6": Kronecker(2, 3),
            "9": LowRankPlusDiagonal(2),
            "12": FullRank(),
        }
        model = tacit.variational(mlp(4, 5, 5, 5, 5, 2), where)
        assert model(X, samples=3).shape == (3, 6, 2)
        assert model(X, draws=4).shape == (6, 2)

    def test_the_scale_of_a_bias_does_not_depend_on_how_it_is_named(self):
        for where in ({"": Diagonal()}, {"weight": Diagonal(), "bias": Diagonal()}):
            model = tacit.variational(nn.Linear(100, 4), where)
            assert_close(model.factors.bias, torch.full((4,), 0.1))

    def test_scale_multiplies(self):
        model = tacit.variational(nn.Linear(100, 4), {"": Diagonal(scale=0.5)})
        assert_close(model.factors.weight, torch.full((4, 100), 0.05))

    def test_standard_deviation_of_a_weight_does_not_depend_on_the_rank(self):
        for rank in (1, 4, 16, 64):
            model = tacit.variational(
                nn.Linear(100, 50), {"": LowRank(rank)}, generator=generator()
            )
            variance = model.sample(400)["weight"].var(0).mean()
            assert 0.008 < variance < 0.012, (rank, variance)  # 1 / fan_in = 0.01


class TestVectorized:
    """samples= under vmap, in chunks and in a loop are the same."""

    @pytest.mark.parametrize("chunk_size", [1, 2, 3, 7, 100])
    def test_chunks_change_nothing(self, model, chunk_size):
        whole = model(X, samples=7, generator=generator())
        assert_close(model(X, samples=7, chunk_size=chunk_size, generator=generator()), whole)
        weights = model.sample((7,), generator=generator())
        assert_close(model(X, weights=weights, chunk_size=chunk_size), whole)

    def test_loop_and_vmap_agree(self, model):
        vectorized = model(X, samples=4, generator=generator())
        force_loop(model)
        assert_close(model(X, samples=4, generator=generator()), vectorized)

    def test_a_module_that_vmap_cannot_run_falls_back(self):
        model = tacit.variational(Branching())
        weights = model.sample(5)
        output = model(X[:, :3], weights=weights)
        for m, row in enumerate(output):
            one = {name: tensor[m] for name, tensor in weights.items()}
            assert_close(row, model(X[:, :3], weights=one))
        assert model._caller.obstacles  # remembered: not tried again

    def test_the_modules_own_error_is_shown_not_vmaps(self, model):
        with pytest.raises(RuntimeError, match="mat1 and mat2 shapes cannot be multiplied"):
            model(X[:, :2], samples=3)
        assert not model._caller.obstacles  # the module was not at fault
        with pytest.raises(TypeError, match="unexpected keyword argument 'nonsense'"):
            model(X, nonsense=1, samples=3)

    def test_layers_before_the_first_random_one_run_once(self):
        calls = []
        net = mlp(4, 8, 3)
        net[0].register_forward_hook(lambda module, args, output: calls.append(output.numel()))
        model = tacit.variational(net, {"3": LowRank(2)})
        assert model(X, samples=16).shape == (16, 6, 3)
        assert calls == [48]

    def test_dropout_differs_between_samples(self):
        net = mlp(4, 400, 2, dropout=0.5)
        model = tacit.variational(net, {"3": LowRank(1)})
        nn.init.zeros_(model.factors.get_submodule("3").weight)
        nn.init.zeros_(model.factors.get_submodule("3").bias)
        output = model(X, samples=3)
        assert not torch.allclose(output[0], output[1])
        assert_close(model.eval()(X, samples=3), net(X).expand(3, 6, 2))

    @pytest.mark.parametrize("chunk_size", [None, 1, 2])
    @pytest.mark.parametrize("loop", [False, True])
    def test_batch_norm_in_train_mode(self, chunk_size, loop):
        model = tacit.variational(cnn(nn.BatchNorm2d))
        force_loop(model, loop)
        x = torch.randn(8, 1, 8, 8)
        norm = model.module[1]
        weights = model.sample(3)
        outputs, means, variances = [], [], []
        for m in range(3):
            plain = copy.deepcopy(model)
            one = {name: tensor[m] for name, tensor in weights.items()}
            outputs.append(plain(x, weights=one))
            means.append(plain.module[1].running_mean)
            variances.append(plain.module[1].running_var)
        output = model(x, weights=weights, chunk_size=chunk_size)
        assert_close(output, torch.stack(outputs), atol=1e-5, rtol=1e-4)
        # One call is one step of the running statistics, by the mean over the functions.
        assert_close(norm.running_mean, torch.stack(means).mean(0))
        assert_close(norm.running_var, torch.stack(variances).mean(0))
        assert norm.num_batches_tracked == 1
        assert bool(model._caller.obstacles) == loop

    def test_batch_norm_with_a_cumulative_average(self):
        # Its momentum is 1 / float(num_batches_tracked), which vmap can't do.
        model = tacit.variational(cnn(lambda channels: nn.BatchNorm2d(channels, momentum=None)))
        model(torch.randn(8, 1, 8, 8), samples=3)
        assert model.module[1].num_batches_tracked == 1
        assert model._caller.obstacles
        assert "samples in train mode run in a loop, vmap can't: " in repr(model)

    def test_batch_norm_in_eval_mode_leaves_statistics_alone(self):
        model = tacit.variational(cnn(nn.BatchNorm2d)).eval()
        before = copy.deepcopy(model.module[1].state_dict())
        model(torch.randn(8, 1, 8, 8), samples=3)
        assert_close(dict(model.module[1].state_dict()), dict(before))
        assert not model._caller.obstacles


class TestSignatures:
    def test_keyword_tensors_and_dict_outputs(self):
        model = tacit.variational(TwoInputs(), ["left", "right"], rank=2)
        context = torch.randn(6, 2)
        output = model(X[:, :3], context=context, scale=2.0, samples=5)
        assert set(output) == {"logits"}
        assert output["logits"].shape == (5, 6, 4)
        assert model(X[:, :3], draws=2)["logits"].shape == (6, 4)

    @pytest.mark.parametrize("vectorize", [True, False])
    def test_dict_inputs_and_dataclass_outputs(self, vectorize):
        model = tacit.variational(Structured())
        force_loop(model, not vectorize)
        output = model({"x": X[:, :3], "id": "a"}, samples=4, chunk_size=3)
        assert isinstance(output, Output)
        assert output.logits.shape == (4, 6, 2)
        assert [tuple(h.shape) for h in output.hidden] == [(4, 6, 5), (4, 6, 5)]
        assert (output.name, output.nothing) == ("structured", None)
        grouped = model({"x": X[:, :3]}, draws=4)
        assert grouped.logits.shape == (6, 2)

    def test_an_output_that_does_not_depend_on_random_weights(self):
        model = tacit.variational(Structured(), {"last": LowRank(2)})
        output = model({"x": X[:, :3]}, samples=4)
        assert torch.equal(output.hidden[0][0], output.hidden[0][3])

    def test_packed_sequences(self):
        packed = nn.utils.rnn.pack_sequence([torch.randn(3, 4), torch.randn(2, 4)])

        class Last(nn.Module):
            def __init__(self):
                super().__init__()
                self.rnn = nn.GRU(4, 5)

            def forward(self, packed):
                return self.rnn(packed)[1]

        model = tacit.variational(Last())
        assert model(packed, samples=6).shape == (6, 1, 2, 5)
        with torch.no_grad():
            assert model.eval()(packed, samples=6).shape == (6, 1, 2, 5)

    @pytest.mark.parametrize("returned", [torch.distributions.Normal, lambda y, s: object()])
    def test_outputs_that_cannot_be_stacked_are_refused_by_name(self, returned):
        class Opaque(nn.Module):
            def __init__(self):
                super().__init__()
                self.linear = nn.Linear(4, 3)

            def forward(self, x):
                return returned(self.linear(x), torch.ones(3))

        model = tacit.variational(Opaque())
        name = type(model(X)).__name__  # one draw may return anything
        with pytest.raises(ValueError, match=f"module returned a {name}, which can't be stacked"):
            model(X, samples=2)

    def test_numbers_that_differ_between_samples_are_refused(self):
        class Number(nn.Module):
            def __init__(self):
                super().__init__()
                self.linear = nn.Linear(4, 3)

            def forward(self, x):
                y = self.linear(x)
                return y, y.sum().item()

        with pytest.raises(ValueError, match="for two samples; let it return a tensor"):
            tacit.variational(Number())(X, samples=2)

    def test_a_module_that_replaces_its_buffer(self):
        class Average(nn.Module):
            def __init__(self):
                super().__init__()
                self.linear = nn.Linear(4, 3)
                self.register_buffer("average", torch.zeros(3))

            def forward(self, x):
                y = self.linear(x)
                self.average = 0.9 * self.average + 0.1 * y.detach().mean(0)
                return y

        model = tacit.variational(Average())
        assert model(X, samples=5).shape == (5, 6, 3)
        assert model.module.average.shape == (3,)
        assert torch.equal(model.eval()(X), model.module(X))
        assert "forward replaces the buffer 'average'" in repr(model)

    def test_bare_parameters_are_random_too(self):
        model = tacit.variational(Bare(), {"token": LowRank(2), "gain": Diagonal()})
        assert model(torch.randn(2, 3, 4), samples=5).shape == (5, 2, 3, 2)

    def test_tied_weights_are_replaced_in_both_uses(self):
        model = tacit.variational(Tied(), {"head": LowRank(2)})
        words = torch.arange(5)
        weights = model.sample()
        assert list(weights) == ["head.weight", "head.bias"]
        reference = copy.deepcopy(model.module)
        with torch.no_grad():
            reference.embedding.weight.copy_(weights["head.weight"])
            reference.head.bias.copy_(weights["head.bias"])
        assert_close(model(words, weights=weights), reference(words))
        assert len(list(model.parameters())) == len(list(model.module.parameters())) + 2

    def test_a_layer_used_under_two_names_keeps_its_parameter(self):
        shared = nn.Linear(4, 4)
        for name in ("0", "2"):
            model = tacit.variational(nn.Sequential(shared, nn.Tanh(), shared), {name: LowRank(2)})
            mean = shared.weight
            optimizer = torch.optim.SGD(model.param_groups(lr=0.1))
            for kwargs in ({}, {"samples": 3}, {"draws": 2}, {}):
                optimizer.zero_grad()
                model(X, **kwargs).sum().backward()
                optimizer.step()
                assert shared.weight is mean
            weights = model.sample()
            by_hand = copy.deepcopy(shared)
            with torch.no_grad():
                by_hand.weight.copy_(weights[f"{name}.weight"])
                by_hand.bias.copy_(weights[f"{name}.bias"])
            assert_close(model(X, weights=weights), by_hand(by_hand(X).tanh()))

    def test_parameters_and_modules_tied_at_once(self):
        shared, other = nn.Linear(4, 4), nn.Linear(4, 4)
        other.weight = shared.weight
        model = tacit.variational(nn.Sequential(shared, other, shared), {"*": LowRank(2)})
        means = list(model.module.parameters())
        weights = model.sample()
        assert set(weights) == {"0.weight", "0.bias", "1.bias"}
        model(X, weights=weights)
        assert all(a is b for a, b in zip(means, model.module.parameters(), strict=True))
        W, a, b = weights["0.weight"], weights["0.bias"], weights["1.bias"]
        expected = ((X @ W.T + a) @ W.T + b) @ W.T + a
        assert_close(model(X, weights=weights), expected)


class TestState:
    def test_keys_are_the_modules_under_one_prefix_and_the_factors_under_another(self):
        model = tacit.variational(nn.Sequential(nn.Sequential(nn.Linear(4, 3)), nn.BatchNorm1d(3)))
        keys = set(model.state_dict())
        assert {key for key in keys if key.startswith("factors.")} == {
            "factors.0.0.weight",
            "factors.0.0.bias",
        }
        rest = {key for key in keys if not key.startswith("factors.")}
        assert rest == {f"module.{key}" for key in model.module.state_dict()}

    def test_a_plain_checkpoint_loads_into_the_module(self, model):
        plain = mlp(4, 8, 3)
        model.module.load_state_dict(plain.state_dict())
        assert torch.equal(model.eval()(X), plain(X))

    def test_the_module_is_wrapped_not_copied_and_not_touched(self):
        net = mlp(4, 8, 3)
        before = copy.deepcopy(net.state_dict())
        model = tacit.variational(net)
        assert model.module is net
        assert all(torch.equal(before[key], value) for key, value in net.state_dict().items())

    def test_the_generator_decides_the_factors(self):
        first, second, other = (
            tacit.variational(mlp(4, 8, 3), generator=generator(seed)).factors.state_dict()
            for seed in (0, 0, 1)
        )
        assert all(torch.equal(first[key], second[key]) for key in first)
        assert not any(torch.equal(first[key], other[key]) for key in first)

    def test_deepcopy_and_pickle(self, model):
        expected = model(X, samples=2, generator=generator())
        for same in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            assert torch.equal(same(X, samples=2, generator=generator()), expected)
            assert same.module is not model.module

    def test_dtype_and_device_move_the_factors(self, model):
        model.double()
        assert model(X.double(), samples=2).dtype == torch.float64
        assert {p.device.type for p in model.to("meta").parameters()} == {"meta"}

    def test_float64_modules_get_float64_factors(self):
        model = tacit.variational(mlp(4, 8, 3).double())
        assert {factor.dtype for factor in model.factors.parameters()} == {torch.float64}

    def test_parameter_counts_and_repr(self, model):
        assert model.parameter_counts() == {"module": 67, "factors": 174, "total": 241}
        assert repr(model).splitlines() == [
            "Variational(Sequential): 67 parameters + 174 in covariance factors",
            "  0  LowRank(rank=3, scale=1.0)  over weight 8x4, bias 8",
            "  3  LowRank(rank=2, scale=1.0)  over weight 3x8, bias 3",
        ]


class TestParamGroups:
    def test_every_parameter_once_with_the_rank_in_the_learning_rate(self):
        net = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 6), nn.LayerNorm(6), nn.Linear(6, 2))
        where = {
            "1": LowRank(4),
            "3": Kronecker(2, 1),
            "2": Diagonal(),
            "0": LowRankPlusDiagonal(4),
        }
        model = tacit.variational(net, where)
        groups = model.param_groups(lr=0.1)
        ids = [id(parameter) for group in groups for parameter in group["params"]]
        assert sorted(ids) == sorted(map(id, model.parameters()))
        rates = {id(p): group["lr"] for group in groups for p in group["params"]}
        factors = model.factors
        expected = {
            net[2].weight: 0.1,
            factors.get_submodule("1").weight: 0.1 / 4,
            factors.get_submodule("1").bias: 0.1 / 4,
            factors.get_submodule("2").weight: 0.1,
            factors.get_submodule("3").weight_input: 0.1 / (2 * 2),
            factors.get_submodule("3").weight_output: 0.1 * 2 / (7 / 6),
            factors.get_submodule("0").weight: 0.1 / 4,
            factors.get_submodule("0").weight_diagonal: 0.1,
        }
        for parameter, rate in expected.items():
            assert rates[id(parameter)] == pytest.approx(rate)

    def test_works_with_optimizers_and_schedulers(self, model):
        optimizer = torch.optim.SGD(model.param_groups(lr=0.1), momentum=0.9)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
        before = copy.deepcopy(model.state_dict())
        model(X).square().mean().backward()
        optimizer.step()
        scheduler.step()
        assert [group["lr"] for group in optimizer.param_groups] == pytest.approx(
            [0.05, 0.05 / 3, 0.05 / 2]
        )
        assert all(not torch.equal(before[key], value) for key, value in model.state_dict().items())

    def test_a_parameter_in_no_group_is_an_error(self, model):
        model.extra = nn.Parameter(torch.zeros(1))
        with pytest.raises(ValueError, match="param_groups: in no group: extra"):
            model.param_groups(lr=0.1)

    @pytest.mark.parametrize("lr", [0, -0.1, float("nan")])
    def test_a_learning_rate_that_is_none(self, model, lr):
        with pytest.raises(ValueError, match="lr: expected a number above 0"):
            model.param_groups(lr=lr)


class TestBadInput:
    def test_not_a_module(self):
        with pytest.raises(TypeError, match="expected an nn.Module, received 'net'"):
            tacit.variational("net")

    @pytest.mark.filterwarnings("ignore::DeprecationWarning")
    def test_a_scripted_module(self):
        plain = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
        scripted = torch.jit.script(plain)
        for module in (scripted, torch.jit.trace(plain, torch.ones(1, 2))):
            with pytest.raises(TypeError, match="wrap the module that it was made of"):
                tacit.variational(module)
        net = nn.Sequential(scripted, nn.Linear(2, 2))
        with pytest.raises(TypeError, match="the layer '0.1' is scripted"):
            tacit.variational(net, ["0.1"], rank=2)
        assert tacit.variational(net, ["1"], rank=2)(torch.ones(3, 2)).shape == (3, 2)

    def test_variational_twice(self, model):
        for module in (model, nn.Sequential(model, nn.Linear(3, 2))):
            with pytest.raises(TypeError, match="the module is variational already, or has a part"):
                tacit.variational(module)

    @pytest.mark.parametrize("name", ["samples", "draws", "weights", "chunk_size", "generator"])
    def test_a_forward_with_an_argument_of_ours(self, name):
        namespace = {}
        exec(f"def forward(self, x, {name}=None): return self.linear(x)", namespace)
        module = type("Clash", (nn.Module,), {"forward": namespace["forward"]})()
        module.linear = nn.Linear(4, 3)
        with pytest.raises(ValueError, match=f"Clash.forward has an argument named {name}"):
            tacit.variational(module)

    @pytest.mark.parametrize("noise", ["gaussian", torch.randn, tacit.noise.Gaussian])
    def test_not_a_noise(self, noise):
        with pytest.raises(TypeError, match=r"noise: expected one of tacit\.noise"):
            tacit.variational(mlp(4, 3), noise=noise)

    @pytest.mark.parametrize("count", [0, -1])
    @pytest.mark.parametrize("name", ["samples", "draws"])
    def test_counts_below_one(self, model, name, count):
        with pytest.raises(ValueError, match=f"{name}: expected an integer of at least 1"):
            model(X, **{name: count})

    @pytest.mark.parametrize("count", [2.5, True, "3"])
    @pytest.mark.parametrize("name", ["samples", "draws"])
    def test_counts_that_are_no_integers(self, model, name, count):
        with pytest.raises(TypeError, match=f"{name}: expected an integer of at least 1"):
            model(X, **{name: count})

    def test_default_draws_below_one(self):
        with pytest.raises(ValueError, match="draws: expected an integer of at least 1"):
            tacit.variational(mlp(4, 3), draws=0)

    def test_shapes_of_samples(self, model):
        with pytest.raises(ValueError, match="sample: expected an integer of at least 1"):
            model.sample((2, 0))

    def test_chunk_size(self, model):
        with pytest.raises(ValueError, match="chunk_size: expected an integer of at least 1"):
            model(X, samples=2, chunk_size=0)
        with pytest.raises(ValueError, match="chunk_size goes with samples or weights"):
            model(X, chunk_size=2)

    @pytest.mark.parametrize(
        "kwargs",
        [{"samples": 2, "draws": 2}, {"samples": 2, "weights": {}}, {"draws": 2, "weights": {}}],
    )
    def test_ways_that_exclude_each_other(self, model, kwargs):
        with pytest.raises(ValueError, match=r"\w+ and \w+ exclude each other: choose one"):
            model(X, **kwargs)

    def test_weights_of_another_model(self, model):
        other = tacit.variational(mlp(4, 8, 3), {"0": LowRank(1)})
        with pytest.raises(ValueError, match=r"expected a sample of this model.*3\.bias; received"):
            model(X, weights=other.sample(2))
        wider = tacit.variational(mlp(4, 9, 3), {"0": LowRank(3), "3": LowRank(2)})
        with pytest.raises(
            ValueError, match=r"'0.weight' of shape \(2, 8, 4\), received \(2, 9, 4\)"
        ):
            model(X, weights=wider.sample(2))

    def test_weights_that_are_no_dict_or_come_with_a_generator(self, model):
        with pytest.raises(ValueError, match="expected a sample of this model.*received Tensor"):
            model(X, weights=torch.ones(3))
        with pytest.raises(ValueError, match="weights and generator exclude each other"):
            model(X, weights=model.sample(), generator=generator())

    def test_weights_with_different_leading_shapes(self, model):
        weights = {**model.sample(2), "3.bias": model.sample(3)["3.bias"]}
        with pytest.raises(ValueError, match=r"'3.bias' of shape \(2, 3\), received \(3, 3\)"):
            model(X, weights=weights)

    @pytest.mark.parametrize("bad", [0, "seed", torch.randn])
    def test_not_a_generator(self, model, bad):
        for call in (
            lambda: model(X, generator=bad),
            lambda: model.sample(generator=bad),
            lambda: tacit.variational(mlp(4, 3), generator=bad),
        ):
            with pytest.raises(TypeError, match="generator: expected a torch.Generator"):
                call()

    @pytest.mark.parametrize(
        "other", [nn.Linear(8, 5), nn.Linear(8, 3, bias=False)], ids=["wider", "without bias"]
    )
    def test_a_layer_replaced_after_wrapping(self, model, other):
        model.module[3] = other
        with pytest.raises(RuntimeError, match="layer '3' is not the one that was made"):
            model(X)

    def test_numbers_of_numpy_are_numbers(self, model):
        two = np.int64(2)
        assert model(X, samples=two).shape == (2, 6, 3)
        assert model(X, draws=two).shape == (6, 3)
        assert model.param_groups(lr=np.float32(0.5))[0]["lr"] == 0.5
        assert model.sample([two, 3])["3.bias"].shape == (2, 3, 3)


class TestCheckpointing:
    def test_of_the_whole_model_gives_the_same_gradients(self, model):
        gradients = []
        for forward in (model, partial(checkpoint, model, use_reentrant=False)):
            torch.manual_seed(0)
            model.zero_grad()
            forward(X).square().sum().backward()
            gradients.append([parameter.grad for parameter in model.parameters()])
        for plain, checkpointed in zip(*gradients, strict=True):
            assert_close(plain, checkpointed)

    def test_inside_a_hugging_face_model_is_refused(self):
        net = mlp(4, 3)
        net.is_gradient_checkpointing = True
        with pytest.raises(ValueError, match="would recompute with the mean weights"):
            tacit.variational(net)


def test_the_class_is_made_by_the_function():
    assert isinstance(tacit.variational(nn.Linear(2, 2)), Variational)
