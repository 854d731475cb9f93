import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tacit.studies.timing import interleaved_seconds, ratio, repeated, training_bytes


def test_warm_up_calls_are_not_timed():
    calls = []
    functions = {name: lambda name=name: calls.append(name) for name in ("a", "b")}
    seconds = interleaved_seconds(functions, repeats=4, label="", warmup=2)
    assert {name: len(times) for name, times in seconds.items()} == {"a": 4, "b": 4}
    assert all(set(calls[i : i + 2]) == {"a", "b"} for i in range(0, 12, 2))  # interleaved
    assert len(calls) == 12


def test_a_repeated_function_is_called_several_times():
    calls = []
    repeated(lambda: calls.append(1), times=3)()
    assert len(calls) == 3


def test_the_ratio_is_that_of_the_medians():
    found = ratio({"a": [2.0, 4.0, 90.0], "b": [1.0, 2.0, 3.0]}, "a", "b", times=2)
    assert found["ratio"] == pytest.approx(2.0)
    assert (found["seconds"], found["anchor_seconds"]) == pytest.approx((2.0, 1.0))
    assert found["ratio_low"] <= found["ratio"] <= found["ratio_high"]


def test_the_bytes_of_a_training_step_are_counted_by_hand():
    # Parameters, gradients and momentum of 3 x 2 + 2 numbers; square saves the output; the loss.
    net, x = nn.Linear(3, 2), torch.randn(5, 3)
    expected = 4 * (3 * 8 + 5 * 2 + 1)
    assert training_bytes(net, lambda: net(x).square().sum()) == expected


def test_recomputed_activations_are_not_counted():
    def bytes_of(layers):
        net, x = nn.Sequential(*layers), torch.randn(64, 8)
        return training_bytes(net, lambda: net(x).sum())

    class Checkpointed(nn.Sequential):
        def forward(self, x):
            return checkpoint(super().forward, x, use_reentrant=False, preserve_rng_state=False)

    def hidden():
        return [nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh()]

    kept, recomputed = bytes_of(hidden()), bytes_of([Checkpointed(*hidden())])
    assert kept - recomputed == 2 * 4 * 64 * 8  # outputs of tanh
