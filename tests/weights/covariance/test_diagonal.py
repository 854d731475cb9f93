import torch
from torch.testing import assert_close

import tacit
from tacit.testing import CovarianceSuite
from tacit.testing.covariance import LAYERS, make_factors


class TestDiagonal(CovarianceSuite):
    def covariances(self, shapes):
        return [tacit.Diagonal()]

    def reference(self, covariance, factors, shapes):
        return torch.cat([factors[name].reshape(-1) for name in shapes]).square().diag()


def test_diagonal_equals_low_rank_with_a_diagonal_factor():
    shapes = LAYERS["linear"]
    P = 18
    factors = make_factors(tacit.Diagonal(), shapes)
    S = torch.cat([factors[name].reshape(-1) for name in shapes]).diag()  # (P, R)
    rows = S.T.split([15, 3], dim=1)
    directions = {
        name: part.reshape(P, *shapes[name]) for name, part in zip(shapes, rows, strict=True)
    }
    z = torch.randn(4, P, dtype=torch.float64)
    for name in shapes:
        assert_close(
            tacit.Diagonal().apply(factors, z, shapes)[name],
            tacit.LowRank(P).apply(directions, z, shapes)[name],
        )


class TestPositiveDiagonal(CovarianceSuite):
    def covariances(self, shapes):
        return [tacit.covariance.PositiveDiagonal()]

    def reference(self, covariance, factors, shapes):
        return torch.cat([factors[name].reshape(-1) for name in shapes]).exp().square().diag()

    def test_zero_factors_give_zero_noise_and_finite_gradients(self):
        # The trained tensor is log s: a deterministic layer would be -inf, and 0 means s = 1.
        for covariance, shapes, factors in self.cases():
            factors = {name: torch.zeros_like(factor) for name, factor in factors.items()}
            P = sum(shape.numel() for shape in shapes.values())
            assert_close(covariance.dense(factors, shapes), torch.eye(P, dtype=torch.float64))
