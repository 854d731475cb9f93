"""Noise in activation space: the functions of weight space, without forming weights."""

import pytest
import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn import functional as F
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint

import tacit
from nets import Structured, Tied, TwoInputs, generator, mlp
from tacit import Kronecker, RankOneSum, Relative
from tacit.calling import noisy_weight
from tacit.calling.operations import EachDraw

HALF = Relative(0.5)


def each_and_expected(model, monkeypatch, *args, **kwargs):
    """Return the output of draws="each", and that of weight space, example by example."""
    drawn = []
    original = EachDraw.per_example
    monkeypatch.setattr(
        EachDraw,
        "per_example",
        lambda self, *args, **kwargs: drawn.append(self) or original(self, *args, **kwargs),
    )
    output = model(*args, draws="each", **kwargs)
    size = len(args[0])
    rows = [
        model(*(a[i : i + 1] for a in args), weights=drawn[-1].of_example(i), **kwargs)
        for i in range(size)
    ]
    return output, torch.cat(rows)


def check_equals_weight_space(net, x, monkeypatch, layers=None, covariance=HALF):
    layers = layers or (["*"] if list(net.children()) else [""])
    model = tacit.variational(net.double(), dict.fromkeys(layers, covariance))
    output, expected = each_and_expected(model, monkeypatch, x)
    assert model.activation_space.verified == {True: True}, model.call_notes
    assert_close(output, expected)
    parameters = [p for p in model.parameters() if p.requires_grad]
    weight = torch.randn_like(output)
    ours, theirs = (
        torch.autograd.grad((weight * y).sum(), parameters, materialize_grads=True)
        for y in (output, expected)
    )
    assert_close(ours, theirs)
    assert all(gradient.abs().sum() > 0 for gradient in ours)
    assert not torch.equal(model(x), model(x))
    return model


def randn(*shape):
    return torch.randn(shape, dtype=torch.float64)


class SequenceSecond(nn.Module):
    """Transposes the batch to the second dimension."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 2)

    def forward(self, x):
        return self.linear(x.transpose(0, 1)).transpose(0, 1)


class Flattening(SequenceSecond):
    """Flattens batch and sequence."""

    def forward(self, x):
        return self.linear(x.flatten(0, 1)).view(*x.shape[:2], -1)


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x):
        return self.linear(self.linear(x).tanh())


class OwnWeight(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(2, 3))

    def forward(self, x):
        return F.linear(input=x, weight=self.weight)


class Conv1D(nn.Module):
    """Hugging Face's linear layer, which stores inputs first."""

    def __init__(self):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(3, 4)), nn.Parameter(torch.ones(4))

    def forward(self, x):
        return torch.addmm(self.bias, x.view(-1, 3), self.weight).view(*x.shape[:-1], 4)


NETS = {
    "linear": (lambda: nn.Linear(3, 2), (5, 3)),
    "linear of sequences": (lambda: nn.Linear(3, 2), (5, 4, 3)),
    "as many steps as examples": (lambda: nn.Linear(3, 2), (5, 5, 3)),
    "sequence second": (SequenceSecond, (5, 4, 3)),
    "flattened": (Flattening, (5, 4, 3)),
    "called twice": (Twice, (5, 3)),
    "own weight": (OwnWeight, (5, 3)),
    "Conv1D": (Conv1D, (5, 4, 3)),
    "conv1d": (lambda: nn.Conv1d(4, 6, 3, stride=2, groups=2, padding=1), (3, 4, 9)),
    "conv2d": (lambda: nn.Conv2d(2, 3, 3, dilation=2, padding="same"), (3, 2, 6, 6)),
    "circular": (lambda: nn.Conv2d(2, 3, 3, padding=1, padding_mode="circular"), (3, 2, 6, 6)),
    "reflect": (lambda: nn.Conv1d(2, 2, 3, padding=2, padding_mode="reflect"), (3, 2, 6)),
    "depthwise": (lambda: nn.Conv2d(3, 6, 2, groups=3), (4, 3, 5, 5)),
    "conv3d": (lambda: nn.Conv3d(2, 4, 2, groups=2), (3, 2, 4, 4, 4)),
    "transposed 1d": (lambda: nn.ConvTranspose1d(4, 6, 3, groups=2), (3, 4, 5)),
    "transposed 2d": (
        lambda: nn.ConvTranspose2d(4, 2, 3, stride=2, groups=2, output_padding=1),
        (3, 4, 5, 5),
    ),
    "transposed 3d": (lambda: nn.ConvTranspose3d(2, 3, 2), (3, 2, 3, 3, 3)),
}


STRUCTURES = pytest.mark.parametrize(
    "covariance",
    [HALF, RankOneSum(3), Kronecker(2, 1)],
    ids=lambda covariance: type(covariance).__name__,
)


@STRUCTURES
@pytest.mark.parametrize("name", NETS)
def test_outputs_and_gradients_equal_those_of_weight_space(name, covariance, monkeypatch):
    make, shape = NETS[name]
    # Inputs are the first dimension of these weights, so the bias has no dimension in common.
    own = name.startswith(("transposed", "Conv1D")) and not isinstance(covariance, Relative)
    layers = ["weight"] if own else None
    model = check_equals_weight_space(make(), randn(*shape), monkeypatch, layers, covariance)
    assert model.activation_space.refused == {}


@STRUCTURES
def test_channels_last_is_kept(covariance, monkeypatch):
    net = nn.Conv2d(2, 3, 3).to(memory_format=torch.channels_last)
    x = randn(4, 2, 6, 6).contiguous(memory_format=torch.channels_last)
    model = check_equals_weight_space(net, x, monkeypatch, None, covariance)
    assert model(x).is_contiguous(memory_format=torch.channels_last)


WORDS = torch.tensor([[1, 2, 0, 0], [3, 4, 5, 0], [5, 0, 1, 2]])


@STRUCTURES
@pytest.mark.parametrize("padding", [None, 0, -6])
def test_embeddings_keep_their_padding_row(padding, covariance, monkeypatch):
    net = nn.Embedding(6, 3, padding_idx=padding)
    if padding is not None:
        nn.init.ones_(net.weight)  # otherwise the row is 0
    model = check_equals_weight_space(net, WORDS, monkeypatch, None, covariance)
    row = model(WORDS)[0, 2]
    assert torch.equal(row, net.weight[0]) == (padding is not None)


@STRUCTURES
def test_a_tied_embedding_and_output_layer_share_their_noise(covariance, monkeypatch):
    check_equals_weight_space(Tied(), WORDS, monkeypatch, ["embedding", "body"], covariance)


def test_a_padding_row_of_a_tied_output_layer_has_no_noise(monkeypatch):
    net = Tied()
    net.embedding.padding_idx = 0
    where = {"embedding": Relative(0.5), "body": Relative(0.5)}
    model = tacit.variational(net.double(), where)
    output, expected = each_and_expected(model, monkeypatch, WORDS)
    assert_close(output, expected)
    weights = model.sample(3, generator=generator())
    assert_close(model(WORDS, samples=3, generator=generator()), model(WORDS, weights=weights))


def test_hooks_of_users_run_once_with_the_inputs_of_the_module(monkeypatch):
    net, seen = mlp(3, 4, 2), []
    net[0].register_forward_pre_hook(lambda module, args: (2 * args[0],))
    net[0].register_forward_hook(lambda module, args, output: output + 1)
    model = check_equals_weight_space(net, randn(5, 3), monkeypatch)
    net[3].register_forward_hook(lambda module, args, output: seen.append(output.shape))
    model(randn(5, 3))
    assert seen == [(5, 2)]


def test_dict_inputs_and_structured_outputs():
    model = tacit.variational(TwoInputs(), {"*": Relative()})
    logits = model(torch.ones(4, 3), context=torch.ones(4, 2))["logits"]
    assert len(set(logits[:, 0].tolist())) == 4
    model = tacit.variational(Structured(), {"*": Relative()})
    output = model({"x": torch.ones(4, 3)})
    assert len(set(output.logits[:, 0].tolist())) == 4
    assert output.name == "structured"


class Square(nn.Module):
    """Its own square weight, applied by an operation that stores inputs first."""

    def __init__(self, operation):
        super().__init__()
        self.weight, self.operation = nn.Parameter(torch.randn(3, 3)), operation

    def forward(self, x):
        return self.operation(x, self.weight)


@pytest.mark.parametrize(
    "operation",
    [
        lambda x, w: torch.addmm(torch.zeros(3, dtype=x.dtype), x, w),
        lambda x, w: x @ w,
        lambda x, w: F.linear(x, w.T),
        lambda x, w: F.conv_transpose1d(x[..., None], w[..., None])[..., 0],
    ],
    ids=["addmm", "matmul", "transposed", "conv_transpose1d"],
)
def test_a_weight_used_with_its_inputs_in_another_dimension_has_the_noise_of_weight_space(
    operation,
):
    model = tacit.variational(Square(operation).double(), {"": Relative(0.5)})
    x = randn(4, 3)
    weights = model.sample(5, generator=generator())
    assert_close(model(x, samples=5, generator=generator()), model(x, weights=weights))


@STRUCTURES
@pytest.mark.parametrize("kwargs", [{"draws": 3}, {"samples": 3}], ids=str)
def test_shared_draws_equal_weight_space(kwargs, covariance):
    net = nn.Sequential(nn.Conv2d(2, 4, 3, groups=2), nn.Flatten(), nn.Linear(16, 3))
    model = tacit.variational(net.double(), {"*": covariance})
    x = randn(6, 2, 4, 4)
    output = model(x, generator=generator(), **kwargs)
    expected = model(x, weights=model.sample(3, generator=generator()))
    if "draws" in kwargs:
        expected = torch.cat([expected[k, 2 * k : 2 * k + 2] for k in range(3)])
    assert_close(output, expected)
    ours, theirs = (
        torch.autograd.grad(y.square().sum(), list(model.parameters())) for y in (output, expected)
    )
    assert_close(ours, theirs)


def test_gradients_are_unbiased():
    torch.manual_seed(0)
    model = tacit.variational(mlp(3, 4, 2).double(), {"*": Relative(0.5)})
    x, parameters = randn(4, 3), list(model.parameters())

    def gradient(**kwargs):
        loss = model(x, **kwargs).square().mean()
        return torch.cat([g.flatten() for g in torch.autograd.grad(loss, parameters)])

    repeats = 2000
    ours = torch.stack([gradient() for _ in range(repeats)])
    theirs = torch.stack([gradient(samples=200) for _ in range(100)])
    error = (ours.var(0) / repeats + theirs.var(0) / 100).sqrt()
    assert ((ours.mean(0) - theirs.mean(0)).abs() <= 5 * error + 1e-12).all()


@pytest.mark.parametrize("create_graph", [False, True])
def test_large_inputs_of_convolutions_are_computed_again_in_the_backward_pass(
    monkeypatch, create_graph
):
    net = nn.Sequential(nn.Conv2d(2, 3, 3), nn.ReLU(), nn.Conv2d(3, 2, 3), nn.ReLU(), nn.Flatten())
    model = tacit.variational(net.double(), {"2": tacit.Relative(0.5)})
    x, found = torch.randn(4, 2, 8, 8, dtype=torch.float64), []
    model(x)  # the first call verifies
    for large in (0, 10**9):
        monkeypatch.setattr(noisy_weight, "LARGE", large)
        torch.manual_seed(0)
        loss = model(x).square().mean()
        gradients = torch.autograd.grad(loss, list(model.parameters()), create_graph=create_graph)
        if create_graph:
            norm = sum(gradient.square().sum() for gradient in gradients)
            gradients = torch.autograd.grad(norm, list(model.parameters()))
        found.append(gradients)
    assert all(torch.equal(one, two) for one, two in zip(*found, strict=True))


class ChangesItsInput(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(2, 3, 3), nn.Conv2d(3, 2, 3)

    def forward(self, x):
        h = self.first(x)
        y = self.second(h)
        h.add_(1)
        return y.flatten(1)


def test_an_input_that_is_computed_again_must_not_be_changed_in_place(monkeypatch):
    monkeypatch.setattr(noisy_weight, "LARGE", 0)
    model = tacit.variational(ChangesItsInput(), {"second": tacit.Relative(0.5)})
    loss = model(torch.randn(4, 2, 8, 8)).square().mean()
    with pytest.raises(RuntimeError, match="was changed in place"):
        torch.autograd.grad(loss, model.module.second.weight)


def test_checkpointing_inside_the_module_still_frees_activations(monkeypatch):
    monkeypatch.setattr(noisy_weight, "LARGE", 0)
    inner, kept = nn.Sequential(nn.Conv2d(2, 3, 3), nn.ReLU(), nn.Conv2d(3, 2, 3)), []

    class Checkpointed(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = inner

        def forward(self, x):
            return checkpoint(self.inner, x, use_reentrant=False).flatten(1)

    model = tacit.variational(Checkpointed(), {"inner.2": tacit.Relative(0.5)})
    x = torch.randn(4, 2, 8, 8)
    model(x)  # the first call verifies
    inner[1].register_forward_hook(
        lambda _m, _x, output: kept.append(StorageWeakRef(output.untyped_storage()))
    )
    loss = model(x).square().mean()
    assert kept[0].expired()
    loss.backward()


def test_attention_with_noise_of_output_units_has_the_noise_of_weight_space():
    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.MultiheadAttention(4, 2, batch_first=True, vdim=3)

        def forward(self, x, values):
            return self.layer(x, x, values)[0]

    where = {"layer.q_proj_weight": Relative(0.5, axis=0), "layer.out_proj": Relative(0.5)}
    model = tacit.variational(Attention().double(), where)
    inputs = randn(5, 3, 4), randn(5, 3, 3)
    weights = model.sample(2, generator=generator())
    expected = model(*inputs, weights=weights)
    assert_close(model(*inputs, samples=2, generator=generator()), expected)
