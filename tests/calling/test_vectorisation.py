"""samples=M gives the same outputs under vmap, in chunks and in a loop."""

import copy

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import tacit
from nets import Branching, cnn, force_loop, generator, mlp
from tacit import LowRank

X = torch.linspace(-1, 1, 24).reshape(6, 4)


@pytest.fixture
def model():
    return tacit.variational(mlp(4, 8, 3), {"0": LowRank(3), "3": LowRank(2)})


@pytest.mark.parametrize("chunk_size", [1, 2, 3, 7, 100])
def test_the_chunk_size_does_not_change_the_outputs(model, chunk_size):
    whole = model(X, samples=7, generator=generator())
    assert_close(model(X, samples=7, chunk_size=chunk_size, generator=generator()), whole)
    weights = model.sample((7,), generator=generator())
    assert_close(model(X, weights=weights, chunk_size=chunk_size), whole)


def test_samples_in_a_loop_and_under_vmap_agree(model):
    vectorised = model(X, samples=4, generator=generator())
    assert model.call_notes == []
    force_loop(model)
    assert_close(model(X, samples=4, generator=generator()), vectorised)
    [note] = model.call_notes
    assert note.startswith("samples in train mode run in a loop, vmap can't: ")


def test_a_module_that_vmap_cannot_run_falls_back_to_a_loop():
    model = tacit.variational(Branching())
    weights = model.sample(5)
    output = model(X[:, :3], weights=weights)
    for m, row in enumerate(output):
        one = {name: tensor[m] for name, tensor in weights.items()}
        assert_close(row, model(X[:, :3], weights=one))


def test_vmap_is_not_tried_again_after_a_failure():
    calls = []
    model = tacit.variational(Branching())
    model.module.linear.register_forward_hook(lambda *_: calls.append(1))
    model(X[:, :3], samples=5)
    assert len(calls) == 1 + 5  # vmap, which fails in the line after, and the loop
    model(X[:, :3], samples=5)
    assert len(calls) == 1 + 5 + 5


def test_calls_in_a_loop_are_listed_with_the_reason():
    model = tacit.variational(Branching())
    model(X[:, :3], samples=2)
    model.eval()(X[:, :3], samples=2)
    for mode, note in zip(("train", "eval"), model.call_notes, strict=True):
        assert note.startswith(f"samples in {mode} mode run in a loop, vmap can't: vmap: It looks")
    assert repr(model).splitlines()[-2:] == [f"  {note}" for note in model.call_notes]


def test_a_wrong_call_raises_the_error_of_the_module(model):
    with pytest.raises(RuntimeError, match="mat1 and mat2 shapes cannot be multiplied"):
        model(X[:, :2], samples=3)
    with pytest.raises(TypeError, match="unexpected keyword argument 'nonsense'"):
        model(X, nonsense=1, samples=3)
    assert model.call_notes == []  # later calls are vectorised all the same


def test_layers_before_the_first_random_one_run_once():
    calls = []
    net = mlp(4, 8, 3)
    net[0].register_forward_hook(lambda module, args, output: calls.append(output.numel()))
    model = tacit.variational(net, {"3": LowRank(2)})
    assert model(X, samples=16).shape == (16, 6, 3)
    assert calls == [48]


def test_dropout_masks_differ_between_samples():
    net = mlp(4, 400, 2, dropout=0.5)
    model = tacit.variational(net, {"3": LowRank(1)})
    nn.init.zeros_(model.factors.get_submodule("3").weight)
    nn.init.zeros_(model.factors.get_submodule("3").bias)
    output = model(X, samples=3)
    assert not torch.allclose(output[0], output[1])
    assert_close(model.eval()(X, samples=3), net(X).expand(3, 6, 2))


class TestBatchNorm:
    @pytest.mark.parametrize("chunk_size", [None, 1, 2])
    @pytest.mark.parametrize("loop", [False, True])
    def test_running_statistics_take_one_step_by_the_mean_over_samples(self, chunk_size, loop):
        model = tacit.variational(cnn(nn.BatchNorm2d))
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
        if loop:
            force_loop(model)
        output = model(x, weights=weights, chunk_size=chunk_size)
        assert_close(output, torch.stack(outputs), atol=1e-5, rtol=1e-4)
        assert_close(norm.running_mean, torch.stack(means).mean(0))
        assert_close(norm.running_var, torch.stack(variances).mean(0))
        assert norm.num_batches_tracked == 1
        # Chunks of one sample are called without vmap.
        assert bool(model.call_notes) == (loop and chunk_size != 1)

    def test_a_cumulative_average_runs_in_a_loop(self):
        # Its momentum is 1 / float(num_batches_tracked), which vmap can't do.
        model = tacit.variational(cnn(lambda channels: nn.BatchNorm2d(channels, momentum=None)))
        model(torch.randn(8, 1, 8, 8), samples=3)
        assert model.module[1].num_batches_tracked == 1
        assert "samples in train mode run in a loop, vmap can't: " in repr(model)

    def test_eval_mode_leaves_running_statistics_unchanged(self):
        model = tacit.variational(cnn(nn.BatchNorm2d)).eval()
        before = copy.deepcopy(model.module[1].state_dict())
        model(torch.randn(8, 1, 8, 8), samples=3)
        assert_close(dict(model.module[1].state_dict()), dict(before))
        assert model.call_notes == []
