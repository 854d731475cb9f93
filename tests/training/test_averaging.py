"""tacit.fit(average=...): the mean of the iterates over the last part of training."""

import copy
import signal

import pytest
import torch
from torch import nn
from torch.testing import assert_close
from torch.utils.data import TensorDataset

import tacit
from tacit.inference.scores import evaluate
from training.fit_problem import X, Y, fit, make_model, weights
from training.test_fit_stopping import Interrupting

EXACT = {"rtol": 0, "atol": 0}


def relative_model(**kwargs):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
    return tacit.variational(net, {"*": tacit.Relative()}, likelihood=tacit.Categorical(), **kwargs)


def plain_network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))


def norm_model():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 2))
    where = {"0": tacit.Relative(), "3": tacit.Relative()}
    return tacit.variational(net, where, likelihood=tacit.Categorical())


MODELS = {"relative": relative_model, "low rank": make_model, "plain": plain_network}


def settings_of(model):
    return {"likelihood": tacit.Categorical()} if isinstance(model, nn.Sequential) else {}


class TestRunningMean:
    @pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
    def test_the_result_is_the_mean_of_the_iterates(self, make):
        """One step per epoch, so that a callback sees all of them."""
        model, iterates = make(), []
        fit(
            model, epochs=10, batch_size=96, average=0.4, optimizer="adam",
            callbacks=[lambda row, model: iterates.append(weights(model))], **settings_of(model),
        )  # fmt: skip
        assert_close(weights(model), torch.stack(iterates[6:]).mean(0))
        assert not torch.equal(weights(model), iterates[-1])

    def test_the_iterates_are_those_of_training_without_an_average(self):
        runs = {}
        for average in (0.0, 0.5):
            runs[average] = []
            fit(
                relative_model(), epochs=4, average=average,
                callbacks=[lambda row, model, seen=runs[average]: seen.append(weights(model))],
            )  # fmt: skip
        for ours, theirs in zip(runs[0.5], runs[0.0], strict=True):
            assert_close(ours, theirs, **EXACT)

    def test_every_step_of_the_last_part_counts(self):
        """18 steps, of which the last 9 are averaged: half of the second epoch and the third."""
        model, by_hand = plain_network(), plain_network()
        fit(model, epochs=3, average=0.5, momentum=0.0, likelihood=tacit.Categorical())
        total, seen = torch.zeros_like(weights(by_hand)), []
        stepped = torch.optim.SGD.step

        def step(self, *args, **kwargs):
            result = stepped(self, *args, **kwargs)
            seen.append(weights(by_hand))
            return result

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(torch.optim.SGD, "step", step)
            fit(by_hand, epochs=3, momentum=0.0, likelihood=tacit.Categorical())
        assert len(seen) == 18
        for iterate in seen[9:]:
            total += iterate / 9
        assert_close(weights(model), total)

    def test_frozen_weights_keep_their_bits(self, tmp_path):
        """The mean of -0 and -0 may be 0, and a file with adapters has a checksum of the bits."""
        net = plain_network()
        with torch.no_grad():
            net[0].weight[0] = -0.0
        pretrained = copy.deepcopy(net)
        model = tacit.variational(net, tacit.adapters(2), likelihood=tacit.Categorical())
        fit(model, average=0.5)
        assert model.module[0].weight.signbit()[0].all()
        loaded = tacit.load(tacit.save(model, tmp_path / "adapters.safetensors"), pretrained)
        assert_close(loaded(X), model.eval()(X), **EXACT)

    @pytest.mark.parametrize("average", [-0.1, 1.1, "half"])
    def test_a_part_outside_of_0_to_1_is_refused(self, average):
        with pytest.raises((ValueError, TypeError), match="average: expected"):
            fit(make_model(), average=average)


class TestBatchNorm:
    def test_statistics_are_recomputed_for_the_average(self):
        model = norm_model()
        fit(model, epochs=4, average=0.5, batch_size=96)
        norm = model.module[1]
        assert norm.num_batches_tracked == 1
        assert norm.momentum == 0.1
        reference = copy.deepcopy(model).eval()
        hidden = reference.module[0](X)
        # The noise of the first layer adds no bias, but some variance.
        assert_close(norm.running_mean, hidden.mean(0), rtol=0, atol=0.15)
        assert (norm.running_var > 0.7 * hidden.var(0)).all()

    def test_for_a_plain_network_they_are_the_mean_over_batches(self):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 2))
        fit(net, epochs=4, average=0.5, batch_size=96, likelihood=tacit.Categorical())
        hidden = net[0](X).detach()
        assert_close(net[1].running_mean, hidden.mean(0))
        assert_close(net[1].running_var, hidden.var(0))

    def test_frozen_statistics_stay_frozen(self):
        model = norm_model()
        model.module[1].eval()
        before = model.module[1].running_mean.clone()
        fit(model, epochs=2, average=0.5)
        assert torch.equal(model.module[1].running_mean, before)


class TestResume:
    @pytest.mark.parametrize("make", [relative_model, make_model, norm_model, plain_network])
    def test_after_a_stop_within_the_averaged_part_it_gives_the_same_bits(self, make, tmp_path):
        whole, rest = make(), make()
        settings = {"average": 0.6, **settings_of(whole)}
        with pytest.raises(SystemExit):  # after step 9 of 18; the average begins with step 8
            fit(make(), Interrupting(96 + 40, signal.SIGTERM), checkpoint=tmp_path, **settings)
        fit(whole, TensorDataset(X, Y), **settings)
        fit(rest, TensorDataset(X, Y), checkpoint=tmp_path, **settings)
        for name, value in whole.state_dict().items():
            assert_close(rest.state_dict()[name], value, **EXACT)

    @pytest.mark.parametrize("make", [relative_model, norm_model])
    def test_a_finished_run_gives_the_same_bits_again(self, make, tmp_path):
        first, again = make(), make()
        ours = fit(first, validation=(X, Y), average=0.5, checkpoint=tmp_path)
        theirs = fit(again, validation=(X, Y), average=0.5, checkpoint=tmp_path)
        assert ours["nll"] == theirs["nll"]
        for name, value in first.state_dict().items():
            assert_close(again.state_dict()[name], value, **EXACT)

    def test_more_epochs_are_refused(self, tmp_path):
        fit(relative_model(), epochs=2, average=0.5, checkpoint=tmp_path)
        with pytest.raises(ValueError, match="it had epochs 2, now 4"):
            fit(relative_model(), epochs=4, average=0.5, checkpoint=tmp_path)

    def test_another_part_is_another_run(self, tmp_path):
        fit(relative_model(), average=0.5, checkpoint=tmp_path)
        with pytest.raises(ValueError, match=r"average 0.5, now 0.4"):
            fit(relative_model(), average=0.4, checkpoint=tmp_path)


class TestValidation:
    def nll(self, model):
        generator = torch.Generator().manual_seed(0)
        return evaluate(model, (X, Y), samples=8, generator=generator)["nll"]

    def test_scores_are_those_of_the_average_from_then_on(self):
        model, iterates = relative_model(), []
        keep = [lambda row, model: iterates.append(copy.deepcopy(model))]
        history = fit(model, validation=(X, Y), epochs=4, average=0.5, callbacks=keep)
        assert history["nll"][1] == pytest.approx(self.nll(iterates[1]))
        assert history["nll"][3] == pytest.approx(self.nll(model))
        assert history["nll"][3] != pytest.approx(self.nll(iterates[3]), rel=1e-6)

    def test_early_stopping_restores_the_best_average(self):
        model = relative_model()
        data = (X[:20], Y[:20]), (X[20:], Y[20:])
        history = fit(model, *data, epochs=60, lr=0.3, average=0.9, early_stopping=4)
        assert history.stopped == "early stopping"
        generator = torch.Generator().manual_seed(0)
        scores = evaluate(model, data[1], samples=8, generator=generator)
        assert scores["nll"] == pytest.approx(min(history["nll"]))


def test_with_deferred_updates_the_ends_of_epochs_are_averaged():
    x, y = torch.randn(320, 784), torch.randint(0, 100, (320,))
    net = nn.Linear(784, 100)
    model = tacit.variational(net, {"": tacit.LowRank(10)}, likelihood=tacit.Categorical())
    settings = {"epochs": 4, "lr": 0.01, "batch_size": 16, "draws": 1, "progress": False}
    ends = []

    def record(row, model):
        ends.append(model.factors.weight.detach().clone())

    tacit.fit(copy.deepcopy(model), (x, y), callbacks=[record], **settings)
    tacit.fit(model, (x, y), average=0.5, **settings)
    assert_close(model.factors.weight.detach(), (ends[2] + ends[3]) / 2)
