"""The benchmarks run; what they measure is not a test."""

import json
import sys

import pytest
import torch
from torch import nn

from benchmarks import step_time
from tacit.experiments.timing import training_bytes


@pytest.mark.slow
def test_smoke(tmp_path, monkeypatch, capsys):
    out = tmp_path / "results" / "step_time.json"
    monkeypatch.setattr(sys, "argv", ["step_time", "--smoke", "--out", str(out)])
    step_time.main()
    saved = json.loads(out.read_text())
    assert set(saved) == {"arguments", "environment", "ranks", "seed", "rows"}
    assert all(row["ratio"] > 0 for row in saved["rows"].values())
    assert "Cost over plain" in capsys.readouterr().out


def test_memory_is_counted_by_hand():
    # Parameters, gradients and momentum of 3 x 2 + 2 numbers; the input is saved for the backward
    # pass, and the output by square.
    net, x = nn.Linear(3, 2), torch.randn(5, 3)
    expected = 4 * (3 * 8 + 5 * 3 + 5 * 2)
    assert training_bytes(net, lambda: net(x).square().sum()) == expected


def test_memory_of_resnet18_is_within_a_twentieth():
    assert step_time.memory()["ratio"] < 1.05
