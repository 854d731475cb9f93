"""Activation checkpointing: refused inside the module, right around the whole model."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint

import tacit
from nets import generator, mlp
from tacit import LowRank

X = torch.linspace(-1, 1, 32).reshape(8, 4)


class Inside(nn.Module):
    """Checkpoints a block of its own: a submodule, or a method that reads a parameter."""

    def __init__(self, reentrant, method):
        super().__init__()
        self.first, self.block = nn.Linear(4, 6), nn.Sequential(nn.Linear(6, 6), nn.Tanh())
        self.weight = nn.Parameter(torch.eye(6))
        self.reentrant, self.method = reentrant, method

    def product(self, h):
        return F.linear(h, self.weight)

    def forward(self, x):
        h = self.first(x)
        part = self.product if self.method else self.block
        return checkpoint(part, h, use_reentrant=self.reentrant)


class Custom(torch.autograd.Function):
    """Another package's reentrant checkpointing."""

    @staticmethod
    def forward(ctx, part, x):
        ctx.part = part
        ctx.save_for_backward(x)
        return part(x)


class InsideCustom(Inside):
    def forward(self, x):
        return Custom.apply(self.block, self.first(x))


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad:UserWarning")
@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("method", [False, True])
@pytest.mark.parametrize("kwargs", [{}, {"draws": 4}, {"draws": 3}, {"samples": 3}], ids=str)
def test_inside_the_module_it_is_refused(reentrant, method, kwargs):
    name = "" if method else "block.0"
    model = tacit.variational(Inside(reentrant, method), {name: LowRank(3)})
    for _ in range(2):
        with pytest.raises(RuntimeError, match="'weight' is used inside activation checkpointing"):
            model(X, **kwargs)
    assert isinstance(
        model.module.get_parameter(model.layers[0].parameters["weight"]), nn.Parameter
    )


def test_another_packages_checkpointing_is_refused():
    model = tacit.variational(InsideCustom(True, False), {"block.0": LowRank(3)})
    with pytest.raises(RuntimeError, match="inside activation checkpointing"):
        model(X)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointed_layers_without_random_parameters_train_as_without_it(reentrant):
    torch.manual_seed(0)
    model = tacit.variational(Inside(reentrant, False), {"first": LowRank(3)})

    def gradients():
        model.zero_grad()
        model(X, generator=generator()).square().sum().backward()
        return {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}

    ours = gradients()
    model.module.forward = lambda x: model.module.block(model.module.first(x))
    assert_close(ours, gradients())


@pytest.mark.parametrize("reentrant", [False, True])
def test_mean_weights_may_be_checkpointed_inside_the_module(reentrant):
    model = tacit.variational(Inside(reentrant, False), {"block.0": LowRank(3)}).eval()
    model(X).sum().backward()
    assert model.module.first.weight.grad.abs().sum() > 0


def test_saved_tensor_hooks_inside_the_module_are_no_checkpointing():
    class Offloading(Inside):
        def forward(self, x):
            with torch.autograd.graph.save_on_cpu():
                return self.block(self.first(x))

    tacit.variational(Offloading(False, False), {"block.0": LowRank(3)})(X).sum().backward()


def test_gradients_disabled_inside_the_module_are_no_checkpointing():
    class Frozen(Inside):
        def forward(self, x):
            with torch.no_grad():
                h = self.block(self.first(x))
            return self.product(h)

    tacit.variational(Frozen(False, False), {"block.0": LowRank(3)})(X).sum().backward()


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("kwargs", [{}, {"draws": 4}, {"samples": 3}], ids=str)
@pytest.mark.parametrize("optimizer", ["torch", "tacit"])
def test_the_whole_model_may_be_checkpointed(reentrant, kwargs, optimizer, monkeypatch):
    torch.manual_seed(0)
    model = tacit.variational(mlp(4, 40, 3), {"*": LowRank(20)})
    if optimizer == "tacit":
        from tacit.training.optim import eligibility

        monkeypatch.setattr(eligibility, "WIDE", 0)
        monkeypatch.setattr(eligibility, "SMALL", 0)
        tacit.SGD(model, lr=0.01)
    x = X.clone().requires_grad_()

    def gradients(call):
        torch.manual_seed(1)
        model.zero_grad()
        x.grad = None
        call().square().sum().backward()
        return x.grad, {n: p.grad.clone() for n, p in model.named_parameters()}

    ours = gradients(lambda: checkpoint(lambda x: model(x, **kwargs), x, use_reentrant=reentrant))
    model.defer_to(None)  # without deferral both draw the same noise
    theirs = gradients(lambda: model(x, **kwargs))
    assert_close(ours, theirs)


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_generator_is_refused_when_checkpointing(reentrant):
    # Its state is not restored for the recomputation, which would draw other weights.
    model = tacit.variational(mlp(4, 8, 3))
    x = X.clone().requires_grad_()
    with pytest.raises(ValueError, match="generator: activation checkpointing recomputes with"):
        checkpoint(lambda x: model(x, generator=generator()), x, use_reentrant=reentrant)
    with torch.no_grad():
        model(X, generator=generator())  # outside of checkpointing


def test_hugging_face_checkpointing_enabled_after_wrapping_is_refused():
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=32, num_labels=3,
    )  # fmt: skip
    model = tacit.variational(transformers.BertForSequenceClassification(config), rank=2)
    model.train()
    words = torch.arange(28).reshape(4, 7)
    model(input_ids=words).logits.sum().backward()
    model.module.gradient_checkpointing_enable()
    with pytest.raises(RuntimeError, match="gradient_checkpointing_disable"):
        model(input_ids=words)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method`:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")
def test_a_compiled_block_inside_the_module_receives_the_samples():
    net = mlp(4, 8, 3)
    net[0].compile(backend="eager")
    model = tacit.variational(net, {"0": LowRank(3)})
    weights = model.sample()
    h = F.linear(X, weights["0.weight"], weights["0.bias"]).tanh()
    assert_close(model(X, weights=weights), net[3](h))
    assert not torch.equal(model(X), model(X))
