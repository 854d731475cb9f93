import pytest
import torch
from torch import nn

from tacit.scaling.parametrization import Fans, fans_of


class Tokens(nn.Module):
    def __init__(self):
        super().__init__()
        self.token = nn.Parameter(torch.zeros(1, 5, 16))
        self.gain = nn.Parameter(torch.ones(()))


@pytest.mark.parametrize(
    ("module", "expected"),
    [
        (nn.Linear(8, 4), {"weight": ("weight", 8, 4), "bias": ("bias", 8, 4)}),
        (nn.Conv2d(6, 4, (3, 2)), {"weight": ("weight", 36, 4), "bias": ("bias", 36, 4)}),
        (nn.Conv1d(6, 4, 3, groups=2), {"weight": ("weight", 9, 4), "bias": ("bias", 9, 4)}),
        (nn.ConvTranspose2d(6, 4, 3, groups=2), {"weight": ("weight", 27, 4)}),
        (nn.Embedding(100, 8), {"weight": ("embedding", 1, 8)}),
        (nn.LayerNorm(8), {"weight": ("gain", 8, 8), "bias": ("gain", 8, 8)}),
        (nn.BatchNorm2d(8), {"weight": ("gain", 8, 8)}),
        (
            nn.LSTM(8, 4),
            {
                "weight_ih_l0": ("weight", 8, 4),
                "weight_hh_l0": ("weight", 4, 4),
                "bias_ih_l0": ("bias", 8, 4),
            },
        ),
        (nn.LSTM(8, 4, proj_size=2), {"weight_hr_l0": ("weight", 4, 2)}),
        (nn.GRU(8, 4), {"weight_ih_l0": ("weight", 8, 4)}),
        (
            nn.MultiheadAttention(8, 2),
            {
                "in_proj_weight": ("weight", 8, 8),
                "in_proj_bias": ("bias", 8, 8),
                "out_proj.weight": ("weight", 8, 8),
            },
        ),
        (nn.MultiheadAttention(8, 2, kdim=6), {"k_proj_weight": ("weight", 6, 8)}),
        (Tokens(), {"token": ("bare", 16, 16), "gain": ("bare", 1, 1)}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_kind_and_fans_of_each_layer_type(module, expected):
    fans = fans_of(module)
    assert list(fans) == [name for name, _ in module.named_parameters()]
    assert {name: fans[name] for name in expected} == {n: Fans(*f) for n, f in expected.items()}


def test_hugging_face_conv1d_is_transposed():
    conv1d = pytest.importorskip("transformers.pytorch_utils").Conv1D
    assert fans_of(conv1d(12, 4))["weight"] == Fans("weight", 4, 12)


def test_a_tied_parameter_appears_under_its_first_name():
    module = nn.ModuleDict({"embedding": nn.Embedding(10, 4), "head": nn.Linear(4, 10)})
    module["head"].weight = module["embedding"].weight
    fans = fans_of(module)
    assert fans["embedding.weight"].kind == "embedding"
    assert set(fans) == {"embedding.weight", "head.bias"}
