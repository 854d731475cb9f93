import pytest
import torch

from tacit.training.optim import eligibility


@pytest.fixture(autouse=True)
def _float64_and_deferral_for_layers_of_any_size(monkeypatch):
    monkeypatch.setattr(eligibility, "WIDE", 0)
    monkeypatch.setattr(eligibility, "SMALL", 0)
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)
