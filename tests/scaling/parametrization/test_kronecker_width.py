"""Kronecker noise under muP: refused where it makes training diverge with the width."""

import pytest
import torch
from torch import nn

import tacit


def hidden_net(width):
    return nn.Sequential(
        nn.Linear(4, width), nn.LayerNorm(width), nn.ReLU(),
        nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1),
    )  # fmt: skip


@pytest.mark.parametrize("width", [64, 256, 1024])
class TestKroneckerInHiddenLayers:
    def test_noise_of_fixed_rank_is_refused(self, width):
        # Training diverges even if the factors are frozen: 1 of 30 seeds at 64, all at 1,024.
        mup = tacit.MaximalUpdate(hidden_net(32))
        with pytest.raises(ValueError, match=r"layer '3': under muP .* Let the ranks grow with"):
            tacit.variational(hidden_net(width), {"3": tacit.Kronecker(4, 4)}, parametrization=mup)
        tacit.variational(hidden_net(width), {"3": tacit.Kronecker(4, 4)})

    @pytest.mark.parametrize(
        "where",
        [
            lambda width: {"0": tacit.LowRank(8), "3": tacit.LowRank(8)},
            lambda width: {"0": tacit.Kronecker(4, 4)},
            lambda width: {
                "0": tacit.Kronecker(4, 4),
                "3": tacit.Kronecker(width // 8, width // 8),
            },
            lambda width: {"3": tacit.Kronecker(4, 4, scale=(32 / width) ** 0.5)},
        ],
        ids=["low rank", "first layer", "growing ranks", "scaled"],
    )
    def test_what_is_taken_trains(self, width, where):
        for seed in range(3):
            torch.manual_seed(seed)
            mup, net = tacit.MaximalUpdate(hidden_net(32)), hidden_net(width)
            tacit.initialize(net, mup)
            model = tacit.variational(net, where(width), parametrization=mup)
            optimizer = torch.optim.SGD(model.param_groups(lr=0.05))
            x = torch.randn(1, 4).expand(16, 4)
            for _ in range(10):
                loss = (model(x) - 1).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            with torch.no_grad():
                assert model(x[:1], samples=50).std() < 2
