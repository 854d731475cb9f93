"""tacit.fit with tacit.SGD stops between blocks and resumes with the same bits."""

import os
import signal

import pytest
import torch
from torch.testing import assert_close

import tacit
from training.optim.optimizer_pair import make_model


def test_fit_stops_at_the_end_of_a_block_and_resumes_with_the_same_bits(tmp_path, monkeypatch):
    """So that the resumed run has the same blocks."""
    data = torch.randn(192, 5), torch.randint(3, (192,))

    def fit(model, **settings):
        return tacit.fit(
            model, data, epochs=3, lr=0.05, batch_size=4, draws=1, progress=False,
            likelihood=tacit.Categorical(), precision="64-true", **settings,
        )  # fmt: skip

    whole, parts, rest = make_model(), make_model(), make_model()
    fit(whole)
    assert whole.deferral is None
    steps, original = [], tacit.SGD.step

    def step(self, closure=None):
        found = original(self, closure)
        steps.append(self.within_block)
        if len(steps) == 3:
            os.kill(os.getpid(), signal.SIGINT)
        return found

    monkeypatch.setattr(tacit.SGD, "step", step)
    with pytest.raises(KeyboardInterrupt):
        fit(parts, checkpoint=tmp_path)
    assert steps[2]
    assert not steps[-1]
    assert 3 < len(steps) < 48  # of an epoch
    fit(rest, checkpoint=tmp_path)
    assert_close(rest.state_dict(), whole.state_dict(), rtol=0, atol=0)
