import numpy as np
import pytest
import torch
from torch import nn
from torch.testing import assert_close

import tacit
from tacit.methods import MCDropout
from tacit.methods.mc_dropout import Dropped, inner_layers


def net(groups=1):
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 6, 3, groups=groups), nn.ReLU(), nn.Flatten(),
        nn.Linear(6 * 16, 3),
    )  # fmt: skip


X = torch.randn(5, 1, 8, 8, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("groups", [1, 2])
def test_zero_weights_stand_for_dropped_inputs(groups):
    predictor = Dropped(net(groups), tacit.Categorical(), 0.5)
    weights = predictor.weights(predictor.draw(torch.Generator().manual_seed(1)))
    layer = predictor.net[2]
    inputs = torch.randn(2, 4, 6, 6)
    kept = weights["2.weight"].flatten(2).abs().sum(2) > 0  # (out, in / groups)
    for i in range(6):
        group = i // (6 // groups)
        channels = slice(group * 4 // groups, (group + 1) * 4 // groups)
        assert torch.equal(kept[i], kept[group * (6 // groups)])  # the same mask for all outputs
        masked = inputs[:, channels] * kept[i][:, None, None] / 0.5
        expected = nn.functional.conv2d(masked, layer.weight[i : i + 1], layer.bias[i : i + 1])
        found = nn.functional.conv2d(inputs, weights["2.weight"], layer.bias, groups=groups)
        assert_close(found[:, i : i + 1], expected)


def test_the_mean_over_functions_of_a_linear_network_is_the_network():
    plain = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)).double()
    predictor = Dropped(plain, tacit.Categorical(), 0.2)
    x = torch.randn(6, 3, dtype=torch.float64)
    functions = predictor.functions(samples=2000, chunk_size=None, generator=None)(x)
    error = functions.std(0) / 2000**0.5
    assert ((functions.mean(0) - plain(x)).abs() < 5 * error).all()


def test_training_masks_each_example_and_leaves_no_hooks():
    predictor = Dropped(net(), tacit.Categorical(), 0.5)
    same = X[:1].expand(5, -1, -1, -1)
    predictor.net.train()
    with predictor.dropping():
        first = predictor.net(same)
        assert not torch.allclose(first[0], first[1])
        predictor.net.eval()
        assert torch.allclose(predictor.net(same)[0], predictor.net(same)[1])
    predictor.net.train()
    assert torch.equal(predictor.net(same), predictor.net(same))


def test_layers_within_attention_are_excluded():
    layers = inner_layers(nn.TransformerEncoderLayer(8, 2, 16))
    assert list(layers) == ["linear2"]


def test_bad_rates_and_single_layers_are_refused():
    with pytest.raises(ValueError, match="MCDropout\\(rate\\): expected a number between 0 and 1"):
        MCDropout(1.0)
    with pytest.raises(ValueError, match="no inner layer"):
        inner_layers(nn.Linear(2, 3))


def test_a_tied_layer_has_its_own_mask():
    plain = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2))
    plain[1].weight = plain[0].weight
    predictor = Dropped(plain, tacit.Categorical(), 0.5)
    x = torch.randn(3, 4)
    generator = torch.Generator().manual_seed(0)
    found = predictor.functions(samples=1, chunk_size=None, generator=generator)(x)
    w = predictor.weights(predictor.draw(generator.manual_seed(0)))
    h = nn.functional.linear(plain[0](x), w["1.weight"], plain[1].bias)
    assert_close(found[0], nn.functional.linear(h, w["2.weight"], plain[2].bias))


class HeadFirst(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(8, 2)
        self.body = nn.Linear(4, 8)

    def forward(self, x):
        return self.head(self.body(x).relu())


def test_data_are_not_dropped_because_the_head_is_defined_first():
    data = torch.randn(8, 4), torch.zeros(8, dtype=torch.long)
    with pytest.raises(ValueError, match="'body' is called first, but 'head' is defined before"):
        MCDropout().fit(HeadFirst, data, epochs=1, lr=0.01, progress=False)


def test_a_numpy_rate_is_a_python_number():
    assert type(MCDropout(np.float32(0.5)).rate) is float
    with pytest.raises(TypeError, match="MCDropout\\(rate\\): expected a number between 0 and 1"):
        MCDropout("0.1")


def test_a_temperature_is_set_only_on_request():
    def flat():
        return nn.Sequential(nn.Flatten(), nn.Linear(X[0].numel(), 8), nn.ReLU(), nn.Linear(8, 3))

    data, settings = (X, torch.arange(len(X)) % 3), {"epochs": 3, "lr": 0.05, "progress": False}
    for calibrated in (True, False):
        predictor = MCDropout(calibrated=calibrated).fit(flat, data, data, **settings)
        assert (predictor.likelihood.temperature != 1) == calibrated
