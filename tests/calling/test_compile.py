"""torch.compile and autocast."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import tacit
from nets import cnn, mlp
from tacit import Kronecker, LowRank, LowRankPlusDiagonal

X = torch.linspace(-1, 1, 40).reshape(10, 4)
# torch.compile itself imports a deprecated name of torch; the cache of torch 2.6 warns.
pytestmark = [
    pytest.mark.filterwarnings("ignore:`torch.jit.script_method`:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Skipping serialization of skipfiles:UserWarning"),
]


@pytest.fixture(autouse=True)
def _fresh_dynamo():
    torch.compiler.reset()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kwargs", "backend"),
    [
        ({}, "inductor"),
        ({"samples": 4}, "inductor"),
        # Inductor takes half a minute each.
        ({"samples": 4, "chunk_size": 3}, "aot_eager"),
        ({"draws": 5}, "aot_eager"),
        ({"draws": 4}, "aot_eager"),
    ],
    ids=str,
)
def test_the_model_compiles_to_one_graph_and_trains(kwargs, backend):
    model = tacit.variational(mlp(4, 8, 8, 3), {"0": Kronecker(2, 2), "6": LowRankPlusDiagonal(2)})
    compiled = torch.compile(model, fullgraph=True, backend=backend)
    output = compiled(X, **kwargs)
    assert output.shape == model(X, **kwargs).shape
    assert not torch.equal(output, compiled(X, **kwargs))  # noise is not frozen into the graph
    output.sum().backward()
    assert all(parameter.grad.abs().sum() > 0 for parameter in model.factors.parameters())


@pytest.mark.slow
def test_compiled_and_eager_outputs_agree():
    model = tacit.variational(cnn(lambda channels: nn.GroupNorm(2, channels)))
    compiled = torch.compile(model, fullgraph=True)
    with torch.no_grad():
        x, weights = torch.randn(4, 1, 8, 8), model.sample(3)
    assert_close(compiled(x, weights=weights), model(x, weights=weights), atol=1e-5, rtol=1e-4)
    model.eval()
    assert_close(compiled(x), model.module(x), atol=1e-5, rtol=1e-4)


def test_autocast_runs_layers_in_bfloat16_and_samples_weights_in_full_precision():
    model = tacit.variational(mlp(4, 8, 3), {"0": LowRank(3), "3": Kronecker(2, 2)})
    with torch.autocast("cpu", torch.bfloat16):
        assert {tensor.dtype for tensor in model.sample(2).values()} == {torch.float32}
        assert model(X).dtype == torch.bfloat16
        for kwargs in ({}, {"samples": 4}, {"draws": 4}):
            output = model(X, generator=torch.Generator().manual_seed(1), **kwargs).float()
            with torch.autocast("cpu", enabled=False):
                full = model(X, generator=torch.Generator().manual_seed(1), **kwargs)
            assert not torch.equal(output, full)  # matrix products ran in bfloat16
            assert_close(output, full, atol=0.05, rtol=0.05)
            output.sum().backward()
        exact = model.sample(generator=torch.Generator().manual_seed(0))
    plain = model.sample(generator=torch.Generator().manual_seed(0))
    assert all(torch.equal(exact[name], plain[name]) for name in plain)
    assert {parameter.grad.dtype for parameter in model.parameters()} == {torch.float32}
