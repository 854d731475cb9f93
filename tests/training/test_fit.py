import contextlib
import io
import math
import os
import signal
import subprocess
import threading

import numpy as np
import pytest
import torch
from rich.console import Console
from torch import nn
from torch.testing import assert_close
from torch.utils.data import DataLoader, TensorDataset

import tacit
from tacit.training import TrainingDivergedError
from tacit.training.checkpoints import read_newest

GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(96, 4, generator=GENERATOR)
Y = (X[:, 0] + X[:, 1] > 0).long()


def make_model(likelihood=None, outputs=2, **kwargs):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, outputs))
    return tacit.variational(
        net, {"2": tacit.LowRank(4)}, likelihood=likelihood or tacit.Categorical(), **kwargs
    )


def fit(model, train=(X, Y), validation=None, **kwargs):
    settings = {"epochs": 3, "lr": 0.05, "batch_size": 16, **kwargs}
    return tacit.fit(model, train, validation, **settings)


def weights(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


class TestLearning:
    def test_it_learns_and_tells(self):
        model = make_model()
        history = fit(model, validation=(X, Y), epochs=10)
        assert len(history) == 10
        assert history["accuracy"][-1] > 0.9
        assert history["nll"][-1] < history["nll"][0]
        assert history["epoch"] == list(range(1, 11))
        assert history.stopped == "epochs"
        with pytest.raises(KeyError, match="there is no 'auc'. There are: epoch, loss"):
            history["auc"]

    def test_it_is_a_plain_loop(self):
        """With one draw of the weights and torch's SGD, in the order of the data it reports."""
        model, other = make_model(), make_model()
        fit(model, epochs=2, seed=3, draws=1)
        optimizer = torch.optim.SGD(other.param_groups(0.05), lr=0.05, momentum=0.9)
        torch.manual_seed((3 + 1) * 2_000_003)
        for epoch in range(2):
            generator = torch.Generator().manual_seed(3 * 1_000_003 + epoch)
            for rows in torch.randperm(96, generator=generator).split(16):
                loss = nn.functional.cross_entropy(other(X[rows]), Y[rows])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        assert_close(weights(model), weights(other), rtol=0, atol=0)

    @pytest.mark.parametrize("kwargs", [{"samples": 4}, {"draws": 4}, {"draws": 500}])
    def test_samples_and_draws(self, kwargs):
        assert fit(make_model(), **kwargs)["loss"][-1] < 0.7

    def test_draws_if_nothing_is_said(self):
        def trained(**kwargs):
            model = make_model()
            fit(model, epochs=1, **kwargs)
            return weights(model)

        assert torch.equal(trained(), trained(draws=8))
        assert not torch.equal(trained(), trained(draws=1))
        assert torch.equal(trained(samples=2), trained(samples=2, draws=1))

    def test_one_draw_is_one_draw(self):
        several, one = make_model(draws=4), make_model()
        fit(several, epochs=1, draws=1)
        fit(one, epochs=1, draws=1)
        assert torch.equal(weights(several), weights(one))

    def test_one_draw_where_the_batch_is_not_first(self):
        layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0)  # (T, B, 4)
        model = tacit.variational(layer, ["linear1"], rank=2, likelihood=tacit.Gaussian())
        fit(model, (X[:16, None], X[:16, None]), epochs=1)
        with pytest.raises(ValueError, match="has batch_first=False; use draws=1"):
            fit(model, (X[:16, None], X[:16, None]), epochs=1, draws=2)

    def test_draws_of_the_model_and_of_batch_norm_if_nothing_is_said(self):
        net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))
        calls = []
        plain = nn.Linear(4, 2)
        for model in (tacit.variational(net), tacit.variational(plain, rank=2, draws=4)):
            model._training_weights = lambda shape, generator, model=model: (
                calls.append(shape), type(model)._training_weights(model, shape, generator)
            )[1]  # fmt: skip
            fit(model, epochs=1, batch_size=96, likelihood=tacit.Categorical())
        assert calls == [(), (4,)]

    @pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw", "rmsprop"])
    def test_optimizers(self, optimizer):
        assert math.isfinite(fit(make_model(), optimizer=optimizer, lr=0.01)["loss"][-1])

    @pytest.mark.parametrize(
        "train",
        [
            (X.numpy(), Y.numpy()),
            [X, Y[:, None]],
            TensorDataset(X, Y),
            DataLoader(TensorDataset(X, Y), batch_size=16, shuffle=True),
        ],
        ids=["arrays", "column", "dataset", "loader"],
    )
    def test_any_data(self, train):
        runs = [make_model(), make_model()]
        for model in runs:
            fit(model, train)
        assert_close(weights(runs[0]), weights(runs[1]), rtol=0, atol=0)

    def test_a_dataset_and_its_tensors_give_the_same(self):
        runs = [make_model(), make_model()]
        fit(runs[0], TensorDataset(X, Y))
        fit(runs[1], (X, Y))
        assert_close(weights(runs[0]), weights(runs[1]))

    def test_regression_with_learned_noise(self):
        y = X[:, :1] + 0.1 * torch.randn(96, 1, generator=torch.Generator().manual_seed(1))
        model = make_model(tacit.Gaussian(1.0), outputs=1)
        history = fit(model, (X, y), (X, y), epochs=60, lr=0.01, optimizer="adam")
        assert model.likelihood.scale < 0.5
        assert history["rmse"][-1] < 0.3
        assert 0.5 < history["coverage_90"][-1] <= 1

    def test_yes_or_no(self):
        model = make_model(tacit.Bernoulli(), outputs=1)
        assert fit(model, (X, Y), (X, Y), epochs=10)["accuracy"][-1] > 0.9

    def test_a_plain_network(self):
        net = nn.Linear(4, 2)
        history = tacit.fit(net, (X, Y), (X, Y), epochs=10, lr=0.1, likelihood=tacit.Categorical())
        assert history["accuracy"][-1] > 0.9

    def test_a_likelihood_that_is_given_is_learned_and_kept(self, tmp_path):
        y = 3 * torch.randn(96, 1, generator=torch.Generator().manual_seed(1))
        likelihood, net = tacit.Gaussian(1.0), nn.Linear(4, 1)
        fit(net, (X, y), likelihood=likelihood, epochs=30, lr=0.02, checkpoint=tmp_path)
        assert likelihood.scale > 2
        restored = tacit.Gaussian(1.0)
        fit(nn.Linear(4, 1), (X, y), likelihood=restored, epochs=30, lr=0.02, checkpoint=tmp_path)
        assert restored.scale.item() == likelihood.scale.item()
        model = tacit.variational(nn.Linear(4, 1), rank=2)
        fit(model, (X, y), likelihood=tacit.Gaussian(1.0), epochs=1)
        assert tacit.predict(model, X).std.shape == (96, 1)
        assert not tacit.predict(model, X).std.requires_grad

    def test_arrays_in_double_precision_are_taken_as_they_come(self):
        model = make_model()
        fit(model, (X.double().numpy(), Y.int().numpy()), (X.double(), Y[:, None]))
        assert tacit.evaluate(model, (X.double(), Y))["nll"] < 1
        assert tacit.predict(model, X.double().numpy()).probs.dtype == torch.float32

    def test_frozen_layers_stay_frozen(self):
        net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))
        model = tacit.variational(net, {"2": tacit.LowRank(2)}, likelihood=tacit.Categorical())
        net[1].eval()
        before = net[1].running_mean.clone()
        fit(model, validation=(X, Y))
        assert not net[1].training
        assert model.training
        assert_close(net[1].running_mean, before, rtol=0, atol=0)

    def test_batch_norm_with_draws_and_a_short_last_batch(self):
        net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))
        model = tacit.variational(net, {"2": tacit.LowRank(2)}, likelihood=tacit.Categorical())
        history = fit(model, (X[:41], Y[:41]), draws=8, batch_size=32)
        assert math.isfinite(history["loss"][-1])
        assert model.draws == 1

    def test_the_callers_random_numbers_are_left_alone(self):
        model = make_model()
        before = torch.get_rng_state()
        fit(model, epochs=1)
        assert torch.equal(torch.get_rng_state(), before)

    @pytest.mark.parametrize("kind", [tacit.ELBO, tacit.GVI])
    def test_objectives(self, kind):
        torch.manual_seed(0)
        model = tacit.variational(
            nn.Linear(4, 2), {"": tacit.Diagonal()}, likelihood=tacit.Categorical()
        )
        settings = {"strength": 1.0} if kind is tacit.GVI else {}
        objective = kind(model.prior(), **settings)
        assert math.isfinite(fit(model, objective=objective)["loss"][-1])

    def test_schedules_keep_the_ratios(self, tmp_path):
        seen = []

        def watch(row, model):
            seen.append(row["lr"])

        fit(make_model(), schedule="cosine", epochs=4, callbacks=[watch])
        assert seen == sorted(seen, reverse=True)
        assert seen[-1] < 0.01
        model = make_model()
        fit(model, schedule=lambda part: 1 + part, epochs=2, callbacks=[watch], checkpoint=tmp_path)
        assert seen[-1] > 0.05
        rates = [group["lr"] for group in read_newest(tmp_path).data["optimizer"]["groups"]]
        expected = [group["lr"] for group in model.param_groups(seen[-1])]
        assert len(set(rates)) == 2  # means, and factors of rank 4
        assert rates == pytest.approx(expected)

    def test_double_precision(self):
        model = make_model().double()
        fit(model, (X.double(), Y), precision="64-true")
        assert weights(model).dtype == torch.float64

    def test_mixed_precision(self):
        assert math.isfinite(fit(make_model(), precision="bf16-mixed")["loss"][-1])

    def test_the_history_as_a_picture(self, tmp_path):
        history = fit(make_model(), validation=(X, Y))
        history.plot(tmp_path / "history.png", "training")
        assert (tmp_path / "history.png").stat().st_size > 0


class TestProgress:
    def test_shows_loss_metrics_and_time_on_a_terminal(self, monkeypatch):
        stream = io.StringIO()
        terminal = Console(file=stream, force_terminal=True, width=120)
        monkeypatch.setattr("rich.console.Console", lambda stderr: terminal)
        fit(make_model(), validation=(X, Y), epochs=3)
        shown = stream.getvalue()
        assert "epoch 3/3" in shown
        assert all(word in shown for word in ("loss", "nll", "accuracy", "0:00:"))

    def test_is_quiet_elsewhere(self, capfd):
        fit(make_model(), validation=(X, Y))
        assert capfd.readouterr() == ("", "")


class TestStopping:
    def test_early_stopping_goes_back_to_the_best(self):
        model = make_model()
        history = fit(
            model, (X[:20], Y[:20]), (X[20:], Y[20:]), epochs=200, early_stopping=3, lr=0.1
        )
        best = min(range(len(history)), key=history["nll"].__getitem__)
        assert history.stopped == "early stopping"
        assert len(history) == best + 1 + 3
        shorter = make_model()
        again = fit(shorter, (X[:20], Y[:20]), (X[20:], Y[20:]), epochs=best + 1, lr=0.1)
        assert again["nll"][-1] == pytest.approx(history["nll"][best])
        assert_close(weights(model), weights(shorter), rtol=0, atol=0)

    def test_a_callback_stops(self):
        history = fit(make_model(), epochs=9, callbacks=[lambda row, _: row["epoch"] == 2])
        assert (len(history), history.stopped) == (2, "callback")

    def test_a_loss_that_is_not_finite(self):
        model = make_model()
        fit(model, epochs=1)
        before = weights(model)
        with pytest.raises(TrainingDivergedError, match="Try a smaller learning rate than 1e"):
            fit(model, lr=1e30)
        assert_close(weights(model), before, rtol=0, atol=0)
        # Also if the step that ruins the weights is the last of an epoch.
        with pytest.raises(TrainingDivergedError, match="not finite|loss is"):
            fit(model, lr=1e18, batch_size=96, epochs=9)
        assert_close(weights(model), before, rtol=0, atol=0)

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
    def test_signals_stop_after_the_step_and_leave_a_checkpoint(self, number, tmp_path, capsys):
        model, seen = make_model(), []

        class Watched(torch.utils.data.Dataset):
            def __len__(self):
                return 96

            def __getitem__(self, i):
                seen.append(i)
                if len(seen) == 40:
                    os.kill(os.getpid(), number)
                return X[i], Y[i]

        ends = KeyboardInterrupt if number == signal.SIGINT else SystemExit
        with pytest.raises(ends):
            fit(model, Watched(), checkpoint=tmp_path)
        assert "stopped after step 3 of 18; start again to go on" in capsys.readouterr().err
        assert read_newest(tmp_path).data["done"] == 3  # the step it was in
        whole, rest = make_model(), make_model()
        fit(whole, TensorDataset(X, Y))
        history = fit(rest, TensorDataset(X, Y), checkpoint=tmp_path)
        assert history.stopped == "epochs"
        assert_close(weights(rest), weights(whole), rtol=0, atol=0)

    def test_a_signal_in_the_last_step_of_an_epoch(self, tmp_path):
        model, seen = make_model(), []

        class Watched(torch.utils.data.Dataset):
            def __len__(self):
                return 96

            def __getitem__(self, i):
                seen.append(i)
                if len(seen) == 96:
                    os.kill(os.getpid(), signal.SIGTERM)
                return X[i], Y[i]

        with pytest.raises(SystemExit) as stop:
            fit(model, Watched(), checkpoint=tmp_path)
        assert stop.value.code == 143
        assert read_newest(tmp_path).data["epoch"] == 1
        whole, rest = make_model(), make_model()
        fit(whole, TensorDataset(X, Y))
        assert len(fit(rest, TensorDataset(X, Y), checkpoint=tmp_path)) == 3
        assert_close(weights(rest), weights(whole), rtol=0, atol=0)

    def test_outside_the_main_thread(self):
        found = []
        thread = threading.Thread(target=lambda: found.append(fit(make_model(), epochs=1)))
        thread.start()
        thread.join()
        assert len(found[0]) == 1


class TestCheckpoints:
    def test_finished_runs_are_not_run_again_and_can_be_prolonged(self, tmp_path):
        first = make_model()
        fit(first, epochs=2, checkpoint=tmp_path)
        again = make_model()
        assert len(fit(again, epochs=2, checkpoint=tmp_path)) == 2
        assert_close(weights(again), weights(first), rtol=0, atol=0)
        longer, whole = make_model(), make_model()
        fit(longer, epochs=4, checkpoint=tmp_path)
        fit(whole, epochs=4)
        assert_close(weights(longer), weights(whole), rtol=0, atol=0)

    @pytest.mark.parametrize("optimizer", ["sgd", "adam", "nadam"])
    @pytest.mark.parametrize("loader", [False, True])
    def test_going_on_gives_the_same_bits(self, optimizer, loader, tmp_path):
        """Also with randomness of NumPy and Python in the data."""

        class Noisy(torch.utils.data.Dataset):
            def __len__(self):
                return 96

            def __getitem__(self, i):
                return X[i] + np.random.rand() + torch.rand(1), Y[i]

        def data():
            return DataLoader(Noisy(), batch_size=16, shuffle=True) if loader else Noisy()

        whole, parts = make_model(), make_model()
        np.random.seed(0)
        fit(whole, data(), epochs=4, optimizer=optimizer, lr=0.01)
        np.random.seed(0)
        fit(parts, data(), epochs=2, optimizer=optimizer, lr=0.01, checkpoint=tmp_path)
        np.random.seed(5)
        parts = make_model()
        fit(parts, data(), epochs=4, optimizer=optimizer, lr=0.01, checkpoint=tmp_path)
        assert_close(weights(parts), weights(whole), rtol=0, atol=0)

    def test_early_stopping_survives(self, tmp_path):
        data = (X[:20], Y[:20]), (X[20:], Y[20:])
        settings = {"early_stopping": 3, "lr": 0.1}
        whole, parts = make_model(), make_model()
        history = fit(whole, *data, epochs=200, **settings)
        fit(parts, *data, epochs=4, checkpoint=tmp_path, **settings)
        parts = make_model()
        again = fit(parts, *data, epochs=200, checkpoint=tmp_path, **settings)
        assert again["nll"] == history["nll"]
        assert_close(weights(parts), weights(whole), rtol=0, atol=0)

    def test_the_newest_two_are_kept(self, tmp_path):
        fit(make_model(), epochs=5, checkpoint=tmp_path)
        names = sorted(path.name for path in tmp_path.iterdir())
        assert names == ["step-000000000024.safetensors", "step-000000000030.safetensors"]

    def test_a_truncated_one_falls_back_to_the_older(self, tmp_path):
        fit(make_model(), epochs=3, checkpoint=tmp_path)
        newest = max(tmp_path.iterdir())
        newest.write_bytes(newest.read_bytes()[:-1000])
        whole, rest = make_model(), make_model()
        fit(whole, epochs=3)
        fit(rest, epochs=3, checkpoint=tmp_path)
        assert_close(weights(rest), weights(whole), rtol=0, atol=0)

    def test_if_none_can_be_read_the_file_is_named(self, tmp_path):
        (tmp_path / "step-000000000001.safetensors").write_bytes(b"nothing")
        with pytest.raises(ValueError, match=r"step-000000000001.safetensors can't be read"):
            fit(make_model(), checkpoint=tmp_path)

    def test_a_foreign_one(self, tmp_path):
        tacit.save(make_model(), tmp_path / "step-000000000001.safetensors")
        with pytest.raises(ValueError, match=r"was not written by tacit.fit"):
            fit(make_model(), checkpoint=tmp_path)

    def test_of_another_run(self, tmp_path):
        fit(make_model(), epochs=1, checkpoint=tmp_path)
        with pytest.raises(ValueError, match=r"it had lr 0.05, now 0.1; seed 0, now 1"):
            fit(make_model(), epochs=1, checkpoint=tmp_path, lr=0.1, seed=1)
        new, again = make_model(), make_model()
        fit(make_model(), epochs=5, checkpoint=tmp_path)
        fit(new, epochs=2, checkpoint=tmp_path, lr=0.1, resume="never")
        assert len(fit(again, epochs=2, checkpoint=tmp_path, lr=0.1)) == 2
        assert_close(weights(again), weights(new), rtol=0, atol=0)

    def test_with_another_objective_or_schedule(self, tmp_path):
        def model():
            torch.manual_seed(0)
            net = nn.Linear(4, 2)
            return tacit.variational(net, {"": tacit.Diagonal()}, likelihood=tacit.Categorical())

        first = model()
        fit(first, epochs=1, checkpoint=tmp_path, objective=tacit.GVI(first.prior(), 1.0))
        again = model()
        history = fit(again, epochs=2, checkpoint=tmp_path, objective=tacit.GVI(again.prior(), 1.0))
        assert len(history) == 2
        moved = again.prior()
        for change in ({"objective": tacit.GVI(moved, 1.0)}, {"schedule": "cosine"}, {}):
            with pytest.raises(ValueError, match="is of another run: it had"):
                fit(model(), epochs=3, checkpoint=tmp_path, **change)

    def test_longer_than_a_schedule_was_made_for(self, tmp_path):
        fit(make_model(), epochs=2, checkpoint=tmp_path, schedule="cosine")
        with pytest.raises(ValueError, match="it had epochs 2, now 4"):
            fit(make_model(), epochs=4, checkpoint=tmp_path, schedule="cosine")

    def test_a_loader_with_a_generator_of_its_own(self, tmp_path):
        def data():
            generator = torch.Generator().manual_seed(7)
            return DataLoader(TensorDataset(X, Y), 16, shuffle=True, generator=generator)

        whole, parts = make_model(), make_model()
        fit(whole, data(), epochs=4)
        fit(make_model(), data(), epochs=2, checkpoint=tmp_path)
        fit(parts, data(), epochs=4, checkpoint=tmp_path)
        assert_close(weights(parts), weights(whole), rtol=0, atol=0)

    def test_persistent_workers_are_refused(self, tmp_path):
        loader = DataLoader(TensorDataset(X, Y), 16, num_workers=1, persistent_workers=True)
        with pytest.raises(ValueError, match="persistent_workers=True keep random states"):
            fit(make_model(), loader, checkpoint=tmp_path)

    def test_what_a_killed_write_left_is_removed(self, tmp_path):
        (tmp_path / ".step-000000000006.safetensors.1").write_bytes(b"half")
        fit(make_model(), epochs=1, checkpoint=tmp_path)
        assert [path.name for path in tmp_path.iterdir()] == ["step-000000000006.safetensors"]

    def test_of_another_model(self, tmp_path):
        fit(make_model(), epochs=1, checkpoint=tmp_path)
        with pytest.raises(ValueError, match=r"doesn't fit the model: '.*' is \("):
            fit(make_model(outputs=3), epochs=2, checkpoint=tmp_path)

    def test_a_full_disk_loses_nothing(self, tmp_path, monkeypatch):
        fit(make_model(), epochs=2, checkpoint=tmp_path)
        before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

        def full(tensors, path, metadata):
            path.write_bytes(b"half a file")
            raise OSError("No space left on device")

        monkeypatch.setattr("tacit._support.files.save_file", full)
        with pytest.raises(OSError, match="could not be written: No space left"):
            fit(make_model(), epochs=3, checkpoint=tmp_path)
        assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before

    def test_a_disk_that_is_really_full(self, tmp_path):
        mounted = ["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(tmp_path)]
        if subprocess.run(mounted, capture_output=True, check=False).returncode:
            pytest.skip("to mount a small disk needs root")
        try:
            fit(make_model(), epochs=2, checkpoint=tmp_path)
            before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
            (tmp_path / "filler").write_bytes(b"")
            with contextlib.suppress(OSError), (tmp_path / "filler").open("wb") as file:
                while True:
                    file.write(bytes(1024))
                    file.flush()
            with pytest.raises(OSError, match="could not be written: .*[Nn]o space left"):
                fit(make_model(), epochs=3, checkpoint=tmp_path)
            (tmp_path / "filler").unlink()
            assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
            whole, parts = make_model(), make_model()
            fit(whole, epochs=3)
            fit(parts, epochs=3, checkpoint=tmp_path)
            assert_close(weights(parts), weights(whole), rtol=0, atol=0)
        finally:
            subprocess.run(["umount", str(tmp_path)], check=True)


def test_a_run_that_loses_what_it_had_found_warns():
    """Finite all the time, but far from where it was."""
    x = torch.randn(64, 4)
    net = nn.Linear(4, 1)
    rates = iter([1.0] * 20 + [1e6] * 4)
    with pytest.warns(UserWarning, match=r"fit: the loss ended at .*, after .* in epoch"):
        tacit.fit(
            net, (x, x[:, :1]), likelihood=tacit.Gaussian(1.0, learn=False), epochs=6, lr=0.01,
            momentum=0.0, batch_size=16, schedule=lambda part: next(rates, 1.0), progress=False,
        )  # fmt: skip


def test_how_images_are_normalised_is_noted(tmp_path):
    pixels = torch.randint(0, 256, (32, 1, 2, 2), dtype=torch.uint8).numpy()
    images = tacit.data.Images(pixels, np.arange(32) % 2, mean=(0.4,), std=(0.2,))
    net = nn.Sequential(nn.Flatten(), nn.Linear(4, 2))
    model = tacit.variational(net, rank=2, likelihood=tacit.Categorical())
    tacit.fit(model, images, epochs=1, lr=0.01, batch_size=16, progress=False)
    loaded = tacit.load(
        tacit.save(model, tmp_path / "m.safetensors"), nn.Sequential(nn.Flatten(), nn.Linear(4, 2))
    )
    assert loaded.preprocessing == {"scale": 1 / 255, "mean": [0.4], "std": [0.2]}
    with pytest.raises(ValueError, match=r"Images\(mean\): expected 1 or 1 numbers"):
        tacit.data.Images(pixels, np.arange(32) % 2, mean=(0.4, 0.4))


def test_a_temperature_from_before_is_forgotten():
    model = make_model()
    model.likelihood.set_temperature(3.0)
    fit(model, epochs=1)
    assert model.likelihood.temperature == 1


def test_a_hugging_face_model_on_batches_of_dicts():
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=20, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=16, max_position_embeddings=8, num_labels=2,
    )  # fmt: skip
    words = torch.randint(0, 20, (64, 8))
    labels = (words[:, 0] > 9).long()
    inputs = {"input_ids": words, "attention_mask": torch.ones_like(words)}
    rows = [{**{k: v[i] for k, v in inputs.items()}, "labels": labels[i]} for i in range(64)]
    net = BertForSequenceClassification(config)
    model = tacit.variational(net, ["classifier"], rank=4, likelihood=tacit.Categorical())
    kwargs = {"epochs": 15, "lr": 0.01, "optimizer": "adam", "batch_size": 16, "progress": False}
    history = tacit.fit(model, (inputs, labels), DataLoader(rows, batch_size=32), **kwargs)
    assert history["nll"][-1] < history["nll"][0]
    assert history["accuracy"][-1] > 0.9
    logits = tacit.predict(model, DataLoader(rows, batch_size=32)).logits
    assert logits.shape == (32, 64, 2)


class TestBadInput:
    @pytest.mark.parametrize(
        ("change", "error", "match"),
        [
            ({"train": X}, TypeError, "train: expected a pair of tensors or arrays, inputs and"),
            ({"train": (X, Y[:5])}, ValueError, "train: expected one target for each input"),
            ({"validation": (X,)}, TypeError, "validation: expected a pair"),
            ({"epochs": 0}, ValueError, "epochs: expected an integer of at least 1"),
            ({"lr": -1}, ValueError, "lr: expected a number above 0"),
            ({"batch_size": 0}, ValueError, "batch_size: expected"),
            ({"samples": 0}, ValueError, "samples: expected"),
            ({"draws": 0}, ValueError, "draws: expected"),
            ({"optimizer": "lion"}, ValueError, "optimizer: expected one of"),
            (
                {"optimizer": torch.optim.Adam},
                TypeError,
                "optimizer: expected a name such as 'sgd'",
            ),
            ({"objective": "elbo"}, TypeError, r"objective: expected tacit.ExpectedLoss\(\), "),
            ({"early_stopping": 3}, ValueError, "early_stopping needs validation data"),
            ({"schedule": "cos"}, ValueError, "schedule: expected 'cosine' or a function"),
            ({"resume": "yes"}, ValueError, "resume: expected auto or never"),
            ({"train": (X, Y + 1)}, ValueError, "label 2 is out of range"),
            ({"train": (X, Y.float())}, TypeError, "expected integer labels"),
            ({"train": (X * math.nan, Y)}, ValueError, "train: some inputs are not finite"),
            ({"early_stopping": 0, "validation": (X, Y)}, ValueError, "early_stopping: expected"),
            ({"seed": None}, ValueError, "seed: expected an integer"),
            ({"samples": 2, "draws": 2}, ValueError, "samples and draws exclude each other"),
            (
                {"train": DataLoader(TensorDataset(X, Y), 128, drop_last=True)},
                ValueError,
                "train: 96 examples make no batch",
            ),
            ({"likelihood": tacit.Categorical()}, ValueError, "the model has one of its own"),
        ],
    )
    def test_is_told_at_the_door(self, change, error, match):
        with pytest.raises(error, match=match):
            fit(make_model(), **change)

    def test_what_a_plain_network_has_no_use_for(self):
        with pytest.raises(ValueError, match="samples, draws and objective are for variational"):
            fit(nn.Linear(4, 2), likelihood=tacit.Categorical(), draws=4)

    def test_no_likelihood(self):
        with pytest.raises(ValueError, match="likelihood: the model has none"):
            fit(nn.Linear(4, 2))
