import pytest
import torch

from tacit.parametrization import initial_scales


@pytest.mark.parametrize(
    ("shapes", "fans"),
    [
        ({"weight": (10, 16), "bias": (10,)}, {"weight": 16, "bias": 16}),
        ({"weight": (8, 3, 5, 5), "bias": (8,)}, {"weight": 75, "bias": 75}),
        ({"weight": (64,), "bias": (64,)}, {"weight": 64, "bias": 64}),
        ({"weight_ih": (20, 3), "weight_hh": (20, 5), "bias": (20,)}, {"weight_ih": 3, "bias": 5}),
        ({"gain": ()}, {"gain": 1}),
    ],
)
def test_one_over_the_root_of_fan_in(shapes, fans):
    scales = initial_scales({name: torch.Size(shape) for name, shape in shapes.items()})
    assert list(scales) == list(shapes)
    for name, fan in fans.items():
        assert scales[name] == pytest.approx(fan**-0.5)
