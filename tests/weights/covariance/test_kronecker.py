import pytest
import torch
from torch import nn
from torch.testing import assert_close

import tacit
from tacit.testing import CovarianceSuite
from tacit.testing.covariance import LAYERS


def first_dimension(shapes):
    shape = next(iter(shapes.values()))
    return shape[0] if shape else 1


class TestKronecker(CovarianceSuite):
    def covariances(self, shapes):
        out = first_dimension(shapes)
        columns = sum(shape.numel() for shape in shapes.values()) // out
        return [
            tacit.Kronecker(1, 1),
            tacit.Kronecker(min(2, columns), 1),
            tacit.Kronecker(columns, out),
        ]

    def reference(self, covariance, factors, shapes):
        """Cov[W_ij, W_kl] = (B B^T)_ik (A A^T)_jl, written out entry by entry."""
        out = first_dimension(shapes)
        A = torch.cat(
            [factors[f"{name}_input"].reshape(covariance.input_rank, -1) for name in shapes], dim=1
        ).T
        B = factors[f"{next(iter(shapes))}_output"].T
        inputs, outputs = A @ A.T, B @ B.T
        # Row i and column j of each parameter in W, in the order of the layer's tensors.
        places, column = [], 0
        for shape in shapes.values():
            width = shape.numel() // out
            places += [(i, column + j) for i in range(out) for j in range(width)]
            column += width
        i, j = torch.tensor(places).T
        return outputs[i[:, None], i] * inputs[j[:, None], j]


@pytest.mark.parametrize(
    "net",
    [nn.Linear(5, 3), nn.Linear(2, 4, bias=False), nn.Conv2d(2, 3, (2, 1))],
    ids=["linear", "linear without bias", "convolution"],
)
def test_sampled_second_moments_agree_with_both_closed_forms(net):
    """E[(W-mu)(W-mu)^T] = tr(A A^T) B B^T and E[(W-mu)^T (W-mu)] = tr(B B^T) A A^T."""
    draws = 40_000
    model = tacit.variational(net.double(), {"": tacit.Kronecker(2, 2)})
    out = net.weight.shape[0]
    tensors = list(dict(net.named_parameters()))
    sampled = model.sample(draws, generator=torch.Generator().manual_seed(1))
    W = torch.cat(
        [(sampled[n] - net.get_parameter(n)).reshape(draws, out, -1) for n in tensors], dim=2
    ).detach()
    factors = dict(model.factors.named_parameters())
    A = torch.cat([factors[f"{n}_input"].reshape(2, -1) for n in tensors], dim=1).T.detach()
    B = factors["weight_output"].T.detach()
    assert A.shape[0] != B.shape[0]  # otherwise swapping the two could pass
    for products, expected in (
        (W @ W.mT, (A @ A.T).trace() * B @ B.T),
        (W.mT @ W, (B @ B.T).trace() * A @ A.T),
    ):
        error = products.std(0) / draws**0.5
        assert ((products.mean(0) - expected).abs() <= 5 * error + 1e-12).all()
        assert (error / expected.diagonal().mean() < 0.02).all()  # a few percent off would fail


def test_covariance_of_stacked_columns_is_the_kronecker_product():
    model = tacit.variational(nn.Linear(4, 3, bias=False).double(), {"": tacit.Kronecker(2, 2)})
    A, B = model.factors.weight_input.T, model.factors.weight_output.T
    Sigma = model.distributions[""].dense_covariance().reshape(3, 4, 3, 4)
    columns_stacked = Sigma.permute(1, 0, 3, 2).reshape(12, 12)
    assert_close(columns_stacked, torch.kron(A @ A.T, B @ B.T))


def test_diagonal_factors_give_the_diagonal_structure():
    shapes = {"weight": torch.Size([3, 4])}
    a, b = torch.rand(4, dtype=torch.float64), torch.rand(3, dtype=torch.float64)
    kronecker = {"weight_input": a.diag(), "weight_output": b.diag()}
    diagonal = {"weight": torch.outer(b, a)}
    z = torch.randn(5, 12, dtype=torch.float64)
    assert_close(
        tacit.Kronecker(4, 3).apply(kronecker, z, shapes)["weight"],
        tacit.Diagonal().apply(diagonal, z, shapes)["weight"],
    )


def test_with_one_output_kronecker_equals_low_rank():
    # With one output, W is a row and B a scalar: W = mean + b (A z)^T.
    shapes = {"weight": torch.Size([1, 6]), "bias": torch.Size([1])}
    A = torch.randn(3, 7, dtype=torch.float64)
    kronecker = {
        "weight_input": A[:, :6],
        "bias_input": A[:, 6],
        "weight_output": torch.tensor([[2.0]], dtype=torch.float64),
    }
    low = {"weight": 2 * A[:, None, :6], "bias": 2 * A[:, 6:]}
    z = torch.randn(3, dtype=torch.float64)
    ours = tacit.Kronecker(3, 1).apply(kronecker, z, shapes)
    theirs = tacit.LowRank(3).apply(low, z, shapes)
    for name in shapes:
        assert_close(ours[name], theirs[name])


def test_ranks_above_the_dimensions_of_either_side_are_refused():
    with pytest.raises(ValueError, match=r"at most 6 for the input and 3 for the output.* 7 and 3"):
        tacit.Kronecker(7, 3).factors(LAYERS["linear"])
    with pytest.raises(ValueError, match="received 6 and 4"):
        tacit.Kronecker(6, 4).factors(LAYERS["linear"])


def test_tensors_without_a_common_first_dimension_are_refused():
    net = nn.Sequential(nn.ConvTranspose2d(2, 3, 2))
    with pytest.raises(ValueError, match=r"same first dimension, received weight \(2, 3, 2, 2\)"):
        tacit.variational(net, {"0": tacit.Kronecker(1, 1)})
