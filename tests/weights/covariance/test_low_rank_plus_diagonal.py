import torch

import tacit
from tacit.testing import CovarianceSuite
from tacit.weights.covariance import parameter_count


class TestLowRankPlusDiagonal(CovarianceSuite):
    def covariances(self, shapes):
        P = parameter_count(shapes)
        return [tacit.LowRankPlusDiagonal(rank) for rank in (1, min(2, P), P)]

    def reference(self, covariance, factors, shapes):
        S = torch.cat([factors[name].reshape(covariance.rank, -1) for name in shapes], dim=1)
        s = torch.cat([factors[f"{name}_diagonal"].reshape(-1) for name in shapes])
        return torch.einsum("rp,rq->pq", S, S) + (s**2).diag()
